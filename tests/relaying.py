"""A relay under test between two ends that speak byte by byte, all in memory: virtual time holds."""

import io
import json
from collections.abc import Awaitable, Callable
from typing import Any

import trio
import trio.testing
from attrs import define, field
from wsproto.extensions import PerMessageDeflate
from wsproto.frame_protocol import FrameProtocol

from turntape.replay.fixture import Fixture
from turntape.replay.recorder import Tape
from turntape.replay.relay.pump import Pump
from turntape.replay.relay.relay import Relay
from turntape.replay.relay.upstream import Upstream
from turntape.transport.guard import Guard
from turntape.transport.http_connections import Connections

KEY = "sk-live-0123456789abcdefghijklmnopqrstuv"
HANDSHAKE = (
    "GET /v1/responses HTTP/1.1\r\nHost: 127.0.0.1:8765\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    f"User-Agent: codex_exec/0.171.0 (test)\r\nAuthorization: Bearer {KEY}\r\n"
)
SWITCHED = (
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Accept: ICX+Yqv66kxgM0FcWaLWlFLwTAI=\r\n"
)
COMPRESSED = "Sec-WebSocket-Extensions: permessage-deflate"

PATIENCE_S = 600.0

Json = dict[str, Any]


def post(body: bytes, *, path: str = "/v1/responses", more: str = "") -> bytes:
    """A POST of JSON."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:8765\r\nContent-Type: application/json\r\n{more}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def answer(body: bytes, *, status: str = "200 OK", type_: str = "application/json", more: str = "") -> bytes:
    """A whole answer of a known length."""
    return f"HTTP/1.1 {status}\r\nContent-Type: {type_}\r\n{more}Content-Length: {len(body)}\r\n\r\n".encode() + body


def event(type_: str, **fields: Any) -> str:
    return json.dumps({"type": type_, **fields}, separators=(",", ":"))


def delta(text: str, number: int, **fields: Any) -> str:
    place: Json = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    return event("response.output_text.delta", **{"sequence_number": number, **place, "delta": text, **fields})


def sse(*events: str) -> bytes:
    return "".join(f"event: {json.loads(each)['type']}\ndata: {each}\n\n" for each in events).encode()


@define(eq=False)
class End:
    """One end of a connection."""

    stream: trio.abc.Stream
    received: bytearray = field(factory=bytearray)

    async def send(self, *parts: bytes | bytearray) -> None:
        for part in parts:
            await self.stream.send_all(part)

    async def receive(self, n_bytes: int) -> bytes:
        """The next bytes, exactly so many."""
        while len(self.received) < n_bytes:
            some = await self._some()
            assert some, f"ended after {bytes(self.received)!r}"
            self.received += some
        taken = bytes(self.received[:n_bytes])
        del self.received[:n_bytes]
        return taken

    async def head(self) -> str:
        """The next HTTP head."""
        while b"\r\n\r\n" not in self.received:
            some = await self._some()
            assert some, f"ended after {bytes(self.received)!r}"
            self.received += some
        return (await self.receive(self.received.index(b"\r\n\r\n") + 4)).decode()

    async def rest(self) -> bytes:
        """All that comes until the other side ends."""
        while some := await self._some():
            self.received += some
        taken = bytes(self.received)
        self.received.clear()
        return taken

    async def _some(self) -> bytes:
        with trio.fail_after(PATIENCE_S):
            return bytes(await self.stream.receive_some())

    async def end(self) -> None:
        """Send nothing more."""
        assert isinstance(self.stream, trio.StapledStream)
        await self.stream.send_eof()

    async def close(self) -> None:
        await self.stream.aclose()


@define(eq=False)
class Rig:
    """A relay to an upstream at ``url``; whatever connects there is one of ``accept``."""

    nursery: trio.Nursery
    url: str = "http://up.example/base/v1"
    options: Json = field(factory=dict)
    out: io.BytesIO = field(factory=io.BytesIO)
    relay: Relay = field(init=False)
    n_connections: int = field(init=False, default=0)
    n_read: int = field(init=False, default=0)  # bytes, of all upstreams
    upstreams: "list[Sending]" = field(init=False, factory=list)
    _accepted: Any = field(init=False)
    _arriving: Any = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._arriving, self._accepted = trio.open_memory_channel[End](100)
        self.relay = Relay(
            Upstream.parse(self.url),
            Tape(self.out),
            **{"guard": Guard(), "connections": Connections(connect=self._connect), **self.options},
        )

    async def _connect(self, host: str, port: int) -> trio.abc.Stream:
        self.n_connections += 1
        ours, theirs = trio.testing.memory_stream_pair()
        await self._arriving.send(End(theirs))
        sending = Sending(ours.send_stream)
        self.upstreams.append(sending)
        return trio.StapledStream(sending, _Counted(self, ours.receive_stream))

    def client(self) -> End:
        ours, theirs = trio.testing.memory_stream_pair()
        self.nursery.start_soon(Pump(self.relay, theirs).run)
        return End(ours)

    async def accept(self) -> End:
        with trio.fail_after(PATIENCE_S):
            end: End = await self._accepted.receive()
        return end

    async def websocket(self, *, extensions: str = "", offer: str = "") -> tuple[End, End]:
        """Both ends of a WebSocket."""
        client = self.client()
        await client.send(f"{HANDSHAKE}{offer}\r\n".encode())
        upstream = await self.accept()
        await upstream.head()
        await upstream.send(f"{SWITCHED}{extensions}\r\n".encode())
        assert (await client.head()).startswith("HTTP/1.1 101 ")
        return client, upstream

    @property
    def lines(self) -> list[Json]:
        """What has been recorded so far, without the file's first line."""
        return [json.loads(line) for line in self.out.getvalue().splitlines()[1:]]

    def named(self, key: str) -> list[Json]:
        return [line for line in self.lines if key in line]

    @property
    def fixture(self) -> Fixture:
        return Fixture.parse(self.out.getvalue())


@define(eq=False)
class Sending(trio.abc.SendStream):
    """What the relay sends to an upstream.

    Attributes:
        after_send: runs before a send returns.
    """

    stream: Any
    after_send: Callable[[], Awaitable[None]] | None = None

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self.stream.send_all(data)
        if self.after_send is not None:
            await self.after_send()

    async def wait_send_all_might_not_block(self) -> None:
        await self.stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self.stream.aclose()


@define(eq=False)
class _Counted(trio.abc.ReceiveStream):
    """Counts what is read of ``stream``."""

    rig: Rig
    stream: trio.abc.ReceiveStream

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        received = await self.stream.receive_some(max_bytes)
        self.rig.n_read += len(received)
        return received

    async def aclose(self) -> None:
        await self.stream.aclose()


def frames(*, from_client: bool, agreed: str = "") -> FrameProtocol:
    """A sender of frames, for one direction of a WebSocket."""
    if not agreed:
        return FrameProtocol(client=from_client, extensions=[])
    extension = PerMessageDeflate()
    extension.finalize(agreed)
    return FrameProtocol(client=from_client, extensions=[extension])
