"""What a bench finds: figures from what was played, a file that is read as it was written, a baseline that holds."""

from collections.abc import Sequence

import attrs
import pytest
import trio

from turntape.replay.bench.client import DESIGNS
from turntape.replay.bench.measuring import Cell, Measured, figures, measure
from turntape.replay.bench.model import rollout_of
from turntape.replay.bench.network import Counts
from turntape.replay.bench.playing import Played, Playing, TurnPlayed
from turntape.replay.bench.report import Figures, Report, ReportUnreadable, Setup, Spread
from turntape.replay.bench.serving import served
from turntape.replay.bench.table import report_table
from turntape.replay.errors import ReplayError

CELL = Cell(shape="chatty", seed=1, tokens_per_s=100.0, playing=Playing(design="ws-create"))


def session(*, overhead_s: float = 0.01, growth_s: float = 0.0) -> Played:
    """A session of ``CELL``, each turn of which took so much more than its tokens, and each one more than the one before."""
    turns = tuple(
        TurnPlayed(
            thread=0,
            context_turn=at,
            ttft_s=0.1 + at / 1000,
            took_s=turn.output_tokens / 100.0 + overhead_s + at * growth_s,
            after_s=0.002,
            output_tokens=turn.output_tokens,
            n_deltas=3,
            gaps_s=(0.01, 0.03),
        )
        for at, turn in enumerate(rollout_of("chatty", 1).threads[0])
    )
    counts = Counts(up=1000, down=2000, connections=1)
    return Played(wall_s=sum(turn.took_s for turn in turns), waited_s=0.0, counts=counts, turns=turns)


def found(sessions: Sequence[Played], cell: Cell = CELL, cpu_s: float | None = 0.5) -> Figures:
    return figures(cell, [Measured(sessions=(one,), cpu_s=cpu_s, memory_bytes=5000) for one in sessions])


def report(*figures: Figures, **setup: object) -> Report:
    return Report(setup=Setup(**{"turntape": "0", "seed": 1, "repeat": 3, **setup}), figures=figures)  # type: ignore[arg-type]


def test_figures_are_medians_with_their_spread() -> None:
    """Of three repeats the middle one is told, with the least and the most."""
    one = found([session(overhead_s=s) for s in (0.03, 0.01, 0.02)])
    n_turns = len(rollout_of("chatty", 1).threads[0])
    assert one.overhead_s == Spread(
        median=pytest.approx(0.02 * n_turns), least=pytest.approx(0.01 * n_turns), most=pytest.approx(0.03 * n_turns)
    )
    assert one.itl_p50_s is not None and one.itl_p50_s.median == 0.01
    assert one.itl_p99_s is not None and one.itl_p99_s.median == 0.03
    assert one.cpu_per_turn_s is not None and one.cpu_per_turn_s.median == pytest.approx(0.5 / n_turns, abs=1e-6)
    assert one.achieved_tokens_per_s.median < 100


def test_growth_with_the_history_is_told_by_turn() -> None:
    """Each turn has its own figures, beside the size of what it was asked with, which grows."""
    one = found([session(growth_s=0.001)] * 3)
    assert [turn.overhead_s for turn in one.turns] == pytest.approx([0.01 + n / 1000 for n in range(len(one.turns))])
    contexts = [turn.context_tokens for turn in one.turns]
    assert contexts == sorted(contexts) and contexts[0] > 10_000
    n = len(one.turns)
    first, last = (sum(10 + at for at in range(*ends)) for ends in ((1, 6), (n - 5, n)))
    assert report_table(report(one)).endswith(f"{last / first:.2f}")


def test_a_report_is_read_as_it_was_written() -> None:
    """Everything, also what could not be measured."""
    whole = report(found([session()] * 2), found([session()], cpu_s=None), rtt_s=0.04, cold=False)
    assert Report.decode(whole.encode()) == whole


@pytest.mark.parametrize(
    ("encoded", "said"),
    [
        (b"{", "r.json: is not JSON"),
        (b"[]", "r.json: is no report of a bench"),
        (b'{"turntape_bench": 2}', "is a report of version 2; this version of Turntape reads version 1"),
        (b'{"turntape_bench": 1}', "required field missing @ $.setup"),
        (
            b'{"turntape_bench": 1, "setup": {"turntape": 1, "seed": 1, "repeat": 1}}',
            "expected str @ $.setup.turntape",
        ),
    ],
)
def test_what_is_no_report_is_refused_by_name(encoded: bytes, said: str) -> None:
    """The file, the field and what is wrong with it."""
    with pytest.raises(ReportUnreadable) as caught:
        Report.decode(encoded, name="r.json")
    assert said in str(caught.value)


def test_a_regression_beyond_the_ratio_is_found_and_no_other() -> None:
    """What is 1.5 times as slow is worse at a ratio of 1.4, and not at 1.6; what is faster is never worse."""
    before, now = report(found([session()])), report(found([session(overhead_s=0.015)]))
    assert [one.name for one in now.worse(before, 1.4)] == ["overhead_s"]
    [worse] = now.worse(before, 1.4)
    assert worse.now == pytest.approx(1.5 * worse.before)
    assert not now.worse(before, 1.6)
    assert not before.worse(now, 1.0)


@pytest.mark.parametrize("change", [{"rtt_s": 0.04}, {"seed": 2}, {"cold": False}])
def test_what_was_not_measured_alike_is_not_compared(change: dict[str, object]) -> None:
    """Another network or another session has other figures: the one that differs is named."""
    [name] = change
    with pytest.raises(ReplayError, match=name):
        report(found([session()]), **change).worse(report(found([session()])), 2.0)


def test_reports_with_nothing_in_common_are_not_compared() -> None:
    """No regression is found where nothing was looked at, and that is said."""
    other = attrs.evolve(CELL, playing=Playing(design="http-full"))
    with pytest.raises(ReplayError, match="in common"):
        report(found([session()], other)).worse(report(found([session()])), 2.0)


async def test_a_server_of_its_own_is_measured_in_every_design() -> None:
    """In another process: every design is played, its bytes are counted, and the process is gone afterwards."""
    with trio.fail_after(60):
        async with served(0.0) as server:
            cells = [Cell(shape="chatty", seed=1, tokens_per_s=0.0, playing=Playing(design=name)) for name in DESIGNS]
            rounds = list[int]()
            measured = await measure(cells, 2, server, lambda cell, n: rounds.append(n))
        assert server.cpu_s() is None and server.memory_bytes() is None
    assert rounds == [0] * 4 + [1] * 4 + [2] * 4
    up = {one.design: one.up_bytes.median for one in measured}
    assert up["ws-append"] < up["ws-create"] < up["http-full"]
    n_turns = len(rollout_of("chatty", 1).threads[0])
    assert [one.connections.median for one in measured] == [n_turns, n_turns, 1, 1]
    assert all(len(one.turns) == n_turns for one in measured)
    assert all(design in report_table(report(*measured)) for design in DESIGNS)


async def test_sessions_side_by_side_are_different_ones() -> None:
    """Three sessions at once open three sockets, and send what three seeds say."""
    with trio.fail_after(60):
        async with served(0.0) as server:
            cell = attrs.evolve(CELL, sessions=3, tokens_per_s=0.0)
            [one] = await measure([cell], 1, server)
    sizes = sorted(rollout_of("chatty", seed).up_bytes(full=False) for seed in (1, 2, 3))
    assert one.sessions == 3
    assert one.up_bytes.median == pytest.approx(sizes[1], rel=0.03)
