"""What a server in the background answers from: recordings, a backend or another server whose answers are recorded, or both."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from attrs import evolve, field, frozen

from turntape.replay.errors import ReplayError
from turntape.replay.relay import server as relay_server
from turntape.replay.relay.relay import Relay
from turntape.replay.relay.upstream import Upstream
from turntape.replay.stub import FixtureBackend
from turntape.replay.stub_misses import Ways
from turntape.transport import server
from turntape.transport.backends.base import Backend
from turntape.transport.driver import SessionLike
from turntape.transport.guard import Guard
from turntape.transport.memory_store import MemoryStore
from turntape.transport.server import ServerSettings

from . import agents, config
from .commands import open_router
from .options import Model, Secrets
from .recording import NewRecording
from .secrecy import Secrecy
from .specs import AT_URL, BackendSpec, SpecError
from .tables import Tables

PYTEST = Ways(lambda fields: f"ignore={orjson.dumps([*fields]).decode()}", lambda rules: f"rules={rules}")
"""What is written into the call of ``turntape_stub``; an array of rules is the same in JSON and in Python."""

GRACE_S = 0.2
"""How long what is in flight may take once its caller is done; ours. It lets WebSockets be closed properly."""


@frozen
class Setup:
    """What the server is there for.

    Attributes:
        fixtures: played; none for a server that only records.
        options: how they are played, as ``FixtureBackend.load`` takes them.
        upstream: the backend that is asked for what is not in them; "" for none, and then no network.
        out: the recording of the whole run, a new file; given with an upstream.
        replaces: the recording whose place the new one will take: it keeps the rules of that.
        tables: a turntape.toml that may name the upstream.
        secret_env: variables whose values are hidden in what is recorded, and in requests before they are compared.
    """

    fixtures: tuple[Path, ...] = ()
    options: dict[str, Any] = field(factory=dict)
    upstream: str = ""
    out: Path | None = None
    replaces: Path | None = None
    tables: Path | None = None
    secret_env: tuple[str, ...] = ()


@frozen
class Listening:
    """How it is reached.

    Attributes:
        model: for agents that are told one; "" leaves the choice to them.
        relayed: another server checks the client's key.
        key_variables: environment variables with keys of the upstream, which no agent may see.
    """

    port: int
    model: str = ""
    relayed: bool = False
    key_variables: tuple[str, ...] = ()


@frozen
class State:
    """What came of it so far.

    Attributes:
        n_turns: that can be played.
        played: how many of them were, to their end.
        misses: requests that no turn answered.
        unused: turns that were not played, and faults that did not happen.
        warnings: how requests differed from what they were answered with, where a rule says "warn"; and what of a
            relay's recording cannot be played.
        recorded: how many turns were answered by the upstream.
    """

    n_turns: int = 0
    played: int = 0
    misses: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    recorded: int = 0


@frozen
class Answering:
    """It is open, and ready to be served.

    Attributes:
        serve: takes ``shutdown`` and ``task_status``, and starts with its port.
        recording: to be flushed while it runs.
    """

    serve: Callable[..., Awaitable[None]]
    state: Callable[[], State]
    recording: NewRecording | None = None
    model: str = ""
    relayed: bool = False
    key_variables: tuple[str, ...] = ()

    def listening(self, port: int) -> Listening:
        return Listening(port, self.model, self.relayed, self.key_variables)


@asynccontextmanager
async def open_answering(setup: Setup) -> AsyncIterator[Answering]:
    """
    Raises:
        ReplayError: a fixture cannot be played.
        SpecError, click.ClickException: the upstream cannot be used, or the recording not be written.
    """
    secrecy = Secrecy.of(Secrets(secret_env=setup.secret_env), warns=False)
    played = None
    if setup.fixtures:
        played = FixtureBackend.load(setup.fixtures, masker=secrecy.masker(), **setup.options)
        played.ways = PYTEST
    if setup.out is None:
        assert played is not None
        yield _served(played, played.new_session, partial(_state, played))
        return
    header = {"rules": rules} if (rules := _rules_of(setup.replaces)) else {}
    with NewRecording(setup.out, "turntape_stub", secrecy, header) as recording:
        if played is None and _is_url(setup.upstream):
            yield _relayed(setup.upstream, recording)
        else:
            async with _recorded(setup, played, recording) as answering:
                yield answering
    recording.outcome()  # raises if it was cut short


def _rules_of(path: Path | None) -> list[Any]:
    """What may differ from a recording, as people wrote it there. Presets come again with each client."""
    if path is None:
        return []
    try:
        rules = FixtureBackend.load([path]).rules
    except ReplayError:  # it cannot be played, which is a reason to record again
        return []
    return [rule for rule in rules if not isinstance(rule, str)]


def _served(backend: Backend, new_session: Callable[[], SessionLike], state: Callable[[], State]) -> Answering:
    serve = partial(
        server.serve,
        ServerSettings(grace_s=GRACE_S),
        new_session=new_session,
        backend=backend,
        store=MemoryStore(),
    )
    return Answering(serve, state, model=next(iter(backend.models), ""))


@asynccontextmanager
async def _recorded(setup: Setup, played: FixtureBackend | None, recording: NewRecording) -> AsyncIterator[Answering]:
    """A backend answers, or only what ``played`` does not."""
    tables = config.reread(setup.tables) if setup.tables else Tables()
    model = Model(backend=_backend(setup.upstream, tables), model="", backend_key_file=None)
    async with open_router(model, tables) as (router, upstreams):
        recording.keys = lambda: upstreams.keys
        state = partial(_state, played, recording)
        if played is None:
            answering = _served(router, recording.session, state)
        else:
            played.fallback = router
            new_session = partial(played.new_session, partial(recording.session, rules=played.rules))
            answering = _served(played, new_session, state)
        keys = (agents.BACKEND_KEY_VARIABLE, *sorted(upstreams.key_variables))
        yield evolve(answering, recording=recording, key_variables=keys)


def _relayed(url: str, recording: NewRecording) -> Answering:
    """Another server answers the client itself, which has a key for it."""
    try:
        upstream = Upstream.parse(url)
    except ValueError as exc:
        raise SpecError(f"the upstream: {exc}") from exc
    guard = Guard(frozenset(), frozenset(), "127.0.0.1")
    secrecy = recording.secrecy
    relay = Relay(upstream, recording.tape, guard, secrets=secrecy.values, names=secrecy.names)
    return Answering(
        partial(relay_server.serve, relay, grace_s=GRACE_S),
        partial(_state, None, recording),
        recording,
        relayed=True,
        key_variables=(agents.BACKEND_KEY_VARIABLE,),
    )


def _is_url(upstream: str) -> bool:
    return upstream.partition("://")[0] in AT_URL["responses"]


def _backend(upstream: str, tables: Tables) -> BackendSpec:
    """A URL alone is that of a Responses server, as for ``turntape stub --upstream``."""
    return BackendSpec.parse(f"responses+{upstream}" if _is_url(upstream) else upstream, tables.backends)


def _state(backend: FixtureBackend | None, recording: NewRecording | None = None) -> State:
    if backend is None:
        return State(recorded=recording.tape.n_turns if recording else 0)
    return State(
        n_turns=backend.n_takes,
        played=backend.n_played,
        misses=tuple(backend.misses),
        unused=tuple(backend.unused()),
        warnings=(
            *backend.doubts,
            *backend.warnings.values(),
            *(f"not replayable: {lost}" for lost in backend.not_replayable),
        ),
        recorded=len(backend.asked_elsewhere),
    )
