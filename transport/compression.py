"""permessage-deflate, RFC 7692: what is agreed on with a client, and each direction's half of it."""

import re
import zlib
from collections import OrderedDict
from typing import Literal

from attrs import define, field, frozen
from wsproto.extensions import Extension
from wsproto.frame_protocol import CloseReason, FrameDecoder, FrameProtocol, Opcode, RsvBits

Compression = Literal["auto", "on", "off"]
"""Whether an offer is accepted; ``auto``: from clients on other machines."""

NAME = "permessage-deflate"

MAX_BITS = zlib.MAX_WBITS
"""A window of 32 KiB, base 2 logarithm: an agent's tools and instructions, sent each turn, fit into it."""

MIN_BITS = 9
"""zlib makes no smaller window, though the standard has one of 8 bits."""

LEVEL = 6
MEMORY_LEVEL = 5
"""zlib's effort and its memory for finding repetitions; docs/performance.md has what each costs."""

MAX_LIVE = 256
"""Compressors of one server that remember what they sent, some 150 KB each."""

SMALL_BYTES = 64
"""A message below this is sent as it is: compressing it costs more than it saves."""

LARGE_BYTES = 1 << 20
"""And one above this: the compression of a single message is not to hold up every other connection."""

_END_OF_MESSAGE = b"\x00\x00\xff\xff"
"""What a sender leaves out at the end of a compressed message, section 7.2.2."""

_MAX_ENDS = 64
"""How often a sender may end its stream for good within one read. Few ever do, and each end costs a new beginning."""

_PARAMETER = re.compile(r'\s*([a-z_]+)\s*(?:=\s*("?)(\w+)\2\s*)?', re.IGNORECASE | re.ASCII)


@frozen(kw_only=True)
class Agreement:
    """What the two sides of one connection have agreed on.

    Attributes:
        server_bits: of the window that the server compresses with, base 2 logarithm.
        server_keeps: whether a message of the server is compressed with those before it at hand.
        client_bits, client_keeps: the same of the client.
        names_server_bits: whether the answer has to name the server's window, because the offer did.
    """

    server_bits: int = MAX_BITS
    server_keeps: bool = True
    client_bits: int = MAX_BITS
    client_keeps: bool = True
    names_server_bits: bool = False

    @property
    def header(self) -> str:
        """``Sec-WebSocket-Extensions`` of the answer."""
        parts = [NAME]
        if not self.server_keeps:
            parts.append("server_no_context_takeover")
        if not self.client_keeps:
            parts.append("client_no_context_takeover")
        if self.names_server_bits:
            parts.append(f"server_max_window_bits={self.server_bits}")
        if self.client_bits < MAX_BITS:
            parts.append(f"client_max_window_bits={self.client_bits}")
        return "; ".join(parts)


def agree(offers: str) -> Agreement | None:
    """What is answered to a client's ``Sec-WebSocket-Extensions``: its first offer that can be met, or None."""
    for offer in offers.split(","):
        name, *parameters = offer.split(";")
        if name.strip().lower() == NAME and (agreement := _meet(parameters)) is not None:
            return agreement
    return None


def _meet(parameters: list[str]) -> Agreement | None:
    values: dict[str, str | None] = {}
    for parameter in parameters:
        found = _PARAMETER.fullmatch(parameter)
        if found is None or (name := found[1].lower()) in values:
            return None
        values[name] = found[3]
    bits = {"server_max_window_bits": MAX_BITS, "client_max_window_bits": MAX_BITS}
    for name, value in values.items():
        if name in bits:
            if value is None and name == "client_max_window_bits":
                continue  # the client only says that it can be told
            if value is None or not re.fullmatch(r"[89]|1[0-5]", value):
                return None
            bits[name] = int(value)
        elif name not in ("server_no_context_takeover", "client_no_context_takeover") or value is not None:
            return None
    if bits["server_max_window_bits"] < MIN_BITS:
        return None
    return Agreement(
        server_bits=bits["server_max_window_bits"],
        server_keeps="server_no_context_takeover" not in values,
        client_bits=bits["client_max_window_bits"],
        client_keeps="client_no_context_takeover" not in values,
        names_server_bits="server_max_window_bits" in values,
    )


