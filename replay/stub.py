"""A fixture as backend: the recorded take, to the same conversation and settings only. Nothing is guessed."""

import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from pathlib import Path
from typing import Any

import orjson
import trio
from attrs import define, field

from turntape.core.seam import Sampled, SampleFailed, Started, StartSample
from turntape.core.session import Session
from turntape.transport.backends.base import Backend, BackendError, Batch
from turntape.transport.driver import SessionLike

from .differences import differences, shown
from .errors import ReplayError
from .fixture import Fixture
from .pacing import Pace
from .packing import digest
from .secrets import DEFAULT, Masker
from .stub_faults import MIDWAY, ON_THE_CONNECTION, Fault, Faults, first_half
from .stub_library import Library, Recorded
from .stub_misses import COMMAND_LINE, Ways, no_answer, too_early
from .stub_order import PATIENCE_S, Order
from .stub_runs import Choice, Run, Runs
from .stub_session import StubSession
from .substitution import Substitution
from .takes import NewSession, Take

HOLD_S = 30.0
"""How long a take without an end waits for its client to leave, as the recorded one did; ours."""


@define(eq=False)
class FixtureBackend:
    """Answers from recordings.

    Attributes:
        models: those recorded.
        pace: how fast takes are played.
        misses: what was asked and not found; a stub that ends with any has failed.
        warnings: how requests differed from what they were answered with, where a rule says "warn"; each once.
        n_asked: samples that were asked for, found or not.
        asked_elsewhere: what was not found, and answered by ``fallback``.
        fallback: answers what is not recorded; None refuses it. Nothing else ever opens a connection.
        on_miss: told of each miss as it happens.
        on_note: told of each warning, fault and repeated answer.
        ways: how misses say that something may differ.
    """

    models: tuple[str, ...]
    pace: Pace
    faults: Faults
    misses: list[str] = field(factory=list)
    warnings: dict[str, str] = field(factory=dict)  # by what differs
    n_asked: int = 0
    asked_elsewhere: list[str] = field(factory=list)
    fallback: Backend | None = None
    on_miss: Callable[[str], object] | None = None
    on_note: Callable[[str], object] | None = None
    ways: Ways = COMMAND_LINE
    _library: Library = field(factory=Library)
    _runs: Runs = field(factory=lambda: Runs(0))
    _order: Order = field(factory=Order)
    _has_sessions: bool = False
    _played: dict[str, tuple[Run, Recorded]] = field(
        factory=dict
    )  # by sample id, until its client is known to have heard

    @classmethod
    def load(
        cls,
        paths: Iterable[str | Path | Fixture],
        *,
        rules: Sequence[Any] = (),
        speed: float | str | Pace = math.inf,
        runs: int | None = 1,
        faults: Iterable[str | Fault] = (),
        masker: Masker = DEFAULT,
        root: str | Path | None = None,
        new_session: NewSession = Session,
    ) -> "FixtureBackend":
        """
        Args:
            rules: hold for every fixture, after its own.
            speed: how many times faster than recorded, infinite for no waiting at all; or as ``--speed`` writes it.
            runs: how often the whole recording can be played; None for any number of times.
            faults: as ``--fault`` writes them.
            masker: what was hidden when the fixtures were recorded, known shapes at least.
            root: files in this folder are named from there in messages.

        Raises:
            ReplayError: a fixture cannot be read, its rules cannot be used, it holds nothing to play, or an option is
                none.
        """
        pace = Pace.of(speed)
        if runs is not None and runs < 1:
            raise ReplayError(f"The number of runs should be 1 or more, but it is {runs}.")
        library = Library(rules, new_session, masker, Path(root) if root is not None else None)
        library.add_all(paths)
        if not library.n_turns:
            names = ", ".join(volume.name for volume in library.volumes) or "no file"
            raise ReplayError(f"There is nothing to play: {names} holds no finished turn.")
        chosen = Faults.at(
            faults,
            {volume.name for volume in library.volumes if volume.n_turns},
            lambda name: [(one.number, one.order) for one in library.read_named(name)],
        )
        return cls(tuple(library.models), pace, chosen, library=library, runs=Runs(library.n_turns, runs))

    @property
    def n_takes(self) -> int:
        """How many turns can be played, each of them once in each run."""
        return self._library.n_turns * self.n_runs

    @property
    def n_played(self) -> int:
        """How many were played to their end."""
        return sum(len(run.played) for run in self._runs.begun)

    @property
    def n_runs(self) -> int:
        """How many runs there were to be; where any number could be, how many began."""
        return self._runs.at_most or max(1, len(self._runs.begun))

    @property
    def not_replayable(self) -> list[str]:
        """What a relay recorded and no take can say, a line for each."""
        return self._library.not_replayable

    @property
    def doubts(self) -> list[str]:
        """Settings that the rules it was loaded with name, and that neither the API nor a recording has."""
        return self._library.doubts

    @property
    def rules(self) -> list[Any]:
        """Every rule that requests were compared under, for a recording of the run."""
        return self._library.rules_used

    def new_session(self, inner: Callable[[], SessionLike] = Session) -> StubSession:
        """A session for one client of this stub. Faults of the connection, and answers that were lost on the way to a
        client, need it.

        Args:
            inner: what it wraps.
        """
        self._has_sessions = True
        return StubSession(inner(), self)

    def sample(self, start: StartSample) -> AbstractAsyncContextManager[AsyncIterator[Batch]]:
        if self.fallback is not None:
            return self._recorded_or_asked(start, self.fallback)
        # no scope is open where this generator yields, so it needs no task of its own, which would double a turn's cost
        return aclosing(self._recorded(start))

    async def _recorded(self, start: StartSample) -> AsyncGenerator[Batch, None]:
        found, miss = await self._looked_up(start)
        if found is None:
            raise self._missed(miss)
        async with aclosing(self._begun(start, *found)) as batches:
            async for batch in batches:
                yield batch

    @trio.as_safe_channel
    async def _recorded_or_asked(self, start: StartSample, fallback: Backend) -> AsyncGenerator[Batch, None]:
        found, miss = await self._looked_up(start)
        if found is not None:
            async with aclosing(self._begun(start, *found)) as recorded:
                async for batch in recorded:
                    yield batch
            return
        self._note(f"asked elsewhere, and recorded: {miss}")
        try:
            async with fallback.sample(start) as batches:
                async for batch in batches:
                    yield batch
        except* BackendError:
            self._missed(miss)
            raise
        self.asked_elsewhere.append(miss)

    async def _looked_up(self, start: StartSample) -> tuple[tuple[Choice, Take] | None, str]:
        """What is to answer, or else why nothing does."""
        self.n_asked += 1
        try:
            choice, miss = await self._found(start)
            return (None if choice is None else (choice, choice[1].take)), miss
        except ReplayError as exc:
            raise self._missed(f"A recording that could answer cannot be played: {exc}") from None

    async def _begun(self, start: StartSample, choice: Choice, take: Take) -> AsyncGenerator[Batch, None]:
        run, recorded, _ = choice
        self._say_what_is_odd(choice)
        self._runs.begin(start, choice)
        self._order.moved()
        if self._has_sessions:
            self._played[start.sample_id] = run, recorded
        try:
            async with aclosing(self._play(start, choice, take)) as batches:
                async for batch in batches:
                    yield batch
        finally:
            run.playing.discard(recorded.order)
            if recorded.order in run.played:
                run.ended[recorded.order] = trio.current_time()
            self._order.moved()

    def unused(self) -> list[str]:
        """One line for each turn that was never played to its end; one for a fixture, or a run, of which none was."""
        lines: list[str] = []
        several = self.n_runs > 1
        turns = self._library.turns
        for run in self._runs.counted:
            prefix = f"run {run.number}: " if several else ""
            if several and not run.begun:
                lines.append(f"run {run.number}: did not begin")
                continue
            for volume, own in turns.items():
                left = [one for one in own if one.order not in run.played]
                if volume.n_turns and len(left) == len(own):
                    lines.append(
                        f"{prefix}{volume.name}: none of its {volume.n_turns} turns was played"
                        if volume.n_turns > 1
                        else f"{prefix}{volume.name}: its one turn was not played"
                    )
                else:
                    lines += [f"{prefix}{one.where}: this turn was not played" for one in left]
        return lines + [f"fault {fault}: it never happened" for fault in self.faults.left]

    async def aclose(self) -> None:
        """Nothing is held."""

    # --- what sessions tell -------------------------------------------------------------------------------

    def heard(self, sample_ids: Iterable[str]) -> None:
        for sample_id in sample_ids:
            self._played.pop(sample_id, None)

    def unheard(self, sample_ids: Iterable[str]) -> None:
        for sample_id in sample_ids:
            if (found := self._played.pop(sample_id, None)) is not None and found[1].order in found[0].played:
                self._runs.lose(*found)

    # --- one sample ---------------------------------------------------------------------------------------

    async def _found(self, start: StartSample) -> tuple[Choice | None, str]:
        """What is to answer, with its take at hand; or else why nothing does.

        Raises:
            ReplayError: a recording that could answer cannot be played.
        """
        await self._library.read_for(start)
        matching = self._library.matching(start)
        choice = self._runs.choose(start, matching)
        if choice is None and await self._library.read_all():
            matching = self._library.matching(start)
            choice = self._runs.choose(start, matching)
        self._runs.n_turns = self._library.n_turns  # which is exact for what was read
        if choice is not None:
            return choice, ""
        early = self._runs.ahead(matching)
        return None, self._explain(start) if early is None else too_early(early)

    async def _play(self, start: StartSample, choice: Choice, take: Take) -> AsyncGenerator[Batch, None]:
        run, recorded, asked = choice
        began = trio.current_time()
        fault = self.faults.next(recorded.order) if take.whole else None
        if fault is not None and fault.kind not in MIDWAY:
            raise self._strike(start, recorded, fault)
        offsets = [at for at, event in take.events if isinstance(event, Sampled)]
        batches = Substitution.between(recorded.learned, asked.reading.learned).applied(take)
        script = [*zip(offsets, batches, strict=True)]
        if fault is not None:
            script = first_half(script)
        accepted = next((at for at, event in take.events if isinstance(event, Started)), None)
        joined = self.pace.joined and script  # the first increments say that it was accepted
        if (accepted is not None and not joined) or fault is not None:
            await _until(began + self.pace.due(accepted or 0.0))
            yield ()
        last = len(script) and take.finish is not None and fault is None
        for at, batch in _with_last(self.pace.timed(script)):
            await _until(began + at[0])
            if last and at[1]:
                await self._in_order(run, recorded, began)
                run.played.add(recorded.order)
            yield batch
        if fault is not None:
            raise self._strike(start, recorded, fault)
        if take.failure is not None:
            await _until(began + self.pace.due(take.duration_s))
            run.played.add(recorded.order)
            raise _failed_as(take.failure)
        if not take.whole:
            await trio.sleep(HOLD_S)
            run.spent.add(recorded.order)
            raise self._missed(
                f"The recording of turn {recorded.number}, at {recorded.where}, was cut off after what has been played: "
                f"its client left there, and this one has not, in {HOLD_S:g} s."
            )

    async def _in_order(self, run: Run, recorded: Recorded, since: float) -> None:
        """Wait until this answer may end, where its end would not come in its own time."""
        beside = self._library.beside(recorded)
        if not beside or self.pace.speed == 1.0:
            return
        missed = await self._order.wait(run, recorded, beside, since)
        if missed is not None:
            self._note(
                f"the end of turn {recorded.number} was held for {PATIENCE_S:g} s: turn {missed.number}, at {missed.where}, "
                "came before it in the recording"
            )

    def _strike(self, start: StartSample, recorded: Recorded, fault: Fault) -> BackendError:
        self._note(f"fault {fault}: at turn {recorded.number}, {recorded.where}")
        if fault.kind in ON_THE_CONNECTION and self._has_sessions:
            self.faults.struck[start.sample_id] = fault
        return fault.error()

    def _say_what_is_odd(self, choice: Choice) -> None:
        run, recorded, asked = choice
        where = f"turn {recorded.number}, at {recorded.where}"
        if recorded.order in run.played:
            self._note(f"asked again: {where}; whoever asked before left without a close frame")
        if digest(asked.warned) == recorded.warned:
            return
        found = [*differences(orjson.loads(recorded.asked.warned), orjson.loads(asked.warned))]
        if (what := shown(found)) not in self.warnings:
            self.warnings[what] = f"{where}, is played although this differs, as its rules allow:{what}"
            self._note(f"warning: {self.warnings[what]}")

    def _note(self, text: str) -> None:
        if self.on_note is not None:
            self.on_note(text)

    def _missed(self, miss: str) -> BackendError:
        self.misses.append(miss)
        if self.on_miss is not None:
            self.on_miss(miss)
        return BackendError(miss, code="fixture_miss", status=400)

    def _explain(self, start: StartSample) -> str:
        played = [run.played for run in self._runs.counted]
        miss = no_answer(
            self._library.shelves.values(),
            start,
            n_runs=self._runs.at_most,
            played=frozenset(set.intersection(*map(set, played))),
            ways=self.ways,
        )
        unread = (f"Not looked at, since it cannot be played: {problem}" for problem in self._library.broken)
        return "\n  ".join((miss, *unread))


async def _until(deadline: float) -> None:
    """Wait for a time on Trio's clock; one that is past or now costs nothing."""
    if deadline > trio.current_time():
        await trio.sleep_until(deadline)


def _with_last(script: Iterator[tuple[float, Batch]]) -> Iterator[tuple[tuple[float, bool], Batch]]:
    """Each batch, and whether it is the last."""
    held: tuple[float, Batch] | None = None
    for at, batch in script:
        if held is not None:
            yield (held[0], False), held[1]
        held = at, batch
    if held is not None:
        yield (held[0], True), held[1]


def _failed_as(failure: SampleFailed) -> BackendError:
    return BackendError(
        failure.message,
        code=failure.code,
        status=failure.status,
        param=failure.param,
        retry_after=failure.retry_after,
    )
