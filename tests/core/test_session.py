"""What a session promises beyond the conformance cases: the store, references, silence, leaving, bounds."""

import orjson
import pytest
from attrs import evolve
from peer import Peer, SharedStore, call, output, response_id, say, texts, types, user

from turntape.core.seam import (
    Arguments,
    ClientGone,
    Drain,
    Finish,
    Limits,
    Load,
    Loaded,
    Sampled,
    Save,
    Saved,
    StoreFailed,
    Text,
    Tick,
    ToolCall,
)


def the_code(events):
    [event] = events
    assert event["type"] == "error"
    return event["error"]["code"], event["status"]


# --- both designs -------------------------------------------------------------------------------------------


def test_chained_or_appended_echoed_or_not_the_same_conversation_gives_the_same_prompt():
    """Only where the parent is found differs, and only new items are new."""
    prompts = []
    for design in ("chain", "append", "append with echo", "append after completed"):
        peer = Peer(
            answer=call("f", "g"), dialect="current" if design in ("chain", "append after completed") else "append"
        )
        first = peer.create("go")
        said = [
            {k: v for k, v in item.items() if k not in ("id", "status")} for item in first[-1]["response"]["output"]
        ]
        outputs = [output("call_f_0", "1"), output("call_g_1", "2")]
        if design == "chain":
            peer.create(outputs, previous_response_id=response_id(first))
        else:
            peer.append(*(said if design == "append with echo" else []), *outputs)
        start = peer.starts[-1]
        assert [item.value for item in start.context.items] == outputs
        assert start.cached == start.context.parent.n_tokens
        prompts.append(start.context.fold.key)
    assert len(set(prompts)) == 1


def test_an_append_takes_over_the_settings_of_its_create():
    peer = Peer(answer=call("f"), dialect="append")
    peer.create(instructions="be brief", temperature=0.5)
    peer.append(output("call_f_0"))
    assert peer.starts[1].request.instructions == "be brief" and peer.starts[1].request.temperature == 0.5


def test_an_append_can_run_on_a_named_lane_while_others_are_parked():
    peer = Peer(answer=call("f"), dialect="append")
    peer.create("a", stream_id="a")
    peer.create("b", stream_id="b")
    assert {event["stream_id"] for event in peer.append(output("call_f_0"), stream_id="b")} == {"b"}
    assert texts(peer.prompt())[0] == "user: b"


# --- the store ------------------------------------------------------------------------------------------------


def test_a_terminal_event_waits_for_the_store_and_other_lanes_do_not():
    peer = Peer(store=None)
    assert types(peer.create(store=True))[-1] == "output_item.done"
    [save] = peer.asked
    assert isinstance(save, Save)
    assert types(peer.create(stream_id="b"))[-1] == "completed"
    assert peer.create("waits") == []
    events = peer.feed(Saved(None))
    assert types(events)[0] == "completed" and types(events)[1] == "created"


def test_a_save_that_fails_fails_the_response_and_evicts_its_parent():
    peer = Peer(store=None)
    parent = response_id(peer.create())
    peer.create(store=True, previous_response_id=parent)
    [failed] = peer.feed(StoreFailed(None, "The disk is full."))
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "The disk is full."}
    peer.create(previous_response_id=parent)
    assert isinstance(peer.asked[-1], Load)


def test_a_store_that_cannot_be_read_is_an_error_of_that_request_only():
    peer = Peer(store=None)
    peer.create(previous_response_id="resp_elsewhere")
    assert the_code(peer.feed(StoreFailed(None, "The store is locked."))) == ("server_error", 500)
    assert types(peer.create())[-1] == "completed"


def test_a_stored_child_of_parents_that_were_not_stored_carries_their_items():
    peer = Peer()
    first = response_id(peer.create("one"))
    second = response_id(peer.create("two", previous_response_id=first, store=True))
    third = response_id(peer.create("three", previous_response_id=second, store=True))
    records = peer.store.records
    assert set(records) == {second, third}
    assert (records[second].previous_id, len(records[second].items)) == (None, 4)
    assert (records[third].previous_id, len(records[third].items)) == (second, 2)
    other = Peer(store=peer.store)
    other.create("four", previous_response_id=third)
    assert texts(other.prompt()) == [
        "user: one", "assistant: Hello, there.", "user: two", "assistant: Hello, there.",
        "user: three", "assistant: Hello, there.", "user: four",
    ]  # fmt: skip


def test_what_is_stored_is_exactly_what_the_terminal_event_said():
    peer = Peer()
    events = peer.create(store=True, metadata={"k": "v"})
    [record] = peer.store.records.values()
    assert orjson.loads(record.response) == events[-1]["response"]
    assert record.created_at == events[0]["response"]["created_at"] and record.n_output == 1


