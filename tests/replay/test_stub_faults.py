"""Faults as a client sees them on the wire: each once, then the true answer."""

import re
from typing import Any

import h11
import pytest
import trio
from serving import Server
from stubbed import places
from taped import Recording, user

from turntape.core.seam import Text
from turntape.replay.errors import ReplayError
from turntape.replay.fixture import Fixture
from turntape.replay.stub import FixtureBackend
from turntape.replay.stub_faults import KINDS, Fault

WORDS = ("one ", "two ", "three ", "four.")


def load(*faults: str, names: tuple[str, ...] = ("f.jsonl",)) -> FixtureBackend:
    """Two questions, of which the second has an answer of four words and an end, five increments."""
    recording = Recording()
    recording.client(seed="1" * 32).turn(user("first"), say=((Text("1"),),), tools=None)
    recording.client(seed="2" * 32).turn(user("hi"), say=tuple((Text(word),) for word in WORDS), tools=None)
    return FixtureBackend.load([Fixture.parse(recording.content, name=name) for name in names], faults=faults)


def serve(nursery: trio.Nursery, backend: FixtureBackend) -> Server:
    return Server(nursery, backend, new_session=backend.new_session)


def said(events: list[dict[str, Any]]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


async def check_true_answer(server: Server, backend: FixtureBackend) -> None:
    """What a client gets that comes back, and that all is well then."""
    ws = await server.websocket()
    await ws.create([user("hi")])
    assert said(await ws.until("response.completed")) == "".join(WORDS)
    assert not backend.misses
    assert all("fault" not in line for line in backend.unused())


async def test_a_drop_is_half_an_answer_and_a_dead_connection(nursery: trio.Nursery) -> None:
    """No close frame, no terminal event: the bytes end."""
    backend = load("2:drop")
    server = serve(nursery, backend)
    ws = await server.websocket()
    await ws.create([user("hi")])
    events: list[dict[str, Any]] = []
    with pytest.raises(EOFError):
        while True:
            events.append(await ws.event())
    assert said(events) == "one two "
    assert events[-1]["type"] == "response.output_text.delta"
    await check_true_answer(server, backend)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_drop_over_http_is_a_torn_body(nursery: trio.Nursery, stream: bool) -> None:
    """The body never ends as it should, or there is none; the connection does."""
    backend = load("2:drop")
    server = serve(nursery, backend)
    http = server.http()
    with pytest.raises(h11.RemoteProtocolError):
        await http.post([user("hi")], stream=stream)
    await check_true_answer(server, backend)


async def test_a_stall_says_nothing_more(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    """Not even the event that keeps a silent response alive; a client that gives up and returns is served."""
    backend = load("2:stall")
    server = serve(nursery, backend)
    ws = await server.websocket()
    await ws.create([user("hi")])
    events = [await ws.event()]
    while said(events) != "one two ":
        events.append(await ws.event())
    with trio.move_on_after(300) as patience:
        await ws.event()
    assert patience.cancelled_caught
    await ws.stream.aclose()
    await check_true_answer(server, backend)


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        ("429", 429, "rate_limit_exceeded"),
        ("429=7", 429, "rate_limit_exceeded"),
        ("not-found", 400, "previous_response_not_found"),
    ],
)
async def test_a_refusal_comes_in_place_of_the_answer(
    nursery: trio.Nursery, fault: str, status: int, code: str
) -> None:
    """An error frame on a socket that stays open, or an HTTP error; there is no response."""
    backend = load(f"2:{fault}", f"2:{fault}")
    server = serve(nursery, backend)
    ws = await server.websocket()
    await ws.create([user("hi")])
    error = await ws.event()
    assert (error["type"], error["status"], error["error"]["code"]) == ("error", status, code)
    reply = await server.http().post([user("hi")])
    assert (reply.status, reply.error["code"]) == (status, code)
    if status == 429:
        after = fault.partition("=")[2] or "1"
        assert error["headers"]["retry-after"] == reply.headers["retry-after"] == after
    await ws.create([user("hi")])
    assert said(await ws.until("response.completed")) == "".join(WORDS)
    assert not backend.misses


