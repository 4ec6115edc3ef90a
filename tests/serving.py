"""A server under test, and clients that speak to it byte by byte, so that they can also misbehave."""

import contextlib
import json
from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import Any

import h11
import trio
import trio.testing
from attrs import define, field

from turntape.core.seam import Finish, StartSample, Text
from turntape.core.session import Session
from turntape.transport.backends.base import Batch
from turntape.transport.memory_store import MemoryStore
from turntape.transport.server import ServerSettings, serve, serve_connection
from turntape.transport.service import Service

Turn = Iterable[tuple[float, Batch] | Exception]
"""Batches, each with the seconds before it; an exception ends the turn."""

HELLO: Turn = [(0, ()), (0, (Text("hel"),)), (0, (Text("lo"), Finish()))]
KEY = "AAAAAAAAAAAAAAAAAAAAAA=="
MASK = b"\x01\x02\x03\x04"


@define(eq=False)
class Model:
    """A backend that plays turns and says how many run. The last turn is played again and again."""

    turns: list[Turn] = field(factory=lambda: [HELLO])
    models: tuple[str, ...] = ("m",)
    n_running: int = 0
    n_batches: int = 0
    starts: list[StartSample] = field(factory=list)

    @trio.as_safe_channel
    async def sample(self, start: StartSample) -> AsyncIterator[Batch]:
        self.starts.append(start)
        self.n_running += 1
        try:
            for step in self.turns.pop(0) if len(self.turns) > 1 else self.turns[0]:
                if isinstance(step, Exception):
                    raise step
                await trio.sleep(step[0])
                self.n_batches += 1
                yield step[1]
        finally:
            self.n_running -= 1

    async def aclose(self) -> None: ...


def endless(size: int = 1000, pause_s: float = 0) -> Turn:
    """A turn that never ends."""
    yield 0, ()
    while True:
        yield pause_s, (Text("x" * size),)


@define(eq=False)
class Server:
    """A service whose connections are memory streams: virtual time holds."""

    nursery: trio.Nursery
    backend: Any
    settings: ServerSettings = field(factory=ServerSettings)
    store: Any = field(factory=MemoryStore)
    new_session: Any = Session
    shutdown: trio.Event = field(factory=trio.Event)
    service: Service = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.service = Service(self.settings, self.new_session, self.backend, self.store, self.shutdown)

    def connect(self) -> trio.abc.Stream:
        ours, theirs = trio.testing.memory_stream_pair()
        self.nursery.start_soon(serve_connection, self.service, theirs)
        return ours

    async def websocket(self, **headers: str) -> "WebSocket":
        return await WebSocket.open(self.connect(), **headers)

    def http(self) -> "Http":
        return Http(self.connect())


@contextlib.asynccontextmanager
async def listening(backend: Any, *, shutdown: trio.Event | None = None, **fields: Any) -> AsyncIterator[int]:
    """A server on a real socket; gives its port and stops it at the end."""
    settings = ServerSettings(**fields)
    async with trio.open_nursery() as nursery:
        port = await nursery.start(
            partial(
                serve,
                settings,
                new_session=Session,
                backend=backend,
                store=MemoryStore(),
                shutdown=shutdown or trio.Event(),
            )
        )
        yield port
        nursery.cancel_scope.cancel()


