"""``turntape stub`` as people run it: around an agent, with its own rules, and with misses that are asked elsewhere."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen
from running import environment, turntape

SCRIPT = """models = ["m"]

[[rule]]
when = { user_contains = "hello" }
say = [{ text = "Good morning." }]

[[rule]]
say = [{ text = "What?" }]
"""

AGENT = """
import json, os, sys, urllib.error, urllib.request as u
for text in sys.argv[2:]:
    body = {'model': 'm', 'store': False, 'input': text, **json.loads(sys.argv[1])}
    head = {'content-type': 'application/json'}
    request = u.Request(os.environ['OPENAI_BASE_URL'] + '/responses', json.dumps(body).encode(), head)
    try:
        print(json.load(u.urlopen(request))['output'][0]['content'][0]['text'])
    except urllib.error.HTTPError as exc:
        print(exc.code, json.load(exc)['error']['code'])
        sys.exit(7)
    except OSError:
        print('lost')
"""
"""Asks each of its arguments but the first, which is JSON with more of each request; ends with 7 when it is refused."""


@frozen
class Ended:
    code: int
    output: str
    errors: str

    @property
    def last(self) -> str:
        return self.errors.splitlines()[-1]


def run(*words: str | Path, folder: Path) -> Ended:
    ended = subprocess.run(
        [sys.executable, "-m", "turntape", *map(str, words)],
        cwd=folder,
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def agent(*texts: str, **fields: Any) -> list[str]:
    """The end of a command line: an agent that asks ``texts``."""
    return ["--", sys.executable, "-c", AGENT, json.dumps(fields), *texts]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two questions, one POST each."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "script.toml").write_text(SCRIPT)
    backend = f"scripted:{folder / 'script.toml'}"
    ended = run(
        "record", "--out", "f.jsonl", "--store", "memory", "--backend", backend, *agent("hello", "eh"), folder=folder
    )
    assert ended.output == "Good morning.\nWhat?\n", ended.errors
    return folder / "f.jsonl"


def stub(recorded: Path, folder: Path, *words: str | Path) -> Ended:
    return run("stub", recorded, *words, folder=folder)


# --- around an agent ----------------------------------------------------------------------------------------


def test_an_agent_is_run_against_the_stub(recorded: Path, tmp_path: Path) -> None:
    """It finds the stub by itself, standard output is its own, and all is well if it asked what was recorded."""
    ended = stub(recorded, tmp_path, "--strict", *agent("hello", "eh"))
    assert (ended.code, ended.output) == (0, "Good morning.\nWhat?\n"), ended.errors
    assert ended.last == "played 2 of 2 turns, 0 misses"


@pytest.mark.parametrize(
    ("texts", "words", "code", "last"),
    [
        (("hello",), ("--strict",), 1, "played 1 of 2 turns, 0 misses"),
        (("hello",), (), 0, "played 1 of 2 turns, 0 misses"),
        (("hello", "bye"), (), 7, "played 1 of 2 turns, 1 miss"),
        (("hello", "hello"), (), 7, "played 1 of 2 turns, 1 miss"),
        (("hello", "hello"), ("--runs", "2"), 0, "played 2 of 4 turns in 2 runs, 0 misses"),
        (("hello", "eh") * 3, ("--runs", "any", "--strict"), 0, "played 6 of 6 turns in 3 runs, 0 misses"),
    ],
)
def test_the_exit_code_is_the_agents_or_the_stubs(
    recorded: Path, tmp_path: Path, texts: tuple[str, ...], words: tuple[str, ...], code: int, last: str
) -> None:
    """The agent's if it is not 0; else 1 after a miss, and under --strict if a turn was left."""
    ended = stub(recorded, tmp_path, *words, *agent(*texts))
    assert (ended.code, ended.last) == (code, last), ended.errors


def test_a_miss_is_told_three_times(recorded: Path, tmp_path: Path) -> None:
    """To the client, on the terminal with the difference, and to programs."""
    ended = stub(recorded, tmp_path, "--json", *agent("hello!"))
    assert (ended.code, ended.output) == (7, "400 fixture_miss\n")
    assert 'recorded "hello", got "hello!"' in ended.errors
    taken_in = (
        f"record what is new: turntape stub {recorded} --on-miss record --backend BACKEND --out NEW.jsonl -- AGENT"
    )
    assert taken_in in ended.errors.splitlines()[-3]
    result = json.loads(ended.last)
    assert (result["n_turns"], result["n_played"], len(result["misses"]), len(result["unused"])) == (2, 0, 1, 1)


