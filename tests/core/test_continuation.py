"""What a request continues, and what becomes of it: after an end, a warm-up, a refusal, on another connection."""

import pytest
from peer import Peer, SharedStore, output, response_id, texts, types, user

import turntape.core.session as session_module
from turntape.core.seam import Arguments, Finish, Limits, Load, Text, ToolCall


def test_an_append_after_the_end_continues_the_response_that_ended_last():
    peer = Peer(dialect="legacy", limits=Limits(n_kept=3))
    peer.create("one")
    peer.create("two")
    peer.append(user("three"))
    assert texts(peer.prompt()) == ["user: two", "assistant: Hello, there.", "user: three"]


def test_an_append_after_a_warm_up_asks_the_model():
    peer = Peer(dialect="legacy")
    peer.create([user("be kind")], generate=False)
    assert types(peer.append(user("go")))[-1] == "completed"
    assert texts(peer.prompt()) == ["user: be kind", "user: go"]


def test_only_a_whole_answer_parks():
    """What was cut short ends its response, even if a whole call stands before the cut."""
    said = (ToolCall("c", "f"), Arguments("{}"), Text("and th"), Finish("length"))
    assert types(Peer(dialect="append", answer=lambda start: said).create())[-1] == "incomplete"


@pytest.mark.parametrize("fill", [False, True])
def test_a_warm_up_may_leave_calls_open_and_their_outputs_follow(fill):
    peer = Peer(limits=Limits(fill_missing_outputs=fill))
    called = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    warm = peer.create([called], generate=False)
    assert types(warm)[-1] == "completed"
    assert types(peer.create([output("c")], previous_response_id=response_id(warm)))[-1] == "completed"
    assert texts(peer.prompt()) == ["function_call: {}", "function_call_output: 42"]


def test_the_usage_of_a_warm_up_says_what_was_rendered_before():
    peer = Peer()
    parent = response_id(peer.create("x" * 400))
    usage = peer.create([user("y" * 400)], generate=False, previous_response_id=parent)[-1]["response"]["usage"]
    assert 100 < usage["input_tokens_details"]["cached_tokens"] < usage["input_tokens"] - 100


def test_the_missing_output_of_a_custom_call_is_filled_in_its_own_kind():
    peer = Peer(limits=Limits(fill_missing_outputs=True))
    peer.create([{"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "x"}, user("go on")])
    assert [item["type"] for item in peer.prompt()] == ["custom_tool_call", "custom_tool_call_output", "message"]


def test_a_stored_child_of_a_loaded_parent_carries_its_own_items_only():
    store = SharedStore()
    parent = response_id(Peer(store=store).create("one", store=True))
    child = response_id(Peer(store=store).create("two", previous_response_id=parent, store=True))
    assert (store.records[child].previous_id, len(store.records[child].items)) == (parent, 2)


def test_a_response_is_stored_unless_the_client_says_no():
    peer = Peer()
    for fields in ({"store": ...}, {"store": None}, {"store": True}, {"store": False}):
        peer.create(**fields)
    assert len(peer.store.records) == 3


def test_an_item_that_the_client_named_itself_is_found_by_that_name():
    peer = Peer()
    mine = {**user("one"), "id": "msg_mine"}
    peer.create([mine])
    assert types(peer.create([{"type": "item_reference", "id": "msg_mine"}]))[-1] == "completed"
    assert [peer.prompt(n) for n in range(2)] == [[mine], [mine]]


def test_one_request_may_refer_to_items_of_this_connection_and_to_several_stored_ones():
    store = SharedStore()
    one, two = (Peer(store=store, seed=seed).create(store=True)[-2]["item"] for seed in ("01" * 16, "02" * 16))
    peer = Peer(store=store)
    here = peer.create()[-2]["item"]
    wanted = [two, here, one, two]
    peer.create([{"type": "item_reference", "id": item["id"]} for item in wanted])
    assert peer.prompt() == wanted


def test_as_many_items_are_remembered_as_the_bound_says():
    peer = Peer(limits=Limits(n_referable=2), store=None)
    older, newer = (peer.create()[-2]["item"] for _ in range(2))
    peer.create([{"type": "item_reference", "id": item["id"]} for item in (older, newer)])
    assert peer.asked == [] and peer.prompt() == [older, newer]


def test_big_items_are_remembered_up_to_a_number_of_bytes(monkeypatch):
    """A client that sends big items with ids of their own cannot fill the server's memory with them."""
    monkeypatch.setattr(session_module, "MAX_REFERABLE_BYTES", 50_000)
    peer = Peer(store=None)
    for name in ("a", "b", "b", "b"):  # what is sent again counts once
        peer.create([{**user("x" * 20_000), "id": name}])
    for name, is_known in (("a", True), ("b", True), ("c", True), ("a", False), ("b", True)):
        if name == "c":
            peer.create([{**user("x" * 20_000), "id": "c"}])
        n_asked = len(peer.asked)
        peer.create([{"type": "item_reference", "id": name}], stream_id=f"{name}{n_asked}")
        assert (len(peer.asked) == n_asked) is is_known, name
    peer.create([{**user("x" * 90_000), "id": "d"}])
    peer.create([{"type": "item_reference", "id": "d"}])
    assert len(peer.prompt()[0]["content"]) == 90_000, "the newest is kept, whatever its size"


@pytest.mark.parametrize(
    ("status", "type_"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (429, "rate_limit_error"),
        (500, "server_error"),
        (503, "server_error"),
    ],
)
def test_a_refusal_by_the_backend_keeps_its_status_says_something_and_evicts_the_parent(status, type_):
    peer = Peer(store=None)
    parent = response_id(peer.create())
    peer.answer = None
    peer.create(previous_response_id=parent)
    [event] = peer.fail("some_code", status=status)
    assert (event["status"], event["error"]["type"], event["error"]["code"]) == (status, type_, "some_code")
    assert event["error"]["message"]
    peer.create(previous_response_id=parent)
    assert peer.asked == [Load(None, "", parent)]
