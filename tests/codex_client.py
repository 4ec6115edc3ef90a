"""Codex, unmodified: one command, or its app-server, in a folder and a home of their own."""

import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import define, field
from running import environment

PROMPT = "List the files, then create hello.txt."
KEY = "sk-test-codex"
PATIENCE_S = 90.0

Json = dict[str, Any]


@define
class Workspace:
    """A git repository (or a plain folder) to work in, and a home that holds nothing but the configuration."""

    folder: Path
    git: bool = True

    def __attrs_post_init__(self) -> None:
        for path in (self.home, self.repo):
            path.mkdir(parents=True)
        (self.repo / "README.md").write_text("A test repository.\n")
        commands = ("init -q", "add .", "-c user.name=t -c user.email=t@example.invalid commit -q -m begin")
        for command in commands if self.git else ():
            subprocess.run(["git", *command.split()], cwd=self.repo, check=True)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def repo(self) -> Path:
        return self.folder / "repo"

    @property
    def environment(self) -> dict[str, str]:
        return environment(self.folder, {"CODEX_HOME": str(self.home), "TEST_KEY": KEY})

    def point_at(self, url: str, *, websocket: bool = True, top: str = "", more: str = "") -> None:
        """Write the configuration that a user would write.

        Args:
            top: further keys at the top of the file.
            more: further keys of the provider, then further tables.
        """
        (self.home / "config.toml").write_text(
            f'model = "lab-model"\nmodel_provider = "mine"\n{top}\n{BEHAVIOUR}[model_providers.mine]\nname = "mine"\n'
            f'base_url = "{url}"\nenv_key = "TEST_KEY"\nwire_api = "responses"\n'
            f"supports_websockets = {str(websocket).lower()}\nstream_max_retries = 2\n"
            f"{more}\n"
        )

    def behave(self) -> None:
        """Write a configuration that says how Codex works, and nothing of any server."""
        (self.home / "config.toml").write_text(BEHAVIOUR)


BEHAVIOUR = """approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
suppress_unstable_features_warning = true
[analytics]
enabled = false
"""

APPEND = """[features]
responses_websockets = true
remote_models = false
"""
"""What makes the releases that knew response.append use it."""


@define
class Ran:
    """What one run of ``codex exec --json`` said."""

    code: int
    output: str
    errors: str

    @property
    def items(self) -> list[Json]:
        return [event["item"] for event in self.events if event["type"] == "item.completed"]

    @property
    def events(self) -> list[Json]:
        return [json.loads(line) for line in self.output.splitlines() if line.startswith("{")]

    @property
    def complaints(self) -> list[Json]:
        """Errors, retries and fallbacks that it reported; not that it has no metadata of the model."""
        failed = [event for event in self.events if event["type"] in ("error", "turn.failed")]
        return failed + [i for i in self.items if i["type"] == "error" and "Model metadata" not in i["message"]]

    @property
    def last_message(self) -> str:
        return [str(item["text"]) for item in self.items if item["type"] == "agent_message"][-1]


def execute(program: Path, workspace: Workspace, prompt: str = PROMPT) -> Ran:
    """Run ``codex exec`` to its end."""
    command = [program, "exec", "--json", "--skip-git-repo-check", prompt]
    return run(command, workspace)


def run(command: list[str | Path], workspace: Workspace, more: dict[str, str] | None = None) -> Ran:
    ended = subprocess.run(
        command,
        cwd=workspace.repo,
        env=workspace.environment | (more or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return Ran(ended.returncode, ended.stdout, ended.stderr)


def check_work_done(ran: Ran, workspace: Workspace) -> None:
    """Codex ended well, its command really ran, and the file it was to make is there."""
    assert ran.code == 0, ran.output + ran.errors
    assert not ran.complaints, ran.complaints
    assert any("LAB-STEP-1" in str(item.get("aggregated_output")) and item["exit_code"] == 0 for item in ran.items)
    assert (workspace.repo / "hello.txt").read_text() == "hello from the lab\n"
    assert ran.last_message.startswith("LAB-DONE")


@define(eq=False)
class AppServer:
    """``codex app-server``: several turns of one conversation in one process."""

    process: subprocess.Popen[str]
    thread: str = ""
    _messages: queue.Queue[Json | None] = field(init=False, factory=queue.Queue)
    _n_sent: int = field(init=False, default=0)

    def __attrs_post_init__(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._messages.put(json.loads(line))
        self._messages.put(None)

    def turn(self, text: str, *, interrupt: bool = False) -> str:
        """Take one user turn and return how it ended; interrupt it once it streams."""
        started = self.call("turn/start", threadId=self.thread, input=[{"type": "text", "text": text}])
        if interrupt:
            self._until(lambda message: "delta" in str(message.get("method", "")).lower())
            self.call("turn/interrupt", threadId=self.thread, turnId=started["turn"]["id"])
        ended = self._until(lambda message: message.get("method") == "turn/completed")
        return str(ended["params"]["turn"]["status"])

    def call(self, method: str, **params: object) -> Json:
        """Send a request and return its result; notifications before it are dropped."""
        self._n_sent += 1
        self._send({"jsonrpc": "2.0", "id": self._n_sent, "method": method, "params": params})
        answer = self._until(lambda message: message.get("id") == self._n_sent and "method" not in message)
        assert "result" in answer, answer
        result: Json = answer["result"]
        return result

    def notify(self, method: str) -> None:
        self._send({"jsonrpc": "2.0", "method": method})

    def _send(self, message: Json) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def _until(self, wanted: Callable[[Json], bool]) -> Json:
        end = time.monotonic() + PATIENCE_S
        while (message := self._messages.get(timeout=max(0.0, end - time.monotonic()))) is not None:
            if wanted(message):
                return message
        raise AssertionError("codex app-server ended")


@contextmanager
def app_server(program: Path, workspace: Workspace) -> Iterator[AppServer]:
    """A conversation with ``codex app-server``, which ends with the block."""
    with (workspace.folder / "app-server.log").open("w") as log:
        process = subprocess.Popen(
            [program, "app-server"],
            cwd=workspace.repo,
            env=workspace.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        server = AppServer(process)
        server.call("initialize", clientInfo={"name": "tests", "title": "tests", "version": "1"})
        server.notify("initialized")
        server.thread = server.call("thread/start", cwd=str(workspace.repo))["thread"]["id"]
        yield server
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
