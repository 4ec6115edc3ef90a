"""Event ladders: what the client is told for each thing that a model can say."""

import base64
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peer import Peer, types

from turntape.core.canonical import Item
from turntape.core.reasoning import reasoning_text
from turntape.core.seam import (
    Arguments,
    Encrypted,
    Finish,
    Message,
    Reasoning,
    Refusal,
    Summary,
    Text,
    ToolCall,
    Usage,
    event_type,
)


def told(*increments, **create):
    """Events between ``in_progress`` and the terminal one."""
    return Peer(answer=lambda start: (*increments, Finish())).create(**create)[2:-1]


def test_raw_reasoning():
    events = told(Reasoning("a"), Reasoning("b"), Text("x"))
    assert types(events)[:8] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
    ]
    assert events[1]["part"] == {"type": "reasoning_text", "text": ""} and events[4]["text"] == "ab"
    item = events[6]["item"]
    assert item["content"] == [{"type": "reasoning_text", "text": "ab"}] and item["summary"] == []
    assert "encrypted_content" not in item and events[7]["output_index"] == 1


def test_reasoning_summaries_are_parts_of_one_item():
    events = told(Summary("a"), Summary("b"), Summary("c", 1))
    assert types(events) == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
    ]
    assert [event["summary_index"] for event in events[1:-1]] == [0] * 5 + [1] * 4
    assert [part["text"] for part in events[-1]["item"]["summary"]] == ["ab", "c"]


def test_the_number_of_a_summary_part_begins_it_once_and_need_not_be_the_next():
    item = told(Summary("a", 1), Summary("b", 1), Summary("c", 3), Summary("d", 3))[-1]["item"]
    assert [part["text"] for part in item["summary"]] == ["ab", "cd"]


def test_every_item_numbers_its_own_parts():
    events = told(
        Summary("a"), Reasoning("r"), Message(), Text("b"), Message(), Text("c"), Summary("d"), Reasoning("s")
    )
    deltas = [event for event in events if event["type"].endswith(".delta")]
    assert [event["output_index"] for event in deltas] == [0, 0, 1, 2, 3, 3]
    assert {event.get("content_index", event.get("summary_index")) for event in deltas} == {0}
    done = [event["item"] for event in events if event["type"].endswith("item.done")]
    assert [[part["text"] for part in item["summary"]] for item in done if item["type"] == "reasoning"] == [
        ["a"],
        ["d"],
    ]
    assert {item["status"] for item in done} == {"completed"}


def test_a_summary_and_raw_reasoning_share_an_item():
    [item] = [event["item"] for event in told(Summary("s"), Reasoning("r")) if event["type"].endswith("item.done")]
    assert (item["summary"][0]["text"], item["content"][0]["text"]) == ("s", "r")


def test_encrypted_content_is_made_only_when_asked_for_and_carries_the_reasoning():
    include = ["reasoning.encrypted_content"]
    done = told(Summary("s"), Reasoning("the thought"), include=include)[-1]["item"]
    replayed = {"type": "reasoning", "summary": [], "encrypted_content": done["encrypted_content"]}
    assert reasoning_text(Item.of(replayed)) == "the thought"
    assert reasoning_text(Item.of({**replayed, "encrypted_content": "gAAAAABnot-ours"})) == ""
    assert reasoning_text(Item.of({**replayed, "encrypted_content": done["encrypted_content"][:-9] + "!"})) == ""
    assert reasoning_text(Item.of({**replayed, "encrypted_content": None})) == ""
    assert reasoning_text(Item.of({**replayed, "content": [{"type": "reasoning_text", "text": "clear"}]})) == "clear"


@pytest.mark.parametrize("include", [[], ["reasoning.encrypted_content"]])
def test_what_a_backend_encrypted_goes_through_unchanged(include):
    """A backend's own encrypted reasoning belongs to its item, ends it, and is not replaced by ours."""
    events = told(Summary("s"), Encrypted("gAAA-1"), Encrypted("gAAA-2"), Reasoning("r"), Text("t"), include=include)
    done = [event["item"] for event in events if event["type"].endswith("item.done") and "summary" in event["item"]]
    assert [item.get("encrypted_content", "")[:8] for item in done] == ["gAAA-1", "gAAA-2", "turntape" * bool(include)]
    assert [len(item["summary"]) for item in done] == [1, 0, 0]
    assert {item["status"] for item in done} == {"completed"}


