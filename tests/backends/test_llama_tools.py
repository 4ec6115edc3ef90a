"""Tools in words: how they are told to a model whose template knows none, and how calls are found in what it writes."""

import itertools
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turntape.core.seam import Arguments, Increment, Text, ToolCall
from turntape.core.tools import ToolChoice
from turntape.core.wire import structure_create
from turntape.transport.backends.call_patterns import Patterns
from turntape.transport.backends.call_reader import CallReader
from turntape.transport.backends.chat_dialect import DEFAULT
from turntape.transport.backends.chat_tools import Offer
from turntape.transport.backends.llama_tools import in_words, rules, without_tools
from turntape.transport.backends.model_families import families

LOOKUP = {"type": "function", "name": "lookup", "description": "Looks up.", "parameters": {"type": "object"}}
PATCH = {"type": "custom", "name": "patch"}
CALL = '<tool_call>{"name":"lookup","arguments":{"q":"a}</tool_call>\\"{"}}</tool_call>'
ARGUMENTS = '{"q":"a}</tool_call>\\"{"}'


def offer(*tools: Any) -> Offer:
    return Offer().renewed(structure_create({"model": "m", "input": "", "tools": list(tools)}).callable_tools, DEFAULT)


OFFER = offer(LOOKUP, PATCH)


def read(*pieces: str) -> list[tuple[str, ...]]:
    """What is found: texts as ("text", ...), calls as ("call", name, arguments)."""
    ids = (f"call_{n}" for n in itertools.count())
    reader = CallReader(OFFER.names, lambda: next(ids), Patterns.of(families()["hermes"]))
    increments: list[Increment] = [i for piece in pieces for i in reader.feed(piece)]
    increments += reader.end()
    found: list[tuple[str, ...]] = []
    for increment in increments:
        match increment:
            case ToolCall(_, name):
                found.append(("call", name, ""))
            case Arguments(text):
                found[-1] = (*found[-1][:2], found[-1][2] + text)
            case Text(text) if found and found[-1][0] == "text":
                found[-1] = ("text", found[-1][1] + text)
            case Text(text):
                found.append(("text", text))
    return found


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("Hello.", [("text", "Hello.")]),
        (CALL, [("call", "lookup", ARGUMENTS)]),
        (f"I look.\n{CALL}", [("text", "I look.\n"), ("call", "lookup", ARGUMENTS)]),
        (f"{CALL}\n{CALL}\n", [("call", "lookup", ARGUMENTS)] * 2),
        (f"{CALL}\nDone.", [("call", "lookup", ARGUMENTS), ("text", "Done.")]),
        (' <tool_call>\n{"name": "lookup", "arguments": {}}\n</tool_call>', [("text", " "), ("call", "lookup", "{}")]),
        ('<tool_call>{"name":"patch","arguments":{"input":"a\\nb"}}</tool_call>', [("call", "patch", "a\nb")]),
        ('<tool_call>{"name":"gone","arguments":{}}</tool_call>', [("call", "gone", "{}")]),
        ('<tool_call>{"name":"lookup","arguments":{"q":[1', [("call", "lookup", '{"q":[1')]),  # cut by a length limit
        ("a < b and <tool_", [("text", "a < b and <tool_")]),
        ("<tool_call>nothing</tool_call>", [("text", "<tool_call>nothing</tool_call>")]),
        ("<tool_call>" + "x" * 300, [("text", "<tool_call>" + "x" * 300)]),
        ('<tool_call>{"name":"lookup"', [("text", '<tool_call>{"name":"lookup"')]),
        ('<tool_call>{"name":"lookup","arguments":5}', [("text", '<tool_call>{"name":"lookup","arguments":5}')]),
    ],
)
def test_calls_in_text(answer: str, found: list[tuple[str, ...]]) -> None:
    """Calls between marks are calls, and all else is text, in whatever pieces it comes."""
    assert read(answer) == found
    assert read(*answer) == found
    assert read(*(answer[n : n + 5] for n in range(0, len(answer), 5))) == found


@given(
    st.lists(st.sampled_from([*'<>{}":,\\ \n', "<tool_call>", "</tool_call>", CALL, '{"name":"lookup","arguments":']))
)
def test_nothing_breaks_the_reader(pieces: list[str]) -> None:
    """Whatever a model writes, the same is found however it is cut, and a call's marks are all that can be lost."""
    assert read(*pieces) == read("".join(pieces))
    if "<tool_call>" not in "".join(pieces):
        assert read(*pieces) == ([("text", "".join(pieces))] if any(pieces) else [])


def test_history_in_words() -> None:
    """A call in the history reads as the model wrote it, its output says whose it is, and users' messages are joined."""
    call = {"id": "c1", "type": "function", "function": {"name": "lookup", "arguments": ARGUMENTS}}
    messages = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
        {"role": "user", "content": "And?"},
    ]
    assert without_tools(messages) == [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": f"I look.\n{CALL}"},
        {"role": "user", "content": "<tool_response>\nlookup: 42\n</tool_response>\n\nAnd?"},
    ]


def test_tools_in_words() -> None:
    """Each tool's definition stands in the system message, with what a call looks like."""
    words = in_words(OFFER)
    assert '"name":"lookup"' in words
    assert "Looks up." in words
    assert '<tool_call>{"name":"NAME","arguments":{...}}</tool_call>' in words


def starts(choice: ToolChoice, schema: dict[str, Any] | None = None, *, parallel: bool = True) -> tuple[str, set[str]]:
    """The grammar's first rule, and the tools that it lets be called."""
    found = rules(OFFER, choice, schema, parallel=parallel)
    lines = found.grammar.splitlines()
    called = {
        orjson.loads(line.split(" %json ")[0].split(": ", 1)[1])[9:-14]
        for line in lines
        if line[:4] == "call" and line[4].isdigit()
    }
    return lines[1].removeprefix("start: "), called


def test_rules_follow_the_choice() -> None:
    """What may be called, and whether anything must be, is in the grammar."""
    both = {"lookup", "patch"}
    assert starts(ToolChoice("required")) == ("call", both)
    assert starts(ToolChoice("required", ("patch",))) == ("call", {"patch"})
    assert starts(ToolChoice("auto")) == ("first more* | TEXT", both)
    assert starts(ToolChoice("auto"), parallel=False) == ("first | TEXT", both)
    assert starts(ToolChoice("auto", ("lookup",)), {"type": "object"}) == ("call more* | answer", {"lookup"})
    assert starts(ToolChoice("none")) == ("TEXT", set())
    assert starts(ToolChoice("none"), {"type": "object"})[0].startswith('%json {"type":"object"')
    assert rules(Offer(), ToolChoice(), None, parallel=True).grammar == ""
