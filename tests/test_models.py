"""``[models]`` and ``[backends]`` in use: what is listed, what answers, what a new table changes while it serves."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from model_server import SAYS_OK, listing, model_server
from running import environment, turntape

from turntape import cli

KEY = "hunter2-hunter2"

TABLES = """\
[backends.one]
spec = "scripted:one.toml"
[backends.two]
spec = "scripted:two.toml"
[models.fast]
backend = "one"
model = "story"
context-window = 1000
fallback = "slow"
[models.slow]
backend = "two"
"""


def scripts(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("one", "two"):
        (folder / f"{name}.toml").write_text(f'[[rule]]\nsay = [{{ text = "I am {name}." }}]\n')
    (folder / "down.toml").write_text('[[rule]]\nsay = [{ fail = "server_error" }]\n')


def ask(url: str, model: str | None, text: str = "hi", *, default: str = "fast") -> str:
    """The text of one answer."""
    body = {"input": text, "store": False} | ({"model": model} if model else {})
    request = urllib.request.Request(
        f"{url}/responses", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        response: dict[str, Any] = json.load(answer)
    assert response["model"] == (model or default)
    return str(response["output"][0]["content"][0]["text"])


def listed(url: str) -> list[str]:
    with urllib.request.urlopen(f"{url}/models", timeout=30) as answer:
        return [model["id"] for model in json.load(answer)["data"]]


def test_each_name_is_answered_by_its_backend(tmp_path: Path) -> None:
    """Public names are listed and answered under; one that is not there is refused with those that are."""
    scripts(tmp_path)
    (tmp_path / "turntape.toml").write_text(TABLES)
    with turntape("serve", "--store", "memory", folder=tmp_path) as server:
        assert listed(server.url) == ["fast", "slow"]
        assert ask(server.url, "fast") == "I am one."
        assert ask(server.url, "slow") == "I am two."
        assert ask(server.url, None) == "I am one."
        with pytest.raises(urllib.error.HTTPError) as refused:
            ask(server.url, "gpt-9")
        assert refused.value.code == 404
        error = json.load(refused.value)["error"]
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "fast, slow" in error["message"]
        assert "models     fast → one, slow → two, from turntape.toml" in server.errors


def test_the_start_says_where_prompts_go(tmp_path: Path) -> None:
    """A file that somebody else wrote cannot send prompts elsewhere unseen: each name's backend is shown with its URL."""
    (tmp_path / "turntape.toml").write_text(
        "[backends.odd]\nspec = 'chat+http://127.0.0.1:9/v1?api-version=secret'\n[models.m]\nbackend = 'odd'\n"
    )
    with turntape("serve", "--store", "memory", folder=tmp_path) as server:
        assert "backend    odd (http://127.0.0.1:9/v1)" in server.errors
        assert "models     m → odd, from turntape.toml" in server.errors
        assert "secret" not in server.errors


def test_a_fallback_answers_for_a_backend_that_is_down(tmp_path: Path) -> None:
    """The client hears the fallback; the log says who was asked instead, and why."""
    scripts(tmp_path)
    (tmp_path / "turntape.toml").write_text(TABLES.replace("one.toml", "down.toml"))
    with turntape("serve", "--store", "memory", folder=tmp_path) as server:
        assert ask(server.url, "fast") == "I am two."
        server.wait_for("warning: model fast: two is asked instead, after 500 server_error")


def test_the_fallbacks_of_a_fallback_are_asked_too(tmp_path: Path) -> None:
    """Each behind the model that names it, and once, also where they lead back to the first."""
    scripts(tmp_path)
    (tmp_path / "turntape.toml").write_text(
        "[models.fast]\nbackend = 'scripted:down.toml'\nfallback = ['big', 'last']\n"
        "[models.big]\nbackend = 'scripted:down.toml'\nmodel = 'b'\nfallback = ['small', 'last']\n"
        "[models.small]\nbackend = 'scripted:down.toml'\nmodel = 's'\nfallback = ['fast', 'big']\n[models.last]\nbackend = 'scripted:two.toml'\n"
    )
    with turntape("serve", "--store", "memory", folder=tmp_path) as server:
        assert ask(server.url, "fast") == "I am two."
        assert server.stop() == 0
        asked = re.findall(r"model fast: (\S+) is asked instead", server.errors)
        assert asked == ["scripted:down.toml", "scripted:down.toml", "scripted:two.toml"]


