"""Chains through two servers: a turn sends its new items where the upstream has the rest, and everything where not."""

import json
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
import trustme
from attrs import define, evolve
from backends.cases import ask, items_of, said, text_of
from backends.rig import Playing
from backends.rig_responses import KEY
from chat_server import ChatServer, Reply, refusing, sse
from running import LAB
from serving import Http, Model, Server, WebSocket, listening, masked

from turntape.core.context import Context
from turntape.core.seam import Arguments, Finish, Limits, StartSample, Text, ToolCall
from turntape.transport.backends.responses import ResponsesBackend
from turntape.transport.backends.responses_upstreams import UNKNOWN, Upstream, upstream_named
from turntape.transport.backends.script import Script
from turntape.transport.backends.scripted import ScriptedBackend
from turntape.transport.http_client import HttpClient
from turntape.transport.http_connections import Connections
from turntape.transport.memory_store import MemoryStore
from turntape.transport.server import ServerSettings, serve_connection

LOOKUP = {"type": "function", "name": "lookup", "parameters": {"type": "object", "properties": {}}}
CALL = [(0, ()), (0, (ToolCall("call_1", "lookup"), Arguments("{}"), Finish()))]
TALK = [(0, ()), (0, (Text("hello"), Finish()))]
SETTINGS = ServerSettings(keys=frozenset({KEY}))


@define(eq=False)
class Upstreams:
    """The server behind ours.

    Attributes:
        streams: our connections to it, its ends.
    """

    server: Server
    streams: list[trio.abc.Stream]

    async def connect(self, host: str, port: int) -> trio.abc.Stream:
        self.streams.append(self.server.connect())
        return self.streams[-1]


@asynccontextmanager
async def upstream(
    model: Any, scheme: str = "ws", *, settings: ServerSettings = SETTINGS, **fields: Any
) -> AsyncIterator[tuple[Upstreams, ResponsesBackend]]:
    async with trio.open_nursery() as nursery:
        behind = Upstreams(Server(nursery, model, settings), [])
        client = HttpClient(Connections(connect=behind.connect))
        backend = ResponsesBackend(f"{scheme}://model.test/v1", KEY, client=client, **fields)
        yield behind, backend
        await backend.aclose()
        nursery.cancel_scope.cancel()


def types(start: StartSample) -> list[str]:
    """What a request to the upstream itself brings."""
    return [item.value.get("role") or item.type for item in start.request.input.items]


def conversation(start: StartSample) -> list[str]:
    """What the upstream's model is to read."""
    return [item.value.get("role") or item.type for item in start.context.items_after(None)]


async def turn(backend: ResponsesBackend, start: StartSample, *then: dict[str, Any]) -> StartSample:
    """Run a sample as a session does, and give the next request: what was said is a link of its own."""
    increments = await said(Playing(backend), start)
    items = items_of(increments, "42")
    n_outputs = sum(item["type"].endswith("_output") for item in items)
    answer, outputs = items[: len(items) - n_outputs], items[len(items) - n_outputs :]
    context = ask(answer, context=start.context).context
    return ask([*outputs, *then], context=context, tools=[LOOKUP])


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text}


def first(text: str = "Go.", *, context: Context | None = None) -> StartSample:
    return ask(text, context=context, tools=[LOOKUP])


# --- over a WebSocket ------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [UNKNOWN, upstream_named("turntape")], ids=lambda row: row.name)
async def test_a_turn_sends_what_is_new(row: Upstream, autojump_clock: trio.testing.MockClock) -> None:
    """On a kept WebSocket each turn names the upstream's last response and brings its new items only."""
    model = Model([CALL, CALL, TALK])
    async with upstream(model, upstream=row) as (behind, backend):
        start = first()
        for _ in range(3):
            start = await turn(backend, start)
        assert [types(each) for each in model.starts] == [["user"], ["function_call_output"], ["function_call_output"]]
        assert [each.request.previous_response_id is None for each in model.starts] == [True, False, False]
        assert conversation(model.starts[-1]) == ["user", *["function_call", "function_call_output"] * 2]
        assert len(behind.streams) == 1
        assert backend.renderer.n_rendered == 5


