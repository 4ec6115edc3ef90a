"""What scan finds in a recording that was written without a masker."""

import random
from pathlib import Path

import pytest
from taped import Client, Recording, user

from turntape.core.seam import Arguments, Reasoning, Text, ToolCall
from turntape.core.session import Session
from turntape.replay.fixture import Fixture
from turntape.replay.recorder import Recorder
from turntape.replay.scanning import Found, scan
from turntape.replay.secrets import DEFAULT, Masker
from turntape.replay.shapes import SHAPES

BODY = "Ab3dE6gH9jK2mN5pQ8sT1vW4yZ7b"
KEY = "sk-proj-" + BODY
FIXTURES = [*Path(__file__).parents[2].glob("fixtures/*.jsonl"), *Path(__file__).parents[2].glob("docs/*.jsonl")]


def unmasked() -> tuple[Recording, Client]:
    """A recording whose recorder knows private keys alone."""
    recording = Recording()
    pem = Masker(shapes=tuple(shape for shape in SHAPES if shape.kind == "private key"))
    return recording, Client(Recorder(Session(), recording.tape, masker=pem))


def scanned(recording: Recording) -> list[Found]:
    return scan(recording.content, recording.fixture)


def test_a_key_is_found_with_its_line_and_place_and_not_shown() -> None:
    """In a request, and wherever the session repeated it."""
    recording, client = unmasked()
    client.turn(user(f"my key is {KEY}, see?"), say=((Text("ok"),),))
    found = scanned(recording)
    assert [one.line for one in found if one.certain] == [3]
    (first,) = found
    assert (first.kind, first.place) == ("OpenAI key", "step, text")
    assert '"my key is sk-proj-[masked], see?"' in first.excerpt
    assert BODY not in repr(found)


def test_a_key_that_is_split_over_lines_is_found() -> None:
    """In text, reasoning and arguments: from the line where it begins to the one where it ends."""
    recording, client = unmasked()
    said = (
        *((Reasoning(KEY[at : at + 9]),) for at in range(0, len(KEY), 9)),
        (Text("It is "),),
        *((Text(KEY[at : at + 5]),) for at in range(0, len(KEY), 5)),
        (Text(", really."),),
        (ToolCall("call_1", "sh"),),
        (Arguments('{"cmd":"echo ' + KEY[:20]),),
        (Arguments(KEY[20:] + '"}'),),
    )
    client.turn(user("hi"), say=said)
    pieces = {one.place: one for one in scanned(recording) if one.line != one.last_line}
    assert [*pieces] == ["reasoning, in 4 pieces", "text, in 7 pieces", "arguments, in 2 pieces"]
    text = pieces["text, in 7 pieces"]
    assert text.excerpt == "It is sk-proj-[masked], really." and text.last_line - text.line == 6


def test_an_escaped_key_is_found() -> None:
    """A request may escape what needs no escape, and is understood all the same."""
    recording, client = unmasked()
    client.text('{"type":"response.create","model":"m","input":"\\u0073k-proj-' + BODY + '"}')
    assert "request, escaped" in {one.place for one in scanned(recording) if one.certain}


def test_random_text_is_a_warning() -> None:
    """It may be a secret or an id of somebody's: it is listed, and not certain."""
    recording, client = unmasked()
    client.turn(user("xK9vQ2mZ7rT4wB8nL5pD3hJ6fG1sA0cV"), say=((Text("ok"),),))
    assert {(one.kind, one.certain) for one in scanned(recording)} == {("random text", False)}


def test_a_configured_value_is_found() -> None:
    """What no shape tells is found by its value."""
    recording, client = unmasked()
    client.turn(user("open sesame42!"), say=((Text("open"),), (Text(" ses"),), (Text("ame42!"),)))
    assert not scanned(recording)
    found = scan(recording.content, recording.fixture, Masker.of(["sesame42"]))
    assert len({one.line for one in found}) > 2 and all(one.certain for one in found)
    assert "sesame" not in repr(found)


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_the_recordings_of_this_repository_are_clean(path: Path) -> None:
    """No finding, and no warning either."""
    assert not scan(path.read_bytes(), Fixture.load(path))


def test_a_masked_recording_is_clean() -> None:
    """What record writes, scan has nothing to say of, however the key was split."""
    chance = random.Random(1)
    for _ in range(20):
        recording = Recording()
        cuts = sorted(chance.sample(range(1, len(KEY)), 5))
        parts = [KEY[a:b] for a, b in zip([0, *cuts], [*cuts, len(KEY)], strict=True)]
        recording.client().turn(user(KEY), say=tuple((Text(part),) for part in parts))
        assert not scan(recording.content, recording.fixture, DEFAULT)