def test_sighup_reads_the_tables_again(tmp_path: Path) -> None:
    """New samples go by the new tables; a file that cannot be used is said, and changes nothing."""
    scripts(tmp_path)
    config = tmp_path / "turntape.toml"
    config.write_text(TABLES)
    with turntape("serve", "--store", "memory", folder=tmp_path) as server:
        assert ask(server.url, "fast") == "I am one."
        config.write_text(TABLES.replace('backend = "one"', 'backend = "two"') + "[models.new]\nbackend = 'one'\n")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("reloaded turntape.toml: models fast, slow, new; new: new; changed: fast\n")
        assert ask(server.url, "fast") == "I am two."
        assert ask(server.url, "new") == "I am one."
        assert listed(server.url) == ["fast", "slow", "new"]
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("reloaded turntape.toml: models fast, slow, new; nothing changed\n")
        config.write_text("[models.fast]\nbackend = 'nowhere'\n")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("the tables before it still hold")
        assert "error: turntape.toml: [models.fast]: \"backend\": 'nowhere' is none of" in server.errors
        config.unlink()
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("turntape.toml: cannot be read")
        assert ask(server.url, "fast") == "I am two."
        assert server.stop() == 0


def test_requests_that_name_no_model_follow_the_file(tmp_path: Path) -> None:
    """They get the first model of the tables as they are now, and the log says that it is another."""
    scripts(tmp_path)
    config = tmp_path / "turntape.toml"
    config.write_text("[models.fast]\nbackend = 'scripted:one.toml'\n")
    with turntape("serve", "--store", "memory", folder=tmp_path) as server:
        assert ask(server.url, None) == "I am one."
        config.write_text(
            "[models.other]\nbackend = 'scripted:two.toml'\n[models.fast]\nbackend = 'scripted:one.toml'\n"
        )
        server.process.send_signal(signal.SIGHUP)
        server.wait_for(
            "reloaded turntape.toml: models other, fast; new: other; requests that name no model get other\n"
        )
        assert ask(server.url, None, default="other") == "I am two."
        assert server.stop() == 0