async def test_nothing_is_stored_upstream_unless_asked_for(autojump_clock: trio.testing.MockClock) -> None:
    """The upstream is told not to store; with ``store`` and an upstream that can, it is told to."""
    for store, row in ((False, "turntape"), (True, "turntape"), (True, "llamacpp")):
        model = Model([TALK])
        async with upstream(model, upstream=upstream_named(row), store=store) as (_, backend):
            await turn(backend, first())
            assert model.starts[0].request.store is (store and row == "turntape")


async def test_a_fork_is_sent_in_full(autojump_clock: trio.testing.MockClock) -> None:
    """Who continues a response that is no longer the last one on its connection sends everything, on another one."""
    model = Model([TALK])
    async with upstream(model) as (behind, backend):
        fork = await turn(backend, first(), user("This way."))
        other = evolve(fork, context=ask([user("That way.")], context=fork.context.parent).context)
        await turn(backend, fork)
        kept = [fork, await turn(backend, other)]
        assert [types(each) for each in model.starts] == [["user"], ["user"], ["user", "assistant", "user"]]
        assert model.starts[2].request.previous_response_id is None
        assert len(behind.streams) == 2
        assert kept


async def test_a_connection_that_was_lost_is_made_again(autojump_clock: trio.testing.MockClock) -> None:
    """An upstream that hung up between two turns gets the whole conversation over a new connection."""
    model = Model([CALL, TALK])
    async with upstream(model) as (behind, backend):
        start = await turn(backend, first())
        await behind.streams[0].aclose()
        await turn(backend, start)
        assert conversation(model.starts[1]) == ["user", "function_call", "function_call_output"]
        assert model.starts[1].request.previous_response_id is None
        assert len(behind.streams) == 2


async def test_an_upstream_that_ends_old_connections(autojump_clock: trio.testing.MockClock) -> None:
    """An upstream's limit on a connection's age is not seen by anybody: the next turn has a new connection."""
    model = Model([CALL, TALK])
    settings = evolve(SETTINGS, limits=Limits(max_age_s=60.0))
    async with upstream(model, settings=settings) as (behind, backend):
        start = await turn(backend, first())
        await trio.sleep(61)
        await turn(backend, start)
        assert conversation(model.starts[1]) == ["user", "function_call", "function_call_output"]
        assert len(behind.streams) == 2


async def test_an_upstream_that_shuts_down(autojump_clock: trio.testing.MockClock) -> None:
    """An upstream that closes with 1001 while nobody asks is asked over a new connection the next time."""
    model = Model([CALL, TALK])
    async with upstream(model) as (behind, backend):
        start = await turn(backend, first())
        behind.server.shutdown.set()
        await trio.testing.wait_all_tasks_blocked()
        behind.server = Server(behind.server.nursery, model, SETTINGS)
        await turn(backend, start)
        assert conversation(model.starts[1]) == ["user", "function_call", "function_call_output"]


async def test_a_stored_chain_outlives_its_connection(autojump_clock: trio.testing.MockClock) -> None:
    """What the upstream stores can be continued over a new connection."""
    model = Model([CALL, TALK])
    async with upstream(model, upstream=upstream_named("turntape"), store=True) as (behind, backend):
        start = await turn(backend, first())
        await behind.streams[0].aclose()
        await turn(backend, start)
        assert types(model.starts[1]) == ["function_call_output"]


async def test_each_chain_in_use_has_its_connection(autojump_clock: trio.testing.MockClock) -> None:
    """Conversations do not push each other off their connections, and one that is over leaves its own to the next."""
    model = Model([TALK])
    async with upstream(model) as (behind, backend):
        one, two = await turn(backend, first("one"), user("on")), await turn(backend, first("two"), user("on"))
        one, two = await turn(backend, one), await turn(backend, two)
        assert [types(each) for each in model.starts[2:]] == [["user"], ["user"]]
        assert all(each.request.previous_response_id for each in model.starts[2:])
        assert len(behind.streams) == 2
        model.starts.clear()
        del one, two
        await turn(backend, first("three"))
        assert len(behind.streams) == 2


