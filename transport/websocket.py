"""``Link`` over a WebSocket: trio-websocket reads, with our extension in it, and the outbox takes what is sent."""

import contextlib
import logging
from collections.abc import AsyncIterator, Generator

import orjson
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_server_stream
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import Event, Message
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError

from turntape.core.seam import ABNORMAL

from .compression import Agreement, Deflate, Inflate, agree
from .guard import Headers, is_loopback
from .outbox import Outbox, SlowClient
from .service import Service, request_id

logger = logging.getLogger(__name__)

NETWORK_ERRORS = (ConnectionClosed, LocalProtocolError, trio.BrokenResourceError, trio.ClosedResourceError)

CLOSE_S = 1.0
"""How long a client may take to answer a close frame that it has been sent."""

RECEIVE_BYTES = 1 << 14
"""Per read. The library's default of 4 KiB makes large messages 3 to 4 times dearer. More gains little, and all else
waits while one read is worked on, which may hold thousands of tiny frames or grow a thousandfold when inflated."""

QUEUED_MESSAGES = 8

CODEX_MESSAGE_BYTES = 16 << 20
"""A lower bound on messages is announced, since Codex then sends what is larger over HTTP instead."""

BINARY_REFUSED = orjson.dumps(
    {
        "type": "error",
        "sequence_number": 0,
        "status": 400,
        "error": {
            "type": "invalid_request_error",
            "code": "invalid_json",
            "message": "Expected a text frame that holds one JSON object, but got a binary frame.",
            "param": None,
        },
    }
)


OFFERS_NOTHING = ("x-oai-web-search-eligible", "x-codex-turn-metadata")
"""Headers by which Codex 0.98 is known: it sends no User-Agent, and the second only within a repository that has a
commit. Later versions send them with ``OpenAI-Beta``. Observed 2026-11."""


def dialect_of(headers: Headers) -> str:
    """Which of the two designs this client speaks; see ``Opened.dialect``."""
    # Codex 0.101 offers 2026-02-04; Codex 0.98 offers nothing and speaks the same. Observed 2026-11.
    beta = headers.get("openai-beta")
    if beta is not None and "responses_websockets=2026-02-04" in (value.strip() for value in beta.split(",")):
        return "append"
    return "legacy" if beta is None and any(name in headers for name in OFFERS_NOTHING) else "current"


def text_frame(payload: bytes, *, compressed: bool = False) -> bytes:
    """``payload`` as one final, unmasked text frame, RFC 6455 section 5.2."""
    n = len(payload)
    first = b"\xc1" if compressed else b"\x81"
    if n < 126:
        return first + bytes((n,)) + payload
    return first + (b"\x7e" + n.to_bytes(2, "big") if n < 1 << 16 else b"\x7f" + n.to_bytes(8, "big")) + payload


def close_frame(code: int, reason: str) -> bytes:
    """A close frame; ``reason`` is cut to what a control frame holds."""
    text = reason.encode()[:123].decode(errors="ignore").encode()
    return b"\x88" + bytes((2 + len(text),)) + code.to_bytes(2, "big") + text


