"""A drive in forced mode: every turn is asked with the recorded history, and judged by what comes."""

from typing import Any

import pytest
import trio
from driven import AS_RECORDED, SETUP, Watched, calls, driven, memory_server, says, two_steps, verdicts
from serving import Model
from taped import Recording, output, user

from turntape.core.context import Context
from turntape.core.seam import CancelSample, ClientGone, Finish, Reasoning, SampleFailed, Text, Usage
from turntape.replay.drive.course import Course, ToolTime
from turntape.replay.drive.driving import check, drive
from turntape.replay.drive.probe import LEAST_CAPPED_BYTES, Histories, Probe
from turntape.replay.drive.report import Report
from turntape.replay.drive.run import Settings
from turntape.replay.errors import ReplayError
from turntape.replay.takes import takes
from turntape.transport.backends.base import BackendError

DESIGNS = ("create", "append", "http")
NONSENSE = (says(Text("No idea.")), says(*calls("x", '{"cmd":"rm"}', "other")))


def keys(recording: Recording) -> list[str]:
    """Names of the conversations that the recorded turns answered."""
    return [take.start.context.fold.key for take in takes(recording.fixture)]


@pytest.mark.parametrize("design", DESIGNS)
async def test_each_turn_is_asked_with_the_recorded_history(design: str) -> None:
    """Whatever a backend says, in each design it is asked what was asked in the recording."""
    recording, model = two_steps(), Model([*NONSENSE])
    report = await driven(recording, backend=model, settings=Settings(design=design))
    assert [start.context.fold.key for start in model.starts] == keys(recording)
    assert [turn.verdict for turn in report.verdicts.runs[0].turns] == ["calls", "calls"]
    assert not any("turntape" in name for start in model.starts for name in start.request.raw)


@pytest.mark.parametrize("design", DESIGNS)
async def test_a_backend_that_says_what_was_recorded_is_equal_in_all(design: str) -> None:
    """Pieces, call ids, spaces in arguments and reasoning do not count."""
    turns = [says(Reasoning("Hm."), *calls("live", '{ "cmd": "ls" }')), AS_RECORDED[1]]
    assert [turn.verdict for turn in await verdicts(two_steps(), turns, design=design)] == ["equal", "equal"]


@pytest.mark.parametrize(
    ("first", "verdict", "pairs"),
    [
        (says(*calls("x", '{"cmd":"ls -a"}')), "arguments", ["arguments"]),
        (says(*calls("x", '{"cmd":"ls"}', "other")), "calls", ["different"]),
        (says(Text("No.")), "calls", ["missing"]),
        (says(*calls("x", '{"cmd":"ls"}'), *calls("y", '{"cmd":"pwd"}')), "calls", ["equal", "extra"]),
        (says(*calls("x", '{"cmd":"pwd"}'), *calls("y", '{"cmd":"ls"}')), "calls", ["equal", "extra"]),
        (says(Text("Let me see."), *calls("x", '{"cmd":"ls"}')), "text", ["equal"]),
        (says(*calls("x", '{"cmd":"ls"}'), reason="length"), "finish", ["equal"]),
        (says(*calls("x", '{"cmd":"ls"')), "arguments", ["arguments"]),
    ],
)
async def test_what_differs_is_named(first: Any, verdict: str, pairs: list[str]) -> None:
    """Each kind of difference has its own verdict, and no turn after it suffers."""
    one, other = await verdicts(two_steps(), [first, AS_RECORDED[1]])
    assert (one.verdict, [call.verdict for call in one.calls]) == (verdict, pairs)
    assert other.verdict == "equal"


