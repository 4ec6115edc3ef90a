"""Work follows what is new: counted in Python calls and in encodings, never in seconds."""

import collections
import sys

import orjson
import pytest
from peer import Peer, call, output, types

from turntape.core.seam import Arguments, Finish, Text, ToolCall
from turntape.core.tools import MAX_KNOWN


def count_calls(function) -> int:
    """Calls of Python and C functions while ``function`` runs."""
    n = 0

    def profile(frame, event, argument):
        nonlocal n
        n += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return n


TOOLS = [{"type": "function", "name": f"tool_{n}", "description": "d" * 500} for n in range(20)]


@pytest.mark.parametrize("design", ["chain", "append"])
def test_turn_200_costs_what_turn_20_did_and_encodes_no_item_twice(design, monkeypatch):
    """At most 1.05 times the calls; each call and each output is written as JSON once in its life."""
    encoded: collections.Counter = collections.Counter()
    plain = orjson.dumps

    def dumps(value, *args, **options):
        if isinstance(value, dict) and "call_id" in value and value.get("status") != "in_progress" and not options:
            encoded[value["type"], value["call_id"]] += 1
        return plain(value, *args, **options)

    monkeypatch.setattr(orjson, "dumps", dumps)
    peer = Peer(answer=None, dialect="append" if design == "append" else "current")
    peer.create("go", tools=TOOLS)
    costs = {}

    def one_turn(turn):
        call_id = f"call_{turn}"
        said = peer.sampled(Text("on it"), ToolCall(call_id, "tool_1"), Arguments('{"a":1}'), Finish())
        if design == "append":
            peer.append(output(call_id, "x" * 50))
        else:
            peer.create([output(call_id, "x" * 50)], previous_response_id=said[-1]["response"]["id"], tools=TOOLS)

    for turn in range(1, 201):
        costs[turn] = count_calls(lambda turn=turn: one_turn(turn))
    assert len(peer.starts) == 201 and peer.starts[-1].context.n_items == 601
    assert costs[200] <= 1.05 * costs[20]
    assert len(encoded) == 400 and set(encoded.values()) == {1}


def test_a_chat_of_a_thousand_turns_is_compared_printed_and_dropped():
    peer = Peer(answer=call())
    previous = None
    for _ in range(1000):
        events = peer.create(previous_response_id=previous)
        previous = events[-1]["response"]["id"]
    start = peer.starts[-1]
    same = start
    assert start == same and start != peer.starts[0]
    assert len(repr(start.context)) < 100 and start.context.n_items == 1999
    assert types(events)[-1] == "completed"
    peer.starts.clear()
    del same, start, peer


def test_tools_that_are_sent_again_are_the_same_objects_on_every_connection():
    """What a backend makes of them can be found by them; other tools are others, however many came between."""

    def offered(description):
        peer = Peer(answer=None)
        tools = [{"type": "namespace", "name": "n", "tools": [{**tool, "description": description} for tool in TOOLS]}]
        peer.create("go", tools=tools)
        return peer.starts[-1].request.callable_tools

    one, again = offered("one"), offered("one")
    assert one is again and [tool.namespace for tool in one] == ["n"] * 20
    for n in range(3 * MAX_KNOWN):
        assert {tool.description for tool in offered(f"{n}")} == {f"{n}"}
    assert offered("one") == one
