"""Keys, read from files and never shown: no message here holds one."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

import click

from .agents import BACKEND_KEY_VARIABLE


def read_keys(path: Path, *, option: str) -> tuple[str, ...]:
    """The keys in ``path``, one a line; blank lines and lines that begin with ``#`` are passed over.

    Raises:
        click.UsageError: the file cannot be read, holds none, or holds a line that cannot be a key.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        mode = path.stat().st_mode
    except OSError as exc:
        raise click.UsageError(f"{option}: {path} cannot be read ({exc.strerror})") from exc
    except UnicodeDecodeError as exc:
        raise click.UsageError(f"{option}: {path} is not a text file: byte {exc.start} is not UTF-8") from exc
    keys = []
    for number, line in enumerate(lines, start=1):
        key = line.strip()
        if not key or key.startswith("#"):
            continue
        if not (key.isascii() and key.isprintable() and " " not in key):
            raise click.UsageError(
                f"{option}: {path}, line {number} is not a key: a key is printable ASCII without spaces, one a line"
            )
        keys.append(key)
    if not keys:
        raise click.UsageError(f"{option}: {path} holds no key; write one a line")
    if stat.S_IMODE(mode) & (stat.S_IRWXG | stat.S_IRWXO):
        click.echo(f"warning: {path} can be read by others on this machine; chmod 600 it", err=True)
    return tuple(keys)


def backend_key(path: Path | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """The upstream key: from ``path``, else from TURNTAPE_BACKEND_KEY, else none."""
    if path is not None:
        keys = read_keys(path, option="--backend-key-file")
        if len(keys) > 1:
            raise click.UsageError(f"--backend-key-file: {path} holds {len(keys)} keys; it must hold one")
        return keys[0]
    return environment.get(BACKEND_KEY_VARIABLE, "").strip() or None
