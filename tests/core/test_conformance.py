"""Conformance cases that a session decides by itself, one test for each, named by its number."""

import itertools
from typing import Any

import pytest
from peer import Peer, SharedStore, call, output, response_id, say, texts, types, user

from turntape.core.seam import Arguments, ClientGone, Finish, Limits, Reasoning, Started, Summary, Text, Tick, ToolCall

TEXT_LADDER = [
    "created",
    "in_progress",
    "output_item.added",
    "content_part.added",
    "output_text.delta",
    "output_text.delta",
    "output_text.delta",
    "output_text.done",
    "content_part.done",
    "output_item.done",
    "completed",
]
RESPONSE_KEYS = {
    "id", "object", "created_at", "completed_at", "status", "background", "error", "incomplete_details",
    "instructions", "max_output_tokens", "max_tool_calls", "model", "output", "parallel_tool_calls",
    "presence_penalty", "frequency_penalty", "previous_response_id", "prompt_cache_key", "reasoning",
    "safety_identifier", "service_tier", "store", "temperature", "text", "tool_choice", "tools", "top_logprobs",
    "top_p", "truncation", "usage", "user", "metadata",
}  # fmt: skip
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}


def without_ids(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in event.items() if k not in ("response", "item", "item_id")} for event in events]


def numbers(events: list[dict[str, Any]]) -> list[int]:
    return [event["sequence_number"] for event in events]


def the_error(events: list[dict[str, Any]], code: str, status: int = 400) -> dict[str, Any]:
    """The one event there is, which must be a nested error frame."""
    [event] = events
    assert event["type"] == "error" and event["status"] == status
    assert event["error"]["code"] == code and event["error"]["message"] and event["error"]["type"]
    assert event["sequence_number"] == 0
    return event


# --- basics ---------------------------------------------------------------------------------------------


def test_c01_a_text_turn_has_the_full_ladder():
    peer = Peer()
    events = peer.create()
    assert types(events) == TEXT_LADDER
    assert numbers(events) == list(range(len(events)))
    created, done, completed = events[0]["response"], events[-2]["item"], events[-1]["response"]
    assert (created["status"], created["output"], created["usage"]) == ("in_progress", [], None)
    assert created["object"] == "response" and set(created) >= RESPONSE_KEYS and set(completed) >= RESPONSE_KEYS
    assert done["status"] == "completed" and done["content"][0]["text"] == "Hello, there."
    assert completed["output"] == [done]
    assert completed["usage"]["total_tokens"] == sum(completed["usage"][f"{k}_tokens"] for k in ("input", "output"))
    assert completed["usage"]["output_tokens_details"] == {"reasoning_tokens": 0}
    assert completed["completed_at"] is not None and created["completed_at"] is None
    assert not any("stream_id" in event for event in events)


def test_c02_fields_of_other_transports_and_unknown_ones_change_nothing():
    plain = Peer().create()
    extras = {"stream": True, "background": False, "stream_options": {}, "client_metadata": {"a": "b"}, "x_foo": 1}
    decorated = Peer().create(**extras)
    assert decorated == plain
    assert Peer().create(stream=False, background=None) == plain


def test_c03_two_creates_are_two_responses_each_numbered_from_zero():
    peer = Peer()
    first, second = peer.create(), peer.create()
    assert types(first) == types(second) == TEXT_LADDER
    assert response_id(first) != response_id(second)
    assert numbers(second)[0] == 0


def test_c04_creates_pipelined_on_a_lane_do_not_interleave():
    peer = Peer(answer=None)
    assert peer.create("one") == [] and peer.create("two") == []
    assert len(peer.starts) == 1
    first = peer.sampled(Text("a"), Finish())
    assert types(first)[-1] == "completed" and len(peer.starts) == 2
    assert texts(peer.prompt()) == ["user: two"]
    second = peer.sampled(Text("b"), Finish())
    assert types(second)[0] == "created" and types(second)[-1] == "completed"


def test_c05_background_is_refused_by_name():
    peer = Peer()
    error = the_error(peer.create(background=True), "unsupported_parameter")
    assert error["error"]["param"] == "background"
    assert types(peer.create()) == TEXT_LADDER


