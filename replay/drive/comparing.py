"""Two reports of the same fixtures beside each other: what changed, and whether that is beyond the thresholds."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from attrs import asdict, evolve, frozen

from turntape.replay.errors import ReplayError

from .report import Report, RunTimings, RunVerdict, TurnTimings, TurnVerdict
from .table import aligned, seconds

COMPARISON = 1


class NotComparable(ReplayError):
    """The reports have no run in common."""


@frozen(kw_only=True)
class Thresholds:
    """What may differ.

    Attributes:
        max_ttft_ratio: the median over the turns of the second TTFT by the first; None for any.
        max_wall_ratio: the second wall time of all runs by the first; None for any.
        allow_departures: in the second report; None for as many as there are in the first.
        same_verdicts: each turn must have the verdict that it had.
    """

    max_ttft_ratio: float | None = None
    max_wall_ratio: float | None = None
    allow_departures: int | None = None
    same_verdicts: bool = True


@frozen(kw_only=True)
class TurnPair:
    """One turn in both; None where it is in one only."""

    turn: int
    where: str
    verdicts: tuple[str | None, str | None]
    ttft_s: tuple[float | None, float | None]
    took_s: tuple[float | None, float | None]

    @property
    def ttft_ratio(self) -> float | None:
        return _ratio(*self.ttft_s)


@frozen(kw_only=True)
class RunPair:
    """One run in both."""

    fixture: str
    repeat: int
    wall_s: tuple[float, float]
    departures: tuple[int, int]
    output_tokens: tuple[int, int]
    cached_tokens: tuple[int, int]
    turns: tuple[TurnPair, ...]


@frozen(kw_only=True)
class Comparison:
    """Everything that two reports have in common.

    Attributes:
        only_in: runs that one of them has alone, as "report A: FIXTURE".
        differs: what was set up otherwise, such as "design: A create, B append".
        beyond: each threshold that was exceeded, in a sentence.
    """

    runs: tuple[RunPair, ...]
    only_in: tuple[str, ...]
    differs: tuple[str, ...]
    n_changed: int
    ttft_ratio: float | None
    wall_ratio: float | None
    beyond: tuple[str, ...]

    def value(self) -> dict[str, Any]:
        """For a program."""
        return {"turntape_comparison": COMPARISON, "within": not self.beyond, **asdict(self)}

    def table(self) -> str:
        """For a terminal."""
        lines = [f"set up otherwise: {one}" for one in self.differs]
        for run in self.runs:
            lines += [_named(run.fixture, run.repeat), *_turns(run)]
            lines.append(f"  wall A {run.wall_s[0]:.2f} s, B {run.wall_s[1]:.2f} s:{_times(_ratio(*run.wall_s))}")
            lines.append("")
        lines += [f"only in {one}" for one in self.only_in]
        n_turns = sum(len(run.turns) for run in self.runs)
        lines.append(
            f"{self.n_changed} of {n_turns} verdict{'' if n_turns == 1 else 's'} changed; TTFT{_times(self.ttft_ratio)}, "
            f"wall time{_times(self.wall_ratio)}"
        )
        return "\n".join([*lines, *(f"beyond: {one}" for one in self.beyond)])


def compare(first: Report, second: Report, thresholds: Thresholds) -> Comparison:
    """
    Raises:
        NotComparable: no run is in both.
    """
    one, other = _runs(first), _runs(second)
    pairs = [_pair(*one[key], *other[key]) for key in one if key in other]
    if not pairs:
        raise NotComparable(
            "The reports have no run in common: they are of other fixtures. Drive the same files, named alike, for both."
        )
    ratios = [ratio for run in pairs for turn in run.turns if (ratio := turn.ttft_ratio) is not None]
    n_changed = sum(turn.verdicts[0] != turn.verdicts[1] for run in pairs for turn in run.turns)
    found = Comparison(
        runs=tuple(pairs),
        only_in=tuple(
            f"report {name}: {_named(*key)}"
            for name, mine, theirs in (("A", one, other), ("B", other, one))
            for key in mine
            if key not in theirs
        ),
        differs=tuple(_differs(first, second)),
        n_changed=n_changed,
        ttft_ratio=round(median(ratios), 3) if ratios else None,
        wall_ratio=_ratio(sum(run.wall_s[0] for run in pairs), sum(run.wall_s[1] for run in pairs)),
        beyond=(),
    )
    return _judged(found, thresholds)


def _judged(found: Comparison, thresholds: Thresholds) -> Comparison:
    beyond = list[str]()
    if thresholds.same_verdicts and found.n_changed:
        changed = "verdict is not what it was" if found.n_changed == 1 else "verdicts are not what they were"
        beyond.append(f"{found.n_changed} {changed}")
    if thresholds.same_verdicts and found.only_in:
        n = len(found.only_in)
        beyond.append(f"{n} {'run is' if n == 1 else 'runs are'} in one report only")
    for name, ratio, limit in (
        ("TTFT", found.ttft_ratio, thresholds.max_ttft_ratio),
        ("wall time", found.wall_ratio, thresholds.max_wall_ratio),
    ):
        if limit is not None and ratio is None:
            beyond.append(f"the ratio of {name} cannot be told: nothing was measured in both")
        elif limit is not None and ratio is not None and ratio > limit:
            beyond.append(f"{name} is {ratio:g} times what it was, more than {limit:g}")
    before, after = (sum(run.departures[n] for run in found.runs) for n in (0, 1))
    allowed = before if thresholds.allow_departures is None else thresholds.allow_departures
    if after > allowed:
        beyond.append(f"{after} departure{'' if after == 1 else 's'}, more than {allowed}")
    return evolve(found, beyond=tuple(beyond))


def _runs(report: Report) -> dict[tuple[str, int], tuple[RunVerdict, RunTimings]]:
    runs = zip(report.verdicts.runs, report.timings.runs, strict=True)
    return {(verdict.fixture, verdict.repeat): (verdict, timings) for verdict, timings in runs}


def _pair(one: RunVerdict, one_time: RunTimings, other: RunVerdict, other_time: RunTimings) -> RunPair:
    mine, theirs = _turns_of(one, one_time), _turns_of(other, other_time)
    numbers = sorted(mine.keys() | theirs.keys())
    return RunPair(
        fixture=one.fixture,
        repeat=one.repeat,
        wall_s=(one_time.wall_s, other_time.wall_s),
        departures=(len(one.departures), len(other.departures)),
        output_tokens=(one_time.output_tokens, other_time.output_tokens),
        cached_tokens=(one_time.cached_tokens, other_time.cached_tokens),
        turns=tuple(_turn_pair(number, mine.get(number), theirs.get(number)) for number in numbers),
    )


_Turn = tuple[TurnVerdict, TurnTimings]


def _turns_of(verdict: RunVerdict, timings: RunTimings) -> dict[int, _Turn]:
    return {turn.turn: (turn, time) for turn, time in zip(verdict.turns, timings.turns, strict=True)}


def _turn_pair(number: int, one: _Turn | None, other: _Turn | None) -> TurnPair:
    return TurnPair(
        turn=number,
        where=next(turn[0].where for turn in (one, other) if turn is not None),
        verdicts=(one[0].verdict if one else None, other[0].verdict if other else None),
        ttft_s=(one[1].got.ttft_s if one else None, other[1].got.ttft_s if other else None),
        took_s=(one[1].got.took_s if one else None, other[1].got.took_s if other else None),
    )


def _differs(first: Report, second: Report) -> Iterator[str]:
    for name, one, other in (
        ("target", first.setup.target, second.setup.target),
        ("model", first.setup.model, second.setup.model),
        ("mode", first.verdicts.mode, second.verdicts.mode),
        ("design", first.verdicts.design, second.verdicts.design),
        ("tool time", first.setup.tool_time, second.setup.tool_time),
    ):
        if one != other:
            yield f"{name}: A {one or 'as recorded'}, B {other or 'as recorded'}"


def _turns(run: RunPair) -> Sequence[str]:
    head = ("turn", "verdict", "TTFT A", "TTFT B", "ratio", "took A", "took B")
    rows = [
        (
            str(turn.turn),
            _change(*turn.verdicts),
            *map(seconds, turn.ttft_s),
            "-" if turn.ttft_ratio is None else f"{turn.ttft_ratio:.2f}",
            *map(seconds, turn.took_s),
        )
        for turn in run.turns
    ]
    return aligned([head, *rows])


def _change(one: str | None, other: str | None) -> str:
    return str(one) if one == other else f"{one or 'none'} → {other or 'none'}"


def _ratio(one: float | None, other: float | None) -> float | None:
    return round(other / one, 3) if one and other is not None else None


def _times(ratio: float | None) -> str:
    """B by A, in words."""
    if ratio is None:
        return " not measured in both"
    return " as long" if ratio == 1 else f" {ratio:g} times as long"


def _named(fixture: str, repeat: int) -> str:
    """As the table of a drive names a run: the how-manieth time is told from the second on."""
    return f"{fixture}, time {repeat}" if repeat > 1 else fixture
