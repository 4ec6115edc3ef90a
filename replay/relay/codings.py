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


class _Zlib:
    """gzip and deflate, the latter with or without the header of zlib: both are sent under that name."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(wbits=47)
        self._begun = False

    def feed(self, received: bytes, limit: int) -> bytes:
        if self._inflate.eof:
            received, self._inflate = self._inflate.unused_data + received, zlib.decompressobj(wbits=47)  # next member
        try:
            body = self._inflate.decompress(received, limit + 1)
        except zlib.error:
            if self._begun:
                raise
            self._inflate = zlib.decompressobj(wbits=-15)
            body = self._inflate.decompress(received, limit + 1)
        self._begun = self._begun or bool(received)
        if len(body) <= limit and self._inflate.eof and self._inflate.unused_data:
            body += self.feed(b"", limit - len(body))
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
