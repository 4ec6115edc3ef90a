"""A recording of a session in which keys were said: none is in the file, and the file is whole in itself."""

import random
from typing import Any

import orjson
import pytest
from attrs import evolve, fields_dict
from taped import Client, Recording, output, user

from turntape.core.seam import (
    Arguments,
    ClientGone,
    ClientText,
    Effect,
    Encrypted,
    Event,
    Finish,
    Increment,
    Loaded,
    Opened,
    Reasoning,
    Refusal,
    Sampled,
    SampleFailed,
    Saved,
    Send,
    Started,
    StoreFailed,
    Summary,
    Text,
    ToolCall,
)
from turntape.core.session import Session
from turntape.replay.fixture import Fixture
from turntape.replay.masking import EventMasker
from turntape.replay.recorder import Recorder
from turntape.replay.secrets import DEFAULT, Masker
from turntape.replay.shadow import copied
from turntape.replay.takes import refeed, takes
from turntape.replay.verify import verify

BODY = "Ab3dE6gH9jK2mN5pQ8sT1vW4yZ7b"
KEY = "sk-proj-" + BODY


def pieces(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def a_session_full_of_keys(client: Client) -> None:
    """A key in every kind of event that holds a text, whole and split."""
    client.ask(generate=False, instructions=f"Use {KEY} and nothing else.")
    said: tuple[tuple[Increment, ...], ...] = (
        *((Reasoning(piece),) for piece in pieces(f"I see {KEY} here.", 5)),
        (Summary("The key "), Summary(KEY[:12]), Summary(KEY[12:])),
        (Encrypted(KEY),),
        *((Text(piece),) for piece in pieces(f"Your key is {KEY}.", 7)),
        (ToolCall("call_1", "sh"),),
        *((Arguments(piece),) for piece in pieces(orjson.dumps({"cmd": f"echo\n{KEY}\n"}).decode(), 6)),
    )
    client.turn(user(f"my key is {KEY}"), say=said, instructions=f"Use {KEY}.", include=["reasoning.encrypted_content"])
    client.turn(output("call_1", f"{KEY}\n"), say=((Text("do"), Text("ne")), (Refusal(KEY),)), metadata={"key": KEY})
    client.text(
        '{"type":"response.create","model":"m","input":"\\u0073k-proj-' + BODY + '"}'
    )  # escaped, and read all the same
    sample = client.session.session.lanes[None].sample_id
    client.feed(SampleFailed(sample, "invalid_api_key", f"Incorrect API key provided: {KEY}.", status=401))
    client.text(f"no json: {KEY}")
    start = client.ask(user("kept"), store=True)
    assert start is not None
    client.feed(Sampled(start.sample_id, (Text("It is " + KEY), Finish())))
    client.feed(StoreFailed(None, f"sqlite://u:{BODY}@h is locked"))
    client.ask(user("x"), follow=False, previous_response_id="resp_" + "0" * 32)
    client.feed(Loaded(None, (orjson.dumps(user(f"earlier: {KEY}")),)))
    client.feed(ClientGone(1000))


def test_no_key_of_any_event_is_in_the_file() -> None:
    """Requests, answers, failures, stored items and what all of them cause: every place is masked."""
    recording = Recording()
    a_session_full_of_keys(recording.client(agent=f"mine/1 {KEY}"))
    assert BODY.encode() not in recording.content and BODY[10:].encode() not in recording.content
    assert recording.content.count(b"sk-proj-[masked]") > 12


def test_a_masked_recording_verifies_and_its_client_saw_the_truth() -> None:
    """The file is byte for byte what a session makes of the masked events; the answers are those of the real ones."""
    recording, plain = Recording(), Client(Session())
    masked = recording.client()
    for client in (masked, plain):
        client.turn(user(KEY), say=((Text("It is sk-proj-"),), (Text(BODY),), (Text("."),)))
        client.turn(user("again"), say=((Text("no"),),))
    assert masked.sent == plain.sent
    verified = verify(recording.fixture)
    assert (verified.n_turns, verified.n_steps) == (2, 11)
    first, second = takes(recording.fixture)
    assert [[*event.batch] for _, event in first.events if isinstance(event, Sampled)] == [
        [Text("It is sk-proj-")],
        [Text("")],
        [Text("[masked].")],
        [Finish()],
    ]
    assert second.start.context.items_after(None)[1].value["content"][0]["text"] == "It is sk-proj-[masked]."


def test_everything_masked_verifies_too() -> None:
    """Also refusals, failures, loads and a request that is no JSON."""
    recording = Recording()
    a_session_full_of_keys(recording.client(agent=f"mine/1 {KEY}"))
    verify(recording.fixture)
    assert recording.tape.n_lost == 0


def test_a_recording_without_secrets_is_as_it_was(recording: Recording) -> None:
    """Not a byte differs from one whose masker knows no shape."""
    unmasked = Recording()
    sessions: dict[int, Recorder] = {}
    for step in recording.fixture.steps:
        if isinstance(step.event, Opened):
            ignorant = Masker(shapes=DEFAULT.shapes[:1])
            sessions[step.session] = Recorder(Session(), unmasked.tape, step.rules, masker=ignorant)
        sessions[step.session].receive(step.event, now=step.at)
    assert unmasked.content == recording.content


def test_what_was_held_comes_with_the_end_of_its_text() -> None:
    """Something that began as a key and was none is in the recording, before the next item and before a failure."""
    recording = Recording()
    client = recording.client()
    client.turn(user("a"), say=((Text("sk-"),), (Text("learn"),)))
    client.turn(user("b"), say=((Reasoning("sk-"), Reasoning("learn")), (Text("x"),)))
    start = client.ask(user("c"))
    assert start is not None
    client.feed(Started(start.sample_id))
    client.feed(Sampled(start.sample_id, (Text("sk-"),)))
    client.feed(Sampled(start.sample_id, (Text("learn"),)))
    client.feed(SampleFailed(start.sample_id, "server_error"))
    verify(recording.fixture)
    said = [[item.value for item in take.said()] for take in takes(recording.fixture)]
    texts = [orjson.dumps(items).count(b'"text":"sk-learn"') for items in said]
    assert texts == [1, 1, 1]


def test_a_refused_secret_ends_the_recording_and_not_the_session() -> None:
    """Nothing from that event on is written, of any session; the reason says what and where, not the secret."""
    recording = Recording()
    recording.tape.refuses = True
    one, other = recording.client(), recording.client(seed="11" * 16)
    one.turn(user("hi"), say=((Text("hello"),),))
    before = recording.content
    one.turn(user("and?"), say=((Text("sk-proj-" + BODY[:9]),), (Text(BODY[9:] + " "),), (Text("there"),)))
    other.turn(user("hi"), say=((Text("hello"),),))
    assert one.sent[-1]["type"] == other.sent[-1]["type"] == "response.completed"
    assert one.sent[-1]["response"]["output"][0]["content"][0]["text"] == KEY + " there"
    assert recording.tape.refused == "OpenAI key in an answer"
    assert recording.content.startswith(before) and BODY[:9].encode() not in recording.content
    assert recording.fixture.counts.n_turns == recording.tape.counts.n_turns == 1
    verify(recording.fixture)


class Faulty(Session):
    """Fails at a client's text."""

    def receive(self, event: Event, *, now: float) -> list[Effect]:
        if isinstance(event, ClientText):
            raise AssertionError("a bug")  # noqa: TRY004
        return super().receive(event, now=now)


def test_a_bug_passes_through_a_masked_recording() -> None:
    """The driver gets the session's own exception, and the line says that it ended in one."""
    recording = Recording()
    recorder = Recorder(Faulty(), recording.tape)
    recorder.receive(Opened(seed="aa", wall=0.0), now=0.0)
    with pytest.raises(AssertionError, match="a bug"):
        recorder.receive(ClientText(f"deadly {KEY}"), now=0.5)
    assert [step.raised for step in recording.fixture.steps] == [None, "AssertionError"]
    assert BODY.encode() not in recording.content


def test_two_keys_as_names_end_the_recording_of_their_session_only() -> None:
    """Once masked they are one name; what can no longer be told apart is not written, and the client is served."""
    recording = Recording()
    client = recording.client()
    ids = [f"sk-proj-{BODY}{n}" for n in range(2)]
    starts = [client.ask(user("hi"), stream_id=name) for name in ids]
    for name, start in zip(ids, starts, strict=True):
        assert start is not None
        client.feed(Sampled(start.sample_id, (Text("ok"), Finish())))
        assert client.sent[-1]["type"] == "response.completed" and client.sent[-1]["stream_id"] == name
    assert BODY.encode() not in recording.content
    verify(recording.fixture)


@pytest.mark.parametrize("n", range(0, 40, 3))
def test_a_copied_session_goes_on_as_the_first_would_have(recording: Recording, n: int) -> None:
    """At every point of a recording, and neither knows what the other is fed."""
    sessions: dict[int, Any] = {}
    for number, (step, effects, _) in enumerate(refeed(recording.fixture)):
        session = sessions.setdefault(step.session, Session())
        if number == n:
            left = copied(session)
            if not left.closed:
                left.receive(ClientText("{}"), now=step.at)
            sessions[step.session] = session = copied(session)
        again = session.receive(step.event, now=step.at)
        assert [*map(type, again)] == [*map(type, effects)]
        assert [e.data for e in again if isinstance(e, Send)] == [e.data for e in effects if isinstance(e, Send)]


def test_every_field_with_a_text_is_looked_at() -> None:
    """An event that gains a field gains its masking."""
    masker = EventMasker(DEFAULT)
    for event in (
        Opened(seed="00", wall=0.0, agent=KEY, owner=KEY, default_model=KEY),
        SampleFailed("smp", KEY, KEY, 500, KEY, KEY),
        Loaded(KEY, (KEY.encode(),), (KEY.encode(), None)),
        StoreFailed(KEY, KEY),
        Saved(KEY),
        Sampled("smp", (ToolCall(KEY, KEY, KEY), Encrypted(KEY))),
    ):
        (masked,) = masker.masked(event)
        assert type(masked) is type(event) and BODY not in repr(masked) and masker.found
        assert evolve(masked) == masked and fields_dict(type(masked))  # frozen values, still of their class


@pytest.mark.parametrize("seed", range(20))
def test_a_text_is_masked_however_it_is_split(seed: int) -> None:
    """Over increments and over reads: what the recording says is the masked text."""
    chance = random.Random(seed)
    text = f"a {KEY} b sk-learn c Bearer {BODY}\nAKIAIOSFODNN7EXAMPLE."
    cuts = sorted(chance.sample(range(len(text)), 12))
    parts = [Text(text[a:b]) for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    batches = [tuple(parts[n : n + 3]) for n in range(0, len(parts), 3)]
    recording = Recording()
    recording.client().turn(user("hi"), say=tuple(batches))
    verify(recording.fixture)
    (take,) = takes(recording.fixture)
    assert take.said()[0].value["content"][0]["text"] == DEFAULT.text(text)
    assert len(take.events) == len(batches) + 2  # Started and Finish


def test_a_cut_masked_recording_is_a_shorter_one() -> None:
    """Wherever it is cut off, what is left verifies."""
    recording = Recording()
    recording.client().turn(user(KEY), say=((Text("It is sk-proj-"),), (Text(BODY),), (Text("."),)))
    for end in range(20, len(recording.content), 23):
        verify(Fixture.parse(recording.content[:end]))
