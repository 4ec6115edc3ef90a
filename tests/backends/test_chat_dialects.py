"""Every row of the chat table against a server that plays its provider: a tool loop, counts, an overflow, a rate limit."""

import itertools
from typing import Any

import orjson
import pytest
from backends.chat_asking import KEY, LOOKUP, asking, said, start
from chat_providers import CACHED, OUTPUT, PROMPT, PROVIDERS, REASONED, Provider
from chat_server import DONE, Reply, chunk, saying, sse
from hypothesis import given
from hypothesis import strategies as st

from turntape.core.seam import Arguments, Finish, Reasoning, Text, ToolCall, Usage
from turntape.transport.backends.base import BackendError
from turntape.transport.backends.chat_request import encode_request
from turntape.transport.backends.dialects import dialect_for, presets, table
from turntape.transport.backends.messages import Renderer
from turntape.transport.backends.think_tags import ThinkTags

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FORMAT = {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": True}
NOTE = {"role": "developer", "content": "A late note."}
SETTINGS: dict[str, Any] = {
    "instructions": "Be brief.",
    "max_output_tokens": 500,
    "temperature": 0.5,
    "top_p": 0.9,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "parallel_tool_calls": False,
    "prompt_cache_key": "conversation-1",
    "metadata": {"a": "b"},
    "user": "someone",
}

ROWS = [
    pytest.param(row.backend, row.models[0].replace("*", "x") if row.models != ("*",) else "some-model", id=row.name)
    for row in table().rows
]


def played(backend: str, model: str) -> tuple[str, Provider]:
    """The preset and the server that plays it; a row of a model of another maker speaks that one's dialect."""
    if backend == "*":
        return "", PROVIDERS["unknown"]
    return backend, PROVIDERS["azure-deepseek" if "deepseek" in model and backend == "azure" else backend]


@pytest.mark.parametrize(("backend", "model"), ROWS)
async def test_a_tool_loop(backend: str, model: str) -> None:
    """Reasoning, a call, an answer and the counts come out; nothing goes in that this server refuses."""
    preset, provider = played(backend, model)
    tools_elsewhere = dialect_for(preset, model).tools_with_reasoning != "ok"
    efforts = ["none"] if tools_elsewhere else ["none", "low", "xhigh" if provider.efforts else "high"]
    for effort in efforts:
        async with asking(preset, provider.answer) as (server, chat):
            fields = {**SETTINGS, "tools": [LOOKUP], "reasoning": {"effort": effort}, "text": {"format": FORMAT}}
            first = start(model, "What is the answer?", **fields)
            heard = await said(chat, first)
            [call] = [i for i in heard if isinstance(i, ToolCall)]
            assert (call.name, call.call_id) == ("lookup", provider.ids)
            assert "".join(i.text for i in heard if isinstance(i, Arguments)) == '{"key":"answer"}'
            thought = "".join(i.text for i in heard if isinstance(i, Reasoning))
            assert thought == ("Let me look." if provider.reasoning else "")
            assert not any(isinstance(i, Text) for i in heard)
            cached, reasoned = CACHED * bool(provider.counts_cached), REASONED * bool(provider.counts_reasoning)
            assert heard[-1] == Finish("stop", Usage(PROMPT, OUTPUT, cached, reasoned))

            items: list[dict[str, Any]] = [
                {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": thought}]},
                {"type": "function_call", "call_id": call.call_id, "name": "lookup", "arguments": '{"key":"answer"}'},
                {
                    "type": "function_call_output",
                    "call_id": call.call_id,
                    "output": [{"type": "input_text", "text": "42"}],
                },
                NOTE,
                {"role": "user", "content": "And now?"},
            ]
            heard = await said(chat, start(model, items, first.context, **fields, tool_choice="auto"))
            assert "".join(i.text for i in heard if isinstance(i, Text)) == "It is 42."
            if provider.remembers and preset:
                assistant = next(m for m in server.requests[-1]["messages"] if m.get("tool_calls"))
                assert assistant[provider.remembers] == "Let me look."
            assert server.headers[0][provider.wants_key].removeprefix("Bearer ") == KEY


@pytest.mark.parametrize(("backend", "model"), ROWS)
async def test_every_choice_and_format(backend: str, model: str) -> None:
    """Whatever a client chooses among tools and formats is asked in a way that this server takes."""
    preset, provider = played(backend, model)
    other = {**LOOKUP, "name": "other"}
    for choice in ("none", "required", {"type": "function", "name": "lookup"}):
        async with asking(preset, provider.answer) as (server, chat):
            fields = {"tools": [LOOKUP, other], "tool_choice": choice, "reasoning": {"effort": "none"}}
            await said(chat, start(model, "hi", **fields))
            sent = server.requests[-1]
            if choice == "none":
                assert sent.get("tool_choice") == "none" or "tools" not in sent
            elif isinstance(choice, dict):
                named = sent.get("tool_choice")
                assert [t["function"]["name"] for t in sent["tools"]] == ["lookup"] or named["function"][
                    "name"
                ] == "lookup"
    for form in ({"type": "json_object"}, FORMAT):
        async with asking(preset, provider.answer) as (server, chat):
            await said(chat, start(model, "hi", text={"format": form}))
            sent = server.requests[-1]
            assert "response_format" in sent or "JSON" in sent["messages"][0]["content"]


@pytest.mark.parametrize(("backend", "model"), ROWS)
async def test_an_overflow(backend: str, model: str) -> None:
    """This server's way to say that the prompt is too long has the code on which agents shorten it."""
    preset, provider = played(backend, model)
    async with asking(preset, lambda request: provider.overflow) as (_, chat):
        with pytest.raises(BackendError) as caught:
            await said(chat, start(model, "hi"))
        assert (caught.value.code, caught.value.status) == ("context_length_exceeded", 400)


@pytest.mark.parametrize(("backend", "model"), ROWS)
async def test_a_rate_limit(backend: str, model: str) -> None:
    """This server's way to say that it is too much has a status on which clients come back, and when."""
    preset, provider = played(backend, model)
    async with asking(preset, lambda request: provider.limited) as (_, chat):
        with pytest.raises(BackendError) as caught:
            await said(chat, start(model, "hi"))
        assert (caught.value.code, caught.value.status) in {("rate_limit_exceeded", 429), ("server_is_overloaded", 503)}
        assert caught.value.retry_after == "7"


def test_every_preset_is_played() -> None:
    """No provider in the table is without a server that plays it."""
    assert set(presets()) == set(PROVIDERS) - {"unknown", "azure-deepseek"}


EFFORTS = st.sampled_from(["none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra", "odd"])
CREATES = st.fixed_dictionaries(
    {},
    optional={
        "instructions": st.text(max_size=5),
        "max_output_tokens": st.integers(1, 9),
        "temperature": st.floats(0, 2),
        "top_p": st.floats(0, 1),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "top_logprobs": st.integers(0, 20),
        "parallel_tool_calls": st.booleans(),
        "prompt_cache_key": st.text(max_size=80),
        "user": st.text(max_size=5),
        "metadata": st.just({"a": "b"}),
        "reasoning": st.fixed_dictionaries({"effort": EFFORTS}),
        "tools": st.just([LOOKUP]),
        "tool_choice": st.sampled_from(["auto", "none", "required"]),
        "text": st.sampled_from([{"format": FORMAT}, {"format": {"type": "json_object"}}]),
    },
)


@pytest.mark.parametrize("row", table().rows, ids=lambda row: row.name)
@given(fields=CREATES)
def test_a_row_never_sends_what_it_drops(row: Any, fields: dict[str, Any]) -> None:
    """Whatever the client sets, no request has a field that its row says is refused."""
    asked = start("m", "hi", **fields)
    rendered = Renderer(row.dialect).render(asked.context, asked.request.callable_tools)
    try:
        body = b"".join(encode_request("m", asked.request, rendered, row.dialect))
    except BackendError as exc:
        assert row.dialect.tools_with_reasoning != "ok"
        assert exc.param == "reasoning.effort"
        return
    sent = orjson.loads(body)
    assert sent.keys().isdisjoint(row.dialect.drop_params)
    assert not (sent.keys() & {"user", "metadata", "top_logprobs", "reasoning_summary"})
    if not row.dialect.tools_with_format:
        assert not {"tools", "response_format"} <= sent.keys()
    assert row.dialect.parallel or "parallel_tool_calls" not in sent


async def test_a_body_is_compressed_where_the_row_says_so() -> None:
    """Cerebras gets long bodies as gzip, and reads what was meant; nobody else does."""
    long = "A long question. " * 10_000
    for preset, is_packed in (("cerebras", True), ("groq", False)):
        async with asking(preset, saying(chunk("stop", content="a"))) as (server, chat):
            for text in ("short", "A longer question. " * 100, long):
                await said(chat, start("m", text))
            encodings = [headers.get("content-encoding") for headers in server.headers]
            assert encodings == ([None, "gzip", "gzip"] if is_packed else [None] * 3)
            assert server.requests[2]["messages"] == [{"role": "user", "content": long}]
            assert int(server.headers[2]["content-length"]) < len(long) or not is_packed


@pytest.mark.parametrize(
    ("preset", "where"),
    [
        ("vllm", "x-session-id"),
        ("sglang", "x-smg-routing-key"),
        ("xai", "x-grok-conv-id"),
        ("openai", "prompt_cache_key"),
    ],
)
async def test_the_conversations_name_goes_where_the_server_looks(preset: str, where: str) -> None:
    """A cache key arrives as the field or header of this server, short and plain; without one nothing is sent."""
    async with asking(preset, saying(chunk("stop", content="a"))) as (server, chat):
        for key in ("conversation-1", "line\r\nbreak", "é" * 100, None):
            await said(chat, start("m", "hi", prompt_cache_key=key))
        sent = [{**headers, **body}.get(where) for headers, body in zip(server.headers, server.requests, strict=True)]
        assert sent[0] == "conversation-1" and sent[3] is None
        assert all(len(value) <= 64 and value.isalnum() for value in sent[1:3])


async def test_models_of_one_server_have_their_own_rows() -> None:
    """Two models behind one URL are asked each in its own way, by the same backend and connection."""
    async with asking("groq", saying(chunk("stop", content="a"))) as (server, chat):
        for model in ("openai/gpt-oss-120b", "qwen/qwen3-32b"):
            await said(chat, start(model, "hi", reasoning={"effort": "high"}))
            await said(chat, start(model, "hi", reasoning={"effort": "none"}))
        assert [r["reasoning_effort"] for r in server.requests] == ["high", "low", "default", "none"]
        assert server.n_connections == 1


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "</", "think>", "\n", " ", "a"]), max_size=8).map("".join),
    st.lists(st.integers(0, 60), max_size=6),
)
def test_tags_are_read_wherever_the_content_is_cut(content: str, cuts: list[int]) -> None:
    """How a content was cut never matters, nothing but tags and the blanks around them is lost, and no text is empty."""

    def read(edges: list[int]) -> list[tuple[type, str]]:
        tags, whole = ThinkTags(), list[tuple[type, str]]()
        pieces = [content[a:b] for a, b in itertools.pairwise(edges)]
        for increment in [i for piece in pieces for i in tags.feed(piece)] + tags.end():
            assert isinstance(increment, Text | Reasoning) and increment.text
            if whole and whole[-1][0] is type(increment):
                whole[-1] = (type(increment), whole[-1][1] + increment.text)
            else:
                whole.append((type(increment), increment.text))
        return whole

    at_once = read([0, len(content)])
    assert read([0, *sorted(cut % (len(content) + 1) for cut in cuts), len(content)]) == at_once
    if not content.lstrip().startswith("<think>"):
        assert at_once == ([(Text, content)] if content else [])


