"""Unmodified agents with a real small model behind: in this server's process, and in a llama.cpp server that is asked by chat.

What the model says is nonsense. What is tested is everything around it.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import programs
import pytest
from codex_client import Workspace, run
from llama_server import llama_server
from running import Running, turntape

pytestmark = pytest.mark.clients

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
FORMAT: dict[str, Any] = {
    "type": "json_schema",
    "name": "weather",
    "schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "sunny": {"type": "boolean"}},
        "required": ["city", "sunny"],
        "additionalProperties": False,
    },
}

TRIMMED = (
    "features.multi_agent=false",
    "features.goals=false",
    "features.skill_search=false",
    "skills.include_instructions=false",
    'web_search="disabled"',
    "include_permissions_instructions=false",
)
"""What makes Codex's first request fit: 1,300 tokens and not 8,850, together with instructions of one's own."""


CUT = "Incomplete response returned, reason: max_output_tokens"
"""What Codex makes of an answer that a length limit ended: the turn has failed."""


@pytest.fixture(scope="module", params=["llama", "llamacpp"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with the small model behind it, in process or over chat completions; answers are short."""
    folder = tmp_path_factory.mktemp(request.param)
    with ExitStack() as stack:
        if request.param == "llama":
            backend = f"llama:{programs.model()}"
        else:
            backend = f"llamacpp+{stack.enter_context(llama_server())}"
        (folder / "turntape.toml").write_text(
            '[models."*"]\nmax-output-tokens = 40\ntemperature = 0\n[models.lab-model]\nmax-output-tokens = 300\n'
        )
        options = ("serve", "--backend", backend, "--store", "memory")
        yield stack.enter_context(turntape(*options, folder=folder, env={"PYTHONPATH": str(programs.llama())}))


def is_in_process(server: Running) -> bool:
    return "backend    llama:" in server.errors


def client_of(server: Running) -> openai.OpenAI:
    return openai.OpenAI(api_key="any", base_url=server.url, max_retries=0)


def test_agent_loop(server: Running) -> None:
    """An agent's loop runs over stored responses: a call, its output, an answer; later turns reuse what was computed."""
    client, model = client_of(server), "small"
    response = client.responses.create(
        model=model,
        input="What is the weather in Paris?",
        tools=[WEATHER],
        tool_choice="required",
        instructions="Be brief.",
    )
    cached = []
    for n in range(3):
        calls = [item for item in response.output if item.type == "function_call"]
        if is_in_process(server):  # llama.cpp's server does not hold this model's template to the choice
            assert [call.name for call in calls] == ["get_weather"]
            assert set(json.loads(calls[0].arguments)) == {"city"}
        new: list[Any] = [
            {"type": "function_call_output", "call_id": c.call_id, "output": f"{n} degrees"} for c in calls
        ]
        response = client.responses.create(
            model=model,
            input=new or "Go on.",
            previous_response_id=response.id,
            tools=[WEATHER],
            tool_choice="required" if n < 2 else "none",
            instructions="Be brief.",
        )
        assert response.usage is not None
        cached.append(response.usage.input_tokens_details.cached_tokens)
    assert response.output_text
    assert "<tool_call>" not in response.output_text
    assert cached == sorted(cached)
    assert cached[0] > 20


def test_structured_output_c74(server: Running) -> None:
    """A format is kept, whichever way the model is asked."""
    response = client_of(server).responses.create(model="small", input="Weather in Paris?", text={"format": FORMAT})  # type: ignore[call-overload]
    assert set(json.loads(response.output_text)) == {"city", "sunny"}


def test_overflow_c43(server: Running) -> None:
    """A conversation that is too long is refused in the words that agents look for; the next one is answered."""
    client = client_of(server)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="small", input="word " * 9000)
    assert caught.value.code == "context_length_exceeded"
    assert "8192" in caught.value.message
    assert client.responses.create(model="small", input="Say hello.").output_text


def test_stream_that_is_left(server: Running) -> None:
    """Who leaves a stream that has long to go does not keep the model busy: the next answer comes."""
    client = client_of(server)
    with client.responses.create(model="small", input="Tell a story.", max_output_tokens=6000, stream=True) as stream:
        next(event for event in stream if event.type == "response.output_text.delta")
    assert client.responses.create(model="small", input="Say hello.", timeout=60).output_text


def test_codex(server: Running, tmp_path: Path) -> None:
    """Codex, told to say little, has a model that reads its tools and answers, and finds nothing wrong with it."""
    workspace = Workspace(tmp_path / "work")
    instructions = tmp_path / "instructions.md"
    instructions.write_text("You are a coding agent. Be brief.\n")
    workspace.point_at(server.url)
    settings = [word for line in (*TRIMMED, f'model_instructions_file="{instructions}"') for word in ("-c", line)]
    ran = run([programs.codex(), "exec", "--json", "--skip-git-repo-check", *settings, "Say hello."], workspace)
    said = [complaint["message"] for complaint in ran.complaints if complaint["type"] == "error"]
    assert said in ([], [CUT]), ran.output + ran.errors  # this model rarely knows when to stop
    assert ran.code == len(said)
    assert ran.last_message
