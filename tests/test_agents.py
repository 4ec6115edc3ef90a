"""An agent is pointed at the server by its command line and environment, and by nothing that outlives it."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from turntape import agents

URL = "http://127.0.0.1:8765/v1"


def launch(*argv: str, **more: Any) -> agents.Launch:
    settings: dict[str, Any] = {"url": URL, "key": "", "model": "m", "websocket": True, "environment": {}}
    return agents.launch(argv, **{**settings, **more})


@pytest.mark.parametrize(
    ("argv", "at"),
    [
        (["codex", "exec", "hi"], 1),
        (["/opt/bin/codex", "exec", "hi"], 1),
        (["npx", "-y", "@openai/codex@0.171.0", "exec", "hi"], 3),
        (["npx", "codex", "exec", "hi"], 2),
        (["npx", "-p", "@openai/codex", "codex", "exec", "hi"], 4),
        (["timeout", "20", "codex", "exec", "hi"], 3),
        (["timeout", "-k", "5", "--signal=INT", "20", "nice", "-n", "5", "codex", "exec"], 9),
        (["env", "-u", "X", "A=1", "/usr/bin/env", "B=codex", "codex", "exec"], 7),
        (["node", "--no-warnings", "/lib/node_modules/@openai/codex/bin/codex.js", "exec"], 3),
        (["/vendor/codex-x86_64-unknown-linux-musl", "exec"], 1),
    ],
)
def test_codex_gets_overrides_before_its_own_arguments(argv: list[str], at: int) -> None:
    """However Codex is started, the overrides stand before its arguments, so that the user's own still win."""
    got = list(launch(*argv).argv)
    overrides = got[at : at + 6]
    assert got[:at] + got[at + 6 :] == argv
    assert overrides[0::2] == ["-c"] * 3
    assert overrides[1] == 'model_provider="turntape"'
    assert f'base_url="{URL}"' in overrides[3]
    assert overrides[5] == 'model="m"'


@pytest.mark.parametrize(
    "argv",
    [
        ["sh", "-c", "codex exec hi"],
        ["timeout", "20", "python", "my_agent.py", "codex"],
        ["env", "A=1"],
        ["python", "codex"],
        ["codex.py"],
        ["/src/codex-agent"],
    ],
)
def test_what_is_not_codex_gets_no_overrides(argv: list[str]) -> None:
    """A shell's text is not looked into, and a word that is another program's argument is left alone."""
    assert agents.codex_at(argv) is None
    assert list(launch(*argv).argv) == argv


def test_codex_always_has_a_key_of_its_own() -> None:
    """Codex reads its key from a variable we set, and so never sends the key of the user's account."""
    command = launch("codex", "exec")
    assert f'env_key="{agents.KEY_VARIABLE}"' in command.argv[4]
    assert command.environment[agents.KEY_VARIABLE] == agents.NO_KEY
    assert launch("codex", key="k1").environment[agents.KEY_VARIABLE] == "k1"
    assert "k1" not in " ".join(launch("codex", key="k1").argv)


def test_codex_uses_http_when_the_websocket_is_off() -> None:
    """Codex is told what the server offers, so that it does not try in vain."""
    assert "supports_websockets=false" in launch("codex", websocket=False).argv[4]


def test_without_a_model_the_agent_keeps_its_own() -> None:
    """A server that has no default model leaves the choice to the agent."""
    assert not [word for word in launch("codex", "exec", model="").argv if word.startswith("model=")]


def test_other_agents_are_left_alone_but_for_two_variables() -> None:
    """An SDK agent runs as written, with OPENAI_BASE_URL and OPENAI_API_KEY set."""
    command = launch("python", "codex.py", "codex", key="k1")
    assert command.argv == ("python", "codex.py", "codex")
    assert command.environment["OPENAI_BASE_URL"] == URL
    assert command.environment["OPENAI_API_KEY"] == "k1"


def test_a_proxy_does_not_come_between() -> None:
    """The user's proxy exceptions are kept, and this machine added to them."""
    assert launch("a", environment={"NO_PROXY": "corp,localhost"}).environment["NO_PROXY"] == "corp,localhost,127.0.0.1"
    assert launch("a", environment={"no_proxy": "corp"}).environment["no_proxy"] == "corp,127.0.0.1,localhost"


@pytest.mark.parametrize(("script", "code"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)])
async def test_the_agents_exit_code_comes_back(script: str, code: int) -> None:
    """A code is passed on as it is, a signal as a shell would."""
    assert await agents.run(launch(sys.executable, "-c", script)) == code


async def test_the_agent_never_sees_the_backend_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The upstream key stays with the server; the rest of the environment goes on to the agent."""
    monkeypatch.setenv("TURNTAPE_BACKEND_KEY", "sk-upstream")
    monkeypatch.setenv("OTHER", "kept")
    out = tmp_path / "environment.json"
    script = f"import json, os; json.dump(dict(os.environ), open({str(out)!r}, 'w'))"
    assert await agents.run(launch(sys.executable, "-c", script)) == 0
    seen = json.loads(out.read_text())
    assert "sk-upstream" not in seen.values()
    assert (seen["OTHER"], seen["OPENAI_BASE_URL"]) == ("kept", URL)


async def test_a_missing_agent_is_named() -> None:
    """A program that is not there is an error with a cure, not a traceback."""
    with pytest.raises(agents.AgentMissing, match="no-such-agent: no such program; install it"):
        await agents.run(launch("no-such-agent"))


def test_codex_presents_its_own_account_only_where_asked_to() -> None:
    """With the user's account as its key, Codex gets no other, and nothing else is given one."""
    command = launch("codex", "exec", key="", account=True)
    assert any("requires_openai_auth=true" in word for word in command.argv)
    assert not any("env_key" in word for word in command.argv)
    assert not {"OPENAI_API_KEY", "TURNTAPE_API_KEY"} & command.environment.keys()
