"""One run of Codex, recorded at this server and by a relay in front of it: both recordings tell, and play, the same."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import codex_client
import programs
import pytest
import trio
from codex_client import PROMPT, Workspace, app_server, check_work_done, execute
from running import LAB, turntape

from turntape.core.seam import Arguments, Finish, StartSample, Text, ToolCall
from turntape.core.session import Session
from turntape.replay.fixture import Fixture
from turntape.replay.golden import golden
from turntape.replay.recorder import Recorder, Tape
from turntape.replay.verify import verify
from turntape.transport.backends.base import Batch
from turntape.transport.memory_store import MemoryStore
from turntape.transport.server import ServerSettings, serve

pytestmark = pytest.mark.clients

Talk = Callable[[str, Path, bool], object]
"""What a user does with Codex: with the server at a URL, in a folder, over a WebSocket or over HTTP."""


@pytest.fixture(scope="module")
def codex() -> Path:
    return programs.codex()


@contextmanager
def relayed(url: str, folder: Path) -> Iterator[str]:
    """The URL of a relay in front of ``url``, which records until the block ends."""
    with turntape("record", "--upstream", url, "--out", folder / "relay.jsonl", folder=folder / "relay") as relay:
        yield relay.url
        assert relay.stop() == 0, relay.errors


def played(talk: Talk, folder: Path, backend: str, *, n_turns: int) -> None:
    """Record at both taps what ``talk`` does with ``backend``, and let it do the same with each recording."""
    options = ("--out", folder / "seam.jsonl", "--store", "memory", "--backend", backend)
    with turntape("record", *options, folder=folder / "recorder") as server:
        with relayed(server.url, folder) as url:
            said = talk(url, folder / "one", True)
        assert server.stop() == 0, server.errors
    play(talk, said, folder, n_turns=n_turns)


def play(talk: Talk, said: object, folder: Path, *, n_turns: int) -> None:
    """Both recordings hold and tell the same; one is played over a WebSocket, the other over HTTP, none of it left."""
    seam, relay = (Fixture.load(folder / f"{name}.jsonl") for name in ("seam", "relay"))
    assert [verify(each).not_replayable for each in (seam, relay)] == [(), ()]
    assert golden(seam) == golden(relay)
    for fixture, websocket in ((seam, True), (relay, False)):
        place = folder / f"websocket-{websocket}"
        with turntape("stub", fixture.name, "--strict", folder=place / "stub") as stub:
            assert talk(stub.url, place / "work" / "deeper", websocket) == said
            assert stub.stop() == 0, stub.errors
            assert stub.errors.endswith(f"played {n_turns} of {n_turns} turns, 0 misses\n")


def test_an_interrupted_turn(codex: Path, tmp_path: Path) -> None:
    """Interrupted in the middle of an answer, in the recording and in the replay; the conversation goes on from there."""

    def talk(url: str, folder: Path, websocket: bool) -> list[str]:
        workspace = Workspace(folder)
        workspace.point_at(url, websocket=websocket)
        with app_server(codex, workspace) as agent:
            return [agent.turn("LAB-SLOW, please.", interrupt=True), agent.turn(PROMPT), agent.turn("And again.")]

    played(talk, tmp_path, f"scripted:{LAB}", n_turns=6)


def test_resume(codex: Path, tmp_path: Path) -> None:
    """A second process goes on with the conversation of the first, on a socket of its own."""

    def talk(url: str, folder: Path, websocket: bool) -> None:
        workspace = Workspace(folder)
        workspace.point_at(url, websocket=websocket)
        check_work_done(execute(codex, workspace), workspace)
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

    def talk(url: str, folder: Path, websocket: bool) -> None:
        workspace = Workspace(folder)
        workspace.point_at(url, websocket=websocket, top="model_auto_compact_token_limit = 50000")
        check_work_done(execute(codex, workspace), workspace)

    played(talk, tmp_path, f"scripted:{script}", n_turns=5)


class Parent:
    """A model that sends out two sub-agents at once, waits for whichever ends first, then for the other, and counts."""

    models: tuple[str, ...] = ("lab-model",)

    @trio.as_safe_channel
    async def sample(self, start: StartSample) -> AsyncIterator[Batch]:
        yield ()
        items = start.context.items_after(None)
        outputs = [str(item.value["output"]) for item in items if item.closes_call]
        said = str([item.value for item in items if item.value.get("role") == "user"][-1])
        if "CHILD" in said:
            await trio.sleep(0.5 if outputs and "CHILD 2" in said else 0.0)  # so that who ends first is no chance
            yield (Text("I am well."), Finish()) if outputs else self._calls("exec_command", {"cmd": "echo works"})
        elif not outputs:
            children = ({"message": f"CHILD {n}: work, then say how you are."} for n in (1, 2))
            yield self._calls("spawn_agent", *children, namespace="multi_agent_v1")
        elif len(outputs) < 4:
            ended = json.loads(outputs[2])["status"] if outputs[2:] else ()
            targets = [child for output in outputs[:2] if (child := json.loads(output)["agent_id"]) not in ended]
            wait: dict[str, object] = {"targets": targets, "timeout_ms": 20000}
            yield self._calls("wait_agent", wait, namespace="multi_agent_v1")
        else:
            yield Text(f"LAB-DONE: {str(outputs).count('I am well.')} are well."), Finish()

    def _calls(self, name: str, *arguments: dict[str, object], namespace: str | None = None) -> Batch:
        calls = list[ToolCall | Arguments]()
        for n, each in enumerate(arguments):
            calls += [ToolCall(f"call_{name}_{n}", name, namespace=namespace), Arguments(json.dumps(each))]
        return (*calls, Finish())

    async def aclose(self) -> None: ...


async def test_sub_agents(codex: Path, tmp_path: Path) -> None:
    """Two at once, each with a socket and an id of its own; calls of a stub name the live ones, and the same ends first."""

    def talk(url: str, folder: Path, websocket: bool) -> str:
        workspace = Workspace(folder)
        workspace.point_at(url, websocket=websocket)
        ran = execute(codex, workspace, "Ask two children how they are.")
        assert (ran.code, ran.complaints) == (0, []), ran.output
        return ran.last_message

    def record(port: int) -> str:
        with relayed(f"http://127.0.0.1:{port}/v1", tmp_path) as url:
            return talk(url, tmp_path / "one", True)

    tape = Tape.create(tmp_path / "seam.jsonl")
    with trio.fail_after(codex_client.PATIENCE_S):
        async with trio.open_nursery() as nursery:
            server = partial(
                serve,
                ServerSettings(),
                new_session=lambda: Recorder(Session(), tape),
                backend=Parent(),
                store=MemoryStore(),
                shutdown=trio.Event(),
            )
            said = await trio.to_thread.run_sync(record, await nursery.start(server))
            nursery.cancel_scope.cancel()
    tape.close()
    assert said == "LAB-DONE: 2 are well."
    play(talk, said, tmp_path, n_turns=8)
