"""One client's connection to the upstream: bytes pass both ways as they are, read beside and never held up.

Only the heads of requests are changed, in host and path. To know where one begins, the end of each request's body is
looked for before it is sent on; everything else is looked at after it has left. Each direction reads again once the
other side has taken what was read, so that nobody who reads slowly makes anything grow here.

An end passes as it came: end of data as end of data (below TLS too, where it looks like a client that was killed), a
reset as a reset.
"""

import contextlib
import errno
import logging
import socket
import struct
from collections.abc import Callable
from functools import partial

import h11
import orjson
import trio
from attrs import define, field

from turntape.core.errors import error_type
from turntape.transport.guard import Forbidden
from turntape.transport.http import PHRASES
from turntape.transport.http_connections import HttpError

from .exchanges import Answers, Exchange
from .heads import HeadError, RequestHead, split_head
from .relay import Relay
from .tap import Side

logger = logging.getLogger(__name__)

READ_BYTES = 1 << 16
HEAD_S = 30.0
"""How long the first head of a connection may take, and a later one from its first byte on; ours."""

HALF_CLOSED_S = 60.0
"""How long the other side may be silent once one has ended: what Linux grants a socket in the same state."""

MAX_UNANSWERED = 256
"""Requests of one connection that may wait for answers before more are read; ours. Real clients send one at a time."""

LINGER_S = 1.0
"""How long an answer of our own may take to leave, and its reader to hang up."""


class _Reset(Exception):
    """``side`` broke the connection off."""

    def __init__(self, side: Side) -> None:
        super().__init__(side)
        self.side = side


