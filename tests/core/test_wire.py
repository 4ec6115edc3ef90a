"""What clients may send: every wrong kind is named with its place, and nothing is coerced."""

import json

import cattrs
import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from peer import Peer, call, output, types, user

from turntape.core.errors import ProtocolError
from turntape.core.structuring import converter
from turntape.core.wire import read, structure_create

FUNCTION = {"type": "function", "name": "f"}
DEEP = json.loads("[" * 300 + "]" * 300)
IN_PART = ("invalid_value", "input[0].content[0]")
LONG = "x" * 100_000


@pytest.mark.parametrize(
    ("fields", "code", "param", "says"),
    [
        ({"model": 5}, "invalid_value", "model", "expected a string, but got an integer"),
        ({"generate": "false"}, "invalid_value", "generate", "expected a boolean, but got a string"),
        ({"store": 1}, "invalid_value", "store", "expected a boolean, but got an integer"),
        ({"stream": "yes"}, "invalid_value", "stream", "boolean"),
        ({"instructions": ["x"]}, "invalid_value", "instructions", "expected a string, but got an array"),
        ({"previous_response_id": 7}, "invalid_value", "previous_response_id", "string"),
        ({"temperature": True}, "invalid_value", "temperature", "expected a number, but got a boolean"),
        ({"temperature": "0.5"}, "invalid_value", "temperature", "expected a number, but got a string"),
        ({"temperature": 2.5}, "invalid_value", "temperature", "between 0 and 2"),
        ({"top_p": -0.1}, "invalid_value", "top_p", "between 0 and 1"),
        ({"top_logprobs": 21}, "invalid_value", "top_logprobs", "between 0 and 20"),
        ({"max_output_tokens": 0}, "invalid_value", "max_output_tokens", "at least 1"),
        ({"max_output_tokens": 1.5}, "invalid_value", "max_output_tokens", "expected an integer, but got a number"),
        ({"truncation": "maybe"}, "invalid_value", "truncation", "'auto', 'disabled'"),
        ({"text": {"verbosity": "loud"}}, "invalid_value", "text.verbosity", "'low', 'medium', 'high'"),
        ({"text": {"format": {"type": "xml"}}}, "invalid_value", "text.format", "'json_schema'"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "invalid_value", "text.format", "object"),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": "yes"}}},
            "invalid_value",
            "text.format",
            "expected a boolean, but got a string",
        ),
        ({"reasoning": "high"}, "invalid_value", "reasoning", "expected an object, but got a string"),
        ({"reasoning": {"effort": 3}}, "invalid_value", "reasoning.effort", "string"),
        ({"include": "all"}, "invalid_value", "include", "expected an array, but got a string"),
        ({"include": [1]}, "invalid_value", "include[0]", "expected a string, but got an integer"),
        ({"metadata": []}, "invalid_value", "metadata", "expected an object, but got an array"),
        ({"metadata": {"k": 1}}, "invalid_value", "metadata.k", "string"),
        ({"metadata": {"k": "v" * 513}}, "invalid_value", "metadata.k", "512"),
        ({"metadata": {"k" * 65: ""}}, "invalid_value", f"metadata.{'k' * 64}", "at most 64"),
        ({"metadata": {str(n): "" for n in range(17)}}, "invalid_value", "metadata", "at most 16"),
        ({"tools": {}}, "invalid_value", "tools", "expected an array, but got an object"),
        ({"tools": ["f"]}, "invalid_value", "tools[0]", "expected an object, but got a string"),
        ({"tools": [{"name": "f"}]}, "invalid_value", "tools[0]", "null"),
        ({"tools": [FUNCTION, {"type": "function"}]}, "missing_required_parameter", "tools[1].name", "Missing"),
        ({"tools": [{**FUNCTION, "parameters": "{}"}]}, "invalid_value", "tools[0].parameters", "object"),
        ({"tools": [{"type": "telepathy"}]}, "invalid_value", "tools[0]", "'telepathy'"),
        ({"tools": [{"type": "mcp"}]}, "unsupported_parameter", "tools[0].type", "'mcp'"),
        (
            {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "mcp"}]}]},
            "invalid_value",
            "tools[0].tools[0]",
            "'function', 'custom'",
        ),
        ({"tool_choice": "always"}, "invalid_value", "tool_choice", "'required'"),
        ({"tool_choice": 1}, "invalid_value", "tool_choice", "a string or an object"),
        (
            {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "g"}},
            "invalid_value",
            "tool_choice",
            "'g'",
        ),
        ({"tool_choice": {"type": "file_search"}}, "unsupported_parameter", "tool_choice", "file_search"),
        ({"tool_choice": {"type": "web_search"}}, "unsupported_parameter", "tool_choice", "web_search"),
        ({"input": 5}, "invalid_value", "input", "a string or an array of items"),
        ({"input": ["x"]}, "invalid_value", "input[0]", "expected an object, but got a string"),
        ({"input": [user("a"), {"role": "king", "content": "x"}]}, "invalid_value", "input[1].role", "'king'"),
        ({"input": [{"role": "user"}]}, "missing_required_parameter", "input[0].content", "Missing"),
        ({"input": [{"role": "user", "content": 5}]}, "invalid_value", "input[0].content", "an array of content parts"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": 5}]}]},
            "invalid_value",
            "input[0].content[0]",
            "expected a string, but got an integer",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "hologram"}]}]},
            "invalid_value",
            "input[0].content[0]",
            "'hologram'",
        ),
        (
            {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}]},
            "invalid_value",
            "input[0].arguments",
            "expected a string, but got an object",
        ),
        (
            {"input": [{"type": "function_call_output", "output": "x"}]},
            "missing_required_parameter",
            "input[0].call_id",
            "Missing",
        ),
        ({"input": [{"role": "user", "content": [{"type": "refusal", "text": "x"}]}]}, *IN_PART, "null"),
        ({"input": [{"role": "user", "content": [{"type": "summary_text"}]}]}, *IN_PART, "null"),
        ({"input": [{"type": "reasoning", "summary": "x"}]}, "invalid_value", "input[0].summary", "an array"),
        (
            {"input": [{"type": "custom_tool_call_output", "call_id": "c", "output": 5}]},
            "invalid_value",
            "input[0].output",
            "a string or an array",
        ),
        ({"input": [{"role": "king", "content": "x"}, 5]}, "invalid_value", "input[0].role", "'king'"),
        ({"input": [{"type": "compaction"}]}, "unsupported_parameter", "input[0].type", "'compaction'"),
        ({"input": [{"type": 3}]}, "invalid_value", "input[0]", "integer"),
        ({"input": [{"role": "user", "content": "x", "deep": DEEP}]}, "invalid_value", "input[0]", "nested too deeply"),
        ({"prompt": {"id": "p"}}, "unsupported_parameter", "prompt", "instructions"),
        ({"conversation": "conv_1"}, "unsupported_parameter", "conversation", "previous_response_id"),
        ({"reasoning": {"deep": DEEP}}, "invalid_value", None, "nested too deeply"),
    ],
)
def test_a_wrong_field_is_named_with_its_kind_and_the_socket_lives(fields, code, param, says):
    peer = Peer()
    [event] = peer.create(**fields)
    assert event["type"] == "error" and event["status"] == 400
    assert (event["error"]["code"], event["error"]["param"]) == (code, param)
    assert says in event["error"]["message"]
    assert types(peer.create())[-1] == "completed"