async def test_a_failure_comes_in_the_middle(nursery: trio.Nursery) -> None:
    """response.failed with the code that was asked for, after half of the answer."""
    backend = load("2:failed=rate_limit_exceeded")
    server = serve(nursery, backend)
    ws = await server.websocket()
    await ws.create([user("hi")])
    events = await ws.until("response.failed")
    assert said(events) == "one two "
    assert events[-1]["response"]["error"]["code"] == "rate_limit_exceeded"
    await check_true_answer(server, backend)


async def test_the_connection_limit_is_told_and_the_connection_closed(nursery: trio.Nursery) -> None:
    """As a connection of an hour's age ends; over HTTP, where there is none, only the error."""
    backend = load("2:limit", "2:limit")
    server = serve(nursery, backend)
    ws = await server.websocket()
    await ws.create([user("hi")])
    assert (await ws.event())["error"]["code"] == "websocket_connection_limit_reached"
    assert await ws.closed() == 1001
    assert (await server.http().post([user("hi")])).error["code"] == "websocket_connection_limit_reached"
    await check_true_answer(server, backend)


async def test_too_large_is_close_code_1009(nursery: trio.Nursery) -> None:
    """Nothing before it; over HTTP it is status 413."""
    backend = load("2:1009", "2:1009")
    server = serve(nursery, backend)
    ws = await server.websocket()
    await ws.create([user("hi")])
    opcode, payload = await ws.frame()
    assert (opcode, payload[:2]) == (8, (1009).to_bytes(2))
    assert (await server.http().post([user("hi")])).status == 413
    await check_true_answer(server, backend)


async def test_other_turns_and_lanes_are_left_alone(nursery: trio.Nursery) -> None:
    """A fault strikes its turn; a fault that never happened is told at the end."""
    backend = load("2:429")
    notes: list[str] = []
    backend.on_note = notes.append
    server = serve(nursery, backend)
    ws = await server.websocket()
    await ws.create([user("first")])
    assert said(await ws.until("response.completed")) == "1"
    assert backend.unused()[-1] == "fault 2:429: it never happened"
    await ws.create([user("hi")])
    assert (await ws.event())["type"] == "error"
    assert notes == [f"fault 2:429: at turn 2, {places(backend)[1]}"]


def test_a_fixture_is_named_where_there_are_several() -> None:
    """By its path or its file's name."""
    names = ("a/one.jsonl", "a/two.jsonl")
    for fault in ("two.jsonl:2:drop", "a/two.jsonl:2:drop"):
        [left] = load(fault, names=names).faults.left
        assert str(left) == fault
    with pytest.raises(
        ReplayError, match=re.escape("which fixture is meant? Write FIXTURE:TURN:KIND with one of a/one")
    ):
        load("2:drop", names=names)
    with pytest.raises(ReplayError, match="no such fixture"):
        load("three.jsonl:2:drop", names=names)


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("drop", "'drop' is none: write [FIXTURE:]TURN:KIND"),
        ("2:explode", "'2:explode' is none"),
        ("x:drop", "is none"),
        ("2:drop=1", "drop takes no value"),
        ("2:429=soon", "its value should be seconds"),
        ("2:failed=No!", "its value should be a code"),
        ("3:drop", "there is no turn 3 to play in f.jsonl; its turns are 1 to 2"),
        ("0:drop", "there is no turn 0"),
    ],
)
def test_a_fault_that_is_none_is_explained(fault: str, problem: str) -> None:
    with pytest.raises(ReplayError, match=re.escape(problem)):
        load(fault)


def test_faults_read_back_as_they_are_written() -> None:
    for kind in KINDS:
        assert str(Fault.parse(f"f.jsonl:12:{kind}")) == f"f.jsonl:12:{kind}"
    assert str(Fault.parse("1:429=2.5")) == "1:429=2.5"
