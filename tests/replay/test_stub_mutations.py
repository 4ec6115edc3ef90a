"""What a stub must never take for the recorded run, and what is the recorded run all the same: one test for each."""

from collections.abc import Sequence
from typing import Any

import pytest
from stubbed import CALL, DONE, answered, places, refused, rollout, taken
from taped import TOOLS, Client, Recording, live, output, user

from turntape.core.seam import Finish, Text
from turntape.replay.fixture import Fixture
from turntape.replay.secrets import DEFAULT
from turntape.replay.stub import FixtureBackend
from turntape.transport.backends.base import Batch

FINISH: Batch = (Finish(),)


def load(recording: Recording, **options: Any) -> FixtureBackend:
    return FixtureBackend.load([Fixture.parse(recording.content, name="f.jsonl")], **options)


async def missed(backend: FixtureBackend, client: Client, *items: Any, **fields: Any) -> str:
    """What the client is told; the stub has counted it too."""
    error = await refused(backend, client.ask(*items, **fields))
    assert (error.code, error.status) == ("fixture_miss", 400)
    assert backend.misses[-1] == str(error)
    return str(error)


# --- each is a loud miss ------------------------------------------------------------------------------------


async def test_a_changed_prompt_is_a_miss() -> None:
    """The message shows both texts where they part."""
    said = await missed(load(rollout()), live(), user("List all."))
    assert 'item 1, a message, differs:\n    content.0.text: recorded "List.", got "List all."' in said


async def test_a_changed_tool_output_is_a_miss() -> None:
    """However small the change is, and although the user's own words are the same."""
    backend, client = load(rollout()), live()
    await answered(backend, client, user("List."))
    said = await missed(backend, client, output("call_1", "README.MD"))
    assert 'output: recorded "README.md", got "README.MD"' in said


def two_questions() -> Recording:
    """One lane on which two conversations were had, one after the other."""
    recording = Recording()
    client = recording.client()
    client.turn(user("first"), say=((Text("1"),),))
    client.turn(user("second"), say=((Text("2"),),), follow=False)
    return recording


async def test_swapped_turn_order_on_one_lane_is_a_miss() -> None:
    """Each request has its answer, but the recorded client asked the other one before; in order, both are answered."""
    recording = two_questions()
    backend = load(recording)
    said = await missed(backend, live(), user("second"))
    first, second = places(backend)
    assert said == (
        f"Turn 2 is asked before turn 1, at {second}: on one lane turns are played in recorded order, "
        f"and both are of session 1. Turn 1 is at {first}."
    )
    backend = load(recording)
    assert (await taken(backend, live().ask(user("first"))))[1] == (Text("1"),)
    assert (await taken(backend, live().ask(user("second"))))[1] == (Text("2"),)


async def test_two_chats_with_the_same_last_message_are_two() -> None:
    """Neither is answered with the other's take, though what was said last is the same."""
    recording = Recording()
    for seed, topic, answer in (("1" * 32, "cats", "meow"), ("2" * 32, "dogs", "woof")):
        client = recording.client(seed=seed)
        client.turn(user(f"I like {topic}."), say=((Text("Good."),),))
        client.turn(user("Say it."), say=((Text(answer),),))
    backend = load(recording)
    dogs, cats, birds = live(), live(), live()
    for client, topic, answer in ((dogs, "dogs", "woof"), (cats, "cats", "meow")):
        await answered(backend, client, user(f"I like {topic}."))
        assert (await answered(backend, client, user("Say it.")))[1] == (Text(answer),)
    history = [user("I like birds."), {"role": "assistant", "content": "Good."}, user("Say it.")]
    assert "item 1, a message, differs" in await missed(backend, birds, *history)


async def test_a_changed_tool_schema_is_a_miss() -> None:
    """Deep inside a tool's parameters, with its path."""
    properties = {"cmd": {"type": "string"}}
    changed = [{**TOOLS[0], "parameters": {"type": "object", "properties": properties}}]
    said = await missed(load(rollout()), live(), user("List."), tools=changed)
    assert 'tools.0.parameters.properties.cmd: recorded nothing, got {"type":"string"}' in said
    assert said.endswith("If that may differ: --ignore tools")


async def test_another_model_is_a_miss() -> None:
    """Unless a rule says otherwise: the model is compared like any other setting."""
    said = await missed(load(rollout()), live(), user("List."), model="other")
    assert "it was recorded with model 'm', not 'other'" in said
    assert said.endswith("If that may differ: --ignore model")


async def test_another_order_of_two_outputs_is_a_miss() -> None:
    """Call ids do not count, but which call an output answers does."""
    recording = Recording()
    client = recording.client()
    client.turn(user("List."), say=CALL)
    client.turn(output("call_1", "a"), user("b"), say=DONE)
    backend, other = load(recording), live()
    await answered(backend, other, user("List."))
    await missed(backend, other, output("call_1", "b"), user("a"))


# --- each is accepted ---------------------------------------------------------------------------------------


async def test_other_ids_are_accepted() -> None:
    """Of responses, items and calls: those of the live client name the same conversation."""
    backend = load(rollout())
    await taken(backend, live().ask(user("List."), follow=False))
    call = {"type": "function_call", "id": "fc_9", "call_id": "call_9", "name": "sh", "arguments": '{"cmd":"ls"}'}
    question = {**user("List."), "id": "msg_9"}
    start = live().ask(question, call, output("call_9", "README.md"))
    assert await taken(backend, start) == [(), *DONE, FINISH]
    assert not backend.misses and not backend.unused()