def test_an_appended_response_is_stored_whole_at_its_end():
    peer = Peer(answer=call("f"), dialect="append")
    peer.create("go", store=True)
    assert peer.store.records == {}
    events = peer.append(output("call_f_0"))
    [record] = peer.store.records.values()
    assert orjson.loads(record.response) == events[-1]["response"]
    assert [orjson.loads(item)["type"] for item in record.items[: len(record.items) - record.n_output]] == ["message"]
    assert record.n_output == 3  # the call, what was appended, the message


def test_a_response_that_failed_is_not_stored():
    peer = Peer(answer=None)
    peer.create(store=True)
    peer.sampled(Text("x"))
    peer.fail()
    assert peer.store.records == {} and peer.asked == []


def test_records_belong_to_an_owner():
    store = SharedStore()
    parent = response_id(Peer(store=store, owner="ann").create(store=True))
    assert (
        the_code(Peer(store=store, owner="bob").create(previous_response_id=parent))[0] == "previous_response_not_found"
    )
    assert types(Peer(store=store, owner="ann").create(previous_response_id=parent))[-1] == "completed"


def test_a_stored_warm_up_is_continued_on_another_connection():
    store = SharedStore()
    warm = response_id(Peer(store=store).create([user("be kind")], generate=False, store=True))
    other = Peer(store=store)
    other.create("hi", previous_response_id=warm)
    assert texts(other.prompt()) == ["user: be kind", "user: hi"]


# --- item references ------------------------------------------------------------------------------------------


def test_an_item_of_this_connection_is_found_by_its_id_even_if_it_was_not_stored():
    peer = Peer(answer=call("f"))
    item = peer.create("go")[-2]["item"]
    reference = {"type": "item_reference", "id": item["id"]}
    assert types(peer.create([user("go"), reference, output(item["call_id"])]))[-1] == "completed"
    assert peer.prompt()[1] == item
    assert types(peer.create([user("go"), {"id": item["id"]}, output(item["call_id"])]))[-1] == "completed"


def test_an_item_of_another_connection_is_found_in_the_store_by_its_owner():
    store = SharedStore()
    item = Peer(store=store, answer=call("f"), owner="ann").create("go", store=True)[-2]["item"]
    wanted = [user("go"), {"type": "item_reference", "id": item["id"]}, output(item["call_id"])]
    other = Peer(store=store, owner="ann")
    assert types(other.create(wanted))[-1] == "completed"
    assert other.prompt()[1] == item
    assert the_code(Peer(store=store, owner="bob").create(wanted)) == ("item_not_found", 400)


def test_an_append_may_refer_to_stored_items():
    peer = Peer(answer=call("f"), dialect="append")
    stored = Peer(store=peer.store).create("before", store=True)[-2]["item"]
    peer.create("go")
    events = peer.append(output("call_f_0"), {"type": "item_reference", "id": stored["id"]})
    assert types(events)[-1] == "completed" and peer.prompt()[-1] == stored


def test_the_oldest_items_are_forgotten_first():
    peer = Peer(limits=Limits(n_referable=2), store=None)
    first = peer.create("one")[-2]["item"]["id"]
    for _ in range(2):
        peer.create("more")
    peer.create([{"type": "item_reference", "id": first}])
    assert peer.asked == [Load(None, "", None, (first,))]


def test_an_item_that_is_forgotten_while_the_store_is_asked_is_still_found():
    peer = Peer(limits=Limits(n_referable=1), store=None)
    here = peer.create("one")[-2]["item"]
    peer.create([{"type": "item_reference", "id": here["id"]}, {"type": "item_reference", "id": "msg_far"}])
    peer.create("another", stream_id="b")
    events = peer.feed(Loaded(None, (), (b'{"type":"message","role":"user","content":"far"}',)))
    assert types(events)[-1] == "completed" and peer.prompt()[0] == here


# --- silence, age, leaving ------------------------------------------------------------------------------------


def test_long_silence_is_broken_by_a_repeated_in_progress_that_counts():
    peer = Peer(answer=None)
    peer.create(now=0.0)
    peer.started()
    assert peer.session.deadline == 15.0
    [again] = peer.feed(Tick(), now=15.0)
    assert (again["type"], again["sequence_number"]) == ("response.in_progress", 2)
    peer.sampled(Text("x"), now=20.0)
    assert peer.feed(Tick(), now=30.0) == [] and peer.session.deadline == 35.0
    assert types(peer.feed(Tick(), now=35.0)) == ["in_progress"]
    assert [e["sequence_number"] for e in peer.sent] == list(range(len(peer.sent)))


