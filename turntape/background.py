"""A stub, or a server that records, which runs beside its caller: a thread with a Trio loop of its own, a free port."""

import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click
import trio
from attrs import field, frozen, mutable

from turntape.replay.errors import ReplayError
from turntape.replay.stub import FixtureBackend
from turntape.transport.backends.base import Backend
from turntape.transport.driver import SessionLike
from turntape.transport.memory_store import MemoryStore
from turntape.transport.server import ServerSettings, serve

from . import agents, config
from .commands import open_router
from .options import Model
from .recording import NewRecording
from .specs import AT_URL, BackendSpec, SpecError
from .tables import Tables

T = TypeVar("T")

GRACE_S = 0.2
"""How long what is in flight may take once its caller is done; ours. It lets WebSockets be closed properly."""
STOP_S = 10.0
"""How long the thread may take to end, or to answer, before that is called a failure; ours."""


class BackgroundFailed(Exception):
    """The server could not start, or ended by itself. The text says why and what to do."""


@frozen
class Setup:
    """What the server is there for.

    Attributes:
        fixtures: played; none for a server that only records.
        options: how they are played, as ``FixtureBackend.load`` takes them.
        upstream: the backend that is asked for what is not in them; "" for none, and then no network.
        out: the recording of the whole run, a new file; given with an upstream.
        tables: a turntape.toml that may name the upstream.
    """

    fixtures: tuple[Path, ...] = ()
    options: dict[str, Any] = field(factory=dict)
    upstream: str = ""
    out: Path | None = None
    tables: Path | None = None


@frozen
class Listening:
    """How it is reached.

    Attributes:
        model: for agents that are told one; "" leaves the choice to them.
        key_variables: environment variables with keys of the upstream, which no agent may see.
    """

    port: int
    model: str = ""
    key_variables: tuple[str, ...] = ()


@frozen
class State:
    """What came of it so far.

    Attributes:
        n_turns: that can be played.
        played: how many of them were, to their end.
        misses: requests that no turn answered.
        unused: turns that were not played, and faults that did not happen.
        warnings: how requests differed from what they were answered with, where a rule says "warn".
        recorded: how many turns were answered by the upstream.
    """

    n_turns: int = 0
    played: int = 0
    misses: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    recorded: int = 0


class Running(Protocol):
    """A server in the background, in a thread or a process."""

    def start(self) -> Listening:
        """Return once it listens.

        Raises:
            BackgroundFailed: it cannot be.
        """
        ...

    def state(self) -> State: ...

    def stop(self) -> State:
        """End it, and return what came of it. To stop it again changes nothing.

        Raises:
            BackgroundFailed: it ended before, by itself, or does not end.
        """
        ...


@frozen
class _Answering:
    """What answers, and what its sessions are."""

    backend: Backend
    new_session: Callable[[], SessionLike]
    state: Callable[[], State]
    recording: NewRecording | None = None
    key_variables: tuple[str, ...] = ()


