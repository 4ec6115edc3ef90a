"""What went wrong at a chat-completions server, in canonical codes: its message decides before its status does."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from attrs import field, frozen

from ..http_connections import HttpError
from .base import BackendError
from .chat_dialect import ErrorRule

MAX_MESSAGE = 500
"""Characters of a server's own message that are passed on; ours."""

_KEY_SHAPES = re.compile(
    r"(?i)\b(?P<scheme>(?:authorization[\"']?\s*[:=]\s*[\"']?)?(?:bearer|basic)\s+)(?P<credentials>\S+)"
    r"|\b(?:sk|pk|rk|gsk|csk|xai|hf|fw|nvapi|tgp)[-_][A-Za-z0-9_*.\-]{6,}"
    r"|\bAIza[A-Za-z0-9_\-]{10,}"
    r"|\b(?P<label>(?:api[-_ ]?key|access[-_ ]?token|authorization)[\"']?\s*[:=]\s*[\"']?)(?P<value>[^\s\"',;]+)"
)
_PLAIN = re.compile(r"[A-Z_]{1,40}|[A-Za-z]?[a-z]{0,19}")
"""A word, or a name such as KEY or OPENAI_API_KEY, where a key could stand: an error that tells how to send one."""

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


_WANTS_TLS = re.compile(rb"(?i)plain HTTP request was sent to HTTPS port|HTTP request to an HTTPS server")
"""nginx, and servers in Go."""

_MEANINGS: Mapping[str, tuple[str, int, str, str | None]] = {
    "insufficient_quota": ("insufficient_quota", 402, "Its account has no credit left.", None),
    "invalid_max_tokens": ("invalid_prompt", 400, "Ask for fewer output tokens.", "max_output_tokens"),
    "context_length_exceeded": (
        "context_length_exceeded",
        400,
        "The conversation is too long for the model.",
        "input",
    ),
    "invalid_api_key": ("invalid_api_key", 401, "Check the key that the server was given for it.", None),
    "model_not_found": ("model_not_found", 404, "Ask for a model that it serves.", "model"),
    "rate_limit_exceeded": ("rate_limit_exceeded", 429, "Come back later.", None),
    "server_is_overloaded": ("server_is_overloaded", 503, "Come back later.", None),
    "unknown_path": ("server_error", 502, "Check its URL: it usually ends in /v1.", None),
    "timeout": ("server_error", 504, "Try again.", None),
    "malformed_call": ("server_error", 502, "The model wrote a tool call that cannot be read; try again.", None),
    "server_error": ("server_error", 502, "Try again.", None),
}
"""What each kind of failure becomes: code, status, cure, and the field of the request at fault."""


def in_stream(n_before: int, what: str = "event") -> str:
    """How an error came that stands in an answer with status 200; completes "The backend at HOST ..."."""
    if not n_before:
        return "reported an error in place of an answer"
    return f"reported an error after {n_before} {what}{'' if n_before == 1 else 's'} of its answer"


class Refused(BackendError):
    """A status other than 200.

    Attributes:
        malformed_call: the model's own call was at fault; another try may go well.
        unknown_field: the field of the request that the server does not know, if it is one of those asked about.
    """

    malformed_call: bool = False
    unknown_field: str | None = None


@frozen
class _Said:
    """What a server's error says, from whichever envelope.

    Attributes:
        raw: what a server behind the server said (OpenRouter); for classification alone, never passed on.
        number: a code or status that is a number.
    """

    message: str = ""
    code: str = ""
    param: str | None = None
    number: int | None = None
    raw: str = ""

    @property
    def told(self) -> str:
        return f"{self.code} {self.param or ''} {self.message} {self.raw}"[: 16 * MAX_MESSAGE].strip()