@pytest.mark.parametrize("text", ["{", "", "nope", "[]", "7", '"x"', "null", '{"a":1} x'])
def test_c06_text_that_is_no_json_object_is_refused_and_the_socket_lives(text):
    peer = Peer()
    error = the_error(peer.text(text), "invalid_json")
    assert "stream_id" not in error
    assert types(peer.create()) == TEXT_LADDER


@pytest.mark.parametrize(
    "kind", ['"nope"', "5", "null", '"response.steer"', '"response.interrupt"', '"response.inject"']
)
def test_c07_an_unknown_event_type_is_refused_by_name(kind):
    peer = Peer()
    error = the_error(peer.text(f'{{"type":{kind}}}'), "unsupported_event_type")
    assert error["error"]["param"] == "type"
    assert types(peer.create()) == TEXT_LADDER


def test_c08_a_create_without_a_model_is_refused_unless_there_is_a_default():
    peer = Peer()
    error = the_error(peer.create(model=...), "missing_required_parameter")
    assert error["error"]["param"] == "model"
    events = Peer(default_model="fallback").create(model=None)
    assert events[-1]["response"]["model"] == "fallback"


# --- continuation and cache -------------------------------------------------------------------------------


def test_c12_a_continuation_is_the_parents_input_output_and_the_new_input():
    peer = Peer()
    parent = response_id(peer.create("one"))
    events = peer.create("two", previous_response_id=parent)
    assert texts(peer.prompt()) == ["user: one", "assistant: Hello, there.", "user: two"]
    assert events[-1]["response"]["previous_response_id"] == parent


def test_c13_instructions_are_not_inherited():
    peer = Peer()
    parent = response_id(peer.create("one", instructions="X", temperature=0.5, tools=[TOOL]))
    events = peer.create("two", previous_response_id=parent)
    assert peer.starts[0].request.instructions == "X" and peer.starts[1].request.instructions is None
    assert events[-1]["response"]["instructions"] is None
    assert events[-1]["response"]["tools"] == [] and events[-1]["response"]["temperature"] == 1.0


def test_c14_a_lane_remembers_only_its_most_recent_response():
    peer = Peer()
    first = response_id(peer.create())
    second = response_id(peer.create(previous_response_id=first))
    error = the_error(peer.create(previous_response_id=first), "previous_response_not_found")
    assert error["error"]["param"] == "previous_response_id"
    assert types(peer.create(previous_response_id=second)) == TEXT_LADDER


def test_c14_a_setting_makes_a_lane_remember_more():
    peer = Peer(limits=Limits(n_kept=2))
    first = response_id(peer.create())
    peer.create(previous_response_id=first)
    assert types(peer.create(previous_response_id=first)) == TEXT_LADDER


def test_c15_what_was_stored_is_found_again():
    peer = Peer()
    first = response_id(peer.create("one", store=True))
    peer.create(previous_response_id=first)
    assert types(peer.create("three", previous_response_id=first)) == TEXT_LADDER
    assert texts(peer.prompt()) == ["user: one", "assistant: Hello, there.", "user: three"]


def test_c16_an_unknown_parent_is_answered_with_the_documented_frame():
    error = the_error(Peer().create(previous_response_id="resp_abc"), "previous_response_not_found")
    assert error == {
        "type": "error",
        "sequence_number": 0,
        "status": 400,
        "error": {
            "type": "invalid_request_error",
            "code": "previous_response_not_found",
            "message": "Previous response with id 'resp_abc' not found.",
            "param": "previous_response_id",
        },
    }


def test_c17_a_refused_continuation_evicts_its_parent():
    peer = Peer()
    parent = response_id(peer.create())
    error = the_error(peer.create([output("call_missing")], previous_response_id=parent), "invalid_tool_output")
    assert "call_missing" in error["error"]["message"] and error["error"]["param"] == "input"
    the_error(peer.create(previous_response_id=parent), "previous_response_not_found")


def test_c17_a_continuation_that_fails_later_evicts_its_parent_too():
    peer = Peer()
    parent = response_id(peer.create())
    peer.answer = None
    peer.create(previous_response_id=parent)
    peer.started()
    assert types(peer.fail()) == ["failed"]
    the_error(peer.create(previous_response_id=parent), "previous_response_not_found")


