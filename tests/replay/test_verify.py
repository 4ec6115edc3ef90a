"""Verification: a recording replays byte for byte, and any edit is found at its line."""

import pytest
from taped import Recording, user

from turntape.core.seam import CancelSample, Effect, Event, Sampled, Send, Text
from turntape.core.session import Session
from turntape.replay.errors import Divergence, FixtureUnreadable, ReplayError
from turntape.replay.fixture import Fixture
from turntape.replay.verify import verify


def test_a_recording_verifies(recording: Recording) -> None:
    """Everything that was recorded happens again, and is counted."""
    verified = verify(recording.fixture)
    assert (verified.n_sessions, verified.n_turns, verified.whole) == (2, 4, True)
    assert str(verified) == f"2 sessions, {verified.n_steps} steps, 4 turns: equal byte for byte"


def test_every_prefix_verifies(recording: Recording) -> None:
    """A recording that was cut off says nothing wrong, wherever it was cut."""
    content = recording.content
    for end in range(content.index(b"\n") + 1, len(content), 97):
        verify(Fixture.parse(content[:end]))
    assert "cut off" in str(verify(Fixture.parse(content[:-9])))


@pytest.mark.parametrize(
    "old, new",
    [
        (b'"hel","lo"', b'"hel","la"'),  # an increment, short
        (b'{\\"c"', b'{\\"k"'),  # an increment, in full
        (b'"r":["Let me "', b'"r":["Let us "'),  # reasoning
        (b'"a":["md', b'"a":["mb'),  # arguments
        (b'"text":"List the files."', b'"text":"List the failures."'),  # a client's text
        (b'"generate":false', b'"generate":false,"more":1'),  # a client's text, without any effect
        (b'"text":"no json"', b'"text":"no JSON"'),  # a client's text that is no JSON
        (b'"h":"', b'"h":"0'),  # a hash
        (b'"delta":"One "', b'"delta":"None"'),  # an effect, if it stands in full
        (b'"status":429', b'"status":430'),  # a failure
        (b'"cached":', b'"cached":1'),  # what a backend is told
        (b'"request":"', b'"request":"0'),  # the settings it is asked with
        (b'"n_output":1', b'"n_output":2'),  # a stored record
        (b'"code":1001', b'"code":1002'),  # an event without fields that matter
        (b"a rather long instruction", b"a rather lang instruction"),  # a value
        (b'"key":"', b'"key":"0'),  # what a sample answers
        (b'{"turn":1,"sample":"smp_', b'{"turn":1,"sample":"smp_0'),  # which sample
        (b'"seed":"0', b'"seed":"1'),  # where ids come from
        (b'"keepalive_s":15.0', b'"keepalive_s":16.0'),  # a limit
    ],
)
def test_one_edit_is_found_at_its_line(recording: Recording, old: bytes, new: bytes) -> None:
    """The first line that was changed is named, whatever was changed in it."""
    content = recording.content
    if old not in content:
        assert old == b'"delta":"One "'  # short lines hold a hash of it
        return
    edited = content.replace(old, new, 1)
    line = content[: content.index(old)].count(b"\n") + 1
    with pytest.raises(Divergence) as caught:
        verify(Fixture.parse(edited, name="f"))
    assert caught.value.line == line
    assert str(caught.value).startswith(f"f:{line}: ")


class Louder(Session):
    """A core with another opinion."""

    def receive(self, event: Event, *, now: float) -> list[Effect]:
        effects = super().receive(event, now=now)
        return [
            Send(tuple(e.replace(b'"hello"', b'"HELLO"') for e in f.data)) if isinstance(f, Send) else f
            for f in effects
        ]


def test_a_difference_is_shown_with_what_surrounds_it() -> None:
    """Which effect, where in it, and both sides."""
    recording = Recording()
    recording.client().turn(user("hi"), say=((Text("hello"), Text("!")),))
    with pytest.raises(Divergence, match=r"response\.output_text\.delta 'HELLO', response\.output_text\.delta '!'"):
        verify(recording.fixture, Louder)
    recording = Recording()
    client = recording.client()
    start = client.ask(user("hi"))
    assert start is not None
    client.feed(Sampled(start.sample_id, (Text("hello"), Text("x" * 400))))
    with pytest.raises(Divergence) as caught:
        verify(recording.fixture, Louder)
    assert "effect 1 (Send) differs at data." in str(caught.value)
    assert (caught.value.expected, caught.value.got) == ('"hello"', '"HELLO"')


