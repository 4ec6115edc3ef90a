"""``turntape doctor``: each way in which a backend cannot be used is said with what to do, and a good one is good."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from model_server import SAYS_OK, listing, model_server
from running import turntape

from turntape import cli
from turntape.probing import models_target

KEY = "hunter2-hunter2"


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No configuration and no key but the test's own."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("TURNTAPE_") or name.endswith("_API_KEY")]:
        monkeypatch.delenv(name)
    return tmp_path


CHAT = {"/v1/chat/completions": (400, {"error": {"message": "'messages' is required"}})}
"""What a server says that speaks chat completions and is sent no body."""

RESPONSES = {"/v1/responses": (400, {"error": {"message": "'input' is required"}})}


def doctor(*words: str, **env: str) -> Result:
    result = CliRunner().invoke(cli.main, ["doctor", *words], env=env, catch_exceptions=False)
    assert KEY not in result.output
    return result


def closed_port() -> int:
    """A port where nothing listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_a_good_backend_is_good() -> None:
    """It is connected to with its key, and lists the model."""
    with model_server({"/v1/models": listing("qwen3", "other")} | CHAT) as server:
        result = doctor("--backend", f"chat+{server.url}", "--model", "qwen3", TURNTAPE_BACKEND_KEY=KEY)
        assert result.exit_code == 0, result.output
        assert f"127.0.0.1:{server.port} lists 2 models, this one among them" in result.output
        assert result.output.startswith("ok ")
        sent = f"Bearer {KEY}"
        assert server.asked == [("/v1/models", sent, None), ("/v1/chat/completions", sent, None)]


@pytest.mark.parametrize(
    ("spec", "answers", "says"),
    [
        ("chat+{base}/v1", RESPONSES, "does not speak chat completions there (HTTP 404). Try responses+{base}/v1."),
        ("responses+{base}/v1", CHAT, "does not speak the Responses API there (HTTP 404). Try chat+{base}/v1."),
        ("chat+{base}", CHAT | RESPONSES, "does not speak chat completions there (HTTP 404). Try chat+{base}/v1."),
        ("chat+{base}/v2", CHAT, "does not speak chat completions there (HTTP 404). Try chat+{base}/v1."),
        ("vllm+{base}", CHAT, "does not speak chat completions there (HTTP 404). Try vllm+{base}/v1."),
        ("openai+{base}", CHAT | RESPONSES, "does not speak the Responses API there (HTTP 404). Try openai+{base}/v1."),
        (
            "chat+{base}/v1",
            {},
            "does not speak chat completions there (HTTP 404). Check its URL: it usually ends in /v1.",
        ),
        ("tokens+{base}", CHAT, "is reached as chat+URL. Try chat+{base}/v1."),
        (
            "responses+{ws}/v1",
            RESPONSES,
            "the Responses API over a WebSocket there (HTTP 400). Try responses+{base}/v1.",
        ),
        ("responses+{ws}/v1", CHAT, "the Responses API over a WebSocket there (HTTP 404). Try chat+{base}/v1."),
    ],
)
def test_a_server_that_speaks_something_else_is_recognised(spec: str, answers: dict[str, Any], says: str) -> None:
    """No token is asked for; what it answers to is named."""
    with model_server({f"{root}/models": listing("m") for root in ("", "/v1", "/v2")} | answers) as server:
        base = server.url.removesuffix("/v1")
        places = {"base": base, "ws": base.replace("http", "ws")}
        result = doctor("--backend", spec.format(**places), "--model", "m", TURNTAPE_BACKEND_KEY=KEY)
        assert all(not body or body["messages"] == body["input"] == 0 for _, _, body in server.asked)
    assert result.exit_code == 1, result.output
    assert says.format(**places) in result.output


@pytest.mark.parametrize("status", [200, 403, 422, 429, 500])
def test_a_server_that_answers_otherwise_is_not_blamed(status: int) -> None:
    """Only an unknown route, with and without a model, says that the protocol is wrong."""
    answers = {"/v1/models": listing("m"), "/v1/chat/completions": (status, {"error": {"message": "what?"}})}
    with model_server(answers) as server:
        assert doctor("--backend", f"chat+{server.url}", "--model", "m").exit_code == 0


def test_a_key_that_only_the_route_asks_for_is_found_wrong() -> None:
    """Some list their models to everybody."""
    answers = {"/v1/models": listing("m"), "/v1/chat/completions": (401, {"error": {"message": "Who?"}})}
    with model_server(answers) as server:
        result = doctor("--backend", f"chat+{server.url}", "--model", "m")
    assert result.exit_code == 1
    assert "answered with HTTP 401: Who? Check the key" in result.output


def test_a_server_without_a_list_is_good_if_it_has_the_route() -> None:
    """A list is no part of the protocol; an answer that could mean anything does not make up for it."""
    with model_server(CHAT) as server:
        result = doctor("--backend", f"chat+{server.url}", "--model", "m")
    assert result.exit_code == 0
    assert "answers, and does not list its models" in result.output
    with model_server({"/v1/chat/completions": (500, {})}) as server:
        assert doctor("--backend", f"chat+{server.url}", "--model", "m").exit_code == 1


