"""Logs of Responses stream events, as people write them with ``event.to_json()``, to a conversation.

A log is JSON values one after another, over as many lines as they take, or the lines of an event stream. Each is

- an event of a stream, with its ``type``, or a whole Response object;
- a request: a body of ``POST /responses``, a ``response.create`` event, or ``{"request": …}`` around either;
- ``{"event": …}`` around an event. Around a request and an event, ``"at"`` gives its time in seconds since 1970.

A request is answered by the events that follow it, up to the end of their response.
"""

from typing import Any

from attrs import define, field

from turntape.core.seam import Increment, SampleFailed
from turntape.replay.packing import encode
from turntape.transport.backends.base import BackendError
from turntape.transport.backends.chat_errors import Refusals
from turntape.transport.backends.chat_tools import ToolNames
from turntape.transport.backends.responses_stream import EventReader

from .conversations import Conversation, Imported, ImportedTurn, Source
from .json_values import json_values

NOTES = ("Imported from a log of Responses events.",)

TIMELESS = "The log holds no times of its events: an answer comes at once, when its response was created."
UNASKED = (
    "Where the log holds no request, nobody knows what was asked: a placeholder stands in its place, and no client's request"
    " is answered by such a turn."
)
PLACEHOLDER = "[the log does not hold what was asked]"

ECHOED = (
    "model",
    "instructions",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "temperature",
    "top_p",
    "max_output_tokens",
    "reasoning",
    "text",
    "truncation",
    "metadata",
)
"""Settings that a response repeats."""

LATEST = 1e10
"""Seconds since 1970; the year 2286."""

OUTCOMES = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")


def is_log(values: list[Any]) -> bool:
    """Whether the first values of a file are those of such a log."""
    values = [inner for value in values for inner in (value[:1] if isinstance(value, list) else [value])]
    return bool(values) and all(isinstance(value, dict) and _kind(value)[0] for value in values)


def read(source: Source, imported: Imported) -> None:
    """Add the conversation of one log.

    Raises:
        ImportFailed: it is not JSON.
    """
    log = _Log(source.name, imported)
    for place, value in json_values(source):
        for inner in value if isinstance(value, list) else (value,):
            log.take(place, inner)
    log.finish()


def _kind(value: dict[str, Any]) -> tuple[str, dict[str, Any], Any]:
    """``"request"``, ``"event"``, ``"response"`` or ``""``; what it is without its wrapping; its time if that is told."""
    at = value.get("at")
    if isinstance(inner := value.get("request"), dict):
        return "request", inner, at
    if isinstance(inner := value.get("event"), dict):
        return "event", inner, at
    if isinstance(inner := value.get("response"), dict) and "type" not in value:
        return "response", inner, at
    type_ = value.get("type")
    if type_ == "response.create":
        return "request", value, at
    if isinstance(type_, str) and (type_.startswith("response.") or type_ in ("error", "keepalive")):
        return "event", value, at
    if value.get("object") == "response":
        return "response", value, at
    return ("request", value, at) if type_ is None and ("input" in value or "model" in value) else ("", value, at)


def _time(value: Any) -> float | None:
    """``value`` if it can be a time of a log."""
    return float(value) if type(value) in (int, float) and 0 <= value < LATEST else None


@define
class _Answer:
    """One response, as far as its events have come."""

    place: str
    request: dict[str, Any] | None
    asked_at: float | None
    reader: EventReader = field(factory=lambda: EventReader(ToolNames(), Refusals("the logged server")))
    created_at: float | None = None
    echo: dict[str, Any] = field(factory=dict)
    said: list[tuple[float | None, tuple[Increment, ...]]] = field(factory=list)
    last_at: float | None = None


@define
class _Log:
    """One log, as far as it has been read."""

    name: str
    imported: Imported
    _turns: list[ImportedTurn] = field(factory=list)
    _answer: _Answer | None = None
    _request: tuple[str, dict[str, Any], float | None] | None = None  # that nothing has answered yet
    _now: float = 0.0

    def take(self, place: str, value: Any) -> None:
        kind, inner, at = _kind(value) if isinstance(value, dict) else ("", {}, None)
        at = _time(at)
        match kind:
            case "request":
                self._cut()
                self._unanswered()
                self._request = place, inner, at
            case "event":
                self._event(place, inner, at)
            case "response":
                self._cut()
                self._event(place, inner, at)
                if self._answer is not None:
                    self._end()
            case _:
                self.imported.skipped.append(f"{self.name}: {place}: is no request, event or response")

    def finish(self) -> None:
        self._cut()
        self._unanswered()
        if self._turns:
            self.imported.conversations.append(Conversation(tuple(self._turns)))
        else:
            self.imported.skipped.append(f"{self.name}: holds no whole answer")

    def _event(self, place: str, event: dict[str, Any], at: float | None) -> None:
        if event.get("type") == "response.created":
            self._cut()
        if self._answer is None:
            if event.get("type") == "keepalive":
                return
            _, request, asked_at = self._request or (place, None, None)
            self._answer, self._request = _Answer(place, request, asked_at), None
        answer = self._answer
        answer.last_at = at
        response = event if event.get("object") == "response" else event.get("response")
        if isinstance(response, dict):
            answer.echo = response
            if (created := _time(response.get("created_at"))) is not None:
                answer.created_at = created
        if batch := answer.reader.feed([encode(event)]):
            answer.said.append((at, batch))
        if answer.reader.ended or event.get("type") in (*OUTCOMES, "error"):
            self._end()

    def _cut(self) -> None:
        if self._answer is not None:
            self.imported.skipped.append(f"{self.name}: {self._answer.place}: an answer without its end")
            self._answer = None

    def _unanswered(self) -> None:
        if self._request is not None:
            self.imported.skipped.append(f"{self.name}: {self._request[0]}: a request without an answer")
            self._request = None

    def _end(self) -> None:
        answer, self._answer = self._answer, None
        assert answer is not None
        failure = None
        try:
            last: tuple[Increment, ...] = answer.reader.end()
        except BackendError as exc:
            last = ()
            failure = SampleFailed("", exc.code, str(exc), exc.status, exc.param, exc.retry_after)
        begun = [at for at, _ in answer.said if at is not None]
        self._now = asked_at = answer.asked_at or answer.created_at or min(begun, default=self._now)
        batches = list[tuple[float, tuple[Increment, ...]]]()
        for at, batch in answer.said:
            self._now = max(self._now, at or self._now)
            batches.append((self._now, batch))
        if last:
            self._now = max(self._now, answer.last_at or self._now)
            batches.append((self._now, last))
        if not begun and answer.said and TIMELESS not in self.imported.notes:
            self.imported.notes.append(TIMELESS)
        body, new, follows = self._asked(answer)
        self._turns.append(
            ImportedTurn(
                f"{self.name}: {answer.place}",
                asked_at,
                body,
                new,
                tuple(batches),
                answer.reader.response_id,
                follows,
                failure=failure,
            )
        )

    def _asked(self, answer: _Answer) -> tuple[dict[str, Any], Any, str | None]:
        if answer.request is None:
            if UNASKED not in self.imported.notes:
                self.imported.notes.append(UNASKED)
            echoed = {name: value for name in ECHOED if (value := answer.echo.get(name)) is not None}
            return {"model": "unknown", **echoed, "store": False}, PLACEHOLDER, None
        own = ("type", "input", "previous_response_id", "stream_id")
        body = {name: value for name, value in answer.request.items() if name not in own}
        follows = answer.request.get("previous_response_id")
        return body, answer.request.get("input", []), follows if isinstance(follows, str) else None
