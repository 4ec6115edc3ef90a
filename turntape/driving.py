"""The commands ``drive`` and ``compare``: a recorded client against a live backend or server, and two of its reports."""

import math
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import orjson
import trio
from attrs import define, frozen
from click.core import ParameterSource

from turntape.replay.drive.comparing import NotComparable, Thresholds
from turntape.replay.drive.comparing import compare as compare_reports
from turntape.replay.drive.course import Course, ToolTime
from turntape.replay.drive.driving import check, drive_at, drive_backend
from turntape.replay.drive.report import Report, ReportUnreadable, Setup, TurnVerdict
from turntape.replay.drive.run import Run, Settings
from turntape.replay.drive.table import counted, report_table
from turntape.replay.drive.wire import Server
from turntape.replay.errors import ReplayError
from turntape.replay.fixture import Fixture
from turntape.replay.pages.drive import drive_page
from turntape.transport.http_connections import HttpError

from . import __version__
from .agents import BACKEND_KEY_VARIABLE
from .commands import need_parent, open_router
from .keys import read_keys
from .options import EnvironmentFailed, Model
from .plan import plan
from .reading import write_private
from .tables import Tables

STOPPED = 128 + signal.SIGINT
STANDARD_OUTPUT = Path("-")
N_LINES = 20
"""Of progress within runs, where it is no terminal; ours."""


def settings(*, tool_time: str, **values: Any) -> Settings:
    """
    Raises:
        click.UsageError: the tool time is none.
    """
    try:
        return Settings(tool_time=ToolTime.parse(tool_time), **values)
    except ValueError as exc:
        raise click.UsageError(f"--tool-time: {exc}") from exc


def thresholds(
    max_ttft_ratio: float | None, max_wall_ratio: float | None, allow_departures: int | None, verdicts: str
) -> Thresholds:
    """
    Raises:
        click.UsageError: a ratio is none.
    """
    for option, ratio in (("--max-ttft-ratio", max_ttft_ratio), ("--max-wall-ratio", max_wall_ratio)):
        if ratio is not None and not 0 < ratio < math.inf:
            raise click.UsageError(f"{option} {ratio}: it must be a number above 0, such as 1.5")
    return Thresholds(
        max_ttft_ratio=max_ttft_ratio,
        max_wall_ratio=max_wall_ratio,
        allow_departures=allow_departures,
        same_verdicts=verdicts == "same",
    )


@frozen
class Files:
    """Where a report is written, beside the table.

    Attributes:
        json: "-" for standard output, which is then all that stands there.
    """

    json: Path | None
    html: Path | None

    def check(self, fixtures: Sequence[Path]) -> None:
        """Raises ``click.UsageError`` before anything is driven for nothing, or a recording written over."""
        for option, path in (("--json", self.json), ("--html", self.html)):
            if path is not None and path != STANDARD_OUTPUT:
                need_parent(path, option=option)
                if path.is_dir():
                    raise click.UsageError(f"{option}: {path} is a folder; name a file for the report")
                if path.exists() and any(path.samefile(fixture) for fixture in fixtures):
                    raise click.UsageError(f"{option}: {path} is a recording; name another file for the report")

    def write(self, report: Report) -> None:
        """Raises ``EnvironmentFailed``."""
        if self.json == STANDARD_OUTPUT:
            click.echo(report.encode(), nl=False)
        elif self.json is not None:
            _write(self.json, report.encode())
        if self.html is not None:
            _write(self.html, drive_page(report).encode())


def _write(path: Path, content: bytes) -> None:
    try:
        write_private(path, content)
    except OSError as exc:
        raise EnvironmentFailed(f"{path}: cannot be written: {exc.strerror}") from exc


@frozen
class Target:
    """What is driven: a backend by the options of ``serve``, or a server by its URL.

    Attributes:
        url: "" for the backend.
    """

    model: Model
    tables: Tables
    url: str = ""

    @classmethod
    def chosen(cls, context: click.Context, model: Model, tables: Tables, url: str) -> "Target":
        """One of the two. On the command line it goes before what a file or the environment says.

        Raises:
            click.UsageError: both or none.
        """
        said = {name: context.get_parameter_source(name) for name in ("backend", "url")}
        given = [name for name, source in said.items() if source is not ParameterSource.DEFAULT]
        here = [name for name in given if said[name] is ParameterSource.COMMANDLINE] or given
        if tables.models and not here:
            here = ["backend"]
        if len(here) != 1:
            what = "both --backend and --url are given" if here else "neither --backend nor --url is given"
            raise click.UsageError(
                f"{what}; name one of them: a backend, such as --backend chat+http://127.0.0.1:8000/v1, or a server of "
                "the Responses API, such as --url https://api.openai.com/v1"
            )
        return cls(model, tables, url if here == ["url"] else "")


