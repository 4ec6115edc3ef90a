"""A recording made anew from its own events, when today's core lawfully gives other bytes than the one that recorded."""

import os
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

from attrs import define

from turntape.core.session import Session

from .changes import Comparison, compare
from .errors import ReplayError
from .fixture import Fixture
from .packing import decode
from .recorder import Recorder, Tape
from .takes import NewSession
from .verify import verify

SHOWN = 5
"""Reasons for a refusal that are spelled out."""


@define(eq=False)
class UpgradeRefused(ReplayError):
    """The recording is left as it is."""

    where: str
    why: str

    def __str__(self) -> str:
        return f"{self.where}: {self.why}"


class NothingToUpgrade(UpgradeRefused):
    """It came through a relay, and has no effects of ours."""


def upgrade(
    path: Path,
    *,
    reason: str,
    version: str,
    date: str,
    accept_edits: bool = False,
    new_session: NewSession = Session,
) -> Comparison:
    """Write the file again with today's effects, in its place, if they differ; return what differed.

    Its events stay as they are. What no line refers to any more is dropped, and the places in turn lines are right again.

    Args:
        reason: why the change is lawful; it stays in the header, with ``version`` and ``date``.
        accept_edits: events that a person changed are meant.

    Raises:
        FixtureUnreadable: it is no recording.
        NothingToUpgrade: it came through a relay.
        UpgradeRefused: the samples would mean nothing any more, or events were edited.
        OSError: it cannot be written; the file is as it was.
    """
    fixture = Fixture.load(path)
    if fixture.is_relayed:
        raise NothingToUpgrade(
            fixture.name, "was recorded by a relay; it holds no effects of our core, so there is nothing to upgrade."
        )
    comparison = compare(fixture, new_session)
    if comparison.equal:
        return comparison
    _check(fixture.name, comparison, accept_edits=accept_edits)
    entry = {"reason": reason, "version": version, "date": date, "n_lines": comparison.n_changed}
    if comparison.edits:
        entry["edits"] = [found.line for found in comparison.edits]
    header = _header(path)
    before = header.get("upgrades")
    header["upgrades"] = [*(before if isinstance(before, list) else ()), entry]
    _rewrite(path, fixture, header, new_session)
    return comparison


def _check(where: str, comparison: Comparison, *, accept_edits: bool) -> None:
    if comparison.broken:
        raise UpgradeRefused(
            where, "cannot be upgraded; record it again." + _listed([str(found) for found in comparison.broken])
        )
    if comparison.edits and not accept_edits:
        raise UpgradeRefused(
            where,
            "was edited; give --accept-edits if that is meant." + _listed([str(found) for found in comparison.edits]),
        )
    if comparison.moved and not comparison.edits:
        raise UpgradeRefused(
            where,
            "cannot be upgraded: its answers are to other conversations than today's core makes of the same requests; "
            "record it again." + _listed([str(found) for found in comparison.moved]),
        )


def _listed(problems: list[str]) -> str:
    more = [f"and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
    return "".join(f"\n  line {problem}" for problem in problems[:SHOWN]) + "".join(f"\n  {line}" for line in more)


def _header(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        header = decode(file.readline())
    assert isinstance(header, dict), "the file was read before"
    return {name: value for name, value in header.items() if name != "turntape"}


def _rewrite(path: Path, fixture: Fixture, header: dict[str, Any], new_session: NewSession) -> None:
    """Put the new file in the place of the old one, once it is on disk and verifies."""
    path = path.resolve()  # a link stays one
    fd, name = tempfile.mkstemp(prefix=path.name, suffix=".new", dir=path.parent)
    new = Path(name)
    try:
        with open(fd, "wb") as out:
            _record_again(out, fixture, header, new_session)
            out.flush()
            os.fsync(fd)
        _check_same(fixture, Fixture.load(new), new_session)
        new.chmod(path.stat().st_mode & 0o777)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _check_same(old: Fixture, new: Fixture, new_session: NewSession) -> None:
    """The new file verifies, and its events are the old ones: a recorder masks what it takes for a secret."""
    verify(new, new_session)
    for before, after in zip(old.steps, new.steps, strict=False):
        if (before.session, before.at, before.event) != (after.session, after.at, after.event):
            raise UpgradeRefused(
                old.name,
                f"holds what looks like a secret in line {before.line}, which is never written again; "
                "`turntape scan` shows it. Record it again.",
            )


def _record_again(out: BinaryIO, fixture: Fixture, header: dict[str, Any], new_session: NewSession) -> None:
    tape = Tape(out, header)
    recorders: dict[int, Recorder] = {}
    for step in fixture.steps:
        recorder = recorders.get(step.session)
        if recorder is None:
            recorder = recorders[step.session] = Recorder(new_session(), tape, step.rules)
        try:
            recorder.receive(step.event, now=step.at)
        except Exception:
            if step.raised is None:
                raise
    if tape.failure is not None:
        raise tape.failure
