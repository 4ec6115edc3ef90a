"""The two Codex releases that spoke the append prototype still work: one create, then only response.append."""

from pathlib import Path

import programs
import pytest
from codex_client import APPEND, Workspace, check_work_done, execute
from running import LAB, turntape
from wire import connections

from turntape.replay.fixture import Fixture
from turntape.replay.verify import verify

pytestmark = pytest.mark.clients

TERMINALS = {"response.done", "response.completed", "response.failed", "response.incomplete", "error"}


@pytest.mark.parametrize(
    ("version", "git", "dialect", "terminals"),
    [
        # offered nothing in its handshake; continues by append after either terminal, echoing our items
        ("0.98.0", True, "legacy", ["response.completed"] * 3),
        ("0.98.0", False, "legacy", ["response.completed"] * 3),  # says even less about itself in a plain folder
        # offered the prototype, so one response stays open and each tool call parks it
        ("0.101.0", True, "append", ["response.done", "response.done", "response.completed"]),
    ],
)
def test_append_session(version: str, git: bool, dialect: str, terminals: list[str], tmp_path: Path) -> None:
    """C61: an append rollout with two tool calls runs on one socket, and the model sees each item once."""
    program = programs.codex(version)
    workspace, recordings = Workspace(tmp_path / "work", git), tmp_path / "recordings"
    options = ("serve", "--backend", f"scripted:{LAB}", "--store", "memory", "--record", recordings)
    with turntape(*options, folder=tmp_path / "server") as server:
        workspace.point_at(server.url, more=APPEND)
        ran = execute(program, workspace)
        assert server.stop() == 0
    check_work_done(ran, workspace)
    [recording] = recordings.iterdir()
    [connection] = connections(recording)
    assert connection.opened.dialect == dialect
    frames = [request.body["type"] for request in connection.requests]
    assert frames == ["response.create", "response.append", "response.append"]
    assert [kind for request in connection.requests for kind in request.types if kind in TERMINALS] == terminals
    ids = {
        event["response"]["id"] for request in connection.requests for event in request.events if "response" in event
    }
    assert len(ids) == (1 if dialect == "append" else 3)


@pytest.mark.parametrize("version", programs.CODEX_APPEND)
def test_append_session_replays(version: str, tmp_path: Path) -> None:
    """A recorded append rollout verifies, and a stub plays it to the same release in another folder."""
    program, recording = programs.codex(version), tmp_path / "session.jsonl"
    first, second = Workspace(tmp_path / "work"), Workspace(tmp_path / "elsewhere" / "deeper")
    options = ("record", "--out", recording, "--backend", f"scripted:{LAB}", "--store", "memory")
    with turntape(*options, folder=tmp_path / "server") as server:
        first.point_at(server.url, more=APPEND)
        check_work_done(execute(program, first), first)
        assert server.stop() == 0
    verify(Fixture.load(recording))
    with turntape("stub", recording, "--strict", folder=tmp_path / "stub") as stub:
        second.point_at(stub.url, more=APPEND)
        check_work_done(execute(program, second), second)
        assert stub.stop() == 0, stub.errors
