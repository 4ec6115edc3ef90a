"""Rollouts have the shape that they are named after, and sizes of the right order, item for item."""

from pathlib import Path
from random import Random
from statistics import mean

import pytest

from turntape.core.canonical import Item as CoreItem
from turntape.core.context import Context
from turntape.replay.bench.draws import LogNormal
from turntape.replay.bench.generating import generate
from turntape.replay.bench.plan import Totals, plan
from turntape.replay.bench.prose import Writer
from turntape.replay.bench.recorded import recorded
from turntape.replay.bench.rollout import Rollout, encoded_bytes
from turntape.replay.bench.shapes import SHAPES, Spread
from turntape.replay.drive.course import Course
from turntape.replay.fixture import Fixture

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"
N_SESSIONS = 400

TOTALS = {  # steps, calls, tokens of tool outputs, of output, of the last context; bytes up, incremental
    "chatty": (20, 17, 21e3, 8.1e3, 48e3, 0.89e6),
    "codex-typical": (43, 57, 64e3, 18.1e3, 95e3, 1.91e6),
    "claude-typical": (43, 56, 61e3, 29.6e3, 111e3, 1.92e6),
    "codex-long": (412, 564, 567e3, 170e3, 154e3, 18.9e6),
    "burst-tools": (61, 330, 65e3, 21.6e3, 97e3, 2.58e6),
    "fanout": (109, 142, 194e3, 68e3, 58e3, 5.0e6),
    "resume-full": (11, 14, 13e3, 4.5e3, 153e3, 1.00e6),
}
"""Means of the sessions that the shapes were fitted with."""

LOOSE = {"chatty", "resume-full"}
"""Few steps, and so much chance in each session."""


def sent(rollout: Rollout) -> list[str]:
    return [str(turn.new) + str(turn.said) for thread in rollout.threads for turn in thread]


@pytest.mark.parametrize("name", SHAPES)
def test_sessions_sum_up_to_what_their_shape_was_measured_at(name: str) -> None:
    """Over some hundred sessions: the steps exactly, the calls by 3 %, frames 8 %, output 5 %, context 5 %, bytes 3 %."""
    random = Random(7)
    drawn = [Totals.of(plan(SHAPES[name], random)) for _ in range(N_SESSIONS)]
    steps, calls, frames, output, context, up = TOTALS[name]
    rest = 0.10 if name in LOOSE else None
    assert mean(one.steps for one in drawn) == pytest.approx(steps, rel=rest if name == "chatty" else 0)
    assert mean(one.calls for one in drawn) == pytest.approx(calls, rel=rest or 0.03)
    assert mean(one.frames for one in drawn) == pytest.approx(frames, rel=0.20 if rest else 0.08)
    assert mean(one.output for one in drawn) == pytest.approx(output, rel=rest or 0.05)
    assert mean(one.final_context for one in drawn) == pytest.approx(context, rel=rest or 0.05)
    assert mean(one.up_incremental for one in drawn) == pytest.approx(up, rel=rest or 0.03)


@pytest.mark.parametrize("name", SHAPES)
def test_items_are_as_large_as_planned(name: str) -> None:
    """What a client sends of a rollout, with new items or with all of them, is what its numbers say, by half a percent."""
    planned, rollout = Totals.of(plan(SHAPES[name], Random(f"{name} 3"))), generate(SHAPES[name], 3)
    assert rollout.n_turns == planned.steps
    assert rollout.up_bytes(full=False) == pytest.approx(planned.up_incremental, rel=0.005)
    assert rollout.up_bytes(full=True) == pytest.approx(planned.up_full, rel=0.005)
    assert sum(turn.output_tokens for thread in rollout.threads for turn in thread) == planned.output


