"""The chat backend against a scripted server: what is asked, how every dialect of a stream is read, what goes wrong."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import chat_server
import orjson
import pytest
import trio
import trio.testing
from chat_server import CUT, DONE, HANG, ChatServer, Reply, call, chunk, lab, refusing, saying, sse, usage

from turntape.core.context import Context
from turntape.core.seam import (
    Arguments,
    Finish,
    Increment,
    Reasoning,
    Refusal,
    StartSample,
    Text,
    ToolCall,
    Usage,
)
from turntape.core.wire import structure_create
from turntape.transport.backends.base import BackendError, Batch
from turntape.transport.backends.chat import ChatBackend
from turntape.transport.backends.chat_dialect import Dialect
from turntape.transport.backends.chat_usage import read_usage
from turntape.transport.http_client import HttpClient
from turntape.transport.http_connections import Connections

KEY = "hunter2-hunter2"
LOOKUP = {"type": "function", "name": "lookup", "parameters": {"type": "object"}}
ADD = {"type": "function", "name": "add"}
PATCH = {"type": "custom", "name": "apply_patch"}
AGENTS = {"type": "namespace", "name": "agents", "description": "", "tools": [{"type": "function", "name": "spawn"}]}
TOOLS = [LOOKUP, ADD, PATCH, AGENTS]


@asynccontextmanager
async def serving(
    script: chat_server.Script = lab, *, dialect: Dialect | None = None
) -> AsyncIterator[tuple[ChatServer, ChatBackend]]:
    """A server and a backend that reaches it over memory streams."""
    async with trio.open_nursery() as nursery:
        server = ChatServer(nursery, script)
        client = HttpClient(Connections(connect=server.connect))
        ids = iter(f"made_{n}" for n in range(9))
        url = "http://model.test/v1"
        yield server, ChatBackend(url, KEY, dialect=dialect, client=client, new_call_id=lambda: next(ids))
        nursery.cancel_scope.cancel()


def start(items: Any = "hi", *, context: Context | None = None, **fields: Any) -> StartSample:
    request = structure_create({"model": "m", "input": items, **fields})
    return StartSample("smp_1", "m", request, (context or Context()).extend(request.input.items), 0)


async def batches(backend: ChatBackend, asked: StartSample | None = None) -> list[Batch]:
    async with backend.sample(asked or start(tools=TOOLS)) as channel:
        return [batch async for batch in channel]


async def increments(*chunks: object, end: bytes = DONE) -> list[Increment]:
    """What the backend makes of these chunks, each in a read of its own: what it says in batches is put in a row."""
    async with serving(lambda request: Reply([*map(sse, chunks), end])) as (_, backend):
        return [increment for batch in await batches(backend) for increment in batch]


async def failure(script: chat_server.Script) -> BackendError:
    async with serving(script) as (_, backend):
        with pytest.raises(BackendError) as caught:
            await batches(backend)
        return caught.value


async def sent(dialect: Dialect | None = None, **fields: Any) -> dict[str, Any]:
    """The body of the request that such a create leads to."""
    async with serving(dialect=dialect) as (server, backend):
        await batches(backend, start(**fields))
        return server.requests[0]


STOP = chunk("stop")


# --- the request -----------------------------------------------------------------------------------------


async def test_only_what_the_client_set_is_sent() -> None:
    """A plain request has nothing that a strict server might not know."""
    assert await sent() == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    private = {"metadata": {"a": "b"}, "user": "u", "safety_identifier": "s", "store": True, "prompt_cache_key": "k"}
    assert (await sent(**private)).keys() == {"model", "messages", "stream", "stream_options"}


async def test_settings_have_the_servers_names() -> None:
    """Everything that the client set arrives, under names that every server knows."""
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    body = await sent(
        instructions="Be brief.",
        max_output_tokens=7,
        temperature=0.5,
        top_p=0.9,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        reasoning={"effort": "minimal"},
        text={"format": schema},
    )
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert body["max_tokens"] == 7
    assert body["reasoning_effort"] == "low"
    assert [body[k] for k in ("temperature", "top_p", "presence_penalty", "frequency_penalty")] == [0.5, 0.9, 0.1, 0.2]
    assert body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
    }
    assert (await sent(text={"format": {"type": "json_object"}}))["response_format"] == {"type": "json_object"}
    assert "response_format" not in await sent(text={"format": {"type": "text"}})


async def test_a_dialect_is_data() -> None:
    """What a server calls things, and what it must not be sent, comes from its row."""
    row = Dialect(max_field="max_completion_tokens", effort_field="", ask_usage=False, cache_field="prompt_cache_key")
    body = await sent(row, max_output_tokens=7, reasoning={"effort": "low"}, prompt_cache_key="k")
    assert body["max_completion_tokens"] == 7
    assert body["prompt_cache_key"] == "k"
    assert body.keys().isdisjoint({"max_tokens", "reasoning_effort", "stream_options"})


async def test_the_key_is_sent_and_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    """The key is a bearer token, and it is in no representation, message or log, even if the server repeats it."""
    caplog.set_level(logging.DEBUG)
    answer = {
        "error": {
            "message": f"Incorrect API key provided: {KEY}. Use sk-abcdefgh12345 or Authorization: Bearer abc.def"
        }
    }
    async with serving(refusing(401, answer)) as (server, backend):
        with pytest.raises(BackendError) as caught:
            await batches(backend)
        assert server.headers[0]["authorization"] == f"Bearer {KEY}"
        shown = f"{caught.value} {backend!r} {backend.client!r} {caplog.text}"
        for secret in (KEY, "abcdefgh", "abc.def"):
            assert secret not in shown
        assert caught.value.code == "invalid_api_key"


def test_a_url_or_key_that_cannot_be_used_is_refused() -> None:
    """The reason is given without the secret that it may hold; the route is added where it is missing."""
    for url in ("http://u:hunter2@h/v1", "ftp://h/hunter2"):
        with pytest.raises(ValueError) as caught:
            ChatBackend(url)
        assert "hunter2" not in str(caught.value)
    with pytest.raises(ValueError, match="line break") as caught:
        ChatBackend("http://h/v1", "hunter2\nx: y")
    assert "hunter2" not in str(caught.value)
    for url in ("http://h/v1", "http://h/v1/", "http://h/v1/chat/completions"):
        assert ChatBackend(url).target.path == "/v1/chat/completions"
    azure = ChatBackend("https://h/openai/v1?api-version=1&secret=hunter2")
    assert azure.target.path == "/openai/v1/chat/completions?api-version=1&secret=hunter2"
    assert "hunter2" not in repr(azure)


# --- a conversation --------------------------------------------------------------------------------------


async def test_a_tool_conversation() -> None:
    """Reasoning, calls and an answer come as increments, over one connection, and each item is rendered once."""
    async with serving() as (server, backend):
        asked, said = start(tools=TOOLS), list[list[Increment]]()
        for _ in range(3):
            accepted, *rest = await batches(backend, asked)
            assert accepted == ()
            said.append([increment for batch in rest for increment in batch])
            assert isinstance(said[-1][-1], Finish)
            calls = [increment for increment in said[-1] if isinstance(increment, ToolCall)]
            items: list[dict[str, Any]] = []
            for one in calls:
                named = {"call_id": one.call_id, "name": one.name, "arguments": "{}"}
                items.append({"type": "function_call", **named})
            items += [{"type": "function_call_output", "call_id": one.call_id, "output": "1"} for one in calls]
            asked = start(items, context=asked.context, tools=TOOLS)
        assert [[i.name for i in turn if isinstance(i, ToolCall)] for turn in said] == [
            ["lookup"],
            ["add", "lookup"],
            [],
        ]
        assert "".join(i.text for i in said[0] if isinstance(i, Reasoning)) == "The user wants the lab steps."
        assert "".join(i.text for i in said[2] if isinstance(i, Text)) == "LAB-DONE after 3 tool outputs."
        assert set(server.on_connection) == {1}
        assert [way.renderer.n_rendered for way in backend._ways.values()] == [7]


async def test_a_learnt_reasoning_name_is_used_in_the_next_turn() -> None:
    """The server's own word for reasoning goes back to it, with the call that the reasoning led to."""
    async with serving() as (server, backend):
        asked = start(tools=TOOLS)
        await batches(backend, asked)
        reasoning = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
        made = {"type": "function_call", "call_id": "1", "name": "lookup", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "1", "output": "x"}
        await batches(backend, start([reasoning, made, output], context=asked.context, tools=TOOLS))
        assert server.requests[1]["messages"][1]["reasoning"] == "hm"


