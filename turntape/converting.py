"""The commands that make recordings of what other tools have kept, and workloads for other tools of recordings."""

import os
from collections.abc import Sequence
from pathlib import Path

import click
import orjson
from attrs import asdict

from turntape.replay.errors import ReplayError
from turntape.replay.exporting import workload
from turntape.replay.importing.conversations import ImportFailed
from turntape.replay.importing.kinds import import_all
from turntape.replay.packing import encode

from .options import EnvironmentFailed, Secrets
from .reading import load
from .secrecy import Secrecy


def import_(paths: Sequence[Path], secrets: Secrets, *, kind: str | None, out: Path, as_json: bool) -> int:
    """Make a new recording of some sources; say what of them is not in it."""
    if not out.parent.is_dir():
        raise click.UsageError(f"--out: there is no folder {out.parent}; make it first")
    secrecy = Secrecy.of(secrets)
    try:
        imported, tape = import_all(paths, out, kind, secrecy.masker(), refuses=secrecy.refuse)
    except ImportFailed as exc:
        raise click.UsageError(str(exc)) from exc
    except ReplayError as exc:
        raise click.UsageError(f"--out: {exc}") from exc
    except OSError as exc:
        raise EnvironmentFailed(f"--out: {out} cannot be written ({exc.strerror})") from exc
    for note in imported.notes:
        click.echo(f"note: {note}", err=True)
    for skipped in imported.skipped:
        click.echo(f"left out: {skipped}", err=True)
    if as_json:
        counts = asdict(tape.counts)
        click.echo(orjson.dumps({"recording": str(out), "from": imported.kind, **counts, "skipped": imported.skipped}))
    else:
        click.echo(f"imported {out}: {tape.counts}")
    return 0


def export(paths: Sequence[Path], *, out: Path, as_json: bool) -> int:
    """Write the workload of some recordings, a new file that only its owner may read."""
    try:
        made = workload([load(path) for path in paths])
    except ReplayError as exc:
        raise click.UsageError(str(exc)) from exc
    for lost in made.not_replayable:
        click.echo(f"not replayable: {lost}", err=True)
    if not made.lines:
        raise click.UsageError("there is no whole answer in these recordings, so there is no workload")
    try:
        with open(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.writelines(encode(line) + b"\n" for line in made.lines)
    except FileExistsError:
        raise click.UsageError(f"--out: {out} is there already; name another file") from None
    except OSError as exc:
        raise EnvironmentFailed(f"--out: {out} cannot be written ({exc.strerror})") from exc
    if made.left_out:
        turns = "1 turn" if made.left_out == 1 else f"{made.left_out:,} turns"
        click.echo(f"left out: {turns} without a whole answer", err=True)
    if made.uncounted:
        whose = "1 turn says" if made.uncounted == 1 else f"{made.uncounted:,} turns say"
        click.echo(f"note: {whose} nothing of the length of the answer", err=True)
    if as_json:
        counts = {"n_sessions": made.n_sessions, "n_turns": len(made.lines), "n_left_out": made.left_out}
        click.echo(orjson.dumps({"workload": str(out), **counts}))
    else:
        click.echo(f"exported {out}: {made}")
    return 0
