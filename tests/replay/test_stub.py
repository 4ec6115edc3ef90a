"""A fixture as backend: the recorded take to the same conversation, and a loud miss to any other."""

import json

import pytest
import trio
from relayed import RelayFile
from stubbed import CALL, DONE, answered, refused, rollout, taken
from taped import CODEX, Client, Recording, live, output, user

from turntape.core.seam import (
    Arguments,
    Finish,
    Sampled,
    SampleFailed,
    Started,
    StartSample,
    Text,
    ToolCall,
)
from turntape.replay.errors import Divergence, ReplayError
from turntape.replay.fixture import Fixture
from turntape.replay.stub import FixtureBackend
from turntape.transport.backends.base import BackendError, Batch


async def test_the_same_conversation_is_answered_with_the_recorded_takes() -> None:
    """Batch for batch, with the recorded call ids, to a session that shares no id with the recording."""
    backend = FixtureBackend.load([rollout().fixture])
    client = live()
    client.ask(generate=False)
    assert await answered(backend, client, user("List.")) == [(), *CALL, (Finish(),)]
    assert await answered(backend, client, output("call_1", "README.md")) == [(), *DONE, (Finish(),)]
    assert backend.models == ("m",) and not backend.misses and not backend.unused()


async def test_a_client_that_sends_the_whole_history_is_answered_too() -> None:
    """Matching is on the conversation, whether it came as a chain or in one piece, over HTTP, without reasoning."""
    backend = FixtureBackend.load([rollout().fixture])
    await taken(backend, live(transport="sse").ask(user("List."), stream=True))
    call = {"type": "function_call", "call_id": "mine", "name": "sh", "arguments": '{"cmd":"ls"}', "id": None}
    history = [{"role": "user", "content": "List."}, call, output("mine", "README.md")]
    start = live(transport="sse").ask(*history, stream=True)
    assert await taken(backend, start) == [(), *DONE, (Finish(),)]


async def test_a_recorded_append_answers_a_chain() -> None:
    """Which of the two designs was recorded does not count."""
    recording = Recording()
    client = recording.client(dialect="append")
    client.turn(user("List."), say=CALL)
    effects = client.text(json.dumps({"type": "response.append", "input": [output("call_1", "README.md")]}))
    start = next(effect for effect in effects if isinstance(effect, StartSample))
    client.feed(Started(start.sample_id))
    client.feed(Sampled(start.sample_id, (*DONE[0], *DONE[1], Finish())))
    backend = FixtureBackend.load([recording.fixture])
    chain = live()
    await answered(backend, chain, user("List."))
    assert await answered(backend, chain, output("call_1", "README.md")) == [(), (*DONE[0], *DONE[1], Finish())]


async def test_several_takes_of_one_conversation_come_in_recorded_order() -> None:
    """Across files in the order given; then there are none left, and the miss says how many there were."""
    recordings = [Recording(), Recording()]
    for n, recording in enumerate(recordings):
        for seed in "12":
            recording.client(seed=seed * 32).turn(user("hi"), say=((Text(f"{n}{seed}"),),))
    backend = FixtureBackend.load([recording.fixture for recording in recordings])
    said = [(await taken(backend, live().ask(user("hi"))))[1] for _ in range(4)]
    assert said == [(Text(text),) for text in ("01", "02", "11", "12")]
    error = await refused(backend, live().ask(user("hi")))
    assert "the same in all; it was recorded 4 times, and every take has been played" in str(error)


async def test_a_take_that_was_not_delivered_goes_back(autojump_clock: trio.testing.MockClock) -> None:
    """A client that left in the middle asks again and gets it from its beginning, before later takes."""
    recording = Recording()
    for seed in "12":
        recording.client(seed=seed * 32).turn(user("hi"), say=((Text("a"),), (Text(seed),)))
    backend = FixtureBackend.load([recording.fixture])
    start = live().ask(user("hi"))
    assert start is not None
    async with backend.sample(start) as batches:
        assert [await anext(batches) for _ in range(3)] == [(), (Text("a"),), (Text("1"),)]
    assert len(backend.unused()) == 1  # neither was played: one line for the file
    assert (await taken(backend, start))[2] == (Text("1"),)
    assert (await taken(backend, start))[2] == (Text("2"),)