async def test_one_read_is_one_batch(autojump_clock: trio.testing.MockClock) -> None:
    """All chunks of a read are handed over together, the end of the answer with them."""
    both = sse(chunk(content="a"), chunk(content="b"))
    async with serving(lambda request: Reply([both, 1.0, sse(chunk(content="c"), STOP, usage()) + DONE])) as (
        _,
        backend,
    ):
        assert await batches(backend) == [(), (Text("a"), Text("b")), (Text("c"), Finish("stop", Usage(10, 5)))]


async def test_accepted_is_said_before_anything_is_read(autojump_clock: trio.testing.MockClock) -> None:
    """The empty batch comes with the response head, however long the first token takes."""
    steps = [100.0, sse(chunk(content="a"), STOP), DONE]
    async with serving(lambda request: Reply(steps)) as (_, backend), backend.sample(start()) as channel:
        began = trio.current_time()
        assert await channel.receive() == ()
        assert trio.current_time() == began
        assert await channel.receive() == (Text("a"),)
        assert trio.current_time() - began == pytest.approx(100)


@pytest.mark.parametrize("n_read", [1, 2, 3])
async def test_leaving_closes_the_upstream_connection_at_once(
    n_read: int, autojump_clock: trio.testing.MockClock
) -> None:
    """A sample that is cancelled, at rest or while it waits for more, ends at the server in the same moment."""
    async with serving(lambda request: Reply([sse(chunk(content="a")), HANG])) as (server, backend):
        began = trio.current_time()
        with trio.move_on_after(1):
            async with backend.sample(start()) as channel:
                for _ in range(n_read):  # the third never comes
                    await channel.receive()
                await trio.sleep_forever()
        with trio.fail_after(100):
            await server.gone.wait()
        assert trio.current_time() - began == pytest.approx(1)
        server.script = saying(STOP)
        assert (await batches(backend))[-1] == (Finish("stop"),)
        assert server.on_connection == [1, 2]


