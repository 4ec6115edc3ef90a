"""What the record modes of the pytest plugin write, and that no recording is ever lost."""

import json
from pathlib import Path

import pytest
from running import turntape

from turntape.replay.fixture import Fixture
from turntape.replay.verify import verify

pytest_plugins = ("pytester",)

BODY = """
import json, pytest, urllib.request

def ask(stub, text):
    body = json.dumps({{"model": "m", "input": text, "store": False}}).encode()
    head = {{"content-type": "application/json", "authorization": "Bearer " + stub.api_key}}
    with urllib.request.urlopen(urllib.request.Request(stub.base_url + "/responses", body, head)) as answer:
        return json.load(answer)["output"][-1]["content"][0]["text"]

@pytest.mark.parametrize("text", {asks})
def test_it(turntape_stub, text):
    stub = turntape_stub({names})
    for word in text.split():
        assert ask(stub, word) == {answer!r}
"""


@pytest.fixture
def tests(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder of tests, and a script that stands for a model."""
    for variable in ("CI", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(variable, raising=False)
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    say(pytester, "one")
    return pytester


def say(tests: pytest.Pytester, text: str) -> None:
    (tests.path / "model.toml").write_text(f"[[rule]]\nsay = [{{ text = '{text}' }}]\n")


def run(
    tests: pytest.Pytester, *words: str, asks: str = "Hi", answer: str = "one", names: str = "'it'"
) -> pytest.RunResult:
    tests.makepyfile(test_it=BODY.format(asks=[asks], answer=answer, names=names))
    return tests.runpytest_subprocess("-p", "no:cacheprovider", *words, timeout=120)


def upstream(tests: pytest.Pytester) -> tuple[str, str]:
    return "--turntape-upstream", f"scripted:{tests.path / 'model.toml'}"


def files(tests: pytest.Pytester) -> list[str]:
    return sorted(path.name for path in (tests.path / "fixtures").rglob("*"))


def n_turns(tests: pytest.Pytester, name: str) -> int:
    fixture = Fixture.load(tests.path / "fixtures" / name)
    verify(fixture)
    return fixture.counts.n_turns


def test_once_records_what_is_not_there(tests: pytest.Pytester) -> None:
    """The first run records, the next ones play: from then on the model may say what it likes, or be gone."""
    result = run(tests, *upstream(tests), asks="Hi Ho")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*turntape*", f"recorded {tests.path / 'fixtures' / 'it.jsonl'}"])
    assert files(tests) == ["it.jsonl"]
    assert n_turns(tests, "it.jsonl") == 2
    say(tests, "two")
    result = run(tests, *upstream(tests), asks="Hi Ho")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("recorded *")
    (tests.path / "model.toml").unlink()
    run(tests, asks="Hi Ho").assert_outcomes(passed=1)
    result = run(tests, *upstream(tests), asks="Ha")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(['*recorded "H*", got "Ha"*'])


def test_nothing_is_recorded_in_ci_unless_the_command_line_says_so(
    tests: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fixture that was not committed fails there, whatever the configuration lets developers do."""
    spec = upstream(tests)[1]
    tests.makeini(
        f"[pytest]\nasyncio_default_fixture_loop_scope = function\nturntape_record = all\nturntape_upstream = {spec}\n"
    )
    monkeypatch.setenv("CI", "true")
    result = run(tests)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["The record mode is none (the default in CI). To record it, *"])
    assert not (tests.path / "fixtures").exists()
    run(tests, "--turntape-record", "once").assert_outcomes(passed=1)
    monkeypatch.delenv("CI")
    result = run(tests)
    result.stdout.fnmatch_lines(["recorded *it.jsonl; the recording before it is it.jsonl.bak"])


def test_all_replaces_a_recording_once_its_test_has_passed(tests: pytest.Pytester) -> None:
    """The recording before is kept beside it, each time under another name."""
    run(tests, *upstream(tests)).assert_outcomes(passed=1)
    first = (tests.path / "fixtures" / "it.jsonl").read_bytes()
    say(tests, "two")
    run(tests, *upstream(tests), "--turntape-record", "all", answer="two").assert_outcomes(passed=1)
    assert files(tests) == ["it.jsonl", "it.jsonl.bak"]
    run(tests, answer="two").assert_outcomes(passed=1)
    run(tests, *upstream(tests), "--turntape-record", "all", answer="two").assert_outcomes(passed=1)
    assert files(tests) == ["it.jsonl", "it.jsonl-2.bak", "it.jsonl.bak"]
    assert (tests.path / "fixtures" / "it.jsonl.bak").read_bytes() == first