def test_c18_a_stored_parent_survives_a_refused_continuation():
    peer = Peer()
    parent = response_id(peer.create(store=True))
    the_error(peer.create([output("call_missing")], previous_response_id=parent), "invalid_tool_output")
    assert types(peer.create(previous_response_id=parent)) == TEXT_LADDER


def test_c19_a_response_that_was_not_stored_stays_on_its_socket():
    store = SharedStore()
    parent = response_id(Peer(store=store).create())
    other = Peer(store=store)
    the_error(other.create(previous_response_id=parent), "previous_response_not_found")
    assert types(other.create([user("one"), user("two")], previous_response_id=None)) == TEXT_LADDER


def test_c20_a_tool_turn_continues_with_its_output_only():
    peer = Peer(answer=call("f"))
    first = peer.create("go", tools=[TOOL])
    assert types(first)[2:6] == [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
    ]
    added, item = first[2]["item"], first[-2]["item"]
    assert (added["name"], added["arguments"], added["status"]) == ("f", "", "in_progress")
    assert (item["arguments"], item["status"]) == ('{"n":0}', "completed")
    second = peer.create([output(item["call_id"])], previous_response_id=response_id(first), tools=[TOOL])
    assert texts(peer.prompt()) == ["user: go", 'function_call: {"n":0}', "function_call_output: 42"]
    usage = second[-1]["response"]["usage"]
    assert 0 < usage["input_tokens_details"]["cached_tokens"] < usage["input_tokens"]


def test_c21_outputs_of_parallel_calls_come_in_any_order():
    peer = Peer(answer=call("f", "g"))
    first = peer.create()
    assert [e["output_index"] for e in first if e["type"] == "response.output_item.done"] == [0, 1]
    outputs = [output(item["call_id"]) for item in reversed(first[-1]["response"]["output"])]
    assert types(peer.create(outputs, previous_response_id=response_id(first)))[-1] == "completed"


def test_c22_a_missing_output_is_refused_by_its_call():
    peer = Peer(answer=call("f", "g"))
    first = peer.create()
    error = the_error(peer.create([output("call_f_0")], previous_response_id=response_id(first)), "invalid_tool_output")
    assert "call_g_1" in error["error"]["message"]