def _said(value: Any, outer: Mapping[str, Any] | None = None) -> _Said:
    """Read ``{"error":{...}}``, ``{"error":"..."}``, a flat object, ``{"detail":...}`` or a plain string."""
    while isinstance(value, dict) and value.get("error"):
        value, outer = value["error"], value
    if isinstance(value, str):
        return _Said(value, number=_number((outer or {}).get("status_code")))
    if not isinstance(value, dict):
        return _Said()
    message, detail = value.get("message"), value.get("detail")
    if not isinstance(message, str) and isinstance(detail, str):
        message = detail
    elif not isinstance(message, str) and isinstance(detail, list):
        message = "; ".join(
            f"{_place(part.get('loc'))}: {part['msg']}"
            for part in detail
            if isinstance(part, dict) and isinstance(part.get("msg"), str)
        )
    metadata = value.get("metadata") if isinstance(value.get("metadata"), dict) else {}
    assert isinstance(metadata, dict)
    words = (value.get("code"), value.get("type"), metadata.get("error_type"))
    numbers = (value.get("code"), value.get("status"), (outer or {}).get("status_code"))
    param, raw = value.get("param"), metadata.get("raw")
    return _Said(
        message if isinstance(message, str) else "",
        " ".join(word for word in words if isinstance(word, str)),
        param if isinstance(param, str) else None,
        next((n for n in map(_number, numbers) if n is not None), None),
        raw if isinstance(raw, str) else "",
    )


def _place(loc: object) -> str:
    """Where in the request a detail is about: FastAPI names each step of the way."""
    return ".".join(str(step) for step in loc if isinstance(step, str | int)) if isinstance(loc, list) else ""


def _number(value: object) -> int | None:
    return value if type(value) is int and 400 <= value < 600 else None


