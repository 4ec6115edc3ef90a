"""Beside the pump: what the bytes of one client's connection say, request by request and answer by answer.

Nothing here sends or waits, and nothing that passes can make it raise: what cannot be read is noted and passed over.
"""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial

import h11
import trio
from attrs import define, field

from turntape.transport.sse import BodyError, EventSplitter

from .codings import Decoding, Unreadable
from .frames import Close, FrameReader, Message, TooLarge, extensions_for
from .heads import MAX_HEAD_BYTES, RequestHead, joined
from .intake import Intake
from .tap import Side

logger = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 64 << 20
"""Of one message, body or event that is recorded. A larger one passes and is noted."""

SWITCHING = 101


@define(eq=False)
class Exchange:
    """One request and its answer.

    Args:
        tap: records it; None if it only passes.

    Attributes:
        decided: the answer's head has come, or will not be understood.
        switched: both sides have changed to another protocol.
        over: the answer is whole, or nothing more of it is read.
    """

    request: RequestHead
    tap: Intake | None
    decided: trio.Event = field(factory=trio.Event)
    switched: bool = False
    over: bool = False
    _asked: list[bytes] = field(factory=list)
    _n_asked: int = 0
    _unreadable: set[Side] = field(factory=set)
    _frames: dict[Side, FrameReader] = field(factory=dict)
    _ending: tuple[Side, int | None, str] | None = None  # who went first, and the close frame that said so
    _decoding: Decoding | None = None
    _splitter: EventSplitter | None = None
    _said: list[bytes] = field(factory=list)

    @property
    def waits(self) -> bool:
        """Whether the client still waits for something."""
        return self.tap.busy if self.switched and self.tap else not self.over

    # --- the client -------------------------------------------------------------------------------

    def ask(self, body: bytes) -> None:
        """A part of the request's body."""
        if self.tap is None or "client" in self._unreadable:
            return
        self._n_asked += len(body)
        if self._n_asked > MAX_MESSAGE_BYTES:
            self._asked = []
            raise Unreadable(f"sent a body of more than {MAX_MESSAGE_BYTES:,} bytes")
        self._asked.append(body)

    def asked(self, at: float) -> None:
        """The request is whole."""
        if self.tap is None or "client" in self._unreadable or self.request.wants_websocket:
            return
        asked, self._asked = b"".join(self._asked), []
        body = Decoding(self.request.headers.get("content-encoding", ""), MAX_MESSAGE_BYTES).feed(asked)
        self.tap.client(_text(body), at=at)

    # --- the upstream -----------------------------------------------------------------------------

    def answered(self, event: h11.Response | h11.InformationalResponse, at: float) -> None:
        """The head of the answer."""
        headers = joined(event.headers)
        if self.tap:
            self.tap.answer(event.status_code, headers, at=at)
        if event.status_code == SWITCHING:
            self.switched = True
            if self.tap:
                agreed = headers.get("sec-websocket-extensions", "")
                for side in ("client", "upstream"):
                    from_client = side == "client"
                    extensions = extensions_for(agreed, from_client=from_client, max_bytes=MAX_MESSAGE_BYTES)
                    self._frames[side] = FrameReader(from_client, MAX_MESSAGE_BYTES, extensions)
        elif self.tap:
            streamed = headers.get("content-type", "").lower().startswith("text/event-stream")
            self._decoding = Decoding(headers.get("content-encoding", ""), MAX_MESSAGE_BYTES, whole=not streamed)
            self._splitter = EventSplitter(MAX_MESSAGE_BYTES) if streamed else None

    def answer(self, body: bytes, at: float) -> None:
        """A part of the answer's body."""
        if self.tap is None or self._decoding is None or "upstream" in self._unreadable:
            return
        body = self._decoding.feed(body)
        if self._splitter is None:
            self._said.append(body)
            return
        try:
            events = self._splitter.feed(body)
        except BodyError as exc:
            raise Unreadable(str(exc)) from None
        for event in events:
            self.tap.up(_text(event), at=at)
        self.tap.read()

    def end(self, at: float, *, by: Side = "upstream") -> None:
        """The answer is whole, or ``by`` ended the connection before it was."""
        if self.over:
            return
        self.over = True
        self.decided.set()
        if self.tap is None:
            return
        if self._splitter is not None:
            for event in self._splitter.end():
                self.tap.up(_text(event), at=at)
        elif said := b"".join(self._said):
            self.tap.up(_text(said), at=at)
        self._said = []
        by, code, reason = self._ending or (by, None, "")
        self.tap.gone(by, at=at, code=code, reason=reason)

    def leave(self, side: Side) -> None:
        """``side`` has ended its connection: what the other still says of the end is not the reason for it."""
        self._ending = self._ending or (side, None, "")

    # --- both, once they speak WebSocket ----------------------------------------------------------

    def frames(self, side: Side, received: bytes, at: float) -> None:
        """What ``side`` sent after the handshake."""
        reader = self._frames.get(side)
        if self.tap is None or reader is None or side in self._unreadable:
            return
        tell = self.tap.client if side == "client" else self.tap.up
        for event in reader.feed(received):
            match event:
                case Message(content=content):
                    tell(content, at=at)
                case TooLarge(max_bytes=n):
                    self.note(side, f"sent a message of more than {n:,} bytes", at, for_good=False)
                case Close(code=code, reason=reason):
                    self._ending = self._ending or (side, code, reason)
        self.tap.read()

    def note(self, side: Side, reason: str, at: float, *, for_good: bool = True) -> None:
        """Something of ``side``'s is not in the recording; ``for_good``: nothing that follows will be."""
        if for_good:
            self._unreadable.add(side)
            self._asked, self._said = [], []
        if self.tap:
            logger.warning("the %s %s: that passes, but is not recorded", side, reason)
            self.tap.unread(side, reason, at=at)