async def test_a_recorded_failure_fails_the_same_way(recording: Recording) -> None:
    """With its code, status and retry-after."""
    backend = FixtureBackend.load([Fixture.parse(recording.content)])
    client = live()
    fields = {"instructions": json.loads(_instructions(recording))}
    call = {"type": "function_call", "call_id": "c", "name": "sh", "arguments": '{"cmd":"ls"}'}
    said = {"type": "message", "role": "assistant", "content": "One " + "file. " * 300}
    history = [user("List the files."), call, output("c", "README.md\n" * 200), said, user("Once more.")]
    for n in (1, 3):  # the turns before it on its lane
        await taken(backend, live().ask(*history[:n], **fields))
    error = await refused(backend, client.ask(*history, **fields))
    assert (str(error), error.code, error.status, error.retry_after) == ("Slow down.", "rate_limit_exceeded", 429, "7")
    assert not backend.misses


def _instructions(recording: Recording) -> str:
    blob = next(line for line in recording.content.splitlines() if b"a rather long instruction" in line)
    return json.dumps(json.loads(blob)["value"])


async def test_another_output_is_a_miss_that_says_where_and_what_would_allow_it() -> None:
    """An error of status 400 before any response: the nearest turn, the item, the difference, the rule."""
    recording = Recording()
    client = recording.client()
    client.turn(user("List."), say=CALL)
    client.turn(output("call_1", "Took 12 ms\nREADME.md"), say=DONE)
    backend = FixtureBackend.load([Fixture.parse(recording.content, name="a.jsonl")])
    other = live()
    await answered(backend, other, user("List."))
    start = other.ask(output("call_1", "Took 7 ms\nREADME.md"))
    error = await refused(backend, start)
    assert (error.code, error.status, error.retry_after) == ("fixture_miss", 400, None)
    line = next(
        step.line for step in [*recording.fixture.steps] if step.out and "call_1" in str(step.packed) and step.at > 0.4
    )
    assert str(error) == (
        f"No recorded turn answers this request. Nearest is turn 2, at a.jsonl:{line}; "
        "item 3, a function_call_output, differs:\n"
        '    output: recorded "Took 12 ms\\nREADME.md", got "Took 7 ms\\nREADME.md"\n'
        "  If that may differ: --rules FILE, a file with "
        '[{"rule":"replace","items":["function_call_output"],"at":"output","pattern":"Took \\\\S+","with":"…"}]'
    )
    assert backend.misses == [str(error)]
    assert backend.unused() == [f"a.jsonl:{line}: this turn was not played"]
    rules = json.loads(str(error).rpartition("a file with ")[2])
    allowing = FixtureBackend.load([recording.fixture], rules=rules)
    await taken(allowing, live().ask(user("List.")))
    assert await taken(allowing, start) == [(), *DONE, (Finish(),)]


async def test_other_settings_are_a_miss_that_names_them() -> None:
    """The conversation is known, the request is not the same."""
    backend = FixtureBackend.load([rollout().fixture])
    error = await refused(backend, live().ask(user("List."), temperature=0.5, tools=[]))
    assert "of the same conversation; its settings differ:\n    tools.0: recorded {" in str(error)
    assert "\n    temperature: recorded nothing, got 0.5" in str(error)
    assert str(error).endswith("\n  If that may differ: --ignore temperature --ignore tools")
    error = await refused(backend, live().ask(user("List."), model="other", temperature=0.5))
    assert "it was recorded with model 'm', not 'other'; its settings differ:" in str(error)
    assert str(error).endswith("\n  If that may differ: --ignore model --ignore temperature")
    error = await refused(backend, live().ask(user("List."), instructions="Today is 2027-01-02."))
    assert "--ignore instructions" in str(error)


