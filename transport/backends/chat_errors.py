"""What went wrong at a chat-completions server, in canonical codes: its message decides before its status does."""

import re
from collections.abc import Mapping
from typing import Any

import orjson
from attrs import field, frozen

from ..http_connections import HttpError
from .base import BackendError

MAX_MESSAGE = 500
"""Characters of a server's own message that are passed on; ours."""

_KEY_SHAPES = re.compile(
    r"(?i)\b(?:authorization[\"']?\s*[:=]\s*[\"']?)?(?:bearer|basic)\s+\S+"
    r"|\b(?:sk|pk|rk|gsk|csk|xai|hf|fw|nvapi|tgp)[-_][A-Za-z0-9_*.\-]{6,}"
    r"|\bAIza[A-Za-z0-9_\-]{10,}"
    r"|\b(?:api[-_ ]?key|access[-_ ]?token|authorization)[\"']?\s*[:=]\s*[\"']?[^\s\"',;]+"
)

_RATE = re.compile(
    r"(?i)rate.?limit|too many requests|throttl|(?:tokens|requests) per (?:second|minute|hour|day)|quota"
)
_OVERFLOW = re.compile(
    r"(?i)maximum context length|exceeds the context window|context window (?:is )?exceeded|exceeds the max_model_len"
    r"|longer than the (?:model's context|maximum model) length|exceeds the model's maximum context"
    r"|exceed_context_size|exceeded max context|greater than the context length|reduce the length of the messages"
    r"|current length is \d+ while limit|maximum prompt length is|exceeded model token limit|too many tokens"
    r"|prompt (?:is )?too long|input length .*exceeds|range of input length should be"
    r"|context[_ ]length[_ ]exceeded|token_limit_exceeded|exceeds the available context size"
)
_BOUND = re.compile(r"(?i)cannot be greater than max_model_len|max_(?:completion_)?tokens.{0,40}(?:too large|at most)")
_QUOTA = re.compile(
    r"(?i)insufficient_quota|insufficient (?:balance|credits|funds)|exceeded your current quota|out of credits"
)
_MODEL = re.compile(
    r"(?i)model_not_found|invalid_model|model\b.{0,200}(?:not found|does ?n.t exist|not exist)|try pulling it"
)
_FILTER = re.compile(r"(?i)content_filter|content_policy|responsibleaipolicy|moderation")
_BUSY = re.compile(r"(?i)slow_down|server_is_overloaded|overloaded|queue is full|server busy|loading model")
_BAD_CALL = re.compile(r"(?i)tool_use_failed|error parsing tool call")


@frozen
class _Said:
    """What a server's error says, from whichever envelope."""

    message: str = ""
    code: str = ""
    param: str | None = None
    number: int | None = None  # a code or status that is a number


def _said(value: Any, outer: Mapping[str, Any] | None = None) -> _Said:
    """Read ``{"error":{...}}``, ``{"error":"..."}``, a flat object, ``{"detail":...}`` or a plain string."""
    if isinstance(value, str):
        return _Said(value, number=_number((outer or {}).get("status_code")))
    if not isinstance(value, dict):
        return _Said()
    if value.get("error"):
        return _said(value["error"], value)
    message, detail = value.get("message"), value.get("detail")
    if not isinstance(message, str) and isinstance(detail, str):
        message = detail
    elif not isinstance(message, str) and isinstance(detail, list):
        message = "; ".join(
            f"{'.'.join(map(str, part.get('loc') or []))}: {part['msg']}"
            for part in detail
            if isinstance(part, dict) and isinstance(part.get("msg"), str)
        )
    metadata = value.get("metadata") if isinstance(value.get("metadata"), dict) else {}
    assert isinstance(metadata, dict)
    words = (value.get("code"), value.get("type"), metadata.get("error_type"))
    numbers = (value.get("code"), value.get("status"), (outer or {}).get("status_code"))
    param = value.get("param")
    return _Said(
        message if isinstance(message, str) else "",
        " ".join(word for word in words if isinstance(word, str)),
        param if isinstance(param, str) else None,
        next((n for n in map(_number, numbers) if n is not None), None),
    )


def _number(value: object) -> int | None:
    return value if type(value) is int and 400 <= value < 600 else None


