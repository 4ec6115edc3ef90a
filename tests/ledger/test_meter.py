"""What a server writes down of each response: all of it over memory streams, in virtual time."""

import json
from typing import Any

import pytest
import trio
import trio.testing
from attrs import define, field
from serving import Model, Server, endless, masked

from turntape.core.seam import Arguments, Finish, Text, ToolCall, Usage
from turntape.transport.backends.base import BackendError
from turntape.transport.ledger.meter import PRODUCT
from turntape.transport.ledger.record import UsageRecord
from turntape.transport.memory_store import MemoryStore
from turntape.transport.router import ANY, Route, Router, RouteTable, Upstream
from turntape.transport.store import StoreError

COUNTED = Usage(input_tokens=100, output_tokens=20, cached_tokens=60, reasoning_tokens=5)
APPEND = {"openai_beta": "responses_websockets=2026-02-04"}


@define
class Kept:
    """A ledger in memory."""

    records: list[UsageRecord] = field(factory=list)

    def put(self, record: UsageRecord) -> None:
        self.records.append(record)


def metered(nursery: trio.Nursery, backend: Any, **settings: Any) -> tuple[Server, list[UsageRecord]]:
    server, kept = Server(nursery, backend, **settings), Kept()
    server.service.ledger = kept
    return server, kept.records


def calling(name: str = "f") -> list[Any]:
    """A sample that wants the output of one call."""
    call = (ToolCall(f"call_{name}", name), Arguments("{}"))
    return [(1, ()), (1, call), (1, (Finish(usage=COUNTED),))]


def saying(usage: Usage | None = COUNTED) -> list[Any]:
    return [(0.5, ()), (1.5, (Text("hello"),)), (2, (Finish(usage=usage),))]


def appended(call_id: str, **lane: str) -> bytes:
    output = {"type": "function_call_output", "call_id": call_id, "output": "ok"}
    return masked(1, json.dumps({"type": "response.append", "input": [output], **lane}).encode())


async def test_a_record_says_what_was_used_when_and_by_whom(nursery, autojump_clock):
    """Counts as the backend has them, the time to the first token and in all, the client, and no text of it."""
    server, records = metered(nursery, Model([saying()]))
    ws = await server.websocket(user_agent="agent/1")
    await ws.create("secret words")
    ended = (await ws.until("response.completed"))[-1]["response"]
    [record] = records
    assert (record.response_id, record.model, record.status, record.error) == (ended["id"], "m", "completed", None)
    assert (record.transport, record.dialect, record.agent) == ("websocket", "current", "agent/1")
    counts = (record.input_tokens, record.cached_tokens, record.output_tokens, record.reasoning_tokens)
    assert (*counts, record.estimated, record.uncounted) == (100, 60, 20, 5, False, 0)
    assert (record.ttft_s, record.sampling_s, record.duration_s) == (2.0, 4.0, 4.0)
    assert (record.responses, record.samples) == (1, 1)
    assert "secret" not in repr(record) and "hello" not in repr(record)


async def test_what_a_backend_does_not_count_is_what_its_client_was_told(nursery, autojump_clock):
    """An estimate is marked as one and equals the usage of the response, stored or not."""
    server, records = metered(nursery, Model([saying(None)]))
    http = server.http()
    for store in (False, True):
        usage = (await http.post(store=store)).json["usage"]
        record = records.pop()
        assert record.estimated and record.transport == "json"
        assert (record.input_tokens, record.output_tokens) == (usage["input_tokens"], usage["output_tokens"])
        assert record.input_tokens and record.output_tokens


