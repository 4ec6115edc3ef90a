"""The byte stream of one connection: everything that leaves it goes through ``put``, which never waits."""

import contextlib
import os
import socket

import trio

HIGH_BYTES = 1 << 16
"""``room`` waits while more than this is queued. What the kernel buffers does not count."""

HARD_LIMIT_BYTES = 16 << 20
"""A client with more than this still unread is not reading at all."""

STALL_S = 120.0
"""How long one slice may take to leave: a client that stands still holds a backend's slot, so it is dropped."""

SLICE_BYTES = 1 << 18

LINGER_S = 1.0
LINGER_BYTES = 64 << 20
"""Bounds on reading what a client still sends after our last byte; see ``Outbox.linger``."""


class SlowClient(Exception):
    """The client does not read: it is dropped with this reason, and whatever waited for it is lost."""


class Outbox(trio.abc.Stream):
    """A stream whose sends never wait, so that no cancelled task can leave half a frame behind.

    ``put`` writes at once if it can, and one task (``run``) writes what is left over. What a library
    sends through ``send_all`` (handshake, pong, close) keeps its place in the order. Over TLS or in
    memory there is no descriptor to write to, so everything goes through the queue.

    Args:
        high: bytes that may be queued before ``room`` waits.
        hard_limit: queued bytes past which ``put`` refuses more. One put may exceed it, so the bound is
            this plus the largest single put.
        stall_s: seconds that ``SLICE_BYTES`` may take.
    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        *,
        high: int = HIGH_BYTES,
        hard_limit: int = HARD_LIMIT_BYTES,
        stall_s: float = STALL_S,
    ) -> None:
        self._stream, self._high, self._hard_limit, self._stall_s = stream, high, hard_limit, stall_s
        self._socket = stream.socket if isinstance(stream, trio.SocketStream) else None
        self._queue: list[bytes] = []
        self._n_queued = 0  # bytes, those being written included
        self._more, self._less = trio.Event(), trio.Event()
        self._broken = False  # the network failed, or we closed: the reader finds out, and says so once
        self._slow: str | None = None
        self._unread = b""

    @property
    def peer(self) -> str | None:
        """The client's address; None where there is none to ask, as in memory or over a socket file."""
        try:
            name = self._socket.getpeername() if self._socket is not None else None
        except OSError:
            return None
        return str(name[0]) if isinstance(name, tuple) else None

    def put(self, frames: bytes) -> None:
        """Send whole frames, now or later.

        Raises:
            SlowClient: the client does not read; nothing more will be sent.
        """
        if self._broken:
            return
        if self._slow is None and self._n_queued > self._hard_limit:
            self._slow = f"{self._n_queued} bytes wait for a client that does not read"
        if self._slow is not None:
            raise SlowClient(self._slow)
        if self._socket is not None and not self._n_queued:
            try:
                # the descriptor is asked for each time: a closed socket's number may already be another's
                n_sent = os.write(self._socket.fileno(), frames)
            except BlockingIOError:
                n_sent = 0
            except OSError:
                self._break()
                return
            if n_sent == len(frames):
                return
            frames = frames[n_sent:]
        self._queue.append(frames)
        self._n_queued += len(frames)
        self._more.set()

    async def room(self) -> None:
        """Return once little is queued, or nothing can be sent any more.

        Raises:
            SlowClient: the client has stood still for too long.
        """
        while self._n_queued > self._high and not self._broken:
            await self._less.wait()
            if self._slow is not None:
                raise SlowClient(self._slow)

    async def flush(self) -> None:
        """Return once everything has been handed to the network, or cannot be any more."""
        while self._n_queued and not self._broken and self._slow is None:
            await self._less.wait()

    async def run(self) -> None:
        """Write what ``put`` could not. Cancelled only with the whole connection."""
        try:
            while True:
                await self._more.wait()
                self._more = trio.Event()
                chunk = memoryview(b"".join(self._queue))
                self._queue.clear()
                for start in range(0, len(chunk), SLICE_BYTES):
                    part = chunk[start : start + SLICE_BYTES]
                    with trio.move_on_after(self._stall_s) as stall:
                        await self._stream.send_all(part)
                    if stall.cancelled_caught:
                        self._slow = f"the client read nothing for {self._stall_s:g} s"
                        self._wake()
                        return
                    self._n_queued -= len(part)
                    self._wake()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._break()

    async def linger(self) -> None:
        """Deliver what is queued, say that no more comes, and read until the client is done too. Bounded.

        Closing at once, with unread bytes in our receive buffer, would make the kernel send a reset, and
        a reset may destroy a close frame or an error body that the client has not read yet.
        """
        n_read = 0
        with trio.move_on_after(LINGER_S), contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self.flush()
            if self._broken or self._slow is not None:
                return
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_WR)
            while n_read < LINGER_BYTES:
                received = await self._stream.receive_some()
                if not received:
                    return
                n_read += len(received)

    def unread(self, received: bytes) -> None:
        """Have ``received`` come first from the next ``receive_some``."""
        self._unread = received + self._unread

    def _break(self) -> None:
        self._broken = True
        self._queue.clear()
        self._n_queued = 0
        self._wake()

    def _wake(self) -> None:
        self._less.set()
        self._less = trio.Event()

    # --- the rest of trio.abc.Stream ---

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()  # before, not after: what is sent is sent, cancelled or not
        self.put(bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        await self.room()
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        if self._unread:
            await trio.lowlevel.checkpoint()
            received, self._unread = self._unread[:max_bytes], self._unread[max_bytes or len(self._unread) :]
            return received
        return await self._stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        self._break()
        await self._stream.aclose()
