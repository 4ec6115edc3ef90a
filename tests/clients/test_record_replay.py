"""A recorded Codex session is a test: it verifies, a stub plays it to Codex elsewhere, and any change is refused."""

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


@pytest.fixture(scope="module")
def recording(codex: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A session of Codex, started and recorded by ``turntape record``."""
    folder = tmp_path_factory.mktemp("recorded")
    workspace, out = Workspace(folder / "work"), folder / "session.jsonl"
    workspace.behave()
    server = ["--out", out, "--port", "0", "--store", "memory", "--backend", f"scripted:{LAB}"]
    agent = [codex, "exec", "--json", "--skip-git-repo-check", PROMPT]
    ran = codex_client.run([sys.executable, "-m", "turntape", "record", *server, "--", *agent], workspace)
    check_work_done(ran, workspace)
    assert f"recorded {out}: 1 session, 3 turns, 2 tool calls" in ran.errors
    assert sorted(path.name for path in workspace.home.glob("*.toml")) == ["config.toml"]
    assert (workspace.home / "config.toml").read_text() == codex_client.BEHAVIOUR
    return out


def turntape_says(*words: str | Path, folder: Path) -> codex_client.Ran:
    return codex_client.run([sys.executable, "-m", "turntape", *words], Workspace(folder))


def test_recording_verifies(recording: Path, tmp_path: Path) -> None:
    """A fresh core makes of the recorded events what the recording holds, and the transcript tells the story."""
    verified = turntape_says("verify", recording, folder=tmp_path / "1")
    assert verified.code == 0, verified.errors
    shown = turntape_says("show", recording, folder=tmp_path / "2")
    assert shown.code == 0
    assert [text for text in (PROMPT, "exec_command", "LAB-STEP-1", "LAB-DONE") if text not in shown.output] == []


def test_edited_recording_diverges(recording: Path, tmp_path: Path) -> None:
    """One changed word of the model's answer is found, with its line, and the exit code is 1."""
    edited = tmp_path / "edited.jsonl"
    lines = recording.read_text().splitlines(keepends=True)
    [number] = [n for n, line in enumerate(lines) if '"text":"DONE"' in line and '"Sampled"' in line]
    lines[number] = lines[number].replace('"text":"DONE"', '"text":"GONE"')
    edited.write_text("".join(lines))
    ran = turntape_says("verify", "--json", edited, folder=tmp_path / "work")
    assert ran.code == 1
    [result] = json.loads(ran.output)["fixtures"]
    assert (result["verified"], result["line"]) == (False, number + 1)


def test_stub_plays_to_codex_elsewhere(codex: Path, recording: Path, tmp_path: Path) -> None:
    """Codex in another folder, with another home, gets the recorded answers and does the same work."""
    workspace = Workspace(tmp_path / "elsewhere" / "deeper")
    with turntape("stub", recording, "--strict", "--json", folder=tmp_path / "server") as stub:
        workspace.point_at(stub.url)
        check_work_done(execute(codex, workspace), workspace)
        assert stub.stop() == 0, stub.errors
    lists = ("misses", "warnings", "unused", "not_replayable", "asked_elsewhere")
    assert json.loads(stub.output) == {"n_turns": 3, "n_played": 3, "n_runs": 1, **{name: [] for name in lists}}


def test_stub_plays_over_http(codex: Path, recording: Path, tmp_path: Path) -> None:
    """A client without WebSocket, which sends its full history each time, gets the same takes."""
    workspace = Workspace(tmp_path / "work")
    with turntape("stub", recording, "--strict", folder=tmp_path / "server") as stub:
        workspace.point_at(stub.url, websocket=False)
        check_work_done(execute(codex, workspace), workspace)
        assert stub.stop() == 0, stub.errors


def test_changed_prompt_misses(codex: Path, recording: Path, tmp_path: Path) -> None:
    """Another prompt has no recorded answer: Codex fails, and the stub names the turn, the place and both texts."""
    workspace = Workspace(tmp_path / "work")
    with turntape("stub", recording, folder=tmp_path / "server") as stub:
        workspace.point_at(stub.url)
        ran = execute(codex, workspace, prompt="List the files, then delete hello.txt.")
        assert stub.stop() == 1
    assert ran.code != 0
    assert "fixture_miss" in ran.output
    for text in (str(recording), PROMPT, "List the files, then delete hello.txt."):
        assert text in stub.errors
    assert not (workspace.repo / "hello.txt").exists()


def test_changed_tool_output_misses(codex: Path, recording: Path, tmp_path: Path) -> None:
    """A command that prints something else than was recorded is found at the turn that reports it."""
    workspace = Workspace(tmp_path / "work")
    (workspace.repo / "surprise.txt").write_text("not there when the session was recorded\n")
    with turntape("stub", recording, "--json", folder=tmp_path / "server") as stub:
        workspace.point_at(stub.url)
        ran = execute(codex, workspace)
        assert stub.stop() == 1
    assert ran.code != 0
    result = json.loads(stub.output)
    assert "surprise.txt" in result["misses"][0]
    assert len(result["unused"]) == 2


def test_second_chat_with_the_same_last_message_misses(codex: Path, recording: Path, tmp_path: Path) -> None:
    """Only the last message being the same is not enough: the whole conversation must be."""
    workspace = Workspace(tmp_path / "work")
    with turntape("stub", recording, folder=tmp_path / "server") as stub:
        workspace.point_at(stub.url)
        with codex_client.app_server(codex, workspace) as agent:
            assert agent.turn(PROMPT) == "completed"
            assert agent.turn(PROMPT) == "failed"
        assert stub.stop() == 1
    assert "miss: " in stub.errors


def test_agents_failure_is_passed_on(tmp_path: Path) -> None:
    """The exit code of ``record`` is the agent's, an SDK agent finds the server in its environment, and both are recorded."""
    script = (
        "import openai, sys\n"
        "answer = openai.OpenAI().responses.create(model='lab-model', input='hello')\n"
        "print(answer.output_text)\n"
        "sys.exit(7)\n"
    )
    out = tmp_path / "sdk.jsonl"
    server = ["--out", out, "--port", "0", "--store", "memory", "--backend", f"scripted:{LAB}"]
    command = [sys.executable, "-m", "turntape", "record", "--json", *server, "--", sys.executable, "-c", script]
    ran = codex_client.run(command, Workspace(tmp_path / "work"))
    assert ran.code == 7, ran.errors
    assert ran.output.startswith("LAB-DONE")
    said = json.loads(ran.errors.splitlines()[-1])
    assert (said["recording"], said["n_sessions"], said["n_turns"]) == (str(out), 1, 1)