async def test_cancelling_over_tcp() -> None:
    """Over a real socket too the server reads the end of the connection when a sample is cancelled."""
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            server = ChatServer(nursery, lambda request: Reply([sse(chunk(content="a")), HANG]))
            backend = ChatBackend(f"http://127.0.0.1:{await server.listen()}/v1")
            async with backend.sample(start()) as channel:
                assert await channel.receive() == ()
                assert await channel.receive() == (Text("a"),)
            await server.gone.wait()
            await backend.aclose()
            nursery.cancel_scope.cancel()


# --- every dialect of a stream ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delta", "expected"),
    [
        ({"reasoning_content": "r", "content": "c"}, [Reasoning("r"), Text("c")]),
        ({"reasoning": "r", "content": None}, [Reasoning("r")]),
        ({"reasoning_text": "r"}, [Reasoning("r")]),
        ({"reasoning_content": None, "reasoning": "r", "reasoning_details": [{"text": "r"}]}, [Reasoning("r")]),
        ({"reasoning_details": [{"type": "reasoning.text", "text": "r"}, {"data": "x"}]}, [Reasoning("r")]),
        ({"reasoning_details": [{"type": "reasoning.summary", "summary": "r"}]}, [Reasoning("r")]),
        ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "r"}]}]}, [Reasoning("r")]),
        ({"content": [{"type": "text", "text": "c"}]}, [Text("c")]),
        ({"refusal": "no", "content": ""}, [Refusal("no")]),
        ({"role": "assistant", "content": "", "tool_calls": None}, []),
    ],
)
async def test_deltas(delta: dict[str, Any], expected: list[Increment]) -> None:
    """Reasoning under each of its names comes before the content of the same delta."""
    assert await increments(chunk(**delta), STOP) == [*expected, Finish("stop")]


def calls(*entries: Any) -> dict[str, Any]:
    return chunk(tool_calls=list(entries))


