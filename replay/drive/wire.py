"""The recorded client's side of the wire, in each design: one request out, the answer's events in, with their times."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

import orjson
import trio
from attrs import define, field, frozen

from turntape.transport.backends.base import BackendError
from turntape.transport.backends.chat_errors import Refusals
from turntape.transport.backends.chat_tools import ToolNames
from turntape.transport.backends.responses_stream import EventReader
from turntape.transport.http_client import HttpClient
from turntape.transport.http_connections import HttpError
from turntape.transport.http_target import Target
from turntape.transport.websocket_client import Rejected, SocketClosed, WebSocketClient, websocket_target

from .pace import Heard
from .probe import failure_of
from .report import Failure

DESIGNS = ("create", "append", "http")
APPEND_HEADER = ("OpenAI-Beta", "responses_websockets=2026-02-04")
"""Offers the append design, as its clients do."""

LIFECYCLE = ("response.created", "response.queued", "response.in_progress")
TERMINAL = ("response.completed", "response.done", "response.incomplete", "response.failed", "error")
MAX_REFUSAL_BYTES = 256 << 10
REST_S = 7200.0
"""How long a connection is kept open while tools run."""


@define(eq=False)
class Reply:
    """One answer as the client got it.

    Attributes:
        heard: its increments.
        output: its finished items, as they were sent.
        output_at: when the first event of its output came.
        response_id: of the response, once it was named.
        open: the response waits to be appended to.
    """

    heard: Heard
    output: list[dict[str, Any]] = field(factory=list)
    output_at: float | None = None
    response_id: str | None = None
    open: bool = False
    failure: Failure | None = None
    over: bool = False

    def read(self, texts: Sequence[bytes], reader: EventReader) -> None:
        """Take the events of one read."""
        at = trio.current_time()
        for text in texts:
            if self.over:
                return
            try:
                event = orjson.loads(text)
            except orjson.JSONDecodeError:
                event = None
            kind = event.get("type") if isinstance(event, dict) else None
            if isinstance(event, dict) and isinstance(kind, str):
                text = self._note(kind, event, at) or text
            try:
                self.heard.hear(reader.feed([text]), at)
                if reader.ended:
                    self.over = True
                    self.heard.hear(reader.end(), at)
            except BackendError as exc:
                self.failure = failure_of(exc)
            if self.over:
                self.heard.ended_at = at

    def _note(self, kind: str, event: dict[str, Any], at: float) -> bytes | None:
        """Keep what the client needs of an event; give another text for it where the reader should see less."""
        if kind not in LIFECYCLE and kind not in TERMINAL and self.output_at is None:
            self.output_at = at
        response = event.get("response")
        if isinstance(response, dict) and isinstance(response.get("id"), str):
            self.response_id = response["id"]
        if kind == "response.output_item.done" and isinstance(event.get("item"), dict):
            self.output.append(event["item"])
        if kind in TERMINAL and isinstance(response, dict):
            self.open = response.get("status") == "in_progress"
            if self.output and response.get("output"):  # an open response repeats what earlier turns said
                return orjson.dumps({**event, "response": {**response, "output": []}})
            if isinstance(response.get("output"), list):
                self.output += [item for item in response["output"] if isinstance(item, dict)]
        return None


class Wire(Protocol):
    """One thread's way to the server."""

    @property
    def remembers(self) -> bool:
        """The server still has what this thread was answered last. Ask for it after ``wake``."""
        ...

    async def wake(self) -> None:
        """End the rest, if there was one."""
        ...

    async def ask(self, body: dict[str, Any]) -> Reply:
        """Send one client event and return the whole answer; what goes wrong is in it."""
        ...

    def rest(self) -> None:
        """Nothing is wanted until the next ``ask``."""
        ...

    async def aclose(self) -> None: ...