def masked(opcode: int, payload: bytes, *, fin: bool = True, rsv: int = 0) -> bytes:
    """One client frame."""
    n = len(payload)
    head = bytes(((0x80 if fin else 0) | rsv | opcode,))
    head += bytes((0x80 | n,)) if n < 126 else b"\xfe" + n.to_bytes(2) if n < 1 << 16 else b"\xff" + n.to_bytes(8)
    repeated = MASK * (n // 4 + 1)
    return head + MASK + (int.from_bytes(payload) ^ int.from_bytes(repeated[:n])).to_bytes(n)


@define(eq=False)
class WebSocket:
    """A WebSocket client of raw frames.

    Attributes:
        inflate: reads the server's compressed messages, if any were agreed on.
        n_bytes: of the frames that were read, as they came.
        n_compressed: frames of those.
    """

    stream: trio.abc.Stream
    head: bytes = b""
    received: bytearray = field(factory=bytearray)
    inflate: Any = None
    n_bytes: int = 0
    n_compressed: int = 0

    @staticmethod
    def request(path: str = "/v1/responses", **headers: str) -> bytes:
        fields = {"host": "localhost", "upgrade": "websocket", "connection": "Upgrade"}
        fields |= {"sec-websocket-version": "13", "sec-websocket-key": KEY}
        fields |= {name.replace("_", "-").lower(): value for name, value in headers.items()}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value)
        return f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode()

    @classmethod
    async def open(cls, stream: trio.abc.Stream, *, early: bytes = b"", **headers: str) -> "WebSocket":
        await stream.send_all(cls.request(**headers) + early)
        ws = cls(stream)
        while b"\r\n\r\n" not in ws.received:
            ws.received += await cls.some(stream)
        head, _, rest = bytes(ws.received).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 "), head
        ws.head, ws.received = head.lower(), bytearray(rest)
        return ws

    @staticmethod
    async def some(stream: trio.abc.Stream) -> bytes:
        received = await stream.receive_some(1 << 18)
        if not received:
            raise EOFError
        return bytes(received)

    async def frame(self) -> tuple[int, bytes]:
        """Opcode and payload of the next server frame; ``EOFError`` at the end."""
        while True:
            buffer, start = self.received, 2
            n = buffer[1] if len(buffer) >= 2 else 0
            if n > 125:
                start = 4 if n == 126 else 10
                n = int.from_bytes(buffer[2:start])
            if len(buffer) >= max(2, start + n):
                opcode, payload = buffer[0], bytes(buffer[start : start + n])
                del buffer[: start + n]
                assert opcode & 0x80, "the server does not fragment"
                self.n_bytes += start + n
                if opcode == 0xC1 and self.inflate is not None:
                    payload = self.inflate.decompress(payload + b"\0\0\xff\xff")
                    self.n_compressed += 1
                else:
                    assert opcode & 0x70 == 0, "no extension was agreed on"
                return opcode & 15, payload
            buffer += await self.some(self.stream)

    async def event(self) -> dict[str, Any]:
        opcode, payload = await self.frame()
        assert opcode == 1, (opcode, payload)
        event: dict[str, Any] = json.loads(payload)
        return event

    async def until(self, type_: str) -> list[dict[str, Any]]:
        """Server events up to the first of this type."""
        events = [await self.event()]
        while events[-1]["type"] != type_:
            events.append(await self.event())
        return events

    async def closed(self) -> int | None:
        """The code of the close frame that comes after anything else; None for a bare end."""
        with contextlib.suppress(EOFError):
            while True:
                opcode, payload = await self.frame()
                if opcode == 8:
                    return int.from_bytes(payload[:2])
        return None

    async def send(self, frame: bytes) -> None:
        await self.stream.send_all(frame)

    async def create(self, text: Any = "hi", **fields: Any) -> None:
        await self.send(masked(1, create(text, **fields).encode()))


def create(text: Any = "hi", **fields: Any) -> str:
    """The text of a ``response.create``."""
    return json.dumps({"type": "response.create", "model": "m", "store": False, "input": text, **fields})


@define
class Reply:
    """One whole response."""

    status: int
    headers: dict[str, str]
    body: bytes
    writes: list[bytes]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        assert set(self.json) == {"error"}
        error: dict[str, Any] = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events of an SSE stream that ended as it should."""
        blocks = self.body.decode().split("\n\n")
        assert blocks[-2:] == ["data: [DONE]", ""]
        events = []
        for block in blocks[:-2]:
            name, payload = block.split("\n")
            events.append(json.loads(payload.removeprefix("data: ")))
            assert name == f"event: {events[-1]['type']}"
        return events


@define(eq=False)
class Http:
    """An HTTP/1.1 client that keeps its connection."""

    stream: trio.abc.Stream
    connection: h11.Connection = field(factory=lambda: h11.Connection(h11.CLIENT))

    async def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> None:
        fields = {"host": "localhost"} | ({"content-length": str(len(body))} if body or method == "POST" else {})
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        sent = self.connection.send(h11.Request(method=method, target=path, headers=list(fields.items())))
        if body:
            sent += self.connection.send(h11.Data(data=body))
        await self.stream.send_all(sent + self.connection.send(h11.EndOfMessage()))

    async def reply(self) -> Reply:
        status, headers, body, writes = 0, {}, b"", []
        while True:
            event = self.connection.next_event()
            if event is h11.NEED_DATA:
                received = await self.stream.receive_some(1 << 18)
                writes.append(bytes(received))
                self.connection.receive_data(received)
            elif isinstance(event, h11.Response):
                status = event.status_code
                headers = {name.decode(): value.decode() for name, value in event.headers}
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                if self.connection.our_state is h11.DONE and self.connection.their_state is h11.DONE:
                    self.connection.start_next_cycle()
                return Reply(status, headers, body, writes)

    async def ask(self, method: str, path: str, body: Any = b"", **headers: str) -> Reply:
        await self.send(method, path, body if isinstance(body, bytes) else json.dumps(body).encode(), **headers)
        return await self.reply()

    async def post(self, text: Any = "hi", path: str = "/v1/responses", **fields: Any) -> Reply:
        return await self.ask("POST", path, {"model": "m", "store": False, "input": text, **fields})