async def test_connections_are_bounded(autojump_clock: trio.testing.MockClock) -> None:
    """Past the bound a sample waits for another to end, and a chain that nobody uses gives its connection up."""
    slow = [(0, ()), (1.0, (Text("hello"), Finish()))]
    model = Model([slow])
    async with upstream(model, n_sockets=2) as (behind, backend):
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for n in range(4):
                nursery.start_soon(turn, backend, first(f"chain {n}"))
        assert trio.current_time() - began == pytest.approx(2.0)
        kept = [await turn(backend, first(f"chain {n}"), user("on")) for n in range(4)]
        assert text_of(await said(Playing(backend), kept[0])) == "hello"
        await trio.testing.wait_all_tasks_blocked()
        assert behind.server.service.n_open == 2


async def test_a_refusal_leaves_the_connection_as_it_was(autojump_clock: trio.testing.MockClock) -> None:
    """A request that the upstream refuses costs no connection, and what follows is sent in full."""
    refuse = ScriptedBackend(
        Script.parse(
            """
            [[rule]]
            times = 1
            when = { user_contains = "no" }
            say = [{ fail = "rate_limit_exceeded" }]
            [[rule]]
            say = [{ text = "hello" }]
            """
        )
    )
    async with upstream(refuse) as (behind, backend):
        start = await turn(backend, first(), user("no"))
        with pytest.raises(Exception, match="429"):
            await turn(backend, start)
        assert text_of(await said(Playing(backend), start)) == "hello"
        assert len(behind.streams) == 1


# --- over HTTP -------------------------------------------------------------------------------------------


async def test_over_http_a_stored_chain_sends_what_is_new(autojump_clock: trio.testing.MockClock) -> None:
    """An upstream that stores is continued over HTTP too, on one warm connection; one that does not gets it all."""
    for store, expected in (
        (True, ["function_call_output"]),
        (False, ["user", "function_call", "function_call_output"]),
    ):
        model = Model([CALL, TALK])
        async with upstream(model, "http", upstream=upstream_named("turntape"), store=store) as (behind, backend):
            await turn(backend, await turn(backend, first()))
            assert types(model.starts[1]) == expected
            assert len(behind.streams) == 1


async def test_a_response_that_was_forgotten_is_sent_in_full(autojump_clock: trio.testing.MockClock) -> None:
    """An upstream that does not find the response gets the whole conversation; its client sees nothing of it."""
    model = Model([CALL, TALK])
    async with upstream(model, "http", upstream=upstream_named("turntape"), store=True) as (behind, backend):
        start = await turn(backend, first())
        behind.server = Server(behind.server.nursery, model, SETTINGS, MemoryStore())
        await backend.client.aclose()
        await turn(backend, start)
        assert types(model.starts[1]) == ["user", "function_call", "function_call_output"]


async def test_an_upstream_that_never_continues_is_asked_once() -> None:
    """A server that refuses the field itself is not asked to continue again."""

    def script(request: dict[str, Any]) -> Reply:
        if "previous_response_id" in request:
            message = "llama.cpp does not support 'previous_response_id'."
            return refusing(400, {"error": {"code": 400, "message": message, "type": "invalid_request_error"}})(request)
        delta = {"type": "response.output_text.delta", "delta": "hello", "item_id": "msg_1"}
        return Reply([sse(delta, {"type": "response.completed", "response": {"id": f"resp_{len(server.requests)}"}})])

    async with trio.open_nursery() as nursery:
        server = ChatServer(nursery, script)
        client = HttpClient(Connections(connect=server.connect))
        row = Upstream("hopeful", stored=True)
        backend = ResponsesBackend("http://model.test/v1", client=client, upstream=row, store=True)
        start = first()
        for _ in range(3):
            start = await turn(backend, start, user("on"))
        assert ["previous_response_id" in each for each in server.requests] == [False, True, False, False]
        assert [len(each["input"]) for each in server.requests] == [1, 1, 3, 5]
        nursery.cancel_scope.cancel()


