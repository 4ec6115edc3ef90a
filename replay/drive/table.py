"""A report, and two beside each other, as tables for a terminal."""

from collections.abc import Iterable, Sequence

from turntape.replay.differences import excerpts

from .report import Called, CallVerdict, Pace, Report, RunTimings, RunVerdict, TurnTimings, TurnVerdict

SHOWN = 60
"""Characters of a call's arguments that a table shows."""

HEAD = ("turn", "verdict", "TTFT", "took", "tok/s", "overhead", "in", "cached", "out", "recorded")


def report_table(report: Report) -> str:
    """Every run with its turns, and what differs; the sums last."""
    lines = list[str]()
    for verdict, timings in zip(report.verdicts.runs, report.timings.runs, strict=True):
        lines += [*_run(verdict, timings), ""]
    for played in report.verdicts.fixtures:
        lines += [f"left out: {one.where}: {one.reason}" for one in played.left_out]
    return "\n".join([*lines, summary(report)])


def summary(report: Report) -> str:
    """One line."""
    runs, counts = report.verdicts.runs, report.verdicts.counts
    n_departures = sum(len(run.departures) for run in runs)
    parts = [f"{_n(sum(counts.values()), 'turn')} in {_n(len(runs), 'run')}: {counted(counts)}"]
    if n_departures:
        parts.append(_n(n_departures, "departure"))
    if n_lost := sum(len(run.not_reached) for run in runs):
        parts.append(f"{_n(n_lost, 'turn')} not reached")
    return "; ".join([*parts, f"{report.timings.wall_s:.2f} s"])


def counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{n} {verdict}" for verdict, n in counts.items()) or "none"


def _run(verdict: RunVerdict, timings: RunTimings) -> list[str]:
    again = f", time {verdict.repeat}" if verdict.repeat > 1 else ""
    lines = [f"run {verdict.run}: {verdict.fixture}{again}"]
    rows = [_row(turn, one) for turn, one in zip(verdict.turns, timings.turns, strict=True)]
    table = aligned([HEAD, *rows])
    lines.append(table[0])
    for turn, line in zip(verdict.turns, table[1:], strict=True):
        lines += [line, *(f"        {said}" for said in _differs(turn))]
    for departure in verdict.departures:
        where = f"departed at turn {departure.turn}, {departure.where}"
        lines.append(f"  {where}: {departure.reason}")
        lines += [f"        recorded {shown(departure.expected)}", f"        got {shown(departure.got)}"]
    if verdict.not_reached:
        lines.append(f"  not reached: {', '.join(verdict.not_reached)}")
    lines.append(
        f"  wall {timings.wall_s:.2f} s ({timings.waited_s:.2f} s of it between turns), recorded "
        f"{timings.recorded_wall_s:.2f} s; {timings.input_tokens:,} tokens in, {timings.cached_tokens:,} of them cached, "
        f"{timings.output_tokens:,} out"
    )
    return lines


def _row(turn: TurnVerdict, timings: TurnTimings) -> tuple[str, ...]:
    got, overhead = timings.got, None
    if timings.overhead_before_s is not None:
        overhead = timings.overhead_before_s + (timings.overhead_after_s or 0.0)
    counts = (_count(n) for n in (got.input_tokens, got.cached_tokens, got.output_tokens))
    speed = "-" if got.tokens_per_s is None else f"{got.tokens_per_s:,.0f}"
    return (
        str(turn.turn),
        turn.verdict,
        seconds(got.ttft_s),
        seconds(got.took_s),
        speed,
        seconds(overhead),
        *counts,
        _recorded(timings.recorded),
    )


def _recorded(pace: Pace) -> str:
    return f"{seconds(pace.ttft_s)} / {seconds(pace.took_s)}"


def _differs(turn: TurnVerdict) -> Iterable[str]:
    """What differs in one turn, a line each."""
    if turn.failure is not None:
        yield f"{turn.failure.code}: {turn.failure.message}"
    if turn.verdict == "failed":
        return
    for call in turn.calls:
        if call.verdict != "equal":
            yield f"call {call.verdict}: {_call(call)}"
    if not turn.text.equal:
        recorded, got = excerpts(turn.text.recorded, turn.text.got)
        yield f"text: recorded {recorded}, got {got}"
    if turn.structured is not None and not turn.structured.valid:
        yield f"not valid by its schema: {turn.structured.problem}"
    if turn.finish_recorded != turn.finish_got:
        yield f"finish: recorded {turn.finish_recorded}, got {turn.finish_got or 'none'}"


def _call(call: CallVerdict) -> str:
    recorded = "" if call.recorded is None else f"recorded {_shown(call.recorded)}"
    got = "" if call.got is None else f"got {_shown(call.got)}"
    return ", ".join(filter(None, (recorded, got)))


def shown(calls: Sequence[Called]) -> str:
    return ", ".join(map(_shown, calls)) or "no call"


def _shown(call: Called) -> str:
    """On one line, and nothing in it that a terminal obeys."""
    text = "".join(c if c.isprintable() else " " for c in f"{call.name} {call.arguments}")
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines in which the second column begins, and all others end, at the same place."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if n == 1 else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.1f} ms"


def _count(n: int | None) -> str:
    return "-" if n is None else f"{n:,}"


def _n(n: int, name: str) -> str:
    return f"{n:,} {name}{'' if n == 1 else 's'}"