@frozen(eq=False)
class Server:
    """Where the client connects.

    Args:
        base_url: such as http://127.0.0.1:8765/v1.
        where: a name for messages, the same each time.

    Raises:
        ValueError: the URL cannot be used; the text does not repeat it.
    """

    base_url: str = field(repr=False)
    key: str | None = field(default=None, repr=False)
    where: str = ""
    client: HttpClient = field(factory=HttpClient, repr=False)

    def __attrs_post_init__(self) -> None:
        self.http_target  # noqa: B018 - raises for one that cannot be used

    @property
    def http_target(self) -> Target:
        url, mark, query = self.base_url.partition("?")
        scheme, rest = url.split("://", 1) if "://" in url else ("", url)
        scheme = {"ws": "http", "wss": "https"}.get(scheme.lower(), scheme)
        return Target.parse(f"{scheme}://{rest.rstrip('/')}/responses{mark}{query}" if scheme else url)

    @property
    def websocket_target(self) -> Target:
        target = self.http_target
        scheme = "wss" if target.scheme == "https" else "ws"
        return websocket_target(f"{scheme}://{target.where}{target.path}")

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        agent = (("User-Agent", "turntape-drive"),)
        return (*agent, ("Authorization", f"Bearer {self.key}")) if self.key else agent

    def reader(self) -> EventReader:
        return EventReader(ToolNames(), self.refusals)

    @property
    def refusals(self) -> Refusals:
        return Refusals(self.where or self.http_target.where, self.key)

    def wire(self, design: str) -> Wire:
        return HttpWire(self) if design == "http" else SocketWire(self, appends=design == "append")


@define(eq=False)
class HttpWire:
    """One POST a turn, each with the whole conversation."""

    server: Server

    @property
    def remembers(self) -> bool:
        return False

    async def wake(self) -> None:
        await trio.lowlevel.checkpoint()

    async def ask(self, body: dict[str, Any]) -> Reply:
        server, reader = self.server, self.server.reader()
        body = {name: value for name, value in body.items() if name != "type"}
        encoded = orjson.dumps({**body, "stream": True})
        headers = (*server.headers, ("Content-Type", "application/json"), ("Accept", "text/event-stream"))
        reply = Reply(Heard(trio.current_time()))
        try:
            async with server.client.post(server.http_target, headers, (encoded,)) as response:
                if response.status != 200:
                    said = await response.body(MAX_REFUSAL_BYTES)
                    raise server.refusals.refused(response.status, response.headers, said)
                while not reply.over and (events := await response.events()) is not None:
                    reply.read(events, reader)
                if not reply.over:
                    reply.heard.hear(reader.end(), trio.current_time())
                await response.drain(1.0)
        except HttpError as exc:
            reply.failure = reply.failure or failure_of(server.refusals.failed(exc))
        except BackendError as exc:
            reply.failure = reply.failure or failure_of(exc)
        return _ended(reply)

    def rest(self) -> None:
        """Connections are the client's."""

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


@define(eq=False)
class SocketWire:
    """One WebSocket, opened when it is first needed, and again when it was lost."""

    server: Server
    appends: bool
    _socket: WebSocketClient | None = None
    _has_answered: bool = False
    _rests: bool = False

    @property
    def remembers(self) -> bool:
        return self._has_answered and self._socket is not None and self._socket.alive

    async def wake(self) -> None:
        if self._socket is not None and self._rests:
            self._rests = False
            await self._socket.wake()

    async def ask(self, body: dict[str, Any]) -> Reply:
        server, reader = self.server, self.server.reader()
        sent = orjson.dumps(body).decode()
        reply = Reply(Heard(trio.current_time()))
        try:
            socket = await self._opened()
            reply.heard.asked_at = trio.current_time()  # a connection is no part of a turn
            await socket.send(sent)
            while not reply.over:
                reply.read([text.encode("utf-8", "replace") for text in await socket.receive()], reader)
        except Rejected as exc:
            reply.failure = failure_of(server.refusals.refused(exc.status, exc.headers, exc.body))
        except HttpError as exc:
            reply.failure = reply.failure or failure_of(server.refusals.failed(exc))
        self._has_answered = reply.failure is None
        return _ended(reply)

    async def _opened(self) -> WebSocketClient:
        await self.wake()
        if self._socket is None or not self._socket.alive:
            await self.aclose()
            headers = (*self.server.headers, *([APPEND_HEADER] if self.appends else []))
            client, target = self.server.client, self.server.websocket_target
            self._socket = await WebSocketClient.open(client.connections, target, headers, silence_s=client.silence_s)
        return self._socket

    def rest(self) -> None:
        if self._socket is not None and self._socket.alive:
            self._rests = True
            self._socket.rest(REST_S)

    async def aclose(self) -> None:
        if self._socket is not None:
            with suppress(SocketClosed):
                await self.wake()
                await self._socket.aclose()
            self._socket = None


def _ended(reply: Reply) -> Reply:
    if reply.heard.ended_at is None:
        reply.heard.ended_at = trio.current_time()
    return reply
