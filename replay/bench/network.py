"""A network between client and server, emulated in the client: round trips, bandwidth, and a count of the bytes.

Emulated are: half a round trip each way, the time that bytes take at a given rate, each connection with the whole
rate to itself, the round trips of the handshakes of TCP and TLS, and slow start if asked for. Not emulated are loss,
jitter, headers of packets, and several connections that share a line.
"""

import math
from collections import deque

import trio
from attrs import define, field, frozen

from turntape.transport.http_connections import Connect

from .flow import SEGMENT_BYTES, Flow

CHUNK_BYTES = 10 * SEGMENT_BYTES
"""Sent on at once: a server reads a large request while it comes. Whole segments."""

WINDOW_BYTES = 1 << 20
"""On the way to the client and not read by it; then the server is made to wait, as TCP does. Ours."""


@define
class Counts:
    """Bytes that went over a client's connections, and how many of these there were."""

    up: int = 0
    down: int = 0
    connections: int = 0


@frozen(kw_only=True)
class Network:
    """
    Args:
        rtt_s: of one round trip, in seconds.
        up, down: bytes per second.
        slow_start: a new or idle connection begins with a small window, as TCP's do (``flow.py``).
        tls: a connection costs a second round trip, as with TLS 1.3. For a server without TLS that stands for one with it.
    """

    rtt_s: float = 0.0
    up: float = math.inf
    down: float = math.inf
    tls: bool = False
    slow_start: bool = False

    @property
    def is_none(self) -> bool:
        return not self.rtt_s and self.up == self.down == math.inf

    def connect(self, nursery: trio.Nursery, counts: Counts, opened: Connect = trio.open_tcp_stream) -> Connect:
        """Opens connections through this network.

        Args:
            nursery: holds a task for each connection, until that is closed.
            opened: opens them beneath.
        """

        async def connect(host: str, port: int) -> trio.abc.Stream:
            began = trio.current_time()
            stream = await opened(host, port)
            counts.connections += 1
            if self.is_none:
                return Counted(stream, counts)
            await trio.sleep_until(began + self.rtt_s * (2 if self.tls else 1))
            distant = Distant(Counted(stream, counts), self)
            nursery.start_soon(distant.fetch)
            return distant

        return connect


@define(eq=False)
class Counted(trio.abc.Stream):
    """A stream, whose bytes are counted."""

    stream: trio.abc.Stream
    counts: Counts

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self.counts.up += len(data)
        await self.stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self.stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        received = await self.stream.receive_some(max_bytes)
        self.counts.down += len(received)
        return received

    async def aclose(self) -> None:
        await self.stream.aclose()


@define(eq=False)
class Distant(trio.abc.Stream):
    """A stream to a server that is far away. ``send_all`` returns when the last byte has arrived there."""

    stream: trio.abc.Stream
    network: Network
    _up: Flow = field(init=False)
    _down: Flow = field(init=False)
    _coming: deque[tuple[float, bytes | BaseException]] = field(factory=deque)
    _n_coming: int = 0
    _changed: trio.Event = field(factory=trio.Event)
    _scope: trio.CancelScope = field(factory=trio.CancelScope)

    def __attrs_post_init__(self) -> None:
        network = self.network
        self._up = Flow(network.rtt_s, network.up, network.slow_start)
        self._down = Flow(network.rtt_s, network.down, network.slow_start)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        began = trio.current_time()
        for at in range(0, len(data), CHUNK_BYTES):
            chunk = bytes(data[at : at + CHUNK_BYTES])
            await trio.sleep_until(self._up.arrival(len(chunk), began))
            await self.stream.send_all(chunk)

    async def wait_send_all_might_not_block(self) -> None:
        await self.stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Everything that has arrived, once something has."""
        while not self._coming:
            await self._changed.wait()
        await trio.sleep_until(self._coming[0][0])
        parts, now = list[bytes](), trio.current_time()
        while self._coming and self._coming[0][0] <= now:
            came = self._coming[0][1]
            if isinstance(came, BaseException):
                if parts:
                    break
                raise came
            parts.append(came)
            if not came:
                break  # the end stays
            self._coming.popleft()
        received = b"".join(parts)
        if max_bytes is not None and len(received) > max_bytes:
            self._coming.appendleft((now, received[max_bytes:]))
            received = received[:max_bytes]
        self._n_coming -= len(received)
        self._note()
        return received

    async def fetch(self) -> None:
        """Read what the server sends, and note when it arrives here, until the end."""
        with self._scope:
            while True:
                came: bytes | BaseException
                try:
                    came = bytes(await self.stream.receive_some())
                except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
                    came = exc
                n_bytes = len(came) if isinstance(came, bytes) else 0
                self._coming.append((self._down.arrival(n_bytes, trio.current_time()), came))
                self._n_coming += n_bytes
                self._note()
                if not n_bytes:
                    return
                while self._n_coming > WINDOW_BYTES:
                    await self._changed.wait()

    def _note(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def aclose(self) -> None:
        self._scope.cancel()
        await self.stream.aclose()
