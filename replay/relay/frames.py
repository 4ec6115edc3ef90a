"""WebSocket frames to whole messages, for somebody who only listens: nothing is answered, and no message is too large to pass."""

import re
from collections.abc import Iterator

from attrs import define, field, frozen
from wsproto.extensions import Extension
from wsproto.frame_protocol import FrameProtocol, Opcode, ParseFailed

from turntape.transport import compression
from turntape.transport.compression import Inflate

from .codings import Unreadable

NO_STATUS = 1005


@frozen
class Message:
    """A whole message."""

    content: str | bytes


@frozen
class TooLarge:
    """A message was larger than is kept; those after it can be read."""

    max_bytes: int


@frozen
class Close:
    """A close frame; ``code`` is None if it has none."""

    code: int | None
    reason: str


def extensions_for(header: str, *, from_client: bool, max_bytes: int) -> list[Extension]:
    """What undoes the extensions that a handshake agreed on, in one direction.

    Args:
        header: ``Sec-WebSocket-Extensions`` of the answer.

    Raises:
        Unreadable: one of them is not known.
    """
    found: list[Extension] = []
    for agreed in filter(None, (part.strip() for part in header.split(","))):
        name, *parameters = (part.strip() for part in agreed.split(";"))
        if name.lower() != compression.NAME or found:
            raise Unreadable(f"agreed on a WebSocket extension that is not known, {name[:40]!r}")
        forgets = f"{'client' if from_client else 'server'}_no_context_takeover"
        keeps = not any(re.fullmatch(forgets, parameter, re.IGNORECASE) for parameter in parameters)
        found.append(Inflate(keeps_window=keeps, max_bytes=max_bytes, whole=False))
    return found


@define(eq=False)
class FrameReader:
    """Reads one direction of a WebSocket.

    Args:
        from_client: whether it is the client's.
        max_bytes: of a message that is kept, in characters if it is text.
    """

    from_client: bool
    max_bytes: int
    extensions: list[Extension] = field(factory=list)
    _protocol: FrameProtocol = field(init=False)
    _parts: list[str | bytes] = field(init=False, factory=list)
    _size: int = field(init=False, default=0)
    _closed: bool = field(init=False, default=False)

    def __attrs_post_init__(self) -> None:
        self._protocol = FrameProtocol(client=not self.from_client, extensions=self.extensions)

    def feed(self, received: bytes) -> Iterator[Message | TooLarge | Close]:
        """What ``received`` completes; pings and pongs are passed over.

        Raises:
            Unreadable: this is no WebSocket, and nothing that follows can be read.
        """
        if self._closed:
            return  # what follows a close frame is no part of the WebSocket
        self._protocol.receive_bytes(received)
        try:
            for frame in self._protocol.received_frames():
                if frame.opcode is Opcode.CLOSE:
                    assert isinstance(frame.payload, tuple)
                    code, reason = frame.payload
                    self._closed = True
                    yield Close(int(code) if code != NO_STATUS else None, reason or "")
                elif not frame.opcode.iscontrol():
                    yield from self._data(frame.opcode, frame.payload, last=frame.message_finished)
        except ParseFailed as exc:
            raise Unreadable(f"broke the rules of WebSocket ({exc})") from None

    def _data(self, opcode: Opcode, payload: object, *, last: bool) -> Iterator[Message | TooLarge]:
        assert isinstance(payload, str | bytes)
        self._size += len(payload)
        if self._size <= self.max_bytes:
            self._parts.append(payload)
        else:
            self._parts = []
        if not last:
            return
        parts, size = self._parts, self._size
        self._parts, self._size = [], 0
        if size > self.max_bytes:
            yield TooLarge(self.max_bytes)
        else:
            empty: str | bytes = "" if opcode is Opcode.TEXT else b""
            yield Message(empty.join(parts))  # type: ignore[arg-type]
