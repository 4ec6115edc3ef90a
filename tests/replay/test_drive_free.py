"""A drive in free mode: the model is answered from the recording for as long as it makes the recorded calls."""

import pytest
import trio
from driven import calls, driven, says
from serving import Model
from taped import Recording, output, user

from turntape.core.seam import Arguments, Reasoning, Text, ToolCall
from turntape.replay.drive.course import Course, ToolTime
from turntape.replay.drive.report import Called, RunVerdict
from turntape.replay.drive.run import Settings
from turntape.transport.backends.base import BackendError

DESIGNS = ("create", "append", "http")


def three_files() -> Recording:
    """Two calls at once, then one more, with a word of the person beside its output; an answer; another question."""
    recording = Recording()
    client = recording.client()
    both = (*calls("a", '{"f":1}', "read"), *calls("b", '{"f":2}', "read"))
    client.turn(user("Read them."), say=(both,))
    client.turn(output("a", "one"), output("b", "two"), say=(calls("c", '{"f":3}', "read"),))
    client.turn(output("c", "three"), user("Hurry."), say=((Text("Read."),),))
    client.turn(user("Thanks."), say=((Text("Welcome."),),))
    return recording


def said_to(model: Model) -> list[list[str]]:
    """What each request added to the one before it: outputs and texts."""
    seen, added = 0, []
    for start in model.starts:
        items = [item.value for item in start.context.items_after(None) if item.value.get("role") != "assistant"]
        new = [item for item in items if item["type"] in ("message", "function_call_output")]
        added.append([str(item.get("output") or item["content"][0]["text"]) for item in new[seen:]])
        seen = len(new)
    return added


async def free(recording: Recording, model: Model, design: str = "create", *, at_url: bool = False) -> RunVerdict:
    settings = Settings(mode="free", design=design, tool_time=ToolTime(0.0))
    report = await driven(recording, backend=model, settings=settings, at_url=at_url)
    return report.verdicts.runs[0]


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("at_url", [False, True])
async def test_a_model_on_the_recorded_path_gets_to_its_end(design: str, at_url: bool) -> None:
    """In each design, here and at a URL, calls are answered under the ids that this model gave them."""
    model = Model(
        [
            says(Reasoning("Both."), *calls("x", '{"f": 1}', "read"), *calls("y", '{"f":2}', "read")),
            says(*calls("z", '{"f":3}', "read")),
            says(Text("All read.")),
            says(Text("Welcome.")),
        ]
    )
    run = await free(three_files(), model, design, at_url=at_url)
    assert [turn.verdict for turn in run.turns] == ["equal", "equal", "text", "equal"]
    assert run.departures == () and run.not_reached == ()
    assert said_to(model) == [["Read them."], ["one", "two"], ["three", "Hurry."], ["Thanks."]]
    outputs = [item.value["call_id"] for item in model.starts[1].context.items_after(None) if item.closes_call]
    assert outputs == ["x", "y"]


async def test_calls_may_come_in_another_order_and_in_other_groups() -> None:
    """Each recorded call is answered once, whenever it is made, and what was said beside an output comes with it."""
    model = Model(
        [
            says(*calls("x", '{"f":2}', "read")),
            says(*calls("y", '{"f":3}', "read")),
            says(*calls("z", '{"f":1}', "read")),
            says(Text("Read.")),
            says(Text("Welcome.")),
        ]
    )
    run = await free(three_files(), model)
    assert run.departures == () and run.not_reached == ()
    assert said_to(model) == [["Read them."], ["two"], ["three", "Hurry."], ["one"], ["Thanks."]]
    assert [(turn.turn, turn.where == "") for turn in run.turns] == [
        (1, False),
        (2, False),
        (3, False),
        (4, False),
        (5, True),
    ]
    assert run.turns[3].verdict == "equal"  # the next question, though a turn more was needed to come to it