def test_new_asks_for_what_is_missed_and_records_the_whole_run_beside(tests: pytest.Pytester) -> None:
    """What is recorded is played, the rest is the model's; the file that this makes plays all of it."""
    run(tests, *upstream(tests)).assert_outcomes(passed=1)
    before = (tests.path / "fixtures" / "it.jsonl").read_bytes()
    result = run(tests, *upstream(tests), "--turntape-record", "new")
    result.assert_outcomes(passed=1)
    assert files(tests) == ["it.jsonl"]  # nothing was new
    result = run(tests, *upstream(tests), "--turntape-record", "new", asks="Hi Ho")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["recorded *it.new.jsonl, the whole run with what it had no answer to; *"])
    assert (tests.path / "fixtures" / "it.jsonl").read_bytes() == before
    assert n_turns(tests, "it.new.jsonl") == 2
    (tests.path / "fixtures" / "it.new.jsonl").rename(tests.path / "fixtures" / "it.jsonl")
    run(tests, asks="Hi Ho").assert_outcomes(passed=1)


def test_new_records_a_turn_that_has_changed(tests: pytest.Pytester) -> None:
    """The recorded turn that it takes the place of is not played, and that fails nothing."""
    run(tests, *upstream(tests), asks="Hi Ho").assert_outcomes(passed=1)
    result = run(tests, *upstream(tests), "--turntape-record", "new", asks="Hi Ha")
    result.assert_outcomes(passed=1)
    assert files(tests) == ["it.jsonl", "it.new.jsonl"]
    result = run(tests, *upstream(tests), "--turntape-record", "new", asks="Hi")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["turntape: 1 of 2 turns of it played; *"])


def test_rules_that_people_wrote_outlive_the_recording(tests: pytest.Pytester) -> None:
    """What may differ is kept when a fixture is recorded again, wherever in the old file it was said."""
    run(tests, *upstream(tests)).assert_outcomes(passed=1)
    path = tests.path / "fixtures" / "it.jsonl"
    rules = [{"rule": "ignore", "fields": ["temperature"]}, {"rule": "replace", "pattern": "H.", "with": "H"}]
    text = path.read_text().replace('{"turntape":1}', json.dumps({"turntape": 1, "rules": rules[:1]}))
    path.write_text(text.replace('"rules":[]', f'"rules":{json.dumps(rules[1:])}'))
    run(tests, asks="Ho").assert_outcomes(passed=1)
    run(tests, *upstream(tests), "--turntape-record", "all").assert_outcomes(passed=1)
    assert json.loads(path.read_text().splitlines()[0]) == {"turntape": 1, "rules": rules}
    run(tests, asks="Ho").assert_outcomes(passed=1)


@pytest.mark.parametrize("mode", ["once", "all"])
def test_the_recording_of_a_failed_test_takes_no_place(tests: pytest.Pytester, mode: str) -> None:
    """It is there to be looked at, under a name that nothing plays; what was there before is untouched."""
    if mode == "all":
        run(tests, *upstream(tests)).assert_outcomes(passed=1)
        before = (tests.path / "fixtures" / "it.jsonl").read_bytes()
    result = run(tests, *upstream(tests), "--turntape-record", mode, answer="three")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["recorded *it.failed.jsonl; the test failed, so it did not become it.jsonl"])
    assert n_turns(tests, "it.failed.jsonl") == 1
    if mode == "all":
        assert (tests.path / "fixtures" / "it.jsonl").read_bytes() == before
    else:
        assert files(tests) == ["it.failed.jsonl"]


def test_two_tests_that_record_under_one_name_lose_nothing(tests: pytest.Pytester) -> None:
    """The one that ends second is kept beside the first, and said, by a worker of pytest-xdist too."""
    body = BODY.replace("    for", "    other = turntape_stub('it')\n    assert ask(other, 'Ho') == 'one'\n    for")
    tests.makepyfile(test_it=body.format(asks=["Hi"], answer="one", names="'it'"))
    result = tests.runpytest_subprocess(*upstream(tests), "-n", "1")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["recorded *it.jsonl", "recorded *it-2.jsonl"])
    assert (n_turns(tests, "it.jsonl"), n_turns(tests, "it-2.jsonl")) == (1, 1)


def test_a_run_that_asks_nothing_records_nothing(tests: pytest.Pytester) -> None:
    """No empty fixture is left for the next run to trip over."""
    run(tests, *upstream(tests), asks="").assert_outcomes(passed=1)
    assert files(tests) == []