def drive(paths: Sequence[Path], target: Target, settings: Settings, files: Files, *, strict: bool) -> int:
    """Play every fixture and report; 1 under ``strict`` if anything differs from the recordings.

    SIGINT ends the drive, and what was played until then is reported.

    Raises:
        EnvironmentFailed: nobody answered any turn; the report is written all the same.
    """
    files.check(paths)
    try:
        check(settings, at_url=bool(target.url))
        courses = [Course.of(Fixture.load(path)) for path in paths]
    except ReplayError as exc:
        raise click.UsageError(str(exc)) from exc
    names = [course.name for course in courses]
    if len(set(names)) < len(names):
        raise click.UsageError("a fixture is named twice; --repeat N plays each one N times")
    stop = trio.CancelScope()
    report = trio.run(_drive, courses, target, settings, stop)
    files.write(report)
    click.echo(report_table(report), err=files.json == STANDARD_OUTPUT)
    if stop.cancelled_caught:
        return STOPPED
    if unanswered := report.unanswered:
        raise EnvironmentFailed(f"no turn was answered: {unanswered.message}")
    whole = set(report.verdicts.counts) <= {"equal"} and not any(
        run.departures or run.not_reached for run in report.verdicts.runs
    )
    return 1 if strict and not whole else 0


async def _drive(courses: Sequence[Course], target: Target, settings: Settings, stop: trio.CancelScope) -> Report:
    progress = Shown(sum(len(course.turns) for course in courses) * settings.repeat, len(courses) * settings.repeat)

    def setup(driven: str) -> Setup:
        return Setup(
            turntape=__version__,
            target=driven,
            model=settings.model,
            tool_time=str(settings.tool_time),
            repeat=settings.repeat,
            parallel=settings.parallel,
        )

    report: Report | None = None
    failure: click.ClickException | None = None
    async with trio.open_nursery() as nursery:
        await nursery.start(_stop_on_signal, stop)
        try:
            if target.url:
                server = _server(target)
                await _reach(server)
                driven = setup(target.url.partition("?")[0])
                report = await drive_at(courses, settings, driven, server, progress, stop)
            else:
                names = ", ".join(backend.name for backend in plan(target.model, target.tables).backends)
                async with open_router(target.model, target.tables) as (router, _):
                    for upstream in router.table.upstreams:
                        upstream.health.patience = math.inf  # each turn is asked, however many failed before it
                    await router.warm()  # a connection is no part of the first turn
                    report = await drive_backend(courses, settings, setup(names), router, progress, stop)
        except click.ClickException as exc:
            failure = exc  # kept out of the nursery, which would wrap it in a group
        nursery.cancel_scope.cancel()
    progress.end()
    if failure is not None:
        raise failure
    assert report is not None
    return report


async def _stop_on_signal(
    stop: trio.CancelScope, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Cancel ``stop`` on the first SIGINT; a second one ends the process as ever."""
    with trio.open_signal_receiver(signal.SIGINT) as signals:
        task_status.started()
        async for _ in signals:
            click.echo("stopping: what was played is reported; a second signal stops at once", err=True)
            stop.cancel()
            return


def _server(target: Target) -> Server:
    key = os.environ.get(BACKEND_KEY_VARIABLE) or None
    if target.model.backend_key_file:
        key = read_keys(target.model.backend_key_file, option="--backend-key-file")[0]
    try:
        return Server(target.url, key)
    except ValueError as exc:
        raise click.UsageError(f"--url: {exc}") from exc


async def _reach(server: Server) -> None:
    """Raises ``EnvironmentFailed`` if there is nothing to drive."""
    try:
        stream = await server.client.connections.open(server.http_target)
    except HttpError as exc:
        raise EnvironmentFailed(f"--url: the server at {server.http_target.where} {exc}. {exc.cure}") from exc
    await trio.aclose_forcefully(stream)


@define(eq=False)
class Shown:
    """Progress on standard error: one line that changes on a terminal, else a line for each run and each twentieth.

    Args:
        n_turns, n_runs: to be played in all; a free run may end before.
    """

    n_turns: int
    n_runs: int
    _n_turns_over: int = 0
    _n_runs_over: int = 0

    def turn(self, run: Run, verdict: TurnVerdict) -> None:
        self._n_turns_over += 1
        text = f"turn {self._n_turns_over} of {self.n_turns}, run {self._n_runs_over + 1} of {self.n_runs}"
        if sys.stderr.isatty():
            click.echo(f"\r{text}: {verdict.verdict}\x1b[K", nl=False, err=True)
        elif not self._n_turns_over % max(1, self.n_turns // N_LINES):
            click.echo(f"{text}: {verdict.verdict}", err=True)

    def run(self, run: Run) -> None:
        self._n_runs_over += 1
        if not sys.stderr.isatty():
            found = counted(run.verdict().counts)
            click.echo(f"run {self._n_runs_over} of {self.n_runs}: {run.course.name}: {found}", err=True)

    def end(self) -> None:
        """Leave a terminal's line empty."""
        if sys.stderr.isatty():
            click.echo("\r\x1b[K", nl=False, err=True)


def compare(first: Path, second: Path, thresholds: Thresholds, *, html: Path | None, as_json: bool) -> int:
    """Print what changed, and write both reports as a page to ``html``; 1 if that is beyond the thresholds."""
    if html is not None:
        need_parent(html, option="--html")
        if any(html.exists() and html.samefile(path) for path in (first, second)):
            raise click.UsageError(f"--html: {html} is a report; name another file for the page")
    try:
        reports = Report.load(first), Report.load(second)
        found = compare_reports(*reports, thresholds)
    except (ReportUnreadable, NotComparable) as exc:
        raise click.UsageError(str(exc)) from exc
    if html is not None:
        _write(html, drive_page(*reports).encode())
    click.echo(orjson.dumps(found.value()) if as_json else found.table())
    return 1 if found.beyond else 0
