"""What a relay recorded of a real Codex answers another one, over either transport, with the same checks."""

import json
import sys
from pathlib import Path

import codex_client
import programs
import pytest
from codex_client import PROMPT, Workspace, check_work_done, execute
from running import LAB, turntape

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def codex() -> Path:
    return programs.codex()


@pytest.fixture(scope="module", params=["websocket", "http"])
def recording(codex: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A session of Codex, relayed to another server and recorded on the way, over a WebSocket or by POSTs."""
    folder = tmp_path_factory.mktemp("relayed")
    workspace, out = Workspace(folder / "work"), folder / "relay.jsonl"
    upstream = ["serve", "--port", "0", "--store", "memory", "--backend", f"scripted:{LAB}"]
    with turntape(*upstream, folder=folder / "upstream") as server:
        recorder = ["record", "--upstream", server.url, "--port", "0", "--out", out]
        if request.param == "http":
            with turntape(*recorder, folder=folder / "relay") as relay:
                workspace.point_at(relay.url, websocket=False)
                check_work_done(execute(codex, workspace), workspace)
                assert relay.stop() == 0, relay.errors
            return out
        workspace.behave()
        agent = [codex, "exec", "--json", "--skip-git-repo-check", "-c", 'model="lab-model"', PROMPT]
        ran = codex_client.run([sys.executable, "-m", "turntape", *recorder, "--", *agent], workspace)
        check_work_done(ran, workspace)
        assert ": 1 session, 3 turns, 2 tool calls" in ran.errors
    return out


def test_a_relay_recording_of_codex_verifies(recording: Path, tmp_path: Path) -> None:
    """Ladders, numbers and reconstruction hold, every turn can be replayed, and it says that this is no proof to the byte."""
    command = [sys.executable, "-m", "turntape", "verify", recording]
    ran = codex_client.run(command, Workspace(tmp_path / "work"))
    assert ran.code == 0, ran.errors
    assert "3 turns: ladders, numbering and reconstruction hold (not byte-exact" in ran.output
    assert "not replayable" not in ran.output


@pytest.mark.parametrize("websocket", [True, False], ids=["over websocket", "over http"])
def test_a_relay_recording_answers_another_codex(codex: Path, recording: Path, websocket: bool, tmp_path: Path) -> None:
    """In another folder and another home, whichever transport was recorded."""
    workspace = Workspace(tmp_path / "work")
    with turntape("stub", recording, "--strict", "--json", folder=tmp_path / "server") as stub:
        workspace.point_at(stub.url, websocket=websocket)
        check_work_done(execute(codex, workspace), workspace)
        assert stub.stop() == 0, stub.errors
    result = json.loads(stub.output)
    assert (result["n_turns"], result["n_played"], result["misses"]) == (3, 3, [])


def test_another_prompt_misses(codex: Path, recording: Path, tmp_path: Path) -> None:
    """The turn is named by its line in the relay's file, with both texts."""
    workspace = Workspace(tmp_path / "work")
    with turntape("stub", recording, folder=tmp_path / "server") as stub:
        workspace.point_at(stub.url)
        ran = execute(codex, workspace, prompt="List the files, then delete hello.txt.")
        assert stub.stop() == 1
    assert ran.code != 0
    for text in (f"{recording}:", PROMPT, "List the files, then delete hello.txt."):
        assert text in stub.errors
