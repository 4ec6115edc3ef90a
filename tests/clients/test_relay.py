"""Unmodified agents through a relay to another server: they notice nothing, and what passed can be read again."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import codex_client
import programs
import pytest
import websockets.sync.client as websockets
from codex_client import PROMPT, Workspace, check_work_done, execute
from running import LAB, Running, turntape

from turntape.replay.fixture import Fixture
from turntape.replay.verify import verify

pytestmark = pytest.mark.clients

KEY = "sk-live-0123456789abcdefghijklmnopqrstuv"


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Running]:
    """A server that knows nothing of the relay."""
    with turntape("serve", "--backend", f"scripted:{LAB}", "--store", "memory", folder=tmp_path / "upstream") as server:
        yield server


@pytest.fixture
def relay(upstream: Running, tmp_path: Path) -> Iterator[Running]:
    """``turntape record --upstream``, without an agent."""
    with turntape("record", "--upstream", upstream.url, "--out", "out.jsonl", folder=tmp_path / "relay") as relay:
        yield relay


@pytest.mark.parametrize("setting", ["on", "auto"])
def test_codex_compresses_where_the_server_lets_it(setting: str, tmp_path: Path) -> None:
    """Codex works with compressed messages, which pass a relay and are recorded in clear; here `auto` accepts none."""
    words = ("serve", "--backend", f"scripted:{LAB}", "--store", "memory", "--compression", setting)
    with turntape(*words, folder=tmp_path / "upstream") as upstream:
        relaying = ("record", "--upstream", upstream.url, "--out", "out.jsonl")
        with turntape(*relaying, folder=tmp_path / "relay") as relay:
            workspace = Workspace(tmp_path / "work")
            workspace.point_at(relay.url)
            check_work_done(execute(programs.codex(), workspace), workspace)
            lines = recorded(relay)
    [answer] = [line for line in lines if "answer" in line]
    assert answer["status"] == 101
    agreed = answer["headers"].get("sec-websocket-extensions")
    assert agreed == ("permessage-deflate" if setting == "on" else None)
    assert verify(Fixture.load(out_of(relay))).n_relayed_turns == 3


def recorded(relay: Running) -> list[dict[str, Any]]:
    """Stop the relay; give the lines of its recording."""
    assert relay.stop() == 0, relay.errors
    return [json.loads(line) for line in out_of(relay).read_text().splitlines()[1:]]


def out_of(relay: Running) -> Path:
    return relay.log.parent / "out.jsonl"


@pytest.mark.parametrize("websocket", [True, False])
def test_codex_works_through_a_relay(websocket: bool, relay: Running, tmp_path: Path) -> None:
    """Codex does its work over either transport, and its session verifies, with the turns and calls that it had."""
    workspace = Workspace(tmp_path / "work")
    workspace.point_at(relay.url, websocket=websocket)
    check_work_done(execute(programs.codex(), workspace), workspace)
    lines = recorded(relay)
    sessions = [line for line in lines if "relay" in line]
    assert {line["transport"] for line in sessions} == {"websocket" if websocket else "http"}
    assert {tuple(line["rules"]) for line in sessions} == {("codex",)}
    assert "3 turns, 2 tool calls" in relay.errors
    assert not [line for line in lines if "unread" in line]
    assert codex_client.KEY not in out_of(relay).read_text()
    assert verify(Fixture.load(out_of(relay))).n_relayed_turns == 3


@pytest.mark.parametrize("websocket", ["--websocket", "--no-websocket"])
def test_codex_is_started_and_recorded(websocket: str, upstream: Running, tmp_path: Path) -> None:
    """Codex finds the relay without its configuration, its own model and key are the upstream's to see, and its end is ours."""
    workspace, out = Workspace(tmp_path / "work"), tmp_path / "out.jsonl"
    workspace.behave()
    agent = [programs.codex(), "exec", "--json", "--skip-git-repo-check", "-m", "lab-model", PROMPT]
    command = [sys.executable, "-m", "turntape", "record", "--upstream", upstream.url, "--out", out, websocket]
    ran = codex_client.run([*command, "--", *agent], workspace, {"OPENAI_API_KEY": KEY})
    check_work_done(ran, workspace)
    assert f"recorded {out}: " in ran.errors
    assert "3 turns, 2 tool calls" in ran.errors
    assert KEY not in out.read_text()
    assert {line.transport for line in Fixture.load(out).lines if hasattr(line, "transport")} == {
        "websocket" if websocket == "--websocket" else "http"
    }