async def test_the_first_call_without_a_recorded_output_is_the_result() -> None:
    """Where the model leaves the path it is said what was expected and what came, and the thread ends."""
    model = Model([says(*calls("x", '{"f":1}', "read"), *calls("y", '{"f":9}', "read"))])
    run = await free(three_files(), model)
    [departure] = run.departures
    assert (departure.turn, departure.thread) == (1, 1) and "no output" in departure.reason
    assert departure.expected == (Called(name="read", arguments='{"f":1}'), Called(name="read", arguments='{"f":2}'))
    assert departure.got == (Called(name="read", arguments='{"f":1}'), Called(name="read", arguments='{"f":9}'))
    assert len(run.not_reached) == 3 and len(model.starts) == 1


async def test_the_same_call_twice_needs_two_recorded_outputs() -> None:
    """An output is handed out once."""
    model = Model([says(*calls("x", '{"f":1}', "read"), *calls("y", '{"f":1}', "read"))])
    [departure] = (await free(three_files(), model)).departures
    assert departure.turn == 1


async def test_a_model_that_is_done_too_early_has_departed() -> None:
    """An answer in place of a recorded call is a departure too."""
    run = await free(three_files(), Model([says(Text("Nothing to read."))]))
    [departure] = run.departures
    assert "was done before" in departure.reason and departure.got == ()


async def test_a_turn_that_fails_ends_its_thread() -> None:
    """Nothing can follow an answer that never came."""
    run = await free(three_files(), Model([[BackendError("Down.", code="server_is_overloaded", status=503)]]))
    assert [turn.verdict for turn in run.turns] == ["failed"] and len(run.not_reached) == 3
    assert "failed" in run.departures[0].reason


async def test_what_waits_for_a_departed_thread_is_not_reached() -> None:
    """A sub-agent of a call that was never made does not begin; what does not depend on it goes on."""
    recording = Recording()
    main = recording.client()
    main.turn(user("Delegate."), say=(calls("m1", '{"to":"sub"}'),))
    sub = recording.client(seed="11" * 16)
    sub.now = main.now
    sub.turn(user("Sub."), say=((Text("Sub done."),),))
    run = await free(recording, Model([says(Text("I will do it myself."))]))
    assert [turn.turn for turn in run.turns] == [1] and len(run.not_reached) == 1


async def test_free_mode_counts_its_turns_alike_in_every_order(autojump_clock: trio.testing.MockClock) -> None:
    """Two threads that each need a turn more than recorded number them the same, whichever is faster."""
    recording = Recording()
    for n, seed in enumerate(("00", "11")):
        client = recording.client(seed=seed * 16)
        client.turn(user(f"Agent {n}."), say=((*calls("a", "1"), *calls("b", "2")),))
        client.turn(output("a", "one"), output("b", "two"), say=((Text("Done."),),))
    encoded = set()
    for slow in ("Agent 0.", "Agent 1."):

        class Paced(Model):
            @trio.as_safe_channel
            async def sample(self, start):  # type: ignore[no-untyped-def]
                items = [item.value for item in start.context.items_after(None)]
                await trio.sleep(5 if slow in str(items[0]) else 1)  # noqa: B023 - used within this turn of the loop
                n = sum(item["type"] == "function_call_output" for item in items)
                yield says(*((calls("x", "2"), calls("y", "1"), (Text("Done."),))[n]))[1][1]  # type: ignore[index]

        settings = Settings(mode="free", tool_time=ToolTime(0.0))
        report = await driven(Course.of(recording.fixture), backend=Paced(), settings=settings)
        encoded.add(report.encode().partition(b'"timings": {')[0])
        assert report.verdicts.runs[0].not_reached == ()
    assert len(encoded) == 1


async def test_tools_of_two_kinds_are_told_apart() -> None:
    """A call of a function is not answered with the output of a custom tool of that name."""
    recording = Recording()
    client = recording.client()
    client.turn(user("Go."), say=((ToolCall("c", "sh", custom=True), Arguments("ls")),))
    client.turn({"type": "custom_tool_call_output", "call_id": "c", "output": "a"}, say=((Text("Done."),),))
    custom = (ToolCall("x", "sh", custom=True), Arguments("ls"))
    assert (await free(recording, Model([says(*custom), says(Text("Done."))]))).departures == ()
    [departure] = (await free(recording, Model([says(*calls("x", "ls"))]))).departures
    assert departure.turn == 1
