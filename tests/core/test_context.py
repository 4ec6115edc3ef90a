"""Conversations: one form for equal items, one key for equal conversations, and chains of any length."""

import hypothesis.strategies as st
from hypothesis import given
from peer import output, user

from turntape.core.canonical import Item, without_echo
from turntape.core.context import Context, estimate_tokens

CALL = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}


def key(*items):
    return Context().extend(map(Item.of, items)).fold.key


def test_ids_status_nulls_empty_lists_and_reasoning_do_not_matter():
    other = {**CALL, "id": "fc_1", "status": "completed", "call_id": "b", "x": None, "y": [], "client_metadata": {}}
    assert key(CALL, output("a")) == key(other, output("b", id="fco_1"))
    assert key(CALL, output("a")) == key({"type": "reasoning", "summary": []}, CALL, output("a"))


def test_the_order_of_keys_and_a_clients_own_bookkeeping_do_not_matter():
    assert key(user("a")) == key({**user("a"), "internal_chat_message_metadata_passthrough": {"turn_id": "1"}})
    assert key(CALL) == key(dict(reversed(CALL.items())))


def test_what_means_something_matters():
    assert key(CALL, output("a")) != key({**CALL, "name": "g"}, output("a"))
    assert key(CALL, output("a")) != key(CALL, output("a", "43"))
    assert key(user("a"), user("b")) != key(user("b"), user("a"))
    two = {**CALL, "call_id": "z"}
    assert key(CALL, two, output("a", "1"), output("z", "2")) != key(CALL, two, output("a", "2"), output("z", "1"))


def test_a_string_is_one_text_part_whatever_the_part_is_called():
    said = {"role": "assistant", "content": [{"type": "output_text", "text": "x", "annotations": [], "logprobs": []}]}
    assert key(said) == key({"role": "assistant", "content": "x"})
    assert key(said) == key({"type": "message", "role": "assistant", "content": [{"type": "input_text", "text": "x"}]})


def test_only_calls_without_an_output_are_remembered():
    open_calls = Context().extend(map(Item.of, [CALL, {**CALL, "call_id": "b"}, output("a")])).fold.open_calls
    assert dict(open_calls) == {"b": 2}


def test_an_echo_is_dropped_up_to_the_first_difference():
    other = {**CALL, "call_id": "b", "name": "g"}
    said = [Item.of(item) for item in ({"type": "reasoning", "summary": []}, CALL, other)]
    echoed = [Item.of(item) for item in (CALL, other, output("a"), output("b"))]
    assert list(without_echo(said, echoed)) == echoed[2:]
    assert list(without_echo(said, echoed[1:])) == echoed[1:]  # another call stands there: no echo
    assert list(without_echo(said, echoed[2:])) == echoed[2:]
    fresh = [Item.of({"type": "reasoning", "summary": []}), Item.of(user("x"))]
    assert list(without_echo(said, fresh)) == fresh


@given(
    st.lists(st.sampled_from([CALL, user("a"), user("b"), {"type": "reasoning", "summary": []}]), max_size=8), st.data()
)
def test_a_conversation_has_one_key_however_it_is_cut_into_turns(items, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(items)), max_size=3)))
    context = Context()
    for start, end in zip([0, *cuts], [*cuts, len(items)], strict=True):
        context = context.extend(map(Item.of, items[start:end]))
    assert context.fold == Context().extend(map(Item.of, items)).fold
    assert [item.value for item in context.items_after(None)] == items and context.n_items == len(items)


def test_a_fork_shares_its_parent():
    parent = Context().extend([Item.of(user("one"))])
    left, right = parent.extend([Item.of(user("l"))]), parent.extend([Item.of(user("r"))])
    assert left.parent is right.parent is parent and left.fold.key != right.fold.key
    assert [item.value["content"] for item in left.items_after(parent)] == ["l"]


def test_tools_of_additional_tools_items_are_carried_on():
    item = {"type": "additional_tools", "role": "developer", "tools": [{"type": "custom", "name": "exec"}]}
    context = Context().extend([Item.of(item)]).extend([Item.of(user("x"))])
    assert [(tool.name, tool.custom) for tool in context.tools] == [("exec", True)]
    more = Item.of({**item, "tools": [{"type": "function", "name": "wait"}]})
    assert [tool.name for tool in context.extend([more, Item.of(user("y"))]).tools] == ["exec", "wait"]


def test_every_begun_token_is_counted():
    assert [estimate_tokens(n) for n in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]


def test_a_very_long_chain_is_compared_printed_hashed_and_dropped_without_recursion():
    context = Context()
    for n in range(200_000):
        context = context.extend([Item.of({"n": n})] if n % 1000 == 0 else [])
    same = context
    assert context == same and context != Context() and len(repr(context)) < 100 and hash(context)
    assert len(context.items_after(None)) == 200
    del same, context  # frees every parent: must not overflow the C stack
