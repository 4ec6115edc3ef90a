"""A WebSocket client for one conversation at a time: wsproto over a stream, without a task of its own while it is used.

A use reads only when it wants something, and gets every message that one read brought. Between two uses ``rest``
reads, so that pings are answered and a close is seen when it comes.
"""

from collections.abc import Sequence
from contextlib import suppress

import trio
from attrs import define, field
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)
from wsproto.utilities import ProtocolError

from .http_connections import Connections, HttpError
from .http_target import Target

READ_BYTES = 1 << 18
MAX_MESSAGE_CHARS = 16 << 20
"""Of one message; ours. Generous: a whole answer of 100,000 tokens is under one MiB."""

MAX_REJECT_BYTES = 256 << 10
HANDSHAKE_S = 30.0
"""From the request to the answer; ours."""

VIOLATIONS = (1002, 1007)

PONG_S = 5.0
"""How long the answer to a ping may take to leave."""

CLOSE_S = 1.0
"""How long a close frame may take to leave."""


class Rejected(Exception):
    """The server answered the handshake with something else than 101.

    Attributes:
        headers: names in lower case.
    """

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        super().__init__(f"HTTP {status}")
        self.status, self.headers, self.body = status, headers, body


class SocketClosed(HttpError):
    """The WebSocket is closed.

    Attributes:
        code: of the server's close frame, or what wsproto makes of one that breaks the rules; None for a bare end.
    """

    def __init__(self, code: int | None) -> None:
        what = "ended the connection over a protocol error" if code in VIOLATIONS else "closed the connection"
        super().__init__(what + (f" (WebSocket code {code})" if code is not None else ""))
        self.code = code


def websocket_target(url: str) -> Target:
    """Where to connect for a ws:// or wss:// URL. Raises ``ValueError``, whose text does not repeat the URL."""
    scheme, mark, rest = url.partition("://")
    if not mark or scheme.lower() not in ("ws", "wss"):
        raise ValueError("the URL must begin with ws:// or wss://")
    return Target.parse(("https" if scheme.lower() == "wss" else "http") + mark + rest)


