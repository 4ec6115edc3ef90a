"""A stub plays what a relay recorded: to a WebSocket as to HTTP, and back to whoever was refused."""

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import trio
from relayed import RelayFile, call
from serving import Server
from stubbed import refused
from taped import TOOLS, live, output, user

from turntape.core.seam import Text
from turntape.replay.drive.course import Course
from turntape.replay.exporting import workload
from turntape.replay.reconstruction import not_replayable
from turntape.replay.show import transcript
from turntape.replay.stub import FixtureBackend
from turntape.replay.takes import takes

SAID = "Two files."


def recording(over: str) -> RelayFile:
    """A turn with a tool call and the one after it, relayed over a socket or as two POSTs with the whole history."""
    file = RelayFile()
    if over == "websocket":
        one = file.socket()
        one.turn(user("List."), say=[call("call_1", '{"c":1}')])
        one.turn(output("call_1", "a b"), say=[(Text("Two "), Text("files."))])
        return file
    first = file.post({"model": "m", "stream": True, "store": False, "tools": TOOLS, "input": [user("List.")]})
    first.say(call("call_1", '{"c":1}'))
    first.gone("client")
    called = {"type": "function_call", "call_id": "call_1", "name": "sh", "arguments": '{"c":1}', "id": "fc_9"}
    history = [user("List."), called, output("call_1", "a b")]
    second = file.post({"model": "m", "stream": True, "store": False, "tools": TOOLS, "input": history})
    second.say((Text("Two "), Text("files.")))
    second.gone("client")
    return file


@pytest.fixture(params=["websocket", "http"])
async def stub(request: pytest.FixtureRequest, nursery: trio.Nursery) -> AsyncIterator[tuple[Server, FixtureBackend]]:
    backend = FixtureBackend.load([recording(request.param).fixture])
    server = Server(nursery, backend)
    yield server, backend
    server.shutdown.set()


FIELDS: dict[str, Any] = {"model": "m", "store": False, "tools": TOOLS}


async def test_a_relay_recording_is_played_over_a_websocket(stub: tuple[Server, FixtureBackend]) -> None:
    """The client continues by ids of the stub's own, and is told what the upstream told."""
    server, backend = stub
    socket = await server.websocket()
    await socket.create([user("List.")], **FIELDS)
    events = await socket.until("response.completed")
    response = events[-1]["response"]
    [asked] = response["output"]
    assert (asked["name"], asked["call_id"], asked["arguments"]) == ("sh", "call_1", '{"c":1}')
    await socket.create([output("call_1", "a b")], previous_response_id=response["id"], **FIELDS)
    events = await socket.until("response.completed")
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == SAID
    assert [event["delta"] for event in events if event["type"] == "response.output_text.delta"] == ["Two ", "files."]
    assert (backend.n_played, backend.misses, backend.unused()) == (2, [], [])


async def test_a_relay_recording_is_played_over_http(stub: tuple[Server, FixtureBackend]) -> None:
    """The client sends its whole history each time."""
    server, backend = stub
    body = {**FIELDS, "input": [user("List.")]}
    reply = await server.http().ask("POST", "/v1/responses", orjson.dumps(body))
    [asked] = reply.json["output"]
    body["input"] = [user("List."), asked, output("call_1", "a b")]
    reply = await server.http().ask("POST", "/v1/responses", orjson.dumps({**body, "stream": True}))
    assert reply.events[-1]["response"]["output"][0]["content"][0]["text"] == SAID
    assert (backend.n_played, backend.misses, backend.unused()) == (2, [], [])


async def test_another_question_is_a_miss_at_its_line(stub: tuple[Server, FixtureBackend]) -> None:
    """The nearest turn is named by the line of the client's message in the relay's file."""
    server, backend = stub
    reply = await server.http().ask("POST", "/v1/responses", orjson.dumps({**FIELDS, "input": [user("Delete.")]}))
    assert reply.status == 400 and reply.error["code"] == "fixture_miss"
    assert "relay.jsonl:" in backend.misses[0]


async def test_a_refusal_is_played_and_then_what_came_after(nursery: trio.Nursery) -> None:
    """The client is refused as it was, and its next try is answered."""
    file = RelayFile()
    one = file.socket()
    one.ask(user("Hi"))
    one.fail("rate_limit_exceeded", "Slow down.", 429, retry_after="7")
    one.turn(user("Hi"), say=[(Text("Hello."),)], follow=False)
    server = Server(nursery, FixtureBackend.load([file.fixture]))
    socket = await server.websocket()
    await socket.create([user("Hi")], **FIELDS)
    error = await socket.event()
    assert (error["status"], error["error"]["code"], error["headers"]) == (
        429,
        "rate_limit_exceeded",
        {"retry-after": "7"},
    )
    await socket.create([user("Hi")], **FIELDS)
    assert (await socket.until("response.completed"))[-1]["response"]["output"][0]["content"][0]["text"] == "Hello."
    server.shutdown.set()


def test_a_relay_recording_is_shown() -> None:
    """With its session, its turns and what was said."""
    shown = transcript(recording("websocket").fixture)
    assert "  WebSocket  relayed to https://api.example.com/v1  " in shown and "not replayable" not in shown
    assert [text for text in ("1 session", "2 turns", "List.", "sh", "a b", SAID) if text not in shown] == []


async def test_an_answer_that_could_not_be_read_is_never_played_as_a_failure() -> None:
    """Its turn is unfinished and named wherever a recording is looked at; who asks it hears of a miss, at once."""
    file = RelayFile()
    one = file.socket()
    one.ask(user("A"))
    file.lines = [line for line in file.lines if "up" not in line]
    one.up({"type": "response.created", "response": {"id": "resp_of_theirs_000000001", "status": "in_progress"}})
    call = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": 7, "arguments": "{}"}
    one.up({"type": "response.completed", "response": {"id": "resp_of_theirs_000000001", "output": [call]}})
    one.turn(user("B"), say=((Text(SAID),),), follow=False)
    unread, read = takes(file.fixture)
    assert (unread.unheard, unread.whole, unread.failure) == (True, False, None) and read.whole
    [lost] = not_replayable(file.fixture)
    assert lost.line == unread.line and "cannot be read" in lost.problem
    assert f"not replayable:\n  {lost}\n" in transcript(file.fixture)
    assert workload([file.fixture]).not_replayable == [f"relay.jsonl:{lost.line}: {lost.problem}"]
    assert [(one.where, one.reason) for one in Course.of(file.fixture).left_out] == [(unread.where, lost.problem)]
    backend = FixtureBackend.load([file.fixture])
    assert backend.n_takes == 1
    with trio.fail_after(5):
        error = await refused(backend, live().ask(user("A")))
    assert "whose answer could not be read when it was recorded: it is not replayable" in str(error)