async def test_every_item_that_differs_is_shown_and_what_is_proposed_lets_all_pass() -> None:
    """Pasted as it stands, with the settings that differ too, it is enough."""
    recording = Recording()
    recording.client().turn(user("It is 2026-11-29."), user('{"run":"r_81"}'), user("Same."), say=DONE, temperature=1)
    start = live().ask(user("It is 2027-01-02."), user('{"run":"r_9x"}'), user("Same."), temperature=0.5)
    error = await refused(FixtureBackend.load([recording.fixture]), start)
    assert "item 1, a message, differs:" in str(error) and "; item 2, a message, differs:" in str(error)
    assert "\n  and its settings differ:\n    temperature: recorded 1, got 0.5" in str(error)
    ignored, _, rules = str(error).rpartition(" and --rules FILE, a file with ")
    assert ignored.endswith("\n  If that may differ: --ignore temperature")
    found = [*json.loads(rules), {"rule": "ignore", "fields": ["temperature"]}]
    assert await taken(FixtureBackend.load([recording.fixture], rules=found), start) == [(), *DONE, (Finish(),)]


async def test_of_many_items_that_differ_some_are_shown() -> None:
    """A miss is for a terminal: the rest is counted, and what would need a heap of rules has none."""
    recording = Recording()
    recording.client().turn(*(user(f"{chr(65 + n)}: x{n}") for n in range(12)), say=DONE)
    start = live().ask(*(user(f"{chr(65 + n)}: y{n}") for n in range(12)))
    error = str(await refused(FixtureBackend.load([recording.fixture]), start))
    assert error.count("differs:") == 5 and error.endswith("; and 7 more")


async def test_a_longer_and_a_shorter_conversation_are_misses() -> None:
    """Nothing is guessed from a beginning or an end: the whole conversation is compared."""
    backend = FixtureBackend.load([rollout().fixture])
    client = live()
    await answered(backend, client, user("List."))
    error = await refused(backend, client.ask(output("call_1", "README.md"), user("Quick!")))
    assert "which ends where this conversation goes on: item 4 here is a message" in str(error)
    error = await refused(backend, live().ask())
    assert "which goes on where this conversation ends: its item 1 is a message" in str(error)
    error = await refused(backend, live().ask(user("Liszt.")))
    assert 'item 1, a message, differs:\n    content.0.text: recorded "List.", got "Liszt."' in str(error)


async def test_a_take_names_the_live_folder() -> None:
    """A call that names the recorded folder, split over deltas, acts on the client's own; the echo matches again."""
    say: tuple[Batch, ...] = (
        (Text("In /rec"),),
        (Text("orded/w/"), Text("x."), ToolCall("c1", "sh"), Arguments('{"cmd":"ls /re')),
        (Arguments("cor"), Arguments('ded/w/src /recorded/wide"}')),
        (ToolCall("c2", "patch", None, True), Arguments("/recorded/w")),
    )
    recording = Recording()
    client = recording.client(agent=CODEX)
    client.turn(user("<cwd>/recorded/w</cwd>"), say=say)
    client.turn(output("c1", "/recorded/w/src:"), output("c2", "ok"), say=DONE)
    backend = FixtureBackend.load([recording.fixture])
    other = live()
    cwd = 'C:\\my "work"'
    batches = await answered(backend, other, user(f"<cwd>{cwd}</cwd>"))
    increments = [increment for batch in batches for increment in batch]
    texts = "".join(i.text for i in increments if isinstance(i, Text))
    first, second = (n for n, i in enumerate(increments) if isinstance(i, ToolCall))
    arguments = "".join(i.text for i in increments[first:second] if isinstance(i, Arguments))
    patch = "".join(i.text for i in increments[second:] if isinstance(i, Arguments))
    assert texts == f"In {cwd}/x."
    assert json.loads(arguments) == {"cmd": f"ls {cwd}/src /recorded/wide"}
    assert patch == cwd
    assert [len(batch) for batch in batches] == [0, 1, 4, 2, 2, 1]
    assert await answered(backend, other, output("c1", f"{cwd}/src:"), output("c2", "ok")) == [(), *DONE, (Finish(),)]


