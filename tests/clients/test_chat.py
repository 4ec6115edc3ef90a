"""Unmodified clients in front of a chat-completions server that knows nothing of responses, chains or WebSockets."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import programs
import pytest
from codex_client import Workspace, check_work_done, execute
from running import ROOT, turntape
from wire import check_chain, check_numbering, connections

pytestmark = pytest.mark.clients


@pytest.fixture
def upstream() -> Iterator[str]:
    """A chat-completions server with the lab script; the URL for --backend."""
    command = [sys.executable, str(ROOT / "tests" / "chat_server.py"), "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        word, port = process.stdout.readline().split()
        assert word == "READY"
        yield f"chat+http://127.0.0.1:{port}/v1"
    finally:
        process.kill()
        process.wait()


def test_codex(upstream: str, tmp_path: Path) -> None:
    """Codex does its work over one WebSocket, with a model behind that is asked by chat completions."""
    workspace, recordings = Workspace(tmp_path / "work"), tmp_path / "recordings"
    options = ("serve", "--backend", upstream, "--store", "memory", "--record", recordings)
    with turntape(*options, folder=tmp_path / "server") as server:
        workspace.point_at(server.url)
        check_work_done(execute(programs.codex(), workspace), workspace)
        assert server.stop() == 0
    [recording] = recordings.iterdir()
    [connection] = connections(recording)
    assert connection.opened.transport == "websocket"
    check_numbering(connection)
    check_chain(connection)


def test_openai_python(upstream: str, tmp_path: Path) -> None:
    """The model that --model names answers a request that names none, and is listed."""
    options = ("serve", "--backend", upstream, "--model", "lab-model", "--store", "memory")
    with turntape(*options, folder=tmp_path / "server") as server:
        client = openai.OpenAI(api_key="any", base_url=server.url, max_retries=0)
        assert [model.id for model in client.models.list().data] == ["lab-model"]
        response = client.responses.create(input="hello")
        assert (response.model, response.status) == ("lab-model", "completed")
        assert response.output_text.startswith("LAB-DONE")
        assert server.stop() == 0


def test_upstream_that_is_not_there(tmp_path: Path) -> None:
    """The client learns that the backend cannot be reached, and which; the server lives on."""
    options = ("serve", "--backend", "chat+http://127.0.0.1:9/v1", "--store", "memory")
    with turntape(*options, folder=tmp_path / "server", env={"TURNTAPE_BACKEND_KEY": "sk-test-upstream"}) as server:
        client = openai.OpenAI(api_key="any", base_url=server.url, max_retries=0)
        with pytest.raises(openai.InternalServerError) as caught:
            client.responses.create(model="m", input="hello")
        assert "127.0.0.1:9" in caught.value.message
        assert client.models.list().data == []
        assert server.stop() == 0
        assert "sk-test-upstream" not in server.errors + caught.value.message