@pytest.mark.parametrize(
    "fields",
    [
        {"truncation": LONG},
        {"text": {"verbosity": LONG}},
        {"text": {"format": {"type": LONG}}},
        {"metadata": {LONG: 5}},
        {"tools": [{"type": LONG}]},
        {"tool_choice": LONG},
        {"tool_choice": {"type": LONG}},
        {"input": [{"role": LONG, "content": "x"}]},
        {"input": [{"role": "user", "content": [{"type": LONG}]}]},
        {"input": [{"type": LONG}]},
        {"type": LONG},
    ],
)
def test_an_error_repeats_no_more_of_a_value_than_shows_which_it_was(fields):
    [event] = Peer().create(**fields)
    assert event["type"] == "error" and len(json.dumps(event)) < 1000


def test_null_means_absent_for_every_field():
    fields = json.loads(json.dumps(dict.fromkeys(Peer().create()[-1]["response"])))
    events = Peer().create(
        **{**fields, "model": "m", "input": "hi", "id": None, "type": "response.create", "store": False}
    )
    assert types(events)[-1] == "completed"


def test_unknown_fields_stay_with_the_request_its_items_and_its_tools():
    peer = Peer()
    events = peer.create([{**user("x"), "mood": "fine"}], tools=[{**FUNCTION, "colour": "red"}], x_new={"a": 1})
    assert peer.starts[0].request.raw["x_new"] == {"a": 1}
    assert peer.prompt()[0]["mood"] == "fine"
    assert events[-1]["response"]["tools"][0]["colour"] == "red"