ONE = [ToolCall("1", "lookup"), Arguments('{"k":'), Arguments("1}")]
TWO = [ToolCall("1", "lookup"), Arguments('{"k":1}'), ToolCall("2", "add"), Arguments('{"a":2}')]


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        pytest.param(
            [calls(call(0, "1", "lookup", "")), calls(call(0, arguments='{"k":')), calls(call(0, arguments="1}"))],
            ONE,
            id="usual",
        ),
        pytest.param(
            [calls(call(0, "1", "lookup", '{"k":')), calls(call(0, "1", "lookup", "1}"))],
            ONE,
            id="id and name repeated",
        ),
        pytest.param(
            [calls(call(None, "1", "lookup", '{"k":')), calls(call(None, arguments="1}"))], ONE, id="no index"
        ),
        pytest.param(
            [calls(call(5, "1", "lookup", '{"k":')), calls({"index": 5, "id": None, "function": {"arguments": "1}"}})],
            ONE,
            id="odd index, null id",
        ),
        pytest.param(
            [
                calls(call(0, "1", "look")),
                calls(call(0, name="up")),
                calls(call(0, arguments='{"k":')),
                calls(call(0, arguments="1}")),
            ],
            ONE,
            id="name in fragments",
        ),
        pytest.param(
            [
                calls(call(0, "1", "lookup", '{"k":')),
                calls(call(0, name="", arguments="1}")),
                calls(call(0, arguments="")),
            ],
            ONE,
            id="empty name and arguments",
        ),
        pytest.param(
            [calls(call(0, "1", "lookup", '{"k":1}'), call(0, "2", "add", '{"a":2}'))], TWO, id="all calls at index 0"
        ),
        pytest.param(
            [calls(call(None, "1", "lookup", '{"k":1}')), calls(call(None, "2", "add", '{"a":2}'))],
            TWO,
            id="whole calls without index",
        ),
        pytest.param(
            [
                calls(call(0, "1", "lookup", '{"k"'), call(1, "2", "add", '{"a"')),
                calls(call(1, arguments=":2}"), call(0, arguments=":1}")),
            ],
            [ToolCall("1", "lookup"), Arguments('{"k"'), Arguments(":1}"), ToolCall("2", "add"), Arguments('{"a":2}')],
            id="interleaved",
        ),
        pytest.param(
            [calls(call(0, None, "lookup", '{"k":1}')), calls(call(1, None, "add", '{"a":2}'))],
            [ToolCall("made_0", "lookup"), TWO[1], ToolCall("made_1", "add"), TWO[3]],
            id="no ids",
        ),
        pytest.param(
            [calls(call(None, None, "lookup", '{"k":1}')), calls(call(None, None, "add", '{"a":2}'))],
            [ToolCall("made_0", "lookup"), TWO[1], ToolCall("made_1", "add"), TWO[3]],
            id="no ids and no index",
        ),
        pytest.param(
            [calls(call(0, None, "lookup", '{"k":')), calls(call(0, "late", arguments="1}"))],
            [ToolCall("made_0", "lookup"), *ONE[1:]],
            id="late id",
        ),
        pytest.param([calls(call(0, "1", "lookup"))], [ToolCall("1", "lookup"), Arguments("{}")], id="no arguments"),
        pytest.param(
            [calls(call(0, "1", "lookup")), calls(call(1, "2", "add", '{"a":2}'))],
            [ToolCall("1", "lookup"), Arguments("{}"), *TWO[2:]],
            id="no arguments, then another",
        ),
        pytest.param(
            [calls({"index": 0, "id": "1", "function": {"name": "lookup", "arguments": {"k": 1}}})],
            TWO[:2],
            id="arguments as an object",
        ),
        pytest.param(
            [calls(call(0, "1", "lookup", '{"k"')), chunk(content="t"), calls(call(0, arguments=":1}"))],
            [ToolCall("1", "lookup"), Arguments('{"k"'), Arguments(":1}"), Text("t")],
            id="text within a call",
        ),
        pytest.param(
            [calls(call(0, "1", "spawn", "{}"))], [ToolCall("1", "spawn", "agents"), Arguments("{}")], id="namespace"
        ),
        pytest.param(
            [calls(call(0, "1", "nobody", "{}"))], [ToolCall("1", "nobody"), Arguments("{}")], id="unknown name"
        ),
        pytest.param(
            [
                calls(call(0, "1", "apply_patch", '{"input":"a\\')),
                calls(call(0, arguments="nb")),
                calls(call(0, arguments='"}')),
            ],
            [ToolCall("1", "apply_patch", custom=True), Arguments("a"), Arguments("\nb")],
            id="custom input",
        ),
    ],
)
@pytest.mark.parametrize("finish", ["tool_calls", "stop", None])
async def test_calls(chunks: list[Any], expected: list[Increment], finish: str | None) -> None:
    """Every way in which servers stream calls gives the same whole calls, whatever they call the end."""
    assert await increments(*chunks, chunk(finish)) == [*expected, Finish("stop")]


