"""Codex, unmodified, against a stub: it gets over the faults that it can get over, and does the recorded work all the same."""

import json
import sys
from pathlib import Path

import codex_client
import programs
import pytest
from codex_client import PROMPT, Ran, Workspace, check_work_done
from running import LAB, turntape

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def codex() -> Path:
    return programs.codex()


@pytest.fixture(scope="module")
def recording(codex: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three turns of Codex: list the files, create one, done."""
    folder = tmp_path_factory.mktemp("recorded")
    workspace, out = Workspace(folder / "work"), folder / "session.jsonl"
    workspace.behave()
    options = ("--out", out, "--port", "0", "--store", "memory", "--backend", f"scripted:{LAB}")
    agent = [codex, "exec", "--json", "--skip-git-repo-check", PROMPT]
    ran = codex_client.run([sys.executable, "-m", "turntape", "record", *options, "--", *agent], workspace)
    check_work_done(ran, workspace)
    return out


def stubbed(
    codex: Path, folder: Path, recording: Path, *options: str | Path, prompt: str = PROMPT
) -> tuple[Ran, Workspace]:
    """Codex in a place of its own, started by ``turntape stub``."""
    workspace = Workspace(folder / "work")
    workspace.behave()
    agent = [codex, "exec", "--json", "--skip-git-repo-check", prompt]
    command = [sys.executable, "-m", "turntape", "stub", recording, *options, "--", *agent]
    return codex_client.run(command, workspace), workspace


@pytest.mark.parametrize("transport", ["--websocket", "--no-websocket"])
def test_stub_starts_codex(codex: Path, recording: Path, tmp_path: Path, transport: str) -> None:
    """With its configuration untouched and the recorded model; over either transport it does the recorded work."""
    ran, workspace = stubbed(codex, tmp_path, recording, "--strict", transport)
    check_work_done(ran, workspace)
    assert ran.errors.endswith("played 3 of 3 turns, 0 misses\n")
    assert sorted(path.name for path in workspace.home.glob("*.toml")) == ["config.toml"]


@pytest.mark.parametrize("fault", ["2:drop", "2:429=1", "2:failed", "2:not-found", "2:limit", "1:drop", "3:failed"])
def test_codex_gets_over_a_fault(codex: Path, recording: Path, tmp_path: Path, fault: str) -> None:
    """It connects again, or goes on over HTTP, asks with its whole history, and gets the true answer."""
    ran, workspace = stubbed(codex, tmp_path, recording, "--strict", "--fault", fault)
    check_work_done(ran, workspace)
    assert f"fault {fault}: at turn {fault[0]}, " in ran.errors
    assert ran.errors.endswith("played 3 of 3 turns, 0 misses\n")


def test_codex_goes_to_http_where_a_message_is_too_large(codex: Path, recording: Path, tmp_path: Path) -> None:
    """It says so to its user, and the rest of the recording is played by POSTs."""
    ran, workspace = stubbed(codex, tmp_path, recording, "--strict", "--fault", "2:1009")
    assert (ran.code, (workspace.repo / "hello.txt").exists()) == (0, True)
    [complaint] = ran.complaints
    assert "Falling back from WebSockets to HTTPS transport" in complaint["message"]
    assert ran.errors.endswith("played 3 of 3 turns, 0 misses\n")


def test_codex_gives_up_on_a_stalled_answer(codex: Path, recording: Path, tmp_path: Path) -> None:
    """After its own idle timeout, which a keepalive would have reset, it asks again."""
    workspace = Workspace(tmp_path / "work")
    with turntape(
        "stub", recording, "--strict", "--keepalive", "0.5", "--fault", "2:stall", folder=tmp_path / "stub"
    ) as stub:
        workspace.point_at(stub.url, more="stream_idle_timeout_ms = 2000")
        check_work_done(codex_client.execute(codex, workspace), workspace)
        assert stub.stop() == 0, stub.errors


def test_codex_tells_its_user_of_a_failure_it_cannot_get_over(codex: Path, recording: Path, tmp_path: Path) -> None:
    """Its own exit code is what the stub ends with."""
    ran, workspace = stubbed(codex, tmp_path, recording, "--fault", "2:failed=context_length_exceeded")
    assert ran.code == 1
    assert "context window" in ran.output
    assert not (workspace.repo / "hello.txt").exists()


def test_another_model_by_policy(codex: Path, recording: Path, tmp_path: Path) -> None:
    """Codex asks with the model of its user: a miss, unless the run says that the model does not count."""
    for n, (options, code) in enumerate((([], 1), (["--ignore", "model"], 0), (["--warn", "model"], 0))):
        workspace = Workspace(tmp_path / str(n))
        with turntape("stub", recording, *options, "--json", folder=tmp_path / f"stub-{n}") as stub:
            workspace.point_at(stub.url)
            config = workspace.home / "config.toml"
            config.write_text(config.read_text().replace('model = "lab-model"', 'model = "other-model"'))
            codex_client.execute(codex, workspace)
            assert stub.stop() == code, stub.errors
        result = json.loads(stub.output)
        assert bool(result["misses"]) == bool(code)
        assert len(result["warnings"]) == ("--warn" in options)
        if code:
            assert "it was recorded with model 'lab-model', not 'other-model'" in result["misses"][0]