@define(eq=False)
class Memories:
    """Bounds the memory of one server's compressors: beyond ``max_live``, the one used longest ago forgets its window.

    A sender may begin anew with any message, and the receiver sees no difference but the size.
    """

    max_live: int = MAX_LIVE
    _used: "OrderedDict[Deflate, None]" = field(init=False, factory=OrderedDict)  # the last one last

    def use(self, deflate: "Deflate") -> None:
        """``deflate`` has a memory, and was just used."""
        self._used[deflate] = None
        self._used.move_to_end(deflate)
        if len(self._used) > self.max_live:
            next(iter(self._used)).forget()

    def drop(self, deflate: "Deflate") -> None:
        """``deflate`` has no memory any more."""
        self._used.pop(deflate, None)


@define(eq=False)
class Deflate:
    """The sender's half. Its memory is taken with the first message that it compresses.

    Args:
        memories: those of the server; ``forget`` when the connection has ended.
    """

    bits: int
    keeps_window: bool
    memories: Memories
    _compressor: "zlib._Compress | None" = field(init=False, default=None)

    def message(self, content: bytes) -> bytes | None:
        """The payload of ``content``'s frame, or None: it is to be sent as it is."""
        if not SMALL_BYTES <= len(content) <= LARGE_BYTES:
            return None
        compressor = self._compressor
        if compressor is None:
            compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, -self.bits, MEMORY_LEVEL)
        if self.keeps_window:
            self._compressor = compressor
            self.memories.use(self)
        body = compressor.compress(content) + compressor.flush(zlib.Z_SYNC_FLUSH)
        return body[: -len(_END_OF_MESSAGE)]

    def forget(self) -> None:
        """Begin anew with the next message."""
        self._compressor = None
        self.memories.drop(self)


class Inflate(Extension):
    """The receiver's half, as wsproto takes it.

    Our own, beside the library's, because that takes a ping between two fragments for the end of a compressed message
    (wsproto 1.3), refuses windows of 8 bits, and decompresses without a bound. Its memory is taken with the first
    message that is compressed.

    Args:
        keeps_window: the sender compresses a message with the ones before it at hand.
        max_bytes: of one decompressed message, if it is ``whole``; else of what is decompressed at once.
        bits: of the sender's window; a larger one reads a smaller one too.
    """

    name = NAME

    def __init__(self, *, keeps_window: bool, max_bytes: int, whole: bool, bits: int = MAX_BITS) -> None:
        self._keeps_window, self._max_bytes, self._whole = keeps_window, max_bytes, whole
        self._bits = max(bits, MIN_BITS)
        self._inflate: zlib._Decompress | None = None
        self._n_bytes = 0  # of this message
        self._compressed = False  # the message that has begun
        self._control = False  # the frame that has begun

    def enabled(self) -> bool:
        return True

    def offer(self) -> bool:
        return False  # whoever only receives offers nothing

    def frame_inbound_header(
        self, proto: FrameDecoder | FrameProtocol, opcode: Opcode, rsv: RsvBits, payload_length: int
    ) -> CloseReason | RsvBits:
        self._control = opcode.iscontrol()
        if rsv.rsv1 and (self._control or opcode is Opcode.CONTINUATION):
            return CloseReason.PROTOCOL_ERROR
        if not self._control and opcode is not Opcode.CONTINUATION:
            self._compressed = rsv.rsv1
            self._n_bytes = 0
        return RsvBits(True, False, False)

    def frame_inbound_payload_data(self, proto: FrameDecoder | FrameProtocol, data: bytes) -> bytes | CloseReason:
        return data if self._control or not self._compressed else self._inflated(data)

    def frame_inbound_complete(self, proto: FrameDecoder | FrameProtocol, fin: bool) -> bytes | CloseReason | None:
        if self._control or not self._compressed or not fin:
            return None
        rest = self._inflated(_END_OF_MESSAGE)
        if not self._keeps_window:
            self._inflate = None
        return rest

    def _inflated(self, compressed: bytes) -> bytes | CloseReason:
        parts: list[bytes] = []
        left = self._max_bytes - (self._n_bytes if self._whole else 0)
        n_ends = 0
        try:
            while compressed:
                if self._inflate is None or self._inflate.eof:
                    n_ends += 1
                    if n_ends > _MAX_ENDS:
                        return CloseReason.INVALID_FRAME_PAYLOAD_DATA
                    self._inflate = zlib.decompressobj(-self._bits)
                part = self._inflate.decompress(compressed, left + 1)
                left -= len(part)
                if left < 0:
                    return CloseReason.MESSAGE_TOO_BIG  # found while inflating: no more than this is ever in memory
                parts.append(part)
                compressed = self._inflate.unused_data if self._inflate.eof else b""
        except zlib.error:
            return CloseReason.INVALID_FRAME_PAYLOAD_DATA
        body = b"".join(parts)
        self._n_bytes += len(body)
        return body
