"""Unmodified clients in front of a server that takes nothing but token ids, with gpt-oss's own format."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import programs
import pytest
from codex_client import Workspace, check_work_done, execute
from llama_server import llama_server
from running import ROOT, turntape
from token_server import KINDS
from wire import check_chain, check_numbering, connections

pytestmark = pytest.mark.clients


@contextmanager
def upstream(kind: str) -> Iterator[str]:
    """A token server with the lab script; the URL for --backend."""
    command = [sys.executable, str(ROOT / "tests" / "token_server.py"), "0", kind]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        word, port = process.stdout.readline().split()
        assert word == "READY"
        yield f"tokens+http://127.0.0.1:{port}/v1"
    finally:
        process.kill()
        process.wait()


def test_codex(tmp_path: Path) -> None:
    """Codex does its work over one WebSocket, with its tools and instructions rendered in harmony."""
    workspace, recordings = Workspace(tmp_path / "work"), tmp_path / "recordings"
    with upstream("vllm") as backend:
        options = ("serve", "--backend", backend, "--store", "memory", "--record", recordings)
        with turntape(*options, folder=tmp_path / "server") as server:
            workspace.point_at(server.url)
            check_work_done(execute(programs.codex(), workspace), workspace)
            assert server.stop() == 0
    [recording] = recordings.iterdir()
    [connection] = connections(recording)
    assert connection.opened.transport == "websocket"
    check_numbering(connection)
    check_chain(connection)


@pytest.mark.parametrize("kind", KINDS)
def test_openai_python(kind: str, tmp_path: Path) -> None:
    """A tool loop by previous_response_id: each turn reuses the prompt of the one before, says the usage."""
    tool: dict[str, object] = {"type": "function", "name": "lookup", "strict": False}
    tool["parameters"] = {"type": "object", "properties": {"key": {"type": "string"}}}
    with upstream(kind) as backend:
        options = ("serve", "--backend", backend, "--store", "memory")
        with turntape(*options, folder=tmp_path / "server") as server:
            client = openai.OpenAI(api_key="any", base_url=server.url, max_retries=0)
            first = client.responses.create(model="gpt-oss-20b", input="Go.", tools=[tool])  # type: ignore[list-item]
            reasoning, call = first.output
            assert (reasoning.type, call.type) == ("reasoning", "function_call")
            output = {"type": "function_call_output", "call_id": call.call_id, "output": "42"}
            second = client.responses.create(
                model="gpt-oss-20b",
                input=[output],  # type: ignore[list-item]
                previous_response_id=first.id,
                tools=[tool],  # type: ignore[list-item]
            )
            assert second.output_text.startswith("LAB-DONE")
            assert first.usage is not None
            assert second.usage is not None
            reused = second.usage.input_tokens_details.cached_tokens
            assert reused + 1 >= first.usage.input_tokens + first.usage.output_tokens
            assert server.stop() == 0


def test_openai_python_and_a_real_llama_cpp(tmp_path: Path) -> None:
    """A loop with a call that a real small model samples, over its own template: nonsense maybe, and the wire is right."""
    tool: dict[str, object] = {"type": "function", "name": "add", "strict": True}
    numbers = {"a": {"type": "integer"}, "b": {"type": "integer"}}
    tool["parameters"] = {
        "type": "object",
        "properties": numbers,
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    with llama_server(n_ctx=4096) as url:
        options = ("serve", "--backend", f"tokens+{url}", "--store", "memory")
        with turntape(*options, folder=tmp_path / "server") as server:
            client = openai.OpenAI(api_key="any", base_url=server.url, max_retries=0)
            first = client.responses.create(
                model="any",
                input="Add 2 and 3.",
                tools=[tool],  # type: ignore[list-item]
                tool_choice="required",
                max_output_tokens=100,
            )
            [call] = first.output
            assert call.type == "function_call"
            assert json.loads(call.arguments).keys() == {"a", "b"}
            output = {"type": "function_call_output", "call_id": call.call_id, "output": "5"}
            second = client.responses.create(
                model="any",
                input=[output],  # type: ignore[list-item]
                previous_response_id=first.id,
                tools=[tool],  # type: ignore[list-item]
                max_output_tokens=20,
            )
            assert second.output
            assert first.usage is not None
            assert second.usage is not None
            assert second.usage.input_tokens_details.cached_tokens + 1 >= first.usage.input_tokens
            assert server.stop() == 0
