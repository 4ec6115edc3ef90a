"""Bugs that users of other gateways reported: one test for each, named by its topic, with the report's number.

Where a report has several sources the docstring names one, and the others stand beside it.
"""

import random
from typing import Any

import chat_server
import orjson
import pytest
import trio
import trio.testing
from backends.chat_asking import LOOKUP, asking, said, start
from chat_server import CUT, DONE, Reply, call, chunk, refusing, saying, sse, usage

from turntape.core.seam import Arguments, Encrypted, Finish, Increment, Reasoning, Refusal, Text, ToolCall, Usage
from turntape.transport.backends.base import BackendError
from turntape.transport.backends.dialects import dialect_for

ADD = {"type": "function", "name": "add"}
AGENTS = {"type": "namespace", "name": "agents", "description": "", "tools": [{"type": "function", "name": "spawn"}]}
FILES = {"type": "namespace", "name": "files", "description": "", "tools": [{"type": "function", "name": "spawn"}]}
TOOLS = [LOOKUP, ADD]
STOP = chunk("stop")


async def heard(*chunks: Any, preset: str = "", tools: Any = TOOLS, **fields: Any) -> list[Increment]:
    """What comes of these chunks, each in a read of its own."""
    async with asking(preset, lambda request: Reply([*map(sse, chunks), DONE])) as (_, backend):
        return await said(backend, start("m", "hi", tools=tools, **fields))


async def failure(script: chat_server.Script, preset: str = "", model: str = "m", **fields: Any) -> BackendError:
    async with asking(preset, script) as (_, backend):
        with pytest.raises(BackendError) as caught:
            await said(backend, start(model, "hi", **fields))
        return caught.value


async def sent(items: Any, preset: str = "", model: str = "m", **fields: Any) -> dict[str, Any]:
    """The body of the request for these items."""
    async with asking(preset, saying(chunk("stop", content="a"))) as (server, backend):
        await said(backend, start(model, items, **fields))
        return server.requests[-1]


def calls(*entries: Any) -> dict[str, Any]:
    return chunk(tool_calls=list(entries))


def made(call_id: str = "1", name: str = "lookup", arguments: str = "{}", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, **more}


def output(call_id: str = "1", text: Any = "42") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def arguments(increments: list[Increment]) -> str:
    return "".join(i.text for i in increments if isinstance(i, Arguments))


def names(increments: list[Increment]) -> list[str]:
    return [i.name for i in increments if isinstance(i, ToolCall)]


async def test_01_later_argument_deltas_without_an_id() -> None:
    """Calls go on by their index once an id has opened them (BerriAI/litellm#20711)."""
    pieces = ['{"a"', ":", "1}"]
    increments = await heard(
        calls(call(0, "1", "lookup", "")), *(calls(call(0, arguments=piece)) for piece in pieces), chunk("tool_calls")
    )
    assert arguments(increments) == '{"a":1}'


@pytest.mark.parametrize("arguments_of", [("{}", "{}"), ("", "")])
async def test_02_all_parallel_calls_at_index_0(arguments_of: tuple[str, str]) -> None:
    """A new id at a used index is a new call (BerriAI/litellm#21331, ollama/ollama#15457, vercel/ai#14277)."""
    entries = [call(0, "1", "lookup", arguments_of[0]), call(0, "2", "add", arguments_of[1])]
    for chunks in ([calls(*entries)], [calls(entry) for entry in entries]):
        increments = await heard(*chunks, chunk("tool_calls"))
        assert [(i.call_id, i.name) for i in increments if isinstance(i, ToolCall)] == [("1", "lookup"), ("2", "add")]
        assert [i.text for i in increments if isinstance(i, Arguments)] == ["{}", "{}"]


async def test_03_arguments_that_come_only_at_the_end() -> None:
    """A call that was announced without arguments gets those of the last chunk whole (BerriAI/litellm#27144)."""
    increments = await heard(
        calls(call(0, "1", "lookup")), chunk("tool_calls", tool_calls=[call(0, "1", "lookup", '{"key":"x"}')])
    )
    assert (names(increments), arguments(increments)) == (["lookup"], '{"key":"x"}')


async def test_04_empty_argument_deltas() -> None:
    """An empty piece of arguments is nothing, wherever it stands (BerriAI/litellm#40069)."""
    empty = [calls(call(0, arguments="")), calls({"index": 0, "function": {"arguments": None}}), calls({"index": 0})]
    increments = await heard(calls(call(0, "1", "lookup", "")), *empty, calls(call(0, arguments="{}")), *empty, STOP)
    assert increments == [ToolCall("1", "lookup"), Arguments("{}"), Finish("stop")]


