"""Keys, read from files and never shown: no message here holds one."""

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

import click
from attrs import field, frozen

from turntape.transport.backends.dialects import preset_for, presets

from .agents import BACKEND_KEY_VARIABLE
from .plan import PlannedBackend

MAX_BYTES = 1 << 20
"""Of a file of keys; ours."""


def read_keys(path: Path, *, option: str) -> tuple[str, ...]:
    """The keys in ``path``, one a line; blank lines and lines that begin with ``#`` are passed over.

    Raises:
        click.UsageError: the file cannot be read, holds none, or holds a line that cannot be a key.
    """
    try:
        with path.open("rb") as file:  # may be a pipe, such as <(...)
            content = file.read(MAX_BYTES + 1)
            mode = os.fstat(file.fileno()).st_mode
        lines = content.decode().splitlines()
    except OSError as exc:
        raise click.UsageError(f"{option}: {path} cannot be read ({exc.strerror})") from exc
    except UnicodeDecodeError as exc:
        raise click.UsageError(f"{option}: {path} is not a text file: byte {exc.start} is not UTF-8") from exc
    if len(content) > MAX_BYTES:
        raise click.UsageError(
            f"{option}: {path} is longer than {MAX_BYTES} bytes; it must hold keys alone, one a line"
        )
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


@frozen
class BackendKey:
    """What is known of a backend's key.

    Attributes:
        value: never shown; None if there is none.
        variable: the environment variable it was taken from; "" for none.
        missing: completes "The backend NAME ..." if it needs a key and has none; "" if all is well.
    """

    value: str | None = field(default=None, repr=False)
    variable: str = ""
    missing: str = ""


def find_key(planned: PlannedBackend, environment: Mapping[str, str] = os.environ) -> BackendKey:
    """The key of one backend: a file's before a variable's, and its own before what is common.

    Only the backend that ``--backend`` names gets the key of ``--backend-key-file`` or TURNTAPE_BACKEND_KEY: a key goes
    nowhere but where its owner pointed it.

    Raises:
        click.UsageError: a file cannot be read, or does not hold one key.
    """
    table = planned.table
    if planned.chosen and planned.key_file is not None:
        return BackendKey(_read_key(planned.key_file, option="--backend-key-file"))
    if table.key_file is not None:
        return BackendKey(_read_key(table.key_file, option=f'{table.path}: [backends.{table.name}]: "key-file"'))
    if table.key_env is not None:
        if value := environment.get(table.key_env, "").strip():
            return BackendKey(value, table.key_env)
        return BackendKey(missing=f"has no key: set {table.key_env}, which its key-env names")
    if planned.chosen and (value := environment.get(BACKEND_KEY_VARIABLE, "").strip()):
        return BackendKey(value, BACKEND_KEY_VARIABLE)
    if table.spec.kind != "preset":
        return BackendKey()
    preset = presets()[table.spec.name]
    url = table.spec.url
    at_home = (
        not url or not preset.hosts or preset_for(url) is preset
    )  # elsewhere its owner has to say that it goes there
    if at_home and preset.key_env and (value := environment.get(preset.key_env, "").strip()):
        return BackendKey(value, preset.key_env)
    if preset.auth == "none":
        return BackendKey()
    cures = [f"set {preset.key_env}"] if at_home and preset.key_env else []
    cures.append(
        "give --backend-key-file" if planned.chosen else f"write key-env or key-file into [backends.{table.name}]"
    )
    return BackendKey(missing=f"has no key: {', or '.join(cures)}")


def key_doubts(backends: Iterable[PlannedBackend]) -> list[str]:
    """What is wrong with the keys of ``backends``, and what to do."""
    found = list[str]()
    for backend in backends:
        try:
            if missing := find_key(backend).missing:
                found.append(f"the backend {backend.name} {missing}")
        except click.UsageError as exc:
            found.append(exc.format_message())
    return found


def _read_key(path: Path, *, option: str) -> str:
    keys = read_keys(path, option=option)
    if len(keys) > 1:
        raise click.UsageError(f"{option}: {path} holds {len(keys)} keys; it must hold one")
    return keys[0]
