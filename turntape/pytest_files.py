"""Which files a test's stub plays and writes: by the names that the test gave, and by the record mode."""

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from .answering import Setup

SUFFIX = ".jsonl"
_NO_UPSTREAM = (
    "To record, name what should answer: --turntape-upstream BACKEND, or turntape_upstream in the configuration."
)


class SetupWrong(Exception):
    """The test, or the configuration, asks for what cannot be; the text says what, and the cure."""


@frozen
class Recording:
    """What a run does with what is not recorded, and what it hides.

    Attributes:
        mode: ``none``, ``once``, ``new`` or ``all``.
        reason: where the mode comes from, for messages.
        upstream: a backend as ``--backend`` takes it; "" for none.
        tables: a turntape.toml that may name it.
        secret_env: variables whose values are secrets.
    """

    mode: str
    reason: str
    upstream: str = ""
    tables: Path | None = None
    secret_env: tuple[str, ...] = ()


@frozen
class Planned:
    """What the stub of one test is to do.

    Attributes:
        names: for messages.
        setup: of the server.
        target: where a whole recording goes, once its test has passed.
    """

    names: str
    setup: Setup
    target: Path | None = None


def plan(
    names: Sequence[str | Path], folders: Sequence[Path], recording: Recording, options: dict[str, Any]
) -> Planned:
    """Decide for one stub.

    Args:
        names: of fixtures, without ``.jsonl``, or paths.
        folders: where they are looked for, in this order; a new one goes into the first.

    Raises:
        SetupWrong: a fixture is not there and is not to be recorded.
    """
    found = [_find(name, folders) for name in names]
    missing = [name for name, path in zip(names, found, strict=True) if path is None]
    shown = ", ".join(map(str, names))
    if missing and (recording.mode == "none" or not recording.upstream):
        raise SetupWrong(_not_there(missing, folders, recording))
    if recording.mode in ("new", "all") and not recording.upstream:
        raise SetupWrong(f"The record mode is {recording.mode} ({recording.reason}). {_NO_UPSTREAM}")
    if recording.mode == "all" or missing:
        if len(names) > 1:
            raise SetupWrong(
                f"A run is recorded into one file, and this stub plays {len(names)}: {shown}. Record each in a test of its own."
            )
        target = found[0] or folders[0] / _file(names[0])
        setup = _writing(target, recording)
        if found[0]:
            setup = evolve(setup, replaces=target)
        return Planned(shown, setup, target)
    paths = tuple(path for path in found if path is not None)
    if recording.mode == "new":
        target = paths[0].with_name(paths[0].stem + ".new" + SUFFIX)
        return Planned(shown, evolve(_writing(target, recording), fixtures=paths, options=dict(options)), target)
    return Planned(shown, Setup(paths, dict(options), secret_env=recording.secret_env))


def policies(**fields: Sequence[str]) -> list[dict[str, Any]]:
    """The rules that the options ``ignore`` and ``warn`` stand for."""
    for policy, names in fields.items():
        if isinstance(names, str):
            raise TypeError(f"{policy} should be a list of names of settings, such as [{names!r}], not a string")
    return [{"rule": policy, "fields": [*names]} for policy, names in fields.items() if names]


def keep(written: Path, planned: Planned, *, passed: bool) -> str:
    """Put a recording where it belongs, over nothing, and say what was done."""
    target = planned.target
    assert target is not None
    if not passed:
        kept = _move(written, target.with_name(target.stem + ".failed" + SUFFIX))
        return f"recorded {kept}; the test failed, so it did not become {target.name}"
    before = ""
    if planned.setup.replaces and target.exists():
        before = f"; the recording before it is {_move(target, target.with_name(target.name + '.bak')).name}"
    kept = _move(written, target)
    if planned.setup.fixtures:
        before = f", the whole run with what {planned.names} had no answer to; look at it, then give it that name"
    return f"recorded {kept}{before}"


def _move(source: Path, target: Path) -> Path:
    """Rename to ``target``, or to the first like it with a number that is free: nothing is ever written over."""
    name, number = target, 1
    while True:
        try:
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            number += 1
            name = target.with_name(f"{target.stem}-{number}{target.suffix}")
        else:
            return source.replace(name)  # over the empty file that keeps the name


def _find(name: str | Path, folders: Sequence[Path]) -> Path | None:
    paths = (folder / _file(name) for folder in folders)  # an absolute path is the same in every folder
    return next((path for path in paths if os.path.isfile(path)), None)  # also of a name that is too long


def _file(name: str | Path) -> str:
    return str(name) if str(name).endswith(SUFFIX) else f"{name}{SUFFIX}"


def _writing(target: Path, recording: Recording) -> Setup:
    """A server that writes beside ``target``, under a name that nobody else takes."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise SetupWrong(f"The folder {target.parent} for the recording cannot be made: {exc.strerror}.") from exc
    out = target.with_name(f"{target.stem}.{secrets.token_hex(4)}.partial")
    return Setup(upstream=recording.upstream, out=out, tables=recording.tables, secret_env=recording.secret_env)


def _not_there(missing: Sequence[str | Path], folders: Sequence[Path], recording: Recording) -> str:
    name = missing[0]
    places = "".join(f"\n  {folder / _file(name)}" for folder in folders)
    if recording.mode == "none":
        cure = f"The record mode is none ({recording.reason}). To record it, run with --turntape-record once"
        cure += "." if recording.upstream else " and --turntape-upstream BACKEND."
    else:
        cure = _NO_UPSTREAM
    return f"There is no fixture {str(name)!r}. Looked for:{places}\n{cure}"
