"""The kinds of sources: how each is recognised, read, and described in the header of the recording."""

import re
from collections.abc import Callable, Sequence
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

from attrs import frozen

from turntape.replay.recorder import Tape
from turntape.replay.secrets import DEFAULT, Masker

from . import aimock, codex, openai_events
from .conversations import Imported, ImportFailed, Source
from .json_values import json_values
from .writing import header, write

IMPORTABLE = (
    "What can be imported: Codex's rollout files (codex), logs of Responses events as an OpenAI SDK gives them "
    "(openai-events), and fixture files of aimock (aimock)."
)

LOOKED_AT = 3
"""Values at the beginning of a file by which it is recognised."""


@frozen
class Kind:
    """One kind of source.

    Attributes:
        fits: whether the first values of a file are those of such a source.
        read: adds a source to what was imported.
    """

    notes: tuple[str, ...]
    fits: Callable[[list[Any]], bool]
    read: Callable[[Source, Imported], None]


KINDS = {
    "codex": Kind(codex.NOTES, codex.is_rollout, codex.read),
    "openai-events": Kind(openai_events.NOTES, openai_events.is_log, openai_events.read),
    "aimock": Kind(aimock.NOTES, lambda values: aimock.entries_of(values) is not None, aimock.read),
}


def import_all(
    paths: Sequence[Path], out: Path, kind: str | None = None, masker: Masker = DEFAULT, *, refuses: bool = False
) -> tuple[Imported, Tape]:
    """Make the new recording ``out`` of some sources of one kind; return what was read and the tape, which is closed.

    Args:
        kind: of the sources, a key of ``KINDS``; None to find out.
        masker: what is hidden in the recording.
        refuses: a secret is a reason to import nothing, rather than masked.

    Raises:
        ImportFailed: names the source and what is wrong with it. No file is made, or it is taken away.
        ReplayError: ``out`` is there already, or cannot be made.
        OSError: it cannot be written to the end.
    """
    sources = [Source.load(path) for path in paths]
    kind = kind or _kind_of(sources)
    imported = Imported(kind, notes=[*KINDS[kind].notes], masker=masker)
    for source in sources:
        KINDS[kind].read(source, imported)
    if not any(conversation.turns for conversation in imported.conversations):
        raise ImportFailed(_names(sources), "", f"holds nothing to replay{_first_reason(imported, sources)}.")
    trial = Tape(BytesIO(), refuses=refuses)  # what the session refuses stands in the first line of the file
    imported.skipped += write(imported, trial, masker)
    imported.skipped = [masker.text(text) for text in imported.skipped]
    if trial.refused:
        raise ImportFailed(_names(sources), "", f"holds {trial.refused}.")
    if not trial.n_turns:
        raise ImportFailed(_names(sources), "", f"holds no turn{_first_reason(imported, sources)}.")
    tape = Tape.create(out, header(imported, [source.name for source in sources]))
    try:
        write(imported, tape, masker)
    except BaseException:
        tape.close()
        out.unlink(missing_ok=True)
        raise
    tape.close()
    if tape.failure is not None:
        out.unlink(missing_ok=True)
        raise tape.failure
    return imported, tape


def _names(sources: Sequence[Source]) -> str:
    return ", ".join(source.name for source in sources)


def _first_reason(imported: Imported, sources: Sequence[Source]) -> str:
    """Of one source its name was said before."""
    if not imported.skipped:
        return ""
    place = imported.skipped[0]
    if len(sources) == 1:
        place = re.sub(r"^:(?=\d)|^: ?", "", place.removeprefix(sources[0].name))
        place = re.sub(r"^(\d+):", r"line \1:", place)
    return f": {place}"


def _kind_of(sources: list[Source]) -> str:
    kinds = {source.name: _recognise(source) for source in sources}
    if len(set(kinds.values())) > 1:
        each = ", ".join(f"{name} is {kind}" for name, kind in kinds.items())
        raise ImportFailed(sources[0].name, "", f"is of another kind than the others ({each}); import them one by one.")
    return kinds[sources[0].name]


def _recognise(source: Source) -> str:
    try:
        values = [value for _, value in islice(json_values(source), LOOKED_AT)]
    except ImportFailed as exc:
        raise ImportFailed(exc.source, exc.place, f"{exc.problem} {IMPORTABLE}") from None
    found = [kind for kind, how in KINDS.items() if how.fits(values)]
    if not found:
        if values and isinstance(values[0], dict) and "turntape" in values[0]:
            raise ImportFailed(source.name, "", "is a recording of Turntape already; there is nothing to import.")
        raise ImportFailed(source.name, "", f"is not recognised. {IMPORTABLE} Say which it is with --from.")
    return found[0]
