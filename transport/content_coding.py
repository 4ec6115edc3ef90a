"""Request bodies decompressed: gzip and zstd, never to more than a bound."""

import sys
import zlib
from collections.abc import Callable

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ACCEPTED = "zstd, gzip, identity"
"""The ``Accept-Encoding`` of a refusal."""

ZSTD_WINDOW_LOG = 23
"""8 MiB, the most that a sender may use, RFC 9659; a frame that wants more is refused before memory is taken for it."""


class TooLarge(Exception):
    """The body decompresses to more than is allowed."""


class Undecodable(Exception):
    """The body is not what its coding says; the text says why."""


def _gunzip(body: bytes, max_bytes: int) -> bytes:
    decompressor = zlib.decompressobj(wbits=31)
    try:
        plain = decompressor.decompress(body, max_bytes + 1)
    except zlib.error as exc:
        raise Undecodable(f"The body is not valid gzip: {exc}.") from None
    if len(plain) > max_bytes:
        raise TooLarge
    if not decompressor.eof or decompressor.unused_data:
        raise Undecodable("The body is not one whole gzip stream.")
    return plain


def _unzstd(body: bytes, max_bytes: int) -> bytes:
    decompressor = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: ZSTD_WINDOW_LOG})
    try:
        plain = decompressor.decompress(body, max_bytes + 1)
    except zstd.ZstdError as exc:
        raise Undecodable(f"The body is not valid zstd: {exc}.") from None
    if len(plain) > max_bytes:
        raise TooLarge
    if not decompressor.eof or decompressor.unused_data:
        raise Undecodable("The body is not one whole zstd frame.")
    return plain


DECODERS: dict[str, Callable[[bytes, int], bytes]] = {"gzip": _gunzip, "x-gzip": _gunzip, "zstd": _unzstd}
"""By ``Content-Encoding``. Each takes the body and the most bytes it may become; raises ``TooLarge``, ``Undecodable``."""
