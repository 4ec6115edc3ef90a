"""What other tools kept, imported, plays to the real client that it came from."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import codex_client
import openai
import programs
import pytest
from codex_client import APPEND, Workspace, check_work_done, execute
from running import LAB, turntape

from turntape.replay.fixture import Fixture
from turntape.replay.takes import Take, takes

pytestmark = pytest.mark.clients


def turntape_says(*words: str | Path, folder: Path) -> codex_client.Ran:
    return codex_client.run([sys.executable, "-m", "turntape", *words], Workspace(folder))


def conversations(found: list[Take]) -> list[list[str]]:
    """What each take was asked, item by item."""
    return [[take.start.model, *(item.type for item in take.start.context.items_after(None))] for take in found]


@pytest.mark.parametrize(
    ("version", "model"),
    [
        (programs.CODEX, "lab-model"),
        (programs.CODEX, "gpt-6.2-sol"),  # code mode: its tools are an item of the conversation
        *((version, "lab-model") for version in programs.CODEX_APPEND),
    ],
)
def test_a_rollout_plays_to_the_next_codex(version: str, model: str, tmp_path: Path) -> None:
    """A real rollout holds the conversation of the real session, and stubs another Codex over WebSocket and over HTTP."""
    codex = programs.codex(version)
    more = "" if version == programs.CODEX else APPEND

    def work(folder: Path, url: str, *, websocket: bool = True) -> Workspace:
        workspace = Workspace(folder)
        workspace.point_at(url, websocket=websocket, more=more)
        configuration = workspace.home / "config.toml"
        configuration.write_text(configuration.read_text().replace('"lab-model"', f'"{model}"'))
        check_work_done(execute(codex, workspace), workspace)
        return workspace

    recorder = ["serve", "--record", tmp_path / "seam", "--store", "memory", "--backend", f"scripted:{LAB}"]
    with turntape(*recorder, folder=tmp_path / "server") as server:
        workspace = work(tmp_path / "first", server.url)
        server.stop()
    [rollout] = (workspace.home / "sessions").rglob("rollout-*.jsonl")
    imported = tmp_path / "imported.jsonl"
    ran = turntape_says("import", "--json", rollout, "--out", imported, folder=tmp_path / "import")
    assert ran.code == 0, ran.errors
    said = json.loads(ran.output)
    assert (said["from"], said["n_sessions"], said["n_turns"], said["n_calls"]) == ("codex", 1, 3, 2)
    assert said["skipped"] == []
    assert turntape_says("verify", imported, folder=tmp_path / "verify").code == 0
    [seam] = (tmp_path / "seam").iterdir()
    recorded = [take for take in takes(Fixture.load(seam)) if take.finish is not None]
    ours = takes(Fixture.load(imported))
    assert conversations(ours) == conversations(recorded)
    assert [take.finish and take.finish.usage for take in ours] == [t.finish and t.finish.usage for t in recorded]
    for websocket in (True, False):
        folder = tmp_path / f"websocket-{websocket}"
        with turntape("stub", imported, "--strict", folder=folder / "stub") as stub:
            work(folder / "work" / "deeper", stub.url, websocket=websocket)
            assert stub.stop() == 0, stub.errors


SDK = """
import json, sys, openai
client, log = openai.OpenAI(), open(sys.argv[1], "w")
def ask(**request):
    log.write(json.dumps({"request": request}) + "\\n")
    said = client.responses.create(stream=True, **request)
    for event in said:
        log.write(event.to_json() + "\\n")
    return event.response
