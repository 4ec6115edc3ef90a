"""Real backends, driven: what servers of each protocol are asked in forced mode, and what is made of their answers."""

from typing import Any

import chat_server
import orjson
import pytest
import trio
from attrs import define
from chat_server import ChatServer, Reply, Script, chunk, saying, sse, usage
from driven import calls, driven, memory_server, says
from serving import Model
from taped import Recording, output, user
from token_server import TokenServer, vocabulary

from turntape.core.seam import Text
from turntape.replay.drive.report import Report
from turntape.replay.drive.run import Settings
from turntape.replay.takes import takes
from turntape.transport.backends.base import Backend
from turntape.transport.backends.chat import ChatBackend
from turntape.transport.backends.responses import ResponsesBackend
from turntape.transport.backends.tokens import TokensBackend
from turntape.transport.http_client import HttpClient
from turntape.transport.http_connections import Connections

DESIGNS = ("create", "append", "http")
URL = "http://127.0.0.1:8000/v1"


def talk() -> Recording:
    """A call, an answer, another question and its answer, in an hour."""
    recording = Recording()
    client = recording.client()
    client.turn(user("List the files."), say=((Text("I look."), *calls("c1", '{"cmd":"ls"}')),))
    client.turn(output("c1", "a.txt"), say=((Text("One file: a.txt."),),))
    client.turn(user("And its size?"), say=((Text("Nine bytes."),),))
    return recording


def client_of(server: ChatServer) -> HttpClient:
    return HttpClient(Connections(connect=server.connect))


async def drive_chat(script: Script, design: str) -> tuple[Report, list[dict[str, Any]]]:
    async with trio.open_nursery() as nursery:
        server = ChatServer(nursery, script)
        backend = ChatBackend(URL, client=client_of(server))
        report = await driven(talk(), backend=backend, settings=Settings(design=design))
        nursery.cancel_scope.cancel()
    return report, server.requests


@pytest.mark.parametrize("design", DESIGNS)
async def test_a_chat_server_is_asked_with_the_recorded_messages(design: str) -> None:
    """Its own answers are nowhere in what it is asked later; what it says is judged, counted and timed."""
    counted = usage(100, 7, prompt_tokens_details={"cached_tokens": 64})
    report, requests = await drive_chat(
        saying(chunk(content="Never "), chunk(content="mind."), chunk("stop"), counted), design
    )
    texts = [[str(message.get("content")) for message in request["messages"]] for request in requests]
    assert texts == [
        ["List the files."],
        ["List the files.", "I look.", "a.txt"],
        ["List the files.", "I look.", "a.txt", "One file: a.txt.", "And its size?"],
    ]
    called, answered, last = report.verdicts.runs[0].turns
    assert (called.verdict, answered.verdict, last.verdict) == ("calls", "text", "text")
    timings = report.timings.runs[0]
    assert (timings.input_tokens, timings.cached_tokens, timings.output_tokens) == (300, 192, 21)


async def test_a_chat_server_that_fails_in_the_middle_is_a_verdict() -> None:
    """What it had said until then is compared too."""
    cut = Reply([sse(chunk(content="I look")), chat_server.CUT])
    report, requests = await drive_chat(lambda request: cut, "create")
    assert report.verdicts.counts == {"failed": 3} and len(requests) >= 3
    assert all(turn.failure is not None and turn.text.n_got == 6 for turn in report.verdicts.runs[0].turns)


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("kind", ["vllm", "sglang", "llamacpp"])
async def test_token_servers_find_the_recorded_prompt_again(kind: str, design: str) -> None:
    """What is sent as token ids begins with all of the previous prompt, so the server has it in its cache."""
    async with trio.open_nursery() as nursery:
        server = TokenServer(nursery, kind=kind)
        backend = TokensBackend(URL, client=client_of(server), tokenizer=vocabulary())
        report = await driven(talk(), backend=backend, settings=Settings(design=design))
        nursery.cancel_scope.cancel()
    assert [turn.verdict for turn in report.verdicts.runs[0].turns] == ["arguments", "text", "calls"]
    prompts = [server.decode(prompt) for prompt in server.prompts]
    assert "I look." in prompts[1] and "a.txt" in prompts[1] and "LAB-DONE" not in prompts[2]
    if kind != "llamacpp":  # which is asked for one token more in between
        shared = [n for n, before in zip(server.n_cached[1:], server.prompts, strict=False) if n < len(before) - 3]
        assert shared == []


@pytest.mark.parametrize("scheme", ["ws", "http"])
async def test_an_upstream_of_the_same_protocol_does_not_go_on_from_its_own_answer(scheme: str) -> None:
    """A chain at the upstream holds what it said itself; where that is not what was recorded it is not continued."""
    model = Model([says(Text("No idea."))])
    recording = talk()
    async with memory_server(model) as upstream:
        url = f"{scheme}://127.0.0.1/v1"
        backend: Backend = ResponsesBackend(url, client=upstream.client, store=scheme == "http")
        report = await driven(recording, backend=backend)
    assert report.verdicts.counts == {"text": 2, "calls": 1}
    assert [start.context.fold.key for start in model.starts] == [
        take.start.context.fold.key for take in takes(recording.fixture)
    ]


async def test_an_upstream_that_says_what_was_recorded_is_continued() -> None:
    """Only what is new goes over the wire then, as in real use."""
    model = Model([says(Text("Hi.")), says(Text("Bye."))])
    recording = Recording()
    client = recording.client()
    client.turn(user("Hello."), say=((Text("Hi."),),))
    client.turn(user("Good night."), say=((Text("Bye."),),))
    async with memory_server(model) as upstream:
        report = await driven(recording, backend=ResponsesBackend("ws://127.0.0.1/v1", client=upstream.client))
    assert report.verdicts.counts == {"equal": 2}
    assert model.starts[1].request.previous_response_id is not None


@define
class Echo(Model):
    """Says what it was asked last."""

    @trio.as_safe_channel
    async def sample(self, start: Any) -> Any:
        [*_, last] = start.context.items_after(None)
        yield says(Text(orjson.dumps(last.value).decode()))[1][1]  # type: ignore[index]


async def test_no_backend_and_no_recording_of_one_sees_the_marks_of_a_drive() -> None:
    """What a drive tells its own server stays between them."""
    report = await driven(talk(), backend=Echo())
    assert b'turntape_drive": 1' in report.encode() and report.encode().count(b"turntape_drive") == 1