# --- the whole of two servers ----------------------------------------------------------------------------


async def agent(ws: WebSocket, tools: Sequence[dict[str, Any]]) -> list[str]:
    """A tool loop over one connection; what the model said and called, in order."""
    heard: list[str] = []
    items: Any = [user("Do the lab.")]
    previous: dict[str, str] = {}
    while items:
        body = {"type": "response.create", "model": "m", "store": False, "input": items, "tools": tools, **previous}
        await ws.send(masked(1, json.dumps(body).encode()))
        response = (await ws.until("response.completed"))[-1]["response"]
        previous = {"previous_response_id": response["id"]}
        items = []
        for item in response["output"]:
            said = (
                item.get("arguments")
                or item.get("input")
                or "".join(part["text"] for part in [*item.get("content", []), *item.get("summary", [])])
            )
            heard.append(f"{item['type']} {item.get('namespace') or ''} {item.get('name') or ''} {said}")
            if "call_id" in item:
                items.append({"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "done"})
    return heard


LAB_TOOLS = {
    "functions": [{**LOOKUP}, {**LOOKUP, "name": "add"}],
    "codex": [{**LOOKUP, "name": "exec_command"}, {"type": "custom", "name": "apply_patch"}],
    "code mode": [{"type": "custom", "name": "exec"}],
}


@pytest.mark.parametrize("tools", LAB_TOOLS.values(), ids=LAB_TOOLS)
@pytest.mark.parametrize("scheme", ["http", "ws"])
async def test_the_lab_through_two_servers(
    scheme: str, tools: list[dict[str, Any]], autojump_clock: trio.testing.MockClock
) -> None:
    """A whole agent loop through a second server is the same as against that server itself."""
    async with upstream(ScriptedBackend(Script.load(LAB)), scheme, upstream=upstream_named("turntape")) as (
        behind,
        backend,
    ):
        direct = await agent(await WebSocket.open(behind.server.connect(), authorization=f"Bearer {KEY}"), tools)
        through = await agent(await Server(behind.server.nursery, backend).websocket(), tools)
        assert through == direct
        assert "LAB-DONE" in through[-1]
        assert len(behind.streams) == 1


@pytest.mark.parametrize("scheme", ["http", "ws"])
async def test_over_real_sockets(scheme: str) -> None:
    """Two servers that reach each other over TCP; the one in front is asked over HTTP."""
    with trio.fail_after(20):
        async with listening(ScriptedBackend(Script.load(LAB))) as port:
            backend = ResponsesBackend(f"{scheme}://127.0.0.1:{port}/v1")
            async with listening(backend) as front:
                http = Http(await trio.open_tcp_stream("127.0.0.1", front))
                for _ in range(3):
                    reply = await http.post("hi")
                    assert reply.json["output"][0]["content"][0]["text"] == "LAB-DONE after 0 tool outputs."
                await backend.aclose()


async def test_over_tls() -> None:
    """A wss upstream is used as any other: a connection that has rested goes on."""
    authority, model = trustme.CA(), Model([CALL, CALL, TALK])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            service = Server(nursery, model).service
            plain: Any = await trio.open_tcp_listeners(0, host="127.0.0.1")
            port = plain[0].socket.getsockname()[1]
            listeners = [trio.SSLListener(each, context, https_compatible=True) for each in plain]
            nursery.start_soon(trio.serve_listeners, partial(serve_connection, service), listeners)
            client = HttpClient(Connections(ssl_context=trusting))
            backend = ResponsesBackend(f"wss://localhost:{port}/v1", client=client)
            start = first()
            for _ in range(3):
                start = await turn(backend, start)
                for _ in range(5):
                    await trio.testing.wait_all_tasks_blocked(0.01)
            assert [types(each) for each in model.starts] == [["user"], *[["function_call_output"]] * 2]
            assert service.n_open == 1
            await backend.aclose()
            nursery.cancel_scope.cancel()