async def test_05_namespaces_there_and_back() -> None:
    """Tools in namespaces are called and remembered as the client names them (BerriAI/litellm#32536, ollama#18284)."""
    tools = [AGENTS, FILES]
    async with asking("", saying(calls(call(0, "9", "files__spawn", "{}")), chunk("tool_calls"))) as (server, backend):
        increments = await said(backend, start("m", "hi", tools=tools))
        assert increments[0] == ToolCall("9", "spawn", "files")
        history = [made("9", "spawn", namespace="files"), {"role": "user", "content": "u"}, output("9")]
        await said(backend, start("m", history, tools=tools))
        assert [t["function"]["name"] for t in server.requests[0]["tools"]] == ["agents__spawn", "files__spawn"]
        assistant, tool, _ = server.requests[1]["messages"]
        assert assistant["tool_calls"][0]["function"]["name"] == "files__spawn"
        assert tool["tool_call_id"] == "9", "the output stands right after its call"


async def test_06_history_keeps_calls_and_does_not_leak_reasoning() -> None:
    """Reasoning, calls and outputs are one assistant message and its tools; no thought is text (BerriAI/litellm#42005)."""
    body = await sent([thought("secret"), made("1"), made("2", "add"), output("1"), output("2")], "vllm")
    assistant, *tools = body["messages"]
    assert [each["id"] for each in assistant["tool_calls"]] == ["1", "2"]
    assert [each["tool_call_id"] for each in tools] == ["1", "2"]
    assert not any("secret" in str(message["content"]) for message in body["messages"])


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
async def test_07_reasoning_under_a_new_name(name: str) -> None:
    """Either name is read, and the next turn echoes the one that was seen (vllm-project/vllm#33402, litellm#26501)."""
    script = saying(chunk(**{name: "hm"}), calls(call(0, "1", "lookup", "{}")), chunk("tool_calls"))
    async with asking("vllm", script) as (server, backend):
        first = start("m", "hi", tools=TOOLS)
        assert (await said(backend, first))[0] == Reasoning("hm")
        await said(backend, start("m", [thought("hm"), made(), output()], first.context, tools=TOOLS))
        assistant = server.requests[1]["messages"][1]
        assert assistant[name] == "hm"
        assert not {"reasoning", "reasoning_content"} - {name} & assistant.keys()


async def test_08_no_finish_reason_at_all() -> None:
    """Calls are whole at the end of a stream that never says why it ends (router-for-me/CLIProxyAPI#4860)."""
    increments = await heard(calls(call(0, "1", "lookup", '{"a":1}')), chunk(None))
    assert increments == [ToolCall("1", "lookup"), Arguments('{"a":1}'), Finish("stop")]


@pytest.mark.parametrize("counts", [{}, {"completion_tokens_details": None}, {"completion_tokens_details": {}}])
async def test_09_no_reasoning_tokens_in_usage(counts: dict[str, Any]) -> None:
    """What a server does not count is 0, never missing (BigPizzaV3/CodexPlusPlus#1908)."""
    assert (await heard(chunk(content="a"), STOP, usage(9, 4, **counts)))[-1] == Finish("stop", Usage(9, 4, 0, 0))


async def test_10_reasoning_between_calls_and_their_ends() -> None:
    """Every call is whole before what follows it, and reasoning is carried both ways (anomalyco/opencode#40171)."""
    increments = await heard(
        chunk(reasoning="r1"),
        calls(call(0, "1", "lookup", "{}")),
        chunk(reasoning="r2"),
        calls(call(1, "2", "add", "{}")),
        chunk("tool_calls"),
    )
    assert increments == [
        Reasoning("r1"),
        ToolCall("1", "lookup"),
        Arguments("{}"),
        Reasoning("r2"),
        ToolCall("2", "add"),
        Arguments("{}"),
        Finish("stop"),
    ]


@pytest.mark.parametrize("end", [[], [CUT]])
async def test_11_a_stream_that_just_ends(end: list[Any]) -> None:
    """An upstream that stops in the middle is a failure that is said, never a silent close (ollama/ollama#14600)."""
    error = await failure(lambda request: Reply([sse(chunk(content="a")), *end]))
    assert (error.code, error.status) == ("server_error", 502)