@pytest.mark.parametrize("kind", ["spec", "url", "table"])
def test_a_server_of_the_responses_api_can_be_recorded(tests: pytest.Pytester, tmp_path: Path, kind: str) -> None:
    """As a backend, by a [backends] table of the turntape.toml in the root directory, or by its URL alone."""
    server = ["serve", "--store", "memory", "--backend", f"scripted:{tests.path / 'model.toml'}"]
    with turntape(*server, folder=tmp_path / "server") as model:
        (tests.path / "turntape.toml").write_text(f"[backends.mine]\nspec = 'responses+{model.url}'\n")
        named = {"spec": f"responses+{model.url}", "url": model.url, "table": "mine"}[kind]
        run(tests, "--turntape-upstream", named, asks="Hi Ho").assert_outcomes(passed=1)
        assert files(tests) == ["it.jsonl"]
        result = run(tests, "--turntape-upstream", named, "--turntape-record", "new", asks="Hi Ho Ha")
        result.assert_outcomes(passed=1)
        assert files(tests) == ["it.jsonl", "it.new.jsonl"]
    run(tests, asks="Hi Ho").assert_outcomes(passed=1)
    (tests.path / "fixtures" / "it.new.jsonl").rename(tests.path / "fixtures" / "it.jsonl")
    run(tests, asks="Hi Ho Ha").assert_outcomes(passed=1)


def test_a_server_at_a_url_gets_the_clients_own_key(
    tests: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands in OPENAI_API_KEY reaches the server through the relay, and no recording."""
    key = "hunter2-hunter2"
    (tmp_path / "keys").write_text(key)
    (tmp_path / "keys").chmod(0o600)
    server = ["serve", "--store", "memory", "--backend", f"scripted:{tests.path / 'model.toml'}"]
    with turntape(*server, "--key-file", tmp_path / "keys", folder=tmp_path / "server") as model:
        monkeypatch.setenv("OPENAI_API_KEY", "another-key-of-mine")
        result = run(tests, "--turntape-upstream", model.url)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*HTTP Error 401*"])
        monkeypatch.setenv("OPENAI_API_KEY", key)
        run(tests, "--turntape-upstream", model.url, asks=f"Hi {key}").assert_outcomes(passed=1)
    assert files(tests) == ["it.failed.jsonl", "it.jsonl"]
    for name in files(tests):
        assert "key-of-mine" not in (text := (tests.path / "fixtures" / name).read_text()) and key not in text


def test_an_agent_sees_no_key_of_what_answers(tests: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The upstream's key is in pytest's environment, in no program's that gets ``stub.env``, and in no recording."""
    monkeypatch.setenv("TURNTAPE_BACKEND_KEY", "hunter2-hunter2")
    tests.makepyfile(
        test_it="""
import openai, os, subprocess, sys

def test_it(turntape_stub):
    stub = turntape_stub("it")
    code = "import os; print(sorted(os.environ.values()))"
    assert "hunter2" in str(os.environ)
    assert "hunter2" not in subprocess.check_output([sys.executable, "-c", code], env=os.environ | stub.env, text=True)
    text = "my key is " + os.environ["TURNTAPE_BACKEND_KEY"]
    openai.OpenAI(base_url=stub.base_url, api_key="a").responses.create(model="m", input=text, store=False)
"""
    )
    tests.runpytest_subprocess(*upstream(tests)).assert_outcomes(passed=1)
    assert n_turns(tests, "it.jsonl") == 1
    assert "hunter2" not in (tests.path / "fixtures" / "it.jsonl").read_text()


def test_a_secret_that_the_configuration_names_is_hidden_when_recorded_and_when_compared(
    tests: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in no recording, and another value of the same variable is answered as the first was."""
    tests.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\nturntape_secret_env = MY_TOKEN\n")
    monkeypatch.setenv("MY_TOKEN", "correct-horse")
    run(tests, *upstream(tests), asks="correct-horse").assert_outcomes(passed=1)
    assert "horse" not in (tests.path / "fixtures" / "it.jsonl").read_text()
    run(tests, asks="correct-horse").assert_outcomes(passed=1)
    monkeypatch.setenv("MY_TOKEN", "battery-staple")
    run(tests, asks="battery-staple").assert_outcomes(passed=1)
    run(tests, asks="correct-horse").assert_outcomes(failed=1)


def test_what_cannot_be_recorded_says_why(tests: pytest.Pytester) -> None:
    """No upstream, one that is none, one that is not there, and one file for two names."""
    for mode in ("once", "new", "all"):
        result = run(tests, "--turntape-record", mode)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*To record, name what should answer: --turntape-upstream BACKEND*"])
    result = run(tests, "--turntape-upstream", "cerebra")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*'cerebra' is no backend; did you mean 'cerebras'?"])
    result = run(tests, "--turntape-upstream", "scripted:nowhere.toml")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*nowhere.toml*"])
    result = run(tests, *upstream(tests), names="'a', 'b'")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*recorded into one file, and this stub plays 2: a, b. *"])
    result = run(tests, "-o", "turntape_record=allways")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*turntape_record is 'allways'; it should be one of none, once, new, all"])