@pytest.mark.parametrize("scheme", ["http", "ws"])
def test_another_turntape_is_good_over_either_transport(scheme: str, tmp_path: Path) -> None:
    """It is connected to as it would be in use, and samples nothing."""
    with turntape("serve", "--store", "memory", "--log", "info", folder=tmp_path / "other") as other:
        url = other.url.replace("http", scheme)
        result = doctor("--backend", f"responses+{url}", "--model", "scripted")
        assert result.exit_code == 0, result.output
        wrong = doctor("--backend", f"chat+{other.url}", "--model", "scripted")
        assert f"Try responses+{other.url}." in wrong.output
        assert wrong.exit_code == 1
    if scheme == "ws":
        with turntape("serve", "--store", "memory", "--no-websocket", folder=tmp_path / "deaf") as deaf:
            result = doctor("--backend", f"responses+{deaf.url.replace('http', 'ws')}", "--model", "scripted")
            assert f"over a WebSocket there (HTTP 426). Try responses+{deaf.url}." in result.output


def test_a_sample_is_asked_for_only_when_wanted() -> None:
    """--sample asks for a few tokens, with a tool on offer, by the route that agents' requests take."""
    answers = {"/v1/models": listing("m"), "/v1/chat/completions": (200, SAYS_OK)}
    with model_server(answers) as server:
        result = doctor("--backend", f"chat+{server.url}", "--model", "m", "--sample")
        assert result.exit_code == 0, result.output
        assert "sampled 2 tokens in " in result.output
        path, _, body = server.asked[-1]
        assert path == "/v1/chat/completions"
        assert body["tools"] and body["max_tokens"] <= 32 and body["model"] == "m"


WRONG: list[tuple[dict[str, tuple[int, Any]], str]] = [
    ({"/v1/models": (401, {"error": {"message": f"Incorrect API key provided: {KEY}"}})}, "Check the key"),
    ({}, "Check its URL: it usually ends in /v1."),
    ({"/v1/models": (200, "<html>welcome</html>")}, "something that is no list of models. Check its URL"),
    ({"/v1/models": listing("a", "b")}, "does not list the model 'm'. It lists a, b."),
    ({"/v1/models": listing()}, "serves no model. Load one there, or pull it."),
    ({"/v1/models": (503, {"error": {"message": "Loading model"}})}, "HTTP 503: Loading model. Come back later."),
]


@pytest.mark.parametrize(("answers", "says"), WRONG)
def test_what_is_wrong_is_said_with_its_cure(answers: dict[str, tuple[int, Any]], says: str) -> None:
    """A key that is refused, a wrong path, a web page, a model that is not there, a server that is not ready."""
    with model_server(answers) as server:
        result = doctor("--backend", f"chat+{server.url}", "--model", "m", TURNTAPE_BACKEND_KEY=KEY)
    assert result.exit_code == 1
    assert result.output.startswith("FAIL ")
    assert says in result.output


@pytest.mark.parametrize(
    ("message", "cure"),
    [
        ('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set', "Start vLLM with"),
        ("tools param requires --jinja flag", "Start llama.cpp with --jinja."),
        ("registry.ollama.ai/library/gemma does not support tools", "Agents need tools: use another model."),
    ],
)
def test_a_server_without_tools_is_found_by_a_sample(message: str, cure: str) -> None:
    """The flags it was started without are named."""
    answers = {"/v1/models": listing("m"), "/v1/chat/completions": (400, {"error": {"message": message, "code": 400}})}
    with model_server(answers) as server:
        result = doctor("--backend", f"chat+{server.url}", "--model", "m", "--sample")
    assert result.exit_code == 1
    assert cure in result.output


def test_nothing_there_no_such_name_and_no_tls_are_told_apart() -> None:
    """Each with its cure."""
    refused = doctor("--backend", f"chat+http://127.0.0.1:{closed_port()}/v1", "--model", "m")
    assert "nothing listens there. Check that it runs and that its URL is right." in refused.output
    unknown = doctor("--backend", "chat+http://nowhere.invalid/v1", "--model", "m")
    assert "its name cannot be resolved" in unknown.output
    with model_server({}) as server:
        tls = doctor("--backend", f"chat+https://127.0.0.1:{server.port}/v1", "--model", "m")
    assert "was connected to, but did not answer with TLS" in tls.output and "Is its URL http://?" in tls.output
    assert {refused.exit_code, unknown.exit_code, tls.exit_code} == {1}


def test_a_server_that_takes_any_name_is_not_blamed() -> None:
    """llama.cpp serves what it has loaded, whatever it is called."""
    with model_server({"/v1/models": listing("/models/q.gguf", owner="llamacpp")} | CHAT) as server:
        result = doctor("--backend", f"llamacpp+{server.url}", "--model", "anything")
    assert result.exit_code == 0, result.output
    assert "serves /models/q.gguf, under any name" in result.output