async def test_12_tools_that_are_no_functions() -> None:
    """Custom tools become functions and hosted ones are left out: none refuses the turn (ggml-org/llama.cpp#20156)."""
    tools = [{"type": "web_search"}, {"type": "custom", "name": "patch"}, AGENTS, LOOKUP]
    body = await sent("hi", "llamacpp", tools=tools)
    assert [tool["type"] for tool in body["tools"]] == ["function"] * 3
    assert "tools" not in await sent("hi", "llamacpp", tools=[{"type": "web_search"}])


async def test_13_an_output_as_an_array() -> None:
    """A tool's output in parts is one string for every server (ggml-org/llama.cpp#23465)."""
    parts = [{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}]
    for preset in ("llamacpp", "ollama", "openai", "nim"):
        body = await sent([made("call_1"), output("call_1", parts)], preset)
        assert body["messages"][1]["content"] == "a\nb"


async def test_14_history_as_codex_sends_it() -> None:
    """An assistant item without status, empty content and broken old arguments stop nothing (vllm-project/vllm#45273)."""
    items = [
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "t"}]},
        {"type": "message", "role": "assistant", "content": []},
        made("1", arguments='{"cmd": "ls'),
        output("1"),
    ]
    assistant, _ = (await sent(items, "vllm"))["messages"]
    assert assistant["content"] == "t"
    assert orjson.loads(assistant["tool_calls"][0]["function"]["arguments"]) == {"unreadable_arguments": '{"cmd": "ls'}


async def test_15_a_model_that_breaks_its_own_format() -> None:
    """A server that fails over its model's output in mid-stream ends the sample with a reason (vllm-project/vllm#23567)."""
    broken = {"error": {"message": "unexpected tokens remaining in message header", "type": "BadRequest", "code": 400}}
    for preset in ("vllm", "sglang"):
        error = await failure(lambda request: Reply([sse(chunk(content="a"), broken), DONE]), preset)
        assert "message header" in str(error)


async def test_16_a_required_call_that_is_not_made() -> None:
    """The text of a model that was to call is held back, and it is asked once more (vllm-project/vllm#44216)."""
    answers = [
        Reply([sse(chunk(reasoning="r"), chunk(content="I would."), STOP, usage(9, 4)), DONE]),
        Reply([sse(calls(call(0, "1", "lookup", "{}")), chunk("tool_calls"), usage(10, 2)), DONE]),
    ]
    async with asking("ollama", lambda request: answers.pop(0)) as (server, backend):
        increments = await said(backend, start("m", "hi", tools=TOOLS, tool_choice="required"))
        assert increments == [Reasoning("r"), ToolCall("1", "lookup"), Arguments("{}"), Finish("stop", Usage(19, 6))]
        assert "Call one of the tools" in server.requests[1]["messages"][-1]["content"]
        assert server.requests[1]["messages"][:-1] == server.requests[0]["messages"]
        assert server.n_connections == 1


@pytest.mark.parametrize(
    ("chunks", "expected", "n_asked"),
    [
        ([chunk(content="I "), chunk(content="won't."), STOP], [Text("I "), Text("won't.")], 2),
        ([chunk(content="I "), chunk("length")], [Text("I ")], 1),
        ([chunk(refusal="No."), STOP], [Refusal("No.")], 1),
        (
            [chunk(content="Well, "), calls(call(0, "1", "lookup", "{}")), STOP],
            [Text("Well, "), ToolCall("1", "lookup"), Arguments("{}")],
            1,
        ),
    ],
)
async def test_16_what_else_a_required_call_can_become(
    chunks: list[Any], expected: list[Increment], n_asked: int, autojump_clock: trio.testing.MockClock
) -> None:
    """Text before a call comes in its place, an answer cut short or refused is not asked for again, a second one counts."""
    steps = [step for each in chunks for step in (sse(each), 1.0)]  # each in a read of its own
    async with asking("ollama", lambda request: Reply([*steps, DONE])) as (server, backend):
        *increments, finish = await said(backend, start("m", "hi", tools=TOOLS, tool_choice="required"))
        assert increments == expected
        assert finish == Finish("length" if chunks[-1] == chunk("length") else "stop")
        assert len(server.requests) == n_asked