@frozen
class Refusals:
    """Makes the errors of one backend.

    Args:
        where: host and port, for messages.
        key: masked wherever a server repeats it.
        rules: the server's own ways to say what is wrong, which go before all general ones.
    """

    where: str
    key: str | None = field(default=None, repr=False)
    rules: tuple[ErrorRule, ...] = ()

    def broken(self, what: str, *, code: str = "server_error") -> BackendError:
        """The server did something that makes no whole answer. ``what`` completes "The backend at HOST ..."."""
        return BackendError(f"The backend at {self.where} {what}.", code=code, status=502)

    def unfinished(self, n_events: int, speaks: str, *, has_output: bool) -> BackendError:
        """The answer ended too early.

        Args:
            n_events: that came.
            speaks: the protocol that they should be of.
            has_output: they held some of an answer.
        """
        if has_output:
            return self.broken("ended its answer without saying that it is finished")
        if not n_events:
            return self.broken("sent an empty answer")
        events = f"events ({n_events})"
        return self.broken(
            f"sent an empty answer: {events} that hold no {speaks}; check what it speaks there with turntape doctor"
        )

    def too_long(self, what: str) -> BackendError:
        """The prompt did not fit, though the server did not say so."""
        message = f"The backend at {self.where} {what}."
        return BackendError(message, code="context_length_exceeded", status=400, param="input")

    def failed(self, error: HttpError) -> BackendError:
        """The exchange failed below HTTP. What it says may quote the server: the host that a redirect leads to."""
        said = self.masked(str(error))
        return BackendError(f"The backend at {self.where} {said}. {error.cure}", status=504 if error.timed_out else 502)

    def midstream(self, chunk: Mapping[str, Any], n_before: int, what: str = "event") -> BackendError:
        """An error object among the chunks of an answer that had begun.

        Args:
            n_before: what came before it, counted in ``what``.
        """
        said = _said(dict(chunk))
        return self._error(said.number or 502, said, None, in_stream(n_before, what))

    def refused(
        self,
        status: int,
        headers: Mapping[str, str],
        body: bytes,
        optional_fields: Iterable[str] = (),
        how: str = "",
    ) -> Refused:
        """A status other than 200. Of ``body`` only a message in a known envelope is ever passed on.

        Args:
            optional_fields: fields of the request that could be left out; see ``Refused.unknown_field``.
            how: completes "The backend at HOST ..." for an error that came otherwise than as the status of a response.
        """
        try:
            said = _said(orjson.loads(body))
        except orjson.JSONDecodeError:
            said = _Said()
        if status == 400 and _WANTS_TLS.search(body):
            return Refused(f"The backend at {self.where} answers with TLS only. Write https:// in its URL.", status=502)
        error = self._error(status, said, _retry_after(headers), how)
        if error.code == "invalid_prompt":
            error.unknown_field = next((name for name in optional_fields if _names(said, name)), None)
        return error

    def _error(self, status: int, said: _Said, retry_after: str | None, how: str = "") -> Refused:
        kind = self._kind(status, said)
        if kind == "invalid_prompt":
            code, out, cure, param = kind, 400, "", self.masked(said.param or "") or None
        else:
            code, out, cure, param = _MEANINGS[kind]
        if kind == "server_error" and 500 <= status < 600:
            out = status
        parts = [f"The backend at {self.where} {how or f'answered with HTTP {status}'}"]
        shown = self.masked(said.message)
        parts[0] += f": {shown}" if shown else " and no message that can be read."
        if not parts[0].endswith((".", "!", "?")):
            parts[0] += "."
        error = Refused(
            " ".join(filter(None, (*parts, cure))),
            code=code,
            status=out,
            param=param,
            retry_after=retry_after if out in (429, 503) else None,
        )
        error.malformed_call = kind == "malformed_call"
        return error

    def _kind(self, status: int, said: _Said) -> str:
        """Which of ``_MEANINGS`` it is, or "invalid_prompt"; the message decides before the status does."""
        told = said.told
        for rule in self.rules:
            if (not rule.statuses or status in rule.statuses) and re.search(rule.match, told, re.IGNORECASE):
                return rule.code
        is_rate = _RATE.search(told) is not None
        if _QUOTA.search(told) or status == 402:
            return "insufficient_quota"
        if _BOUND.search(told):
            return "invalid_max_tokens"
        if not is_rate and (_OVERFLOW.search(told) or said.param in ("input_tokens", "input_text")):
            return "context_length_exceeded"
        if status == 401 or (status == 403 and not _FILTER.search(told)):
            return "invalid_api_key"
        if status in (400, 403, 404, 410, 422) and _MODEL.search(told):
            return "model_not_found"
        if status == 413 and not is_rate:
            return "context_length_exceeded"
        if status == 429 or (is_rate and status in (400, 403, 413)):
            return "rate_limit_exceeded"
        if status in (498, 503, 529) or _BUSY.search(told):
            return "server_is_overloaded"
        if status in (404, 405, 410):
            return "unknown_path"
        if status == 408:
            return "timeout"
        if _BAD_CALL.search(told):
            return "malformed_call"
        return "invalid_prompt" if status < 500 else "server_error"

    def masked(self, text: str) -> str:
        """``text`` without anything that looks like a key, on one line, cut to ``MAX_MESSAGE``."""
        if self.key:
            text = re.sub(re.escape(self.key), "[masked]", text, flags=re.IGNORECASE)
        text = _KEY_SHAPES.sub(_without_key, text)
        text = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * MAX_MESSAGE]).split())
        return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 3] + "..."


def _without_key(found: re.Match[str]) -> str:
    """What looks like a key, masked, unless what stands there is a plain word."""
    secret = found["credentials"] or found["value"]
    if secret is None:
        return "[masked]"
    if _PLAIN.fullmatch(secret.strip("\"'`<>()[]{}$.,;:!?")):
        return found[0]
    return f"{found['scheme'] or found['label']}[masked]"


def _names(said: _Said, name: str) -> bool:
    """Whether an error is about the field ``name``, which may hold others."""
    return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", f"{said.param or ''} {said.message}") is not None


def _retry_after(headers: Mapping[str, str]) -> str | None:
    """Seconds to wait, under a million, as the server wrote them, or from its milliseconds (Azure); None for a date."""
    seconds, milliseconds = headers.get("retry-after", ""), headers.get("retry-after-ms", "")
    if re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", seconds):
        return seconds
    return f"{int(milliseconds) / 1000:g}" if re.fullmatch(r"[0-9]{1,9}", milliseconds) else None
