"""The command ``stub``: a mock server for CI, alone or around the agent that is tested."""

import os
import shlex
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import click
import orjson
import trio
from attrs import evolve, field, frozen
from click.core import ParameterSource

from turntape.core.session import Session
from turntape.replay.errors import ReplayError
from turntape.replay.rules import load_rules
from turntape.replay.stub import FixtureBackend
from turntape.transport.driver import SessionLike
from turntape.transport.memory_store import MemoryStore

from . import agents
from .commands import announce, open_router, start
from .options import Listen, Model, Secrets, tables_of, take
from .recording import SILENCE_S, NewRecording
from .secrecy import Secrecy
from .serving import Address, Served, run
from .specs import BackendSpec, SpecError
from .tables import Tables


@frozen
class Elsewhere:
    """What answers requests that are not recorded, and where the run is recorded."""

    model: Model
    tables: Tables
    out: Path


@frozen
class Played:
    """How recordings are to be played.

    Attributes:
        rules: a file with rules that hold for every fixture, after its own.
        ignore: settings that are not compared; ``warn`` those that may differ, which is then said.
        speed: as ``Pace.of`` reads it.
        runs: how often; None for any number of times.
        faults: as ``Fault.parse`` reads them.
        secrecy: what is hidden in requests, as it was when they were recorded.
    """

    fixtures: tuple[Path, ...]
    rules: Path | None = None
    ignore: tuple[str, ...] = ()
    warn: tuple[str, ...] = ()
    speed: str = "instant"
    runs: int | None = 1
    faults: tuple[str, ...] = ()
    secrecy: Secrecy = field(factory=Secrecy)

    def load(self) -> FixtureBackend:
        """
        Raises:
            click.UsageError: a fixture, a rule, a fault or the speed is none.
        """
        try:
            rules = load_rules(self.rules) if self.rules else []
            policies = (("ignore", self.ignore), ("warn", self.warn))
            rules += [{"rule": rule, "fields": [*fields]} for rule, fields in policies if fields]
            return FixtureBackend.load(
                self.fixtures,
                rules=rules,
                speed=self.speed,
                runs=self.runs,
                faults=self.faults,
                masker=self.secrecy.masker(),
            )
        except ReplayError as exc:
            raise click.UsageError(str(exc)) from exc


def played(values: Mapping[str, Any]) -> Played:
    """The options of ``stub_options`` that say how recordings are played."""
    return Played(
        fixtures=values["fixtures"],
        rules=values["rules"],
        ignore=values["ignore"],
        warn=values["warn"],
        speed=values["speed"],
        runs=values["runs"] or None,
        faults=values["fault"],
        secrecy=Secrecy.of(take(Secrets, dict(values)), warns=False),
    )


def elsewhere(context: click.Context, values: Mapping[str, Any]) -> Elsewhere | None:
    """What is to answer misses; None if they are refused.

    Raises:
        click.UsageError: what is to answer, or the new file, is not named, or is named for nothing.
    """

    def given(name: str) -> bool:
        return context.get_parameter_source(name) is not ParameterSource.DEFAULT

    if values["on_miss"] != "record":
        for name in ("out", "upstream", "backend", "model", "backend_key_file"):
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                raise click.UsageError(
                    f"--{name.replace('_', '-')} goes with --on-miss record: without it nothing else is asked"
                )
        return None
    out, upstream, model, tables = values["out"], values["upstream"], take(Model, dict(values)), tables_of(context)
    if out is None:
        raise click.UsageError("--on-miss record needs --out FILE, a new file for the recording of the run")
    if upstream:
        try:
            model = evolve(model, backend=BackendSpec.parse(f"responses+{upstream}"))
        except SpecError as exc:
            raise click.UsageError(f"--upstream: {exc}") from exc
    elif not given("backend"):
        raise click.UsageError("--on-miss record needs --upstream URL, or --backend, to say what answers")
    return Elsewhere(model, tables, out)


def stub(
    listen: Listen,
    played: Played,
    *,
    strict: bool,
    as_json: bool,
    elsewhere: Elsewhere | None = None,
    agent: tuple[str, ...] = (),
) -> int:
    """Answer from recordings until a signal, or until ``agent`` ends.

    Returns:
        The agent's exit code if that is not 0; else 1 if a request found no take, if the agent asked nothing, or under
        ``strict`` if a take was not asked for.
    """
    backend = played.load()
    backend.on_miss = lambda miss: click.echo(f"miss: {miss}", err=True)
    backend.on_note = lambda note: click.echo(note, err=True)
    for doubt in backend.doubts:
        click.echo(f"warning: {doubt}", err=True)
    for lost in backend.not_replayable:
        click.echo(f"not replayable: {lost}", err=True)
    hint = agents.Hint()
    with NewRecording(elsewhere.out, "--out", played.secrecy) if elsewhere else nullcontext() as recording:
        code = start(
            _stub,
            listen,
            backend,
            played,
            recording=recording,
            elsewhere=elsewhere,
            agent=agent,
            as_json=as_json,
            hint=hint,
        )
    if recording:
        click.echo(recording.outcome(), err=True)
    unused = backend.unused()
    for turn in unused:
        click.echo(f"not used: {turn}", err=True)
    unasked = bool(agent) and not backend.n_asked
    if unasked:
        click.echo("the agent asked nothing: does it read OPENAI_BASE_URL?" + hint.once(), err=True)
    if backend.misses and elsewhere is None:
        click.echo(_how_to_take_in(played.fixtures, agent), err=True)
    click.echo(summary(backend), err=True)
    if as_json:
        click.echo(orjson.dumps(result(backend, unused)), err=bool(agent))
    return code or (1 if backend.misses or unasked or (strict and unused) else 0)