@pytest.mark.parametrize(
    ("chunks", "reason"),
    [
        ([chunk("length", content="a")], "length"),
        ([chunk("model_length", content="a")], "length"),
        ([chunk("content_filter", content="a")], "content_filter"),
        ([chunk("eos", content="a")], "stop"),
        ([calls(call(0, "1", "lookup", '{"k')), chunk("length")], "length"),
    ],
)
async def test_finish_reasons(chunks: list[Any], reason: str) -> None:
    """A bound that was reached is said, for a call too that it cut."""
    assert (await increments(*chunks))[-1] == Finish(reason)


@pytest.mark.parametrize(
    ("chunks", "end"),
    [
        ([chunk(content="a")], DONE),
        ([chunk(content="a"), STOP], b""),
        ([chunk(content="a"), STOP], b"data: [DONE]"),
        ([b": keep-alive", chunk(content="a"), {"choices": []}, {"object": "x"}, STOP], DONE),
        ([{"choices": [], "prompt_filter_results": []}, chunk(content="a"), STOP], DONE),
        ([{**chunk(), "choices": [{"index": 1, "delta": {"content": "b"}}]}, chunk(content="a"), STOP], DONE),
    ],
)
async def test_ends_and_empty_chunks(chunks: list[Any], end: bytes) -> None:
    """``[DONE]`` or a finish reason is an end; chunks without a choice and comments are passed over."""
    steps = [c + b"\n\n" if isinstance(c, bytes) else sse(c) for c in chunks]
    async with serving(lambda request: Reply([*steps, end])) as (_, backend):
        assert [i for batch in await batches(backend) for i in batch] == [Text("a"), Finish("stop")]


async def test_an_answer_that_is_cut_after_its_finish_reason_counts() -> None:
    """Only counts can be missing once the model said that it is finished."""
    async with serving(lambda request: Reply([sse(chunk(content="a"), STOP), CUT])) as (_, backend):
        assert (await batches(backend))[-1] == (Finish("stop"),)


async def test_an_answer_that_is_not_streamed_is_read_too() -> None:
    """A server that ignores ``stream`` is understood."""
    message = {"role": "assistant", "reasoning": "r", "content": "c", "tool_calls": [call(None, "1", "lookup", "{}")]}
    whole = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], "usage": usage()["usage"]}
    json_type = [("content-type", "application/json; charset=utf-8")]
    async with serving(lambda request: Reply([orjson.dumps(whole)], headers=json_type)) as (_, backend):
        assert [i for batch in await batches(backend) for i in batch] == [
            Reasoning("r"),
            Text("c"),
            ToolCall("1", "lookup"),
            Arguments("{}"),
            Finish("stop", Usage(10, 5)),
        ]


async def test_a_lone_surrogate_is_no_failure() -> None:
    """Half a character in an escape, which some servers send, does not end the answer."""
    said = await increments(b'{"choices":[{"delta":{"content":"a\\ud83d"}}]}', STOP)
    assert isinstance(said[0], Text) and said[0].text.startswith("a")


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 8}}, Usage(9, 4, 8)),
        ({"prompt_tokens": 9, "completion_tokens": 4, "prompt_cache_hit_tokens": 8}, Usage(9, 4, 8)),
        ({"prompt_tokens": 9, "completion_tokens": 4, "cached_tokens": 7}, Usage(9, 4, 7)),
        (
            {"prompt_tokens": 9, "completion_tokens": 4, "completion_tokens_details": {"reasoning_tokens": 3}},
            Usage(9, 4, 0, 3),
        ),
        ({"prompt_tokens": 9, "completion_tokens": 4, "reasoning_tokens": 3}, Usage(9, 4, 0, 3)),
        ({"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 20}, Usage(9, 11, 0, 7)),
        ({"prompt_tokens": 9, "completion_tokens": None, "prompt_tokens_details": None}, Usage(9, 0)),
        ({"prompt_tokens": -1, "completion_tokens": "4", "cached_tokens": 99}, Usage(0, 0)),
    ],
)
def test_usage(reported: dict[str, Any], expected: Usage) -> None:
    """Cached and reasoning tokens are found under each server's names, and never exceed what they are part of."""
    assert read_usage(reported) == expected


