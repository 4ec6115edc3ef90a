"""Codex, unmodified, gets over what goes wrong in the middle of its work, and tells its user of what it cannot get over."""

from pathlib import Path

import programs
import pytest
from codex_client import Ran, Workspace, check_work_done, execute
from running import LAB, turntape
from wire import Connection, check_chain, check_numbering, connections

pytestmark = pytest.mark.clients


@pytest.fixture
def codex() -> Path:
    return programs.codex()


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "work")


def session(
    codex: Path, workspace: Workspace, steps: str, *words: str, outputs: int = 1, top: str = "", more: str = ""
) -> tuple[list[Connection], Ran]:
    """Let Codex do its work on a server where something comes between.

    Args:
        steps: what the model says, once, in place of what the lab script would.
        words: further options of the server.
        outputs: when: after so many tool outputs.
        top, more: of Codex's configuration, see ``Workspace.point_at``.
    """
    head, mark, rest = LAB.read_text().partition("[[rule]]")
    script = workspace.folder / "script.toml"
    script.write_text(f"{head}[[rule]]\nwhen = {{ outputs = {outputs} }}\ntimes = 1\nsay = [{steps}]\n\n{mark}{rest}")
    recordings = workspace.folder / "recordings"
    options = ("serve", "--backend", f"scripted:{script}", "--store", "memory", "--record", recordings)
    with turntape(*options, *words, folder=workspace.folder / "server") as server:
        workspace.point_at(server.url, top=top, more=more)
        ran = execute(codex, workspace)
        assert server.stop() == 0
    [recording] = recordings.iterdir()
    return connections(recording), ran


@pytest.mark.parametrize(
    ("say", "event", "code"),
    [
        ('{ fail = "rate_limit_exceeded", status = 429, retry_after = 1 }', "error", "rate_limit_exceeded"),
        ('{ fail = "server_error", status = 500 }', "error", "server_error"),
        ('{ text = "I was about to" }, { fail = "server_error" }', "response.failed", "server_error"),
        ('{ text = "I was about to" }, { cut = true }', "response.failed", "server_error"),
    ],
    ids=["429", "500", "failed", "cut"],
)
def test_recovers(codex: Path, workspace: Workspace, say: str, event: str, code: str) -> None:
    """C44: a refusal or a failure in mid-session costs one new socket with the full input; the work gets done."""
    seen, ran = session(codex, workspace, say)
    check_work_done(ran, workspace)
    failed, after = seen
    last = failed.requests[-1].events[-1]
    assert last["type"] == event
    assert (last["error"] if event == "error" else last["response"]["error"])["code"] == code
    if "429" in say:
        assert last["headers"]["retry-after"] == "1"
    assert "previous_response_id" not in after.requests[0].body
    assert "function_call_output" in after.requests[0].input_types
    check_numbering(after)
    check_chain(after)


def test_tells_the_user_what_cannot_be_helped(codex: Path, workspace: Workspace) -> None:
    """A conversation too long for the model fails the turn once, with a message of Codex's own for it."""
    seen, ran = session(codex, workspace, '{ fail = "context_length_exceeded", status = 400 }')
    assert ran.code != 0
    assert "context window" in ran.output
    assert len(seen) == 1


def test_keepalive(codex: Path, workspace: Workspace) -> None:
    """C45: while a model thinks for longer than Codex's patience, repeated events keep the turn and its socket alive."""
    steps = """{ summary = "**Waiting**" }, { pause = 4.0 },
        { call = "exec_command", arguments = { cmd = "echo hello from the lab > hello.txt" } }"""
    seen, ran = session(codex, workspace, steps, "--keepalive", "0.5", more="stream_idle_timeout_ms = 2000")
    check_work_done(ran, workspace)
    [connection] = seen
    assert max(request.types.count("response.in_progress") for request in connection.requests) > 4
    check_numbering(connection)
    check_chain(connection)


def test_compaction(codex: Path, workspace: Workspace) -> None:
    """C78: once the conversation is too long it is summarised on a socket of its own, and goes on from the summary."""
    steps = """{ call = "exec_command", arguments = { cmd = "echo first" } },
        { finish = "stop", usage = { input_tokens = 100000 } }"""
    seen, ran = session(codex, workspace, steps, outputs=0, top="model_auto_compact_token_limit = 50000")
    check_work_done(ran, workspace)
    main, summary = seen
    [asked] = summary.requests
    assert asked.body.get("previous_response_id") is None
    assert "function_call_output" in asked.input_types
    fresh = [n for n, request in enumerate(main.requests) if "previous_response_id" not in request.body]
    assert fresh == [0, 2]
    assert "function_call_output" not in main.requests[2].input_types
    check_numbering(main)
