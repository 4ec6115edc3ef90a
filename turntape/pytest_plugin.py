"""The pytest plugin: ``turntape_stub`` gives a test a server that answers from recordings, and fails it on a miss.

Nothing else of Turntape is imported until a test asks for a stub.
"""

import os
import re
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .pytest_files import Recording
    from .pytest_stub import Stub

MODES = ("none", "once", "new", "all")
_STUBS = pytest.StashKey["list[Stub]"]()
_PASSED = pytest.StashKey[bool]()


class TurntapeWarning(pytest.PytestWarning):
    """A request was answered although it differs, as a rule allows and says; or a recording holds what cannot be played."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("turntape", "recorded agent sessions")
    group.addoption(
        "--turntape-record",
        choices=MODES,
        help="What is recorded: none; once: fixtures that are not there; new: runs in which something is missed, "
        "into a file beside; all: everything again. Default: turntape_record, or once, and none in CI.",
    )
    group.addoption(
        "--turntape-upstream",
        metavar="BACKEND",
        help="What answers while recording, as for turntape record --backend.",
    )
    parser.addini("turntape_record", "default of --turntape-record outside CI")
    parser.addini("turntape_upstream", "default of --turntape-upstream")
    parser.addini("turntape_secret_env", "environment variables whose values are secrets", type="args")
    parser.addini(
        "turntape_fixtures",
        "folders with fixtures, from the root directory; default: fixtures/ beside the test, then in the root directory",
        type="linelist",
    )


def pytest_configure(config: pytest.Config) -> None:
    if (mode := config.getini("turntape_record")) and mode not in MODES:
        raise pytest.UsageError(f"turntape_record is {mode!r}; it should be one of {', '.join(MODES)}")


@pytest.fixture
def turntape_stub(request: pytest.FixtureRequest) -> "Generator[Callable[..., Stub], None, None]":
    """Start a stub: ``stub = turntape_stub("name", …)`` plays fixtures/name.jsonl at ``stub.base_url`` until the test ends.

    Without a name the fixture is that of the test: fixtures/test_module/test_name.jsonl. Options: rules, ignore, warn,
    strict, speed, runs, faults, process. See docs/replay.md.
    """
    from . import pytest_files
    from .pytest_stub import Stub

    item = request.node
    stubs = item.stash[_STUBS] = list[Stub]()  # new ones, if a plugin runs the test again
    item.stash[_PASSED] = False
    recording = _recording(request.config)

    def start(
        *names: str | Path,
        rules: Sequence[Any] = (),
        ignore: Sequence[str] = (),
        warn: Sequence[str] = (),
        strict: bool = True,
        speed: float | str = "instant",
        runs: int | None = 1,
        faults: Sequence[str] = (),
        process: bool = False,
    ) -> Stub:
        policies = pytest_files.policies(ignore=ignore, warn=warn)
        options = {"rules": [*rules, *policies], "speed": speed, "runs": runs, "faults": [*faults]}
        options["root"] = str(request.config.rootpath)
        try:
            planned = pytest_files.plan(names or (_own_name(item),), _folders(item), recording, options)
            stub = Stub.start(planned, strict=strict, process=process)
        except pytest_files.SetupWrong as exc:
            problem = f"turntape_stub: {exc}"
        else:
            stubs.append(stub)
            return stub
        pytest.fail(problem, pytrace=False)

    yield start
    passed = item.stash[_PASSED]
    problems = [problem for stub in stubs for problem in [_stop(stub, item, passed=passed)] if problem]
    if problems:
        pytest.fail("\n\n".join(problems), pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """A miss fails the test itself, even if its agent swallowed the error."""
    try:
        yield
    except BaseException:
        for text in _complaints(item, unused=False):
            item.add_report_section("call", "turntape", text)
        raise
    if texts := _complaints(item, unused=True):
        pytest.fail("\n\n".join(texts), pytrace=False)
    for stub in item.stash.get(_STUBS, ()):
        for text in stub.warnings:
            item.warn(TurntapeWarning(text))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[_PASSED] = report.passed
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What was recorded is said at the end, for passed tests too."""
    lines = [
        value
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == "turntape" and report.when == "teardown"
    ]
    if lines:
        terminalreporter.section("turntape")
        for line in lines:
            terminalreporter.write_line(line)


def _complaints(item: pytest.Item, *, unused: bool) -> list[str]:
    found = (stub.complaint(unused=unused) for stub in item.stash.get(_STUBS, ()))
    return [text for text in found if text]


def _stop(stub: "Stub", item: pytest.Item, *, passed: bool) -> str:
    """End a stub; return what is wrong with it and has not been said yet."""
    from .background import BackgroundFailed

    try:
        said = stub.stop(passed=passed)
    except BackgroundFailed as exc:
        return f"turntape_stub: {exc}"
    except OSError as exc:
        return f"turntape_stub: the recording is left as {exc.filename}: {exc.strerror}"
    if said:
        item.user_properties.append(("turntape", said))
    return stub.complaint(unused=False)


def _recording(config: pytest.Config) -> "Recording":
    from .pytest_files import Recording

    in_ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
    if mode := config.getoption("turntape_record"):
        reason = "--turntape-record"
    elif in_ci:  # whatever the configuration says for developers: nothing is recorded where nobody looks
        mode, reason = "none", "the default in CI"
    elif mode := config.getini("turntape_record"):
        reason = "turntape_record"
    else:
        mode, reason = "once", "the default"
    upstream = config.getoption("turntape_upstream") or config.getini("turntape_upstream")
    tables = config.rootpath / "turntape.toml"
    secret_env = tuple(config.getini("turntape_secret_env"))
    return Recording(mode, reason, upstream, tables if tables.is_file() else None, secret_env)


def _folders(item: pytest.Item) -> list[Path]:
    root = item.config.rootpath
    if chosen := item.config.getini("turntape_fixtures"):
        return [root / folder for folder in chosen]
    return list(dict.fromkeys((item.path.parent / "fixtures", root / "fixtures")))


def _own_name(item: pytest.Item) -> str:
    return f"{item.path.stem}/{re.sub(r'[^A-Za-z0-9_.-]+', '-', item.name).strip('-')}"