@pytest.mark.parametrize(
    "chunks",
    [
        [STOP, usage(9, 4)],
        [{**STOP, "usage": {"prompt_tokens": 9, "completion_tokens": 4}}],
        [{**STOP, "x_groq": {"usage": {"prompt_tokens": 9, "completion_tokens": 4}}}],
        [{"choices": [{**STOP["choices"][0], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}]}],
        [usage(1, 1), {**STOP, "usage": None}, usage(9, 4)],
    ],
)
async def test_usage_may_come_in_any_chunk(chunks: list[Any]) -> None:
    """The last counts hold, wherever they stand."""
    assert await increments(chunk(content="a"), *chunks) == [Text("a"), Finish("stop", Usage(9, 4))]


# --- what goes wrong -------------------------------------------------------------------------------------


def nested(message: str, code: object = None, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "code": code, **more}}


OVERFLOWS = [
    (400, nested("This model's maximum context length is 8192 tokens.", 400)),
    (400, nested("The prompt (total length 9) is longer than the maximum model length of 8.", 400)),
    (400, nested("bad", 400, param="input_tokens")),
    (400, {"object": "error", "message": "The input (9 tokens) is longer than the model's context length (8)"}),
    (400, {"error": {"code": 400, "message": "request (9) exceeds", "type": "exceed_context_size_error"}}),
    (500, {"error": {"message": "input exceeded max context length"}}),
    (400, {"message": "Please reduce the length of the messages or completion. Current length is 9 while limit is 8"}),
    (400, nested("x", "context_length_exceeded")),
    (400, {"error": {"code": 400, "message": "x", "metadata": {"error_type": "token_limit_exceeded"}}}),
    (403, {"error": {"message": "prompt is too long"}}),
    (413, b""),
    (400, {"error": "The number of tokens to keep is greater than the context length"}),
]


@pytest.mark.parametrize(("status", "body"), OVERFLOWS)
async def test_an_overflow_is_recognised(status: int, body: Any) -> None:
    """Every server's way to say that the conversation is too long leads to the one code that agents act on."""
    error = await failure(refusing(status, body))
    assert (error.code, error.status, error.param) == ("context_length_exceeded", 400, "input")


@pytest.mark.parametrize(
    ("status", "body", "code", "out"),
    [
        (401, {"error": "Unauthorized"}, "invalid_api_key", 401),
        (403, nested("Forbidden"), "invalid_api_key", 401),
        (404, nested("The model `x` does not exist.", 404), "model_not_found", 404),
        (404, {"error": {"message": 'model "x" not found, try pulling it first'}}, "model_not_found", 404),
        (400, {"object": "error", "message": "Invalid model: x", "code": "invalid_model"}, "model_not_found", 404),
        (402, nested("Payment required"), "insufficient_quota", 402),
        (429, nested("You exceeded your current quota", "insufficient_quota"), "insufficient_quota", 402),
        (429, nested("Slow down"), "rate_limit_exceeded", 429),
        (400, {"message": "Tokens per minute limit exceeded - too many tokens processed."}, "rate_limit_exceeded", 429),
        (413, nested("Request too large: Limit 6000 tokens per minute"), "rate_limit_exceeded", 429),
        (503, {"object": "error", "message": "The request queue is full."}, "server_is_overloaded", 503),
        (
            503,
            {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}},
            "server_is_overloaded",
            503,
        ),
        (500, nested("x", "slow_down"), "server_is_overloaded", 503),
        (529, b"", "server_is_overloaded", 503),
        (404, {"detail": "Not Found"}, "server_error", 502),
        (405, b"", "server_error", 502),
        (400, nested("Failed to call a function", "tool_use_failed"), "server_error", 502),
        (500, {"error": {"message": "boom"}}, "server_error", 500),
        (502, b"<html>Bad Gateway", "server_error", 502),
        (400, nested("flagged", "content_filter"), "invalid_prompt", 400),
        (403, nested("blocked by moderation"), "invalid_prompt", 400),
        (400, nested("max_tokens=99 cannot be greater than max_model_len=9"), "invalid_prompt", 400),
        (422, {"detail": [{"loc": ["body", "x"], "msg": "Extra inputs are not permitted"}]}, "invalid_prompt", 400),
    ],
)
async def test_a_refusal_has_its_code(status: int, body: Any, code: str, out: int) -> None:
    """Refusals of every server become the codes of the Responses API, and say which backend it was."""
    error = await failure(refusing(status, body))
    assert (error.code, error.status) == (code, out)
    assert str(error).startswith(f"The backend at model.test answered with HTTP {status}")