@pytest.mark.parametrize("name", SHAPES)
def test_every_call_is_answered_by_the_next_turn(name: str) -> None:
    """A server that checks its conversations takes every rollout: each call has one output, and no output is an orphan."""
    for thread in generate(SHAPES[name], 1).threads:
        waiting = list[str]()
        for turn in thread:
            outputs = [item["call_id"] for item in turn.new if item["type"] == "function_call_output"]
            assert outputs == ([] if turn.anew else waiting)
            Context().extend(CoreItem.of(item) for item in (*turn.new, *turn.said))
            waiting = [item["call_id"] for item in turn.said if item["type"] == "function_call"]
        assert not waiting


def test_a_seed_gives_the_same_rollout_and_no_two_begin_alike() -> None:
    """The same seed repeats every byte; sessions of other seeds share no first item that a cache could know."""
    shape = SHAPES["codex-typical"]
    assert sent(generate(shape, 5)) == sent(generate(shape, 5))
    firsts = {str(generate(shape, seed).threads[0][0].new)[:120] for seed in range(20)}
    assert len(firsts) == 20


def test_a_parent_waits_for_its_sub_agents() -> None:
    """Two waves of four start after a turn of the parent, whose next turn waits for the last of each."""
    rollout = generate(SHAPES["fanout"], 1)
    parent, *children = rollout.threads
    assert [child[0].after for child in children] == [((0, 4),)] * 4 + [((0, 12),)] * 4
    ends = [(number, len(child) - 1) for number, child in enumerate(children, 1)]
    assert {n: list(turn.after) for n, turn in enumerate(parent) if turn.after} == {5: ends[:4], 13: ends[4:]}


def test_a_compacted_session_begins_anew_below_its_window() -> None:
    """A long session never asks with more than its window, and begins anew some times."""
    planned = plan(SHAPES["codex-long"], Random(1))
    assert max(step.context for step in planned.steps) <= 240_000
    assert 1 <= sum(step.anew for step in planned.steps) <= 8


def test_waits_are_those_of_the_slowest_call_and_capped() -> None:
    """Calls of one step run side by side; what a cap cuts is cut from the whole wait."""
    [thread] = generate(SHAPES["burst-tools"], 2).threads
    turn = next(turn for turn in thread if len(turn.tools_s) > 2)
    assert turn.wait_s(3600.0) == max(turn.tools_s) + turn.overhead_s
    assert turn.wait_s(0.001) == 0.001
    assert thread[0].wait_s(10.0) == 0.0


def test_steps_are_spread_without_losing_any() -> None:
    """However the weights fall, a fixed number of steps is given out in full."""
    spread = Spread(12, 0.99, LogNormal(1, 1.2), 400)
    assert {sum(spread.counts(Random(seed))) for seed in range(50)} == {400}


@pytest.mark.parametrize("n_bytes", [0, 1, 2, 3, 80, 5000])
def test_a_text_has_the_length_it_was_asked_for(n_bytes: int) -> None:
    """As JSON, its line ends escaped."""
    assert encoded_bytes([{"text": Writer(Random(1)).text(n_bytes)}]) - encoded_bytes([{"text": ""}]) == n_bytes


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.jsonl")), ids=lambda path: path.stem)
def test_a_recording_becomes_a_rollout_of_its_turns(path: Path) -> None:
    """Each recorded turn that ended well is there, with its items, its settings and its counted tokens."""
    course = Course.of(Fixture.load(path))
    rollout = recorded(course)
    assert rollout.n_turns == len(course.turns)
    for thread, turns in zip(course.threads, rollout.threads, strict=True):
        for was, turn in zip(thread, turns, strict=True):
            assert [item["type"] for item in turn.new] == [item.type for item in was.new]
            assert [item["type"] for item in turn.said] == [item.type for item in was.take.said()]
            body = turn.body(turn.new, model="m")
            assert body["model"] == "m" and body.get("tools") == was.take.start.request.raw.get("tools")
            assert turn.output_tokens > 0
            assert turn.wait_s(1e9) == was.gap_s