async def test_17_several_planned_calls() -> None:
    """All calls of a turn arrive, however the server separates them (vllm-project/vllm#44655, smg-project/smg#1845)."""
    entries = [call(n, f"id{n}", name, "{}") for n, name in enumerate(["lookup", "add", "lookup"], start=1)]
    for chunks in ([calls(*entries)], [calls(entry) for entry in entries]):
        assert names(await heard(*chunks, chunk("tool_calls"))) == ["lookup", "add", "lookup"]
    assert (await sent("hi", "vllm", tools=TOOLS)).get("parallel_tool_calls") is None
    assert (await sent("hi", "vllm", tools=TOOLS, parallel_tool_calls=False))["parallel_tool_calls"] is False


@pytest.mark.parametrize(
    ("preset", "status", "body"),
    [
        ("ollama", 500, {"error": {"message": "error parsing tool call: raw='{\"a' err=unexpected end of JSON input"}}),
        ("groq", 400, {"error": {"message": "Failed to call a function.", "code": "tool_use_failed"}}),
    ],
)
async def test_18_a_call_that_the_server_cannot_read(
    preset: str, status: int, body: Any, autojump_clock: trio.testing.MockClock
) -> None:
    """It is asked once more after a moment, and then the model is blamed, not the server (ollama/ollama#12884)."""
    random.seed(1)
    replies = [refusing(status, body)({}), Reply([sse(chunk("stop", content="a")), DONE])]
    async with asking(preset, lambda request: replies.pop(0)) as (server, backend):
        began = trio.current_time()
        assert await said(backend, start("m", "hi")) == [Text("a"), Finish("stop")]
        assert 0.1 <= trio.current_time() - began <= 0.5
        assert server.requests[0] == server.requests[1]
        server.script = refusing(status, body)
        with pytest.raises(BackendError, match="The model wrote a tool call that cannot be read") as caught:
            await said(backend, start("m", "hi"))
        assert (caught.value.code, caught.value.status, len(server.requests)) == ("server_error", 502, 4)


async def test_19_reasoning_must_be_passed_back() -> None:
    """DeepSeek gets its reasoning with every assistant message, an empty one where there is none (pi#3636)."""
    items = [thought("why"), made("1"), output("1"), {"role": "assistant", "content": "end"}]
    body = await sent([{"role": "user", "content": "u"}, *items, {"role": "user", "content": "v"}], "deepseek")
    reasoning = [m.get("reasoning_content") for m in body["messages"] if m["role"] == "assistant"]
    assert reasoning == ["why", ""]


async def test_20_reasoning_under_the_servers_own_name() -> None:
    """Cerebras refuses reasoning_content: a history that was made elsewhere goes there too (free-claude-code#1136)."""
    assistant, _ = (await sent([thought("why"), made("1"), output("1")], "cerebras"))["messages"]
    assert assistant["reasoning"] == "why"
    assert "reasoning_content" not in assistant