def test_c22_a_setting_fills_missing_outputs_as_aborted():
    peer = Peer(answer=call("f", "g"), limits=Limits(fill_missing_outputs=True))
    first = peer.create()
    events = peer.create([output("call_f_0"), user("go on")], previous_response_id=response_id(first))
    assert types(events)[-1] == "completed"
    assert texts(peer.prompt())[-3:] == ["function_call_output: aborted", "function_call_output: 42", "user: go on"]
    full = [{"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}, user("go on")]
    assert types(peer.create(full))[-1] == "completed"
    assert texts(peer.prompt())[-2:] == ["function_call_output: aborted", "user: go on"]


def test_c23_an_empty_input_continues():
    peer = Peer()
    parent = response_id(peer.create("one"))
    assert types(peer.create([], previous_response_id=parent)) == TEXT_LADDER
    assert texts(peer.prompt()) == ["user: one", "assistant: Hello, there."]


def test_c24_a_parent_and_a_conversation_together_are_refused():
    peer = Peer()
    parent = response_id(peer.create())
    error = the_error(peer.create(previous_response_id=parent, conversation="conv_1"), "unsupported_parameter")
    assert error["error"]["param"] == "conversation"


# --- warm-up ------------------------------------------------------------------------------------------------


def test_c25_a_warm_up_samples_nothing():
    peer = Peer()
    events = peer.create(
        [{"type": "message", "role": "developer", "content": "be brief"}], generate=False, tools=[TOOL]
    )
    assert types(events) == ["created", "in_progress", "completed"]
    ended = events[-1]["response"]
    assert ended["output"] == [] and ended["status"] == "completed"
    assert ended["usage"]["output_tokens"] == 0 and ended["usage"]["input_tokens"] > 0
    assert peer.starts == []


def test_c26_a_warm_up_is_continued_like_any_response():
    peer = Peer()
    warm = response_id(peer.create([{"role": "developer", "content": "be brief"}], generate=False))
    events = peer.create("hi", previous_response_id=warm)
    assert types(events) == TEXT_LADDER
    assert texts(peer.prompt()) == ["developer: be brief", "user: hi"]
    assert events[-1]["response"]["usage"]["input_tokens_details"]["cached_tokens"] > 0


def test_c27_prewarm_overrides_generate():
    peer = Peer()
    assert types(peer.create(prompt_cache_options={"prewarm": True}, generate=True))[-1] == "completed"
    assert peer.starts == []


def test_c28_a_warm_up_in_the_middle_of_a_chain():
    peer = Peer()
    first = response_id(peer.create("one"))
    warm = response_id(peer.create([user("extra")], generate=False, previous_response_id=first))
    peer.create("new", previous_response_id=warm)
    assert texts(peer.prompt()) == ["user: one", "assistant: Hello, there.", "user: extra", "user: new"]


# --- lanes ----------------------------------------------------------------------------------------------------


def test_c29_lanes_run_at_once_and_every_event_names_its_lane():
    peer = Peer(answer=None)
    peer.create(stream_id="main")
    peer.create(stream_id="side")
    peer.create()
    for n in (0, 1, 2, 1, 0, 2):
        peer.sampled(Text("x"), n=n)
    for n in (2, 0, 1):
        peer.sampled(Finish(), n=n)
    lanes = [event.get("stream_id") for event in peer.sent]
    assert lanes != sorted(lanes, key=str)  # they interleave
    for lane in ("main", "side", None):
        events = [event for event in peer.sent if event.get("stream_id") == lane]
        assert types(events)[0] == "created" and types(events)[-1] == "completed"
        assert numbers(events) == list(range(len(events)))
    assert all(("stream_id" in event) == (event.get("stream_id") is not None) for event in peer.sent)


@pytest.mark.parametrize("stream_id", ["", "x" * 257, "a b", 5, True, {}, "ä"])
def test_c30_a_malformed_stream_id_is_refused_without_an_echo(stream_id):
    peer = Peer()
    error = the_error(peer.create(stream_id=stream_id), "invalid_stream_id")
    assert "stream_id" not in error and error["error"]["param"] == "stream_id"
    assert types(peer.create()) == TEXT_LADDER


def test_c30_a_null_stream_id_is_the_default_lane():
    events = Peer().create(stream_id=None)
    assert types(events) == TEXT_LADDER and "stream_id" not in events[0]


def test_c31_the_33rd_lane_is_refused_and_the_others_live():
    peer = Peer()
    for n in range(32):
        peer.create(stream_id=f"lane-{n}")
    error = the_error(peer.create(stream_id="lane-32"), "websocket_stream_limit_reached")
    assert error["stream_id"] == "lane-32" and error["error"]["param"] == "stream_id"
    assert types(peer.create(stream_id="lane-0")) == types(peer.create()) == TEXT_LADDER


def test_c32_sixteen_responses_are_in_flight_and_the_rest_wait_their_turn():
    peer = Peer(answer=None)
    for n in range(20):
        peer.create(stream_id=f"lane-{n}")
    assert len(peer.starts) == 16
    for n in range(20):
        peer.sampled(Text("x"), Finish(), n=n)
        assert len(peer.starts) == min(20, 17 + n)
    assert types(peer.sent).count("completed") == 20 and "error" not in types(peer.sent)


def test_c33_a_fork_leaves_its_parents_lane_free_to_go_on():
    peer = Peer()
    parent = response_id(peer.create("one", stream_id="main"))
    peer.answer = None
    peer.create("fork", stream_id="b", previous_response_id=parent)
    assert types(peer.started()) == ["created", "in_progress"]
    peer.create("on", stream_id="main", previous_response_id=parent)
    peer.sampled(Text("x"), Finish(), n=1)
    peer.sampled(Text("y"), Finish(), n=2)
    assert types(peer.sent).count("completed") == 3
    assert texts(peer.prompt(1))[-1] == "user: fork" and texts(peer.prompt(2))[-1] == "user: on"


def test_c34_a_fork_from_a_parent_that_its_lane_replaced_is_not_found():
    peer = Peer()
    parent = response_id(peer.create(stream_id="main"))
    peer.create(stream_id="main", previous_response_id=parent)
    error = the_error(peer.create(stream_id="b", previous_response_id=parent), "previous_response_not_found")
    assert error["stream_id"] == "b"


def test_c35_a_failed_fork_keeps_the_parent():
    peer = Peer()
    parent = response_id(peer.create(stream_id="main"))
    the_error(peer.create([output("x")], stream_id="b", previous_response_id=parent), "invalid_tool_output")
    assert types(peer.create(stream_id="main", previous_response_id=parent)) == TEXT_LADDER


def test_c36_an_error_on_one_lane_leaves_the_others_alone():
    peer = Peer(answer=None)
    peer.create(stream_id="b")
    peer.sampled(Text("x"))
    error = the_error(peer.create(stream_id="a", previous_response_id="resp_no"), "previous_response_not_found")
    assert error["stream_id"] == "a"
    assert types(peer.sampled(Text("y"), Finish()))[-1] == "completed"


def test_c37_a_create_without_a_parent_begins_anew():
    peer = Peer()
    peer.create("one", stream_id="main")
    peer.create("two", stream_id="main")
    assert texts(peer.prompt()) == ["user: two"]


def test_c38_a_pipelined_create_may_name_the_response_that_still_runs():
    peer = Peer(answer=None)
    peer.create("one")
    running = response_id(peer.started())
    assert peer.create("two", previous_response_id=running) == []
    peer.sampled(Text("x"), Finish())
    assert texts(peer.prompt()) == ["user: one", "assistant: x", "user: two"]


@pytest.mark.parametrize("field", ["stream_id", "generate"])
def test_c39_websocket_fields_are_unknown_over_http(field):
    peer = Peer(transport="json")
    error = the_error(peer.create(**{field: "a" if field == "stream_id" else False}), "unknown_parameter")
    assert error["error"]["param"] == field
    assert peer.closed is not None


# --- lifetime and errors ------------------------------------------------------------------------------------


def test_c40_an_old_connection_takes_no_more_creates_and_closes():
    peer = Peer(limits=Limits(max_age_s=2.0))
    parent = response_id(peer.create(store=True))
    assert peer.session.deadline == 2.0
    error = the_error(peer.feed(Tick(), now=2.0), "websocket_connection_limit_reached")
    assert "stream_id" not in error and peer.closed is not None and peer.closed.code == 1001
    again = Peer(store=peer.store)
    assert types(again.create(previous_response_id=parent)) == TEXT_LADDER


def test_c40_a_response_in_flight_ends_before_an_old_connection_closes():
    peer = Peer(answer=None, limits=Limits(max_age_s=2.0))
    peer.create()
    peer.started()
    peer.feed(Tick(), now=2.0)
    the_error(peer.create(), "websocket_connection_limit_reached")
    assert peer.closed is None
    assert types(peer.sampled(Text("x"), Finish()))[-1] == "completed"
    assert peer.closed is not None


def test_c40_a_response_that_never_ends_cannot_hold_an_old_connection():
    peer = Peer(answer=None, limits=Limits(max_age_s=2.0, drain_s=5.0, keepalive_s=60.0))
    peer.create()
    peer.started()
    peer.feed(Tick(), now=2.0)
    assert peer.session.deadline == 7.0
    peer.feed(Tick(), now=7.0)
    assert peer.closed is not None and peer.cancelled == [peer.starts[0].sample_id]


def test_c41_a_failure_after_the_start_is_a_failed_response():
    peer = Peer(answer=None)
    peer.create()
    peer.sampled(Text("half a"))
    [failed] = peer.fail("server_error", message="the model broke")
    assert failed["type"] == "response.failed" and failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "the model broke"}
    assert numbers(peer.sent) == list(range(len(peer.sent)))
    peer.answer = say("x")
    assert types(peer.create())[-1] == "completed"


def test_c41_a_refusal_by_the_backend_is_an_error_and_no_response_ever_was():
    peer = Peer(answer=None)
    peer.create()
    event = the_error(
        peer.fail("rate_limit_exceeded", message="slow", status=429, retry_after="3"), "rate_limit_exceeded", 429
    )
    assert event["error"]["headers"] == event["headers"] == {"retry-after": "3"}
    assert event["error"]["type"] == "rate_limit_error"
    assert types(peer.sent) == ["error"]


def test_c42_a_response_cut_short_is_incomplete_and_can_be_continued():
    peer = Peer(answer=say("half a", reason="length"))
    events = peer.create("go", max_output_tokens=2)
    assert types(events)[-2:] == ["output_item.done", "incomplete"]
    ended = events[-1]["response"]
    assert ended["status"] == "incomplete" and ended["incomplete_details"] == {"reason": "max_output_tokens"}
    assert ended["usage"] is not None and events[-2]["item"]["status"] == "incomplete"
    peer.answer = say("the rest")
    assert types(peer.create([], previous_response_id=ended["id"]))[-1] == "completed"
    assert texts(peer.prompt()) == ["user: go", "assistant: half a"]


def test_c42_half_a_tool_call_does_not_block_the_chain():
    peer = Peer(answer=lambda start: (ToolCall("c", "f"), Arguments('{"a'), Finish("length")))
    events = peer.create("go")
    assert events[-2]["item"]["status"] == "incomplete" and events[-1]["response"]["output"] == [events[-2]["item"]]
    peer.answer = say("sorry")
    assert types(peer.create("go on", previous_response_id=response_id(events)))[-1] == "completed"


def test_c46_a_client_that_leaves_cancels_what_it_asked_for():
    peer = Peer(answer=None)
    peer.create()
    peer.create(stream_id="b")
    peer.sampled(Text("x"))
    peer.feed(ClientGone())
    assert sorted(peer.cancelled) == sorted(start.sample_id for start in peer.starts) and peer.session.closed


# --- the prototype: response.append ---------------------------------------------------------------------------


def test_c53_a_tool_call_parks_the_response_for_a_client_that_offered_append():
    peer = Peer(answer=call("f"), dialect="append")
    events = peer.create(tools=[TOOL])
    assert types(events)[-2:] == ["output_item.done", "done"] and "completed" not in types(events)
    done = events[-1]["response"]
    assert done["id"] == response_id(events) and done["status"] == "in_progress" and done["usage"]["output_tokens"] > 0


def test_c54_an_append_continues_the_same_response():
    peer = Peer(answer=call("f"), dialect="append")
    first = peer.create()
    second = peer.append(output("call_f_0"))
    assert types(second)[0] == "output_item.added" and types(second)[-1] == "completed"
    assert numbers(first + second) == list(range(len(first + second)))
    assert second[0]["output_index"] == 1 and response_id(first) == response_id(second)
    assert [item["type"] for item in second[-1]["response"]["output"]] == ["function_call", "message"]
    assert texts(peer.prompt()) == ["user: hi", 'function_call: {"n":0}', "function_call_output: 42"]


@pytest.mark.parametrize("dialect", ["append", "legacy", "current"])
def test_c55_an_append_may_repeat_what_the_server_said(dialect):
    """Codex 0.98 echoes reasoning and calls before its outputs, without ids, after either terminal."""
    said = (Summary("hm"), Reasoning("raw"), Text("let me see"), ToolCall("c1", "f"), Arguments("{}"), Finish())
    peer = Peer(answer=lambda start: said if len(start.context.items_after(None)) == 1 else (Text("ok"), Finish()))
    peer = Peer(answer=peer.answer, dialect=dialect)
    first = peer.create("go", instructions="be brief")
    assert types(first)[-1] == ("done" if dialect == "append" else "completed")
    echo = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": None},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "let me see"}]},
        {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c1"},
    ]
    second = peer.append(*echo, output("c1"))
    assert types(second)[-1] == "completed"
    assert texts(peer.prompt()) == [
        "user: go",
        "reasoning: raw",
        "assistant: let me see",
        "function_call: {}",
        "function_call_output: 42",
    ]
    assert peer.starts[-1].request.instructions == "be brief"


def test_c56_an_append_with_an_orphan_output_fails_the_parked_response():
    peer = Peer(answer=call("f"), dialect="append")
    parked = response_id(peer.create())
    [failed] = peer.append(output("call_unknown"))
    assert failed["type"] == "response.failed" and failed["response"]["id"] == parked
    assert types(peer.create())[-1] == "done"


def test_c57_an_append_before_any_create_is_refused():
    peer = Peer()
    error = the_error(peer.append(output("x")), "response_not_found")
    assert error["error"]["param"] == "type"
    assert types(peer.create()) == TEXT_LADDER
    [failed] = Peer(dialect="append").append(output("x"))
    assert failed["type"] == "response.failed" and failed["response"]["error"]["code"] == "response_not_found"


def test_c58_a_create_abandons_the_parked_response_even_if_it_is_refused():
    peer = Peer(answer=call("f"), dialect="append")
    parked = response_id(peer.create())
    fresh = peer.create("anew")
    assert response_id(fresh) != parked and types(fresh)[-1] == "done"
    assert types(peer.create([output("orphan")])) == ["failed"]
    assert types(peer.append(output("call_f_0"))) == ["failed"]


def test_c59_every_segment_counts_only_itself():
    peer = Peer(dialect="append")
    plan = {0: ("a", "call"), 1: ("b", "call"), 2: ("c", "call"), 3: ("d", "end")}
    peer.answer = lambda start: (
        Text(plan[len(peer.starts) - 1][0] * 40),
        *((ToolCall(f"c{len(peer.starts)}", "f"), Arguments("{}")) if len(peer.starts) < 4 else ()),
        Finish(),
    )
    usages = [peer.create()[-1]["response"]["usage"]]
    for n in range(1, 4):
        usages.append(peer.append(output(f"c{n}"))[-1]["response"]["usage"])
    assert [usage["output_tokens"] for usage in usages] == [11, 11, 11, 10]
    assert all(a["input_tokens"] < b["input_tokens"] for a, b in itertools.pairwise(usages))


def test_c60_nobody_else_ever_sees_response_done():
    for dialect in ("current", "legacy"):
        assert types(Peer(answer=call("f"), dialect=dialect).create())[-1] == "completed"


def test_c58_partial_appends_keep_the_response_parked_until_every_output_is_there():
    peer = Peer(answer=call("f", "g"), dialect="append")
    peer.create()
    assert peer.append(output("call_g_1")) == [] and len(peer.starts) == 1
    assert types(peer.append(output("call_f_0")))[-1] == "completed"
    assert texts(peer.prompt())[-2:] == ["function_call_output: 42", "function_call_output: 42"]


def test_c40_a_started_response_is_announced_before_the_first_token_and_at_the_latest_after_a_second():
    peer = Peer(answer=None)
    peer.create(now=10.0)
    assert peer.sent == [] and peer.session.deadline == 11.0
    assert types(peer.feed(Tick(), now=11.0)) == ["created", "in_progress"]
    assert peer.feed(Started(peer.starts[0].sample_id)) == []
    assert types(peer.fail()) == ["failed"]


# --- items and fields -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": "plain"},
        {"role": "user", "content": [{"type": "input_text", "text": "parts"}]},
        {"role": "assistant", "content": [{"type": "input_text", "text": "as old clients send it"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "replayed, no id"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": None},
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "gAAAA"},
        {"type": "acme:thing", "anything": 1},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}},
    ],
)
def test_c71_items_as_real_clients_send_them_are_accepted(item):
    assert types(Peer().create([item, user("go")])) == TEXT_LADDER


def test_c72_namespace_custom_and_web_search_tools_are_accepted_and_others_refused_by_name():
    tools = [
        TOOL,
        {"type": "namespace", "name": "agents", "description": "d", "tools": [TOOL, {"type": "custom", "name": "c"}]},
        {"type": "web_search", "external_web_access": True},
        {"type": "tool_search"},
        {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"}},
    ]
    peer = Peer()
    events = peer.create(tools=tools)
    assert types(events) == TEXT_LADDER
    echoed = events[-1]["response"]["tools"]
    assert [tool["type"] for tool in echoed] == [tool["type"] for tool in tools]
    assert echoed[0] == {"description": None, "strict": True, **TOOL}
    offered = peer.starts[0].request.callable_tools
    assert [(tool.namespace, tool.name, tool.custom) for tool in offered] == [
        (None, "f", False),
        ("agents", "f", False),
        ("agents", "c", True),
        (None, "patch", True),
    ]
    error = the_error(peer.create(tools=[{"type": "code_interpreter"}]), "unsupported_parameter")
    assert error["error"]["param"] == "tools[0].type" and "code_interpreter" in error["error"]["message"]