def test_a_response_that_waits_for_the_store_is_kept_alive_too():
    peer = Peer(store=None)
    peer.create(store=True, now=0.0)
    assert types(peer.feed(Tick(), now=15.0)) == ["in_progress"]
    assert types(peer.feed(Saved(None))) == ["completed"]


def test_a_parked_response_is_not_kept_alive():
    """Its client is at work, not waiting; an event now would stand outside its turn."""
    peer = Peer(answer=call("f"), dialect="append")
    peer.create(now=0.0)
    assert peer.session.deadline == 3600.0


@pytest.mark.parametrize("now", [0.1, 0.7, 12.345678, 1234.567891])
def test_a_tick_at_the_deadline_always_moves_the_deadline(now):
    peer = Peer(answer=None)
    peer.create(now=now)
    for _ in range(3):
        before = peer.session.deadline
        assert peer.feed(Tick(), now=before) != []
        assert peer.session.deadline > before


def test_draining_ends_the_turn_refuses_what_waits_and_closes():
    peer = Peer(answer=None)
    peer.create("runs")
    peer.create("waits")
    assert the_code(peer.feed(Drain())) == ("slow_down", 503)
    assert the_code(peer.create("late")) == ("slow_down", 503)
    assert peer.closed is None
    assert types(peer.sampled(Text("x"), Finish()))[-1] == "completed"
    assert peer.closed.code == 1001


def test_draining_an_idle_or_parked_connection_closes_it_at_once():
    for peer in (Peer(), Peer(answer=call("f"), dialect="append")):
        peer.create()
        peer.feed(Drain())
        assert peer.closed.code == 1001


def test_a_client_that_is_gone_is_sent_nothing_more():
    peer = Peer(answer=None)
    peer.create()
    assert peer.feed(ClientGone()) == [] and peer.closed is not None


# --- bounds -----------------------------------------------------------------------------------------------------


def test_more_waiting_creates_than_the_bound_are_told_to_come_back():
    peer = Peer(answer=None, limits=Limits(n_waiting=3))
    for _ in range(4):
        peer.create()
    [event] = peer.create()
    assert (event["status"], event["error"]["code"]) == (429, "rate_limit_exceeded")
    assert event["headers"] == event["error"]["headers"] == {"retry-after": "1"}
    for _ in range(4):
        peer.sampled(Text("x"), Finish())
    assert types(peer.sent).count("completed") == 4
    assert types(peer.create(stream_id="b")) == []


def test_waiting_creates_may_not_hold_more_text_than_the_bound():
    peer = Peer(answer=None)
    for _ in range(2):
        assert peer.create("x" * (40 << 20)) == []
    assert the_code(peer.create("x" * (40 << 20))) == ("rate_limit_exceeded", 429)


def test_a_place_in_flight_goes_to_whoever_waits_longest():
    peer = Peer(answer=None, limits=Limits(n_in_flight=1))
    for lane in ("a", "a", "b", "c"):
        peer.create(lane, stream_id=lane)
    for _ in range(4):
        peer.sampled(Text("x"), Finish())
    assert [start.context.items[0].value["content"][0]["text"] for start in peer.starts] == ["a", "b", "c", "a"]


# --- what a backend may do wrong ------------------------------------------------------------------------------


def test_nonsense_from_a_backend_fails_its_response_only():
    peer = Peer(answer=None)
    peer.create()
    events = peer.sampled(Text("x"), Arguments("{}"))
    assert types(events)[-1] == "failed" and "arguments without a call" in events[-1]["response"]["error"]["message"]
    assert peer.cancelled == [peer.starts[0].sample_id]
    peer.answer = say("x")
    assert types(peer.create())[-1] == "completed"


def test_increments_of_a_sample_that_is_over_are_dropped():
    peer = Peer(answer=None)
    peer.create()
    peer.sampled(Text("x"), Finish())
    assert peer.sampled(Text("late"), Finish()) == [] and peer.fail() == [] and peer.started() == []
    assert peer.feed(Sampled("smp_never", (Text("x"),))) == []


def test_lone_surrogates_from_a_backend_become_replacement_characters():
    peer = Peer(answer=lambda start: (Text("a\ud800"), ToolCall("c\ud800", "f\udfff", "n\ud800"), Finish()))
    item = peer.create()[-1]["response"]["output"][1]
    assert (item["call_id"], item["name"], item["namespace"]) == ("c\ufffd", "f\ufffd", "n\ufffd")


def test_a_rate_limit_after_the_start_says_when_to_come_back():
    peer = Peer(answer=None)
    peer.create()
    peer.started()
    [failed] = peer.fail("rate_limit_exceeded", message="Slow down.", status=429, retry_after="1.2")
    assert failed["response"]["error"]["message"] == "Slow down. Please try again in 1.2s."