def test_an_agent_that_asks_nothing_is_an_error(recorded: Path, tmp_path: Path) -> None:
    """An agent that was not pointed here must not look like a good run."""
    ended = stub(recorded, tmp_path, "--", sys.executable, "-c", "pass")
    assert ended.code == 1
    assert "the agent asked nothing: does it read OPENAI_BASE_URL?" in ended.errors
    assert stub(recorded, tmp_path, "--", sys.executable, "-c", "raise SystemExit(5)").code == 5


def test_options_of_the_agent_are_its_own(recorded: Path, tmp_path: Path) -> None:
    """What stands behind -- is the agent's, also what looks like an option, or another --."""
    show = "import sys; print(sys.argv[1:])"
    ended = stub(recorded, tmp_path, "--", sys.executable, "-c", show, "--strict", "--", "--json")
    assert ended.output == "['--strict', '--', '--json']\n"
    ended = stub(recorded, tmp_path, "--")
    assert ended.code == 2 and "there is no agent behind --" in ended.errors
    assert stub(recorded, tmp_path, "--", "no-such-agent").code == 3


# --- what may differ ----------------------------------------------------------------------------------------


def test_rules_for_one_run(recorded: Path, tmp_path: Path) -> None:
    """From a file or by option, for what the fixture's own rules do not allow."""
    (tmp_path / "rules.json").write_text('[{"rule":"replace","pattern":"o+$","with":"o"}]')
    assert stub(recorded, tmp_path, *agent("hellooo")).code == 7
    assert stub(recorded, tmp_path, "--rules", "rules.json", *agent("hellooo")).output == "Good morning.\n"
    asked = agent("hello", "eh", temperature=0.5, user="me")
    assert stub(recorded, tmp_path, *asked).code == 7
    ignored = stub(recorded, tmp_path, "--ignore", "user", "--ignore", "temperature", *asked)
    assert (ignored.code, ignored.last) == (0, "played 2 of 2 turns, 0 misses")
    warned = stub(recorded, tmp_path, "--ignore", "user", "--warn", "temperature", "--json", *asked)
    assert warned.code == 0
    assert warned.errors.count("warning: turn 1, at ") == 1
    assert len(json.loads(warned.last)["warnings"]) == 1
    assert warned.errors.splitlines()[-2] == "played 2 of 2 turns, 0 misses, 1 warning"


def test_a_setting_that_nothing_has_is_a_slip(recorded: Path, tmp_path: Path) -> None:
    """It is warned of with what was meant; one that the API has and the recording has not is none."""
    ended = stub(recorded, tmp_path, "--ignore", "modle", "--ignore", "temperature", *agent("hello"))
    warned = "warning: the setting 'modle', which a rule names, is in no recorded request; did you mean 'model'?"
    assert warned in ended.errors and "temperature" not in ended.errors and ended.code == 0


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--speed", "fast"], "The speed 'fast' is none: give instant, recorded, xN"),
        (["--runs", "0"], "'0' is no number of runs; give 1 or more, or the word any"),
        (["--fault", "9:drop"], "there is no turn 9 to play in"),
        (["--rules", "rules.toml"], "rules.toml: is not JSON"),
        (["--ignore", "input"], "the conversation is always compared"),
        (["--out", "o"], "--out goes with --on-miss record"),
        (["--upstream", "http://127.0.0.1:9/v1"], "--upstream goes with --on-miss record"),
        (["--backend", "scripted"], "--backend goes with --on-miss record"),
        (["--model", "m"], "--model goes with --on-miss record"),
        (["--backend-key-file", "rules.toml"], "--backend-key-file goes with --on-miss record"),
        (["--on-miss", "record"], "needs --out FILE"),
        (["--on-miss", "record", "--out", "o"], "needs --upstream URL, or --backend"),
        (["--on-miss", "record", "--out", "o", "--upstream", "nowhere"], "--upstream: "),
        (["--on-miss", "record", "--out", "rules.toml", "--backend", "scripted"], "is there already"),
    ],
)
def test_what_cannot_be_is_explained(recorded: Path, tmp_path: Path, words: list[str], problem: str) -> None:
    """Before anything is started, with exit code 2."""
    (tmp_path / "rules.toml").write_text("rules = 1\n")
    ended = stub(recorded, tmp_path, *words, "--", "never-started")
    assert (ended.code, ended.output) == (2, "")
    assert problem in " ".join(ended.errors.split())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rules.toml"]