@pytest.mark.parametrize("plain", [b"[]", b"5", b'{"content":5}', b'{"content":[5,{"text":5},{}]}', b"\xff", b"{}"])
def test_encrypted_content_that_only_looks_like_ours_holds_no_reasoning(plain):
    forged = "turntape-reasoning-1." + base64.urlsafe_b64encode(plain).decode()
    assert reasoning_text(Item.of({"type": "reasoning", "summary": [], "encrypted_content": forged})) == ""


def test_a_custom_tool_call():
    events = told(ToolCall("c1", "patch", custom=True), Arguments("*** Begin"), Arguments("\n+x"))
    assert types(events) == [
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
    ]
    assert events[0]["item"]["input"] == "" and events[3]["input"] == events[4]["item"]["input"] == "*** Begin\n+x"
    assert events[4]["item"]["type"] == "custom_tool_call" and events[4]["item"]["status"] == "completed"


def test_a_call_into_a_namespace_names_both():
    item = told(ToolCall("c1", "spawn", "agents"), Arguments("{}"))[-1]["item"]
    assert (item["namespace"], item["name"]) == ("agents", "spawn")
    assert "namespace" not in told(ToolCall("c1", "spawn"))[-1]["item"]


def test_parallel_calls_are_whole_blocks_one_after_another():
    events = told(ToolCall("a", "f"), Arguments("{}"), ToolCall("b", "f"), Arguments("{}"))
    assert [event["output_index"] for event in events] == [0] * 4 + [1] * 4
    assert types(events)[:4] == types(events)[4:]


def test_a_refusal_is_a_part_of_a_completed_message():
    events = told(Refusal("I "), Refusal("won't"))
    assert types(events) == [
        "output_item.added",
        "content_part.added",
        "refusal.delta",
        "refusal.delta",
        "refusal.done",
        "content_part.done",
        "output_item.done",
    ]
    assert events[1]["part"] == {"type": "refusal", "refusal": ""} and events[4]["refusal"] == "I won't"
    assert events[-1]["item"]["status"] == "completed"


def test_text_and_refusal_are_two_parts_of_one_message():
    events = told(Text("a"), Refusal("b"), Text("c"))
    assert [event["content_index"] for event in events if event["type"].endswith(".delta")] == [0, 1, 2]
    assert [part["type"] for part in events[-1]["item"]["content"]] == ["output_text", "refusal", "output_text"]


def test_a_message_can_have_a_phase_and_a_second_can_follow():
    events = told(Message("commentary"), Text("a"), Message("final_answer"), Text("b"))
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [(item["phase"], item["content"][0]["text"]) for item in done] == [
        ("commentary", "a"),
        ("final_answer", "b"),
    ]
    assert "phase" not in told(Text("a"))[-1]["item"]


def test_empty_text_says_nothing():
    assert told(Text(""), Reasoning(""), Summary("")) in ([], told(Summary("")))
    assert types(told(Text(""), Text("x"), Text("")))[2:4] == ["output_text.delta", "output_text.done"]


@pytest.mark.parametrize(
    ("said", "closing"),
    [
        ((Text("a"),), ["output_text.done", "content_part.done", "output_item.done"]),
        ((Reasoning("a"),), ["reasoning_text.done", "content_part.done", "output_item.done"]),
        ((Summary("a"),), ["reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done"]),
        ((ToolCall("c", "f"), Arguments("{")), ["function_call_arguments.done", "output_item.done"]),
    ],
)
def test_an_incomplete_response_closes_what_is_open(said, closing):
    events = Peer(answer=lambda start: (*said, Finish("content_filter"))).create()
    assert types(events)[-len(closing) - 1 :] == [*closing, "incomplete"]
    assert events[-2]["item"]["status"] == "incomplete"
    assert events[-1]["response"]["incomplete_details"] == {"reason": "content_filter"}


def test_a_summary_part_cut_short_says_so():
    def closed(reason):
        events = Peer(answer=lambda start: (Summary("a"), Finish(reason))).create()
        return next(event for event in events if event["type"] == "response.reasoning_summary_part.done")

    assert closed("length")["status"] == "incomplete" and "status" not in closed("stop")


