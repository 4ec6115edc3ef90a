"""openai-python, unmodified: its WebSocket connection, its lanes and its HTTP calls, with typed results."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from attrs import define, field
from openai.lib.responses_websocket import (
    ResponsesWebSocketError,
    ResponsesWebSocketLimits,
    ResponsesWebSocketSession,
)
from running import LAB, turntape

pytestmark = pytest.mark.clients

KEY = "sk-test-openai"
NOWHERE = "http://127.0.0.1:9/v1"  # a port where nobody is
PROMPT = [{"role": "user", "content": "Look up the answer, then add 40 and 2."}]


def tool(name: str, **parameters: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in parameters.items()},
        "required": [*parameters],
        "additionalProperties": False,
    }
    return {"type": "function", "name": name, "description": name, "strict": True, "parameters": schema}


SETTINGS: dict[str, Any] = {
    "model": "lab-model",
    "tools": [tool("lookup", key="string"), tool("add", a="number", b="number")],
    "store": False,
    "instructions": "You are an agent under test.",
    "include": ["reasoning.encrypted_content"],
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("server")
    with turntape("serve", "--backend", f"scripted:{LAB}", "--store", "memory", folder=folder) as server:
        yield server.url
        assert server.stop() == 0


def outputs(items: Any) -> list[dict[str, Any]]:
    """What an agent answers to the calls among ``items``."""
    return [
        {
            "type": "function_call_output",
            "call_id": item.call_id,
            "output": "42" if item.name == "lookup" else str(sum(json.loads(item.arguments).values())),
        }
        for item in items
        if item.type == "function_call"
    ]


def calls(items: Any) -> list[str]:
    return [item.name for item in items if item.type == "function_call"]


@define
class Answer:
    """The events of one response, as the library typed them."""

    types: list[str] = field(factory=list)
    items: list[Any] = field(factory=list)
    text: str = ""
    final: Any = None

    def take(self, event: Any) -> bool:
        """Add one event; True once the response has ended."""
        self.types.append(event.type)
        if event.type == "response.output_item.done":
            self.items.append(event.item)
        elif event.type == "response.output_text.delta":
            self.text += event.delta
        elif event.type in ("response.completed", "response.failed", "response.incomplete", "error"):
            self.final = event.response
        return self.final is not None


def check_session(answers: list[Answer]) -> None:
    """Four answers of one chain: a call, two calls at once, a message, and the next user turn's first call."""
    for answer in answers:
        assert (answer.types[0], answer.types[-1]) == ("response.created", "response.completed")
        assert answer.final.status == "completed"
        assert answer.final.usage.total_tokens > 0
        assert [item.to_dict() for item in answer.final.output] == [item.to_dict() for item in answer.items]
    assert [calls(answer.items) for answer in answers] == [["lookup"], ["add", "lookup"], [], ["lookup"]]
    assert answers[2].text == answers[2].final.output_text == "LAB-DONE after 3 tool outputs."
    assert len({answer.final.id for answer in answers}) == 4
    assert [answer.final.previous_response_id for answer in answers] == [
        None,
        *(answer.final.id for answer in answers[:3]),
    ]


def next_request(answers: list[Answer]) -> dict[str, Any]:
    """The request that continues: tool outputs, or after the message another user turn."""
    if not answers:
        return {**SETTINGS, "input": PROMPT}
    new = outputs(answers[-1].items) or [{"role": "user", "content": "Again, please."}]
    return {**SETTINGS, "input": new, "previous_response_id": answers[-1].final.id}


def test_websocket(url: str) -> None:
    """C79: a tool session and a second user turn over one connection, each request with only what is new."""
    answers: list[Answer] = []
    with openai.OpenAI(api_key=KEY, base_url=url).responses.connect() as connection:
        for _ in range(4):
            connection.response.create(**next_request(answers))
            answers.append(Answer())
            for event in connection:
                if answers[-1].take(event):
                    break
    check_session(answers)


@pytest.mark.parametrize("only_websocket", [False, True], ids=["base_url", "websocket_base_url"])
def test_async_websocket(url: str, only_websocket: bool) -> None:
    """The same from the asynchronous client, which is the same with an address for WebSockets alone."""
    import asyncio  # not at the top: the tests of this project run on Trio, this client cannot

    where = (
        {"base_url": NOWHERE, "websocket_base_url": url.replace("http", "ws")} if only_websocket else {"base_url": url}
    )
    answers: list[Answer] = []

    async def session() -> None:
        async with openai.AsyncOpenAI(api_key=KEY, **where).responses.connect() as connection:  # type: ignore[arg-type]
            for _ in range(4):
                await connection.response.create(**next_request(answers))
                answers.append(Answer())
                async for event in connection:
                    if answers[-1].take(event):
                        break

    asyncio.run(session())
    check_session(answers)