first = ask(model="lab-model", input="List the files, then create hello.txt.", tools=[{"type": "function",
    "name": "exec_command", "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}}, "strict": False}])
while calls := [item for item in first.output if item.type == "function_call"]:
    outputs = [{"type": "function_call_output", "call_id": call.call_id, "output": "LAB-STEP"} for call in calls]
    first = ask(model="lab-model", input=outputs, previous_response_id=first.id, tools=[tool.to_dict() for tool in first.tools])
print(first.output_text)
"""
"""An agent that keeps a log as people do: each request, and every event by ``to_json``."""


def test_a_log_of_openai_python_plays_to_openai_python(tmp_path: Path) -> None:
    """The events that the SDK gave, with the requests, stub the same program again, to the same end."""
    script = tmp_path / "agent.py"
    script.write_text(SDK)

    def run(url: str, log: str) -> str:
        environment = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "any", "PATH": "/usr/bin:/bin"}
        command = [sys.executable, script, tmp_path / log]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout

    with turntape("serve", "--store", "memory", "--backend", f"scripted:{LAB}", folder=tmp_path / "server") as server:
        ended = run(server.url, "events.jsonl")
    imported = tmp_path / "imported.jsonl"
    ran = turntape_says("import", tmp_path / "events.jsonl", "--out", imported, folder=tmp_path / "import")
    assert ran.code == 0 and "3 turns, 2 tool calls" in ran.output, ran.output + ran.errors
    assert turntape_says("verify", imported, folder=tmp_path / "verify").code == 0
    with turntape("stub", imported, "--strict", folder=tmp_path / "stub") as stub:
        assert run(stub.url, "again.jsonl") == ended
        assert stub.stop() == 0, stub.errors


@contextmanager
def aimock(fixtures: Path) -> Iterator[str]:
    """The real aimock on these fixtures; its base URL."""
    program = programs.npm_program("@copilotkit/aimock", programs.AIMOCK, "llmock")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        program,
        "-p",
        str(port),
        "-f",
        fixtures,
        "--log-level",
        "silent",
    ]  # the program that takes fixtures alone
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < end
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.kill()
        process.wait()


def said(url: str, conversation: list[Any]) -> list[tuple[str, ...]]:
    """What a server answers to a conversation: texts, and calls by name and arguments."""
    client = openai.OpenAI(base_url=url, api_key="any", max_retries=0)
    answer = client.responses.create(model="gpt-5", input=conversation, instructions="Be polite and brief.")
    told = list[tuple[str, ...]]()
    for item in answer.output:
        if item.type == "message":
            told.append(("".join(part.text for part in item.content if part.type == "output_text"),))
        elif item.type == "function_call":
            told.append((item.name, item.arguments))
    return told


def test_imported_fixtures_answer_as_aimock_does(tmp_path: Path) -> None:
    """The real aimock and a stub of the import say the same to the same requests, a tool round included."""
    look = {"toolCalls": [{"id": "call_1", "name": "look", "arguments": {"city": "SF"}}]}
    polite = {"userMessage": "hello", "systemMessage": ["polite", "brief"], "model": "gpt-5"}
    fixtures = [
        {"match": {"userMessage": "weather", "hasToolResult": False}, "response": look},
        {"match": {"userMessage": "weather", "hasToolResult": True}, "response": {"content": "It is sunny."}},
        {"match": polite, "response": {"content": "Good day."}, "chunkSize": 3},
    ]
    (tmp_path / "fixtures").mkdir()
    source = tmp_path / "fixtures" / "all.json"
    source.write_text(json.dumps({"fixtures": fixtures}))
    asked = {"role": "user", "content": "How is the weather?"}
    call = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": '{"city":"SF"}'}
    output = {"type": "function_call_output", "call_id": "call_1", "output": "22 degrees"}
    conversations: list[list[Any]] = [[asked], [asked, call, output], [{"role": "user", "content": "Oh, hello there."}]]
    with aimock(tmp_path / "fixtures") as url:
        wanted = [said(url, conversation) for conversation in conversations]
    assert wanted == [[("look", '{"city":"SF"}')], [("It is sunny.",)], [("Good day.",)]]
    imported = tmp_path / "imported.jsonl"
    ran = turntape_says("import", source, "--out", imported, folder=tmp_path / "import")
    assert ran.code == 0, ran.errors
    with turntape("stub", imported, "--strict", folder=tmp_path / "stub") as stub:
        assert [said(stub.url, conversation) for conversation in conversations] == wanted
        assert stub.stop() == 0, stub.errors
