"""Chat-template models in tokens: a llama.cpp server that is played, and a real one that counts what it reads."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import trio
from backends.cases import (
    ADD,
    LOOKUP,
    SCHEMA,
    Cases,
    ask,
    batches,
    calls_of,
    finish_of,
    items_of,
    reasoning_of,
    said,
    text_of,
)
from backends.rig import End, Playing, Say, Think
from backends.rig_template import EOS, LlamaCpp, TemplateRig, plain, spoken
from chat_server import Reply
from llama_server import llama_server

from turntape.core.canonical import Item
from turntape.core.context import Context
from turntape.core.seam import Increment, Usage
from turntape.transport.backends.tokens import TokensBackend
from turntape.transport.http_client import HttpClient
from turntape.transport.http_connections import Connections


def trimming(messages: list[dict[str, Any]]) -> str:
    """A template that rewrites what the assistant said."""
    changed = [{**m, "content": f" {m['content']} "} if m["role"] == "assistant" else m for m in messages]
    return plain(changed)


class Agent:
    """Each turn goes on from the context of the one before."""

    def __init__(self, backend: TokensBackend) -> None:
        self.backend = backend
        self.context = Context()

    async def turn(self, items: Any, **fields: Any) -> list[Increment]:
        start = ask(items, context=self.context, **fields)
        heard = [i for batch in await batches(Playing(self.backend), start) for i in batch]
        kept = [item for item in items_of(heard, "") if not item["type"].endswith("_output")]
        self.context = start.context.extend(map(Item.of, kept))
        return heard


def playing(nursery: trio.Nursery, *answers: str, template: Any = plain) -> tuple[LlamaCpp, Agent]:
    left = iter(answers)
    server = LlamaCpp(nursery, lambda _: Reply(spoken(next(left))), template)
    return server, Agent(TokensBackend("http://h", client=HttpClient(Connections(connect=server.connect))))


def output(heard: list[Increment], text: str) -> list[dict[str, Any]]:
    [(call, _)] = calls_of(heard)
    return [{"type": "function_call_output", "call_id": call.call_id, "output": text}]


async def test_reasoning_and_a_call_are_read_from_the_text() -> None:
    """What stands between the tags of Qwen and Hermes is reasoning and a call; the rest is text."""
    answer = (
        '<think>\nHm.\n</think>\n\nI look.\n<tool_call>\n{"name": "lookup", "arguments": {"key": "é"}}\n</tool_call>'
    )
    async with trio.open_nursery() as nursery:
        _, agent = playing(nursery, answer)
        heard = await agent.turn("Go.", tools=[LOOKUP])
        assert reasoning_of(heard).strip() == "Hm."
        assert text_of(heard).strip() == "I look."
        [(call, arguments)] = calls_of(heard)
        assert (call.name, orjson.loads(arguments)) == ("lookup", {"key": "é"})
        assert finish_of(heard).reason == "stop"
        nursery.cancel_scope.cancel()


async def test_only_what_is_new_becomes_tokens() -> None:
    """Each turn tokenizes the text behind what was sampled, and the prompt before it stays id for id."""
    call = '<tool_call>{"name": "lookup", "arguments": {"key":"k"}}</tool_call>'
    async with trio.open_nursery() as nursery:
        server, agent = playing(nursery, call, call, "Done.")
        heard = await agent.turn("Go.", tools=[LOOKUP])
        heard = await agent.turn(output(heard, "first"), tools=[LOOKUP])
        heard = await agent.turn(output(heard, "second"), tools=[LOOKUP])
        assert text_of(heard) == "Done."
        assert server.tokenized == [
            "[user]Go.[end][assistant]",
            "[end][tool]first[end][assistant]",
            "[end][tool]second[end][assistant]",
        ]
        first, second, third = server.prompts
        assert second[: len(first) + len(call)] == [*first, *call.encode()]
        assert third[: len(second)] == second
        assert EOS not in third
        nursery.cancel_scope.cancel()


async def test_a_template_that_changes_what_went_before_is_told_of_and_rendered_again() -> None:
    """The prompt is what the template makes, whatever that costs; a probe says so, and the cost is counted."""
    async with trio.open_nursery() as nursery:
        server, agent = playing(nursery, "One.", "Two.", template=trimming)
        await agent.turn("Go.")
        await agent.turn("Again.")
        assert bytes(server.prompts[-1]).decode() == "[user]Go.[end][assistant] One. [end][user]Again.[end][assistant]"
        assert "again" in " ".join((await agent.backend.probe()).notes)
        nursery.cancel_scope.cancel()


async def test_a_required_call_is_begun_and_bound() -> None:
    """The tag is written for the model, and the call has to match a schema of the tools that are allowed."""
    async with trio.open_nursery() as nursery:
        server, agent = playing(nursery, '{"name":"add","arguments":{"a":1,"b":2}}', "Three.")
        heard = await agent.turn("Go.", tools=[LOOKUP, ADD], tool_choice={"type": "function", "name": "add"})
        assert [(call.name, text) for call, text in calls_of(heard)] == [("add", '{"a":1,"b":2}')]
        assert bytes(server.prompts[0]).decode().endswith("[assistant]<tool_call>")
        schema = server.bodies[0]["json_schema"]
        assert (schema["properties"]["name"], schema["properties"]["arguments"]) == (
            {"const": "add"},
            ADD["parameters"],
        )
        await agent.turn(output(heard, "3"), tools=[LOOKUP, ADD])
        assert "json_schema" not in server.bodies[1]
        nursery.cancel_scope.cancel()


async def test_a_format_binds_the_answer() -> None:
    """The schema of text.format goes to the server."""
    async with trio.open_nursery() as nursery:
        server, agent = playing(nursery, '{"city":"Paris","degrees":20}')
        form = {"type": "json_schema", "name": "n", "schema": SCHEMA}
        await agent.turn("Weather?", text={"format": form})
        assert server.bodies[0]["json_schema"] == SCHEMA
        nursery.cancel_scope.cancel()


async def test_no_tool_is_called_where_none_may_be() -> None:
    """With tool_choice none the tags are text."""
    async with trio.open_nursery() as nursery:
        _, agent = playing(nursery, '<tool_call>{"name": "lookup", "arguments": {}}</tool_call>')
        heard = await agent.turn("Go.", tools=[LOOKUP], tool_choice="none")
        assert calls_of(heard) == []
        nursery.cancel_scope.cancel()


class TestTemplate(Cases):
    rig = TemplateRig()

    async def test_usage(self, clock: Any) -> None:
        """Token counts are the server's own; tokens of reasoning are counted as they come."""
        turn = [Think("Hm."), Say("Counted."), End(usage=Usage(50, 17, 30))]
        async with self.rig.playing(turn) as play:
            assert finish_of(await said(play)).usage == Usage(50, 17, 30, len("Hm."))