@frozen
class Refusals:
    """Makes the errors of one backend.

    Args:
        where: host and port, for messages.
        key: masked wherever a server repeats it.
    """

    where: str
    key: str | None = field(default=None, repr=False)

    def broken(self, what: str, *, code: str = "server_error") -> BackendError:
        """The server did something that makes no whole answer. ``what`` completes "The backend at HOST ..."."""
        return BackendError(f"The backend at {self.where} {what}.", code=code, status=502)

    def failed(self, error: HttpError) -> BackendError:
        """The exchange failed below HTTP."""
        return BackendError(
            f"The backend at {self.where} {error}. {error.cure}", status=504 if error.timed_out else 502
        )

    def midstream(self, chunk: Mapping[str, Any]) -> BackendError:
        """An error object among the chunks of an answer that had begun."""
        said = _said(dict(chunk))
        return self._classified(said.number or 502, said, None)

    def refused(self, status: int, headers: Mapping[str, str], body: bytes) -> BackendError:
        """A status other than 200. Of ``body`` only a message in a known envelope is ever passed on."""
        try:
            said = _said(orjson.loads(body))
        except orjson.JSONDecodeError:
            said = _Said()
        return self._classified(status, said, headers.get("retry-after"))

    def _classified(self, status: int, said: _Said, retry_after: str | None) -> BackendError:
        told = f"{said.code} {said.param or ''} {said.message}"[: 16 * MAX_MESSAGE]
        is_rate = _RATE.search(told) is not None
        make = _Maker(self, said, status, retry_after)
        if _QUOTA.search(told) or status == 402:
            return make("insufficient_quota", 402, "Its account has no credit left.")
        if _BOUND.search(told):
            return make("invalid_prompt", 400, "Ask for fewer output tokens.", param="max_output_tokens")
        if not is_rate and (_OVERFLOW.search(told) or said.param in ("input_tokens", "input_text")):
            return make("context_length_exceeded", 400, "The conversation is too long for the model.", param="input")
        if status == 401 or (status == 403 and not _FILTER.search(told)):
            return make("invalid_api_key", 401, "Check the key that the server was given for it.")
        if status in (400, 403, 404, 410, 422) and _MODEL.search(told):
            return make("model_not_found", 404, "Ask for a model that it serves.", param="model")
        if status == 413 and not is_rate:
            return make("context_length_exceeded", 400, "The request is too large for it.", param="input")
        if status == 429 or (is_rate and status in (400, 403, 413)):
            return make("rate_limit_exceeded", 429, "Come back later.")
        if status in (498, 503, 529) or _BUSY.search(told):
            return make("server_is_overloaded", 503, "Come back later.")
        if status in (404, 405, 410):
            return make("server_error", 502, "Check its URL: it usually ends in /v1.")
        if status == 408:
            return make("server_error", 504, "Try again.")
        if _BAD_CALL.search(told):
            return make("server_error", 502, "The model wrote a tool call that cannot be read; try again.")
        if status < 500:
            return make("invalid_prompt", 400, "", param=said.param)
        return make("server_error", status, "Try again.")

    def masked(self, text: str) -> str:
        """``text`` without anything that looks like a key, on one line, cut to ``MAX_MESSAGE``."""
        if self.key:
            text = text.replace(self.key, "[masked]")
        text = _KEY_SHAPES.sub("[masked]", text)
        text = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * MAX_MESSAGE]).split())
        return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 3] + "..."


@frozen
class _Maker:
    """Puts together the message of one refusal."""

    refusals: Refusals
    said: _Said
    status: int
    retry_after: str | None

    def __call__(self, code: str, status: int, cure: str, *, param: str | None = None) -> BackendError:
        said = self.refusals.masked(self.said.message)
        parts = [f"The backend at {self.refusals.where} answered with HTTP {self.status}"]
        parts[0] += f": {said}" if said else " and no message that can be read."
        if not parts[0].endswith((".", "!", "?")):
            parts[0] += "."
        retry_after = None
        if status in (429, 503) and self.retry_after is not None and re.fullmatch(r"[0-9.]{1,10}", self.retry_after):
            retry_after = self.retry_after
        message = " ".join(filter(None, (*parts, cure)))
        return BackendError(message, code=code, status=status, param=param, retry_after=retry_after)
