"""The commands that only read recordings: no server, no backend, no network."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import orjson
from attrs import asdict

from turntape.replay.errors import Divergence, ReplayError
from turntape.replay.fixture import Fixture
from turntape.replay.golden import golden
from turntape.replay.show import transcript
from turntape.replay.verify import verify as verify_fixture


def verify(paths: Sequence[Path], *, as_json: bool) -> int:
    """Check each recording and say for each what was found; 1 if any diverges, all of them are read."""
    code = 0
    results = list[dict[str, Any]]()
    for path in paths:
        fixture = load(path)
        try:
            verified = verify_fixture(fixture)
        except Divergence as exc:
            code = 1
            results.append({"fixture": str(path), "verified": False, "line": exc.line, "problem": str(exc)})
            if not as_json:
                click.echo(str(exc), err=True)
        else:
            results.append({"fixture": str(path), "verified": True, **asdict(verified)})
            if not as_json:
                click.echo(f"{path}: {verified}")
    if as_json:
        click.echo(orjson.dumps({"verified": code == 0, "fixtures": results}))
    return code


def show(path: Path, *, as_golden: bool) -> int:
    """Print one recording: its golden text, or its transcript."""
    fixture = load(path)
    try:
        click.echo(golden(fixture) if as_golden else transcript(fixture), nl=False)
    except ReplayError as exc:
        raise click.UsageError(str(exc)) from exc
    return 0


def load(path: Path) -> Fixture:
    """The recording in ``path``.

    Raises:
        click.UsageError: it is not one.
    """
    try:
        return Fixture.load(path)
    except ReplayError as exc:
        raise click.UsageError(str(exc)) from exc
