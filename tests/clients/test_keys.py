"""Real agents that have keys everywhere leave none in what a recorder, a relay, a stub and an import write."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import codex_client
import programs
import pytest
from codex_client import Ran, Workspace
from running import environment, turntape

pytestmark = pytest.mark.clients

BODY = "Ab3dE6gH9jK2mN5pQ8sT1vW4yZ7b"
OWN = "correct-horse-battery"  # of no known shape
PLACES = ("bearer", "header", "query", "instructions", "user", "tool", "handshake", "field", "later")
KEYS = {place: f"sk-proj-{BODY}{n:04}" for n, place in enumerate(PLACES)} | {
    "github": f"ghp_{BODY}99999999",
    "own": OWN,
}
SAID = f"my key is {KEYS['user']}, GITHUB_TOKEN={KEYS['github']}, the password {OWN}"
NAMED = ("--secret-env", "MY_PASSWORD")
MINE = {"MY_PASSWORD": OWN}

SCRIPT = """
models = ["lab-model"]

[[rule]]
when = { any_tool = "exec_command", outputs = 0 }
say = [{ summary = "The user says {last_user}" }, { call = "exec_command", arguments = { cmd = "cat key.txt # {last_user}" } }]

[[rule]]
when = { any_tool = "look", outputs = 0 }
say = [{ call = "look", arguments = { at = "{last_user}" } }]

[[rule]]
say = [{ text = "It printed {last_output}, as expected." }]
"""

SDK_AGENT = """
    import json, openai, os
    keys, said = json.loads(os.environ["KEYS"]), os.environ["SAID"]
    client = openai.OpenAI(api_key=keys["bearer"], default_headers={"Cookie": keys["header"]}, default_query={"key": keys["query"]})
    tool = {"type": "function", "name": "look", "strict": False, "description": keys["field"], "parameters": {"type": "object"}}
    fields = {"model": "lab-model", "store": False, "tools": [tool], "instructions": keys["instructions"], "metadata": {"k": keys["field"]}}
    with client.responses.connect(extra_headers={"X-Key": keys["handshake"]}) as connection:
        def over_websocket(**fields):
            connection.response.create(**fields)
            return next(event for event in connection if event.type == "response.completed").response
        for ask in (client.responses.create, over_websocket):
            history = [{"role": "user", "content": said}]
            [call] = ask(input=history, **fields).output
            output = {"type": "function_call_output", "call_id": call.call_id, "output": f"{keys['tool']} {keys['own']}"}
            answer = ask(input=[*history, call.model_dump(exclude_none=True), output], **fields)
            assert keys["tool"] in answer.output_text
    try:
        client.responses.create(input=[{"type": "nonsense " + keys["user"]}], **fields)
    except openai.BadRequestError:
        print("done")
"""


def codex(url: str, workspace: Workspace, said: str = SAID) -> Ran:
    (workspace.repo / "key.txt").write_text(f"{KEYS['tool']} {OWN}\n")
    instructions = workspace.folder / "instructions.md"
    instructions.write_text(f"Use {KEYS['instructions']}.\n")
    more = f'http_headers = {{ x-key = "{KEYS["header"]}" }}\nquery_params = {{ key = "{KEYS["query"]}" }}'
    workspace.point_at(url, top=f'model_instructions_file = "{instructions}"', more=more)
    agent = [programs.codex(), "exec", "--json", "--skip-git-repo-check", said]
    return codex_client.run(agent, workspace, {"TEST_KEY": KEYS["bearer"]})


def openai_python(url: str, folder: Path) -> str:
    more = {"OPENAI_BASE_URL": url, "KEYS": json.dumps(KEYS), "SAID": SAID}
    command = [sys.executable, "-c", textwrap.dedent(SDK_AGENT)]
    ran = subprocess.run(
        command, env=environment(folder, more), capture_output=True, text=True, timeout=60, check=False
    )
    return ran.stdout + ran.stderr


def holding(folder: Path) -> list[tuple[str, str]]:
    """The files below ``folder`` that hold a key or most of one, and where that key was put."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [(path.name, at) for path in files for at, key in KEYS.items() if key[-16:].encode() in path.read_bytes()]


def test_no_key_is_on_any_disk_after_real_agents(tmp_path: Path) -> None:
    """Header, handshake, query, field, user text, tool output: in no file of either tap, of a stub that misses, of an import."""
    disk, agents, workspace = tmp_path / "disk", tmp_path / "agents", Workspace(tmp_path / "work")
    for folder in (disk, agents):
        folder.mkdir()
    (tmp_path / "echo.toml").write_text(SCRIPT)
    seam, relay = disk / "seam.jsonl", disk / "relay.jsonl"
    recorder = ("record", "--out", seam, "--backend", f"scripted:{tmp_path / 'echo.toml'}", *NAMED)
    with turntape(*recorder, folder=disk / "1", env=MINE) as server:
        with turntape("record", "--upstream", server.url, "--out", relay, *NAMED, folder=disk / "2", env=MINE) as tap:
            ran = codex(tap.url, workspace)
            assert KEYS["tool"] in ran.last_message, ran.output + ran.errors  # the agent itself gets what it should
            assert openai_python(tap.url, agents) == "done\n"
            assert tap.stop() == 0, tap.errors
        assert server.stop() == 0, server.errors
    for n, recording in enumerate((seam, relay)):
        assert "sk-proj-[masked]" in recording.read_text()
        with turntape("stub", recording, *NAMED, folder=disk / f"stub-{n}", env=MINE) as stub:
            codex(stub.url, Workspace(tmp_path / f"again-{n}"), f"now it is {KEYS['later']} or {OWN}")
            assert stub.stop() == 1
        assert "now it is sk-proj-[masked] or [masked]" in stub.errors
    [rollout] = (workspace.home / "sessions").rglob("rollout-*.jsonl")
    words = ["import", str(rollout), "--out", str(disk / "imported.jsonl"), *NAMED]
    made = codex_client.run([sys.executable, "-m", "turntape", *words], Workspace(tmp_path / "import"), MINE)
    assert made.code == 0, made.errors
    assert holding(disk) == []
    assert {place for _, place in holding(workspace.folder)} >= {"user", "tool", "own"}  # what is looked for is found
