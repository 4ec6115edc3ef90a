"""The command ``record --upstream``: what it takes, where keys may go, and how it stops."""

import signal
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner
from relaying import answer, delta, post, sse
from running import turntape

from turntape.cli import main
from turntape.relaying import _of_account
from turntape.replay.fixture import Fixture
from turntape.replay.relay.upstream import Upstream


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--backend", "scripted"], "--backend does not go with --upstream"),
        (["--model", "m"], "name the model to the agent"),
        (["--store", "memory"], "--store does not go with --upstream"),
    ],
)
def test_options_of_a_server_that_answers_are_refused(words: list[str], said: str, tmp_path: Path) -> None:
    """What would have no effect is an error that names it."""
    command = ["record", "--out", str(tmp_path / "out.jsonl"), "--upstream", "http://127.0.0.1:9/v1", *words]
    ran = CliRunner().invoke(main, command)
    assert ran.exit_code == 2
    assert said in ran.output
    assert not (tmp_path / "out.jsonl").exists()


def test_a_wrong_url_is_refused(tmp_path: Path) -> None:
    """A URL that leads nowhere is said before anything is opened, without what secret it may hold."""
    command = ["record", "--out", str(tmp_path / "out.jsonl"), "--upstream", "https://me:hunter22@h/v1"]
    ran = CliRunner().invoke(main, command)
    assert ran.exit_code == 2
    assert "--upstream: the URL holds a user name or password" in ran.output
    assert "hunter22" not in ran.output


@pytest.mark.parametrize(
    ("url", "environment", "sends"),
    [
        ("https://api.openai.com/v1", {}, True),
        ("https://chatgpt.com/backend-api/codex", {}, True),
        ("https://api.openai.com/v1", {"OPENAI_API_KEY": "sk-x"}, False),
        ("http://api.openai.com/v1", {}, False),
        ("https://api.openai.com.evil.example/v1", {}, False),
        ("https://notopenai.com/v1", {}, False),
        ("https://api.x.example/v1", {}, False),
    ],
)
def test_an_accounts_key_goes_to_its_owner_alone(url: str, environment: dict[str, str], sends: bool) -> None:
    """The key of the user's own account is sent, over TLS, to OpenAI, and to nobody who only looks like it."""
    assert _of_account(Upstream.parse(url), environment) is sends


def test_an_upstream_that_is_not_there_is_said_once(tmp_path: Path) -> None:
    """It is why nothing was recorded, however often an agent tries; nobody is told that the agent did not come."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    with turntape("record", "--upstream", url, "--out", "out.jsonl", folder=tmp_path) as relay:
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", relay.port)) as client:
                client.settimeout(20)
                client.sendall(post(b'{"input":"Hi"}'))
                assert b" 502 " in client.recv(65536)
        assert relay.stop() == 0
    assert relay.errors.count("nothing listens there") == 1
    assert "not passed on, for the upstream could not be reached: 3 requests\n" in relay.errors
    assert relay.errors.endswith("recorded nothing: the upstream cannot be reached\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_an_answer_end(number: signal.Signals, tmp_path: Path) -> None:
    """After a signal the answer in flight goes on to its end, nobody else is let in, and the file is whole."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        with turntape("record", "--upstream", url, "--out", "out.jsonl", folder=tmp_path) as relay:
            client = socket.create_connection(("127.0.0.1", relay.port))
            client.settimeout(20)
            client.sendall(post(b'{"input":"Hi"}'))
            upstream, _ = listener.accept()
            assert upstream.recv(65536).endswith(b'{"input":"Hi"}')  # head and body in one, as they came
            idle = socket.create_connection(("127.0.0.1", relay.port))
            said = answer(sse(delta("a", 4), delta("b", 5)), type_="text/event-stream")
            upstream.sendall(said[:-10])
            assert client.recv(1)
            relay.process.send_signal(number)
            relay.wait_for("stopping")
            upstream.sendall(said[-10:])
            upstream.close()
            received = b""
            while some := client.recv(65536):
                received += some
            assert received == said[1:]
            client.close()
            assert relay.wait() == 0
            idle.close()
    fixture = Fixture.load(tmp_path / "out.jsonl")
    assert fixture.whole
    assert type(fixture.lines[-1]).__name__ == "Gone"


def test_a_killed_relay_leaves_a_shorter_recording(tmp_path: Path) -> None:
    """kill -9 of the relay itself leaves a file that can be read, with what was flushed by then."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        turntape(
            "record", "--upstream", f"http://127.0.0.1:{listener.getsockname()[1]}/v1", "--out", "out.jsonl",
            folder=tmp_path,
        ) as relay,
        socket.create_connection(("127.0.0.1", relay.port)) as client,
    ):  # fmt: skip
        client.settimeout(20)
        client.sendall(post(b'{"input":"Hi","stream":true}'))
        upstream, _ = listener.accept()
        completed = '{"type":"response.completed","response":{"id":"resp_1","output":[]}}'
        said = answer(sse(delta("a", 4), completed) + b"data: more\n\n", type_="text/event-stream")
        upstream.sendall(said[:-8])
        received = b""
        while len(received) < len(said) - 8:
            received += client.recv(65536)
        while b"response.completed" not in (tmp_path / "out.jsonl").read_bytes():
            assert relay.process.poll() is None
        relay.stop(signal.SIGKILL)
        upstream.close()
    assert len(Fixture.load(tmp_path / "out.jsonl").lines) >= 5
