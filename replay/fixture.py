"""Fixture format v1: how a file of recorded sessions is read. docs/fixture.md is its specification."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import orjson
from attrs import define, field, frozen

from turntape.core.seam import Arguments, Event, Opened, Reasoning, Sampled, Text, ToolCall

from .errors import FixtureUnreadable
from .lines import Blob, FromClient, FromUpstream, Line, Relayed, Step, Turn
from .messages import Tally
from .packing import Unpacker, decode, exactly, finite
from .relay_lines import KEYS as RELAY_KEYS
from .relay_lines import RelayReader

__all__ = ["FORMAT", "SHORT", "Blob", "Counts", "Fixture", "Step", "Turn"]

FORMAT = 1

SHORT: dict[str, type[Text] | type[Arguments] | type[Reasoning]] = {"d": Text, "a": Arguments, "r": Reasoning}
"""Short lines: the key, and what its strings are increments of."""


SHORT_ROWS = {("s", "t", key, "h"): kind for key, kind in SHORT.items()}
"""The keys of a short line as it is recorded."""

OF_SAMPLES = frozenset({"Started", "Sampled", "SampleFailed"})
"""Events that need not say which sample, if it is the one that their session started last."""

STEP_KEYS = frozenset({"open", "step", "s", "t", "rules", "in", *SHORT, "out", "h", "raised"})
"""All that a line of a step may have."""


@frozen
class Counts:
    """What a recording holds, in numbers."""

    n_sessions: int
    n_turns: int
    n_calls: int
    n_bytes: int

    def __str__(self) -> str:
        size = f"{self.n_bytes / 1000:,.0f} KB" if self.n_bytes >= 1000 else f"{self.n_bytes} bytes"
        parts = ((self.n_sessions, "session"), (self.n_turns, "turn"), (self.n_calls, "tool call"))
        return ", ".join(f"{n:,} {name}{'' if n == 1 else 's'}" for n, name in parts) + f", {size}"


@define(eq=False)
class Fixture:
    """A whole file.

    Attributes:
        name: of the file, for messages.
        rules: of the header: they hold for every session of the file.
        lines: in the file's order.
        blobs: every value that lines refer to, by name.
        n_bytes: size of the file.
        whole: False if its last line was cut off.
    """

    name: str
    rules: tuple[Any, ...] = ()
    lines: list[Line] = field(factory=list)
    blobs: dict[str, Any] = field(factory=dict)
    n_bytes: int = 0
    whole: bool = True

    @classmethod
    def load(cls, path: str | Path) -> "Fixture":
        """Raises ``FixtureUnreadable``."""
        try:
            content = Path(path).read_bytes()
        except OSError as exc:
            raise FixtureUnreadable(str(path), 0, f"cannot be read: {exc.strerror}.") from None
        return cls.parse(content, name=str(path))

    @classmethod
    def parse(cls, content: bytes, *, name: str = "fixture") -> "Fixture":
        """Read a file. One that was cut off anywhere after its first line is a valid, shorter recording.

        Raises:
            FixtureUnreadable: names the line.
        """
        lines = content.split(b"\n")
        ended = not lines[-1]
        if ended:
            del lines[-1]
        fixture = cls(name, n_bytes=len(content))
        reader = _Reader(fixture)
        for number, line in enumerate(lines, 1):
            reader.line = number
            if not (line.startswith(b'{"s":') and reader.take_short(line)):
                reader.take(line, may_be_cut=number == len(lines) and not ended)
        if not lines:
            reader.refuse(f'is empty; a fixture begins with {{"turntape":{FORMAT}}}.')
        return fixture

    @property
    def steps(self) -> Iterator[Step]:
        return (line for line in self.lines if isinstance(line, Step))

    @property
    def turns(self) -> Iterator[Turn]:
        return (line for line in self.lines if isinstance(line, Turn))

    @property
    def is_relayed(self) -> bool:
        """Whether any of its sessions came through a relay."""
        return any(isinstance(line, Relayed) for line in self.lines)

    @property
    def counts(self) -> Counts:
        n_sessions = 0
        recorded, relayed = [0, 0], Tally()
        for line in self.lines:
            match line:
                case Step(event=Opened()) | Relayed():
                    n_sessions += 1
                case Step(event=Sampled(batch=batch)):
                    recorded[1] += sum(isinstance(increment, ToolCall) for increment in batch)
                case Turn():
                    recorded[0] += 1
                case FromClient(session=session, text=text):
                    relayed.client(session, text)
                case FromUpstream(session=session, deltas=None, message=message):
                    relayed.upstream(session, message)
        return Counts(n_sessions, recorded[0] + relayed.n_turns, recorded[1] + relayed.n_calls, self.n_bytes)


@define(eq=False)
class _Reader:
    """Where the reading of one file has come to."""

    fixture: Fixture
    line: int = 0
    _unpacker: Unpacker = field(init=False)
    _relays: RelayReader = field(init=False)
    _last_sample: dict[int, str] = field(init=False, factory=dict)  # by session, which all are here once opened

    def __attrs_post_init__(self) -> None:
        self._unpacker = Unpacker(self.fixture.blobs)
        self._relays = RelayReader(self._unpacker)

    def refuse(self, problem: str) -> None:
        raise FixtureUnreadable(self.fixture.name, self.line, problem)

    def take(self, line: bytes, *, may_be_cut: bool) -> None:
        if not line.strip():
            return
        row = _row(line)
        if row is None and may_be_cut and self.line > 1:
            self.fixture.whole = False
            row = _first_half(line)
            if row is None:
                return
        if row is None:
            return self.refuse("is not a JSON object.")
        try:
            self._add(row)
        except KeyError as exc:
            self.refuse(f"lacks {exc}.")
        except ValueError as exc:
            self.refuse(f"cannot be understood: {exc}.")

    def take_short(self, line: bytes) -> bool:
        """Read a short line that has nothing special, as nearly all lines are; False leaves it to ``take``."""
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            return False
        kind = SHORT_ROWS.get(tuple(row))
        if kind is None:
            return False
        session, at, texts, sent = row.values()
        if type(session) is not int or type(at) is not float or type(texts) is not list or type(sent) is not str:
            return False
        sample_id = self._last_sample.get(session)
        if sample_id is None:
            return False
        for text in texts:
            if type(text) is not str:
                return False
        event = Sampled(sample_id, tuple(map(kind, texts)))
        self.fixture.lines.append(Step(self.line, session, at, event, None, None, sent))
        return True

    def _add(self, row: dict[str, Any]) -> None:
        if self.line == 1:
            return self._header(row)
        add = self.fixture.lines.append
        match row:
            case {"blob": str(name), "value": value}:
                self.fixture.blobs[name] = value
                add(Blob(self.line, name, value))
            case {"blob": str(name), "then": _}:
                self.fixture.blobs[name] = self._unpacker.array(row)
                add(Blob(self.line, name, {key: value for key, value in row.items() if key != "blob"}))
            case {"turn": int(session), "sample": str(sample_id), "key": str(key)}:
                add(Turn(self.line, session, sample_id, key))
            case {"open": int(session), "in": packed}:
                self._begin(session)
                self._last_sample[session] = ""
                step = self._step(row, session, self._unpacker.event(packed))
                if not isinstance(step.event, Opened):
                    self.refuse("opens a session with something other than Opened.")
                add(attrs.evolve(step, rules=_rules(row.get("rules", []))))
            case {"step": int(session), "in": packed}:
                if isinstance(packed, dict) and "sample_id" not in packed and packed.get("type") in OF_SAMPLES:
                    packed = {**packed, "sample_id": self._last_sample.get(session, "")}
                add(self._step(row, session, self._unpacker.event(packed)))
            case {"s": int(session)} if keys := row.keys() & SHORT.keys():
                kind = SHORT[key := keys.pop()]
                batch = tuple(kind(str(text)) for text in row[key])
                add(self._step(row, session, Sampled(self._last_sample.get(session, ""), batch)))
            case _:
                relayed = next((key for key in row if key in RELAY_KEYS), None)
                if relayed is None:
                    return self.refuse(f"is no line of fixture format {FORMAT}.")
                if relayed == "relay":
                    self._begin(exactly(row[relayed], int))
                add(self._relays.read(relayed, row, self.line))

    def _begin(self, session: object) -> None:
        if session in self._last_sample or session in self._relays:
            self.refuse(f"opens session {session} again.")

    def _header(self, row: dict[str, Any]) -> None:
        version = row.get("turntape")
        if type(version) is not int:
            self.refuse(f'is no fixture: the first line should be {{"turntape":{FORMAT}}}.')
        if version != FORMAT:
            self.refuse(f"is of fixture format {version}; this version of Turntape reads format {FORMAT}.")
        self.fixture.rules = _rules(row.get("rules", []))

    def _step(self, row: dict[str, Any], session: int, event: Event) -> Step:
        if session not in self._last_sample:
            self.refuse(f"belongs to session {session}, which no line before it opens.")
        if unknown := row.keys() - STEP_KEYS:
            raise ValueError(f"{min(unknown)!r} is not part of it")
        out, at = row.get("out"), finite(row["t"])
        if out is not None:
            if not isinstance(out, list) or not all(isinstance(effect, dict) for effect in out):
                raise ValueError("'out' should be an array of effects")
            for effect in out:
                if effect.get("type") == "StartSample":
                    self._last_sample[session] = str(effect["sample_id"])
        short = "in" not in row
        return Step(
            line=self.line,
            session=session,
            at=at,
            event=event,
            packed=row.get("in"),
            out=out,
            sent=row.get("h") if short else None,
            checked=None if short else row.get("h"),
            raised=row.get("raised"),
        )


def _rules(rules: Any) -> tuple[Any, ...]:
    if isinstance(rules, list):
        return tuple(rules)
    raise ValueError("'rules' should be an array")


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = decode(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _first_half(line: bytes) -> dict[str, Any] | None:
    """The event of a line that was cut off after it."""
    for end in (len(line), *(match.start() for match in re.finditer(rb',"(?:out|h|raised)":|,"?[a-z]*"?$', line))):
        row = _row(line[:end] + b"}")
        if row is not None and (row.keys() & {"open", "step", "s"}) and (row.keys() & {"in", *SHORT}):
            return {name: value for name, value in row.items() if name not in ("out", "h", "raised")}
    return None