async def test_takes_can_be_as_slow_as_recorded(autojump_clock: trio.testing.MockClock) -> None:
    """Without a speed nothing waits; with one, offsets are the recorded ones, scaled."""
    for speed, expected in ((float("inf"), [0.0] * 4), (1.0, [0.1, 0.2, 0.3, 0.4]), (2.0, [0.05, 0.1, 0.15, 0.2])):
        backend = FixtureBackend.load([rollout().fixture], speed=speed)
        start = live().ask(user("List."))
        assert start is not None
        began, times = trio.current_time(), []
        async with backend.sample(start) as batches:
            async for _ in batches:
                times.append(round(trio.current_time() - began, 6))
        assert times == expected


async def test_a_cancelled_sample_is_no_take() -> None:
    """Nobody knows how it would have ended: the conversation was recorded, but not its answer."""

    def interrupted(client: Client) -> None:
        start = client.ask(user("More."))
        assert start is not None
        client.feed(Sampled(start.sample_id, (Text("half"),)))

    backend = FixtureBackend.load([rollout(interrupted).fixture])
    assert backend.n_takes == 2
    with pytest.raises(ReplayError, match="There is nothing to play: fixture holds no finished turn"):
        FixtureBackend.load([Recording().fixture])


async def test_fixtures_keep_their_own_rules() -> None:
    """What one file's rules allow is not allowed to another."""
    loose = Recording()
    loose.client(rules=[{"rule": "replace", "pattern": r"\d+", "with": "N"}]).turn(
        user("take 1"), say=((Text("loose"),),)
    )
    exact = Recording()
    exact.client().turn(user("take 2"), say=((Text("exact"),),))
    backend = FixtureBackend.load([exact.fixture, loose.fixture])
    assert (await taken(backend, live().ask(user("take 2"))))[1] == (Text("exact"),)
    assert (await taken(backend, live().ask(user("take 3"))))[1] == (Text("loose"),)


async def test_unused_takes_and_files_are_listed() -> None:
    """For --strict: a test that plays half a fixture has not tested what the fixture shows."""
    fixtures = [Fixture.parse(rollout().content, name=name) for name in ("a.jsonl", "b.jsonl")]
    backend = FixtureBackend.load(fixtures)
    await taken(backend, live().ask(user("List.")))
    first, second = backend.unused()
    assert first.startswith("a.jsonl:") and first.endswith("this turn was not played")
    assert second == "b.jsonl: none of its 2 turns was played"


async def test_an_edited_fixture_still_plays() -> None:
    """A person may change what was said; verify will say so, the stub plays it."""
    content = rollout().content.replace(b'"d":["file."]', b'"d":["FILE."]')
    backend = FixtureBackend.load([Fixture.parse(content)])
    client = live()
    await answered(backend, client, user("List."))
    assert (Text("FILE."),) in await answered(backend, client, output("call_1", "README.md"))


def test_a_fixture_that_starts_other_samples_today_is_refused() -> None:
    """Takes that today's core would not ask for cannot be found: the line is named, not a miss later."""
    content = rollout().content.replace(b'"seed":"00', b'"seed":"11')
    with pytest.raises(Divergence, match="starts other samples here"):
        FixtureBackend.load([Fixture.parse(content)])


def test_a_failure_before_acceptance_is_a_refusal() -> None:
    """A take may begin with a failure: no batch comes before it."""
    recording = Recording()
    client = recording.client()
    start = client.ask(user("hi"))
    assert start is not None
    client.feed(SampleFailed(start.sample_id, "model_not_found", "No such model.", status=404, param="model"))
    backend = FixtureBackend.load([recording.fixture])

    async def main() -> BackendError:
        return await refused(backend, live().ask(user("hi")))

    error = trio.run(main)
    assert (error.code, error.status, error.param) == ("model_not_found", 404, "model")


def test_what_a_relay_recorded_and_no_turn_can_say_is_listed() -> None:
    """Before anything is played: nothing of a recording is dropped in silence."""
    file = RelayFile()
    socket = file.socket()
    socket.turn(user("A"), say=[(Text("a"),)])
    socket.turn(user("B"), say=[(Text("b"),)], follow=False)
    file.lines[3]["json"]["input"].append({"type": "compaction_trigger"})
    backend = FixtureBackend.load([file.fixture])
    assert backend.n_takes == 1
    [lost] = backend.not_replayable
    assert lost.startswith(f"{file.fixture.name}:4: ") and "compaction_trigger" in lost
