"""The pytest plugin, in runs of pytest of its own: a stub for each kind of test, and a miss that fails it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from running import ROOT

pytest_plugins = ("pytester",)

HEAD = """
import asyncio, os, subprocess, sys, threading
import openai, pytest, trio

ASK = "import openai; print(openai.OpenAI().responses.create(model='m', input='Hi', store=False).output_text)"

def ask(stub, text="Hi", **more):
    with openai.OpenAI(base_url=stub.base_url, api_key=stub.api_key) as client:
        return client.responses.create(model="m", input=text, store=False, **more).output_text
"""

MISS = [
    "*No recorded turn answers this request. Nearest is turn 1, at fixtures/hi.jsonl:3; item 1, a message, differs:",
    '*content.0.text: recorded "Hi", got "Ho"*',
]


@pytest.fixture
def tests(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder of tests with one fixture, ``hi``: one turn, in which "Hi" is answered with "Hello."."""
    for variable in ("CI", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(variable, raising=False)
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    (pytester.path / "fixtures").mkdir()
    (pytester.path / "fixtures" / "hi.jsonl").write_bytes((ROOT / "docs" / "example.jsonl").read_bytes())
    return pytester


def run(tests: pytest.Pytester, body: str, *words: str) -> pytest.RunResult:
    tests.makepyfile(HEAD + body)
    return tests.runpytest_subprocess("-p", "no:cacheprovider", *words, timeout=120)


def test_each_kind_of_test_gets_a_stub(tests: pytest.Pytester) -> None:
    """A plain test, one under asyncio by either plugin, one under Trio, and a program of its own are all answered."""
    body = """
def test_plain(turntape_stub):
    stub = turntape_stub("hi")
    assert ask(stub) == "Hello."
    assert (stub.played, stub.misses, stub.unused) == (1, [], [])

async def hello(stub):
    async with openai.AsyncOpenAI(base_url=stub.base_url, api_key=stub.api_key) as client:
        assert (await client.responses.create(model="m", input="Hi", store=False)).output_text == "Hello."

@pytest.mark.asyncio
async def test_asyncio(turntape_stub):
    await hello(turntape_stub("hi"))

@pytest.mark.anyio
async def test_anyio(turntape_stub, anyio_backend):
    await hello(turntape_stub("hi"))

@pytest.mark.trio
async def test_trio(turntape_stub):
    stub = turntape_stub("hi")
    ran = await trio.run_process([sys.executable, "-c", ASK], env=os.environ | stub.env, capture_stdout=True)
    assert ran.stdout == b"Hello.\\n"

def test_a_program(turntape_stub):
    stub = turntape_stub("hi", process=True)
    assert subprocess.check_output(stub.command(sys.executable, "-c", ASK), env=os.environ | stub.env) == b"Hello.\\n"
    assert stub.played == 1
"""
    run(tests, body, "-p", "no:unraisableexception").assert_outcomes(passed=6)  # anyio's runs under both loops


def test_a_websocket_finds_the_stub(tests: pytest.Pytester) -> None:
    """``ws_url`` is the address of the WebSocket itself."""
    body = """
import json
from websockets.sync.client import connect

def test_websocket(turntape_stub):
    with connect(turntape_stub("hi").ws_url) as socket:
        socket.send(json.dumps({"type": "response.create", "model": "m", "input": "Hi", "store": False}))
        while (event := json.loads(socket.recv()))["type"] != "response.completed":
            pass
        assert event["response"]["output"][0]["content"][0]["text"] == "Hello."
"""
    run(tests, body).assert_outcomes(passed=1)


@pytest.mark.parametrize("process", [False, True])
def test_a_miss_fails_the_test_though_its_agent_swallowed_it(tests: pytest.Pytester, process: bool) -> None:
    """The test itself is what failed, in its call, with the nearest turn and the difference."""
    body = f"""
def test_swallowed(turntape_stub):
    stub = turntape_stub("hi", process={process})
    with pytest.raises(openai.BadRequestError):
        ask(stub, "Ho")
    assert len(stub.misses) == 1
"""
    result = run(tests, body, "-rfE")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the stub of hi has no answer to 1 request.", *MISS, "*--turntape-record new *"])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_a_miss_says_what_to_write_into_the_call(tests: pytest.Pytester) -> None:
    """As it stands it is Python, and enough."""
    body = """
import re

def test_pasted(turntape_stub):
    stub = turntape_stub("hi", strict=False)
    with pytest.raises(openai.BadRequestError):
        ask(stub, "Hi", temperature=0.5)
    [miss] = stub.misses
    more = eval("dict(" + miss.rpartition("If that may differ: ")[2] + ")")
    assert more == {"ignore": ["temperature"]}
    assert ask(turntape_stub("hi", **more), "Hi", temperature=0.5) == "Hello."
"""
    result = run(tests, body)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the stub of hi has no answer*", '*If that may differ: ignore=?"temperature"?*'])
    result.stdout.no_fnmatch_line("*AssertionError*")


def test_a_miss_is_beside_the_failure_that_it_caused(tests: pytest.Pytester) -> None:
    """A test that failed by itself keeps its own failure, and the miss is a section of its report."""
    body = """
def test_fails(turntape_stub):
    stub = turntape_stub("hi")
    with pytest.raises(openai.BadRequestError):
        ask(stub, "Ho")
    assert "the agent's" == "own failure"
"""
    result = run(tests, body)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the agent's*own failure*", "*Captured turntape call*", *MISS])


def test_a_miss_of_an_agent_that_outlives_the_test_is_an_error(tests: pytest.Pytester) -> None:
    """What is asked only while other fixtures are torn down does not pass unseen."""
    body = """
@pytest.fixture
def agent(turntape_stub):
    stub = turntape_stub("hi")
    yield stub
    with pytest.raises(openai.BadRequestError):
        ask(stub, "Ho")

def test_late(agent):
    assert ask(agent) == "Hello."
"""
    result = run(tests, body)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(MISS)


def test_turns_that_were_not_played_fail_a_strict_stub(tests: pytest.Pytester) -> None:
    """By default a test must ask for all that was recorded; ``strict=False`` lets it ask for less."""
    body = """
def test_strict(turntape_stub):
    turntape_stub("hi")

def test_not_strict(turntape_stub):
    turntape_stub("hi", strict=False)

@pytest.mark.xfail(strict=True)
def test_expected(turntape_stub):
    turntape_stub("hi")

def test_skipped(turntape_stub):
    turntape_stub("hi")
    pytest.skip("not here")
"""
    result = run(tests, body)
    result.assert_outcomes(failed=1, passed=1, xfailed=1, skipped=1)
    result.stdout.fnmatch_lines(
        ["turntape: 0 of 1 turn of hi played; *strict=False.", "*hi.jsonl: its one turn was not played"]
    )


def test_a_fixture_that_is_not_there_is_named_with_where_it_was_looked_for(tests: pytest.Pytester) -> None:
    """The failure says each place, why nothing was recorded, and what would record it."""
    tests.mkpydir("inner")
    (tests.path / "inner" / "test_it.py").write_text("def test_it(turntape_stub):\n    turntape_stub('ho')\n")
    result = tests.runpytest_subprocess("inner")
    result.assert_outcomes(failed=1)
    places = [f"  {tests.path / folder / 'ho.jsonl'}" for folder in ("inner/fixtures", "fixtures")]
    result.stdout.fnmatch_lines(["*no fixture 'ho'. Looked for:", *places, "To record, *--turntape-upstream BACKEND*"])
    result = tests.runpytest_subprocess("inner", "--turntape-record", "none")
    result.stdout.fnmatch_lines(
        ["The record mode is none (--turntape-record). To record it, run with *once and *BACKEND."]
    )


def test_a_name_that_no_file_can_have_names_no_fixture(tests: pytest.Pytester) -> None:
    """A name that is too long is told like any other that is not there."""
    tests.makepyfile("def test_it(turntape_stub):\n    turntape_stub('a' * 5000)\n")
    result = tests.runpytest_subprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*There is no fixture 'aaaa*"])


def test_where_fixtures_are(tests: pytest.Pytester) -> None:
    """Beside the test before the root, by path, by the test's own name, or in the folders that the configuration names."""
    body = """
from pathlib import Path

def test_names(turntape_stub):
    for name in ("hi", "hi.jsonl", "deep/hi", Path(__file__).parent / "fixtures" / "hi.jsonl"):
        assert ask(turntape_stub(name)) == "Hello."

@pytest.mark.parametrize("n", [1])
def test_own(turntape_stub, n):
    assert ask(turntape_stub()) == "Hello."

def test_two_in_one(turntape_stub):
    stub = turntape_stub("hi", "deep/hi")
    assert ask(stub) == ask(stub) == "Hello."
"""
    folder = tests.path / "fixtures"
    for name in ("deep/hi", "test_where_fixtures_are/test_own-1"):
        (folder / name).parent.mkdir()
        (folder / f"{name}.jsonl").write_bytes((folder / "hi.jsonl").read_bytes())
    run(tests, body).assert_outcomes(passed=3)
    folder.rename(tests.path / "taped")
    tests.makepyfile(HEAD + body.replace('Path(__file__).parent / "fixtures" / "hi.jsonl"', '"hi"'))
    tests.runpytest_subprocess("-o", "turntape_fixtures=taped").assert_outcomes(passed=3)


def test_a_fixture_that_cannot_be_played_says_why(tests: pytest.Pytester) -> None:
    """A broken file, a rule that is none and an option that is none fail the test with their own messages."""
    (tests.path / "fixtures" / "bad.jsonl").write_text("no fixture\n")
    body = """
def test_file(turntape_stub):
    turntape_stub("bad")

def test_rule(turntape_stub):
    turntape_stub("hi", rules=["nonsense"])

def test_rule_in_a_process(turntape_stub):
    turntape_stub("hi", rules=["nonsense"], process=True)
"""
    result = run(tests, body)
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(
        ["*bad.jsonl:1: is not a JSON object.", *2 * ["turntape_stub: *preset 'nonsense' is not known*"]]
    )


def test_how_a_fixture_is_played_is_said_in_the_call(tests: pytest.Pytester) -> None:
    """Rules, policies, runs, speed and faults are options of one stub; one that is none is refused by its name."""
    body = """
def test_rules(turntape_stub):
    assert ask(turntape_stub("hi", rules=[{"rule": "replace", "pattern": "H.", "with": "H"}]), "Ho") == "Hello."

def test_ignore(turntape_stub):
    assert ask(turntape_stub("hi", ignore=["temperature"]), temperature=0.5) == "Hello."

def test_warn(turntape_stub):
    assert ask(turntape_stub("hi", warn=["temperature"]), temperature=0.5) == "Hello."

def test_runs(turntape_stub):
    stub = turntape_stub("hi", runs=2)
    assert ask(stub) == ask(stub) == "Hello."

@pytest.mark.parametrize("process", [False, True])
def test_faults(turntape_stub, process):
    stub = turntape_stub("hi", faults=["1:429=0"], speed="x100", process=process)
    with pytest.raises(openai.RateLimitError), openai.OpenAI(base_url=stub.base_url, api_key="a", max_retries=0) as client:
        client.responses.create(model="m", input="Hi", store=False)
    assert ask(stub) == "Hello."

@pytest.mark.parametrize("options", [{"sped": 1}, {"ignore": "model"}])
def test_none(turntape_stub, options):
    with pytest.raises(TypeError, match="'sped'|ignore should be a list"):
        turntape_stub("hi", **options)

def test_no_speed(turntape_stub):
    turntape_stub("hi", speed="fast")
"""
    result = run(tests, body)
    result.assert_outcomes(passed=8, failed=1, warnings=1)
    result.stdout.fnmatch_lines(["turntape_stub: The speed 'fast' is none: *"])
    result.stdout.fnmatch_lines(
        ["*TurntapeWarning: turn 1, at *hi.jsonl:3, *", "*temperature: recorded nothing, got 0.5"]
    )


def test_nothing_is_left_behind(tests: pytest.Pytester) -> None:
    """Each stub's thread or process has ended with its test, also if that failed, and its port is closed."""
    body = """
import socket

urls = []

@pytest.mark.parametrize("process", [False, True])
def test_one(turntape_stub, process):
    first, second = turntape_stub("hi", process=process), turntape_stub("hi", process=process)
    urls.extend([first.base_url, second.base_url])
    assert ask(first) == ask(second) == "Hello."
    assert process

def test_after():
    assert [thread.name for thread in threading.enumerate() if "turntape" in thread.name] == []
    assert len(set(urls)) == 4
    for url in urls:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(url.split(":")[2].removesuffix("/v1"))), timeout=5)
"""
    run(tests, body).assert_outcomes(passed=2, failed=1)


def test_a_test_that_is_run_again_begins_anew(tests: pytest.Pytester) -> None:
    """Plugins that run a failed test once more get a verdict on that run alone."""
    tests.makeconftest("""
import _pytest.runner

def pytest_runtest_protocol(item, nextitem):
    for _ in range(2):
        item._initrequest()
        reports = _pytest.runner.runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    return True
""")
    body = """
runs = []

def test_second_time(turntape_stub):
    stub = turntape_stub("hi")
    runs.append(1)
    assert len(runs) == 2
    assert ask(stub) == "Hello."
"""
    run(tests, body).assert_outcomes(passed=1)


def test_a_stub_that_died_fails_its_test(tests: pytest.Pytester) -> None:
    """A process that was killed and a loop that crashed are said once, in the call, and hang nothing."""
    body = """
def test_killed(turntape_stub):
    stub = turntape_stub("hi", process=True)
    stub._running._process.kill()
    stub._running._process.wait()

def test_crashed(turntape_stub):
    running = turntape_stub("hi")._running
    running._token.run_sync_soon(lambda: 1 / 0)
    running._thread.join(10)

def test_crashed_and_failed(turntape_stub):
    running = turntape_stub("hi")._running
    running._token.run_sync_soon(lambda: 1 / 0)
    running._thread.join(10)
    assert not running
"""
    result = run(tests, body)
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(["turntape_stub: The stub's process ended by itself, with -9."])
    result.stdout.fnmatch_lines(["turntape_stub: The stub ended by itself: *TrioInternalError*"])


def test_the_example_of_the_page_runs(tests: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """What docs/replay.md shows of pytest passes as it stands, with a Codex that asks "Hi" and needs its overrides."""
    [example] = re.findall(r"```python\n(.*?turntape_stub.*?)```", (ROOT / "docs" / "replay.md").read_text(), re.DOTALL)
    folder = tests.path / "fixtures"
    (folder / "hi.jsonl").rename(folder / "hello.jsonl")
    (folder / "test_agent").mkdir()
    (folder / "test_agent" / "test_an_agent.jsonl").write_bytes((folder / "hello.jsonl").read_bytes())
    codex = tests.path / "bin" / "codex"
    codex.parent.mkdir()
    codex.write_text(
        f"#!{sys.executable}\nimport openai, re, sys\n"
        "[url] = re.findall(r'base_url=\"(.*?)\"', ' '.join(sys.argv))\n"
        "assert 'model=\"m\"' in sys.argv\n"
        "openai.OpenAI(base_url=url).responses.create(model='m', input='Hi', store=False)\n"
    )
    codex.chmod(0o755)
    monkeypatch.setenv("PATH", str(codex.parent), prepend=os.pathsep)
    tests.makepyfile(test_agent=example)
    tests.runpytest_subprocess().assert_outcomes(passed=2)


def test_workers_of_xdist_run_stubs_of_their_own(tests: pytest.Pytester) -> None:
    """The same fixture is played by several tests at once, and a miss in a worker is told in full."""
    body = """
@pytest.mark.parametrize("n", range(6))
def test_many(turntape_stub, n):
    stub = turntape_stub("hi")
    if n == 5:
        with pytest.raises(openai.BadRequestError):
            ask(stub, "Ho")
    assert n == 5 or ask(stub) == "Hello."
"""
    result = run(tests, body, "-n", "2")
    result.assert_outcomes(passed=5, failed=1)
    result.stdout.fnmatch_lines(MISS)


def test_the_plugin_costs_nothing_until_a_stub_is_asked_for() -> None:
    """Every run of pytest where Turntape is installed loads the plugin: no server, no Trio comes with it."""
    code = (
        "import sys, turntape.pytest_plugin\n"
        "heavy = {'attrs', 'trio', 'click', 'orjson', 'h11', 'wsproto', 'tiktoken', 'turntape.core', 'turntape.replay'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    assert subprocess.check_output([sys.executable, "-c", code], env=env, cwd=Path(sys.prefix), text=True) == "[]\n"
