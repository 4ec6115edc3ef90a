"""What of a fixture a drive plays: its turns in threads, what each adds, and what each waits for."""

import math
from collections.abc import Iterator, Sequence

from attrs import define, field, frozen

from turntape.core.canonical import Fold, Item
from turntape.core.context import Context
from turntape.core.seam import Opened
from turntape.replay.errors import ReplayError
from turntape.replay.fixture import Fixture
from turntape.replay.lines import Relayed, Step
from turntape.replay.reconstruction import not_replayable
from turntape.replay.takes import Take, takes

from .report import LeftOut, Played

MAX_FACTOR = 1000.0
"""Of tool time; ours."""

SLACK_S = 1e-4
"""Sessions are placed by wall clocks, in floating point: turns that are nearer to each other than this touch."""


@define(eq=False)
class Turn:
    """One recorded sample that is played.

    Attributes:
        number: in recorded order, from 1.
        thread: number of the conversation that it continues, from 1.
        began, ended: seconds since the first turn of the fixture began, as recorded.
        before: the turn that it continues; None for the first of a thread, which sends all that it had.
        new: what it adds to ``before`` and its answer.
        after: turns that must be over before it begins.
        gap_s: seconds from the end of the last of ``after`` to its beginning, as recorded.
    """

    number: int
    take: Take
    thread: int
    began: float
    ended: float
    before: "Turn | None"
    new: tuple[Item, ...]
    after: tuple["Turn", ...] = ()
    gap_s: float = 0.0

    @property
    def where(self) -> str:
        return self.take.where

    @property
    def everything(self) -> tuple[Item, ...]:
        """The whole recorded conversation that it answers."""
        return self.take.start.context.items_after(None)


@define(eq=False)
class Course:
    """Everything of one fixture.

    Attributes:
        threads: each in its order. A conversation that is forked, compacted or begun anew is another thread.
    """

    name: str
    turns: list[Turn] = field(factory=list)
    threads: list[list[Turn]] = field(factory=list)
    left_out: list[LeftOut] = field(factory=list)

    @classmethod
    def of(cls, fixture: Fixture) -> "Course":
        """
        Raises:
            ReplayError: it cannot be replayed, or holds no turn that ended well.
        """
        course, found, walls = cls(fixture.name), list[tuple[float, float, Take]](), _walls(fixture)
        first = min(walls.values(), default=0.0)
        for take in takes(fixture):
            began = walls.get(take.session, first) - first + take.began
            if take.failure is not None:
                course.left_out.append(LeftOut(where=take.where, reason=f"it failed: {take.failure.code}"))
            elif not take.whole:
                course.left_out.append(LeftOut(where=take.where, reason="it was cancelled, or cut off"))
            else:
                found.append((began, began + take.duration_s, take))
        lost = not_replayable(fixture)
        named = {f"{fixture.name}:{one.line}" for one in lost}
        course.left_out = [one for one in course.left_out if one.where not in named]
        course.left_out += [LeftOut(where=f"{fixture.name}:{one.line}", reason=one.problem) for one in lost]
        if not found:
            why = "".join(f"\n  {one.where}: {one.reason}" for one in course.left_out)
            raise ReplayError(f"There is nothing to drive: {fixture.name} holds no turn that ended well.{why}")
        found.sort(key=lambda one: one[0])  # stable: the file's order decides between equals
        origin, endings = found[0][0], _Endings()
        for began, ended, take in found:
            course._add(take, round(began - origin, 6), round(ended - origin, 6), endings)
        return course

    def _add(self, take: Take, began: float, ended: float, endings: "_Endings") -> None:
        before, new = endings.continued(take.start.context, began)
        thread = before.thread if before is not None else len(self.threads) + 1
        turn = Turn(len(self.turns) + 1, take, thread, began, ended, before, new)
        turn.after = tuple(self._awaited(turn))
        turn.gap_s = max(0.0, round(began - max((other.ended for other in turn.after), default=0.0), 6))
        if before is None:
            self.threads.append([])
        self.threads[thread - 1].append(turn)
        self.turns.append(turn)
        endings.note(turn)

    def _awaited(self, turn: Turn) -> Iterator[Turn]:
        """The turn that it continues, or the one that ended last before a thread began; and the last of each thread that
        ran its whole length in between: a sub-agent, whose end was waited for."""
        latest = turn.began + SLACK_S
        first = turn.before
        if first is None:
            over = (other for other in self.turns if other.ended <= latest)
            first = max(over, key=lambda other: other.ended, default=None)
        if first is None:
            return
        yield first
        for thread in self.threads:
            if first.ended - SLACK_S <= thread[0].began and thread[-1].ended <= latest and thread[-1] is not first:
                yield thread[-1]

    def played(self) -> Played:
        return Played(
            fixture=self.name, n_turns=len(self.turns), n_threads=len(self.threads), left_out=tuple(self.left_out)
        )

    @property
    def wall_s(self) -> float:
        """From the first turn's beginning to the last one's end, as recorded."""
        return max(turn.ended for turn in self.turns)


