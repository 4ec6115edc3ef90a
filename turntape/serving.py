"""Run one server from start to stop: listen, say where, end on a signal, let turns in flight end first."""

import os
import signal
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Protocol

import click
import trio
from attrs import define, field, frozen

from turntape.core.seam import Limits
from turntape.transport.backends.base import Backend
from turntape.transport.driver import SessionLike
from turntape.transport.ledger.ledger import Ledger
from turntape.transport.server import ServerSettings, serve
from turntape.transport.store import Store

from .options import EnvironmentFailed, Listen


@frozen
class Address:
    """Where one server listens."""

    host: str
    port: int

    @property
    def bound(self) -> str:
        """Base URL with the address as it was given, which may stand for all of the machine's."""
        return self._url(self.host)

    @property
    def local(self) -> str:
        """Base URL for clients on this machine."""
        return self._url({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host))

    def _url(self, host: str) -> str:
        return f"http://[{host}]:{self.port}/v1" if ":" in host else f"http://{host}:{self.port}/v1"


Task = Callable[[Address], Awaitable[int]]
"""What the server is there for: returns an exit code, and its end is the server's."""


@frozen
class Served:
    """What one server runs on.

    Attributes:
        keys: what clients may present; none: anything, from this machine only.
        beside: runs as long as the server does.
        reload: called on SIGHUP; None leaves that signal alone.
    """

    listen: Listen
    keys: tuple[str, ...]
    new_session: Callable[[], SessionLike]
    backend: Backend
    store: Store
    ledger: Ledger | None = None
    beside: Callable[[], Awaitable[None]] | None = None
    reload: Callable[[], Awaitable[None]] | None = None

    async def serve(
        self, shutdown: trio.Event, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED
    ) -> None:
        listen = self.listen
        settings = ServerSettings(
            host=listen.host,
            port=listen.port,
            keys=frozenset(self.keys),
            allow_origins=frozenset(listen.allow_origin),
            websocket=listen.websocket,
            max_message_bytes=listen.max_message_bytes,
            compression=listen.compression,
            limits=Limits(keepalive_s=listen.keepalive),
            grace_s=listen.grace,
        )
        await serve(
            settings,
            new_session=self.new_session,
            backend=self.backend,
            store=self.store,
            shutdown=shutdown,
            ledger=self.ledger,
            task_status=task_status,
        )


class Runnable(Protocol):
    """What ``run`` runs: a server of its own, or a relay."""

    @property
    def listen(self) -> Listen: ...

    @property
    def beside(self) -> Callable[[], Awaitable[None]] | None:
        """Runs as long as the server does."""

    @property
    def reload(self) -> Callable[[], Awaitable[None]] | None:
        """Called on SIGHUP; None leaves that signal alone."""

    async def serve(
        self, shutdown: trio.Event, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until ``shutdown``; starts with the port that is listened on. Raises ``OSError``."""


@define
class _Stop:
    """What signals do: the first asks, the second insists.

    Attributes:
        asked: set by the first; the server then lets turns in flight end.
        task: around the task, if there is one: a terminal sends its SIGINT to it too, so only SIGTERM ends it.
        everything: cancelled by the second.
    """

    everything: trio.CancelScope
    task: trio.CancelScope | None
    asked: trio.Event = field(factory=trio.Event)
    by: int = 0
    at_once: bool = False

    async def watch(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for number in signals:
                if self.by:
                    self.at_once = True
                    self.everything.cancel()
                elif self.task is None:
                    click.echo("stopping: turns in flight may end; a second signal stops at once", err=True)
                    self.asked.set()
                elif number == signal.SIGTERM:
                    self.task.cancel()
                self.by = number


async def _reload_on_hangup(
    reload: Callable[[], Awaitable[None]], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Call ``reload`` on each SIGHUP, except for that of a terminal which was closed: it ends the server, as it should."""
    terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]
    with trio.open_signal_receiver(signal.SIGHUP) as signals:
        task_status.started()
        async for _ in signals:
            closed = [descriptor for descriptor in terminals if not os.isatty(descriptor)]
            if closed:
                _send_nowhere(closed)
                os.kill(os.getpid(), signal.SIGTERM)
                return
            await reload()


def _send_nowhere(descriptors: Iterable[int]) -> None:
    """Let what is still said there be lost: writing to a terminal that was closed is an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in descriptors:
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


async def run(served: Runnable, *, started: Callable[[Address], None], task: Task | None = None) -> int:
    """Serve until ``task`` returns, or without one until SIGINT or SIGTERM; return the exit code.

    Args:
        started: called once the server accepts connections.

    Raises:
        EnvironmentFailed: it cannot listen there, or ``task`` cannot do what it is there for.
    """
    code = 0
    failure: EnvironmentFailed | None = None
    task_scope = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        stop = _Stop(nursery.cancel_scope, task_scope if task else None)
        await nursery.start(stop.watch)
        if served.beside:
            nursery.start_soon(served.beside)
        if served.reload:
            await nursery.start(_reload_on_hangup, served.reload)
        async with trio.open_nursery() as servers:
            try:
                port = await servers.start(partial(served.serve, stop.asked))
            except OSError as exc:
                failure = _cannot_listen(served.listen, exc)
            else:
                address = Address(served.listen.host, port)
                started(address)
                if task:
                    with task_scope:
                        try:
                            code = await task(address)
                        except EnvironmentFailed as exc:
                            failure = exc
                    stop.asked.set()
        nursery.cancel_scope.cancel()
    if failure:
        raise failure
    if stop.at_once or (task and task_scope.cancelled_caught):
        return 128 + stop.by
    return code


def _cannot_listen(listen: Listen, exc: OSError) -> EnvironmentFailed:
    return EnvironmentFailed(
        f"cannot listen on {listen.host}, port {listen.port} ({exc.strerror or exc}); "
        "choose another with --port, or --port 0 for a free one"
    )