@define(eq=False)
class Answers:
    """Reads what the upstream sends on one connection, and sees to it that all that both sides sent is told."""

    _waiting: deque[Exchange] = field(factory=deque)
    _now: Exchange | None = None
    _parser: h11.Connection | None = None
    _told: list[Exchange] = field(factory=list)  # those of which something may be put off
    _settling: trio.Lock = field(factory=trio.Lock)
    _lost: bool = False  # where one answer ends and another begins is not known any more

    @property
    def exchanges(self) -> list[Exchange]:
        """Those that are not over, oldest first."""
        return [exchange for exchange in (self._now, *self._waiting) if exchange and not exchange.over]

    @property
    def n_waiting(self) -> int:
        """Requests of whose answers nothing has come."""
        return len(self._waiting)

    def expect(self, exchange: Exchange) -> None:
        """A request has been sent on."""
        if self._lost:
            exchange.decided.set()
            exchange.over = True
        else:
            self._waiting.append(exchange)
        self._told = [told for told in self._told if not told.over or (told.tap and told.tap.waits)]
        self._told.append(exchange)

    @property
    def unsettled(self) -> bool:
        """Whether anything was put off."""
        return any(exchange.tap.waits for exchange in self._told if exchange.tap)

    async def settle(self) -> None:
        """Tell what was put off, in order; other connections go on meanwhile."""
        async with self._settling:
            for exchange in self._told:
                while exchange.tap and exchange.tap.waits:
                    await exchange.tap.look()
                    if exchange.tap.waits:  # else the connection has ended meanwhile
                        self._go_on(exchange)

    def settle_at_once(self) -> None:
        """The same, for a connection that has ended."""
        for exchange in self._told:
            while exchange.tap and exchange.tap.waits:
                self._go_on(exchange)

    def _go_on(self, exchange: Exchange) -> None:
        if exchange.tap:
            self.safely(exchange, "upstream", exchange.tap.go_on, trio.current_time())

    def feed(self, received: bytes, at: float) -> None:
        """What one read brought; b"" for the end."""
        while not self._lost:
            if self._now is not None and self._now.switched:
                self.safely(self._now, "upstream", partial(self._now.frames, "upstream", received, at), at)
                return
            if self._parser is None:
                if not received:
                    return
                if not self._waiting:
                    self._lost = True  # an answer that nobody asked for, such as 408 on an idle connection
                    return
                self._now = self._waiting.popleft()
                self._parser = _expecting(self._now.request)
            try:
                self._parser.receive_data(received)
                rest = self._read(self._parser, self._now, at)
            except h11.ProtocolError:
                if received:
                    self.lose("sent something that is not HTTP/1.1", at)
                return  # the end in the middle of an answer is told by the connection
            if rest is None:
                return
            received = rest

    def _read(self, parser: h11.Connection, exchange: Exchange | None, at: float) -> bytes | None:
        """Take what ``parser`` has; give what follows a whole answer, or None while it is not whole."""
        assert exchange is not None
        while True:
            event = parser.next_event()
            match event:
                case h11.InformationalResponse(status_code=101):
                    self.safely(exchange, "upstream", partial(exchange.answered, event, at), at)
                    exchange.decided.set()
                    return parser.trailing_data[0] or None
                case h11.Response():
                    self.safely(exchange, "upstream", partial(exchange.answered, event, at), at)
                    exchange.decided.set()
                case h11.Data(data=body):
                    self.safely(exchange, "upstream", partial(exchange.answer, bytes(body), at), at)
                case h11.EndOfMessage():
                    self.safely(exchange, "upstream", partial(exchange.end, at), at)
                    self._now = self._parser = None
                    return parser.trailing_data[0] or None
                case h11.InformationalResponse():
                    pass
                case _:
                    return None

    def lose(self, reason: str, at: float) -> None:
        """Nothing that follows can be read: note it with all that wait."""
        exchanges = self.exchanges
        self._lost = True
        for exchange in exchanges:
            exchange.note("upstream", reason, at)
            exchange.end(at)
        self._now, self._waiting = None, deque()

    def safely(self, exchange: Exchange, side: Side, read: Callable[[], None], at: float) -> None:
        """Call ``read``; whatever it meets, the bytes go on."""
        try:
            read()
        except Unreadable as exc:
            exchange.note(side, str(exc), at)
        except Exception:
            logger.exception("cannot read what the %s sent", side)
            exchange.note(side, "sent something that Turntape failed to read: please report it", at)


def _expecting(request: RequestHead) -> h11.Connection:
    """A parser of the answer to ``request``."""
    parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
    headers = [("Host", "-")]
    if request.upgrades:
        headers += [("Upgrade", request.headers["upgrade"]), ("Connection", "Upgrade")]
    parser.send(h11.Request(method=request.method, target="/", headers=headers))
    parser.send(h11.EndOfMessage())
    return parser


def _text(body: bytes) -> str | bytes:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body