def test_openai_python_works_through_a_relay(upstream: Running, tmp_path: Path) -> None:
    """The library's three ways of asking are recorded; what else it asks for passes and is counted."""
    script = """
        import openai
        client = openai.OpenAI()
        print(client.responses.create(model="lab-model", input="hello").output_text)
        print([event.type for event in client.responses.create(model="lab-model", input="hello", stream=True)][-1])
        with client.responses.connect() as connection:
            connection.response.create(model="lab-model", input="hello")
            print([event.type for event in connection if event.type == "response.completed" and not connection.close()])
        print([model.id for model in client.models.list()])
        try:
            client.responses.create(model="lab-model", input=[{"type": "nonsense"}])
        except openai.BadRequestError as exc:
            print(exc.status_code)
    """
    out = tmp_path / "out.jsonl"
    command = [sys.executable, "-m", "turntape", "record", "--json", "--upstream", upstream.url, "--out", out, "--"]
    ran = codex_client.run(
        [*command, sys.executable, "-c", textwrap.dedent(script)], Workspace(tmp_path / "work"), {"OPENAI_API_KEY": KEY}
    )
    assert ran.code == 0, ran.errors
    said = ran.output.splitlines()
    assert said[0].startswith("LAB-DONE")
    assert said[1:] == ["response.completed", "['response.completed']", "['lab-model']", "400"]
    assert "passed on and not recorded: GET /v1/models (1)" in ran.errors
    outcome = json.loads(ran.errors.splitlines()[-1])
    assert (outcome["recording"], outcome["n_sessions"], outcome["n_turns"]) == (str(out), 4, 3)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["status"] for line in lines if "answer" in line] == [200, 200, 101, 400]
    assert [line["code"] for line in lines if "gone" in line] == [None, None, 1000, None]
    assert KEY not in out.read_text()


def test_deflate_passes(tmp_path: Path) -> None:
    """A client and a server that compress their frames do so through a relay, and what they say is recorded in clear."""
    server = """
        import json, sys, websockets.sync.server as server
        def answer(connection):
            for message in connection:
                for n, text in enumerate(["Hel", "lo", "."]):
                    connection.send(json.dumps({"type": "response.output_text.delta", "sequence_number": n, "delta": text}))
                connection.send(json.dumps({"type": "response.completed", "got": len(message)}))
            connection.close(4001, "enough")
        with server.serve(answer, "127.0.0.1", 0) as it:
            print(it.socket.getsockname()[1], flush=True)
            it.serve_forever()
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(server)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}/base"
        with turntape("record", "--upstream", url, "--out", "out.jsonl", folder=tmp_path / "relay") as relay:
            with websockets.connect(relay.url.replace("http", "ws") + "/responses", compression="deflate") as client:
                assert [extension.name for extension in client.protocol.extensions] == ["permessage-deflate"]
                for n in range(3):
                    client.send(json.dumps({"type": "response.create", "input": "x" * 5000 * n}))
                    got = [json.loads(client.recv()) for _ in range(4)]
                    assert got[-1]["got"] > 5000 * n
            lines = recorded(relay)
    finally:
        process.kill()
        process.wait()
    assert [line["d"] for line in lines if "u" in line]
    assert len([line for line in lines if "client" in line]) == 3
    assert [line["code"] for line in lines if "gone" in line] == [1000]


SLOW = """
    import openai, os, sys
    client = openai.OpenAI()
    with client.responses.connect() as connection:
        connection.response.create(model="lab-model", input="SLOW")
        for event in connection:
            print(event.type, flush=True)
"""


def test_a_killed_agent_and_a_killed_upstream_leave_whole_files(tmp_path: Path) -> None:
    """kill -9 of either side in the middle of an answer: the other learns of it, and the file says who went."""
    script = tmp_path / "slow.toml"
    script.write_text('models = ["lab-model"]\n[[rule]]\nsay = [{ text = "one two three" }, { pause = 60 }]\n')
    for victim in ("client", "upstream"):
        folder = tmp_path / victim
        with (
            turntape("serve", "--backend", f"scripted:{script}", "--store", "memory", folder=folder / "up") as upstream,
            turntape("record", "--upstream", upstream.url, "--out", "out.jsonl", folder=folder / "relay") as relay,
        ):
            env = os.environ | {"OPENAI_BASE_URL": relay.url, "OPENAI_API_KEY": KEY}
            command = [sys.executable, "-c", textwrap.dedent(SLOW)]
            agent = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            assert agent.stdout is not None
            while "delta" not in agent.stdout.readline():
                assert agent.poll() is None
            if victim == "client":
                agent.kill()
                agent.wait()
            else:
                upstream.process.send_signal(signal.SIGKILL)
                agent.wait(20)
            lines = recorded(relay)
        assert [line["by"] for line in lines if "gone" in line] == [victim]
        assert lines[-1]["code"] is None
        Fixture.load(out_of(relay))
