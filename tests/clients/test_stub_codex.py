"""Codex, unmodified, against a stub: it gets over the faults that it can get over, and does the recorded work all the same."""

import json
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import codex_client
import programs
import pytest
import trio
from codex_client import PROMPT, Ran, Workspace, app_server, check_work_done
from running import LAB, turntape

from turntape.core.seam import Arguments, Finish, StartSample, Text, ToolCall
from turntape.core.session import Session
from turntape.replay.recorder import Recorder, Tape
from turntape.transport.backends.base import Batch
from turntape.transport.memory_store import MemoryStore
from turntape.transport.server import ServerSettings, serve

pytestmark = pytest.mark.clients

SLOWLY = "LAB-SLOW, please."


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


def test_an_interrupted_turn(codex: Path, tmp_path: Path) -> None:
    """Recorded with an interrupt in the middle of an answer, and played to a Codex that is interrupted there too."""
    out = tmp_path / "out.jsonl"

    def talk(url: str, folder: Path) -> list[str]:
        workspace = Workspace(folder)
        workspace.point_at(url)
        with app_server(codex, workspace) as agent:
            return [agent.turn(SLOWLY, interrupt=True), agent.turn(PROMPT)]

    options = ("--out", out, "--store", "memory", "--backend", f"scripted:{LAB}")
    with turntape("record", *options, folder=tmp_path / "recorder") as server:
        assert talk(server.url, tmp_path / "one") == ["interrupted", "completed"]
        assert server.stop() == 0
    with turntape("stub", out, "--strict", folder=tmp_path / "stub") as stub:
        assert talk(stub.url, tmp_path / "two") == ["interrupted", "completed"]
        assert stub.stop() == 0, stub.errors


def test_resume(codex: Path, tmp_path: Path) -> None:
    """A second process goes on with the conversation of the first, on a socket of its own, and so it does on a stub."""

    def talk(url: str, folder: Path) -> None:
        workspace = Workspace(folder)
        workspace.point_at(url)
        check_work_done(codex_client.execute(codex, workspace), workspace)
        resumed = [codex, "exec", "resume", "--last", "--json", "--skip-git-repo-check", "And again, please."]
        check_work_done(codex_client.run(resumed, workspace), workspace)

    played(talk, tmp_path, f"scripted:{LAB}", n_turns=6)


def test_compaction(codex: Path, tmp_path: Path) -> None:
    """A conversation that is summarised half-way, and goes on from the summary."""
    head, mark, rest = LAB.read_text().partition("[[rule]]")
    steps = """{ call = "exec_command", arguments = { cmd = "echo first" } },
        { finish = "stop", usage = { input_tokens = 100000 } }"""
    script = tmp_path / "script.toml"
    script.write_text(f"{head}[[rule]]\nwhen = {{ outputs = 0 }}\ntimes = 1\nsay = [{steps}]\n\n{mark}{rest}")

    def talk(url: str, folder: Path) -> None:
        workspace = Workspace(folder)
        workspace.point_at(url, top="model_auto_compact_token_limit = 50000")
        check_work_done(codex_client.execute(codex, workspace), workspace)

    played(talk, tmp_path, f"scripted:{script}", n_turns=5)


def played(talk: Callable[[str, Path], None], folder: Path, backend: str, *, n_turns: int) -> None:
    """Record what ``talk`` does with a server in one place, and let it do the same with a stub in another."""
    out = folder / "out.jsonl"
    options = ("--out", out, "--store", "memory", "--backend", backend)
    with turntape("record", *options, folder=folder / "recorder") as server:
        talk(server.url, folder / "one")
        assert server.stop() == 0
    with turntape("stub", out, "--strict", folder=folder / "stub") as stub:
        talk(stub.url, folder / "two")
        assert stub.stop() == 0, stub.errors
        assert stub.errors.endswith(f"played {n_turns} of {n_turns} turns, 0 misses\n")


class Parent:
    """A model that sends out a sub-agent, waits for it by the id that it got, and repeats what it said."""

    models = ("lab-model",)

    @trio.as_safe_channel
    async def sample(self, start: StartSample) -> AsyncIterator[Batch]:
        yield ()
        items = start.context.items_after(None)
        outputs = [str(item.value["output"]) for item in items if item.closes_call]
        if "CHILD" in str([item.value for item in items if item.value.get("role") == "user"][-1]):
            yield Text("The child is well."), Finish()
        elif not outputs:
            yield self._call("spawn_agent", {"message": "CHILD: say how you are."})
        elif len(outputs) == 1:
            yield self._call("wait_agent", {"targets": [json.loads(outputs[0])["agent_id"]], "timeout_ms": 20000})
        else:
            yield Text(f"LAB-DONE: {'is well' if 'The child is well.' in outputs[1] else outputs[1]}"), Finish()

    def _call(self, name: str, arguments: dict[str, object]) -> Batch:
        call = ToolCall(f"call_{name}", name, namespace="multi_agent_v1")
        return call, Arguments(json.dumps(arguments)), Finish()

    async def aclose(self) -> None: ...


async def test_sub_agents(codex: Path, tmp_path: Path) -> None:
    """A sub-agent has a socket and an id of its own; a stub's calls name the live one, so that it is really waited for."""
    out = tmp_path / "out.jsonl"
    tape = Tape.create(out)

    def talk(url: str, folder: Path) -> str:
        workspace = Workspace(folder)
        workspace.point_at(url)
        ran = codex_client.execute(codex, workspace, "Ask a child how it is.")
        assert (ran.code, ran.complaints) == (0, [])
        return ran.last_message

    with trio.fail_after(codex_client.PATIENCE_S):
        async with trio.open_nursery() as nursery:
            settings = ServerSettings()
            port = await nursery.start(
                partial(
                    serve,
                    settings,
                    new_session=lambda: Recorder(Session(), tape),
                    backend=Parent(),
                    store=MemoryStore(),
                    shutdown=trio.Event(),
                )
            )
            said = await trio.to_thread.run_sync(talk, f"http://127.0.0.1:{port}/v1", tmp_path / "one")
            nursery.cancel_scope.cancel()
    tape.close()
    assert said == "LAB-DONE: is well"
    with turntape("stub", out, "--strict", folder=tmp_path / "stub") as stub:
        assert talk(stub.url, tmp_path / "two") == "LAB-DONE: is well"
        assert stub.stop() == 0, stub.errors
        assert stub.errors.endswith("played 4 of 4 turns, 0 misses\n")
