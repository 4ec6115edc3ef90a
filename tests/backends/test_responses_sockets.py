"""What a Responses server can answer over a WebSocket, and what becomes of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from backends.cases import ask, failure, said, served, text_of
from backends.rig import Playing
from backends.socket_server import Answer, SocketServer, completed, error
from backends.test_responses_chains import first, turn, user

from turntape.core.seam import Encrypted
from turntape.transport.backends.responses import ResponsesBackend
from turntape.transport.backends.responses_upstreams import upstream_named
from turntape.transport.http_client import HttpClient
from turntape.transport.http_connections import Connections


@asynccontextmanager
async def answering(*answers: Answer, **fields: Any) -> AsyncIterator[tuple[SocketServer, ResponsesBackend]]:
    async with trio.open_nursery() as nursery:
        server = SocketServer(nursery, [*answers])
        client = HttpClient(Connections(connect=server.connect))
        backend = ResponsesBackend("ws://model.test/v1", "hunter2", client=client, **fields)
        yield server, backend
        await backend.aclose()
        nursery.cancel_scope.cancel()


async def test_only_what_a_socket_takes_is_sent() -> None:
    """A request is the create of the API, with what the client set and nothing else."""
    async with answering(completed()) as (server, backend):
        assert text_of(await said(Playing(backend), ask("hi", metadata={"a": "b"}, user="u"))) == "hello"
        content = [{"type": "input_text", "text": "hi"}]
        message = {"type": "message", "role": "user", "content": content}
        assert server.requests == [(1, {"type": "response.create", "model": "m", "store": False, "input": [message]})]


async def test_a_socket_that_was_opened_ahead_is_used() -> None:
    """The first conversation finds it, whatever its handshake cost."""
    async with answering(completed()) as (server, backend):
        await backend.warm()
        assert (server.n_connections, server.requests) == (1, [])
        assert text_of(await said(Playing(backend), ask("hi"))) == "hello"
        assert [number for number, _ in server.requests] == [1]


async def test_an_aged_connection_is_replaced() -> None:
    """An upstream that takes nothing more on a connection gets the whole conversation on a new one."""
    limit = [error(400, "websocket_connection_limit_reached")]
    async with answering(completed(), limit, completed("again", "resp_2")) as (server, backend):
        start = await turn(backend, first(), user("on"))
        assert text_of(await said(Playing(backend), start)) == "again"
        assert [number for number, _ in server.requests] == [1, 1, 2]
        assert server.requests[1][1]["previous_response_id"] == "resp_1"
        assert "previous_response_id" not in server.requests[2][1]
        assert len(server.requests[2][1]["input"]) == 3


async def test_a_lost_response_is_sent_in_full_on_the_same_connection() -> None:
    """A response that the upstream does not find costs one more message."""
    lost = [error(400, "previous_response_not_found")]
    async with answering(completed(), lost, completed("again", "resp_2"), completed()) as (server, backend):
        start = await turn(backend, first(), user("on"))
        start = await turn(backend, start, user("and on"))
        await said(Playing(backend), start)
        assert [(number, each.get("previous_response_id")) for number, each in server.requests] == [
            (1, None),
            (1, "resp_1"),
            (1, None),
            (1, "resp_2"),
        ]


async def test_what_was_refused_is_sent_in_full() -> None:
    """An upstream that refuses a turn has dropped the response before it (the API's own rule)."""
    refused = [error(429, "rate_limit_exceeded")]
    async with answering(completed(), refused, completed("again", "resp_2")) as (server, backend):
        start = await turn(backend, first(), user("on"))
        await failure(Playing(backend), start)
        assert text_of(await said(Playing(backend), start)) == "again"
        assert [each.get("previous_response_id") for _, each in server.requests] == [None, "resp_1", None]


async def test_an_upstream_that_forgets_everything_fails_at_last() -> None:
    """An upstream that will not have full input either is not asked for ever."""
    lost = [error(400, "previous_response_not_found")]
    async with answering(completed(), lost) as (server, backend):
        start = await turn(backend, first(), user("on"))
        _, caught = await failure(Playing(backend), start)
        assert caught.status == 400
        assert len(server.requests) == 3


async def test_a_new_connection_that_is_closed_is_a_failure() -> None:
    """A server that hangs up on a new connection is not asked again and again."""
    async with answering([1011]) as (server, backend):
        _, caught = await failure(Playing(backend))
        assert (caught.code, caught.status) == ("server_error", 502)
        assert "model.test" in str(caught) and "1011" in str(caught)
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    "event",
    [
        error(429, "rate_limit_exceeded", headers={"Retry-After": "7"}),
        error(None, "rate_limit_exceeded", headers={"retry-after": 7}),
        {"type": "error", "code": "rate_limit_exceeded", "message": "no", "headers": {"retry-after": "7"}},
        {"type": "error", "status": 429, "error": {"message": "no", "headers": {"retry-after": "7"}}},
    ],
)
async def test_errors_of_every_shape(event: dict[str, Any]) -> None:
    """Nested or flat, with a status or only a code: it is a rate limit, with when to come back."""
    async with answering([event], completed()) as (server, backend):
        _, caught = await failure(Playing(backend))
        assert (caught.code, caught.status, caught.retry_after) == ("rate_limit_exceeded", 429, "7")
        assert text_of(await said(Playing(backend))) == "hello"
        assert server.n_connections == 1