def test_a_reload_drops_no_turn(tmp_path: Path) -> None:
    """A turn that runs while its backend goes is answered by it to the end."""
    scripts(tmp_path)
    (tmp_path / "one.toml").write_text(
        '[[rule]]\nsay = [{ text = "I am" }, { pause = 1.0 }, { text = " still one." }]\n'
    )
    config = tmp_path / "turntape.toml"
    config.write_text(TABLES)
    with turntape("serve", "--store", "memory", folder=tmp_path) as server:
        body = json.dumps({"model": "fast", "input": "hi", "store": False, "stream": True}).encode()
        request = urllib.request.Request(f"{server.url}/responses", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as stream:
            while b"output_text.delta" not in stream.readline():
                pass
            config.write_text("[models.fast]\nbackend = 'scripted:two.toml'\n")
            server.process.send_signal(signal.SIGHUP)
            server.wait_for("reloaded turntape.toml")
            assert ask(server.url, "fast") == "I am two."
            assert b'"text":" still one."' in stream.read()
        assert server.stop() == 0


def test_without_a_file_sighup_changes_nothing(tmp_path: Path) -> None:
    """There is nothing to read again, which is said; the server goes on."""
    with turntape("serve", "--store", "memory", folder=tmp_path) as server:
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("nothing to reload")
        assert server.stop() == 0


def test_closing_the_terminal_ends_the_server(tmp_path: Path) -> None:
    """The SIGHUP of a terminal that went away is no wish to reload: the server ends well, its recording complete."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        options = ["record", "--out", "o", "--port", "0", "--store", "memory"]
        os.execve(sys.executable, [sys.executable, "-m", "turntape", *options], environment(tmp_path))
    shown = b""
    while not (found := re.search(rb"listening on (\S+)/v1\r", shown)):
        shown += os.read(terminal, 4096)
    ask(f"{found[1].decode()}/v1", "scripted")
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    verified = CliRunner().invoke(cli.main, ["verify", str(tmp_path / "o")])
    assert "1 session" in verified.output and verified.exit_code == 0


def test_keys_are_read_from_the_environment_and_shown_nowhere(tmp_path: Path) -> None:
    """The key reaches its backend and no other, and no log, listing or error, also where the server repeats it."""
    answers = {
        "/v1/models": listing("m"),
        "/v1/chat/completions": (401, {"error": {"message": f"Incorrect API key provided: {KEY}"}}),
    }
    with model_server(answers) as mine, model_server({"/v1/chat/completions": (200, SAYS_OK)}) as other:
        tmp_path.joinpath("turntape.toml").write_text(
            f'[backends.mine]\nspec = "chat+{mine.url}"\nkey-env = "MINE"\nheaders = {{ X-Team = "a" }}\n'
            f'[models.m]\nbackend = "mine"\n[models.n]\nbackend = "chat+{other.url}"\n'
        )
        with turntape("serve", "--store", "memory", "--log", "info", folder=tmp_path, env={"MINE": KEY}) as server:
            with pytest.raises(urllib.error.HTTPError) as refused:
                ask(server.url, "m")
            assert refused.value.code == 401
            said = refused.value.read().decode()
            assert ask(server.url, "n") == "OK"
            assert server.stop() == 0
            assert KEY not in said + server.errors + server.output
        assert mine.asked[-1][1] == f"Bearer {KEY}"
        assert mine.headers[-1]["x-team"] == "a"
        assert other.asked[-1][1] == ""


def test_a_connection_is_ready_before_the_first_request(tmp_path: Path) -> None:
    """A backend is connected to as soon as the server runs, if the connection is worth keeping; nothing is sent on it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(30)
        (tmp_path / "turntape.toml").write_text(
            f'[backends.mine]\nspec = "chat+http://127.0.0.1:{listening.getsockname()[1]}/v1"\nidle-timeout = 50\n'
            '[models.m]\nbackend = "mine"\n[models.down]\nbackend = "responses+ws://127.0.0.1:9/v1"\n'
        )
        with turntape("serve", "--store", "memory", folder=tmp_path) as server:
            connection, _ = listening.accept()
            assert server.stop() == 0
            connection.settimeout(30)
            assert connection.recv(1) == b""
            connection.close()
            assert "warning" not in server.errors.lower()


def test_an_agent_never_sees_the_keys_of_backends(tmp_path: Path) -> None:
    """The variables that keys were read from are taken out of what an agent inherits; the others are not."""
    agent = tmp_path / "agent.py"
    agent.write_text(
        "import os\nprint(os.environ.get('MINE'), os.environ.get('CEREBRAS_API_KEY'), os.environ['ELSE'])\n"
    )
    (tmp_path / "turntape.toml").write_text(
        '[backends.mine]\nspec = "vllm"\nkey-env = "MINE"\n[models.m]\nbackend = "mine"\nfallback = "cerebras"\n'
        "[backends.cerebras]\nidle-connections = 0\n"  # no connection is opened ahead
    )
    ended = subprocess.run(
        [sys.executable, "-m", "turntape", "record", "--out", "f", "--store", "memory", "--", sys.executable, agent],
        cwd=tmp_path,
        env=environment(tmp_path, {"MINE": KEY, "CEREBRAS_API_KEY": KEY, "ELSE": "else"}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.stdout == "None None else\n", ended.stderr
    assert KEY not in ended.stderr


def test_a_backend_without_its_key_refuses_for_itself_alone(tmp_path: Path) -> None:
    """The start warns; a request is refused with what to set, and the other models answer."""
    scripts(tmp_path)
    (tmp_path / "turntape.toml").write_text(TABLES + '[models.far]\nbackend = "cerebras"\nreasoning-effort = "hihg"\n')
    with turntape("serve", "--store", "memory", folder=tmp_path) as server:
        assert "warning: the backend cerebras has no key: set CEREBRAS_API_KEY" in server.errors
        assert "[models.far]: \"reasoning-effort\": 'hihg' is no effort that is known" in server.errors
        with pytest.raises(urllib.error.HTTPError) as refused:
            ask(server.url, "far")
        assert refused.value.code == 401
        assert "set CEREBRAS_API_KEY" in json.load(refused.value)["error"]["message"]
        assert ask(server.url, "fast") == "I am one."


# --- turntape models --------------------------------------------------------------------------------------


def models(*words: str) -> str:
    result = CliRunner().invoke(cli.main, ["models", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("TURNTAPE_")]:
        monkeypatch.delenv(name)
    scripts(tmp_path)
    return tmp_path


def test_models_are_listed_with_what_they_stand_for(folder: Path) -> None:
    """A table for people, JSON for programs, and nothing is connected to."""
    (folder / "turntape.toml").write_text(
        TABLES + '[models.gpu]\nbackend = "tokens+http://h:1?k=hunter2"\nrenderer = "harmony"\n'
    )
    said = models()
    assert said.splitlines()[0].split() == ["MODEL", "BACKEND", "NAME", "THERE", "WINDOW", "RENDERER", "FALLBACK"]
    assert said.splitlines()[1].split() == ["fast", "one", "(scripted:one.toml)", "story", "1000", "-", "slow"]
    assert "hunter2" not in said
    [fast, slow, gpu] = json.loads(models("--json"))["models"]
    assert fast == {
        "name": "fast",
        "backend": "one (scripted:one.toml)",
        "model": "story",
        "context_window": 1000,
        "renderer": None,
        "fallback": ["slow"],
    }
    assert (slow["model"], gpu["renderer"]) == ("slow", "harmony")


def test_what_is_missing_is_said_where_models_are_listed(folder: Path) -> None:
    """A key that is not set, a key file that is not there, an effort that nobody knows: warnings beside the table."""
    (folder / "turntape.toml").write_text(
        '[backends.mine]\nspec = "vllm"\nkey-file = "nokey"\n'
        '[models.far]\nbackend = "cerebras"\nreasoning-effort = "extreme"\n[models.near]\nreasoning-effort = "xhigh"\n'
    )
    result = CliRunner().invoke(cli.main, ["models"], env={"CEREBRAS_API_KEY": None}, catch_exceptions=False)
    assert result.exit_code == 0
    effort, variable, file = result.stderr.splitlines()
    assert effort.startswith("warning: turntape.toml: [models.far]: \"reasoning-effort\": 'extreme' is no effort")
    assert "known are: none, minimal, low, medium, high, xhigh, max" in effort
    assert variable.startswith("warning: the backend cerebras has no key: set CEREBRAS_API_KEY")
    assert file.startswith('warning: turntape.toml: [backends.mine]: "key-file": nokey cannot be read')
    assert len(result.stdout.splitlines()) == 3


def test_without_tables_the_options_are_listed(folder: Path) -> None:
    """--model, or the names of a file; a server's own names are doctor's business."""
    assert models().splitlines()[1].split()[0] == "scripted"
    [_, line] = models("--backend", "ollama", "--model", "qwen3").splitlines()
    assert line.split()[:4] == ["qwen3", "ollama", "(http://127.0.0.1:11434/v1)", "qwen3"]
    assert models("--backend", "ollama").splitlines()[1].startswith("*")