def summary(backend: FixtureBackend) -> str:
    """What was played, in one line."""
    parts = [f"played {backend.n_played} of {_counted(backend.n_takes, 'turn', 'turns')}"]
    if backend.n_runs > 1:
        parts[0] += f" in {backend.n_runs} runs"
    parts.append(_counted(len(backend.misses), "miss", "misses"))
    if backend.asked_elsewhere:
        parts.append(f"{len(backend.asked_elsewhere)} asked elsewhere")
    if backend.warnings:
        parts.append(_counted(len(backend.warnings), "warning", "warnings"))
    return ", ".join(parts)


def result(backend: FixtureBackend, unused: Sequence[str]) -> dict[str, Any]:
    """The same for programs."""
    return {
        "n_turns": backend.n_takes,
        "n_played": backend.n_played,
        "n_runs": backend.n_runs,
        "misses": backend.misses,
        "warnings": [*backend.warnings.values()],
        "unused": [*unused],
        "not_replayable": backend.not_replayable,
        "asked_elsewhere": backend.asked_elsewhere,
    }


def _how_to_take_in(fixtures: Sequence[Path], agent: Sequence[str]) -> str:
    """What a miss is for whom the agent's change is right."""
    files = " ".join(shlex.quote(str(fixture)) for fixture in fixtures)
    return (
        "if the agent is right as it is, record what is new: "
        f"turntape stub {files} --on-miss record --backend BACKEND --out NEW.jsonl{' -- AGENT' if agent else ''}"
    )


def _counted(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"


async def _stub(
    listen: Listen,
    keys: tuple[str, ...],
    backend: FixtureBackend,
    played: Played,
    *,
    recording: NewRecording | None,
    elsewhere: Elsewhere | None,
    agent: tuple[str, ...],
    as_json: bool,
    hint: agents.Hint,
) -> int:
    async with _fallback(backend, elsewhere) as key_variables:
        inner: Callable[[], SessionLike] = Session
        if recording:
            inner = partial(recording.session, rules=backend.rules)

        served = Served(
            listen=listen,
            keys=keys,
            new_session=partial(backend.new_session, inner),
            backend=backend,
            store=MemoryStore(),
            beside=partial(_beside, backend, recording, hint if agent else None),
        )
        model = next(iter(backend.models), "")

        def started(address: Address) -> None:
            notes = {"fixtures": ", ".join(map(str, played.fixtures)), "speed": str(backend.pace)}
            if elsewhere:
                notes["on miss"] = f"asks {elsewhere.model.backend}, and records the run in {elsewhere.out}"
            piped = as_json or bool(agent)
            announce(address, notes, listen=listen, keys=keys, model=model, piped=piped, agent=agent)
            hint.text = agents.hidden_codex(agent, url=address.local, model=model, websocket=listen.websocket)

        async def run_agent(address: Address) -> int:
            command = agents.launch(
                agent,
                url=address.local,
                key=keys[0] if keys else "",
                model=model,
                websocket=listen.websocket,
                environment=os.environ,
            )
            return await agents.run(command, without=key_variables)

        return await run(served, started=started, task=run_agent if agent else None)


@asynccontextmanager
async def _fallback(backend: FixtureBackend, elsewhere: Elsewhere | None) -> AsyncIterator[frozenset[str]]:
    """Let ``backend`` ask elsewhere, while this is open; without ``elsewhere`` nothing is connected to, ever.

    Yields:
        Variables that hold keys, which no agent may see.
    """
    if elsewhere is None:
        yield frozenset()
        return
    async with open_router(elsewhere.model, elsewhere.tables) as (router, upstreams):
        backend.fallback = router
        yield frozenset(upstreams.key_variables)


async def _beside(backend: FixtureBackend, recording: NewRecording | None, hint: agents.Hint | None) -> None:
    """
    Args:
        hint: for an agent that asks nothing; None without an agent.
    """
    async with trio.open_nursery() as nursery:
        if recording:
            nursery.start_soon(recording.keep_flushed)
        if hint is not None:
            await trio.sleep(SILENCE_S)
            if not backend.n_asked:
                click.echo(
                    f"warning: nothing has been asked yet, after {SILENCE_S:g} s; does the agent read OPENAI_BASE_URL, "
                    f"or was Codex given the -c overrides?{hint.once()}",
                    err=True,
                )