@pytest.mark.parametrize("event", ["nonsense", "[]"])
async def test_nonsense_ends_the_connection(event: str) -> None:
    """Who talks nonsense is out of step: the next request has a new connection."""
    async with answering([event], completed()) as (server, backend):
        _, caught = await failure(Playing(backend))
        assert caught.status == 502
        assert text_of(await said(Playing(backend))) == "hello"
        assert server.n_connections == 2


async def test_encrypted_reasoning_goes_back_unchanged() -> None:
    """What the upstream encrypted is the client's to keep, and returns as it was, without ids of ours."""
    reasoning = {"id": "rs_9", "type": "reasoning", "summary": [], "encrypted_content": "gAAAA-opaque", "status": None}
    answers = [completed("hello", "resp_1", reasoning), completed()]
    async with answering(*answers, upstream=upstream_named("openai")) as (server, backend):
        include = {"include": ["reasoning.encrypted_content"]}
        increments = await said(Playing(backend), ask("hi", **include))
        assert [i.content for i in increments if isinstance(i, Encrypted)] == ["gAAAA-opaque"]
        assert server.requests[0][1]["include"] == ["reasoning.encrypted_content"]
        ours = {"id": "rs_1", "type": "reasoning", "status": "completed", "summary": [], "content": []}
        items = [user("hi"), {**ours, "encrypted_content": "gAAAA-opaque"}, user("on")]
        await said(Playing(backend), ask(items, **include))
        back = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA-opaque"}
        assert server.requests[1][1]["input"][1] == back


async def test_reasoning_that_an_upstream_cannot_read_is_left_out() -> None:
    """What this server encoded itself, or has in clear, is not sent to one that only takes its own."""
    items = [
        user("hi"),
        {"type": "reasoning", "summary": [], "encrypted_content": "turntape-reasoning-1.e30="},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "in clear"}]},
    ]
    for row, n_items in (("openai", 1), ("turntape", 2)):
        async with answering(completed(), upstream=upstream_named(row)) as (server, backend):
            await said(Playing(backend), ask(items))
            assert len(server.requests[0][1]["input"]) == n_items


async def test_encrypted_reasoning_through_a_whole_server() -> None:
    """A client that asks for it gets the upstream's own text on the reasoning item; a chain that moves carries it on."""
    reasoning = {"id": "rs_9", "type": "reasoning", "summary": [], "encrypted_content": "gAAAA-opaque"}
    lost = [error(400, "previous_response_not_found")]
    answers = [completed("hello", "resp_1", reasoning), lost, completed()]
    async with (
        answering(*answers, upstream=upstream_named("openai")) as (server, backend),
        served(Playing(backend)) as ws,
    ):
        await ws.create(include=["reasoning.encrypted_content"])
        response = (await ws.until("response.completed"))[-1]["response"]
        assert [item.get("encrypted_content") for item in response["output"]] == ["gAAAA-opaque", None]
        await ws.create("on", previous_response_id=response["id"], include=["reasoning.encrypted_content"])
        await ws.until("response.completed")
        chained, full = (each for _, each in server.requests[1:])
        assert [item.get("role") for item in chained["input"]] == ["user"]
        assert [item.get("role", item["type"]) for item in full["input"]] == ["user", "reasoning", "assistant", "user"]
        assert full["input"][1]["encrypted_content"] == "gAAAA-opaque"
