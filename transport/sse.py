"""Bytes of a response body to server-sent events: framing of the body, then splitting into events; no I/O.

Each read is decoded in one go and gives all its events as one list. Nothing waits for more than it
needs: a chunk that arrives in parts is passed on in parts.
"""

import re
from typing import Protocol

MAX_LINE_BYTES = 16384
"""Of a chunk's size line or a trailer; ours. Real ones have under 20."""

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""Of one event; ours. Generous: a whole answer of 100,000 tokens is under one MiB."""

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?", re.DOTALL)


class BodyError(Exception):
    """The body breaks the rules of HTTP or a bound; its text completes "The backend ..."."""


class Framing(Protocol):
    """Finds the end of a response body in what is read from the connection."""

    done: bool
    """The body is whole: nothing more belongs to it."""

    excess: bool
    """Bytes came after the end, so the connection is not fit for another request."""

    def feed(self, received: bytes) -> bytes:
        """The part of ``received`` that is body. Raises ``BodyError``."""
        ...

    def end(self) -> bool:
        """The connection ended. Return whether the body is whole."""
        ...


class Sized:
    """A body of a length that the head gave."""

    def __init__(self, length: int) -> None:
        self._left = length
        self.done, self.excess = length == 0, False

    def feed(self, received: bytes) -> bytes:
        body = received[: self._left]
        self.excess = self.excess or len(received) > self._left
        self._left -= len(body)
        self.done = self._left == 0
        return body

    def end(self) -> bool:
        return self.done


class UntilClose:
    """A body that ends with the connection."""

    done = excess = False

    def feed(self, received: bytes) -> bytes:
        return received

    def end(self) -> bool:
        self.done = True
        return True


class Chunked:
    """A body in chunks (RFC 9112, section 7.1). Chunk extensions and trailers are dropped."""

    def __init__(self) -> None:
        self.done = self.excess = False
        self._left = 0  # bytes of the open chunk that are still to come, its CRLF included
        self._line = b""  # beginning of a line that is not whole yet
        self._in_trailers = False

    def feed(self, received: bytes) -> bytes:
        if self.done:
            self.excess = self.excess or bool(received)
            return b""
        body: list[bytes] = []
        if self._line:
            received, self._line = self._line + received, b""
        at, n = 0, len(received)
        while at < n:
            if self._left:
                at = self._take(received, at, body)
                continue
            end = received.find(b"\n", at)
            if end < 0:
                if n - at > MAX_LINE_BYTES:
                    raise BodyError("sent a chunked body with an endless line")
                self._line = received[at:]
                break
            line = received[at : end - 1] if end > at and received[end - 1] == 13 else received[at:end]
            at = end + 1
            if not self._in_trailers:
                self._left = self._size(line)
            elif not line:
                self.done, self.excess = True, at < n
                break
        return body[0] if len(body) == 1 else b"".join(body)

    def _take(self, received: bytes, at: int, body: list[bytes]) -> int:
        """Move what is there of the open chunk to ``body``; return where it ends."""
        end = min(at + self._left, len(received))
        self._left -= end - at
        content_end = end - max(0, 2 - self._left)  # what is left or just taken beyond it is CRLF
        if content_end > at:
            body.append(received[at:content_end])
        if received[max(at, content_end) : end].strip(b"\r\n"):
            raise BodyError("sent a chunk that is longer than it said")
        return end

    def _size(self, line: bytes) -> int:
        match = _SIZE.fullmatch(line)
        if match is None:
            raise BodyError("sent a chunked body with a line that is no chunk size")
        size = int(match[1], 16)
        self._in_trailers = size == 0
        return size + 2 if size else 0

    def end(self) -> bool:
        return self.done


class EventSplitter:
    """Text of an event stream (WHATWG HTML, section 9.2) to the ``data`` of its events.

    Comments, blank lines and fields other than ``data`` are dropped, and so is an event without data.

    Args:
        max_bytes: bound on one event.
    """

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []  # of the event that is not whole yet, and never empty ones
        self._n_bytes = 0
        self._after_cr = False
        self._at_start = True

    def feed(self, body: bytes) -> list[bytes]:
        """Events that ``body`` completes. Raises ``BodyError`` for one that is too large."""
        if self._after_cr or b"\r" in body:
            body = self._with_lf(body)
        if not body:
            return []
        parts = self._parts
        ends_here = b"\n\n" in body or (body[0] == 10 and bool(parts) and parts[-1][-1] == 10)
        parts.append(body)
        self._n_bytes += len(body)
        if not ends_here:
            self._check(self._n_bytes)
            return []
        *blocks, rest = b"".join(parts).split(b"\n\n")
        self._check(max(map(len, blocks)))
        self._check(len(rest))
        self._parts, self._n_bytes = ([rest], len(rest)) if rest else ([], 0)
        return self._events(blocks)

    def end(self) -> list[bytes]:
        """The body is whole: the last event, if no blank line closed it."""
        rest, self._parts, self._n_bytes = b"".join(self._parts), [], 0
        return self._events([rest])

    def _check(self, n_bytes: int) -> None:
        if n_bytes > self._max_bytes:
            raise BodyError(f"sent an event of more than {self._max_bytes} bytes")

    def _with_lf(self, body: bytes) -> bytes:
        """``body`` with every line end as one LF. A CR counts at once; an LF right after it, perhaps in the next
        read, is the same line end."""
        if not body:
            return body
        if self._after_cr and body.startswith(b"\n"):
            body = body[1:]
        self._after_cr = body.endswith(b"\r")
        return body.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _events(self, blocks: list[bytes]) -> list[bytes]:
        if self._at_start and blocks:
            self._at_start = False
            blocks[0] = blocks[0].removeprefix(b"\xef\xbb\xbf")
        events: list[bytes] = []
        for block in blocks:
            if block.startswith(b"data: ") and b"\n" not in block:  # nearly every one
                events.append(block[6:])
                continue
            lines = [line for line in block.split(b"\n") if line.startswith(b"data:")]
            if lines:
                events.append(b"\n".join(line[5:].removeprefix(b" ") for line in lines))
        return events