@pytest.mark.parametrize("transport", ["websocket", "sse"])
async def test_another_number_of_sockets_is_accepted(transport: str) -> None:
    """What was recorded on one socket is asked on two, or by one POST for each turn, with the history in full."""
    backend = load(rollout())
    await taken(backend, live(transport=transport).ask(user("List.")))
    call = {"type": "function_call", "call_id": "c", "name": "sh", "arguments": '{"cmd":"ls"}'}
    start = live(transport=transport).ask(user("List."), call, output("c", "README.md"))
    assert await taken(backend, start) == [(), *DONE, FINISH]
    assert not backend.unused()


async def test_one_socket_for_two_is_accepted() -> None:
    """Two recorded connections are two lanes, also where the live client has only one."""
    recording = Recording()
    for seed in "12":
        recording.client(seed=seed * 32).turn(user(seed), say=((Text(seed),),))
    backend, client = load(recording), live()
    for text in "21":
        assert (await answered(backend, client, user(text), follow=False))[1] == (Text(text),)


async def test_lanes_swapped_in_time_are_accepted() -> None:
    """Named lanes of one socket keep an order each, and none among each other."""
    recording = Recording()
    client = recording.client()
    for lane in ("a", "b"):
        for n in (1, 2):
            client.turn(user(f"{lane}{n}"), say=((Text(f"{lane}{n}!"),),), follow=False, stream_id=lane)
    backend = load(recording)
    for name in ("b1", "a1", "a2", "b2"):
        assert (await taken(backend, live().ask(user(name), follow=False)))[1] == (Text(f"{name}!"),)
    backend = load(recording)
    assert "both are of session 1, lane b" in await missed(backend, live(), user("b2"))


@pytest.mark.parametrize(
    ("rule", "recorded", "got"),
    [
        ({"kind": "date"}, "as of 2026-11-29", "as of 2027-01-02"),
        ({"kind": "uuid"}, "id 6f1b2c3d-0000-4000-8000-000000000001", "id 00000000-1111-4222-8333-444444444444"),
        ({"kind": "hash", "items": ["message"], "at": "content.*.text"}, "at 0b8811f", "at 318bf02"),
        ({"pattern": r"took \d+ ms", "with": "took …"}, "took 12 ms", "took 7 ms"),
    ],
)
async def test_values_under_a_declared_rule_are_accepted(rule: dict[str, Any], recorded: str, got: str) -> None:
    """And nothing beside them is."""
    recording = Recording()
    recording.client(rules=[{"rule": "replace", **rule}]).turn(user(f"{recorded} go"), say=DONE)
    assert await taken(load(recording), live().ask(user(f"{got} go"))) == [(), *DONE, FINISH]
    await missed(load(recording), live(), user(f"{got} stop"))


async def test_a_retry_after_a_dropped_answer_is_accepted() -> None:
    """A client that lost its connection in the middle asks again, on another one, and gets the answer from its beginning."""
    backend = load(rollout())
    start = live().ask(user("List."))
    assert start is not None
    async with backend.sample(start) as batches:
        assert [await anext(batches) for _ in range(2)] == [(), CALL[0]]
    client = live()
    assert await answered(backend, client, user("List.")) == [(), *CALL, FINISH]
    assert await answered(backend, client, output("call_1", "README.md")) == [(), *DONE, FINISH]
    assert not backend.misses and not backend.unused()


# --- policies -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "changes"),
    [("model", {"model": "other"}), ("tools", {"tools": []}), ("temperature", {"temperature": 0.5})],
)
async def test_a_setting_can_be_ignored_or_warned_of(field: str, changes: dict[str, Any]) -> None:
    """Ignored, nothing is said; warned of, the difference is said once; exact again, it is a miss."""
    notes: list[str] = []

    async def asked(*policies: str) -> Sequence[Batch]:
        rules = [{"rule": policy, "fields": [field]} for policy in policies]
        backend = load(rollout(), rules=rules, runs=2)
        backend.on_note = notes.append
        await taken(backend, live().ask(user("List."), **changes))
        batches = await taken(backend, live().ask(user("List."), **changes))
        assert len(backend.warnings) == (policies == ("warn",))
        return batches

    assert await asked("ignore") == [(), *CALL, FINISH] and not notes
    assert await asked("warn") == [(), *CALL, FINISH]
    [note] = notes
    assert note.startswith(
        f"warning: turn 1, at f.jsonl:5, is played although this differs, as its rules allow:\n    {field}"
    )
    await missed(
        load(rollout(), rules=[{"rule": "ignore", "fields": [field]}, {"rule": "exact", "fields": [field]}]),
        live(),
        user("List."),
        **changes,
    )


async def test_of_two_takes_the_one_without_a_warning_is_played() -> None:
    """Where one was recorded with the settings that are asked for, it is played, whatever was recorded first."""
    recording = Recording()
    for seed, effort in (("1" * 32, "low"), ("2" * 32, "high")):
        client = recording.client(seed=seed)
        client.turn(user("hi"), say=((Text(effort),),), reasoning={"effort": effort})
    backend = load(recording, rules=[{"rule": "warn", "fields": ["reasoning"]}])
    assert (await taken(backend, live().ask(user("hi"), reasoning={"effort": "high"})))[1] == (Text("high"),)
    assert not backend.warnings


async def test_a_key_in_a_request_is_equal_to_the_mask_in_the_recording() -> None:
    """What a masked recording says in place of a key does not make the live request with the key a miss."""
    key = "sk-proj-" + "Ab1" * 16
    prompt = DEFAULT.text(f"use {key} now")
    assert key not in prompt
    recording = Recording()
    recording.client().turn(user(prompt), say=DONE, user=DEFAULT.text(key))
    backend = load(recording)
    assert await taken(backend, live().ask(user(f"use {key} now"), user=key)) == [(), *DONE, FINISH]
    assert key not in await missed(backend, live(), user(f"use {key} twice"))
