"""Messages of the Responses API as a relay saw them: what asks, what ends an answer, and what a failure says."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import define, field, frozen

from turntape.core.response import without_surrogates
from turntape.core.seam import SampleFailed
from turntape.transport.backends.responses_errors import STATUSES

from .packing import decode

ASKING = ("response.create", "response.append")
ENDS = ("response.completed", "response.incomplete", "response.failed", "response.cancelled", "response.done")
CALLS = ("function_call", "custom_tool_call")
EXPRESSIBLE = ("message", "reasoning", *CALLS)
"""Types of output items that increments can say."""

BESIDE = ("response.steer.", "response.inject.", "response.interrupt.", "response.metadata")
"""Beginnings of the types of events that are no part of an answer."""


def json_object(text: str) -> dict[str, Any] | None:
    """The object in ``text``, or None."""
    try:
        value = decode(text.encode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def is_answer_event(message: Any) -> bool:
    """Whether ``message`` is part of an answer, or is one: not a keep-alive or another thing of a server's own."""
    if not isinstance(message, dict):
        return False
    type_ = message.get("type")
    if type_ is None:
        return "output" in message or bool(message.get("error"))
    return isinstance(type_, str) and (
        type_ == "error" or (type_.startswith("response.") and not type_.startswith(BESIDE))
    )


def response_in(message: Mapping[str, Any]) -> dict[str, Any]:
    """The Response object of an event, or of an answer that is not streamed; empty if there is none."""
    response = message.get("response") if "type" in message else message
    return response if isinstance(response, dict) else {}


def output_of(response: Mapping[str, Any]) -> list[dict[str, Any]]:
    output = response.get("output")
    return [item for item in output if isinstance(item, dict)] if isinstance(output, list) else []


def ends(message: Mapping[str, Any]) -> bool:
    """Whether an answer ends with ``message``."""
    type_ = message.get("type")
    return type_ in ENDS or type_ == "error" or (type_ is None and is_answer_event(message))


@define(eq=False)
class Tally:
    """Counts what relayed sessions hold: answers that are no warm-up's and no error, and tool calls in them."""

    n_turns: int = 0
    n_calls: int = 0
    _warming: Counter[int] = field(factory=Counter)  # by session: warm-ups that are not answered yet

    def client(self, session: int, text: str) -> None:
        value = json_object(text)
        if value is not None and value.get("type", ASKING[0]) == ASKING[0] and value.get("generate") is False:
            self._warming[session] += 1

    def upstream(self, session: int, message: Any) -> None:
        if not isinstance(message, dict):
            return
        type_ = message.get("type")
        if type_ == "response.output_item.done":
            self.n_calls += _is_call(message.get("item"))
        if type_ not in ENDS and message.get("object") != "response":
            return
        output = output_of(response_in(message))
        if self._warming[session] and not output:
            self._warming[session] -= 1
            return
        self.n_turns += 1
        if type_ is None:
            self.n_calls += sum(map(_is_call, output))


def _is_call(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") in CALLS


def failed(
    message: Any, sample_id: str, *, status: int | None = None, headers: Mapping[str, str] | None = None
) -> SampleFailed | None:
    """The failure that a message tells of, in the upstream's own code and words; None if it tells of none.

    Args:
        status: of the HTTP answer whose body ``message`` is, if that was a refusal.
        headers: of that answer.
    """
    body = message if isinstance(message, dict) else {"error": {"message": str(message)[:500]}}
    type_, response = body.get("type"), response_in(body)
    is_refusal = status is not None and status >= 400
    over = type_ in ("response.failed", "response.cancelled") or (type_ is None and response.get("status") == "failed")
    if not (is_refusal or over or type_ == "error" or (type_ is None and body.get("error") and "output" not in body)):
        return None
    found = (response if over else body).get("error")
    said = found if isinstance(found, dict) else {"message": found} if isinstance(found, str) else body
    code = next(
        (code for code in (said.get("code"), said.get("type")) if isinstance(code, str) and code != "error"), ""
    )
    if not code and type_ == "response.cancelled":
        said = {"message": "The upstream cancelled the response."}
    statuses = (status if is_refusal else None, body.get("status"), body.get("status_code"), said.get("status"))
    message_ = said.get("message")
    param = said.get("param")
    return SampleFailed(
        sample_id=sample_id,
        code=code or "server_error",
        message=message_ if isinstance(message_, str) else "",
        status=next((n for n in statuses if type(n) is int and 400 <= n < 600), STATUSES.get(code, 500)),
        param=param if isinstance(param, str) else None,
        retry_after=_retry_after(headers or {}, said.get("headers"), body.get("headers")),
    )


def _retry_after(*sources: Any) -> str | None:
    for headers in sources:
        for name, value in headers.items() if isinstance(headers, Mapping) else ():
            if str(name).lower() == "retry-after":
                return str(value)
    return None


@frozen
class Gist:
    """What an output item says, whichever way its parts were cut."""

    type: str
    words: tuple[Any, ...]

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> "Gist":
        kind = str(item.get("type"))
        match kind:
            case "message":
                return cls(kind, (item.get("phase"), *_joined(item.get("content"))))
            case "reasoning":
                texts = ["".join(text for _, text in _parts(item.get(name))) for name in ("summary", "content")]
                return cls(kind, tuple(texts))
            case "function_call":
                arguments = str(item.get("arguments") or "").strip() or "{}"
                return cls(kind, (item.get("call_id"), item.get("name"), item.get("namespace"), arguments))
            case "custom_tool_call":
                words = (item.get("call_id"), item.get("name"), item.get("namespace"), item.get("input") or "")
                return cls(kind, words)
        return cls(kind, ())

    @property
    def is_empty(self) -> bool:
        """Nothing is said, so that there is no item where increments are all there is."""
        return (self.type == "message" and len(self.words) == 1) or (self.type == "reasoning" and not any(self.words))


def _parts(parts: Any) -> Iterator[tuple[str, str]]:
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict):
            text = part.get("refusal") if part.get("type") == "refusal" else part.get("text")
            if isinstance(text, str) and text:
                yield str(part.get("type")), without_surrogates(text)


def _joined(content: Any) -> Iterator[tuple[str, str]]:
    """Parts of a message, neighbours of one type as one."""
    last: tuple[str, str] | None = None
    for kind, text in _parts(content):
        if last is not None and last[0] == kind:
            last = kind, last[1] + text
        else:
            if last is not None:
                yield last
            last = kind, text
    if last is not None:
        yield last