def test_settings_are_echoed():
    fields = {
        "instructions": "be brief",
        "max_output_tokens": 100,
        "metadata": {"k": "v"},
        "parallel_tool_calls": False,
        "reasoning": {"effort": "high", "summary": "auto", "context": "all_turns"},
        "temperature": 0,
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": True}, "verbosity": "low"},
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
        "tools": [{**FUNCTION, "description": "d", "parameters": {"type": "object"}, "strict": False}],
        "top_p": 0.5,
        "truncation": "auto",
        "user": "u",
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "max_tool_calls": 3,
        "top_logprobs": 2,
        "presence_penalty": 0.5,
    }
    events = Peer().create(**fields)
    for event in (events[0], events[1], events[-1]):
        assert {k: event["response"][k] for k in fields} == fields


def test_a_tool_choice_keeps_its_meaning():
    def choice(value):
        request = structure_create({"model": "m", "tools": [FUNCTION], "tool_choice": value})
        return request.choice.mode, request.choice.only

    assert choice(None) == choice("auto") == ("auto", None)
    assert choice("none") == ("none", None) and choice("required") == ("required", None)
    assert choice({"type": "function", "name": "f"}) == ("required", ("f",))
    assert choice({"type": "allowed_tools", "mode": "auto", "tools": [FUNCTION]}) == ("auto", ("f",))
    assert choice({"type": "allowed_tools", "mode": "required", "tools": [FUNCTION]}) == ("required", ("f",))
    assert choice({"type": "allowed_tools", "tools": [{"type": "web_search"}, FUNCTION]}) == ("auto", ("f",))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_not_finite_are_refused(number):
    peer = Peer()
    for text in (number, f'{{"type":"response.create","model":"m","temperature":{number}}}', f'["\\ud800",{number}]'):
        [event] = peer.text(text)
        assert event["error"]["code"] == "invalid_json"


def test_lone_surrogates_are_read_as_replacement_characters():
    peer = Peer()
    events = peer.text('{"type":"response.create","model":"m","store":false,"input":"a\\ud800b \\ud83d\\ude00"}')
    assert types(events)[-1] == "completed"
    assert peer.prompt()[0]["content"][0]["text"] == "a\ufffdb \U0001f600"


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 2000 + "1" + "}" * 2000, '"\\ud800"' + "[" * 50_000])
def test_huge_nesting_is_refused_and_the_socket_lives(text):
    peer = Peer()
    [event] = peer.text(text)
    assert event["error"]["code"] == "invalid_json"
    assert types(peer.create())[-1] == "completed"


def test_a_string_of_ten_megabytes_is_a_message_like_any_other():
    peer = Peer()
    assert types(peer.create("x" * 10_000_000))[-1] == "completed"
    assert len(peer.prompt()[0]["content"][0]["text"]) == 10_000_000