@define(eq=False)
class WebSocketClient:
    """One connection.

    Attributes:
        alive: nothing has ended it yet.
    """

    _stream: trio.abc.Stream = field(repr=False)
    _ws: WSConnection = field(repr=False, factory=lambda: WSConnection(ConnectionType.CLIENT))
    alive: bool = True
    _code: int | None = None
    _silence_s: float = 600.0
    _fragments: list[str] = field(factory=list, repr=False)
    _n_chars: int = 0
    _messages: list[str] = field(factory=list, repr=False)
    _rest: trio.CancelScope | None = None
    _rested: trio.Event = field(factory=trio.Event, repr=False)

    @classmethod
    async def open(
        cls,
        connections: Connections,
        target: Target,
        headers: Sequence[tuple[str, str]] = (),
        *,
        silence_s: float = 600.0,
    ) -> "WebSocketClient":
        """A new connection, its handshake done.

        Args:
            connections: opens the stream, with its limits and its TLS.
            silence_s: longest wait for the next bytes while a message is waited for.

        Raises:
            HttpError: no connection, no answer in time, or nonsense.
            Rejected: the server would not have it.
        """
        stream = await connections.open(target)
        client = cls(stream, silence_s=silence_s)
        try:
            with trio.move_on_after(HANDSHAKE_S):
                await client._shake_hands(target, headers)
                return client
            raise HttpError(f"did not answer the handshake within {HANDSHAKE_S:g} seconds", timed_out=True)
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise

    async def _shake_hands(self, target: Target, headers: Sequence[tuple[str, str]]) -> None:
        extra = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        await self._send(self._ws.send(Request(target.where, target.path, extra_headers=extra)))
        rejection: RejectConnection | None = None
        body = b""
        while True:
            for event in await self._read():
                match event:
                    case AcceptConnection():
                        return
                    case RejectConnection():
                        rejection = event
                        if not event.has_body:
                            raise _rejected(event, b"")
                    case RejectData(data=part, body_finished=finished) if rejection is not None:
                        body += part
                        if finished or len(body) > MAX_REJECT_BYTES:
                            raise _rejected(rejection, body[:MAX_REJECT_BYTES])

    async def send(self, text: str) -> None:
        """Raises ``HttpError``."""
        try:
            await self._send(self._ws.send(TextMessage(data=text)))
        except ProtocolError:
            raise SocketClosed(None) from None  # it has been closed

    async def receive(self) -> list[str]:
        """Every text message that one read completed; at least one.

        Raises:
            HttpError: it was closed (``SocketClosed``), was silent for too long, or sent nonsense.
        """
        with trio.move_on_after(self._silence_s):
            while not self._messages:
                await self._take(await self._read())
            messages, self._messages = self._messages, []
            return messages
        self.alive = False
        raise HttpError(f"sent nothing for {self._silence_s:g} seconds", timed_out=True)

    async def _take(self, events: Sequence[Event]) -> None:
        """Note what came, and answer what wants an answer. Messages that came before a close are kept."""
        for event in events:
            match event:
                case TextMessage(data=text, message_finished=finished):
                    self._fragments.append(text)
                    self._n_chars += len(text)
                    if self._n_chars > MAX_MESSAGE_CHARS:
                        self.alive = False
                        raise HttpError(f"sent a message of more than {MAX_MESSAGE_CHARS} characters")
                    if finished:
                        self._messages.append("".join(self._fragments))
                        self._fragments, self._n_chars = [], 0
                case BytesMessage():
                    self.alive = False
                    raise HttpError("sent a binary message")
                case Ping():
                    with trio.move_on_after(PONG_S, shield=True):  # half a frame would spoil all that follow
                        await self._send(self._ws.send(event.response()))
                        continue
                    self.alive = False
                    raise HttpError("does not read what it is sent")
                case CloseConnection(code=code):
                    self.alive, self._code = False, int(code) if code != 1005 else None
                    if self._messages:
                        return
                    raise SocketClosed(self._code)

    async def _read(self) -> list[Event]:
        if not self.alive:
            raise SocketClosed(self._code)
        try:
            received = bytes(await self._stream.receive_some(READ_BYTES))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            received = b""
        if not received:
            self.alive = False
            raise SocketClosed(None)
        try:
            self._ws.receive_data(received)
            return list(self._ws.events())
        except ProtocolError:
            self.alive = False
            raise HttpError("answered with something that is not a WebSocket") from None

    async def _send(self, frames: bytes) -> None:
        try:
            await self._stream.send_all(frames)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.alive = False
            raise SocketClosed(None) from None

    # --- between two uses ---------------------------------------------------------------------------

    def rest(self, for_s: float) -> None:
        """Read in the background until ``wake``, or close after ``for_s``. What is said meanwhile is dropped."""
        self._rest, self._rested = trio.CancelScope(), trio.Event()
        trio.lowlevel.spawn_system_task(self._resting, for_s, name="an idle WebSocket")

    async def _resting(self, for_s: float) -> None:
        assert self._rest is not None
        try:
            with self._rest, trio.move_on_after(for_s) as too_long:
                while True:
                    await self._take(await self._read())
                    self._messages = []
            if too_long.cancelled_caught:
                await self.aclose()
        except HttpError:
            self.alive = False
            await trio.aclose_forcefully(self._stream)
        finally:
            self._rested.set()

    async def wake(self) -> bool:
        """End the rest; give whether the connection is fit for another use."""
        if self._rest is not None:
            self._rest.cancel()
            await self._rested.wait()
            self._rest = None
        return self.alive

    # --- the end ------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Say goodbye and close, without waiting for an answer."""
        if self.alive:
            self.alive = False
            with trio.move_on_after(CLOSE_S):
                with suppress(HttpError, ProtocolError):  # it is going anyway
                    await self._send(self._ws.send(CloseConnection(code=1000)))
        await trio.aclose_forcefully(self._stream)

    async def drop(self) -> None:
        """Close at once: the server is to see now that nobody listens."""
        self.alive = False
        await trio.aclose_forcefully(self._stream)


def _rejected(event: RejectConnection, body: bytes) -> Rejected:
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in event.headers}
    return Rejected(event.status_code, headers, body)