def test_lanes(url: str) -> None:
    """Three lanes share a socket: a lane forks from another's response, and an error stays in its own."""
    limits = ResponsesWebSocketLimits(
        max_lanes=8, max_events_per_lane=5000, max_events=20000, max_bytes_per_lane=1 << 24, max_bytes=1 << 26
    )

    def create(**more: Any) -> Any:
        return {"type": "response.create", "model": "lab-model", "store": False, **more}

    client = openai.OpenAI(api_key=KEY, base_url=url)
    with client.responses.connect() as connection, ResponsesWebSocketSession(connection, limits=limits) as session:
        one, two, fork = session.lane("one"), session.lane("two.2"), session.lane("fork")
        one.send(create(input="A", tools=SETTINGS["tools"]))
        two.send(create(input="B"))
        session.default.send(create(input="C"))
        asked = one.get_final_response(timeout=30)
        assert calls(asked.output) == ["lookup"]
        assert two.get_final_response(timeout=30).output_text
        assert session.default.get_final_response(timeout=30).output_text

        answer = create(input=outputs(asked.output), tools=SETTINGS["tools"], previous_response_id=asked.id)
        one.send(answer)
        fork.send(answer)
        for lane in (fork, one):
            assert calls(lane.get_final_response(timeout=30).output) == ["add", "lookup"]

        two.send(create(input="D", previous_response_id="resp_unknown"))
        with pytest.raises(ResponsesWebSocketError) as caught:
            two.get_final_response(timeout=30)
        error = caught.value.event
        assert (error.error.code, error.stream_id, error.status) == ("previous_response_not_found", "two.2", 400)
        two.send(create(input="E"))
        assert two.get_final_response(timeout=30).output_text


def create_json(client: openai.OpenAI, settings: dict[str, Any]) -> Any:
    return client.responses.create(**settings)


def create_stream(client: openai.OpenAI, settings: dict[str, Any]) -> Any:
    answer = Answer()
    for number, event in enumerate(client.responses.create(stream=True, **settings)):
        assert event.sequence_number == number
        answer.take(event)
    assert (answer.types[0], answer.types[-1]) == ("response.created", "response.completed")
    return answer.final


def stream_helper(client: openai.OpenAI, settings: dict[str, Any]) -> Any:
    with client.responses.stream(**settings) as stream:
        for _ in stream:
            pass
        return stream.get_final_response()


@pytest.mark.parametrize("ask", [create_json, create_stream, stream_helper])
def test_http(url: str, ask: Callable[[openai.OpenAI, dict[str, Any]], Any]) -> None:
    """A tool session over HTTP that sends its full history each time, reasoning included."""
    client = openai.OpenAI(api_key=KEY, base_url=url, max_retries=0)
    history: list[Any] = [*PROMPT]
    asked = []
    for _ in range(3):
        response = ask(client, {**SETTINGS, "input": history})
        assert response.status == "completed"
        assert response.usage.total_tokens > 0
        asked.append(calls(response.output))
        history += [item.to_dict() for item in response.output] + outputs(response.output)
    assert asked == [["lookup"], ["add", "lookup"], []]
    assert response.output_text == "LAB-DONE after 3 tool outputs."


def test_stored_response(url: str) -> None:
    """A stored response can be fetched, listed by its input, continued over HTTP, and deleted."""
    client = openai.OpenAI(api_key=KEY, base_url=url, max_retries=0)
    first = client.responses.create(model="lab-model", input="Remember this.", store=True)
    assert client.responses.retrieve(first.id).output_text == first.output_text
    [item] = client.responses.input_items.list(first.id).data
    assert item.to_dict()["content"] == [{"type": "input_text", "text": "Remember this."}]
    second = client.responses.create(model="lab-model", input="And?", previous_response_id=first.id, store=True)
    assert second.previous_response_id == first.id
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_models(url: str) -> None:
    """The script's models are listed, and an unknown one is not found."""
    client = openai.OpenAI(api_key=KEY, base_url=url, max_retries=0)
    assert [model.id for model in client.models.list().data] == ["lab-model"]
    assert client.models.retrieve("lab-model").id == "lab-model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nowhere")


def test_refusals_are_typed(tmp_path: Path) -> None:
    """A wrong key and a wrong request raise the library's own errors, with code and parameter."""
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY}\n")
    keys.chmod(0o600)
    with turntape("serve", "--store", "memory", "--key-file", keys, folder=tmp_path / "server") as server:
        with pytest.raises(openai.AuthenticationError) as wrong_key:
            openai.OpenAI(api_key="sk-other", base_url=server.url, max_retries=0).models.list()
        assert wrong_key.value.code == "invalid_api_key"
        client = openai.OpenAI(api_key=KEY, base_url=server.url, max_retries=0)
        with pytest.raises(openai.BadRequestError) as wrong_input:
            client.responses.create(model="m", input=[{"role": "user", "content": 5}])  # type: ignore[list-item]
        assert wrong_input.value.param is not None
        assert wrong_input.value.param.startswith("input[0]")
        assert server.stop() == 0
        assert KEY not in server.errors