def test_an_event_that_nobody_expects_an_answer_to_gets_none():
    peer = Peer()
    assert peer.text('{"type":"response.processed","response_id":"resp_1"}') == []


def test_an_append_needs_items_and_may_name_its_response():
    peer = Peer(answer=call("f"), dialect="append")
    parked = peer.create()[-1]["response"]["id"]
    [failed] = peer.append(output("call_f_0"), response_id="resp_other")
    assert failed["type"] == "response.failed" and "resp_other" in failed["response"]["error"]["message"]
    parked = peer.create()[-1]["response"]["id"]
    assert types(peer.append(output("call_f_0"), response_id=parked))[-1] == "completed"
    parked = peer.create()[-1]["response"]["id"]
    assert types(peer.append(output("call_f_0"), previous_response_id=parked))[-1] == "completed"
    peer.create()
    [failed] = peer.append(output("call_f_0"), previous_response_id="resp_other")
    assert failed["type"] == "response.failed" and "resp_other" in failed["response"]["error"]["message"]
    peer.create()
    assert types(peer.append()) == ["failed"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda child: st.lists(child, max_size=4) | st.dictionaries(st.text(max_size=8), child, max_size=4),
    max_leaves=12,
)
FIELDS = sorted(structure_create({"model": "m"}).__class__.__annotations__)
ITEM_FIELDS = ["role", "content", "type", "call_id", "name", "arguments", "output", "input", "id", "summary", "tools"]


@settings(max_examples=300, deadline=None)
@given(
    JSON,
    st.sampled_from(FIELDS),
    st.sampled_from(ITEM_FIELDS),
    st.sampled_from(["message", "function_call", "reasoning"]),
)
def test_no_text_from_a_client_raises(value, name, item_field, item_type):
    for transport in ("websocket", "json"):
        for raw in (
            value,
            {"type": "response.create", "model": "m", name: value},
            {"type": "response.create", "model": "m", "input": [{"type": item_type, item_field: value}]},
            {"type": "response.create", "model": "m", "tools": [{"type": "function", "name": "f", item_field: value}]},
            {"type": "response.append", "input": [value]},
        ):
            Peer(transport=transport).text(json.dumps(raw))


@given(st.text(st.characters(), max_size=200))
def test_reading_refuses_or_gives_an_object(text):
    try:
        assert isinstance(read(text), dict)
    except ProtocolError as exc:
        assert exc.message


def test_a_long_array_of_nonsense_costs_no_more_than_its_first_bad_element():
    """One error is kept, not one for each: a message of 1 MB took ten seconds and 900 MB."""
    with pytest.raises(cattrs.IterableValidationError) as caught:
        converter.structure(["a", *[5] * 60_000], tuple[str, ...])
    assert len(caught.value.exceptions) == 1
    [event] = Peer().create([user("x"), *[5] * 1000])
    assert event["error"]["param"] == "input[1]"


def test_an_array_is_bounded():
    """More items than any conversation has are refused by number: each costs far more memory than its bytes."""
    [event] = Peer().create([user("x")] * 65_537)
    assert (event["error"]["code"], event["error"]["param"]) == ("invalid_value", "input")
    assert "at most 65536 elements, but got 65537" in event["error"]["message"]


def test_calls_that_wait_are_bounded():
    """A thousand calls may wait for outputs at once, and no more; answered calls do not count."""
    calls = [{"type": "function_call", "call_id": f"c{n}", "name": "f", "arguments": "{}"} for n in range(1025)]
    outputs = [output(f"c{n}") for n in range(1025)]
    assert types(Peer().create([*calls[1:], *outputs[1:], calls[0], outputs[0]]))[-1] == "completed"
    [event] = Peer().create([*calls, *outputs])
    assert event["error"]["code"] == "invalid_tool_output" and "More than 1024" in event["error"]["message"]