def test_a_server_that_takes_tokens_is_recognised() -> None:
    """What kind of server it is and how prompts will be made for it; one that takes messages only is said to be so."""
    with model_server(
        {"/v1/models": listing("openai/gpt-oss-20b"), "/version": (200, {"version": "0.33.0"})}
    ) as server:
        result = doctor("--backend", f"tokens+http://127.0.0.1:{server.port}", "--model", "openai/gpt-oss-20b")
    assert result.exit_code == 0, result.output
    assert "lists 1 model, this one among them" in result.output
    assert "vllm takes token ids, rendered by harmony" in result.output
    with model_server({"/v1/models": listing("m")}) as server:
        result = doctor("--backend", f"tokens+{server.url}", "--model", "m")
    assert result.exit_code == 1
    assert "does not look like vLLM, SGLang or llama.cpp" in result.output


def test_every_model_and_backend_of_the_file_is_looked_at() -> None:
    """Models, their fallbacks and backends that no model uses, each in its line; JSON says the same. Each list, and
    each route, is asked for once."""
    with model_server({"/v1/models": listing("big", "small")} | CHAT) as server:
        Path("turntape.toml").write_text(
            f'[backends.here]\nspec = "chat+{server.url}"\nkey-env = "MINE"\n'
            f'[backends.spare]\nspec = "chat+http://127.0.0.1:{closed_port()}/v1"\n'
            '[models.fast]\nbackend = "here"\nmodel = "big"\nfallback = ["slow", "cerebras"]\n'
            '[models.slow]\nbackend = "here"\nmodel = "missing"\n'
        )
        result = doctor(MINE=KEY)
        assert [path for path, _, _ in server.asked] == ["/v1/models", "/v1/chat/completions"]
        as_json = doctor("--json", MINE=KEY)
        one = json.loads(doctor("--json", "--model", "slow", MINE=KEY).output)
    assert [(check["name"], check["ok"]) for check in one["checks"]] == [("slow", False)]
    assert result.exit_code == as_json.exit_code == 1
    value = json.loads(as_json.output)
    assert value["ok"] is False
    assert [(check["name"], check["model"], check["ok"]) for check in value["checks"]] == [
        ("fast", "big", True),
        ("slow", "missing", False),
        ("fast (fallback)", "big", False),
        ("", "", False),
    ]
    lines = result.output.splitlines()
    assert [line.split()[0] for line in lines] == ["ok", "FAIL", "FAIL", "FAIL"]
    assert "does not list the model 'missing'" in lines[1]
    assert "The backend cerebras has no key: set CEREBRAS_API_KEY" in lines[2]
    assert "nothing listens there" in lines[3]


def test_a_script_is_read(tmp_path: Path) -> None:
    """Without any configuration the built-in script is well; a broken one is said to be so."""
    assert doctor().exit_code == 0
    (tmp_path / "broken.toml").write_text("[[rule]]\n")
    result = doctor("--backend", "scripted:broken.toml")
    assert result.exit_code == 1
    assert result.output.startswith("FAIL  any model at scripted:broken.toml: rule 1: ")
    assert result.output.count("broken.toml") == 1


def test_a_slip_in_an_effort_and_the_place_of_a_key_are_said() -> None:
    """An effort that nobody knows may be a new one: a warning. A key file that is not there is named with its table."""
    Path("turntape.toml").write_text(
        '[backends.mine]\nspec = "chat+http://127.0.0.1:9/v1"\nkey-file = "nokey"\n'
        '[models."*"]\nreasoning-effort = "hihg"\nfallback = "mine"\n'
    )
    result = doctor()
    assert result.stderr.splitlines()[0] == (
        'warning: turntape.toml: [models."*"]: "reasoning-effort": \'hihg\' is no effort that is known, and is sent as it '
        "is; did you mean 'high'?"
    )
    ok, failed = result.stdout.splitlines()
    assert ok.startswith("ok    any model at scripted")
    assert failed.startswith(
        "FAIL  any model (fallback) at mine (chat+http://127.0.0.1:9/v1): "
        'turntape.toml: [backends.mine]: "key-file": nokey cannot be read'
    )


@pytest.mark.parametrize(
    ("url", "path", "is_root"),
    [
        ("http://h/v1", "/v1/models", False),
        ("http://h/v1/chat/completions?api-version=1", "/v1/models?api-version=1", False),
        ("wss://h/v1/responses", "/v1/models", False),
        ("http://h:8000", "/v1/models", True),
        ("http://h:8000/v1/", "/v1/models", True),
    ],
)
def test_where_models_are_listed(url: str, path: str, is_root: bool) -> None:
    """Beside the route that is used, whatever form the URL has."""
    assert models_target(url, is_root=is_root).path == path