def test_a_fault_is_announced_and_happens_once(recorded: Path, tmp_path: Path) -> None:
    """The agent loses its answer, asks again, and gets it; a fault that never happened fails a strict run."""
    ended = stub(recorded, tmp_path, "--fault", "1:drop", "--strict", *agent("hello", "hello", "eh"))
    assert (ended.code, ended.output) == (0, "lost\nGood morning.\nWhat?\n"), ended.errors
    assert ended.errors.count("fault 1:drop") == 1 and "fault 1:drop: at turn 1, " in ended.errors
    ended = stub(recorded, tmp_path, "--fault", "2:429", "--strict", *agent("hello"))
    assert ended.code == 1
    assert "not used: fault 2:429: it never happened" in ended.errors


# --- misses that are asked elsewhere ------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["backend", "upstream"])
def test_a_miss_can_be_asked_elsewhere_and_recorded(recorded: Path, tmp_path: Path, by: str) -> None:
    """The new file holds the whole run, what was played and what was not known: it stubs that run without a miss."""
    (tmp_path / "script.toml").write_text('models = ["m"]\n[[rule]]\nsay = [{ text = "Elsewhere." }]\n')
    script = f"scripted:{tmp_path / 'script.toml'}"
    asked = agent("hello", "bye", user="me")
    own = ("--on-miss", "record", "--out", tmp_path / "new.jsonl", "--ignore", "user")
    before = recorded.read_bytes()
    with turntape("serve", "--backend", script, "--store", "memory", folder=tmp_path / "server") as server:
        answers = ("--backend", script) if by == "backend" else ("--upstream", server.url)
        ended = stub(recorded, tmp_path, *own, *answers, *asked)
    assert (ended.code, ended.output) == (0, "Good morning.\nElsewhere.\n"), ended.errors
    assert "asked elsewhere, and recorded: No recorded turn answers this request." in ended.errors
    assert ended.last == "played 1 of 2 turns, 0 misses, 1 asked elsewhere"
    assert recorded.read_bytes() == before
    again = stub(tmp_path / "new.jsonl", tmp_path, "--strict", *agent("hello", "bye", user="another"))
    assert (again.code, again.output) == (0, "Good morning.\nElsewhere.\n"), again.errors
    assert again.last == "played 2 of 2 turns, 0 misses"
    assert run("verify", tmp_path / "new.jsonl", folder=tmp_path).code == 0
    repeated = stub(recorded, tmp_path, *own, "--backend", script, *asked)
    assert repeated.code == 2 and "is there already" in repeated.errors


def test_a_run_with_a_fault_is_recorded_as_it_was(recorded: Path, tmp_path: Path) -> None:
    """The new file verifies, and stubs the run: the answer that was lost is not what the retry gets."""
    own = ("--on-miss", "record", "--out", tmp_path / "new.jsonl", "--backend", "scripted", "--fault", "1:drop")
    ended = stub(recorded, tmp_path, *own, *agent("hello", "hello", "eh", stream=False))
    assert (ended.code, ended.output) == (0, "lost\nGood morning.\nWhat?\n"), ended.errors
    assert run("verify", tmp_path / "new.jsonl", folder=tmp_path).code == 0
    again = stub(tmp_path / "new.jsonl", tmp_path, "--strict", *agent("hello", "eh", stream=False))
    assert (again.code, again.output) == (0, "Good morning.\nWhat?\n"), again.errors


def test_an_upstream_that_fails_is_a_miss(recorded: Path, tmp_path: Path) -> None:
    """What it could not answer stays unanswered, and the run is not a good one."""
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/v1"
    own = ("--on-miss", "record", "--out", tmp_path / "new.jsonl", "--upstream", url)
    quiet = AGENT.replace("sys.exit(7)", "pass")
    ended = stub(recorded, tmp_path, *own, "--", sys.executable, "-c", quiet, "{}", "hello", "bye")
    assert ended.code == 1, ended.errors
    assert ended.last == "played 1 of 2 turns, 1 miss"