@pytest.mark.parametrize("status", [400, 413, 429])
async def test_21_an_overflow_is_no_rate_limit(status: int) -> None:
    """The message decides before the status: clients shorten the prompt and do not wait (cline/cline#9108)."""
    flat = {
        "message": "Please reduce the length of the messages or completion. Current length is 9 while limit is 8",
        "type": "too_many_requests_error" if status != 429 else "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
    error = await failure(refusing(status, flat, retry_after="60"), "cerebras")
    assert (error.code, error.status, error.retry_after) == ("context_length_exceeded", 400, None)


async def test_22_tool_choice_as_an_object() -> None:
    """LM Studio takes strings: a named tool is offered alone and required; its errors are strings (oh-my-pi#6925)."""
    choice = {"type": "function", "name": "add"}
    async with asking("lmstudio", saying(calls(call(0, "1", "add", "{}")), STOP)) as (server, backend):
        await said(backend, start("m", "hi", tools=TOOLS, tool_choice=choice))
        assert server.requests[0]["tool_choice"] == "required"
        assert [tool["function"]["name"] for tool in server.requests[0]["tools"]] == ["add"]
    error = await failure(refusing(400, {"error": "Invalid tool_choice type: 'object'."}), "lmstudio")
    assert "Invalid tool_choice type" in str(error)


@pytest.mark.parametrize(
    "preset", ["", "nim", "trtllm", "groq", "llamacpp", "ollama", "lmstudio", "deepseek", "together"]
)
async def test_23_cache_keys_are_sent_only_where_they_are_known(preset: str) -> None:
    """A hint for one host's cache is an error at another (Stack-Cairn/LiveAgent#435, diegosouzapw/OmniRoute#848)."""
    body = await sent("hi", preset, prompt_cache_key="k", prompt_cache_retention="24h")
    assert not any("cache" in name or name in ("session_id", "user_id") for name in body)


@pytest.mark.parametrize(
    ("model", "effort", "is_refused"),
    [
        ("gpt-5.4", "low", True),
        ("gpt-5.4", None, False),
        ("gpt-5.4", "none", False),
        ("gpt-5.6", None, True),
        ("gpt-5.6", "none", False),
        ("gpt-5.1", "low", False),
    ],
)
async def test_24_tools_with_reasoning_on_new_models(model: str, effort: str | None, is_refused: bool) -> None:
    """Chat refuses them together: the way that takes both is named, the effort never dropped (openai-openapi#541)."""
    fields = {"tools": TOOLS, "reasoning": {"effort": effort}}
    if is_refused:
        error = await failure(saying(STOP), "openai", model, **fields)
        assert "responses+URL" in str(error)
        assert (error.status, error.param) == (400, "reasoning.effort")
    else:
        body = await sent("hi", "openai", model, **fields)
        assert body.get("reasoning_effort") == effort
    assert (await sent("hi", "openai", model, reasoning={"effort": "low"}))["reasoning_effort"] == "low"


async def test_25_a_prompt_that_is_cut_without_a_word() -> None:
    """A server that read a part of the prompt only has failed as an overflow does (ollama/ollama#18107, #17889)."""
    long = "A long story of many words. " * 1000  # about 7,000 tokens
    script = saying(chunk(content="What?"), STOP, usage(2048, 3))
    async with asking("ollama", script) as (server, backend):
        with pytest.raises(BackendError, match=r"read only 2048 tokens.*OLLAMA_CONTEXT_LENGTH") as caught:
            await said(backend, start("m", long))
        assert (caught.value.code, caught.value.status) == ("context_length_exceeded", 400)
        server.script = saying(chunk(content="a"), STOP, usage(6000, 3))
        assert (await said(backend, start("m", long)))[-1] == Finish("stop", Usage(6000, 3))
    async with asking("vllm", script) as (_, backend):  # it refuses what does not fit: its count is believed
        assert (await said(backend, start("m", long)))[-1] == Finish("stop", Usage(2048, 3))
    assert (await heard(chunk(content="a"), STOP, usage(26, 3), preset="ollama"))[-1] == Finish("stop", Usage(26, 3))
    later = refusing(500, {"error": {"message": "no user query found in messages"}})
    assert (await failure(later, "ollama")).code == "context_length_exceeded"


# --- more of the kind ----------------------------------------------------------------------------------------


async def test_an_unknown_host_that_refuses_a_field_is_asked_without_it(caplog: pytest.LogCaptureFixture) -> None:
    """A hint that a strict server does not know is left out, then and from then on, and the log says so."""

    def strict(request: dict[str, Any]) -> Reply:
        for name in ("stream_options", "reasoning_effort"):
            if name in request:
                detail = [{"loc": ["body", name], "msg": "Extra inputs are not permitted"}]
                return refusing(422, {"detail": detail})({})
        return Reply([sse(chunk("stop", content="a")), DONE])

    async with asking("", strict) as (server, backend):
        for _ in range(2):
            assert await said(backend, start("m", "hi", reasoning={"effort": "low"})) == [Text("a"), Finish("stop")]
        assert len(server.requests) == 4
        assert server.requests[3].keys() == {"model", "messages", "stream"}
        assert "does not take 'reasoning_effort'; it is left out from now on" in caplog.text


async def test_samples_at_once_learn_together(
    caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    """A field that two samples are refused for is left out by both, and the log says so once."""
    refusal = orjson.dumps({"error": {"message": "Unsupported parameter(s): `stream_options`"}})

    def strict(request: dict[str, Any]) -> Reply:
        if "stream_options" in request:
            return Reply([1.0, refusal], 400, [("content-type", "application/json")])
        return Reply([sse(chunk("stop", content="a")), DONE])

    async with asking("nim", strict) as (server, backend):
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(said, backend, start("m", "hi"))
        assert ["stream_options" in request for request in server.requests] == [True, True, False, False]
    assert caplog.text.count("left out from now on") == 1


async def test_a_server_is_told_to_refuse_rather_than_cut() -> None:
    """Where a server cuts long prompts unless it is told not to, it is told; OpenAI is spared its padding."""
    for preset in ("together", "fireworks"):
        assert (await sent("hi", preset))["context_length_exceeded_behavior"] == "error"
    assert (await sent("hi", "openai"))["stream_options"] == {"include_usage": True, "include_obfuscation": False}


async def test_reasoning_that_is_counted_apart() -> None:
    """xAI's output tokens include reasoning for us, whether its total tells or not."""
    details = {"completion_tokens_details": {"reasoning_tokens": 3}}
    for total in ({"total_tokens": 16}, {"total_tokens": None}):
        counts = usage(9, 4, **details, **total)
        assert (await heard(chunk(content="a"), STOP, counts, preset="xai"))[-1] == Finish("stop", Usage(9, 7, 0, 3))


async def test_a_field_that_matters_is_never_left_out() -> None:
    """A server that refuses the client's own limit or tools is not asked for something else."""
    refused = {"error": {"message": "Unsupported parameter: 'max_tokens'", "param": "max_tokens"}}
    async with asking("", refusing(400, refused)) as (server, backend):
        with pytest.raises(BackendError, match="max_tokens"):
            await said(backend, start("m", "hi", max_output_tokens=5))
        assert len(server.requests) == 1


async def test_more_tools_than_a_server_takes() -> None:
    """The client hears the bound before anything is sent, and how to keep to it."""
    many = [{"type": "function", "name": f"f{n}"} for n in range(129)]
    error = await failure(saying(STOP), "groq", tools=many)
    assert "129 tools" in str(error) and "no more than 128" in str(error)
    assert (error.status, error.param) == (400, "tools")


async def test_a_format_beside_tools_is_asked_for_in_words() -> None:
    """Where both together are refused the schema stands in the instructions, and binds again without tools."""
    form = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object", "title": "Town"}}}
    body = await sent("hi", "groq", tools=TOOLS, text=form, instructions="Be brief.")
    assert "response_format" not in body
    assert body["messages"][0]["content"].startswith("Be brief.\n\n")
    assert '"title":"Town"' in body["messages"][0]["content"]
    assert "response_format" in await sent("hi", "groq", text=form)
    assert (await sent("hi", "deepseek", text=form))["response_format"] == {"type": "json_object"}


async def test_signed_reasoning_goes_back_unchanged() -> None:
    """OpenRouter's details are put together from their pieces, travel with the item, and return as they were."""
    base = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0}
    script = saying(
        chunk(reasoning="Let me ", reasoning_details=[{**base, "text": "Let me ", "signature": None}]),
        chunk(reasoning="look.", reasoning_details=[{**base, "text": "look."}]),
        chunk(content="", reasoning_details=[{**base, "signature": "c2lnbmVk"}]),
        chunk(reasoning_details=[{"type": "reasoning.encrypted", "data": "eHg=", "index": 1}]),
        calls(call(0, "1", "lookup", "{}")),
        chunk("tool_calls"),
    )
    async with asking("openrouter", script) as (server, backend):
        first = start("anthropic/claude", "hi", tools=TOOLS)
        increments = await said(backend, first)
        assert increments[:2] == [Reasoning("Let me "), Reasoning("look.")]
        [sealed] = [i.content for i in increments if isinstance(i, Encrypted)]
        assert isinstance(increments[3], ToolCall)
        for item in ({**thought("Let me look."), "encrypted_content": sealed}, thought("Let me look.")):
            await said(backend, start("m", [item, made(), output()], first.context, tools=TOOLS))
        whole, text = (request["messages"][1] for request in server.requests[1:])
        assert whole["reasoning_details"] == [
            {**base, "text": "Let me look.", "signature": "c2lnbmVk"},
            {"type": "reasoning.encrypted", "data": "eHg=", "index": 1},
        ]
        assert "reasoning" not in whole
        assert text["reasoning"] == "Let me look." and "reasoning_details" not in text
        for broken in ("turntape-details-1.!", "turntape-details-1.bnVsbA==", "other"):
            await said(
                backend, start("m", [{**thought("t"), "encrypted_content": broken}, made(), output()], tools=TOOLS)
            )
            assert server.requests[-1]["messages"][0]["reasoning"] == "t"


async def test_effort_levels_that_are_whole_settings() -> None:
    """Where an effort is more than a word the row writes out what it means."""
    assert (await sent("hi", "deepseek", reasoning={"effort": "none"}))["thinking"] == {"type": "disabled"}
    assert (await sent("hi", "openrouter", reasoning={"effort": "xhigh"}))["reasoning"] == {"effort": "xhigh"}
    assert dialect_for("groq", "openai/gpt-oss-20b").efforts["none"] == "low"