class Wire(trio.abc.Stream):
    """The outbox as trio-websocket sees it, with a close that is ours to make.

    The library never learns that we have closed. So it stays in its open state, where a ping cannot
    make its reader raise (its issue 184), and what it still sends goes nowhere. And when it closes the
    stream, as it does on a protocol violation without a close frame, the stream is still open for one.

    Args:
        head: a handshake request, to be read first.
        early: what the client sent behind its request, to be read once it is accepted: before that,
            the library would take it for a part of the handshake and lose it.
    """

    def __init__(self, outbox: Outbox, head: bytes, early: bytes) -> None:
        self._outbox, self._head, self._early = outbox, head, early
        self._accepted = trio.Event()
        self._ended = False
        self.closing = False  # a close frame was sent, or the end was: nothing may follow it

    def put(self, frames: bytes) -> None:
        if not self.closing:
            self.closing = frames[0] == 0x88
            self._outbox.put(frames)

    def accept(self) -> None:
        self._outbox.unread(self._early)
        self._accepted.set()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        if self._head:
            await trio.lowlevel.checkpoint()
            head, self._head = self._head, b""
            return head
        await self._accepted.wait()
        if self._ended:
            raise trio.ClosedResourceError
        return await self._outbox.receive_some(max_bytes)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        self.put(bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self._ended = True
        await trio.lowlevel.checkpoint()


class Frames(Connection):
    """The client's frames as trio-websocket's reader takes them; without empty pieces, of which it would keep any number."""

    def events(self) -> Generator[Event, None, None]:
        for event in super().events():
            if not isinstance(event, Message) or event.data or event.message_finished:
                yield event


class WebSocketLink:
    """One WebSocket client whose handshake is done.

    Args:
        ws: reads the client's messages.
        frames: what ``ws`` has them from; its state says who has closed.
        deflate: None: nothing that is sent is compressed.
        max_message_bytes: of one message of the client, for whoever exceeds it.
    """

    def __init__(
        self,
        outbox: Outbox,
        wire: Wire,
        ws: WebSocketConnection,
        frames: Frames,
        *,
        deflate: Deflate | None,
        max_message_bytes: int,
    ) -> None:
        self._wire, self._ws, self._frames = wire, ws, frames
        self._deflate, self._max_message_bytes = deflate, max_message_bytes
        self.room, self._flush = outbox.room, outbox.flush
        self.gone_code: int | None = None

    async def __aiter__(self) -> AsyncIterator[str]:
        while True:
            try:
                message = await self._ws.get_message()
            except ConnectionClosed as exc:
                self._hear_end(exc)
                return
            if isinstance(message, str):
                yield message
            else:
                self.put((BINARY_REFUSED,))

    def _hear_end(self, exc: ConnectionClosed) -> None:
        """A close frame of the client's, or the end that is made of a violation or of the network's failure."""
        code = exc.reason.code if exc.reason is not None else ABNORMAL
        reason = (exc.reason.reason if exc.reason is not None else None) or ""
        if self._frames.state is ConnectionState.CLOSED:
            self.gone_code = int(code)
        elif code == CloseReason.MESSAGE_TOO_BIG:
            self.say_goodbye(code, f"a message is larger than the {self._max_message_bytes} bytes that are allowed")
        elif code != ABNORMAL:
            self.say_goodbye(code, reason)

    def put(self, data: tuple[bytes, ...]) -> None:
        """One write for all: server frames are unmasked, so we can make them ourselves."""
        if self._wire.closing:
            return
        if self._deflate is None:
            frames = [text_frame(payload) for payload in data]
        else:
            frames = []
            for payload in data:
                body = self._deflate.message(payload)
                frames.append(text_frame(payload) if body is None else text_frame(body, compressed=True))
        self._wire.put(b"".join(frames))

    def say_goodbye(self, code: int, reason: str) -> None:
        """Send a close frame, unless one was sent."""
        with contextlib.suppress(SlowClient):
            self._wire.put(close_frame(code, reason))

    def forget(self) -> None:
        """Give back what compression holds: nothing more is sent."""
        if self._deflate is not None:
            self._deflate.forget()

    async def aclose(self, code: int, reason: str) -> None:
        """Say goodbye and wait for the client's; with ``ABNORMAL`` just let the connection die after what was sent."""
        if code == ABNORMAL:
            self._wire.closing = True
            await self._flush()
            return
        self.say_goodbye(code, reason)
        await self._flush()
        with trio.move_on_after(CLOSE_S), contextlib.suppress(ConnectionClosed):
            while True:  # what was on its way before the client's answer
                await self._ws.get_message()


def compression_for(service: Service, outbox: Outbox, headers: Headers) -> Agreement | None:
    """What of the client's offer is accepted, by the server's setting and by where the client is."""
    setting = service.settings.compression
    if setting == "off" or (setting == "auto" and ((peer := outbox.peer) is None or is_loopback(peer))):
        return None
    return agree(headers.get("sec-websocket-extensions", ""))


def halves_of(compression: Agreement | None, service: Service) -> tuple[Frames, Deflate | None]:
    """What reads the client's frames, and what compresses the server's messages, as agreed on."""
    if compression is None:
        return Frames(ConnectionType.SERVER), None
    inflate = Inflate(
        keeps_window=compression.client_keeps,
        max_bytes=service.settings.max_message_bytes,
        whole=True,
        bits=compression.client_bits,
    )
    deflate = Deflate(compression.server_bits, compression.server_keeps, service.memories)
    return Frames(ConnectionType.SERVER, [inflate]), deflate


async def serve_websocket(
    service: Service, outbox: Outbox, *, key: str, early: bytes, headers: Headers, owner: str
) -> None:
    """Serve one client whose handshake has been checked. Network errors end here; so does any crash.

    Args:
        key: of the handshake.
        early: bytes that came behind the handshake request.
    """
    # The library gets a request of our own making: it needs nothing of the client's but the key, and sees no secret.
    head = (
        "GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
    )
    settings = service.settings
    compression = compression_for(service, outbox, headers)
    extra_headers = [(b"x-request-id", request_id().encode())]
    if compression is not None:
        extra_headers.append((b"Sec-WebSocket-Extensions", compression.header.encode()))
    if settings.max_message_bytes < CODEX_MESSAGE_BYTES:
        extra_headers.append((b"x-codex-websocket-max-message-bytes", b"%d" % settings.max_message_bytes))
    frames, deflate = halves_of(compression, service)
    wire = Wire(outbox, head.encode("latin-1"), early)
    try:
        async with trio.open_nursery() as library:
            request = await wrap_server_stream(
                library,
                wire,
                message_queue_size=QUEUED_MESSAGES,
                max_message_size=settings.max_message_bytes,
                receive_buffer_size=RECEIVE_BYTES,
            )
            ws = await request.accept(extra_headers=extra_headers)
            # The one private name: what the library reads from. No byte behind the handshake has been read yet.
            ws._wsproto.connection = frames
            wire.accept()
            link = WebSocketLink(
                outbox, wire, ws, frames, deflate=deflate, max_message_bytes=settings.max_message_bytes
            )
            opened = service.opened(headers, transport="websocket", owner=owner, dialect=dialect_of(headers))
            try:
                await service.run(link, opened)
            except* Exception:
                logger.exception("session crashed")
                await link.aclose(1011, "internal error")
            finally:
                link.say_goodbye(1001, "server is shutting down")  # cut off by the grace deadline
                link.forget()
            library.cancel_scope.cancel()
    except* NETWORK_ERRORS:
        pass  # the client left in a way that the library's reader does not expect
    except* SlowClient as group:
        logger.warning("client dropped: %s", group.exceptions[0])
    await outbox.linger()
