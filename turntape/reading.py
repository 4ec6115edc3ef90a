"""The commands that only read recordings: no server, no backend, no network."""

import gc
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import orjson
from attrs import asdict

from turntape.replay.errors import Divergence, ReplayError
from turntape.replay.fixture import Fixture
from turntape.replay.golden import golden
from turntape.replay.pages.timeline import timeline_page
from turntape.replay.show import transcript
from turntape.replay.verify import verify as verify_fixture

from .options import EnvironmentFailed


@contextmanager
def _rarely_collecting() -> Iterator[None]:
    """Look for garbage seldom: nearly all that is read of a file is needed to its end, and looking at it is a fifth of the time."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@_rarely_collecting()
def verify(paths: Sequence[Path], *, as_json: bool) -> int:
    """Check each recording and say for each what was found; 1 if any diverges, all of them are read."""
    code = 0
    results, comparable = list[dict[str, Any]](), list[Path]()
    for path in paths:
        fixture = load(path)
        try:
            verified = verify_fixture(fixture)
        except Divergence as exc:
            code = 1
            if not fixture.is_relayed:
                comparable.append(path)
            results.append({"fixture": str(path), "verified": False, "line": exc.line, "problem": str(exc)})
            if not as_json:
                click.echo(str(exc), err=True)
        else:
            results.append({"fixture": str(path), "verified": True, **asdict(verified)})
            if not as_json:
                click.echo(f"{path}: {verified}")
    if as_json:
        click.echo(orjson.dumps({"verified": code == 0, "fixtures": results}))
    elif comparable:
        files = " ".join(shlex.quote(str(path)) for path in comparable)
        click.echo(
            f"to see every difference: turntape verify --diff {files}; to keep a lawful change: turntape verify --upgrade "
            f"--reason TEXT {files}, with --accept-edits if a person edited it",
            err=True,
        )
    return code


def show(paths: Sequence[Path], *, as_golden: bool, html: Path | None) -> int:
    """Print the transcript of each recording, or its golden text; or write a page of one or two of them to ``html``."""
    if as_golden and html is not None:
        raise click.UsageError("--golden prints a text and --html makes a page; name one of them")
    fixtures = [load(path) for path in paths]
    try:
        if html is None:
            click.echo("\n".join(map(golden if as_golden else transcript, fixtures)), nl=False)
        else:
            _write_page(fixtures, paths, html)
    except ReplayError as exc:
        raise click.UsageError(str(exc)) from exc
    return 0


def _write_page(fixtures: Sequence[Fixture], paths: Sequence[Path], html: Path) -> None:
    if len(fixtures) > 2:
        raise click.UsageError(f"--html shows one recording, or two side by side, but there are {len(fixtures)}")
    if any(html.exists() and html.samefile(path) for path in paths):
        raise click.UsageError(f"--html: {html} is a recording; name another file for the page")
    if html.suffix == ".jsonl" and html.exists():
        raise click.UsageError(f"--html: {html} looks like a recording; name another file for the page")
    try:
        write_private(html, timeline_page(*fixtures).encode())
    except OSError as exc:
        raise EnvironmentFailed(f"--html: {html} cannot be written ({exc.strerror})") from exc
    click.echo(f"wrote {html}")


def write_private(path: Path, content: bytes) -> None:
    """Write a file that says what a recording says: a new one is, like a recording, its owner's only."""
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(content)


def load(path: Path) -> Fixture:
    """The recording in ``path``.

    Raises:
        click.UsageError: it is not one.
    """
    try:
        return Fixture.load(path)
    except ReplayError as exc:
        raise click.UsageError(str(exc)) from exc
