"""One run: a fixture's threads are played beside each other, as they were recorded, and each turn is judged."""

import itertools
from collections.abc import Callable, Sequence

import trio
from attrs import define, evolve, field, frozen

from turntape.core.canonical import Item

from .course import Course, ToolTime, Turn
from .judging import Answer, called, judge, judge_extra
from .pace import recorded_pace
from .player import Outcome, Player
from .probe import Probe
from .recorded_tools import Stretch, sendable
from .report import VERDICTS, Departure, Pace, RunTimings, RunVerdict, TurnTimings, TurnVerdict
from .wire import Server

MODES = ("forced", "free")
LEAVE_S = 2.0
"""How long a thread's goodbye may take."""


@frozen(kw_only=True)
class Settings:
    """How fixtures are played.

    Attributes:
        mode: one of ``MODES``.
        design: one of ``wire.DESIGNS``.
        model: asked for in place of the recorded ones; "" keeps them.
        repeat: how many times each fixture is played.
        parallel: runs at once.
    """

    mode: str = "forced"
    design: str = "create"
    tool_time: ToolTime = ToolTime(1.0)  # noqa: RUF009 - immutable
    model: str = ""
    repeat: int = 1
    parallel: int = 1


@frozen(eq=False)
class _Beyond:
    """A turn of a free thread in whose place nothing was recorded: the ``at``-th of its stretch, which ends with ``last``."""

    at: int
    last: Turn
    answer: Answer
    timings: TurnTimings