async def test_texts_are_quoted_around_their_first_difference() -> None:
    """A report shows where two texts part without holding all of them."""
    recording = Recording()
    recording.client().turn(user("Tell."), say=((Text("a" * 5000 + "b"),),))
    [turn] = await verdicts(recording, [says(Text("a" * 5000 + "c"))])
    assert (turn.text.at, turn.text.n_recorded, turn.text.n_got) == (5000, 5001, 5001)
    assert turn.text.recorded == "a" * 200 + "b" and turn.text.got == "a" * 200 + "c"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"n": 1}', None),
        ('{"n": "1"}', "$.n: '1' is not of type 'integer'"),
        ("{}", "$: 'n' is a required property"),
        ("one", "it is not JSON: Expecting value: line 1 column 1 (char 0)"),
    ],
)
async def test_a_text_that_should_follow_a_schema_is_checked(text: str, problem: str | None) -> None:
    """A text that breaks the schema of its request is invalid, and it is said how."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    form = {"format": {"type": "json_schema", "name": "n", "schema": schema}}
    recording = Recording()
    recording.client().turn(user("A number."), say=((Text('{"n":2}'),),), text=form)
    [turn] = await verdicts(recording, [says(Text(text))])
    assert turn.structured is not None
    assert (turn.verdict, turn.structured.problem) == (("text", "") if problem is None else ("invalid", problem))


async def test_a_schema_that_refers_elsewhere_is_not_fetched() -> None:
    """Nothing but the backend is ever asked."""
    form = {"format": {"type": "json_schema", "name": "n", "schema": {"$ref": "http://127.0.0.1:9/schema.json"}}}
    recording = Recording()
    recording.client().turn(user("A number."), say=((Text("2"),),), text=form)
    [turn] = await verdicts(recording, [says(Text("2"))])
    assert turn.structured is not None and turn.structured.problem.startswith("the schema cannot be used")


async def test_a_backend_that_fails_is_a_verdict_and_the_drive_goes_on() -> None:
    """A refusal has its code and status in the report, and the next turn is asked as recorded."""
    recording = two_steps()
    model = Model([[BackendError("Too fast.", code="rate_limit_exceeded", status=429)], AS_RECORDED[1]])
    report = await driven(recording, backend=model)
    failed, after = report.verdicts.runs[0].turns
    assert failed.verdict == "failed" and failed.failure is not None
    assert (failed.failure.code, failed.failure.status, failed.failure.message) == (
        "rate_limit_exceeded",
        429,
        "Too fast.",
    )
    assert after.verdict == "equal"
    assert model.starts[1].context.fold.key == keys(recording)[1]


@pytest.mark.parametrize("size", [1, 7, 700])
async def test_an_answer_without_end_is_cut_at_a_place_that_is_always_the_same(size: int) -> None:
    """A backend that babbles is stopped at four times the recorded answer, however its pieces fall."""

    def babble() -> Any:
        yield 0.0, ()
        while True:
            yield 0.0, (Text("x" * size),)

    model = Model([babble(), AS_RECORDED[1]])
    report = await driven(two_steps(), backend=model)
    capped, after = report.verdicts.runs[0].turns
    assert (capped.verdict, capped.text.n_got) == ("capped", LEAST_CAPPED_BYTES)
    assert after.verdict == "equal" and model.n_running == 0


async def test_the_same_outputs_give_the_same_verdicts() -> None:
    """Two drives of one backend differ in their times alone, byte for byte, in whatever order their runs end."""

    async def verdicts_of(parallel: int) -> bytes:
        model = Model([says(Text("No idea."))])
        report = await driven(two_steps(), backend=model, settings=Settings(repeat=4, parallel=parallel))
        return report.encode().partition(b'"timings": {')[0]

    assert await verdicts_of(1) == await verdicts_of(3)


async def test_warm_failed_and_cancelled_turns_are_left_out_and_said() -> None:
    """What the recording has no good answer to is not played, and is listed with the reason."""
    recording = Recording()
    client = recording.client()
    client.ask(user("Warm."), generate=False)
    start = client.ask(user("Fail."), follow=False)
    assert start is not None
    client.feed(SampleFailed(start.sample_id, "server_error", "Down.", status=500))
    client.turn(user("Speak."), say=((Text("Yes."),),), follow=False)
    assert client.ask(user("Wait.")) is not None
    assert any(isinstance(effect, CancelSample) for effect in client.feed(ClientGone(1000)))
    report = await driven(recording, backend=Model([says(Text("Yes."))]))
    [played] = report.verdicts.fixtures
    assert played.n_turns == 1 and report.verdicts.counts == {"equal": 1}
    assert [one.reason for one in played.left_out] == ["it failed: server_error", "it was cancelled, or cut off"]


def test_a_recording_of_nothing_is_refused() -> None:
    """There is nothing to drive in a fixture without a finished turn."""
    with pytest.raises(ReplayError, match="holds no turn that ended well"):
        Course.of(Recording().fixture)


# --- time -------------------------------------------------------------------------------------------------


async def test_times_are_those_of_the_backend_and_of_the_server(autojump_clock: trio.testing.MockClock) -> None:
    """TTFT, gaps, speed and tokens are measured at the backend, whose time is none of the server's."""
    usage = Usage(input_tokens=40, output_tokens=5, cached_tokens=30)
    first = [(0.25, ()), (0.25, (Text("a"),)), (0.1, (Text("b"),)), (0.3, (Text("c"), Finish("stop", usage)))]
    report = await driven(two_steps(), backend=Model([first, AS_RECORDED[1]]))
    one = report.timings.runs[0].turns[0]
    assert (one.got.ttft_s, one.got.took_s, one.got.itl_p50_s, one.got.itl_p99_s) == (0.5, 0.9, 0.1, 0.3)
    assert (one.got.tokens_per_s, one.got.input_tokens, one.got.cached_tokens) == (10.0, 40, 30)
    assert (one.overhead_before_s, one.overhead_after_s) == (0.0, 0.0)
    assert (one.recorded.ttft_s, one.recorded.took_s) == (0.2, 0.3)


