"""The lines of a relay: what is read from them, and what is refused at its line."""

from typing import Any

import orjson
import pytest
from relayed import RelayFile
from taped import user

from turntape.core.seam import Text
from turntape.replay.errors import FixtureUnreadable
from turntape.replay.fixture import Fixture
from turntape.replay.lines import AnswerHead, FromClient, FromUpstream, Gone, Relayed, Unread
from turntape.replay.packing import Packer, decode

OPEN = {
    "relay": 1, "t": 0, "wall": 1.8e9, "transport": "websocket", "method": "GET", "path": "/v1/responses",
    "upstream": "https://api.example.com/v1", "headers": {"user-agent": "a"}, "rules": ["codex"],
}  # fmt: skip
DELTA = {
    "type": "response.output_text.delta",
    "sequence_number": 7,
    "item_id": "msg_1",
    "delta": "a",
    "obfuscation": "x",
}


def parsed(*lines: dict[str, Any]) -> Fixture:
    return Fixture.parse(b"".join(orjson.dumps(line) + b"\n" for line in ({"turntape": 1}, OPEN, *lines)))


def test_each_line_becomes_its_class() -> None:
    """With all that it holds."""
    fixture = parsed(
        {"answer": 1, "t": 0.1, "status": 101, "headers": {"openai-model": "m"}},
        {"client": 1, "t": 0.2, "json": {"type": "response.create"}},
        {"client": 1, "t": 0.3, "spaced": {"a": [1, 2]}},
        {"client": 1, "t": 0.4, "text": "no json"},
        {"client": 1, "t": 0.5, "bytes": "AAE="},
        {"up": 1, "t": 0.6, "json": DELTA},
        {"u": 1, "t": 0.7, "d": ["b", "c"], "o": ["", "yy"]},
        {"up": 1, "t": 0.8, "text": "[DONE]"},
        {"up": 1, "t": 0.8, "text": '{"a" :1}'},
        {"unread": 1, "t": 0.9, "by": "client", "reason": "why"},
        {"gone": 1, "t": 1.0, "by": "upstream", "code": 1001, "reason": "bye"},
    )
    relayed, head, *said, short, done, loose, unread, gone = fixture.lines
    assert relayed == Relayed(
        2,
        1,
        0.0,
        1.8e9,
        "websocket",
        "GET",
        "/v1/responses",
        "https://api.example.com/v1",
        {"user-agent": "a"},
        ("codex",),
    )
    assert head == AnswerHead(3, 1, 0.1, 101, {"openai-model": "m"})
    texts = [line.text for line in said if isinstance(line, FromClient)]
    assert texts == ['{"type":"response.create"}', '{"a": [1, 2]}', "no json", ""]
    assert isinstance(short, FromUpstream) and isinstance(done, FromUpstream) and isinstance(loose, FromUpstream)
    assert short.messages == [
        {**DELTA, "sequence_number": 8, "delta": "b", "obfuscation": ""},
        {**DELTA, "sequence_number": 9, "delta": "c", "obfuscation": "yy"},
    ]
    assert (done.message, loose.message) == ("[DONE]", {"a": 1})
    assert unread == Unread(12, 1, 0.9, "client", "why") and gone == Gone(13, 1, 1.0, "upstream", 1001, "bye")


def test_deltas_count_on_over_short_lines() -> None:
    """Numbers go on from line to line, and a message in full begins anew."""
    fixture = parsed(
        {"up": 1, "t": 0.1, "json": DELTA},
        {"u": 1, "t": 0.2, "d": ["b"]},
        {"u": 1, "t": 0.3, "d": ["c", "d"]},
        {"up": 1, "t": 0.4, "json": {**DELTA, "sequence_number": 20}},
        {"u": 1, "t": 0.5, "d": ["e"]},
    )
    messages = [message for line in fixture.lines if isinstance(line, FromUpstream) for message in line.messages]
    assert [message["sequence_number"] for message in messages] == [7, 8, 9, 10, 20, 21]


def test_values_that_stand_once_are_put_back() -> None:
    """Both sides refer to blobs, at the places where a packer puts them."""
    packer, tools = Packer(), [{"type": "function", "name": "x" * 2000}]
    message = {"type": "response.create", "tools": tools, "input": [user("y" * 3000)]}
    packed = packer.value(message)
    blobs = [{"blob": name, "value": decode(encoded)} for name, encoded in packer.new.items()]
    fixture = parsed(*blobs, {"client": 1, "t": 0.1, "json": packed}, {"up": 1, "t": 0.2, "json": packed})
    asked, answered = fixture.lines[-2:]
    assert isinstance(asked, FromClient) and asked.text == orjson.dumps(message).decode()
    assert isinstance(answered, FromUpstream) and answered.message == message


@pytest.mark.parametrize(
    "line, problem",
    [
        ({"up": 1, "t": 0.1, "json": {}, "more": 1}, "'more' is not part of it"),
        ({"up": 1, "t": 0.1}, "it should hold 'json', 'spaced', 'text' or 'bytes'"),
        ({"client": 2, "t": 0.1, "text": ""}, "it belongs to relayed session 2, which no line before it begins"),
        ({"client": "1", "t": 0.1, "text": ""}, "expected int, got str"),
        ({"up": 1, "text": ""}, "lacks 't'"),
        ({"u": 1, "t": 0.1, "d": ["a"]}, "it shortens a delta, and its session has none before it"),
        ({"answer": 1, "t": 0.1, "status": "200", "headers": {}}, "expected int, got str"),
        ({"answer": 1, "t": 0.1, "status": 200, "headers": {"a": 1}}, "'headers' should be an object of strings"),
        ({"gone": 1, "t": 0.1, "by": "nobody"}, "'by' should be one of client, upstream"),
        ({"up": 1, "t": 0.1, "json": {"a": {"$blob": "x"}}}, "the blob 'x' is missing"),
        (OPEN, "opens session 1 again"),
        ({"open": 1, "t": 0, "in": {}}, "opens session 1 again"),
        ({"step": 1, "t": 0, "in": {"type": "Tick"}}, "belongs to session 1, which no line before it opens"),
        ({**OPEN, "relay": 2, "transport": "pigeon"}, "'transport' should be one of websocket, http"),
        ({**OPEN, "relay": [2]}, "expected int, got list"),
    ],
)  # fmt: skip
def test_a_line_that_is_wrong_is_refused(line: dict[str, Any], problem: str) -> None:
    """At its number, with what is wrong."""
    with pytest.raises(FixtureUnreadable) as caught:
        parsed(line)
    assert caught.value.line == 3 and problem in str(caught.value)


def test_short_deltas_need_one_padding_each() -> None:
    """Or none at all."""
    with pytest.raises(FixtureUnreadable, match="'o' should have as many strings as 'd'"):
        parsed({"up": 1, "t": 0.1, "json": DELTA}, {"u": 1, "t": 0.2, "d": ["b", "c"], "o": ["x"]})


def test_turns_and_calls_are_counted() -> None:
    """Answers that are no warm-up's and no error; calls wherever an answer ends one."""
    file = RelayFile()
    one = file.socket()
    one.ask(user("A"), generate=False)
    one.turn(user("B"), say=[(Text("x"),)])
    one.ask(user("C"))
    one.fail("rate_limit_exceeded", "Slow down.", 429)
    whole = file.post({"model": "m", "input": "D"})
    whole.say((Text("y"),))
    counts = file.fixture.counts
    assert (counts.n_sessions, counts.n_turns, counts.n_calls) == (2, 2, 0)
