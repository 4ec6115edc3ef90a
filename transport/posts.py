"""One POST as a session: ``Link``s that turn server events into an SSE stream, or into one JSON body."""

import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import orjson

from turntape.core.seam import ABNORMAL, event_type

from .http import Answer, HttpConnection, error_answer
from .service import Service

logger = logging.getLogger(__name__)

TERMINALS = ("response.completed", "response.incomplete", "response.failed")

SSE_FIELDS = (
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),  # nginx would collect the events otherwise
)

_STREAM_KEY = re.compile(rb'"stream"\s*:\s*true')  # a quote within a string is escaped: this is a key, at some depth
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_TAIL_BYTES = 4096


def wants_stream(body: bytes) -> bool:
    """Whether the body is an object whose top level says ``"stream": true``; False for one that is not JSON.

    Most bodies are told by a search, or by the few bytes behind the key; the rest is parsed.
    """
    found = list(_STREAM_KEY.finditer(body))
    if not found:
        return False
    if len(body) - found[-1].end() <= _TAIL_BYTES:
        tail = _STRING.sub(b"", body[found[-1].end() :])
        if tail.count(b"}") - tail.count(b"{") == 1 and tail.count(b"]") == tail.count(b"["):
            return True
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return isinstance(value, dict) and value.get("stream") is True


class _PostLink:
    """The one client text of a POST, then silence until the client leaves."""

    def __init__(self, connection: HttpConnection, text: str) -> None:
        self._connection, self._text = connection, text
        self.gone_code: int | None = None
        self.gone = False
        self.room = connection.room

    async def __aiter__(self) -> AsyncIterator[str]:
        yield self._text
        await self._connection.gone()
        self.gone = True


class EventStreamLink(_PostLink):
    """Answers with the server events as SSE, or with an HTTP error if the first of them is an error."""

    def __init__(self, connection: HttpConnection, text: str) -> None:
        super().__init__(connection, text)
        self._begun = self._whole = False

    def put(self, data: tuple[bytes, ...]) -> None:
        """One write for all, each event whole in it: some clients lose what is split over chunks."""
        if not self._begun:
            if not self._connection.unanswered:
                return
            if event_type(data[0]) == "error":
                self._connection.answer(error_of(data[0]))
                return
            self._connection.begin(SSE_FIELDS)
            self._begun = True
        lines = []
        for event in data:
            kind = event_type(event)
            if kind == "error":
                event = _flat(event)
            elif kind in TERMINALS:
                self._whole = True
            lines.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), event))
        self._connection.chunk(b"".join(lines))

    async def aclose(self, code: int, reason: str) -> None:
        self.gone = self.gone or code == ABNORMAL
        if self._whole:  # else the stream is left torn, so that nobody takes it for a whole one
            self._connection.chunk(b"data: [DONE]\n\n", last=True)
            await self._connection.flush()


class BodyLink(_PostLink):
    """Answers with one body, made of the response that the terminal event carries.

    Args:
        shape: the body for a Response object.
    """

    def __init__(
        self, connection: HttpConnection, text: str, shape: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    ) -> None:
        super().__init__(connection, text)
        self._shape = shape
        self._last: bytes | None = None

    def put(self, data: tuple[bytes, ...]) -> None:
        for event in data:
            if self._last is None and event_type(event) in ("error", *TERMINALS):
                self._last = event

    async def aclose(self, code: int, reason: str) -> None:
        self.gone = self.gone or code == ABNORMAL
        if self._last is None:
            return
        if event_type(self._last) == "error":
            answer = error_of(self._last)
        else:
            response = orjson.loads(self._last)["response"]
            if response["status"] == "failed":
                error = response.get("error") or {}
                answer = error_answer(
                    500,
                    error.get("message") or "The response failed.",
                    code=error.get("code") or "server_error",
                )
            else:
                answer = Answer(200, orjson.dumps(self._shape(response) if self._shape else response))
        self._connection.answer(answer)
        await self._connection.flush()


def input_tokens(response: dict[str, Any]) -> dict[str, Any]:
    """The body of ``/v1/responses/input_tokens`` for the response of a warm-up."""
    return {"object": "response.input_tokens", "input_tokens": response["usage"]["input_tokens"]}


def error_of(event: bytes) -> Answer:
    """The HTTP response that an ``error`` event becomes when no response has begun."""
    frame = orjson.loads(event)
    error, status = frame["error"], frame["status"]
    retry_after = str((frame.get("headers") or {}).get("retry-after", ""))
    return error_answer(
        status if 400 <= status < 600 else 500,
        error["message"],
        code=error["code"],
        param=error["param"],
        headers=(("retry-after", retry_after),) if re.fullmatch(r"[\w ,:.-]+", retry_after, re.ASCII) else (),
    )


def _flat(event: bytes) -> bytes:
    """An ``error`` event as SSE wants it: with the nested form, openai-python raises before the stream's own end."""
    frame = orjson.loads(event)
    error = frame["error"]
    return orjson.dumps(
        {
            "type": "error",
            "code": error.get("code"),
            "message": error.get("message"),
            "param": error.get("param"),
            "sequence_number": frame.get("sequence_number", 0),
        }
    )


async def run_post(
    service: Service, connection: HttpConnection, headers: Mapping[str, str], owner: str, *, counts: bool = False
) -> Answer | None:
    """Answer one POST through a session of its own.

    Args:
        counts: answer with the number of input tokens only.

    Returns:
        What is to be answered, where the session did not: None if all is said or nobody is left to hear it.

    Raises:
        Refused: by the connection, for a body it cannot take.
    """
    body = await connection.body()
    try:
        text = body.decode()
    except UnicodeDecodeError as exc:
        return error_answer(400, f"The body is not valid UTF-8: {exc}.", code="invalid_json")
    link: EventStreamLink | BodyLink
    if counts:
        transport, link = "count", BodyLink(connection, text, input_tokens)
    elif wants_stream(body):
        transport, link = "sse", EventStreamLink(connection, text)
    else:
        transport, link = "json", BodyLink(connection, text)
    try:
        await service.run(link, service.opened(headers, transport=transport, owner=owner))
    except* Exception:
        logger.exception("session crashed")
    if link.gone or not connection.unanswered:
        return None
    return error_answer(500, "The server had an error while it answered.", code="server_error")
