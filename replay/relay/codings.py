"""Content codings undone as bytes come, never more than a bound: gzip, deflate, zstd, br."""

import sys
import zlib
from collections.abc import Callable
from typing import Protocol

import brotli  # type: ignore[import-untyped]
from attrs import define, field

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


class Unreadable(Exception):
    """What passes cannot be recorded; the text completes "the client ..." or "the upstream ..."."""


class _Decoder(Protocol):
    def feed(self, received: bytes, limit: int) -> bytes:
        """What ``received`` adds, or the first ``limit`` bytes of it and one more. Raises any of ``_ERRORS``."""
        ...


_ERRORS = (zlib.error, zstd.ZstdError, brotli.error, EOFError, ValueError)


_GZIP = b"\x1f\x8b"


class _Zlib:
    """gzip, of one member or several, and deflate with or without the header of zlib: both are sent under that name."""

    def __init__(self) -> None:
        self._first = b""  # until it is known what it is
        self._inflate = zlib.decompressobj()
        self._wbits = 0

    def feed(self, received: bytes, limit: int) -> bytes:
        if not self._wbits:
            received, self._first = self._first + received, b""
            if len(received) < 2:
                self._first = received
                return b""
            is_zlib = received[0] & 15 == 8 and int.from_bytes(received[:2]) % 31 == 0
            self._wbits = 31 if received.startswith(_GZIP) else 15 if is_zlib else -15
            self._inflate = zlib.decompressobj(self._wbits)
        body = b""
        while received:
            if self._inflate.eof:
                if self._wbits != 31:
                    break  # padding
                self._inflate = zlib.decompressobj(31)  # the next member
            body += self._inflate.decompress(received, limit + 1 - len(body))
            if len(body) > limit:
                break
            received = self._inflate.unused_data if self._inflate.eof else b""
        return body


class _Zstd:
    def __init__(self) -> None:
        self._decompress = zstd.ZstdDecompressor()

    def feed(self, received: bytes, limit: int) -> bytes:
        body = b""
        while received:
            if self._decompress.eof:
                self._decompress = zstd.ZstdDecompressor()  # the next frame
            body += self._decompress.decompress(received, limit + 1 - len(body))
            if len(body) > limit:
                break
            received = self._decompress.unused_data if self._decompress.eof else b""
        return body


class _Brotli:
    def __init__(self) -> None:
        self._decompress = brotli.Decompressor()

    def feed(self, received: bytes, limit: int) -> bytes:
        body = self._decompress.process(received, output_buffer_limit=limit + 1)
        while len(body) <= limit and not self._decompress.can_accept_more_data():
            body += self._decompress.process(b"", output_buffer_limit=limit + 1 - len(body))
        return bytes(body)


_DECODERS: dict[str, Callable[[], _Decoder]] = {
    "gzip": _Zlib,
    "x-gzip": _Zlib,
    "deflate": _Zlib,
    "zstd": _Zstd,
    "br": _Brotli,
}


@define(eq=False)
class Decoding:
    """One body's codings undone.

    Args:
        coding: the ``Content-Encoding``.
        max_bytes: of the decoded body, if it is ``whole``; else of what one read makes.
    """

    coding: str
    max_bytes: int
    whole: bool = True
    _decoders: list[_Decoder] = field(init=False)
    _n_bytes: int = field(init=False, default=0)

    def __attrs_post_init__(self) -> None:
        names = [name.strip().lower() for name in self.coding.split(",")]
        names = [name for name in reversed(names) if name not in ("", "identity")]
        if unknown := [name for name in names if name not in _DECODERS]:
            raise Unreadable(f"used a content coding that is not known, {unknown[0][:40]!r}")
        if len(names) > 3:
            raise Unreadable(f"used {len(names)} content codings on one body")
        self._decoders = [_DECODERS[name]() for name in names]

    def feed(self, body: bytes) -> bytes:
        """What ``body`` adds. Raises ``Unreadable``."""
        left = self.max_bytes - (self._n_bytes if self.whole else 0)
        for decoder in self._decoders:
            try:
                body = decoder.feed(body, left)
            except _ERRORS:
                raise Unreadable("sent a compressed body that cannot be decompressed") from None
        self._n_bytes += len(body)
        if len(body) > left:
            raise Unreadable(f"sent a body of more than {self.max_bytes:,} bytes")
        return body