async def test_an_appended_response_is_one_record_at_its_end(nursery, autojump_clock):
    """A rollout of three samples is routed three times and written down once, with the sum; nothing before its end."""
    server, records = metered(nursery, Model([calling("f"), calling("g"), saying()]))
    ws = await server.websocket(**APPEND)
    await ws.create(stream_id="lane")
    for name in ("f", "g"):
        await ws.until("response.done")
        assert records == []
        await trio.sleep(10)  # the tool
        await ws.send(appended(f"call_{name}", stream_id="lane"))
    ended = (await ws.until("response.completed"))[-1]["response"]
    [record] = records
    assert record.response_id == ended["id"]
    assert (record.samples, record.input_tokens, record.output_tokens) == (3, 300, 60)
    assert (record.ttft_s, record.sampling_s, record.duration_s) == (2.0, 10.0, 30.0)


async def test_a_stored_rollout_is_saved_once(nursery, autojump_clock):
    """Appending writes nothing to the store or to the ledger before the end, and then once to each."""

    class Counting(MemoryStore):
        n_saves = 0

        async def save(self, record: Any) -> None:
            self.n_saves += 1
            await super().save(record)

    store = Counting()
    server, records = metered(nursery, Model([calling(), saying()]), store=store)
    ws = await server.websocket(**APPEND)
    await ws.create(store=True)
    await ws.until("response.done")
    assert (store.n_saves, len(records)) == (0, 0)
    await ws.send(appended("call_f"))
    await ws.until("response.completed")
    assert (store.n_saves, len(records)) == (1, 1)


async def test_a_parked_response_that_is_left_is_written_down_as_cancelled(nursery, autojump_clock):
    """What its samples used counts, whether another create or the client's end leaves it; a warm-up is no record."""
    server, records = metered(nursery, Model([calling("f"), calling("g")]))
    ws = await server.websocket(**APPEND)
    await ws.create()
    first = (await ws.until("response.done"))[-1]["response"]["id"]
    await ws.create(generate=False)
    await ws.until("response.completed")
    await ws.create()
    second = (await ws.until("response.done"))[-1]["response"]["id"]
    [record] = records
    assert (record.response_id, record.status, record.input_tokens) == (first, "cancelled", 100)
    await ws.stream.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert [(each.response_id, each.input_tokens) for each in records] == [(first, 100), (second, 100)]


async def test_a_refused_append_ends_its_response(nursery, autojump_clock):
    """The response that waited is failed, with the code that the client is told, and its samples count."""
    server, records = metered(nursery, Model([calling()]))
    ws = await server.websocket(**APPEND)
    await ws.create()
    await ws.until("response.done")
    await ws.send(appended("call_nobody_made"))
    failed = (await ws.until("response.failed"))[-1]["response"]
    [record] = records
    assert (record.response_id, record.status, record.error) == (failed["id"], "failed", failed["error"]["code"])
    assert (record.samples, record.uncounted, record.input_tokens) == (1, 0, 100)


async def test_a_refusal_meanwhile_does_not_end_a_response(nursery, autojump_clock):
    """A create that waited and is refused while a response runs on its lane leaves that one's record to its end."""
    server, records = metered(nursery, Model([saying()]))
    ws = await server.websocket(**APPEND)
    await ws.create()
    await ws.until("response.in_progress")
    await ws.create()
    await trio.testing.wait_all_tasks_blocked()
    server.shutdown.set()
    await ws.until("response.failed")
    assert records == []
    await ws.until("response.completed")
    assert [record.status for record in records] == ["completed"]


async def test_what_breaks_off_is_written_down_as_uncounted(nursery, autojump_clock):
    """A refusal, a failure half-way and a client that leaves are records; what they used is not made up."""
    refused = BackendError("Come back later.", code="rate_limit_exceeded", status=429)
    broken = [(0, ()), (1, (Text("hel"),)), BackendError("It broke.", code="server_error")]
    server, records = metered(nursery, Model([[refused], broken, endless(pause_s=1)]))
    ws = await server.websocket()
    await ws.create()
    await ws.until("error")
    await ws.create()
    failed = (await ws.until("response.failed"))[-1]["response"]["id"]
    await ws.create()
    await ws.until("response.output_text.delta")
    await ws.stream.aclose()
    await trio.testing.wait_all_tasks_blocked()
    said = [(each.status, each.error, each.uncounted, each.input_tokens) for each in records]
    assert said == [
        ("failed", "rate_limit_exceeded", 1, 0),
        ("failed", "server_error", 1, 0),
        ("cancelled", None, 1, 0),
    ]
    assert [each.response_id for each in records[:2]] == ["", failed]
    assert records[0].ttft_s is None and records[1].ttft_s == 1.0


