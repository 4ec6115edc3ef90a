"""Sessions of unmodified clients, recorded here or in front of a server, driven on chat, tokens and a real small model."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import codex_client
import programs
import pytest
from codex_client import PROMPT, Workspace
from running import LAB, ROOT, environment, turntape

pytestmark = pytest.mark.clients

SDK_AGENT = """
import json, openai

client = openai.OpenAI(max_retries=0)
tools = [
    {"type": "function", "name": "lookup", "strict": False, "description": "Looks a word up.",
     "parameters": {"type": "object", "properties": {"key": {"type": "string"}}}},
    {"type": "function", "name": "add", "strict": False, "description": "Adds.",
     "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}},
]
items, form = [{"role": "user", "content": "What is the answer?"}], None
with client.responses.connect() as connection:
    previous = None
    while True:
        more = {"previous_response_id": previous} if previous else {}
        connection.response.create(model="lab-model", input=items, tools=tools, store=False, **more)
        for event in connection:
            if event.type in ("response.completed", "response.failed"):
                break
        previous = event.response.id
        calls = [item for item in event.response.output if item.type == "function_call"]
        if not calls:
            break
        items = [{"type": "function_call_output", "call_id": call.call_id, "output": "42"} for call in calls]
print(client.responses.create(model="lab-model", input="hello", store=False).output_text)
"""


def record(out: Path, agent: list[str], workspace: Workspace, *more: str) -> None:
    server = ["--out", str(out), "--port", "0", *more]
    ran = codex_client.run([sys.executable, "-m", "turntape", "record", *server, "--", *agent], workspace)
    assert ran.code == 0 and f"recorded {out}" in ran.errors, ran.errors


def drive(folder: Path, fixture: Path, *words: str, **env: str) -> dict[str, Any]:
    """The report of a forced drive without tool time."""
    command = [
        sys.executable,
        "-m",
        "turntape",
        "drive",
        str(fixture),
        "--tool-time",
        "zero",
        "--json",
        "at.json",
        *words,
    ]
    folder.mkdir(exist_ok=True)
    ran = subprocess.run(
        command, cwd=folder, env=environment(folder, env), capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr
    report: dict[str, Any] = json.loads((folder / "at.json").read_text())
    return report


@contextmanager
def program(name: str, scheme: str, *words: str) -> Iterator[str]:
    """A model server of the tests as a process; the URL for --backend."""
    command = [sys.executable, str(ROOT / "tests" / name), "0", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"{scheme}+http://127.0.0.1:{process.stdout.readline().split()[1]}/v1"
        finally:
            process.kill()


@pytest.fixture(scope="module", params=["seam", "relay"])
def codex_session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of Codex, recorded at this server, and through a relay in front of another one."""
    folder = tmp_path_factory.mktemp(request.param)
    workspace, out = Workspace(folder / "work"), folder / "session.jsonl"
    workspace.behave()
    agent = [str(programs.codex()), "exec", "--json", "--skip-git-repo-check", PROMPT]
    lab = ("--backend", f"scripted:{LAB}", "--store", "memory")
    if request.param == "seam":
        record(out, agent, workspace, *lab)
    else:
        with turntape("serve", *lab, folder=folder / "upstream") as upstream:
            record(out, agent, workspace, "--upstream", upstream.url)
    return out


@pytest.mark.parametrize("design", ["create", "append", "http"])
@pytest.mark.parametrize("backend", ["chat", "tokens"])
def test_codex_is_driven_on_chat_and_tokens(codex_session: Path, backend: str, design: str, tmp_path: Path) -> None:
    """Every recorded turn is played, in each design, and its calls are those of the lab script again."""
    name = {"chat": "chat_server.py", "tokens": "token_server.py"}[backend]
    with program(name, backend) as url:
        report = drive(tmp_path, codex_session, "--backend", url, "--design", design)
    [run] = report["verdicts"]["runs"]
    assert report["verdicts"]["fixtures"][0]["left_out"] == []
    assert len(run["turns"]) == 3 and not run["not_reached"]
    assert all(turn["failure"] is None for turn in run["turns"]), run
    first = run["turns"][0]["calls"]
    assert [call["verdict"] for call in first] == ["equal"], first
    assert all(turn["got"]["input_tokens"] > 1000 for turn in report["timings"]["runs"][0]["turns"])


def test_codex_is_driven_freely_to_its_end_by_the_script_that_was_recorded(codex_session: Path, tmp_path: Path) -> None:
    """On the model that was recorded, a free drive never leaves the path."""
    report = drive(tmp_path, codex_session, "--backend", f"scripted:{LAB}", "--mode", "free", "--design", "http")
    [run] = report["verdicts"]["runs"]
    assert run["departures"] == [] and run["counts"] == {"equal": 3}


def test_openai_python_is_driven_on_a_real_small_model(tmp_path: Path) -> None:
    """What the model says is nonsense: that it is asked each recorded turn, counted and timed is what is tested."""
    workspace, out = Workspace(tmp_path / "work"), tmp_path / "sdk.jsonl"
    (tmp_path / "agent.py").write_text(SDK_AGENT)
    more = ("--backend", f"scripted:{LAB}", "--store", "memory")
    record(out, [sys.executable, str(tmp_path / "agent.py")], workspace, *more)
    (tmp_path / "drive").mkdir()
    (tmp_path / "drive" / "turntape.toml").write_text('[models."*"]\nmax-output-tokens = 20\ntemperature = 0\n')
    words = ("--backend", f"llama:{programs.model()}")
    reports = [drive(tmp_path / "drive", out, *words, PYTHONPATH=str(programs.llama())) for _ in range(2)]
    [run] = reports[0]["verdicts"]["runs"]
    assert len(run["turns"]) == reports[0]["verdicts"]["fixtures"][0]["n_turns"] == 4
    assert all(turn["failure"] is None for turn in run["turns"]), run
    timings = reports[0]["timings"]["runs"][0]["turns"]
    assert all(0 < turn["got"]["output_tokens"] <= 20 and turn["got"]["ttft_s"] > 0 for turn in timings)
    assert timings[1]["got"]["cached_tokens"] > 0.5 * timings[0]["got"]["input_tokens"]
    assert reports[0]["verdicts"] == reports[1]["verdicts"]
