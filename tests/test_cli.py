"""The command line as its users meet it: what it prints, how it ends, and what its exit code says."""

import contextlib
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen
from running import LAB, ROOT, environment, turntape

from turntape import __version__
from turntape.serving import Address

KEY = "sk-test-cli"


@frozen
class Ended:
    code: int
    output: str
    errors: str


def run(*words: str | Path, folder: Path, **more: str) -> Ended:
    """Run ``turntape WORDS`` in ``folder`` to its end."""
    command = [sys.executable, "-m", "turntape", *map(str, words)]
    ended = subprocess.run(
        command,
        cwd=folder,
        env=environment(folder, more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def post(url: str, body: dict[str, Any], *, key: str = "any", timeout: float = 30) -> Any:
    request = urllib.request.Request(
        f"{url}/responses",
        json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {key}"},
    )
    return urllib.request.urlopen(request, timeout=timeout)


def ask(url: str, text: str, **more: Any) -> dict[str, Any]:
    """The response to one user message."""
    with post(url, {"model": "lab-model", "input": text, **more}) as answer:
        response: dict[str, Any] = json.load(answer)
        return response


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"# for the tests\n\n{KEY}\nsk-second\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Two turns of one conversation, and one of another."""
    out = tmp_path / "recording.jsonl"
    options = ("record", "--out", out, "--store", "memory", "--backend", f"scripted:{LAB}")
    with turntape(*options, folder=tmp_path / "recorder") as server:
        ask(server.url, "one")
        ask(server.url, "two")
        assert server.stop() == 0
    return out


# --- serve ------------------------------------------------------------------------------------------------


def test_version(tmp_path: Path) -> None:
    """--version says which one."""
    assert run("--version", folder=tmp_path).output == f"turntape {__version__}\n"


def test_serve_says_how_to_use_it(tmp_path: Path) -> None:
    """Its start says where it listens, what answers, what is kept where, and how to point Codex and an SDK at it."""
    with turntape("serve", folder=tmp_path) as server:
        said = server.errors
        assert f"OPENAI_BASE_URL={server.url}" in said
        assert f'base_url="{server.url}"' in said
        assert "scripted (built in)" in said
        store = tmp_path / ".local" / "share" / "turntape" / "responses.sqlite3"
        assert str(store) in said
        assert store.stat().st_mode & 0o777 == 0o600
        assert ask(server.url, "hello")["status"] == "completed"


def test_store_outlives_the_server(tmp_path: Path) -> None:
    """A stored response is continued by the next server on the same file."""
    options = ("serve", "--store", tmp_path / "kept.sqlite3", "--backend", f"scripted:{LAB}")
    with turntape(*options, folder=tmp_path / "1") as server:
        first = ask(server.url, "one", store=True)
        assert server.stop() == 0
    with turntape(*options, folder=tmp_path / "2") as server:
        assert ask(server.url, "two", previous_response_id=first["id"])["status"] == "completed"
        assert server.stop() == 0


def test_model_is_listed_and_used(tmp_path: Path) -> None:
    """--model names the model that is listed first, and that a request gets which names none."""
    with turntape("serve", "--store", "memory", "--model", "mine", folder=tmp_path) as server:
        with urllib.request.urlopen(f"{server.url}/models", timeout=30) as answer:
            assert json.load(answer)["data"][0]["id"] == "mine"
        with post(server.url, {"input": "hello"}) as answer:
            assert json.load(answer)["model"] == "mine"


def test_keys_are_asked_for_and_never_shown(tmp_path: Path, keys: Path) -> None:
    """Every key of the file lets in, another does not, and none is printed."""
    with turntape("serve", "--store", "memory", "--key-file", keys, folder=tmp_path / "server") as server:
        for key in (KEY, "sk-second"):
            assert post(server.url, {"model": "m", "input": "hi"}, key=key).status == 200
        with pytest.raises(urllib.error.HTTPError) as refused:
            post(server.url, {"model": "m", "input": "hi"}, key="# for the tests")
        assert refused.value.code == 401
        assert server.stop() == 0
        for key in (KEY, "sk-second"):
            assert key not in server.errors + server.output
        assert "warning" not in server.errors


def test_key_file_that_others_can_read_warns(tmp_path: Path, keys: Path) -> None:
    """The file's permissions are looked at, and the cure is named."""
    keys.chmod(0o644)
    with turntape("serve", "--store", "memory", "--key-file", keys, folder=tmp_path / "server") as server:
        assert f"warning: {keys} can be read by others on this machine; chmod 600 it" in server.errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_lets_turns_end(tmp_path: Path, number: int) -> None:
    """After a signal the answer in flight is completed, the recording is whole, and the exit code is 0."""
    script = tmp_path / "slow.toml"
    script.write_text('[[rule]]\ntokens_per_s = 10\nsay = [{ text = "one two three four five six seven eight " }]\n')
    out = tmp_path / "out.jsonl"
    options = ("record", "--out", out, "--store", "memory", "--backend", f"scripted:{script}")
    with turntape(*options, folder=tmp_path / "server") as server:
        answer = post(server.url, {"model": "m", "input": "hi", "stream": True})
        read = answer.readline()
        while b"output_text.delta" not in read:
            read = answer.readline()
        server.process.send_signal(number)
        assert b"event: response.completed\n" in answer.read()
        assert server.wait() == 0
        assert f"recorded {out}: 1 session, 1 turn" in server.errors
    assert run("verify", out, folder=tmp_path).code == 0


def test_second_signal_stops_at_once(tmp_path: Path) -> None:
    """A second signal does not wait for the turn in flight; what was recorded so far can be replayed."""
    script = tmp_path / "hang.toml"
    script.write_text('[[rule]]\nsay = [{ text = "and then" }, { hang = true }]\n')
    out = tmp_path / "out.jsonl"
    options = ("record", "--out", out, "--store", "memory", "--backend", f"scripted:{script}")
    with turntape(*options, folder=tmp_path / "server") as server:
        answer = post(server.url, {"model": "m", "input": "hi", "stream": True})
        answer.readline()
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("a second signal stops at once")
        assert server.stop(signal.SIGTERM) == 128 + signal.SIGTERM
    assert run("verify", out, folder=tmp_path).code == 0


def test_serve_records_each_run_into_a_file_of_its_own(tmp_path: Path) -> None:
    """--record DIR makes the folder, and a file per run that only its owner can read."""
    folder = tmp_path / "recordings"
    for n in (1, 2):
        with turntape("serve", "--store", "memory", "--record", folder, folder=tmp_path / str(n)) as server:
            ask(server.url, "hello")
            ask(server.url, "hello again")
            assert server.stop() == 0
    files = sorted(folder.iterdir())
    assert len(files) == 2
    for path in files:
        assert re.fullmatch(r"turntape-\d{8}T\d{6}\.\d{6}Z\.jsonl", path.name)
        assert path.stat().st_mode & 0o777 == 0o600
    verified = run("verify", *files, folder=tmp_path)
    assert verified.code == 0
    assert verified.output.count(": 2 sessions") == 2


def test_killed_server_leaves_a_recording_that_replays(tmp_path: Path) -> None:
    """After kill -9 every finished turn is in the file, and it verifies."""
    out = tmp_path / "out.jsonl"
    with turntape("record", "--out", out, "--store", "memory", folder=tmp_path / "server") as server:
        ask(server.url, "hello")
        server.process.kill()
        server.process.wait()
    verified = run("verify", "--json", out, folder=tmp_path)
    assert verified.code == 0
    assert json.loads(verified.output)["fixtures"][0]["n_turns"] == 1


# --- what is refused ---------------------------------------------------------------------------------------


def test_other_machines_only_with_keys(tmp_path: Path) -> None:
    """Listening beyond loopback without keys is refused with the cure, and nothing was opened."""
    ended = run("serve", "--host", "0.0.0.0", "--store", tmp_path / "store", folder=tmp_path)
    assert ended.code == 2
    assert "--host 0.0.0.0 can be reached from other machines" in ended.errors
    assert "--key-file" in ended.errors
    assert not (tmp_path / "store").exists()


def test_port_in_use(tmp_path: Path) -> None:
    """A port that is taken is the environment's failure, with the cure."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run("serve", "--port", str(port), "--store", "memory", folder=tmp_path)
    assert ended.code == 3
    assert f"cannot listen on 127.0.0.1, port {port} (" in ended.errors
    assert "--port" in ended.errors


def test_store_that_is_no_store(tmp_path: Path) -> None:
    """A file that is not a database is left alone, and named."""
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but somebody's notes\n" * 100)
    ended = run("serve", "--store", path, folder=tmp_path)
    assert ended.code == 3
    assert str(path) in ended.errors
    assert path.read_text().startswith("not a database")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["serve", "--backend", "scripted:nowhere.toml"], 2, "nowhere.toml"),
        (["serve", "--backend", "scripted:wrong.toml"], 2, "wrong.toml"),
        (["serve", "--backend", "chat+http://"], 2, "--backend"),
        (["serve", "--store", "no/folder/store", "--port", "0"], 2, "--store: there is no folder no/folder; make it"),
        (["serve", "--record", "no/recordings", "--port", "0"], 2, "--record: there is no folder no; make it first"),
        (["serve", "--config", "f"], 2, "--config goes before the command: turntape --config FILE serve"),
        (["serve", "--key-file", "nowhere"], 2, "'nowhere' does not exist"),
        (["serve", "--key-file", "empty"], 2, "empty holds no key"),
        (["serve", "--key-file", "prose"], 2, "line 1 is not a key"),
        (["serve", "--backend", "chat+http://127.0.0.1:9/v1", "--backend-key-file", "two"], 2, "holds 2 keys"),
        (["record", "--out", "empty"], 2, "empty: is there already"),
        (["record", "--out", "no/folder/x.jsonl"], 2, "there is no folder no/folder"),
        (["record"], 2, "Missing option '--out'"),
        (["stub"], 2, "Missing argument 'FIXTURE"),
        (["stub", "nowhere.jsonl"], 2, "'nowhere.jsonl' does not exist"),
        (["stub", "prose"], 2, "prose:1: "),
        (["verify", "prose"], 2, "prose:1: "),
        (["show", "prose"], 2, "prose:1: "),
        (["verify", "later"], 2, "later:1: "),
        (["frobnicate"], 2, "No such command 'frobnicate'"),
    ],
)
def test_wrong_use_is_named(words: list[str], code: int, says: str, tmp_path: Path) -> None:
    """Whatever is wrong is named in a line, with exit code 2 and without a traceback."""
    for name, text in {
        "empty": "",
        "prose": "this is my secret diary\n",
        "two": "sk-a\nsk-b\n",
        "wrong.toml": "[[rule]]\nsay = 5\n",
        "later": '{"turntape":99}\n',
    }.items():
        (tmp_path / name).write_text(text)
    ended = run(*words, folder=tmp_path)
    assert (ended.code, says in ended.errors) == (code, True), ended.errors
    assert "secret diary" not in ended.errors
    assert "sk-" not in ended.errors


def test_the_line_for_programs_has_the_bound_address(tmp_path: Path, keys: Path) -> None:
    """Where other machines can connect, the line says so as it was asked for, and a local address stands beside it."""
    options = ("serve", "--store", "memory", "--host", "0.0.0.0", "--key-file", keys)
    with turntape(*options, folder=tmp_path / "server") as server:
        assert re.fullmatch(r"http://0\.0\.0\.0:\d+/v1", server.url)
        local = f"http://127.0.0.1:{server.port}/v1"
        assert f"other machines can reach this server; from this one it is {local}" in server.errors
        assert f"OPENAI_BASE_URL={local} " in server.errors
        assert post(local, {"model": "m", "input": "hi"}, key=KEY).status == 200


def test_an_address_is_a_url() -> None:
    """An IPv6 address stands in brackets; one that stands for all is written as one that can be called."""
    assert Address("::", 80).bound == "http://[::]:80/v1"
    assert Address("::", 80).local == "http://[::1]:80/v1"
    assert Address("192.168.0.2", 80).local == Address("192.168.0.2", 80).bound == "http://192.168.0.2:80/v1"


# --- record, verify, show, stub -----------------------------------------------------------------------------


def test_record_says_what_came_of_it(tmp_path: Path) -> None:
    """Its last line counts what is in the file; nobody came, no file."""
    out = tmp_path / "out.jsonl"
    with turntape("record", "--out", out, "--store", "memory", folder=tmp_path / "1") as server:
        assert server.stop() == 0
        assert server.errors.endswith("recorded nothing: nobody connected\n")
    assert not out.exists()
    with turntape("record", "--out", out, "--store", "memory", "--json", folder=tmp_path / "2") as server:
        ask(server.url, "hello")
        assert server.stop() == 0
    said = json.loads(server.output)
    assert (said["recording"], said["n_sessions"], said["n_turns"]) == (str(out), 1, 1)
    assert said["n_bytes"] == out.stat().st_size


def test_missing_agent_leaves_no_file(tmp_path: Path) -> None:
    """An agent that is not installed is named, with exit code 3, and the recording's name stays free."""
    ended = run("record", "--out", "out.jsonl", "--port", "0", "--store", "memory", "--", "no-agent", folder=tmp_path)
    assert ended.code == 3
    assert "no-agent: no such program" in ended.errors
    assert not (tmp_path / "out.jsonl").exists()


ASKS = (
    "import json, os, urllib.request as u\n"
    "body = json.dumps({'model': 'm', 'input': 'hi'}).encode()\n"
    "head = {'content-type': 'application/json'}\n"
    "u.urlopen(u.Request(os.environ['OPENAI_BASE_URL'] + '/responses', body, head)).read()\n"
)
"""A small agent: one request, to the server that its environment names."""


def test_standard_output_is_the_agents(tmp_path: Path) -> None:
    """What an agent prints can be piped on: turntape itself speaks on standard error, its JSON in the last line."""
    agent = [sys.executable, "-c", f"{ASKS}print('only this')"]
    ended = run("record", "--json", "--out", "o", "--store", "memory", "--", *agent, folder=tmp_path)
    assert (ended.code, ended.output) == (0, "only this\n")
    assert "listening on http://127.0.0.1:" in ended.errors
    assert json.loads(ended.errors.splitlines()[-1])["n_turns"] == 1


def test_an_agent_gets_a_free_port(tmp_path: Path) -> None:
    """Two agents can be recorded at once, even beside a server: only a port that was asked for is used."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        (tmp_path / "turntape.toml").write_text(f"port = {port}\n")
        agent = ["--", sys.executable, "-c", ASKS]
        assert run("record", "--out", "o", "--store", "memory", *agent, folder=tmp_path).code == 3
        (tmp_path / "turntape.toml").unlink()
        ended = run("record", "--out", "o", "--store", "memory", *agent, folder=tmp_path)
    assert ended.code == 0, ended.errors
    assert ":8765/" not in ended.errors


def test_an_agent_that_never_connects_is_an_error(tmp_path: Path) -> None:
    """An agent that was not pointed here must not look like a good recording; its own failure still comes first."""
    for own, code in ((0, 1), (7, 7)):
        agent = [sys.executable, "-c", f"raise SystemExit({own})"]
        ended = run("record", "--out", "o", "--store", "memory", "--", *agent, folder=tmp_path)
        assert ended.code == code
        assert "\nrecorded nothing: nobody connected\n" in ended.errors


def test_a_hidden_codex_can_be_pointed_here_by_hand(tmp_path: Path) -> None:
    """If nobody came, the line that points here a Codex that the agent hides is printed, once, and not before."""
    ended = run("record", "--out", "o", "--store", "memory", "--", "sh", "-c", "exit 4", folder=tmp_path)
    assert ended.code == 4
    head, _, hint = ended.errors.partition("recorded nothing: nobody connected\n")
    assert "codex -c" not in head
    assert re.match(
        r"  Codex, if the agent starts it, must be started as: codex -c .*base_url=\"http://127.0.0.1:\d+/v1", hint
    )
    assert "must be started as" not in run("record", "--out", "p", "--", "/no/codex", folder=tmp_path).errors


def test_sigterm_ends_the_agent_and_then_the_recording(tmp_path: Path) -> None:
    """A supervisor that stops turntape stops the agent too, and the recording is complete."""
    ready = tmp_path / "ready"
    agent = f"{ASKS}import time\nopen({str(ready)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    out = tmp_path / "out.jsonl"
    options = ["record", "--out", str(out), "--port", "0", "--store", "memory"]
    process = subprocess.Popen(
        [sys.executable, "-m", "turntape", *options, "--", sys.executable, "-c", agent],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 30
    while not ready.exists() or not ready.read_text():
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.02)
    process.terminate()
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    assert f"recorded {out}: 1 session, 1 turn" in errors
    with pytest.raises(ProcessLookupError):
        os.kill(int(ready.read_text()), 0)


def test_interrupt_at_the_terminal_is_the_agents(tmp_path: Path) -> None:
    """Ctrl-C, which a terminal sends to both, lets the agent end as it likes; its exit code is passed on."""
    agent = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, lambda *_: sys.exit(5))\n"
        "print('agent is ready', flush=True)\n"
        "signal.pause()\n"
    )
    options = ["record", "--out", "o", "--port", "0", "--store", "memory", "--", sys.executable, "-c", agent]
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        os.execve(sys.executable, [sys.executable, "-m", "turntape", *options], environment(tmp_path))
    shown = b""
    while b"agent is ready" not in shown:
        shown += os.read(terminal, 4096)
    os.write(terminal, b"\x03")
    with contextlib.suppress(OSError):  # the terminal's end
        while read := os.read(terminal, 4096):
            shown += read
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5, shown.decode()
    os.close(terminal)


def test_verify_reads_every_file(tmp_path: Path, recording: Path) -> None:
    """One diverging file gives exit code 1, the others are checked all the same, and each has its line."""
    edited = tmp_path / "edited.jsonl"
    edited.write_text(recording.read_text().replace('"text":"DONE"', '"text":"GONE"'))
    ended = run("verify", edited, recording, folder=tmp_path)
    assert ended.code == 1
    assert re.search(rf"^{re.escape(str(edited))}:\d+: ", ended.errors)
    assert ended.output.startswith(f"{recording}: 2 sessions")
    last = ended.errors.splitlines()[-1]
    assert (
        f"turntape verify --diff {edited};" in last and "--upgrade --reason TEXT" in last and "--accept-edits" in last
    )
    result = json.loads(run("verify", "--json", edited, recording, folder=tmp_path).output)
    assert [each["verified"] for each in result["fixtures"]] == [False, True]


def test_show_prints_the_conversation(tmp_path: Path, recording: Path) -> None:
    """The transcript holds what was asked and answered."""
    ended = run("show", recording, folder=tmp_path)
    assert ended.code == 0
    assert [text for text in ("one", "two", "LAB-DONE") if text not in ended.output] == []


def test_stub_answers_and_ends_well(tmp_path: Path, recording: Path) -> None:
    """The recorded answers come back, in any order of the conversations, and everything was used."""
    with turntape("stub", recording, "--strict", "--json", folder=tmp_path / "server") as stub:
        for text in ("two", "one"):
            assert ask(stub.url, text)["output"][0]["content"][0]["text"].startswith("LAB-DONE")
        assert stub.stop() == 0
    lists = ("misses", "warnings", "unused", "not_replayable", "asked_elsewhere")
    assert json.loads(stub.output) == {"n_turns": 2, "n_played": 2, "n_runs": 1, **{name: [] for name in lists}}
    assert stub.errors.endswith("played 2 of 2 turns, 0 misses\n")


def test_stub_counts_what_was_not_used(tmp_path: Path, recording: Path) -> None:
    """A turn that nobody asked for is named; it is an error only under --strict."""
    for strict, code in (("--no-strict", 0), ("--strict", 1)):
        with turntape("stub", recording, strict, folder=tmp_path / strict) as stub:
            ask(stub.url, "one")
            assert stub.stop() == code
            assert stub.errors.count("not used: ") == 1
            assert stub.errors.endswith("played 1 of 2 turns, 0 misses\n")


def test_stub_refuses_what_was_not_recorded(tmp_path: Path, recording: Path) -> None:
    """A miss is an error to the client, said at once; the stub serves on, and its exit code is 1."""
    with turntape("stub", recording, folder=tmp_path / "server") as stub:
        with pytest.raises(urllib.error.HTTPError) as missed:
            ask(stub.url, "three")
        assert missed.value.code == 400
        assert json.load(missed.value)["error"]["code"] == "fixture_miss"
        assert stub.errors.count("miss: No recorded turn answers this request.") == 1
        assert ask(stub.url, "two")["status"] == "completed"
        assert stub.stop() == 1
        assert stub.errors.count("No recorded turn answers") == 1
        assert stub.errors.endswith("played 1 of 2 turns, 1 miss\n")


# --- demo -----------------------------------------------------------------------------------------------------


def test_demo_runs_on_nothing(tmp_path: Path) -> None:
    """With nothing configured the demo shows a whole task: tools called, outputs returned, an answer."""
    ended = run("demo", folder=tmp_path)
    assert ended.code == 0, ended.errors
    assert ended.output.count("turn ") >= 3
    assert not ended.errors
    figures = re.findall(r"[\d,]+ bytes sent, where .* been ([\d,]+)", ended.output)
    assert figures
    assert f"would have been {figures[0]}" in " ".join((ROOT / "README.md").read_text().split())


def test_demo_on_a_running_server(tmp_path: Path, keys: Path) -> None:
    """--url names a server, and the first key of --key-file opens it; without the key it is refused."""
    with turntape("serve", "--store", "memory", "--key-file", keys, folder=tmp_path / "server") as server:
        assert run("demo", "--url", server.url, "--key-file", keys, folder=tmp_path).code == 0
        refused = run("demo", "--url", server.url, folder=tmp_path)
        assert refused.code == 3
        assert refused.errors.startswith("Error: ")
        assert refused.errors.endswith("status 401; give a key with --key-file.\n")


def test_demo_without_a_server(tmp_path: Path) -> None:
    """A server that is not there is named, with exit code 3."""
    ended = run("demo", "--url", "http://127.0.0.1:9/v1", folder=tmp_path)
    assert ended.code == 3
    assert ended.errors.startswith("Error: no server answers at http://127.0.0.1:9/v1; ")
