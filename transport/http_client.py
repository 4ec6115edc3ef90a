"""An HTTP/1.1 client for streamed answers: one request at a time per connection, connections kept warm in a LIFO pool.

h11 reads and writes the heads; bodies go through ``sse.py``, which costs a third of it per event.
Nothing is taken from the environment: no proxy, no netrc. No compression is asked for, and a
redirect is an error, because a request that carries a key goes where its owner pointed it.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from urllib.parse import urlsplit

import h11
import trio
from attrs import define, field

from .http_connections import Connections, HttpError
from .http_target import Target
from .sse import BodyError, Chunked, EventSplitter, Framing, Sized, UntilClose

READ_BYTES = 65536
MAX_HEAD_BYTES = 65536
TLS_ALERT = b"\x15\x03"
"""How the answer of a server begins that speaks TLS and was sent plain HTTP."""


class _Stale(Exception):
    """A kept connection died before a single byte of the response: the server had closed it."""


@define(eq=False)
class Response:
    """A status and headers, and a body that is read on demand.

    Attributes:
        headers: names in lower case; of a repeated one, the last.
    """

    status: int
    headers: Mapping[str, str]
    _stream: trio.abc.Stream = field(repr=False)
    _framing: Framing = field(repr=False)
    _keep_alive: bool
    _received: bytes = field(repr=False)  # body bytes that came with the head
    _silence_s: float
    _splitter: EventSplitter = field(factory=EventSplitter, repr=False)

    @property
    def reusable(self) -> bool:
        """The connection has nothing left of this exchange and may carry another."""
        return self._keep_alive and self._framing.done and not self._framing.excess

    async def read(self) -> bytes | None:
        """Body bytes of one read of the connection; None once the body is whole.

        Raises:
            HttpError: the connection ended first, was silent for too long, or sent nonsense.
        """
        while not self._framing.done:
            received, self._received = self._received, b""
            if not received:
                with trio.move_on_after(self._silence_s) as scope:
                    received = await _receive(self._stream)
                if scope.cancelled_caught:
                    raise HttpError(f"sent nothing for {self._silence_s:g} seconds", timed_out=True)
                if not received:
                    if self._framing.end():
                        return None
                    raise HttpError("closed the connection in the middle of its answer")
            try:
                body = self._framing.feed(received)
            except BodyError as exc:
                raise HttpError(str(exc)) from None
            if body:
                return body
        return None

    async def events(self) -> list[bytes] | None:
        """The ``data`` of all events that one read completed; None once the body is whole. Raises ``HttpError``."""
        try:
            while (body := await self.read()) is not None:
                if events := self._splitter.feed(body):
                    return events
            return self._splitter.end() or None
        except BodyError as exc:
            raise HttpError(str(exc)) from None

    async def body(self, max_bytes: int) -> bytes:
        """The whole body. Raises ``HttpError``, also for a longer one."""
        parts: list[bytes] = []
        n_bytes = 0
        while (part := await self.read()) is not None:
            parts.append(part)
            n_bytes += len(part)
            if n_bytes > max_bytes:
                raise HttpError(f"answered with a body of more than {max_bytes} bytes")
        return b"".join(parts)

    async def drain(self, within_s: float) -> None:
        """Read what is left and drop it, so that the connection can be kept; give up after ``within_s``."""
        with trio.move_on_after(within_s):
            try:
                while await self.read() is not None:
                    pass
            except HttpError:
                pass  # the answer had been given: only the connection is lost


async def _receive(stream: trio.abc.Stream) -> bytes:
    """One read; b"" at the end, however it ended."""
    try:
        return bytes(await stream.receive_some(READ_BYTES))
    except trio.BrokenResourceError:
        return b""


@define(eq=False)
class HttpClient:
    """Asks any origin, and keeps connections whose answer was read to its end.

    Args:
        head_timeout_s: from the first byte sent to the whole response head. Generous: some servers prefill first.
        silence_s: longest wait for the next bytes of a body.
    """

    connections: Connections = field(factory=Connections)
    head_timeout_s: float = 600.0
    silence_s: float = 600.0

    def post(
        self, target: Target, headers: Sequence[tuple[str, str]], body: Sequence[bytes]
    ) -> AbstractAsyncContextManager[Response]:
        """The response to a POST, once its head has come. Leaving keeps the connection or closes it at once.

        Args:
            body: in pieces.

        Raises:
            HttpError: no connection, no head in time, a redirect, or nonsense.
        """
        length = ("Content-Length", str(sum(map(len, body))))
        return self._ask(target, _request_head("POST", target, (length, *headers)), body)

    def get(self, target: Target, headers: Sequence[tuple[str, str]]) -> AbstractAsyncContextManager[Response]:
        """The same for a GET."""
        return self._ask(target, _request_head("GET", target, headers), ())

    @asynccontextmanager
    async def _ask(self, target: Target, head: bytes, body: Sequence[bytes]) -> AsyncIterator[Response]:
        stream = await self.connections.pop(target)
        try:
            response = None
            if stream is not None:
                try:
                    response = await self._exchange(stream, head, body, kept=True)
                except _Stale:
                    await trio.aclose_forcefully(stream)
                    stream = None
            if stream is None:
                stream = await self.connections.open(target)
                response = await self._exchange(stream, head, body, kept=False)
            assert response is not None
            yield response
        except BaseException:
            if stream is not None:
                await trio.aclose_forcefully(stream)
            raise
        if response.reusable:
            await self.connections.push(target, stream)
        else:
            await trio.aclose_forcefully(stream)

    async def aclose(self) -> None:
        """Close the idle connections; one in use is closed by its user."""
        await self.connections.aclose()

    # --- one exchange -------------------------------------------------------------------------------

    async def _exchange(self, stream: trio.abc.Stream, head: bytes, body: Sequence[bytes], *, kept: bool) -> Response:
        with trio.move_on_after(self.head_timeout_s):
            with suppress(trio.BrokenResourceError):  # it may have answered before it hung up, refusing a large body
                await stream.send_all(b"".join((head, *body)))
            return await self._response(stream, kept=kept)
        raise HttpError(f"did not answer within {self.head_timeout_s:g} seconds", timed_out=True)

    async def _response(self, stream: trio.abc.Stream, *, kept: bool) -> Response:
        parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        parser.send(h11.Request(method="POST", target="/", headers=[("Host", "-"), ("Content-Length", "0")]))
        while True:
            received = await _receive(stream)
            if not received:
                if kept and not parser.trailing_data[0]:
                    raise _Stale
                cure = "Try again." if isinstance(stream, trio.SSLStream) else "Try again, or is its URL https://?"
                raise HttpError("closed the connection without an answer", cure=cure)
            parser.receive_data(received)
            kept = False  # bytes of the response have come
            try:
                event = parser.next_event()
                while isinstance(event, h11.InformationalResponse):
                    event = parser.next_event()
            except h11.RemoteProtocolError:
                if received.startswith(TLS_ALERT):
                    raise HttpError("answers with TLS only", cure="Is its URL https://?") from None
                raise HttpError("answered with something that is not HTTP/1.1") from None
            if isinstance(event, h11.Response):
                return self._checked(stream, event, parser.trailing_data[0])

    def _checked(self, stream: trio.abc.Stream, event: h11.Response, received: bytes) -> Response:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
        status = event.status_code
        if 300 <= status < 400:
            raise HttpError(
                f"redirects{_elsewhere(headers.get('location'))} (HTTP {status}), which is not followed",
                cure="Set its URL to where it really is.",
            )
        if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            raise HttpError("answered in a compressed form that was not asked for")
        framing: Framing
        if status == 204:
            framing = Sized(0)
        elif "transfer-encoding" in headers:
            framing = Chunked()  # h11 lets no other coding pass
        elif "content-length" in headers:
            framing = Sized(int(headers["content-length"]))
        else:
            framing = UntilClose()
        keep_alive = event.http_version >= b"1.1" and "close" not in headers.get("connection", "").lower()
        return Response(status, headers, stream, framing, keep_alive, received, self.silence_s)


def _request_head(method: str, target: Target, headers: Sequence[tuple[str, str]]) -> bytes:
    """h11 refuses a header value with a line break, so a key cannot smuggle one in."""
    common = [("Host", target.where), ("Accept-Encoding", "identity")]
    request = h11.Request(method=method, target=target.path, headers=[*common, *headers])
    head = h11.Connection(h11.CLIENT).send(request)
    assert head is not None
    return head


def _elsewhere(location: str | None) -> str:
    """Words for where a redirect leads, without the path and query of ``location``, which may hold a secret."""
    if location is None:
        return ""
    try:
        host = urlsplit(location).hostname
    except ValueError:
        host = None
    return f" to {host[:200]}" if host else " to another path"
