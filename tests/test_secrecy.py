"""Secrets and real files: what a server, its recordings and its store leave on disk, and the commands before sharing."""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from running import environment, turntape
from websockets.sync.client import connect

from turntape.replay.fixture import Fixture
from turntape.replay.takes import takes
from turntape.replay.verify import verify

BODY = "Ab3dE6gH9jK2mN5pQ8sT1vW4yZ7b"
KEY = f"sk-proj-{BODY}"
GITHUB = f"ghp_{BODY}01234567"
OWN = "correct-horse-battery"  # of no known shape

SCRIPT = """
models = ["echo"]
tokens_per_s = 100000

[[rule]]
when = { min_outputs = 1 }
say = [{ text = "It printed {last_output}, as expected." }]

[[rule]]
say = [{ summary = "The user says {last_user}." }, { call = "sh", arguments = { cmd = "echo {last_user}" } }]
"""

TOOL = {"type": "function", "name": "sh", "parameters": {"type": "object", "properties": {}}, "strict": False}


def told(url: str) -> None:
    """Be an agent that has keys everywhere: headers, handshake, query, fields, text and a tool's output."""
    headers = {
        "Authorization": f"Bearer {KEY}",
        "X-Api-Key": KEY,
        "Cookie": f"session={KEY}",
        "User-Agent": f"a/1 {KEY}",
    }
    body: dict[str, Any] = {
        "model": "echo",
        "input": f"my key is {KEY}, the other {GITHUB}, and the password {OWN}",
        "tools": [TOOL],
        "metadata": {"key": KEY},
        "instructions": f"Use {KEY}.",
        "store": True,
    }
    request = urllib.request.Request(f"{url}/responses?key={KEY}", json.dumps(body).encode(), headers)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert KEY in answer.read().decode()  # the client's own answer is untouched
    websocket = url.replace("http", "ws", 1) + f"/responses?key={KEY}"
    del headers["User-Agent"]
    with connect(websocket, additional_headers=headers, user_agent_header=f"a/1 {KEY}") as socket:
        first = asked(socket, body)
        output = {"type": "function_call_output", "call_id": call_id(first), "output": f"{KEY}\n{GITHUB} {OWN}"}
        second = asked(socket, {**body, "input": [output], "previous_response_id": first["id"]})
        assert f"It printed {KEY}" in json.dumps(second)
        socket.send(f"no json {KEY}")
        socket.recv()


def asked(socket: Any, body: dict[str, Any]) -> dict[str, Any]:
    socket.send(json.dumps({"type": "response.create", **body}))
    while (event := json.loads(socket.recv(timeout=20)))["type"] != "response.completed":
        pass
    response: dict[str, Any] = event["response"]
    return response


def call_id(response: dict[str, Any]) -> str:
    return str(next(item["call_id"] for item in response["output"] if item["type"] == "function_call"))


def holding(folder: Path, *secrets: str) -> list[str]:
    """The files below ``folder`` that hold one of ``secrets``, or most of one."""
    parts = [secret[-16:].encode() for secret in secrets]
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [path.name for path in files if any(part in path.read_bytes() for part in parts)]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "echo.toml"
    path.write_text(SCRIPT)
    return path


def test_no_key_is_on_any_disk_after_a_recording(tmp_path: Path, script: Path) -> None:
    """Header, handshake, query, body field, user text and tool output: not in the recording, a store or a log."""
    home = tmp_path / "home"
    home.mkdir()
    out = home / "out.jsonl"
    options = ("record", "--out", out, "--backend", f"scripted:{script}", "--secret-env", "MY_PASSWORD")
    with turntape(*options, folder=home, env={"MY_PASSWORD": OWN}) as server:
        told(server.url)
        assert server.stop() == 0
    assert holding(home, KEY, GITHUB, OWN) == []
    assert not [*home.rglob("*.sqlite3*")]
    fixture = Fixture.load(out)
    assert verify(fixture).n_turns == 3
    said = [json.dumps([item.value for item in take.said()]) for take in takes(fixture)]
    assert "It printed sk-proj-[masked]\\nghp_[masked] [masked], as expected." in said[-1]


def test_a_store_never_gets_what_only_a_header_held(tmp_path: Path, script: Path) -> None:
    """What a client asks to keep is kept as it said it; its key is no part of that."""
    home = tmp_path / "home"
    store, recordings = home / "store.sqlite3", home / "recordings"
    options = ("serve", "--backend", f"scripted:{script}", "--store", store, "--record", recordings)
    with turntape(*options, folder=home) as server:
        body = json.dumps({"model": "echo", "input": "hi", "tools": [TOOL], "store": True}).encode()
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json", "User-Agent": f"a/1 {KEY}"}
        request = urllib.request.Request(f"{server.url}/responses?key={KEY}", body, headers)
        urllib.request.urlopen(request, timeout=20).close()
        assert server.stop() == 0
    assert store.exists() and holding(home, KEY) == []