@mutable(eq=False)
class BackgroundThread:
    """Runs in a daemon thread. Any thread may call it, one with an event loop too: a call takes about a millisecond."""

    setup: Setup
    _started: "Future[Listening]" = field(init=False, factory=Future)
    _thread: threading.Thread = field(init=False)
    _answering: _Answering = field(init=False)
    _token: trio.lowlevel.TrioToken = field(init=False)
    _shutdown: trio.Event = field(init=False, factory=trio.Event)
    _failure: Exception | None = field(init=False, default=None)

    def start(self) -> Listening:
        names = ", ".join(path.name for path in self.setup.fixtures)
        self._thread = threading.Thread(target=self._main, name=f"turntape stub {names}".strip(), daemon=True)
        self._thread.start()
        try:
            return self._started.result()
        except (ReplayError, SpecError) as exc:
            raise BackgroundFailed(str(exc)) from exc
        except click.ClickException as exc:
            raise BackgroundFailed(exc.format_message()) from exc
        except OSError as exc:
            raise BackgroundFailed(f"127.0.0.1 cannot be listened on: {exc.strerror or exc}") from exc

    def state(self) -> State:
        if not self._thread.is_alive():
            return self._answering.state()
        return self._call(self._answering.state)

    def stop(self) -> State:
        if self._thread.is_alive():
            self._call(self._shutdown.set)
            self._thread.join(STOP_S)
            if self._thread.is_alive():
                raise BackgroundFailed(f"The stub did not end within {STOP_S:g} s.")
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise BackgroundFailed(f"The stub ended by itself: {failure!r}") from failure
        return self._answering.state()

    def _call(self, function: Callable[[], T]) -> T:
        """Call it in the server's loop, between two steps of its tasks."""
        answer = Future[T]()

        def answered() -> None:
            try:
                answer.set_result(function())
            except Exception as exc:  # noqa: BLE001 - whoever asked gets it
                answer.set_exception(exc)

        try:
            self._token.run_sync_soon(answered)
            return answer.result(STOP_S)
        except (trio.RunFinishedError, TimeoutError):  # it ended meanwhile: nothing else uses it now
            return function()

    def _main(self) -> None:
        try:
            trio.run(self._run)
        except Exception as exc:  # noqa: BLE001 - start() or stop() raises it
            self._failure = _single(exc)
        finally:
            if not self._started.done():
                self._started.set_exception(self._failure or BackgroundFailed("The stub ended before it listened."))

    async def _run(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with _answering(self.setup) as answering, trio.open_nursery() as beside:
            self._answering = answering
            if answering.recording:
                beside.start_soon(answering.recording.keep_flushed)
            async with trio.open_nursery() as servers:
                server = partial(
                    serve,
                    ServerSettings(grace_s=GRACE_S),
                    new_session=answering.new_session,
                    backend=answering.backend,
                    store=MemoryStore(),
                    shutdown=self._shutdown,
                )
                port: int = await servers.start(server)
                model = next(iter(answering.backend.models), "")
                self._started.set_result(Listening(port, model, answering.key_variables))
            beside.cancel_scope.cancel()


def _single(exc: Exception) -> Exception:
    """What stands alone in groups of one, as nurseries raise them."""
    while isinstance(exc, ExceptionGroup) and len(exc.exceptions) == 1:
        exc = exc.exceptions[0]
    return exc


@asynccontextmanager
async def _answering(setup: Setup) -> AsyncIterator[_Answering]:
    played = FixtureBackend.load(setup.fixtures, **setup.options) if setup.fixtures else None
    if setup.out is None:
        assert played is not None
        yield _Answering(played, played.new_session, partial(_state, played))
        return
    tables = config.reread(setup.tables) if setup.tables else Tables()
    model = Model(backend=_backend(setup.upstream, tables), model="", backend_key_file=None)
    with NewRecording(setup.out, option="turntape_stub") as recording:
        async with open_router(model, tables) as (router, upstreams):
            keys = tuple({agents.BACKEND_KEY_VARIABLE, *upstreams.key_variables})
            state = partial(_state, played, recording)
            if played is None:
                yield _Answering(router, recording.session, state, recording, keys)
            else:
                played.fallback = router
                new_session = partial(played.new_session, partial(recording.session, rules=played.rules))
                yield _Answering(played, new_session, state, recording, keys)
    recording.outcome()  # raises if it was cut short


def _backend(upstream: str, tables: Tables) -> BackendSpec:
    """A URL alone is that of a Responses server, as for ``turntape stub --upstream``."""
    bare = upstream.partition("://")[0] in AT_URL["responses"]
    return BackendSpec.parse(f"responses+{upstream}" if bare else upstream, tables.backends)


def _state(backend: FixtureBackend | None, recording: NewRecording | None = None) -> State:
    if backend is None:
        return State(recorded=recording.tape.n_turns if recording else 0)
    return State(
        n_turns=backend.n_takes,
        played=backend.n_played,
        misses=tuple(backend.misses),
        unused=tuple(backend.unused()),
        warnings=tuple(backend.warnings.values()),
        recorded=len(backend.asked_elsewhere),
    )