def test_a_service_tier_is_echoed_while_the_response_runs_and_default_at_its_end():
    def tiers(**fields):
        events = Peer().create(**fields)
        return [event["response"]["service_tier"] for event in (events[0], events[1], events[-1])]

    assert tiers() == ["auto", "auto", "default"] and tiers(service_tier="flex") == ["flex", "flex", "default"]


def test_usage_is_the_backends_own_when_it_counts():
    usage = Usage(input_tokens=100, output_tokens=20, cached_tokens=80, reasoning_tokens=5)
    peer = Peer(answer=lambda start: (Text("x"), Finish(usage=usage)))
    assert peer.create()[-1]["response"]["usage"] == {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 80, "cache_write_tokens": 0},
        "output_tokens": 20,
        "output_tokens_details": {"reasoning_tokens": 5},
        "total_tokens": 120,
    }


def test_estimated_usage_counts_instructions_tools_and_reasoning():
    def usage(**fields):
        peer = Peer(answer=lambda start: (Reasoning("r" * 40), Text("t" * 40), Finish()))
        return peer.create(**fields)[-1]["response"]["usage"]

    plain = usage()
    assert plain["output_tokens"] == 20 and plain["output_tokens_details"]["reasoning_tokens"] == 10
    peer = Peer(answer=lambda start: (Summary("s" * 40), Text("t" * 40), Finish()))
    assert peer.create()[-1]["response"]["usage"]["output_tokens_details"]["reasoning_tokens"] == 10
    assert usage(instructions="i" * 400)["input_tokens"] == plain["input_tokens"] + 100
    tools = [{"type": "function", "name": "f" * 400}]
    assert usage(tools=tools)["input_tokens"] > plain["input_tokens"] + 100


def test_one_batch_is_one_effect_however_it_is_cut():
    """How a backend's reads fall never shows in what the client is told."""
    said = (Reasoning("a"), Text("b"), Text("c"), ToolCall("c1", "f"), Arguments("{}"), Finish())
    whole = Peer(answer=None)
    whole.create()
    whole.sampled(*said)
    single = Peer(answer=None)
    single.create()
    for increment in said:
        single.sampled(increment)
    assert whole.sent == single.sent


INCREMENTS = st.lists(
    st.one_of(
        st.builds(Text, st.text(st.characters(), max_size=5)),
        st.builds(Refusal, st.text(max_size=5)),
        st.builds(Reasoning, st.text(st.characters(), max_size=5)),
        st.builds(Summary, st.text(max_size=5), st.integers(0, 2)),
        st.builds(Message, st.sampled_from([None, "commentary"])),
        st.builds(Encrypted, st.text(max_size=5)),
        st.builds(ToolCall, st.uuids().map(str), st.just("f"), st.none(), st.booleans()),
    ),
    max_size=12,
)


@given(INCREMENTS)
def test_deltas_add_up_to_what_done_says(increments):
    """For any output: numbers without gaps, every item begun and ended once, deltas join to the whole."""
    events = Peer(answer=lambda start: (*increments, Finish())).create()
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    texts = {}
    for event in events:
        where = tuple(event.get(key) for key in ("output_index", "content_index", "summary_index"))
        if event["type"].endswith(".delta"):
            texts[where] = texts.get(where, "") + event["delta"]
        whole = next((event[key] for key in ("text", "refusal", "arguments", "input") if key in event), None)
        if event["type"].endswith(".done") and whole is not None:
            assert whole == texts.get(where, "")
    added = [event["item"]["id"] for event in events if event["type"] == "response.output_item.added"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert added == [item["id"] for item in done] and len(set(added)) == len(added)
    assert events[-1]["response"]["output"] == done
    indexes = [event["output_index"] for event in events if "output_index" in event]
    assert all(a <= b <= a + 1 for a, b in itertools.pairwise(indexes))


def test_the_type_of_an_encoded_event_is_read_without_parsing():
    assert event_type(b'{"type":"response.created","sequence_number":0}') == "response.created"
    assert event_type(b'{"type":"error"}') == "error"
