"""What every source is brought to: conversations of turns, each with its request and what a model answered, in time."""

from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from turntape.core.seam import Increment, SampleFailed
from turntape.replay.errors import ReplayError
from turntape.replay.secrets import DEFAULT, Masker

Batches = tuple[tuple[float, tuple[Increment, ...]], ...]
"""Increments by read; each with its time, seconds since 1970."""

MAX_SOURCE_BYTES = 1 << 30
"""Of one file; ours. The largest rollout that was seen has a fifth of it."""


@define(eq=False)
class ImportFailed(ReplayError):
    """A source cannot be imported.

    Attributes:
        place: in the source, such as ``"line 3"``; "" if the whole is meant.
    """

    source: str
    place: str
    problem: str

    def __str__(self) -> str:
        return f"{self.source}: {self.place + ': ' if self.place else ''}{self.problem}"


@frozen
class Source:
    """One file that is imported.

    Attributes:
        name: for messages and notes: the file's own, without its folder.
    """

    name: str
    content: bytes

    @classmethod
    def load(cls, path: Path) -> "Source":
        """Raises ``ImportFailed``."""
        try:
            if path.stat().st_size > MAX_SOURCE_BYTES:
                raise ImportFailed(str(path), "", f"is larger than {MAX_SOURCE_BYTES:,} bytes; split it.")
            return cls(path.name, path.read_bytes())
        except OSError as exc:
            raise ImportFailed(str(path), "", f"cannot be read: {exc.strerror}.") from None


@frozen
class ImportedTurn:
    """One request and its answer.

    Attributes:
        where: it stood in the source, for messages.
        asked_at: seconds since 1970.
        body: fields of the create event, without ``type``, ``input`` and ``previous_response_id``.
        input: items that are new in this request, or a text.
        batches: of the answer; empty if it failed at once. A whole answer ends with ``Finish``.
        name: what later turns call this one in ``follows``.
        follows: name of the turn whose conversation is continued, None if there is none.
        history: items before ``input``, for a request that cannot continue ``follows``; None if nobody knows them.
        failure: how the answer ended, if it failed.
    """

    where: str
    asked_at: float
    body: dict[str, Any]
    input: Any
    batches: Batches = ()
    name: str | None = None
    follows: str | None = None
    history: tuple[dict[str, Any], ...] | None = None
    failure: SampleFailed | None = None


@frozen
class Conversation:
    """Turns of one client, in their order.

    Attributes:
        agent: the client's User-Agent as far as it is known.
        rules: what may differ when it is replayed.
    """

    turns: tuple[ImportedTurn, ...]
    agent: str = ""
    rules: tuple[Any, ...] = ()


@define
class Imported:
    """Everything that was read from some sources.

    Attributes:
        kind: of the sources, as ``--from`` names it.
        notes: sentences that hold for all of them: what such a source does not say, and what follows for a replay.
        skipped: what is in the sources and not in the conversations, each with its place and why.
        masker: what is hidden in the recording; a rule that quotes a source quotes it masked, as requests are compared.
    """

    kind: str
    conversations: list[Conversation] = field(factory=list)
    notes: list[str] = field(factory=list)
    skipped: list[str] = field(factory=list)
    masker: Masker = DEFAULT