@define(eq=False)
class _Endings:
    """Turns by the conversation that each left, its own answer included."""

    _turns: dict[str, list[Turn]] = field(factory=dict)
    _continued: set[int] = field(factory=set)

    def note(self, turn: Turn) -> None:
        fold = turn.take.start.context.fold
        for item in turn.take.said():
            fold = fold.add(item)
        if fold.key != turn.take.start.context.fold.key:  # an answer of nothing cannot be told from its own question
            self._turns.setdefault(fold.key, []).append(turn)
        if turn.before is not None:
            self._continued.add(turn.before.number)

    def continued(self, context: Context, began: float) -> tuple[Turn | None, tuple[Item, ...]]:
        """The turn that ``context`` goes on from, and what it adds; all that there is, if it goes on from none."""
        new: tuple[Item, ...] = ()
        for link in context.links():
            for n, key in _states(link):
                turns = [turn for turn in self._turns.get(key, ()) if self._may_go_on(turn, began)]
                if turns and any(item.type != "reasoning" for item in (*link.items[n:], *new)):
                    return turns[-1], (*link.items[n:], *new)
            new = (*link.items, *new)
        return None, new

    def _may_go_on(self, turn: Turn, began: float) -> bool:
        return turn.ended <= began + SLACK_S and turn.number not in self._continued


def _walls(fixture: Fixture) -> dict[int, float]:
    """When each session began, in seconds since 1970."""
    walls = dict[int, float]()
    for line in fixture.lines:
        match line:
            case Step(session=session, event=Opened(wall=wall)) | Relayed(session=session, wall=wall):
                walls[session] = wall
    return walls


def _states(link: Context) -> Sequence[tuple[int, str]]:
    """After how many of a link's items the conversation has which key, the longest first."""
    fold = link.parent.fold if link.parent is not None else Fold()
    states = list[tuple[int, str]]()
    for n, item in enumerate(link.items, 1):
        fold = fold.add(item)
        states.append((n, fold.key))
    return states[::-1]


@frozen
class ToolTime:
    """What becomes of the recorded time between turns.

    Attributes:
        factor: 1 as recorded, 0 none.
    """

    factor: float

    @classmethod
    def parse(cls, text: str) -> "ToolTime":
        """Raises ``ValueError``, which says what can be written."""
        if text in ("recorded", "zero"):
            return cls(1.0 if text == "recorded" else 0.0)
        try:
            factor = float(text.removeprefix("x")) if text.startswith("x") else math.nan
        except ValueError:
            factor = math.nan
        if not 0 <= factor <= MAX_FACTOR:
            raise ValueError(
                f"{text[:32]!r} is no tool time; write recorded, zero, or a factor such as x0.5, which halves it"
            )
        return cls(factor)

    def __str__(self) -> str:
        return {1.0: "recorded", 0.0: "zero"}.get(self.factor, f"x{self.factor:g}")