async def test_a_response_that_cannot_be_stored_is_failed_and_counted(nursery, autojump_clock):
    """The backend was paid for it."""

    class Full(MemoryStore):
        async def save(self, record: Any) -> None:
            raise StoreError("The disk is full.")

    server, records = metered(nursery, Model([saying()]), store=Full())
    ws = await server.websocket()
    await ws.create(store=True)
    failed = (await ws.until("response.failed"))[-1]["response"]
    [record] = records
    assert (record.response_id, record.status, record.error) == (failed["id"], "failed", "server_error")
    assert (record.input_tokens, record.uncounted) == (100, 0)


async def test_a_store_that_fails_another_request_ends_nothing(nursery, autojump_clock):
    """A create whose parent cannot be read leaves the response that was parked before it as cancelled, not as failed."""

    class Unreadable(MemoryStore):
        async def load(self, *args: Any) -> None:
            raise StoreError("The disk is gone.")

    server, records = metered(nursery, Model([calling()]), store=Unreadable())
    ws = await server.websocket(**APPEND)
    await ws.create()
    await ws.until("response.done")
    await ws.create(previous_response_id="resp_other")
    await ws.until("response.failed")
    await ws.stream.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert [(record.status, record.error) for record in records] == [("cancelled", None)]


async def test_lanes_are_told_apart(nursery, autojump_clock):
    """Two lanes at once are two records, each with its own counts."""
    less = Usage(input_tokens=1, output_tokens=2)
    server, records = metered(nursery, Model([saying(), saying(less)]))
    ws = await server.websocket()
    ids = {}
    for lane in ("a", "b"):
        await ws.create(stream_id=lane)
    while len(ids) < 2:
        [*_, ended] = await ws.until("response.completed")
        ids[ended["response"]["id"]] = ended["response"]["usage"]["input_tokens"]
    assert {each.response_id: each.input_tokens for each in records} == ids
    assert sorted(ids.values()) == [1, 100]


async def test_the_record_names_the_backend_that_answered(nursery, autojump_clock):
    """Not the one that was down; and the name that it knows the model by."""
    down = Model([[BackendError("It is down.", status=502)]])
    fallback = Route(name="f", upstream=Upstream("second", Model([saying()])), model="its-name")
    route = Route(name=ANY, upstream=Upstream("first", down), fallbacks=(fallback,))
    server, records = metered(nursery, Router(RouteTable({ANY: route}, ())))
    ws = await server.websocket()
    await ws.create(model="asked")
    await ws.until("response.completed")
    [record] = records
    assert (record.model, record.backend, record.upstream_model) == ("asked", "second", "its-name")


@pytest.mark.parametrize(
    ("user_agent", "agent"),
    [
        ("codex_exec/0.171.0 (Debian 12.0.0; x86_64) dumb", "codex_exec/0.171.0"),
        ("OpenAI/Python 3.57.0", "OpenAI/Python 3.57.0"),
        ("a/1 sk-proj-0123456789abcdefghij", "a/1"),
        ("a/sk-proj-0123456789abcdefghijklmnop", ""),
        ("", ""),
    ],
)
def test_of_a_user_agent_only_the_program_and_its_version_are_kept(user_agent: str, agent: str) -> None:
    """Whatever stands behind them may be a key."""
    found = PRODUCT.match(user_agent)
    assert (found[0] if found else "") == agent