async def test_a_servers_message_is_passed_on_within_bounds() -> None:
    """Its message reaches the client, on one line and cut; a body that is no error object does not."""
    assert "Extra inputs" in str(await failure(refusing(422, {"detail": [{"msg": "Extra inputs are bad"}]})))
    assert len(str(await failure(refusing(400, nested("x\n" * 10_000))))) < 700
    for body in (b"<html>secret", b"secret", b'"secret', b'{"secret": 1}', b"\xff\xfe", b"[1]"):
        error = await failure(refusing(500, body))
        assert "secret" not in str(error) and "no message" in str(error)


GUARD = "No API key provided. Send one of this server's keys as 'Authorization: Bearer KEY'."


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (GUARD, GUARD),  # another Turntape's own words
        ("Invalid Authorization header. Expected: Authorization: Bearer YOUR_API_KEY", None),
        ("Basic authentication is not supported; api_key: required", None),
        ("Bad Authorization: Bearer hunter2hunter2 here", "Bad Authorization: Bearer [masked] here"),
        ("Bad bearer abcdefghijklmnopqrstuvwxyz", "Bad bearer [masked]"),
        ('{"api_key": "hunter2"}', '{"api_key": "[masked]"}'),
        ("Incorrect key sk-abcdef123", "Incorrect key [masked]"),
    ],
)
async def test_a_message_without_a_key_is_passed_on_whole(said: str, shown: str | None) -> None:
    """What looks like a key is masked; the words around it, and those that tell how to send one, are not."""
    assert f"answered with HTTP 400: {shown or said}" in str(await failure(refusing(400, nested(said))))


async def test_a_server_that_wants_tls_is_said_to() -> None:
    """nginx answers plain HTTP on its TLS port with a page of its own."""
    page = b"<html><h1>400 Bad Request</h1>The plain HTTP request was sent to HTTPS port</html>"
    assert str(await failure(refusing(400, page))).endswith("answers with TLS only. Write https:// in its URL.")


async def test_an_error_in_the_stream_is_told_from_a_status() -> None:
    """It says that the answer had begun, and how far it was."""
    steps = [chunk(content="a"), chunk(content="b"), nested("boom", 500)]
    for n in range(3):
        error = await failure(lambda request, n=n: Reply([sse(*steps[2 - n :])]))
        how = f"reported an error after {n} event{'s' * (n != 1)} of its answer" if n else "in place of an answer"
        assert f"{how}: boom" in str(error)
        assert "HTTP" not in str(error)


async def test_retry_after_is_copied() -> None:
    """How long to wait is passed on as the backend wrote it, if it is a number of seconds."""
    assert (await failure(refusing(429, nested("x"), retry_after="1.5"))).retry_after == "1.5"
    assert (await failure(refusing(503, nested("x"), retry_after="7"))).retry_after == "7"
    assert (await failure(refusing(429, nested("x"), retry_after="Wed, 21 Oct"))).retry_after is None
    assert (await failure(refusing(400, nested("x"), retry_after="7"))).retry_after is None


