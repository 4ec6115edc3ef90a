"""What a client may send: values at their bounds, every kind of item and tool, and what stands for the rest."""

import pytest
from peer import Peer, types, user

from turntape.core.tools import Tool

FUNCTION = {"type": "function", "name": "f"}
HOSTED_BY_THE_API = {
    "apply_patch",
    "code_interpreter",
    "computer",
    "computer_use_preview",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "programmatic_tool_calling",
    "shell",
}
DEFAULTS = {
    "background": False,
    "error": None,
    "frequency_penalty": 0,
    "incomplete_details": None,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 2},
        {"top_p": 0},
        {"top_p": 1},
        {"top_logprobs": 20},
        {"max_output_tokens": 1},
        {"max_tool_calls": 0},
        {"metadata": {str(n): "" for n in range(16)}},
        {"metadata": {"k" * 64: "v" * 512}},
        {"stream_id": "a" * 256},
        {"stream_id": "A-z_0.9"},
    ],
)
def test_a_value_at_its_bound_is_accepted(fields):
    assert types(Peer().create(**fields))[-1] == "completed"


@pytest.mark.parametrize(
    "item",
    [
        *({"role": role, "content": "x"} for role in ("user", "assistant", "system", "developer")),
        {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AA=="}]},
        {"role": "user", "content": [{"type": "input_file", "file_data": "AA==", "filename": "a.txt"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "x"}]},
        {"type": "configuration_update", "anything": 1},
        {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": []},
        {"type": "code_interpreter_call", "id": "ci_1", "status": "completed"},
        {"type": "image_generation_call", "id": "ig_1", "status": "completed"},
        {"type": "additional_tools", "role": "developer", "tools": [FUNCTION]},
    ],
)
def test_an_item_of_the_api_is_kept_as_the_client_sent_it(item):
    peer = Peer()
    assert types(peer.create([item]))[-1] == "completed"
    assert peer.prompt() == [{"type": "message", **item}]


def test_a_custom_call_is_answered_by_its_output_in_text_or_parts():
    called = {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "x"}
    for said in ("done", [{"type": "input_text", "text": "done"}]):
        peer = Peer()
        answered = {"type": "custom_tool_call_output", "call_id": "c", "output": said}
        assert types(peer.create([called, answered]))[-1] == "completed"
        assert peer.prompt() == [called, answered]


def test_defaults_are_echoed():
    [created, *_] = Peer().create(store=...)
    assert {k: v for k, v in created["response"].items() if k in DEFAULTS} == DEFAULTS


def test_a_custom_tool_and_one_that_the_conversation_brought_can_be_chosen():
    patch = {"type": "custom", "name": "patch"}
    brought = {"type": "additional_tools", "role": "developer", "tools": [patch]}
    assert types(Peer().create(tools=[patch], tool_choice=patch))[-1] == "completed"
    assert types(Peer().create([brought, user("x")], tool_choice=patch))[-1] == "completed"


def test_a_tool_reaches_the_backend_with_all_that_describes_it():
    schema, grammar = (
        {"type": "object", "properties": {}},
        {"type": "grammar", "syntax": "lark", "definition": "start: X"},
    )
    function = {"type": "function", "name": "f", "description": "does f", "parameters": schema, "strict": True}
    custom = {"type": "custom", "name": "c", "description": "does c", "format": grammar}
    peer = Peer()
    peer.create(tools=[function, {"type": "namespace", "name": "n", "tools": [custom]}])
    assert peer.starts[0].request.callable_tools == (
        Tool("f", None, False, "does f", schema, True, None),
        Tool("c", "n", True, "does c", None, None, grammar),
    )


@pytest.mark.parametrize("kind", sorted(HOSTED_BY_THE_API))
def test_a_hosted_tool_that_is_not_run_here_is_refused_by_name(kind):
    [event] = Peer().create(tools=[FUNCTION, {"type": kind}])
    assert (event["error"]["code"], event["error"]["param"]) == ("unsupported_parameter", "tools[1].type")
    assert f"'{kind}'" in event["error"]["message"]
