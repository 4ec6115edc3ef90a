"""Unmodified clients in front of a second Turntape: the first is a client of the same API itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import programs
import pytest
from codex_client import Workspace, check_work_done, execute
from running import LAB, Running, turntape
from wire import Connection, check_chain, check_numbering, connections

pytestmark = pytest.mark.clients


@contextmanager
def behind(folder: Path, scheme: str) -> Iterator[tuple[Running, list[Connection]]]:
    """A server in front of another with the lab script; after the block the list holds what the other one was asked."""
    seen: list[Connection] = []
    recordings = folder / "recordings"
    script = ("serve", "--backend", f"scripted:{LAB}", "--store", "memory", "--record", recordings)
    with turntape(*script, folder=folder / "upstream") as upstream:
        backend = f"responses+{scheme}://127.0.0.1:{upstream.port}/v1"
        options = ("serve", "--backend", backend, "--model", "lab-model", "--store", "memory")
        with turntape(*options, folder=folder / "server") as server:
            yield server, seen
            assert server.stop() == 0
        assert upstream.stop() == 0
    for path in recordings.iterdir():
        seen += connections(path)


def test_codex_over_a_websocket(tmp_path: Path) -> None:
    """Codex does its work; the model behind is asked over one WebSocket, for what is new, and has no warm-up to do."""
    workspace = Workspace(tmp_path / "work")
    with behind(tmp_path, "ws") as (server, seen):
        workspace.point_at(server.url)
        check_work_done(execute(programs.codex(), workspace), workspace)
    [connection] = seen
    assert connection.opened.transport == "websocket"
    check_numbering(connection)
    check_chain(connection)
    first, *rest = connection.requests
    assert "user" in first.input_types
    assert [request.input_types for request in rest] == [["function_call_output"]] * 2
    assert connection.left == 1000


def test_codex_over_http(tmp_path: Path) -> None:
    """Codex does its work; over HTTP the model behind gets the whole conversation with every turn."""
    workspace = Workspace(tmp_path / "work")
    with behind(tmp_path, "http") as (server, seen):
        workspace.point_at(server.url)
        check_work_done(execute(programs.codex(), workspace), workspace)
    assert [connection.opened.transport for connection in seen] == ["sse"] * 3
    lengths = [len(connection.requests[0].body["input"]) for connection in seen]
    assert lengths[1] - lengths[0] >= 2
    assert lengths[2] - lengths[1] == 2


@pytest.mark.parametrize("scheme", ["http", "ws"])
def test_openai_python(scheme: str, tmp_path: Path) -> None:
    """A request, streamed or not, is answered with what the model behind said, and with its counts."""
    with behind(tmp_path, scheme) as (server, seen):
        client = openai.OpenAI(api_key="any", base_url=server.url, max_retries=0)
        response = client.responses.create(model="lab-model", input="hello")
        assert response.output_text == "LAB-DONE after 0 tool outputs."
        with client.responses.stream(model="lab-model", input="hello") as stream:
            final = stream.get_final_response()
        assert final.output_text == response.output_text
        usages = {str(each.usage) for each in (response, final)}
        client.close()
    told = [request.events[-1]["response"]["usage"] for connection in seen for request in connection.requests]
    assert len(told) == 2 and len(usages) == 1
    assert response.usage is not None
    assert response.usage.output_tokens == told[0]["output_tokens"]
