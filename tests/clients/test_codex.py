"""Codex 0.171.0, unmodified, works over WebSocket and HTTP, keeps its chain, and recovers from what goes wrong."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import codex_client
import programs
import pytest
from codex_client import Workspace, app_server, check_work_done, execute
from running import LAB, Running, turntape
from switching_proxy import switching_proxy
from wire import Connection, check_chain, check_numbering, connections

pytestmark = pytest.mark.clients


@pytest.fixture
def codex() -> Path:
    return programs.codex()


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "work")


@contextmanager
def recorded(folder: Path, *words: str) -> Iterator[tuple[Running, list[Connection]]]:
    """A server with the lab script; after the block the list holds what went over the wire."""
    seen: list[Connection] = []
    recordings = folder / "recordings"
    options = ("serve", "--backend", f"scripted:{LAB}", "--store", "memory", "--record", recordings)
    with turntape(*options, *words, folder=folder) as server:
        yield server, seen
        assert server.stop() == 0
    for path in recordings.iterdir():
        seen += connections(path)


def test_websocket_session(codex: Path, workspace: Workspace, tmp_path: Path) -> None:
    """C75: one socket, a warm-up, then only what is new on one chain of ids; the file is made."""
    with recorded(tmp_path / "server") as (server, seen):
        workspace.point_at(server.url)
        check_work_done(execute(codex, workspace), workspace)
    [connection] = seen
    assert connection.opened.transport == "websocket"
    warmup, first, *rest = connection.requests
    assert warmup.body["generate"] is False
    assert warmup.types == ["response.created", "response.in_progress", "response.completed"]
    assert "user" in first.input_types
    assert len(rest) == 2
    for request in rest:
        assert request.input_types in (["function_call_output"], ["custom_tool_call_output"])
    check_numbering(connection)
    check_chain(connection)


@pytest.mark.parametrize("refused", [True, False], ids=["426", "websocket not wanted"])
def test_http_session(codex: Path, workspace: Workspace, tmp_path: Path, refused: bool) -> None:
    """C76: refused with 426, or not asked for, the same session runs over HTTP with full input, and no complaint."""
    with recorded(tmp_path / "server", *["--no-websocket"] * refused) as (server, seen):
        workspace.point_at(server.url, websocket=refused)
        ran = execute(codex, workspace)
        if refused:  # Codex says that it falls back, and goes on
            assert ran.code == 0, ran.output
        else:
            check_work_done(ran, workspace)
    assert (workspace.repo / "hello.txt").read_text() == "hello from the lab\n"
    assert [connection.opened.transport for connection in seen] == ["sse"] * 3
    sizes = [len(connection.requests[0].body["input"]) for connection in seen]
    assert sizes == sorted(set(sizes))
    for connection in seen:
        assert "previous_response_id" not in connection.requests[0].body
        check_numbering(connection)


def test_several_turns_on_one_socket(codex: Path, workspace: Workspace, tmp_path: Path) -> None:
    """Three user turns of one process share a socket and a chain; each sends one user message."""
    with recorded(tmp_path / "server") as (server, seen):
        workspace.point_at(server.url)
        with app_server(codex, workspace) as agent:
            assert [agent.turn(f"Task {n}") for n in range(3)] == ["completed"] * 3
    [connection] = seen
    assert len(connection.requests) == 1 + 3 * 3
    assert [connection.requests[n].input_types for n in (4, 7)] == [["user"]] * 2
    check_numbering(connection)
    check_chain(connection)


def test_interrupt(codex: Path, workspace: Workspace, tmp_path: Path) -> None:
    """An interrupted turn is a dropped socket; the next turn comes on a new one, with its full input."""
    with recorded(tmp_path / "server") as (server, seen):
        workspace.point_at(server.url)
        with app_server(codex, workspace) as agent:
            assert agent.turn("LAB-SLOW task", interrupt=True) == "interrupted"
            assert agent.turn("Next task") == "completed"
    interrupted, following = seen
    assert interrupted.left is None
    assert "response.completed" not in interrupted.requests[-1].types
    assert "previous_response_id" not in following.requests[0].body
    assert following.requests[0].input_types.count("user") >= 2


def test_lost_chain(codex: Path, workspace: Workspace, tmp_path: Path) -> None:
    """C77: a chain that the server no longer has costs one reconnect with full input, and no complaint."""
    with recorded(tmp_path / "server") as (server, seen), switching_proxy(server.port, n_completed=2) as proxy:
        workspace.point_at(proxy.url)
        check_work_done(execute(codex, workspace), workspace)
        assert proxy.switched.is_set()
    before, lost, after = seen
    assert [request.types[-1] for request in before.requests] == ["response.completed"] * 2
    [refused] = lost.requests
    [error] = refused.events
    assert (error["type"], error["error"]["code"]) == ("error", "previous_response_not_found")
    assert "previous_response_id" not in after.requests[0].body
    assert len(after.requests[0].body["input"]) > 3
    check_numbering(after)
    check_chain(after)


def test_doctor(codex: Path, workspace: Workspace, tmp_path: Path) -> None:
    """Codex's own diagnosis finds the server reachable both ways."""
    with turntape("serve", "--store", "memory", folder=tmp_path / "server") as server:
        workspace.point_at(server.url)
        ran = codex_client.run([codex, "doctor", "--json"], workspace)
    checks = json.loads(ran.output)["checks"]
    for name in ("network.provider_reachability", "network.websocket_reachability"):
        assert checks[name]["status"] == "ok", checks[name]