@pytest.mark.parametrize(
    ("chunks", "code", "message"),
    [
        ([nested("boom", 500)], "server_error", "boom"),
        ([{"error": "boom"}], "server_error", "boom"),
        ([{"error": {"message": "boom"}, "status_code": 429}], "rate_limit_exceeded", "boom"),
        ([{"error": {"object": "error", "message": "maximum context length is 8"}}], "context_length_exceeded", "8"),
        ([{**chunk(), "x_groq": {"error": "boom"}}], "server_error", "boom"),
        ([{**chunk("error"), "error": {"code": 502, "message": "boom"}}], "server_error", "boom"),
        ([{"object": "error", "message": "boom", "code": 503}], "server_is_overloaded", "boom"),
        ([chunk("error")], "server_error", "gave up"),
        ([chunk("abort")], "server_error", "gave up"),
        ([chunk("insufficient_system_resource")], "server_is_overloaded", "gave up"),
        ([b"garbage{"], "server_error", "not a JSON object"),
        ([b"[1]"], "server_error", "not a JSON object"),
        (
            [calls(call(0, "1", "lookup", "{}")), chunk(content="b"), calls(call(0, arguments="more"))],
            "server_error",
            "whole",
        ),
    ],
)
async def test_a_failure_in_the_stream(chunks: list[Any], code: str, message: str) -> None:
    """What was said before a failure arrives, and then its reason."""
    heard: list[Increment] = []
    async with serving(lambda request: Reply([sse(chunk(content="a"), *chunks), DONE])) as (_, backend):
        with pytest.raises(BackendError, match=message) as caught:
            async with backend.sample(start(tools=TOOLS)) as channel:
                async for batch in channel:
                    heard += batch
    assert heard[0] == Text("a")
    assert not any(isinstance(increment, Finish) for increment in heard)
    assert caught.value.code == code
    assert "model.test" in str(caught.value)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply([sse(chunk(content="a")), CUT]), "closed the connection in the middle"),
        (Reply([sse(chunk(content="a"))]), "without saying that it is finished"),
        (Reply([DONE]), "empty answer"),
        (Reply([]), "empty answer"),
        (
            Reply([sse({"type": "response.created"}, {"type": "response.output_text.delta", "delta": "a"})]),
            "empty answer: events (2) that hold no chat completion; check what it speaks there",
        ),
        (Reply([sse(calls(call(0, "1", None, "{}")), chunk("tool_calls")), DONE]), "call without a name"),
        (Reply([b"<html>"], headers=[("content-type", "text/html; charset=utf-8")]), "web page; check its URL"),
        (
            Reply([b"hello"], headers=[("content-type", "text/plain")]),
            "answered with text/plain, in which there is no event",
        ),
        (Reply([b"hello"], headers=[("content-type", "a\tb")]), "no content type that can be read"),
        (Reply([b"{}"], headers=[("content-type", "application/json")]), "JSON that is no answer of chat completions"),
        (
            Reply([b'{"output": []}'], headers=[("content-type", "application/json")]),
            "answered in the form of the Responses API; try responses+URL",
        ),
        (Reply([b"x"], headers=[("content-type", "application/json")]), "not a JSON object"),
        (Reply(raw=b"nonsense\r\n\r\n"), "not HTTP/1.1"),
        (Reply(raw=b""), "without an answer"),
        (Reply([], 307, [("location", "https://elsewhere.test/x")]), "redirects to elsewhere.test"),
    ],
)
async def test_an_answer_that_is_none(reply: Reply, message: str) -> None:
    """Silence, nonsense and half an answer are the backend's fault, in words that name it."""
    error = await failure(lambda request: reply)
    assert message in str(error) and "backend at model.test" in str(error)
    assert (error.code, error.status) == ("server_error", 502)


async def test_a_server_that_cannot_be_reached() -> None:
    """Refused and unanswered connections are told apart, with what to check."""
    with trio.fail_after(10), trio.socket.socket() as unused:
        await unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(BackendError, match=f"127.0.0.1:{port} cannot be reached: nothing listens.*Check") as caught:
            await batches(ChatBackend(f"http://127.0.0.1:{port}/v1"))
        assert (caught.value.code, caught.value.status) == ("server_error", 502)


async def test_a_server_that_does_not_answer(autojump_clock: trio.testing.MockClock) -> None:
    """A head that does not come in time is a gateway timeout."""
    async with serving(lambda request: Reply([], headers=[("x", "y")])) as (server, backend):
        backend.client.connections.connect = _deaf
        with pytest.raises(BackendError, match="did not answer within 600 seconds") as caught:
            await batches(backend)
        assert (caught.value.code, caught.value.status) == ("server_error", 504)
        assert server.requests == []


async def _deaf(host: str, port: int) -> trio.abc.Stream:
    return trio.testing.memory_stream_pair()[0]


async def test_content_that_cannot_be_sent_asks_nobody() -> None:
    """A file in the input is refused before a request is made."""
    async with serving() as (server, backend):
        with pytest.raises(BackendError, match="input_file"):
            await batches(backend, start([{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]))
        assert server.n_connections == 0
