"""``verify --diff`` and ``verify --upgrade``: what today's core makes otherwise of recordings, and whether that is to be kept."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import orjson

from turntape.replay.changes import Comparison, compare
from turntape.replay.errors import ReplayError
from turntape.replay.upgrade import NothingToUpgrade, UpgradeRefused, upgrade

from . import __version__
from .options import EnvironmentFailed
from .reading import load


def diff(paths: Sequence[Path], *, as_json: bool) -> int:
    """Print every place in which each recording differs; 1 if any does. A relay's has none to show, and is no difference."""
    results = list[dict[str, Any]]()
    for path in paths:
        fixture = load(path)
        if fixture.is_relayed:
            why = (
                "was recorded by a relay; it holds no effects of our core to compare. verify without --diff checks it."
            )
            results.append(_relayed(path, f"{path}: {why}", as_json=as_json))
            continue
        comparison = compare(fixture)
        results.append({"fixture": str(path), "verified": comparison.equal, **_as_json(comparison)})
        if not as_json:
            _print(path, comparison)
    return _end(results, as_json=as_json)


def upgrade_all(paths: Sequence[Path], *, reason: str, accept_edits: bool, as_json: bool) -> int:
    """Bring each recording to what today's core makes of it; 1 if one had to be left as it is.

    A relay's has nothing to upgrade, and is left out.
    """
    results = list[dict[str, Any]]()
    for path in paths:
        result: dict[str, Any] = {"fixture": str(path), "verified": True, "upgraded": False}
        results.append(result)
        try:
            comparison = upgrade(
                path,
                reason=reason,
                version=__version__,
                date=datetime.now(UTC).date().isoformat(),
                accept_edits=accept_edits,
            )
        except NothingToUpgrade as exc:
            results[-1] = _relayed(path, str(exc), as_json=as_json)
        except UpgradeRefused as exc:
            result |= {"verified": False, "problem": str(exc)}
            if not as_json:
                click.echo(str(exc), err=True)
        except ReplayError as exc:
            raise click.UsageError(str(exc)) from exc
        except OSError as exc:
            raise EnvironmentFailed(f"{path}: cannot be written again: {exc.strerror}; it is as it was") from exc
        else:
            result |= {"upgraded": not comparison.equal, **_as_json(comparison)}
            if not as_json:
                _print(path, comparison)
                if not comparison.equal:
                    click.echo(f"{path}: upgraded")
    return _end(results, as_json=as_json)


def _print(path: Path, comparison: Comparison) -> None:
    for change in comparison.changes:
        click.echo(f"{path}:{change}")
    for found in comparison.edits:
        click.echo(f"{path}:{found} (edited)")
    for found in (*comparison.moved, *comparison.broken):
        click.echo(f"{path}:{found}")
    click.echo(f"{path}: {comparison}")


def _as_json(comparison: Comparison) -> dict[str, Any]:
    lists = {"edits": comparison.edits, "moved": comparison.moved, "broken": comparison.broken}
    return {
        "n_lines": comparison.n_lines,
        "n_changed": comparison.n_changed,
        "changes": [change.as_json() for change in comparison.changes],
        **{name: [{"line": f.line, "problem": f.problem} for f in found] for name, found in lists.items()},
    }


def _relayed(path: Path, problem: str, *, as_json: bool) -> dict[str, Any]:
    """The other files say how the command ends."""
    if not as_json:
        click.echo(problem, err=True)
    return {"fixture": str(path), "verified": None, "problem": problem}


def _end(results: list[dict[str, Any]], *, as_json: bool) -> int:
    if all(result["verified"] is None for result in results):
        raise click.UsageError("every file was recorded by a relay; leave out --diff or --upgrade to check them")
    verified = all(result["verified"] is not False for result in results)
    if as_json:
        click.echo(orjson.dumps({"verified": verified, "fixtures": results}))
    return 0 if verified else 1