# --- the real llama.cpp ---------------------------------------------------------------------------------------


@contextmanager
def real() -> Iterator[TokensBackend]:
    with llama_server(n_ctx=4096) as url:
        yield TokensBackend(url)


async def test_llama_cpp_reads_the_suffix_and_at_most_2_tokens_more() -> None:
    """One slot, six turns, a real model: the server's own counts, and those of tokens made from text."""
    with real() as backend:
        agent, before = Agent(backend), 0
        for n in range(6):
            n_encoded = backend.n_encoded
            heard = await agent.turn(f"Tell me a fact about number {n}.", temperature=0, max_output_tokens=12)
            usage = finish_of(heard).usage
            assert usage is not None
            suffix = usage.input_tokens - before
            assert usage.input_tokens - usage.cached_tokens <= suffix + 2
            assert backend.n_encoded - n_encoded <= suffix + 2
            before = usage.input_tokens + usage.output_tokens
        assert usage.cached_tokens > 100
        await backend.aclose()


async def test_a_tool_loop_with_llama_cpp() -> None:
    """A required call is a call with arguments that match, the loop goes on, and a format is kept."""
    with real() as backend:
        agent = Agent(backend)
        heard = await agent.turn("Add 2 and 3.", tools=[ADD], tool_choice="required", max_output_tokens=100)
        [(call, arguments)] = calls_of(heard)
        assert call.name == "add"
        assert all(type(n) is int for n in orjson.loads(arguments).values())
        heard = await agent.turn(output(heard, "5"), tools=[ADD], tool_choice="none", max_output_tokens=20)
        assert text_of(heard)
        city = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
        form = {"type": "json_schema", "name": "n", "schema": {**city, "additionalProperties": False}}
        heard = await agent.turn("Which city?", text={"format": form}, max_output_tokens=100)
        assert orjson.loads(text_of(heard))["city"] in ("Paris", "Rome")
        await backend.aclose()
