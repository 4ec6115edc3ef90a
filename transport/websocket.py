"""``Link`` over a WebSocket: wsproto reads the frames, the outbox takes those that are sent."""

import contextlib
import logging
from collections.abc import AsyncIterator

import orjson
import trio
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import generate_accept_token

from turntape.core.seam import ABNORMAL

from .compression import Agreement, Deflate, Inflate, Memories, agree
from .guard import Headers, is_loopback
from .outbox import Outbox, SlowClient
from .service import Service, request_id

logger = logging.getLogger(__name__)

CLOSE_S = 1.0
"""How long a client may take to answer a close frame that it has been sent."""

RECEIVE_BYTES = 1 << 18
"""Per read; 4 KiB would make large messages 3 to 4 times dearer, and idle memory is the same."""

DEFLATED_RECEIVE_BYTES = 1 << 14
"""Per read of a client that compresses. One read may grow a thousandfold, and all else waits while it is inflated."""

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


class WebSocketLink:
    """One WebSocket client whose handshake is done.

    Args:
        max_message_bytes: of one message of the client; in characters if it is a text that came uncompressed.
        compression: what was agreed on; None: nothing is compressed.
        memories: of the server's compressors.
    """

    def __init__(
        self, outbox: Outbox, *, max_message_bytes: int, compression: Agreement | None, memories: Memories
    ) -> None:
        self._outbox, self._max_message_bytes = outbox, max_message_bytes
        self.room = outbox.room
        self.gone_code: int | None = None
        self._closing = False  # a close frame was sent, or the end was: nothing may follow it
        self._ended = False  # nothing more is read
        self._parts: list[str | bytes] = []
        self._size = 0
        self._deflate: Deflate | None = None
        self._read_bytes = RECEIVE_BYTES
        inflate: list[Inflate] = []
        if compression is not None:
            self._read_bytes = DEFLATED_RECEIVE_BYTES
            self._deflate = Deflate(compression.server_bits, compression.server_keeps, memories)
            inflate = [
                Inflate(
                    keeps_window=compression.client_keeps,
                    max_bytes=max_message_bytes,
                    whole=True,
                    bits=compression.client_bits,
                )
            ]
        self._protocol = Connection(ConnectionType.SERVER, [*inflate])

    async def __aiter__(self) -> AsyncIterator[str]:
        while (message := await self._receive()) is not None:
            if isinstance(message, str):
                yield message
            else:
                self.put((BINARY_REFUSED,))

    async def _receive(self) -> str | bytes | None:
        """The next whole message, or None at the end. Answers what is to be answered at once."""
        while not self._ended:
            await trio.lowlevel.checkpoint()  # a read may hold many small frames, and they hold up nobody
            match next(self._protocol.events(), None):
                case None:
                    await self._read()
                case TextMessage() | BytesMessage() as part:
                    self._size += len(part.data)
                    if self._size > self._max_message_bytes:
                        self._break_off(CloseReason.MESSAGE_TOO_BIG)
                        return None
                    if part.data:
                        self._parts.append(part.data if isinstance(part.data, str) else bytes(part.data))
                    if part.message_finished:
                        parts, self._parts, self._size = self._parts, [], 0
                        return "".join(parts) if isinstance(part, TextMessage) else b"".join(parts)  # type: ignore[arg-type]
                case Ping() as ping:
                    self._send(self._protocol.send(ping.response()) if not self._closing else b"")
                case CloseConnection() as close:
                    self._hear_close(close)
        return None

    async def _read(self) -> None:
        try:
            received = await self._outbox.receive_some(self._read_bytes)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            received = b""
        if received:
            self._protocol.receive_data(bytes(received))
        else:
            self._ended = True

    def _hear_close(self, close: CloseConnection) -> None:
        """A close frame of the client's, or, where its state does not say so, the end that wsproto makes of a violation."""
        if self._protocol.state not in (ConnectionState.REMOTE_CLOSING, ConnectionState.CLOSED):
            self._break_off(close.code, close.reason or "")
            return
        self._ended = True
        self.gone_code = int(close.code)
        if not self._closing:
            answer = (
                b"\x88\x00" if close.code == CloseReason.NO_STATUS_RCVD else close_frame(close.code, close.reason or "")
            )
            self._send(answer)

    def _break_off(self, code: int, reason: str = "") -> None:
        """Read no further: what the client sends breaks the rules, or our bound."""
        self._ended = True
        self._parts = []
        if code == CloseReason.MESSAGE_TOO_BIG:
            reason = f"a message is larger than the {self._max_message_bytes} bytes that are allowed"
        self.say_goodbye(code, reason)

    def put(self, data: tuple[bytes, ...]) -> None:
        """One write for all: server frames are unmasked, so we can make them ourselves."""
        if self._closing:
            return
        if self._deflate is None:
            frames = [text_frame(payload) for payload in data]
        else:
            frames = []
            for payload in data:
                body = self._deflate.message(payload)
                frames.append(text_frame(payload) if body is None else text_frame(body, compressed=True))
        self._outbox.put(b"".join(frames))

    def _send(self, frame: bytes) -> None:
        if frame and not self._closing:
            self._closing = frame[0] == 0x88
            self._outbox.put(frame)

    def say_goodbye(self, code: int, reason: str) -> None:
        """Send a close frame, unless one was sent."""
        with contextlib.suppress(SlowClient):
            self._send(close_frame(code, reason))

    def forget(self) -> None:
        """Give back what compression holds: nothing more is sent."""
        if self._deflate is not None:
            self._deflate.forget()

    async def aclose(self, code: int, reason: str) -> None:
        """Say goodbye and wait for the client's; with ``ABNORMAL`` just let the connection die after what was sent."""
        if code == ABNORMAL:
            self._closing = True
            await self._outbox.flush()
            return
        self.say_goodbye(code, reason)
        await self._outbox.flush()
        with trio.move_on_after(CLOSE_S):
            while await self._receive() is not None:  # what was on its way before the client's answer
                pass


def compression_for(service: Service, outbox: Outbox, headers: Headers) -> Agreement | None:
    """What of the client's offer is accepted, by the server's setting and by where the client is."""
    setting = service.settings.compression
    if setting == "off" or (setting == "auto" and ((peer := outbox.peer) is None or is_loopback(peer))):
        return None
    return agree(headers.get("sec-websocket-extensions", ""))


async def serve_websocket(
    service: Service, outbox: Outbox, *, key: str, early: bytes, headers: Headers, owner: str
) -> None:
    """Serve one client whose handshake has been checked. Network errors end here; so does any crash.

    Args:
        key: of the handshake.
        early: bytes that came behind the handshake request.
    """
    settings = service.settings
    compression = compression_for(service, outbox, headers)
    lines = [
        "HTTP/1.1 101 Switching Protocols",
        "Upgrade: WebSocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Accept: {generate_accept_token(key.encode()).decode()}",
        f"x-request-id: {request_id()}",
    ]
    if compression is not None:
        lines.append(f"Sec-WebSocket-Extensions: {compression.header}")
    if settings.max_message_bytes < CODEX_MESSAGE_BYTES:
        lines.append(f"x-codex-websocket-max-message-bytes: {settings.max_message_bytes}")
    try:
        outbox.put("\r\n".join([*lines, "\r\n"]).encode())
        outbox.unread(early)
        link = WebSocketLink(
            outbox,
            max_message_bytes=settings.max_message_bytes,
            compression=compression,
            memories=service.memories,
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
    except* SlowClient as group:
        logger.warning("client dropped: %s", group.exceptions[0])
    await outbox.linger()