@define(eq=False)
class Run:
    """One fixture, played once.

    Args:
        probe: around the backend, if it is one of our own.
        on_turn: told of each turn that was judged.
    """

    number: int
    repeat: int
    course: Course
    settings: Settings
    server: Server
    probe: Probe | None = None
    on_turn: Callable[[TurnVerdict], object] = lambda verdict: None
    begun: bool = field(init=False, default=False)
    _began: float = field(init=False, default=0.0)
    _ended: dict[int, trio.Event] = field(init=False, factory=dict)
    _lost: set[int] = field(init=False, factory=set)  # turns that are never reached
    _left: set[int] = field(init=False, factory=set)  # turns at which the path was left: nothing follows them
    _judged: list[tuple[TurnVerdict, TurnTimings]] = field(init=False, factory=list)
    _beyond: list[_Beyond] = field(init=False, factory=list)
    _departures: list[Departure] = field(init=False, factory=list)

    async def play(self) -> None:
        """Play it to its end."""
        self._began, self.begun = trio.current_time(), True
        self._ended = {turn.number: trio.Event() for turn in self.course.turns}
        async with trio.open_nursery() as nursery:
            for thread in self.course.threads:
                nursery.start_soon(self._thread, thread)

    # --- one thread ---------------------------------------------------------------------------------

    async def _thread(self, thread: Sequence[Turn]) -> None:
        settings = self.settings
        player = Player(self.server, settings.design, settings.model, settings.mode == "forced", self.probe)
        try:
            await (self._forced(player, thread) if player.forced else self._free(player, thread))
        finally:
            for turn in thread:
                if not self._ended[turn.number].is_set():
                    self._lost.add(turn.number)
                    self._ended[turn.number].set()
            with trio.move_on_after(LEAVE_S, shield=True):
                await player.leave()

    async def _forced(self, player: Player, thread: Sequence[Turn]) -> None:
        for turn in thread:
            waited_s = await self._wait(turn)
            if waited_s is not None:
                self._note(turn, await player.play_recorded(turn), waited_s)

    async def _free(self, player: Player, thread: Sequence[Turn]) -> None:
        """The model goes its own way, as long as the recording can answer what it calls."""
        for stretch in Stretch.of_thread(thread):
            new = [*map(sendable, stretch.opening)]
            for at in itertools.count():
                turn = stretch.turns[at] if at < len(stretch.turns) else None
                waited_s = await self._wait(turn) if turn is not None else 0.0
                if waited_s is None:
                    return
                outcome = await player.play_new(turn or stretch.turns[-1], new)
                done = stretch.ends_with(outcome.calls)
                if turn is None:
                    self._note_beyond(stretch.turns[-1], at, outcome, waited_s)
                else:
                    self._note(stretch.turns[-1] if done else turn, outcome, waited_s)
                if outcome.answer.failure is not None:
                    return self._depart(stretch, turn, outcome, "The turn failed, and nothing can follow it.")
                if done:
                    self._pass(stretch)
                    break
                if not outcome.calls:
                    return self._depart(
                        stretch, turn, outcome, "The model was done before it had made all recorded calls."
                    )
                answered = stretch.answer(outcome.calls)
                if answered is None:
                    return self._depart(
                        stretch, turn, outcome, "The recording has no output for what the model called."
                    )
                new = answered

    async def _wait(self, turn: Turn) -> float | None:
        """Return when ``turn`` may begin, with the seconds that its tools took; None if it never may."""
        for other in turn.after:
            await self._ended[other.number].wait()
            if other.number in self._lost | self._left:
                return None
        pause_s = turn.gap_s * self.settings.tool_time.factor
        await trio.sleep(pause_s)
        return round(pause_s, 6)

    # --- what came of it ----------------------------------------------------------------------------

    def _note(self, turn: Turn, outcome: Outcome, waited_s: float) -> None:
        verdict = judge(turn, outcome.answer)
        self._judged.append((verdict, self._timings(turn.number, turn.thread, outcome, waited_s, turn)))
        self._ended[turn.number].set()
        self.on_turn(verdict)

    def _note_beyond(self, last: Turn, at: int, outcome: Outcome, waited_s: float) -> None:
        timings = self._timings(0, last.thread, outcome, waited_s)
        self._beyond.append(_Beyond(at, last, outcome.answer, timings))

    def _timings(
        self, number: int, thread: int, outcome: Outcome, waited_s: float, turn: Turn | None = None
    ) -> TurnTimings:
        return TurnTimings(
            turn=number,
            thread=thread,
            began_s=round(outcome.reply.heard.asked_at - self._began, 6),
            waited_s=waited_s,
            overhead_before_s=outcome.overhead_before_s,
            overhead_after_s=outcome.overhead_after_s,
            got=outcome.pace,
            recorded=recorded_pace(turn.take) if turn is not None else Pace(),
        )

    def _pass(self, stretch: Stretch) -> None:
        """The stretch is over, in however many turns."""
        for turn in stretch.turns:
            self._ended[turn.number].set()

    def _depart(self, stretch: Stretch, turn: Turn | None, outcome: Outcome, reason: str) -> None:
        at = turn or stretch.turns[-1]
        self._left.add(at.number)
        self._departures.append(
            Departure(
                turn=at.number,
                where=at.where,
                thread=at.thread,
                reason=reason,
                expected=called(turn.take.said()) if turn is not None else stretch.left,
                got=called(map(Item.of, outcome.calls)),
            )
        )

    def verdict(self) -> RunVerdict:
        turns = [verdict for verdict, _ in self._all()]
        return RunVerdict(
            run=self.number,
            fixture=self.course.name,
            repeat=self.repeat,
            counts=counted(turns),
            departures=tuple(sorted(self._departures, key=lambda departure: departure.turn)),
            not_reached=tuple(turn.where for turn in self.course.turns if turn.number in self._lost),
            turns=tuple(turns),
        )

    def timings(self, drive_began: float) -> RunTimings:
        turns = [timings for _, timings in self._all()]
        spans = [(turn.began_s, turn.began_s + (turn.got.took_s or 0.0)) for turn in turns]
        wall_s = max((end for _, end in spans), default=0.0)
        return RunTimings(
            run=self.number,
            began_s=round(self._began - drive_began, 6),
            wall_s=round(wall_s, 6),
            waited_s=round(wall_s - _covered(spans), 6),
            recorded_wall_s=self.course.wall_s,
            input_tokens=sum(turn.got.input_tokens or 0 for turn in turns),
            cached_tokens=sum(turn.got.cached_tokens or 0 for turn in turns),
            output_tokens=sum(turn.got.output_tokens or 0 for turn in turns),
            turns=tuple(turns),
        )

    def _all(self) -> list[tuple[TurnVerdict, TurnTimings]]:
        """Every turn; those beyond the recording are numbered after all others, thread by thread."""
        found = sorted(self._judged, key=lambda one: one[0].turn)
        beyond = sorted(self._beyond, key=lambda one: (one.last.number, one.at))
        for number, one in enumerate(beyond, len(self.course.turns) + 1):
            found.append((judge_extra(one.last, number, one.answer), evolve(one.timings, turn=number)))
        return found


def counted(turns: Sequence[TurnVerdict]) -> dict[str, int]:
    """How many turns have each verdict; those that none has are left out."""
    counts = {verdict: sum(turn.verdict == verdict for turn in turns) for verdict in VERDICTS}
    return {verdict: n for verdict, n in counts.items() if n}


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    """How much of the time is in at least one of ``spans``."""
    total, reached = 0.0, 0.0
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
