"""``Link`` over trio-websocket, which is imported nowhere else."""

import contextlib
import logging
from collections.abc import AsyncIterator

import orjson
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_server_stream
from wsproto.utilities import LocalProtocolError

from turntape.core.seam import ABNORMAL

from .guard import Headers
from .outbox import Outbox, SlowClient
from .service import Service, request_id

logger = logging.getLogger(__name__)

NETWORK_ERRORS = (ConnectionClosed, LocalProtocolError, trio.BrokenResourceError, trio.ClosedResourceError)

CLOSE_S = 1.0
"""How long a client may take to answer a close frame that it has been sent."""

RECEIVE_BYTES = 1 << 18
"""Per read. The library's default of 4 KiB makes large messages 3 to 4 times dearer; idle memory is the same."""

QUEUED_MESSAGES = 8

CODEX_MESSAGE_BYTES = 16 << 20
"""A lower bound on messages is announced, since Codex then sends what is larger over HTTP instead."""

VIOLATIONS = (1002, 1007)

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


def text_frame(payload: bytes) -> bytes:
    """``payload`` as one final, unmasked text frame, RFC 6455 section 5.2."""
    n = len(payload)
    if n < 126:
        return b"\x81" + bytes((n,)) + payload
    return (b"\x81\x7e" + n.to_bytes(2, "big") if n < 1 << 16 else b"\x81\x7f" + n.to_bytes(8, "big")) + payload


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
        self.closing = False  # a close frame was sent: nothing may follow it

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


class WebSocketLink:
    """One WebSocket client."""

    def __init__(self, ws: WebSocketConnection, wire: Wire, outbox: Outbox) -> None:
        self._ws, self._wire = ws, wire
        self.room, self._flush = outbox.room, outbox.flush
        self.gone_code: int | None = None

    async def __aiter__(self) -> AsyncIterator[str]:
        while True:
            try:
                message = await self._ws.get_message()
            except ConnectionClosed as exc:
                code = exc.reason.code if exc.reason is not None else ABNORMAL
                if code in VIOLATIONS and not self._wire.closing:
                    self.say_goodbye(code, exc.reason.reason or "" if exc.reason is not None else "")
                elif code != ABNORMAL:
                    self.gone_code = int(code)
                return
            if isinstance(message, str):
                yield message
            else:
                self.put((BINARY_REFUSED,))

    def put(self, data: tuple[bytes, ...]) -> None:
        """One write for all: server frames are unmasked and stateless, so we can make them ourselves."""
        self._wire.put(b"".join([text_frame(payload) for payload in data]))

    def say_goodbye(self, code: int, reason: str) -> None:
        """Send a close frame, unless one was sent."""
        with contextlib.suppress(SlowClient):
            self._wire.put(close_frame(code, reason))

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
    extra_headers = [(b"x-request-id", request_id().encode())]
    if settings.max_message_bytes < CODEX_MESSAGE_BYTES:
        extra_headers.append((b"x-codex-websocket-max-message-bytes", b"%d" % settings.max_message_bytes))
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
            wire.accept()
            link = WebSocketLink(ws, wire, outbox)
            opened = service.opened(headers, transport="websocket", owner=owner, dialect=dialect_of(headers))
            try:
                await service.run(link, opened)
            except* Exception:
                logger.exception("session crashed")
                await link.aclose(1011, "internal error")
            finally:
                link.say_goodbye(1001, "server is shutting down")  # cut off by the grace deadline
            library.cancel_scope.cancel()
    except* NETWORK_ERRORS:
        pass  # the client left in a way that the library's reader does not expect
    except* SlowClient as group:
        logger.warning("client dropped: %s", group.exceptions[0])
    await outbox.linger()