@define(eq=False)
class Pump:
    """One connection that a client opened. ``run`` ends with it, and raises nothing but ``Cancelled``."""

    relay: Relay
    client: trio.abc.Stream
    _upstream: trio.abc.Stream | None = None
    _answers: Answers = field(factory=Answers)
    _received: bytes = b""  # of the client, and not looked at yet
    _head: bytes = b""  # goes out with what came with it
    _then: Callable[[], None] | None = None  # reads what has just been sent to the upstream
    _at: float = 0.0  # when it was
    _first_end: Side | None = None
    _has_ended: trio.Event = field(factory=trio.Event)
    _active_at: float = 0.0

    @property
    def busy(self) -> bool:
        """Whether somebody waits for an answer."""
        return any(exchange.waits for exchange in self._answers.exchanges) and self._first_end is None

    async def run(self) -> None:
        try:
            await self._run()
        except* (_Ended, _Reset):
            pass  # before anything was sent on
        except* Exception:
            logger.exception("a relayed connection crashed")
        finally:
            self._conclude(self._first_end)
            for stream in (self.client, self._upstream):
                if stream is not None:
                    await trio.aclose_forcefully(stream)

    async def _run(self) -> None:
        request = await self._next_request()
        if request is None:
            return
        try:
            self._upstream = await self.relay.connect()
        except HttpError as exc:
            message = f"The upstream at {self.relay.upstream.target.where} {exc}. {exc.cure}"
            self.relay.on_unreachable(message)
            await self._refuse(502, message, code="upstream_unreachable")
        else:
            await self._pump(request)

    async def _pump(self, request: RequestHead) -> None:
        reset: Side | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_half_closed)
                nursery.start_soon(self._back)
                await self._forward(request)
                self._end("client")
                await _send_eof(self._to)
                await trio.sleep_forever()  # until the upstream ends too
        except* _Reset as group:
            reset = _first(group).side
        except* _Ended:
            pass
        self._conclude(self._first_end or reset or "upstream")
        if reset is not None:
            _reset_on_close(self._to if reset == "client" else self.client)

    def _conclude(self, by: Side | None) -> None:
        """Let what is recorded have its end, made by that side; what was cut off here has none: nobody made it."""
        self._catch_up()
        at = trio.current_time()
        for exchange in self._answers.exchanges:
            if by is not None:
                self._answers.safely(exchange, by, partial(exchange.end, at, by=by), at)
            elif exchange.tap is not None:
                self._answers.safely(exchange, "upstream", exchange.tap.release, at)
        self._answers.settle_at_once()

    # --- client to upstream -------------------------------------------------------------------------

    async def _forward(self, first: RequestHead) -> None:
        """Send on what the client sends until it ends."""
        request: RequestHead | None = first
        while request is not None:
            exchange = self.relay.exchange(request, at=self._at)
            self._answers.expect(exchange)
            self._head = self.relay.rewritten(request)
            if not self._received:
                await self._send_on(b"")
            if not await self._forward_body(exchange):
                return
            if request.upgrades:
                if not await self._is_decided(exchange):
                    return
                if exchange.switched:
                    await self._forward_rest(exchange)
                    return
            while self._answers.n_waiting >= MAX_UNANSWERED:
                await self.relay.progress()
            request = await self._next_request()

    async def _is_decided(self, exchange: Exchange) -> bool:
        """Wait until it is known what the bytes after an upgrade are; give False if the client ended before."""

        async def leave_when_decided() -> None:
            await exchange.decided.wait()
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(leave_when_decided)
            if not self._received:
                self._received = await self._receive("client")
            if self._received:
                await trio.sleep_forever()
            nursery.cancel_scope.cancel()
        return exchange.decided.is_set()

    async def _forward_body(self, exchange: Exchange) -> bool:
        """Send on the body that belongs to the last head; give whether another request may follow."""
        parser = exchange.request.body
        chunk = b""
        while True:
            parts: list[bytes] = []
            try:
                event = parser.next_event()
                while isinstance(event, h11.Data):
                    parts.append(bytes(event.data))
                    event = parser.next_event()
                ended = event is not h11.NEED_DATA
            except h11.RemoteProtocolError:
                exchange.note("client", "sent a body that breaks the rules of HTTP", self._at)
                self._received = chunk
                await self._forward_rest(None)
                return False
            rest = bytes(parser.trailing_data[0]) if ended else b""
            self._then = partial(self._take_body, exchange, b"".join(parts), ended, self._at)
            if len(chunk) > len(rest) or (ended and self._head):
                await self._send_on(chunk[: len(chunk) - len(rest)])
            self._catch_up()
            if ended:
                self._received = rest + self._received
                return True
            chunk = self._received or await self._receive("client")
            self._received = b""
            if not chunk:
                return False
            parser.receive_data(chunk)

    async def _forward_rest(self, exchange: Exchange | None) -> None:
        """Send on everything, to the end; ``exchange`` reads it."""
        chunk, self._received = self._received, b""
        while chunk := chunk or await self._receive("client"):
            if exchange:
                read = partial(exchange.frames, "client", chunk, self._at)
                self._then = partial(self._answers.safely, exchange, "client", read, self._at)
            await self._send_on(chunk)
            chunk = b""

    def _take_body(self, exchange: Exchange, body: bytes, ended: bool, at: float) -> None:
        if body:
            self._answers.safely(exchange, "client", partial(exchange.ask, body), at)
        if ended:
            self._answers.safely(exchange, "client", partial(exchange.asked, at), at)

    def _catch_up(self) -> None:
        """Read what the client sent, now that it is on its way, and before anything that may answer it is read."""
        if self._then is not None:
            read, self._then = self._then, None
            read()
            self.relay.progressed()

    async def _next_request(self) -> RequestHead | None:
        """The next head, all of it, of a request that may be sent on; None if the client has ended.

        Raises:
            _Ended: it was one that may not, and has been refused.
        """
        received, self._received = self._received, b""
        deadline = trio.current_time() + HEAD_S if self._upstream is None or received else float("inf")
        try:
            while (parts := split_head(received)) is None:
                with trio.move_on_at(deadline):
                    chunk = await self._receive("client")
                    if not chunk:
                        return None
                    received += chunk
                    deadline = min(deadline, trio.current_time() + HEAD_S)
                    continue
                raise HeadError(f"The head of the request did not come within {HEAD_S:g} seconds.", status=408)
            head, self._received = parts
            request = RequestHead.parse(head)
            self.relay.admit(request)
            return request
        except HeadError as exc:
            await self._refuse(exc.status, str(exc), code=exc.code)
        except Forbidden as exc:
            await self._refuse(exc.status, str(exc), code=exc.code)
        raise _Ended

    # --- upstream to client -------------------------------------------------------------------------

    async def _back(self) -> None:
        while chunk := await self._receive("upstream"):
            at = self._active_at
            try:
                await self.client.send_all(chunk)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                raise _Reset("client") from None
            self._catch_up()
            self._answers.feed(chunk, at)
            await self._settle()
            self.relay.progressed()
        if self._first_end is not None:  # an answer that ends with its connection is not whole for that
            self._conclude(self._first_end)
        self._catch_up()
        self._answers.feed(b"", self._active_at)
        for exchange in self._answers.exchanges:
            exchange.decided.set()
        self._end("upstream")
        await _send_eof(self.client)
        await self._settle()

    # --- both -----------------------------------------------------------------------------------------

    @property
    def _to(self) -> trio.abc.Stream:
        assert self._upstream is not None
        return self._upstream

    async def _receive(self, side: Side) -> bytes:
        stream = self.client if side == "client" else self._to
        try:
            received = bytes(await stream.receive_some(READ_BYTES))
        except trio.BrokenResourceError:
            raise _Reset(side) from None
        self._active_at = trio.current_time()
        if side == "client":
            self._at = self._active_at
        return received

    async def _send_on(self, sent: bytes) -> None:
        sent, self._head = self._head + sent, b""
        try:
            await self._to.send_all(sent)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # it may have answered before it hung up: what it said is still to be read
            with trio.move_on_after(LINGER_S):
                await trio.sleep_forever()
            raise _Reset("upstream") from None
        self._catch_up()
        await self._settle()

    async def _settle(self) -> None:
        if self._answers.unsettled:
            await self._answers.settle()
            self.relay.progressed()

    def _end(self, side: Side) -> None:
        """``side`` sends nothing more."""
        if self._first_end is not None:
            raise _Ended
        self._first_end, self._active_at = side, trio.current_time()
        self._has_ended.set()
        for exchange in self._answers.exchanges:
            if exchange.switched:
                exchange.leave(side)
        self.relay.progressed()

    async def _watch_half_closed(self) -> None:
        """End a connection of which one side has ended, if the other says nothing for ``HALF_CLOSED_S``."""
        await self._has_ended.wait()
        while trio.current_time() < (deadline := self._active_at + HALF_CLOSED_S):
            await trio.sleep_until(deadline)
        raise _Ended

    async def _refuse(self, status: int, message: str, *, code: str) -> None:
        """Answer in the upstream's place, and end: nothing of the request was sent on."""
        error = {"message": message, "type": error_type(status), "param": None, "code": code}
        body = orjson.dumps({"error": error})
        head = (
            f"HTTP/1.1 {status} {PHRASES.get(status, 'Error')}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        with trio.move_on_after(LINGER_S), contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self.client.send_all(head.encode() + body)
            await _send_eof(self.client)
            while await self.client.receive_some(READ_BYTES):
                pass  # or else what it still sends would make a reset that overtakes the answer


class _Ended(Exception):
    """Nothing more is to be sent, to either side."""


def _first(group: BaseExceptionGroup[_Reset]) -> _Reset:
    exc = group.exceptions[0]
    return _first(exc) if isinstance(exc, BaseExceptionGroup) else exc


def _below(stream: trio.abc.Stream) -> trio.abc.Stream:
    return stream.transport_stream if isinstance(stream, trio.SSLStream) else stream


async def _send_eof(stream: trio.abc.Stream) -> None:
    below = _below(stream)
    if isinstance(below, trio.abc.HalfCloseableStream):
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await below.send_eof()


def _reset_on_close(stream: trio.abc.Stream) -> None:
    """Let the end of ``stream`` be a reset, as its other half's was."""
    below = _below(stream)
    if isinstance(below, trio.SocketStream):
        try:
            below.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except OSError as exc:
            if exc.errno not in (errno.EINVAL, errno.EBADF):
                raise