@pytest.mark.parametrize(("tool_time", "wall_s"), [("recorded", 0.1), ("zero", 0.0), ("x3", 0.3)])
async def test_tool_time_is_as_asked(tool_time: str, wall_s: float, autojump_clock: trio.testing.MockClock) -> None:
    """What lies between two turns is kept, left out, or scaled."""
    settings = Settings(tool_time=ToolTime.parse(tool_time))
    report = await driven(two_steps(), backend=Model([*AS_RECORDED]), settings=settings)
    [run] = report.timings.runs
    assert run.wall_s == pytest.approx(wall_s) and run.waited_s == pytest.approx(wall_s)
    assert run.turns[1].waited_s == pytest.approx(wall_s)


@pytest.mark.parametrize("text", ["", "x", "fast", "x-1", "xnan", "2", "x1e9"])
def test_a_tool_time_that_is_none_is_refused(text: str) -> None:
    """The words that can be written are named."""
    with pytest.raises(ValueError, match="recorded, zero, or a factor"):
        ToolTime.parse(text)


def agents() -> Recording:
    """A main agent whose call is answered by a sub-agent of two turns, on a socket of its own, and another beside it."""
    recording = Recording()
    main = recording.client()
    main.turn(user("Delegate."), say=(calls("m1", '{"to":"sub"}'),))  # ends at 0.4
    sub = recording.client(seed="11" * 16)
    sub.now = main.now
    sub.turn(user("Sub."), say=(calls("s1"),))
    sub.turn(output("s1", "ok"), say=((Text("Sub done."),),))
    main.now = sub.now + 0.1
    main.turn(output("m1", "Sub done."), say=((Text("All done."),),))
    return recording


async def test_agents_run_beside_each_other_as_they_were_recorded(autojump_clock: trio.testing.MockClock) -> None:
    """A sub-agent begins after the turn that called it, and the turn that got its result waits for it."""
    course = Course.of(agents().fixture)
    assert [[turn.number for turn in thread] for thread in course.threads] == [[1, 4], [2, 3]]
    assert [[other.number for other in turn.after] for turn in course.turns] == [[], [1], [2], [1, 3]]

    slow = [(0.0, ()), (5.0, (Text("?"), Finish()))]
    report = await driven(course, backend=Model([slow]), settings=Settings(tool_time=ToolTime(0.0)))
    assert [turn.began_s for turn in report.timings.runs[0].turns] == [0.0, 5.0, 10.0, 15.0]


