"""WebSocket frames to whole messages, for somebody who only listens: nothing is answered, and no message is too large to pass."""

import re
import zlib
from collections.abc import Iterator

from attrs import define, field, frozen
from wsproto.extensions import Extension
from wsproto.frame_protocol import CloseReason, FrameDecoder, FrameProtocol, Opcode, ParseFailed, RsvBits

from .codings import Unreadable

_COMPRESSION = "permessage-deflate"
_END_OF_MESSAGE = b"\x00\x00\xff\xff"
"""What a sender leaves out at the end of a compressed message, RFC 7692 section 7.2.2."""

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


class Inflate(Extension):
    """permessage-deflate, received only.

    Our own, beside the library's, because that takes a ping between two fragments for the end of a compressed message
    (wsproto 1.3), refuses windows of 8 bits, and decompresses without a bound.

    Args:
        keeps_window: the sender compresses a message with the ones before it at hand.
        max_bytes: of what is decompressed at once; a message with more is cut off there, and is too large.
    """

    name = _COMPRESSION

    def __init__(self, *, keeps_window: bool, max_bytes: int) -> None:
        self._keeps_window, self._max_bytes = keeps_window, max_bytes
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)  # reads any smaller window too
        self._compressed = False  # the message that has begun
        self._control = False  # the frame that has begun

    def enabled(self) -> bool:
        return True

    def offer(self) -> bool:
        return False  # whoever listens offers nothing

    def frame_inbound_header(
        self, proto: FrameDecoder | FrameProtocol, opcode: Opcode, rsv: RsvBits, payload_length: int
    ) -> CloseReason | RsvBits:
        self._control = opcode.iscontrol()
        if rsv.rsv1 and (self._control or opcode is Opcode.CONTINUATION):
            return CloseReason.PROTOCOL_ERROR
        if not self._control and opcode is not Opcode.CONTINUATION:
            self._compressed = rsv.rsv1
        return RsvBits(True, False, False)

    def frame_inbound_payload_data(self, proto: FrameDecoder | FrameProtocol, data: bytes) -> bytes | CloseReason:
        return data if self._control or not self._compressed else self._inflated(data)

    def frame_inbound_complete(self, proto: FrameDecoder | FrameProtocol, fin: bool) -> bytes | CloseReason | None:
        if self._control or not self._compressed or not fin:
            return None
        rest = self._inflated(_END_OF_MESSAGE)
        if not self._keeps_window:
            self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        return rest

    def _inflated(self, compressed: bytes) -> bytes | CloseReason:
        parts: list[bytes] = []
        try:
            while compressed:
                if self._inflate.eof:  # the sender ended a block for good: the next one begins anew
                    self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
                part = self._inflate.decompress(compressed, self._max_bytes)
                if self._inflate.unconsumed_tail:
                    return CloseReason.MESSAGE_TOO_BIG  # a bomb: one read of it is larger than any message
                parts.append(part)
                compressed = self._inflate.unused_data if self._inflate.eof else b""
        except zlib.error:
            return CloseReason.INVALID_FRAME_PAYLOAD_DATA
        return b"".join(parts)


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
        if name.lower() != _COMPRESSION or found:
            raise Unreadable(f"agreed on a WebSocket extension that is not known, {name[:40]!r}")
        forgets = f"{'client' if from_client else 'server'}_no_context_takeover"
        keeps = not any(re.fullmatch(forgets, parameter, re.IGNORECASE) for parameter in parameters)
        found.append(Inflate(keeps_window=keeps, max_bytes=max_bytes))
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