async def test_a_blank_that_was_held_back_is_not_lost() -> None:
    """A content that could still have begun with the tag is said once reasoning comes by another way."""
    chunks = [chunk(content=" "), chunk(reasoning="r"), chunk(content="a"), chunk("stop")]
    async with asking("", saying(*chunks)) as (_, chat):
        assert "".join(i.text for i in await said(chat, start("m", "hi")) if isinstance(i, Text)) == " a"


async def test_tags_in_the_content_are_read_where_nothing_is_known() -> None:
    """Only a content that begins with the tag is reasoning, wherever it is cut; a text about the tag stays a text."""
    whole = "<think>\nHm, </thin or so.</think>\n\nIt is <think>42</think>."
    for n in (1, 3, len(whole)):
        pieces = [chunk(content=whole[at : at + n]) for at in range(0, len(whole), n)]
        async with asking("", saying(*pieces, chunk("stop"))) as (_, chat):
            heard = await said(chat, start("m", "hi"))
        assert "".join(i.text for i in heard if isinstance(i, Reasoning)) == "Hm, </thin or so."
        assert "".join(i.text for i in heard if isinstance(i, Text)) == "It is <think>42</think>."
    for text in ("<thi", " <b>", "a <think>b</think>", "  "):
        async with asking("", lambda request, text=text: Reply([sse(chunk("stop", content=text)), DONE])) as (_, chat):
            assert (await said(chat, start("m", "hi")))[0] == Text(text)
