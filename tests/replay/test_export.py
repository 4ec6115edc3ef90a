"""Recordings as a workload: the requests, the waits and the lengths that a load generator plays."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from sources import Rollout, call, made, message, output
from taped import Recording, user

from turntape.core.seam import (
    Arguments,
    ClientGone,
    Encrypted,
    Finish,
    Reasoning,
    Sampled,
    SampleFailed,
    Started,
    Text,
    ToolCall,
    Usage,
)
from turntape.replay.exporting import workload
from turntape.replay.fixture import Fixture

MEANT_BY_AIPERF = {"session_id": str, "delay": float, "output_length": int, "payload": dict}
"""Keys of a ``mooncake_trace`` line with a ready request, and their types; times in milliseconds."""


def lines(recording: Recording) -> list[dict[str, Any]]:
    made = workload([Fixture.parse(recording.content, name="runs/fix.jsonl")]).lines
    for line in made:
        assert all(isinstance(value, MEANT_BY_AIPERF[name]) for name, value in line.items())
    return json.loads(json.dumps(made))  # type: ignore[no-any-return]


@pytest.fixture
def agent() -> Recording:
    """A WebSocket session: a call, then its output 1.5 s later."""
    recording = Recording()
    client = recording.client()
    start = client.ask(user("List."), instructions="Be brief.", client_metadata={"who": "me"})
    assert start is not None
    client.feed(Started(start.sample_id))
    client.feed(Sampled(start.sample_id, (ToolCall("call_1", "sh"), Arguments("{}"), Finish("stop", Usage(50, 9)))))
    client.feed(Started(start.sample_id), step=1.4)  # comes too late, and means nothing
    start = client.ask({"type": "function_call_output", "call_id": "call_1", "output": "README"})
    assert start is not None
    client.feed(Sampled(start.sample_id, (Text("One file."), Finish("stop", Usage(70, 4)))))
    client.feed(ClientGone(1000))
    return recording


def test_each_turn_is_a_request_with_its_whole_conversation(agent: Recording) -> None:
    """A chain becomes requests that stand for themselves, with the settings that were asked and no ids of ours."""
    first, second = lines(agent)
    assert first["payload"]["input"] == [user("List.")]
    assert {name: first["payload"][name] for name in ("model", "instructions", "stream", "store")} == {
        "model": "m",
        "instructions": "Be brief.",
        "stream": True,
        "store": False,
    }
    assert not first["payload"].keys() & {"type", "client_metadata", "previous_response_id"}
    said = {"type": "function_call", "call_id": "call_1", "name": "sh", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "call_1", "output": "README"}
    assert second["payload"]["input"] == [user("List."), said, result]


def test_reasoning_is_left_out() -> None:
    """Only the server that reasoned can read its reasoning; another one would refuse it."""
    recording = Recording()
    client = recording.client()
    client.turn(user("hi"), say=((Reasoning("Greet."), Encrypted("opaque"), Text("Hello.")),))
    client.turn(user("bye"), say=((Text("Farewell."),),))
    assert [item.get("role") for item in lines(recording)[1]["payload"]["input"]] == ["user", "assistant", "user"]


def test_waits_and_lengths_are_those_of_the_recording(agent: Recording) -> None:
    """A tool's time is the delay before the next turn, in milliseconds; tokens are those that the backend counted."""
    first, second = lines(agent)
    assert "delay" not in first and second["delay"] == pytest.approx(1500.0)
    assert (first["output_length"], second["output_length"]) == (9, 4)
    assert first["session_id"] == second["session_id"] == "fix-1"


def test_posts_of_one_conversation_are_one_session() -> None:
    """Over HTTP each turn is a POST of its own; those that continue one another belong together, others do not."""
    recording = Recording()
    history: list[dict[str, Any]] = []
    for n, prompt in enumerate(("hi", "more", "other")):
        client = recording.client(seed=f"{n:032x}", transport="sse")
        history = [user(prompt)] if prompt == "other" else [*history, user(prompt)]
        client.turn(*history, say=((Text(f"{prompt}!"),),), stream=True)
        history.append(message("assistant", f"{prompt}!"))
    made = workload([Fixture.parse(recording.content)])
    assert [line["session_id"] for line in made.lines] == ["fixture-1", "fixture-1", "fixture-2"]
    assert (made.n_sessions, made.uncounted) == (2, 3) and str(made) == "2 sessions, 3 turns"


def test_turns_without_a_whole_answer_are_counted_and_left_out() -> None:
    """A refused and a cancelled turn are no work for a load generator."""
    recording = Recording()
    client = recording.client()
    client.turn(user("hi"), say=((Text("Hello."),),))
    start = client.ask(user("fail"))
    assert start is not None
    client.feed(SampleFailed(start.sample_id, "server_error"))
    client.ask(user("never"), follow=False)
    client.feed(ClientGone(1001))
    made = workload([Fixture.parse(recording.content)])
    assert (len(made.lines), made.left_out) == (1, 2)


def test_fixtures_of_the_same_name_are_told_apart() -> None:
    """Sessions of two files never share an id."""
    recording = Recording()
    recording.client().turn(user("hi"), say=((Text("Hello."),),))
    files = [Fixture.parse(recording.content, name=f"{folder}/fix.jsonl") for folder in "ab"]
    assert [line["session_id"] for line in workload(files).lines] == ["fix-1-1", "fix-2-1"]


AIPERF = os.environ.get("TURNTAPE_TEST_AIPERF", "")

CHECK = """
import json, sys
from aiperf.dataset.loader.models import MooncakeTrace
from aiperf.dataset.loader.mooncake_trace import MooncakeTraceDatasetLoader as Loader
for line in open(sys.argv[1]):
    row = json.loads(line)
    assert Loader.can_load(row), row
    trace = MooncakeTrace.model_validate(row)
    print(json.dumps([trace.session_id, trace.delay, trace.output_length, trace.payload]))
"""


@pytest.mark.skipif(not AIPERF, reason="TURNTAPE_TEST_AIPERF names no Python with aiperf, which is 1.2 GB installed")
def test_aiperf_reads_it(tmp_path: Path) -> None:
    """AIPerf's own loader takes every line for what it is meant to be."""
    rollout = Rollout().items(message("user", "Go."), call("a", "sh", "{}")).counted()
    rollout.items(output("a", "1"), message("assistant", "Gone.")).counted()
    wanted = workload([made(tmp_path, rollout.lines).fixture]).lines
    path = tmp_path / "work.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in wanted))
    ran = subprocess.run([AIPERF, "-c", CHECK, path], capture_output=True, text=True, check=True, timeout=60)
    read = [json.loads(line) for line in ran.stdout.splitlines()]
    names = ("session_id", "delay", "output_length", "payload")
    assert read == [[line.get(name) for name in names] for line in wanted]