# --- one POST -----------------------------------------------------------------------------------------------------


def test_a_post_is_a_session_that_ends_with_its_answer():
    for transport in ("sse", "json"):
        peer = Peer(transport=transport)
        assert types(peer.create(type=...))[-1] == "completed"
        assert peer.closed is not None and peer.session.closed
        peer = Peer(transport=transport)
        peer.text("nonsense")
        assert peer.closed is not None


def test_counting_is_a_warm_up_that_leaves_no_trace():
    peer = Peer(transport="count")
    events = peer.create("four words of text", type=..., store=True, instructions="x" * 400)
    assert types(events)[-1] == "completed" and events[-1]["response"]["usage"]["input_tokens"] > 100
    assert peer.store.records == {} and peer.starts == []


def test_the_same_events_give_the_same_bytes_and_another_seed_other_ids():
    def run(seed):
        peer = Peer(seed=seed, answer=call("f"))
        peer.create()
        return peer.sent

    assert run("ab" * 16) == run("ab" * 16) != run("cd" * 16)


def test_a_loaded_chain_is_not_counted_as_cached():
    store = SharedStore()
    parent = response_id(Peer(store=store).create(store=True))
    other = Peer(store=store)
    usage = other.create(previous_response_id=parent)[-1]["response"]["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] == 0


def test_events_name_nothing_that_was_not_asked_for():
    """An answer of the store for a lane that already refused is impossible; one for an unknown parent is not found."""
    peer = Peer(store=None)
    peer.create(previous_response_id="resp_x")
    [load] = peer.asked
    assert load == evolve(load, response_id="resp_x", item_ids=())
    assert the_code(peer.feed(Loaded(None, None)))[0] == "previous_response_not_found"


# --- what was once wrong ------------------------------------------------------------------------------------------


def test_a_post_of_more_than_an_hour_is_not_told_that_its_connection_is_old():
    peer = Peer(transport="sse", answer=None)
    peer.create(type=..., now=0.0)
    peer.started()
    assert types(peer.feed(Tick(), now=3600.0)) == ["in_progress"]


def test_half_an_answer_is_not_counted_as_cached():
    peer = Peer(answer=call("f", "g"), dialect="append")
    peer.create()
    peer.append(output("call_g_1", "x" * 4000))
    usage = peer.append(output("call_f_0"))[-1]["response"]["usage"]
    assert 0 < usage["input_tokens_details"]["cached_tokens"] < 1000


@pytest.mark.parametrize("warm", [{"generate": False}, {"prompt_cache_options": {"prewarm": True}}])
def test_an_append_after_any_warm_up_asks_the_model(warm):
    peer = Peer(dialect="legacy")
    peer.create([user("be kind")], **warm)
    assert types(peer.append(user("go")))[-1] == "completed" and len(peer.starts) == 1


def test_a_null_type_is_an_absent_one():
    peer = Peer()
    item = peer.create("go")[-2]["item"]
    peer.create([{"id": item["id"], "type": None}])
    assert peer.prompt() == [item]
    peer.create([{"type": None, "role": "user", "content": "x"}])
    assert peer.prompt()[0]["type"] == "message"


LONG = "x" * 100_000


@pytest.mark.parametrize(
    "fields",
    [
        {"previous_response_id": LONG},
        {"input": [{"type": "item_reference", "id": LONG}]},
        {"input": [output(LONG)]},
        {"input": [{"type": "function_call", "call_id": LONG, "name": "f", "arguments": ""}]},
        {"tools": [{"type": "function", "name": "f"}], "tool_choice": {"type": "function", "name": LONG}},
        {"tool_choice": {"type": "web_search" + LONG}},
        {"tools": [{"type": LONG}]},
        {"input": [{"type": LONG}]},
        {"input": [{"role": LONG, "content": "x"}]},
        {"type": LONG},
        {"type": "response.append", "response_id": LONG, "input": [user("x")]},
    ],
)
def test_an_error_repeats_no_more_of_a_value_than_shows_which_it_was(fields):
    [event] = Peer().create(**fields)
    assert event["type"] == "error" and len(str(event)) < 1000


def test_a_tool_that_the_conversation_brought_can_be_chosen():
    brought = {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "g"}]}
    own = [{"type": "function", "name": "f"}]
    choice = {"type": "function", "name": "g"}
    assert types(Peer().create([brought, user("x")], tools=own, tool_choice=choice))[-1] == "completed"
    assert the_code(Peer().create([user("x")], tools=own, tool_choice=choice)) == ("invalid_value", 400)
    assert the_code(Peer().create([user("x")], tool_choice=choice)) == ("invalid_value", 400)
