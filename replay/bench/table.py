"""A report of a bench as a table for a terminal."""

from turntape.replay.drive.table import aligned, seconds

from .report import Figures, Report, Spread

HEAD = (
    "speed",
    "design",
    "wall",
    "spread",
    "overhead",
    "TTFT",
    "after",
    "ITL p99",
    "tok/s",
    "up",
    "CPU/turn",
    "last/first",
)
AT_THE_ENDS = 5
"""Turns from which growth is told; ours."""


def report_table(report: Report) -> str:
    """A table for each shape and number of sessions, with the setup above them."""
    setup, lines = report.setup, list[str]()
    limits = [f"{rate:g} Mbit/s {way}" for rate, way in ((setup.up_mbit_s, "up"), (setup.down_mbit_s, "down")) if rate]
    network = ", ".join([f"{seconds(setup.rtt_s)} round trip", *limits]) if setup.rtt_s or limits else "loopback"
    network += ", slow start" if setup.slow_start else ""
    posts = "a connection for each POST" if setup.cold else "kept connections"
    lines.append(f"{network}; {posts}; medians of {setup.repeat}")
    groups = dict.fromkeys((figures.shape, figures.sessions) for figures in report.figures)
    for shape, sessions in groups:
        rows = [_row(one) for one in report.figures if (one.shape, one.sessions) == (shape, sessions)]
        lines += ["", f"{shape}, {sessions} session{'' if sessions == 1 else 's'}", *aligned([HEAD, *rows])]
    return "\n".join(lines)


def _row(one: Figures) -> tuple[str, ...]:
    wall = one.wall_s
    return (
        f"{one.tokens_per_s:,.0f}" if one.tokens_per_s else "unbounded",
        one.design,
        seconds(wall.median),
        f"{seconds(wall.least)}-{seconds(wall.most)}",
        seconds(one.overhead_s.median),
        _seconds(one.ttft_s),
        seconds(one.after_s.median),
        _seconds(one.itl_p99_s),
        f"{one.achieved_tokens_per_s.median:,.0f}",
        f"{one.up_bytes.median / 1e6:,.2f} MB",
        _seconds(one.cpu_per_turn_s),
        growth(one),
    )


def growth(one: Figures) -> str:
    """How many times the overhead of its first turns that of its last ones is."""
    overheads = [turn.overhead_s for turn in one.turns[1:]]  # a connection is opened in the first
    if len(overheads) < 2 * AT_THE_ENDS:
        return "-"
    first, last = sum(overheads[:AT_THE_ENDS]), sum(overheads[-AT_THE_ENDS:])
    return f"{last / first:.2f}" if first > 0 else "-"


def _seconds(spread: Spread | None) -> str:
    return seconds(None if spread is None else spread.median)