class Careless(Session):
    """A core that cancels what nobody runs."""

    def receive(self, event: Event, *, now: float) -> list[Effect]:
        return [*super().receive(event, now=now), CancelSample("smp")]


def test_an_effect_too_many_is_named(recording: Recording) -> None:
    with pytest.raises(Divergence, match=r"effect 1 \(CancelSample\) is on one side only"):
        verify(recording.fixture, Careless)


def test_a_blob_that_is_gone_is_missed(recording: Recording) -> None:
    """A value cannot be lost in silence, whether events or only effects refer to it."""
    lines = recording.content.splitlines(keepends=True)
    blobs = [n for n, line in enumerate(lines) if line.startswith(b'{"blob"')]
    problems = set()
    for n in blobs:
        with pytest.raises(ReplayError, match="is missing") as caught:
            verify(Fixture.parse(b"".join(lines[:n] + lines[n + 1 :])))
        problems.add(type(caught.value))
    assert problems == {FixtureUnreadable, Divergence}


def test_turn_lines_stand_where_they_belong(recording: Recording) -> None:
    """A turn line that is taken away, doubled or moved is found: it would be counted, and lead an index astray."""
    lines = recording.content.splitlines(keepends=True)
    turns = [n for n, line in enumerate(lines) if line.startswith(b'{"turn"')]
    for n in turns[:-1]:
        for edited, at in (
            (lines[:n] + lines[n + 1 :], None),
            (lines[: n + 1] + lines[n:], n + 2),
            (lines[:n] + lines[n + 1 :] + [lines[n]], None),
        ):
            with pytest.raises(Divergence, match="turn line") as caught:
                verify(Fixture.parse(b"".join(edited)))
            assert at is None or caught.value.line == at


def test_only_the_last_line_may_be_half(recording: Recording) -> None:
    """Effects that are taken away from the middle of a file, or renamed, are missed; the file's end may lack its own."""
    lines = recording.content.splitlines(keepends=True)
    n = next(n for n, line in enumerate(lines) if b',"out":[{"type":"Send"' in line)
    half = lines[n][: lines[n].index(b',"out":')] + b"}\n"
    with pytest.raises(Divergence, match="the rest was taken away") as caught:
        verify(Fixture.parse(b"".join([*lines[:n], half, *lines[n + 1 :]])))
    assert caught.value.line == n + 1
    verify(Fixture.parse(b"".join([*lines[:n], half])))
    renamed = lines[n].replace(b',"out":', b',"oud":')
    with pytest.raises(FixtureUnreadable, match="'oud' is not part of it"):
        verify(Fixture.parse(b"".join([*lines[:n], renamed, *lines[n + 1 :]])))


@pytest.mark.parametrize("value", [b'"\\ud800"', b'{"$blob":{}}', b'{"$blob":[1]}', b"[" * 300 + b"]" * 300])
def test_nonsense_in_an_effect_is_a_difference(value: bytes) -> None:
    """Whatever stands in the place of a recorded value, the answer is a line and a reason, not a crash."""
    recording = Recording()
    recording.client().ask(user("hi"), generate=False)
    edited = recording.content.replace(b'"incomplete_details":null', b'"incomplete_details":' + value, 1)
    assert edited != recording.content
    with pytest.raises(Divergence):
        verify(Fixture.parse(edited + b"\n"))


def test_rules_can_be_edited(recording: Recording) -> None:
    """What may differ is a person's to say: it is not part of what was recorded."""
    edited = recording.content.replace(b'"rules":["codex"]', b'"rules":["codex",{"rule":"ignore","fields":["user"]}]')
    assert edited != recording.content
    verify(Fixture.parse(edited))
