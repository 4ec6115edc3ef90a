"""The file format: everything of the seam survives it, at any length of file."""

import json
import re
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from taped import Recording, user

from turntape.core import seam
from turntape.core.seam import ClientText, Event, Increment, Loaded, Sampled, Save, Send, Text
from turntape.replay.errors import Divergence, FixtureUnreadable
from turntape.replay.fixture import Fixture
from turntape.replay.packing import BLOB_BYTES, Packer, Unpacker, decode
from turntape.replay.verify import verify

TEXTS = st.text(max_size=30) | st.just("ü" * 1200) | st.text(alphabet=st.characters(codec=None), max_size=5)
NAMES = st.sampled_from(
    ["$blob", "$like", "$same", "$each", "response", "input", "output", "items", "item", "part", "delta", "text", "a"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9) | st.just("x" * 1100),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
ENCODED = JSON.map(orjson.dumps)


def of_class(cls: type) -> st.SearchStrategy[Any]:
    """Any instance of a class of the seam."""
    fields = attrs.fields_dict(attrs.resolve_types(cls))
    return st.builds(cls, **{name: of_type(attribute.type) for name, attribute in fields.items()})


def of_type(type_: Any) -> st.SearchStrategy[Any]:
    if type_ is str:
        return TEXTS
    if type_ is bytes:
        return ENCODED.filter(lambda encoded: encoded != b"null")  # items and responses are objects
    if type_ is int:
        return st.integers(-(2**63), 2**63 - 1)
    if type_ is float:
        return st.floats(allow_nan=False, allow_infinity=False)
    if type_ == Increment or (hasattr(type_, "__args__") and getattr(type_, "__origin__", None) is not tuple):
        return st.one_of(*map(of_type, type_.__args__))
    if getattr(type_, "__origin__", None) is tuple:
        return st.lists(of_type(type_.__args__[0]), max_size=3).map(tuple)
    return of_class(type_) if attrs.has(type_) else st.from_type(type_)


def through_the_file(packer: Packer, row: dict[str, Any]) -> tuple[Any, Unpacker]:
    line = decode(orjson.dumps(row))
    return line, Unpacker({name: decode(encoded) for name, encoded in packer.new.items()})


@settings(deadline=None)
@given(st.one_of(*map(of_class, Event.__args__)))
def test_every_event_is_read_back_as_it_was(event: Event) -> None:
    """Whatever an event holds, lone surrogates and somebody's own "$blob" included, the file gives it back."""
    packer = Packer()
    line, unpacker = through_the_file(packer, packer.event(event))
    assert unpacker.event(line) == event


@settings(deadline=None)
@given(ENCODED, st.sampled_from([None, ", ", "spaces"]))
def test_every_client_text_is_read_back_to_the_byte(encoded: bytes, style: str | None) -> None:
    """However the client spaced and escaped its JSON."""
    text = encoded.decode()
    if style is not None:
        text = json.dumps(orjson.loads(encoded)) if style == ", " else json.dumps(orjson.loads(encoded), indent=2)
    packer = Packer()
    line, unpacker = through_the_file(packer, packer.event(ClientText(text)))
    assert unpacker.event(line) == ClientText(text)


@settings(deadline=None)
@given(st.lists(ENCODED, max_size=4))
def test_effects_are_read_back_as_the_values_they_were(entries: list[bytes]) -> None:
    """What was sent, and what was to be stored."""
    record = seam.Record("r", None, "o", 1, entries[0] if entries else b"{}", tuple(entries), len(entries))
    packer = Packer()
    rows, unpacker = through_the_file(packer, [*packer.effects([Send(tuple(entries)), Save(None, record)])])
    sent, saved = unpacker.effects(rows)
    assert [orjson.dumps(value) for value in sent["data"]] == entries
    assert [orjson.dumps(value) for value in saved["record"]["items"]] == entries


SHARED = st.sampled_from(
    [user("a" * 500), user("b" * 700), user("c"), user("d" * 2000), {"$blob": "x"}, "e" * 900, 1, 1.0]
)


@settings(deadline=None)
@given(st.lists(st.lists(SHARED, max_size=6), max_size=6), st.booleans())
def test_histories_that_begin_alike_are_read_back_to_the_byte(histories: list[list[Any]], spaced: bool) -> None:
    """Whatever of an earlier request a later one repeats, and in whatever order they came."""
    packer, blobs = Packer(), dict[str, Any]()
    unpacker = Unpacker(blobs)
    for history in histories:
        value = {"type": "response.create", "input": history}
        text = json.dumps(value) if spaced else orjson.dumps(value).decode()
        line = decode(orjson.dumps(packer.event(ClientText(text))))
        blobs.update({name: decode(encoded) for name, encoded in packer.new.items()})
        for name, row in packer.new_arrays.items():
            blobs.setdefault(name, unpacker.array(decode(row)))
        packer.new_arrays.clear()
        assert unpacker.event(line) == ClientText(text)


def test_what_stands_for_several_server_events_is_each_of_them() -> None:
    """Deltas of one line that differ in their text only, and texts, items and responses that are said again."""
    item = {"id": "m", "type": "message", "content": [{"type": "output_text", "text": "long " * 20}]}
    events = [
        *({"type": "response.output_text.delta", "sequence_number": n, "delta": str(n)} for n in range(5)),
        {"type": "response.output_text.delta", "sequence_number": 9, "delta": "a gap before it"},
        {"type": "response.output_text.done", "sequence_number": 10, "text": "long " * 20},
        {"type": "response.output_item.done", "sequence_number": 11, "item": item},
        {"type": "response.completed", "response": {"object": "response", "output": [item, {**item, "id": "n"}]}},
    ]
    encoded = [*map(orjson.dumps, events)]
    packer = Packer()
    rows, unpacker = through_the_file(packer, packer.effects([Send(tuple(encoded[:7])), Send(tuple(encoded[7:]))]))
    assert orjson.dumps(rows).count(b"long " * 20) == 2  # the text, and the item that nobody said before
    assert rows[0]["data"][0]["delta"] == {"$each": ["0", "1", "2", "3", "4"]}
    assert [orjson.dumps(event) for row in unpacker.effects(rows) for event in row["data"]] == encoded
    for broken in ('[7,"item"]', '[0,"text"]', '"x"', "[-1,1]"):
        with pytest.raises(ValueError, match="event before on its line"):
            unpacker.effects(json.loads(json.dumps(rows).replace('[6, "text"]', broken)))


@pytest.mark.parametrize(
    "text", ['{"a":1e999}', '{"a":1,"a":2}', '"\\ud800"', "{", "", "12", "[" * 400 + "]" * 400, '{"a": 1.0}']
)
def test_odd_client_texts_survive(text: str) -> None:
    """Bad JSON, doubled keys, odd numbers and depth are kept as text."""
    packer = Packer()
    line, unpacker = through_the_file(packer, packer.event(ClientText(text)))
    assert unpacker.event(line) == ClientText(text)


def test_a_big_value_is_in_the_file_once() -> None:
    """A prompt of a kilobyte that comes three times and is echoed stands in one blob."""
    recording = Recording()
    client = recording.client()
    long = "once " * 300
    client.turn(user(long), say=((Text("a"),),), instructions=long)
    client.turn(user(long), say=((Text("b"),),), instructions=long)
    assert recording.content.count(long.encode()) == 2  # the item, and the instructions that every response echoes
    assert recording.content.count(b'"$blob"') > 4


def test_a_response_object_is_written_by_what_differs_from_the_first() -> None:
    """What every response of a session says again stands once; the bytes that were sent are known all the same."""
    recording = Recording()
    client = recording.client()
    for turn in range(3):
        client.turn(user("hi"), say=((Text("a"),),), instructions="be brief " * 200, metadata={"turn": str(turn)})
    rows = [json.loads(line) for line in recording.content.splitlines()]
    answers = [
        entry["response"]
        for row in rows
        for effect in row.get("out", ())
        for entry in effect.get("data", ())
        if "response" in entry
    ]
    assert len(answers) == 9 and answers[0].keys() == {"$like"} and len({one["$like"] for one in answers[::3]}) == 1
    assert answers[1] == {"$same": [0, "response"]}
    assert answers[3].keys() == {"$like", "id", "metadata", "previous_response_id"}
    assert recording.content.count(b'"top_logprobs"') == 1
    verify(recording.fixture)
    with pytest.raises(Divergence, match="service_tier"):
        verify(Fixture.parse(recording.content.replace(b'"service_tier":"default"', b'"service_tier":"flex"')))


def posts(n: int) -> Recording:
    """A client that sends its whole history with each POST."""
    recording, history = Recording(), [user("Go. " * 300)]
    for turn in range(n):
        client = recording.client(seed=f"{turn:032x}", transport="sse")
        client.turn(*history, say=((Text(f"Answer {turn}."),),), stream=True)
        history += [client.sent[-1]["response"]["output"][0], user(f"And now {turn}?")]
    return recording


def test_a_history_that_is_sent_again_stands_in_the_file_once() -> None:
    """What a POST costs is what is new in it, however long its history is."""
    recording = posts(30)
    assert recording.content.count(b"And now 3?") == 1
    later = len(recording.content) - len(posts(20).content)
    assert later - (len(posts(20).content) - len(posts(10).content)) < 200  # longer numbers
    assert verify(recording.fixture).n_turns == 30
    texts = [step.event.text for step in recording.fixture.steps if isinstance(step.event, ClientText)]
    assert "And now 28?" in texts[-1] and "And now 28?" not in texts[-2]


def test_an_edit_of_a_history_is_seen_and_holds_for_all_that_go_on_from_it() -> None:
    """One place to change, whoever sends the history again; verify names its line."""
    content = posts(9).content
    edited = content.replace(b"And now 3?", b"And then 3?")
    texts = [step.event.text for step in Fixture.parse(edited).steps if isinstance(step.event, ClientText)]
    assert ["And then 3?" in text for text in texts] == [False] * 4 + [True] * 5
    with pytest.raises(Divergence, match=r":\d+: the value is not the one that was filed"):
        verify(Fixture.parse(edited))
    with pytest.raises(FixtureUnreadable, match="at most the"):
        Fixture.parse(content.replace(b'"then"', b'"n":77,"then"'))


def test_what_looks_like_a_response_written_short_is_a_value_of_its_own() -> None:
    """A client may send any JSON: none of it is taken for a reference."""
    for response in ({"$like": "x", "object": "response"}, {"$like": {}, "$blob": 1}, {"$like": "y" * 2000}):
        recording = Recording()
        text = json.dumps({"type": "response.create", "response": response, "$like": "z"}, separators=(",", ":"))
        recording.client().text(text)
        verify(recording.fixture)
        assert [*recording.fixture.steps][1].event == ClientText(text)


def test_a_client_text_reads_as_json() -> None:
    """A request can be read and edited in the file: it is no string inside a string."""
    recording = Recording()
    recording.client().ask(user("hello there"))
    assert b'"json":{"type":"response.create","model":"m","store":false,"input":[{"type":"message"' in recording.content


def test_a_file_cut_anywhere_is_a_shorter_recording(recording: Recording) -> None:
    """Every prefix is read; each step in it is one of the whole file, and the event of a cut line is kept."""
    whole = [step.event for step in recording.fixture.steps]
    content, n_before = recording.content, 0
    for end in range(content.index(b"\n") + 1, len(content), 61):
        shorter = Fixture.parse(content[:end])
        events = [step.event for step in shorter.steps]
        assert events == whole[: len(events)]
        assert len(events) >= n_before
        n_before = len(events)
    assert n_before == len(whole)


def test_the_event_of_a_cut_line_is_kept() -> None:
    """A crash while the session thinks leaves the event that it thought about."""
    recording = Recording()
    recording.client().ask(user("last words"))
    cut = recording.content[: recording.content.rindex(b',"out":') + 12]
    fixture = Fixture.parse(cut)
    step = [*fixture.steps][-1]
    assert isinstance(step.event, ClientText) and "last words" in step.event.text
    assert step.out is None and not fixture.whole


@pytest.mark.parametrize(
    "content, problem",
    [
        (b"", 'is empty; a fixture begins with {"turntape":1}'),
        (b'{"turntape":2}\n', ":1: is of fixture format 2; this version of Turntape reads format 1"),
        (b"hello\n", ":1: is not a JSON object"),
        (b'{"a":1}\n', ":1: is no fixture"),
        (
            b'{"turntape":1}\n{"step":1,"t":0,"in":{"type":"Drain"},"out":[]}\n',
            ":2: belongs to session 1, which no line",
        ),
        (b'{"turntape":1}\nnonsense\n{"blob":"a","value":1}\n', ":2: is not a JSON object"),
        (b'{"turntape":1}\n{"what":1}\n', ":2: is no line of fixture format 1"),
        (b'{"turntape":1}\n{"open":1,"t":0,"in":{"type":"Opened","seed":7,"wall":0}}\n', "seed"),
        (b'{"turntape":1}\n{"open":1,"t":0,"in":{"type":"Opened","seed":"","wall":0,"new":1}}\n', "new"),
        (
            b'{"turntape":1}\n{"open":1,"t":0,"in":{"type":"Opened","seed":{"$blob":"xy"},"wall":0}}\n',
            "'xy' is missing",
        ),
        (
            b'{"turntape":1}\n{"open":1,"t":0,"in":{"type":"Opened","seed":{"$blob":[1]},"wall":0}}\n',
            "[1] is missing",
        ),
        (b'{"turntape":1}\n{"open":1,"t":0,"in":{"type":"Opened","seed":"","wall":1e999}}\n', "finite number, got inf"),
        (b'{"turntape":1}\n{"open":1,"t":NaN,"in":{"type":"Opened","seed":"","wall":0}}\n', "finite number, got nan"),
        (b'{"turntape":1}\n{"open":1,"t":"0","in":{"type":"Opened","seed":"","wall":0}}\n', "finite number, got str"),
        (b'{"turntape":1}\n{"open":1,"t":0,"in":{"type":"Boom"}}\n', "one of Opened, ClientText"),
        (b'{"turntape":1}\n{"open":1,"t":0,"in":{"type":"Drain"}}\n', "something other than Opened"),
        (b'{"turntape":1}\n{"open":1,"in":{"type":"Opened","seed":"","wall":0}}\n', "lacks 't'"),
    ],
)
def test_what_is_no_fixture_is_refused_by_line(content: bytes, problem: str) -> None:
    """The message names the file, the line and what is wrong with it."""
    with pytest.raises(FixtureUnreadable, match=re.escape(problem)):
        Fixture.parse(content, name="f.jsonl")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FixtureUnreadable, match=r"nowhere\.jsonl: cannot be read: No such file"):
        Fixture.load(tmp_path / "nowhere.jsonl")


def test_a_stored_chain_is_read_back_to_the_byte() -> None:
    """Items that a store brought are JSON values in the file, and bytes again for the session."""
    big = orjson.dumps(user("y" * BLOB_BYTES))
    event = Loaded("lane", (big, b'{"$blob":1}'), (None, big))
    packer = Packer()
    line, unpacker = through_the_file(packer, packer.event(event))
    assert len(packer.new) == 2 and unpacker.event(line) == event


def test_deltas_have_a_short_line() -> None:
    """A batch of text costs the text and some fifty bytes."""
    recording = Recording()
    client = recording.client()
    start = client.ask(user("hi"))
    assert start is not None
    client.feed(Sampled(start.sample_id, (Text("to"), Text("ken"))))
    before = len(recording.content)
    client.feed(Sampled(start.sample_id, (Text("to"), Text("ken"))))
    line = recording.content[before:]
    assert re.fullmatch(rb'\{"s":1,"t":0\.3,"d":\["to","ken"\],"h":"[0-9a-f]{16}"\}\n', line)