def test_a_refused_secret_ends_the_recording_with_a_reason(tmp_path: Path, script: Path) -> None:
    """--secrets refuse: the client is served, what came before is a recording, and the exit code is 1."""
    home = tmp_path / "home"
    home.mkdir()
    out = home / "out.jsonl"
    options = ("record", "--out", out, "--backend", f"scripted:{script}", "--secrets", "refuse", "--json")
    with (
        turntape(*options, folder=home) as server,
        connect(server.url.replace("http", "ws", 1) + "/responses") as socket,
    ):
        asked(socket, {"model": "echo", "input": "hi", "tools": [TOOL]})
        asked(socket, {"model": "echo", "input": f"my key is {KEY}", "tools": [TOOL]})
        server.wait_for("warning: the recording ended before OpenAI key in a request; sessions go on unrecorded")
        asked(socket, {"model": "echo", "input": "still there?", "tools": [TOOL]})
        assert server.stop() == 1
    assert json.loads(server.output)["refused"] == "OpenAI key in a request"
    assert holding(home, KEY) == [] and verify(Fixture.load(out)).n_turns == 1


def run(*words: str | Path, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "turntape", *map(str, words)]
    return subprocess.run(
        command, check=False, cwd=folder, env=environment(folder, env), capture_output=True, text=True, timeout=60
    )


def leaky(folder: Path) -> Path:
    """The example of the docs, in which the user says a key."""
    path = folder / "leaky.jsonl"
    example = (Path(__file__).parent.parent / "docs" / "example.jsonl").read_text()
    path.write_text(example.replace('"input":"Hi"', f'"input":"Hi, I am {KEY}"'))
    return path


def test_scan_finds_and_shows_no_secret(tmp_path: Path) -> None:
    """Exit code 1 with the line; 0 for a clean file; --json for programs."""
    path = leaky(tmp_path)
    found = run("scan", path, folder=tmp_path)
    assert found.returncode == 1 and f"{path}:3: OpenAI key (step, input): " in found.stdout
    assert BODY not in found.stdout + found.stderr
    report = json.loads(run("scan", path, "--json", folder=tmp_path).stdout)
    assert report["clean"] is False and report["fixtures"][0]["findings"][0]["line"] == 3
    clean = Path(__file__).parent.parent / "docs" / "example.jsonl"
    assert run("scan", clean, folder=tmp_path).returncode == 0
    named = run("scan", clean, "--secret-env", "MINE", folder=tmp_path, MINE="response.completed")
    assert named.returncode == 1 and "configured secret" in named.stdout
    unset = run("scan", clean, "--secret-env", "MINE", folder=tmp_path)
    assert unset.returncode == 0 and "warning: --secret-env: MINE is not set" in unset.stderr


def test_scrub_writes_a_copy_that_can_be_shared(tmp_path: Path) -> None:
    """No prose, no key; never over a file; what is kept is still masked."""
    path, out = leaky(tmp_path), tmp_path / "new.jsonl"
    made = run("scrub", path, "--out", out, folder=tmp_path)
    assert made.returncode == 0 and made.stdout == f"{out}: 1 session, 6 steps, 1 turn: equal byte for byte\n"
    assert BODY not in out.read_text() and "Hello" not in out.read_text()
    assert run("scrub", path, "--out", out, folder=tmp_path).returncode == 2
    kept = tmp_path / "kept.jsonl"
    assert run("scrub", path, "--out", kept, "--keep", "messages", folder=tmp_path).returncode == 0
    assert "Hi, I am sk-proj-[masked]" in kept.read_text() and "Hello." in kept.read_text()


@pytest.mark.parametrize(
    ("words", "env", "message"),
    [
        (["--secret-env", "SHORT"], {"SHORT": "abcde"}, "--secret-env: SHORT has 5 characters"),
        (["--secret-env", "NO NAME"], {}, "cannot be the name of a secret"),
        (["--secret-file", "short.txt"], {}, "--secret-file: A configured secret has 3 characters"),
    ],
)
def test_a_secret_that_cannot_be_one_is_refused(
    words: list[str], env: dict[str, str], message: str, tmp_path: Path
) -> None:
    """With the reason, and without its value."""
    (tmp_path / "short.txt").write_text("xyz\n")
    refused = run("scan", leaky(tmp_path), *words, folder=tmp_path, **env)
    assert refused.returncode == 2 and message in refused.stderr
    assert "abcde" not in refused.stderr and "xyz" not in refused.stderr


def test_a_stub_answers_whoever_has_the_real_key(tmp_path: Path, script: Path) -> None:
    """A masked recording is compared with requests that are masked alike, also by what was named."""
    out, env = tmp_path / "out.jsonl", {"MY_PASSWORD": OWN}
    body = {"model": "echo", "input": f"my key is {KEY} and the password {OWN}", "tools": [TOOL]}
    named = ("--secret-env", "MY_PASSWORD")
    options = ("record", "--out", out, "--backend", f"scripted:{script}", *named)
    with turntape(*options, folder=tmp_path / "recorder", env=env) as server:
        with connect(server.url.replace("http", "ws", 1) + "/responses") as socket:
            asked(socket, body)
        server.stop()
    with turntape("stub", out, "--strict", *named, folder=tmp_path / "stub", env=env) as server:
        with connect(server.url.replace("http", "ws", 1) + "/responses") as socket:
            asked(socket, body)
        assert server.stop() == 0
