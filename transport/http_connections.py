"""Connections to model servers: opened, secured, and kept warm for the next request, the latest first."""

import re
import socket
import ssl
from collections.abc import Awaitable, Callable

import certifi
import trio
from attrs import define, field

from .http_target import Target

IDLE_S = 3.5
"""vLLM, SGLang and llama.cpp close an idle connection after 5 s (measured): stay clear of the race."""

_ALERT = re.compile(r"ALERT|UNSUPPORTED|NO_|HANDSHAKE_FAILURE")
"""In a reason that only a server gives which speaks TLS."""

IS_PLAIN = "Is its URL http://?"

WORTH_S = 10.0
"""A connection that is kept for less is not opened ahead: servers at home are near, and soon close it."""

SETTLE_S = 1.0
"""How long after a handshake the server's tickets are waited for."""

CHECK = "Check that it runs and that its URL is right."

Connect = Callable[[str, int], Awaitable[trio.abc.Stream]]
"""Opens a byte stream to a host and port; raises ``OSError``."""


class HttpError(Exception):
    """The exchange failed below HTTP's own statuses. Its text completes "The backend at ...": it holds no secret.

    Attributes:
        timed_out: it did not answer in time, as against not at all or with nonsense.
        cure: what to do, as a sentence.
    """

    def __init__(self, message: str, *, timed_out: bool = False, cure: str = "Try again.") -> None:
        super().__init__(message)
        self.timed_out, self.cure = timed_out, cure


def default_ssl_context() -> ssl.SSLContext:
    """Trusts the system's certificate authorities (``SSL_CERT_FILE`` included) and certifi's."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    context.set_alpn_protocols(["http/1.1"])
    return context


@define(eq=False)
class Connections:
    """A LIFO pool over any number of origins. Without a task of its own: connections that are too old go at the next call.

    Args:
        ssl_context: for https; ``default_ssl_context()`` if None, made when first needed.
        connect_timeout_s: for name, TCP and TLS together.
        n_idle: connections kept for one origin.
        idle_s: how long for. One that the server closed meanwhile is noticed, at the latest when it is used.
        connect: replaces TCP, for tests.
    """

    ssl_context: ssl.SSLContext | None = None
    connect_timeout_s: float = 10.0
    n_idle: int = 64
    idle_s: float = IDLE_S
    connect: Connect = field(default=trio.open_tcp_stream, repr=False)
    _idle: dict[tuple[str, str, int], list[tuple[float, trio.abc.Stream]]] = field(factory=dict, init=False, repr=False)

    async def open(self, target: Target) -> trio.abc.Stream:
        stream: trio.abc.Stream | None = None
        with trio.move_on_after(self.connect_timeout_s):
            try:
                stream = await self.connect(target.host, target.port)
            except OSError as exc:
                raise HttpError(f"cannot be reached: {_reason(exc)}", cure=CHECK) from None
            if target.scheme == "http":
                return stream
            try:
                return await self._secured(stream, target)
            except BaseException:
                await trio.aclose_forcefully(stream)
                raise
        if stream is not None:
            what = f"was connected to, but did not answer with TLS within {self.connect_timeout_s:g} seconds"
            raise HttpError(what, timed_out=True, cure=IS_PLAIN)
        raise HttpError(f"cannot be reached: no connection within {self.connect_timeout_s:g} seconds", timed_out=True)

    async def _secured(self, stream: trio.abc.Stream, target: Target) -> trio.abc.Stream:
        if self.ssl_context is None:
            self.ssl_context = default_ssl_context()
        tls = trio.SSLStream(stream, self.ssl_context, server_hostname=target.host, https_compatible=True)
        try:
            await tls.do_handshake()
        except trio.BrokenResourceError as exc:
            cause = exc.__cause__
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise HttpError(
                    f"has a certificate that is not trusted: {cause.verify_message}",
                    cure="Add its authority to the system's, or name it in SSL_CERT_FILE.",
                ) from None
            reason = getattr(cause, "reason", None) or "the connection ended"
            if _ALERT.search(reason):
                raise HttpError(f"does not agree on TLS ({reason})", cure="Its TLS settings have to change.") from None
            raise HttpError(f"was connected to, but did not answer with TLS ({reason})", cure=IS_PLAIN) from None
        return tls

    async def pop(self, target: Target) -> trio.abc.Stream | None:
        """The connection that was used last, if it is still good; those too old to be good are closed."""
        await self._close_old()
        kept = self._idle.get(target.origin, [])
        while kept:
            _, stream = kept.pop()
            if not _is_spent(stream):
                return stream
            await trio.aclose_forcefully(stream)
        return None

    async def warm(self, target: Target) -> None:
        """Open a connection for the next request, unless one is there or would be kept for a moment only.

        Raises:
            HttpError: there is none to be had.
        """
        if self._idle.get(target.origin) or not self.n_idle or self.idle_s < WORTH_S:
            return
        stream = await self.open(target)
        try:
            if isinstance(stream, trio.SSLStream) and not await _settles(stream):
                raise HttpError("closed the connection before it was used")
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        await self.push(target, stream)

    async def push(self, target: Target, stream: trio.abc.Stream) -> None:
        kept = self._idle.setdefault(target.origin, [])
        kept.append((trio.current_time(), stream))
        if len(kept) > self.n_idle:
            _, oldest = kept.pop(0)
            await trio.aclose_forcefully(oldest)
        await self._close_old()

    async def _close_old(self) -> None:
        too_old = trio.current_time() - self.idle_s
        old: list[trio.abc.Stream] = []
        for origin, kept in list(self._idle.items()):
            while kept and kept[0][0] <= too_old:
                old.append(kept.pop(0)[1])
            if not kept:
                del self._idle[origin]
        for stream in old:
            await trio.aclose_forcefully(stream)

    async def aclose(self) -> None:
        """Close the idle connections; one in use is closed by its user."""
        idle, self._idle = self._idle, {}
        for kept in idle.values():
            for _, stream in kept:
                await trio.aclose_forcefully(stream)


async def _settles(stream: trio.SSLStream[trio.abc.Stream]) -> bool:
    """Read what comes behind the handshake: TLS 1.3 sends tickets, and what can be read would count as an end."""
    with trio.move_on_after(SETTLE_S) as scope:
        try:
            await stream.receive_some(1)
        except trio.BrokenResourceError:
            return False
    return scope.cancelled_caught


def _is_spent(stream: trio.abc.Stream) -> bool:
    """An idle connection with something to read has been closed by the server, or is out of step."""
    below = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
    return isinstance(below, trio.SocketStream) and below.socket.is_readable()


def _reason(exc: OSError) -> str:
    """Why no connection was made, in words."""
    if isinstance(exc, socket.gaierror):
        return "its name cannot be resolved"
    causes: list[BaseException] = [exc]
    for cause in causes:
        if isinstance(cause, BaseExceptionGroup):
            causes += cause.exceptions
        elif cause.__cause__ is not None:
            causes.append(cause.__cause__)
    if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
        return "nothing listens there"
    reasons = [cause.strerror for cause in causes if isinstance(cause, OSError) and cause.strerror]
    return reasons[-1] if reasons else "the connection failed"