async def test_runs_beside_each_other_are_as_many_as_asked(autojump_clock: trio.testing.MockClock) -> None:
    """Six runs of ten seconds take thirty by two."""
    recording = Recording()
    recording.client().turn(user("Hi."), say=((Text("Hi."),),))
    model = Model([[(0.0, ()), (10.0, (Text("Hi."), Finish()))]])
    watched = Watched()
    settings, probe = Settings(repeat=6, parallel=2), Probe(model)
    async with memory_server(probe) as server:
        report = await drive([Course.of(recording.fixture)], settings, SETUP, server, probe, watched)
    assert report.timings.wall_s == pytest.approx(30.0)
    assert sorted(watched.runs) == [1, 2, 3, 4, 5, 6] and len(watched.turns) == 6


# --- what a backend may remember ----------------------------------------------------------------------------


def test_what_was_said_to_a_renewed_context_is_not_found_again() -> None:
    """A backend that remembers by context finds its own answer only where it said what was recorded."""
    root = Context().extend([])
    asked = root.extend([])
    later = asked.extend([]).extend([])
    histories = Histories()
    assert histories.of(asked) is asked and histories.of(later) is later
    histories.renew(asked)
    links = [*histories.of(later).links()]
    assert asked not in links and root in links
    assert histories.of(later) is histories.of(later)


async def test_a_backend_remembers_what_it_said_as_recorded_and_nothing_else() -> None:
    """An answer that differs stands on a context that no later turn descends from; an equal one stays known."""
    same, other = Model([*AS_RECORDED]), Model([says(Text("No.")), AS_RECORDED[1]])
    for model in (same, other):
        await driven(two_steps(), backend=model)
    assert other.starts[0].context not in [*other.starts[1].context.links()]
    recorded = Model([says(*calls("c1", '{"cmd":"ls"}')), AS_RECORDED[1]])
    await driven(two_steps(), backend=recorded)
    assert recorded.starts[0].context in [*recorded.starts[1].context.links()]


# --- a server of somebody else's ----------------------------------------------------------------------------


@pytest.mark.parametrize("design", ["create", "http"])
async def test_another_server_gets_the_whole_recorded_conversation(design: str) -> None:
    """It has its own answers in its chain, so nothing is continued there; what is measured is the wire."""
    recording, model = two_steps(), Model([says(*calls("x", '{"cmd":"pwd"}')), AS_RECORDED[1]])
    report = await driven(recording, backend=model, at_url=True, settings=Settings(design=design))
    assert [start.context.fold.key for start in model.starts] == keys(recording)
    assert all(start.request.previous_response_id is None for start in model.starts)
    assert [turn.verdict for turn in report.verdicts.runs[0].turns] == ["arguments", "equal"]
    assert all(turn.overhead_before_s is None and turn.got.ttft_s is not None for turn in report.timings.runs[0].turns)


@pytest.mark.parametrize("design", ["create", "http"])
async def test_a_refusal_of_another_server_is_a_verdict(design: str) -> None:
    """What it says about the failure is in the report, and the next turn is asked."""
    model = Model([[BackendError("Not for you.", code="model_not_found", status=404)], AS_RECORDED[1]])
    report = await driven(two_steps(), backend=model, at_url=True, settings=Settings(design=design))
    failed, after = report.verdicts.runs[0].turns
    assert failed.failure is not None and (failed.failure.code, failed.failure.status) == ("model_not_found", 404)
    assert "Not for you." in failed.failure.message and after.verdict == "equal"


def test_append_at_a_url_cannot_be_forced() -> None:
    """The refusal says why, and what can be done instead."""
    with pytest.raises(ReplayError, match="own model said") as refused:
        check(Settings(design="append"), at_url=True)
    assert "--mode free" in str(refused.value)
    check(Settings(design="append", mode="free"), at_url=True)
    check(Settings(design="append"), at_url=False)


async def test_the_model_can_be_another_one() -> None:
    """The name that is given takes the place of the recorded one in each request."""
    model = Model([*AS_RECORDED])
    await driven(two_steps(), backend=model, settings=Settings(model="big"))
    assert [start.model for start in model.starts] == ["big", "big"]


