"""The commands before a recording is shared: what in it is a secret, and a copy without its prose."""

from collections.abc import Sequence
from pathlib import Path

import click
import orjson
from attrs import asdict

from turntape.replay.errors import ReplayError
from turntape.replay.scanning import Found
from turntape.replay.scanning import scan as scan_fixture
from turntape.replay.scrub import scrub as scrub_fixture

from .options import Secrets
from .reading import load
from .secrecy import Secrecy

MAX_WARNINGS = 20
"""Shown of one file; --json has them all."""


def scan(paths: Sequence[Path], secrets: Secrets, *, as_json: bool) -> int:
    """Say where secrets stand in each recording; 1 if any certainly is one."""
    masker = Secrecy.of(secrets).masker()
    results, n_certain = [], 0
    for path in paths:
        fixture = load(path)
        found = scan_fixture(path.read_bytes(), fixture, masker)
        certain = [one for one in found if one.certain]
        doubtful = [one for one in found if not one.certain]
        n_certain += len(certain)
        results.append({"fixture": str(path), "findings": [*map(asdict, found)]})
        if as_json:
            continue
        for one in certain:
            click.echo(_line(path, one))
        for one in doubtful[:MAX_WARNINGS]:
            click.echo(f"warning: {_line(path, one)}", err=True)
        if len(doubtful) > MAX_WARNINGS:
            click.echo(f"warning: {path}: {len(doubtful) - MAX_WARNINGS:,} more; --json lists all", err=True)
        counted = f"{len(certain):,} secret{'' if len(certain) == 1 else 's'}" if certain else "no secret"
        click.echo(f"{path}: {counted}, {len(doubtful):,} warning{'' if len(doubtful) == 1 else 's'}")
    if as_json:
        click.echo(orjson.dumps({"clean": not n_certain, "fixtures": results}))
    return 1 if n_certain else 0


def _line(path: Path, found: Found) -> str:
    lines = f"{found.line}" if found.line == found.last_line else f"{found.line}-{found.last_line}"
    return f"{path}:{lines}: {found.kind} ({found.place}): {found.excerpt}"


def scrub(path: Path, secrets: Secrets, *, out: Path, keep: Sequence[str]) -> int:
    """Write a copy of one recording without its prose, and say what it holds."""
    try:
        verified = scrub_fixture(load(path), out, keep=keep, masker=Secrecy.of(secrets).masker())
    except ReplayError as exc:
        raise click.UsageError(str(exc)) from exc
    kept = f"; kept as it was: {', '.join(keep)}" if keep else ""
    click.echo(f"{out}: {verified}{kept}")
    return 0