async def test_a_report_reads_back() -> None:
    """What is written is what was found."""
    report = await driven(two_steps(), agents(), backend=Model([says(Text("No.\ud800"))]), settings=Settings(repeat=2))
    assert Report.decode(report.encode()) == report


# --- what follows what ------------------------------------------------------------------------------------


def posts(*inputs: list[Any], say: list[Any]) -> Recording:
    """Each input as a POST of its own, a second after the one before it."""
    recording = Recording()
    for n, (items, said) in enumerate(zip(inputs, say, strict=True)):
        client = recording.client(seed=f"{n:02d}" * 16, transport="sse")
        client.now = float(n)
        client.turn(*items, say=(said,), stream=True)
    return recording


def test_posts_that_continue_one_conversation_are_one_thread() -> None:
    """Each with its whole history; what is new in each is found."""
    said = {"type": "message", "role": "assistant", "content": "Hello."}
    recording = posts([user("Hi.")], [user("Hi."), said, user("Bye.")], say=[(Text("Hello."),), (Text("Bye."),)])
    course = Course.of(recording.fixture)
    assert [[turn.number for turn in thread] for thread in course.threads] == [[1, 2]]
    assert [item.value["content"][0]["text"] for item in course.turns[1].new] == ["Bye."]


def test_a_second_continuation_of_one_answer_is_a_thread_of_its_own() -> None:
    """A fork begins with all that it has, and an answer that nobody continued in these words continues nothing."""
    said = {"type": "message", "role": "assistant", "content": "Hello."}
    other = {"type": "message", "role": "assistant", "content": "Hell."}
    recording = posts(
        [user("Hi.")],
        [user("Hi."), said, user("A.")],
        [user("Hi."), said, user("B.")],
        [user("Hi."), other, user("C.")],
        say=[(Text("Hello."),), (Text("1"),), (Text("2"),), (Text("3"),)],
    )
    course = Course.of(recording.fixture)
    assert [[turn.number for turn in thread] for thread in course.threads] == [[1, 2], [3], [4]]
    assert [len(turn.new) for turn in course.turns] == [1, 1, 3, 3]


def test_two_runs_of_one_conversation_are_two_threads() -> None:
    """A recording that holds an agent twice is driven twice."""
    said = {"type": "message", "role": "assistant", "content": "Hello."}
    once = ([user("Hi.")], [user("Hi."), said, user("Bye.")])
    recording = posts(*once, *once, say=[(Text("Hello."),), (Text("Bye."),)] * 2)
    assert [[turn.number for turn in thread] for thread in Course.of(recording.fixture).threads] == [[1, 2], [3, 4]]


def test_lanes_of_one_socket_are_threads() -> None:
    """Each lane is a conversation, and they run beside each other."""
    recording = Recording()
    client = recording.client()
    client.turn(user("A."), say=((Text("1"),),), stream_id="a")
    client.turn(user("B."), say=((Text("2"),),), stream_id="b", follow=False)
    assert len(Course.of(recording.fixture).threads) == 2


async def test_an_interrupted_turn_is_left_out_and_the_next_goes_on(autojump_clock: trio.testing.MockClock) -> None:
    """What the client sends after an interrupt continues the last answer that was whole."""
    recording = Recording()
    client = recording.client()
    client.turn(user("Hi."), say=((Text("Hello."),),))
    last = client.last
    assert client.ask(user("Slow.")) is not None
    client.feed(ClientGone(1000))
    again = recording.client(seed="22" * 16)
    again.now = client.now
    said = {"type": "message", "role": "assistant", "content": "Hello."}
    again.turn(user("Hi."), said, user("Slow."), user("Stop."), say=((Text("Stopped."),),))
    course = Course.of(recording.fixture)
    assert last is not None and [[turn.number for turn in thread] for thread in course.threads] == [[1, 2]]
    assert len(course.turns[1].new) == 2 and len(course.left_out) == 1
    model = Model([says(Text("Hello.")), says(Text("Stopped."))])
    report = await driven(course, backend=model)
    assert report.verdicts.counts == {"equal": 2}
