"""A recording without its prose, to be shared: the same turns, calls, times and sizes, and nothing that was said."""

import base64
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs
from attrs import define, field

from turntape.core.seam import (
    Arguments,
    ClientText,
    Encrypted,
    Event,
    Loaded,
    Opened,
    Reasoning,
    Sampled,
    SampleFailed,
    StoreFailed,
    Summary,
    ToolCall,
)
from turntape.core.session import Session
from turntape.transport.driver import SessionLike

from .errors import ReplayError
from .filler import assembled
from .fixture import Fixture
from .lines import AnswerHead, FromClient, FromUpstream, Gone, Relayed, RelayLine, Step, Unread
from .packing import encode
from .prose import Scrubber, kind_of
from .recorder import Recorder, Tape
from .secrets import DEFAULT, Masker, allowed_headers
from .substitution import TextPiece
from .verify import Verified, verify

UPSTREAM = "https://upstream.example/v1"
"""Stands for the server of a relayed recording, whose name may be private."""

_PLACES = ("item_id", "output_index", "content_index", "summary_index", "stream_id")
_ENDS = ("response.created", "response.completed", "response.failed", "response.incomplete", "response.done", "error")

Piece = tuple[int, int]
"""A line, and the number of an increment or a delta in it."""


def scrub(
    fixture: Fixture, out: Path, *, keep: Iterable[str] = (), masker: Masker = DEFAULT, new_session: Any = Session
) -> Verified:
    """Write ``fixture`` without its prose to the new file ``out``, and verify that.

    Args:
        keep: kinds of prose, of ``prose.KINDS``, that are left as they are; secrets in them are masked.

    Raises:
        ReplayError: ``out`` is there already or cannot be written, or ``fixture`` cannot be fed to a session.
    """
    tape = Tape.create(out, {"scrubbed": True, **({"rules": rules} if (rules := _rules(fixture.rules)) else {})})
    try:
        try:
            _Scrub(fixture, Scrubber(frozenset(keep)), masker).write(tape, new_session)
        finally:
            tape.close()
        if tape.failure is not None:
            raise ReplayError(f"{out}: cannot be written to its end: {tape.failure.strerror}.")
        copy = Fixture.load(out)
        verified = verify(copy, new_session)
        counts = [attrs.evolve(counted, n_bytes=0) for counted in (fixture.counts, copy.counts)]
        if counts[0] != counts[1]:
            raise ReplayError(f"{fixture.name}: cannot be scrubbed: it has {counts[0]}, and without prose {counts[1]}.")
    except BaseException:
        out.unlink(missing_ok=True)
        raise
    return verified


def _rules(rules: Iterable[Any]) -> list[Any]:
    """Those that hold no pattern: a pattern may name what it is for, and no text is left that it could match."""
    return [
        rule for rule in rules if isinstance(rule, str) or (isinstance(rule, dict) and rule.get("rule") == "ignore")
    ]


@define(eq=False)
class _Scrub:
    fixture: Fixture
    scrubber: Scrubber
    masker: Masker
    _texts: dict[Piece, str] = field(init=False, factory=dict)  # what stands for each piece of a text

    def write(self, tape: Tape, new_session: Any) -> None:
        self._fill_texts()
        recorders: dict[int, SessionLike] = {}
        for line in self.fixture.lines:
            match line:
                case Step():
                    event = self._event(line)
                    recorder = recorders.get(line.session)
                    if recorder is None:
                        rules = _rules(line.rules)
                        recorder = recorders[line.session] = Recorder(new_session(), tape, rules, self.masker)
                    try:
                        recorder.receive(event, now=line.at)
                    except Exception as exc:
                        if line.raised != type(exc).__name__:
                            raise ReplayError(
                                f"{self.fixture.name}:{line.line}: today's session raises {type(exc).__name__} here; "
                                "`turntape verify` says more."
                            ) from exc
                case Relayed() | AnswerHead() | FromClient() | FromUpstream() | Unread() | Gone():
                    tape.n_sessions = max(tape.n_sessions, line.session)  # sessions keep their numbers
                    tape.line(self._row(line, tape))

    # --- texts in pieces ----------------------------------------------------------------------------------

    def _fill_texts(self) -> None:
        """Texts are filled as wholes, and cut where they were cut."""
        runs: dict[tuple[Any, ...], list[tuple[Piece, str]]] = {}
        for line in self.fixture.lines:
            match line:
                case Step(session=session, event=Sampled(sample_id, batch)):
                    for n, increment in enumerate(batch):
                        key: tuple[Any, ...] = (session, sample_id, type(increment), getattr(increment, "part", 0))
                        if not isinstance(increment, TextPiece):
                            self._end(runs, session, sample_id)
                        elif self._kind(increment) not in self.scrubber.keep:
                            if key not in runs:
                                self._end(runs, session, sample_id)
                            runs.setdefault(key, []).append(((line.line, n), increment.text))
                case FromUpstream(session=session):
                    for n, message in enumerate(line.messages):
                        if not isinstance(message, dict):
                            continue
                        type_ = message.get("type")
                        if isinstance(message.get("delta"), str) and kind_of(type_) not in self.scrubber.keep:
                            key = (session, str(type_).removesuffix(".delta"), *map(message.get, _PLACES))
                            runs.setdefault(_hashable(key), []).append(((line.line, n), message["delta"]))
                        elif type_ in _ENDS:
                            self._end(runs, session)
                        elif isinstance(type_, str) and type_.endswith(".done"):
                            key = (session, type_.removesuffix(".done"), *map(message.get, _PLACES))
                            self._end(runs, *_hashable(key))
        self._end(runs)

    def _end(self, runs: dict[tuple[Any, ...], list[tuple[Piece, str]]], *head: Any) -> None:
        for key in [key for key in runs if key[: len(head)] == head]:
            pieces = runs.pop(key)
            fillers = assembled(self.scrubber.filler, [text for _, text in pieces])
            self._texts.update(zip((piece for piece, _ in pieces), fillers, strict=True))

    def _kind(self, piece: TextPiece) -> str:
        if isinstance(piece, Arguments):
            return "arguments"
        return "reasoning" if isinstance(piece, Reasoning | Summary) else "messages"

    # --- sessions of our own ------------------------------------------------------------------------------

    def _event(self, step: Step) -> Event:
        say, scrubber = self.scrubber.filler.text, self.scrubber
        match step.event:
            case Opened(agent=agent, owner=owner) as event:
                return attrs.evolve(event, agent=scrubber.agent(agent), owner=say(owner))
            case ClientText(text):
                return ClientText(scrubber.request(text))
            case Sampled(sample_id, batch):
                return Sampled(sample_id, tuple(self._increment(step.line, n, one) for n, one in enumerate(batch)))
            case SampleFailed(message=message) as event:
                return attrs.evolve(event, message=say(message))
            case StoreFailed(stream_id, message):
                return StoreFailed(stream_id, say(message))
            case Loaded(stream_id, items, referenced):
                return Loaded(
                    stream_id,
                    None if items is None else tuple(map(scrubber.encoded, items)),
                    tuple(None if item is None else scrubber.encoded(item) for item in referenced),
                )
        return step.event

    def _increment(self, line: int, n: int, increment: Any) -> Any:
        match increment:
            case Encrypted(content):
                return Encrypted(self.scrubber.sealed(content))
            case ToolCall(name=name):
                return attrs.evolve(increment, name=self.scrubber.filler.name(name))
        return attrs.evolve(increment, text=self._texts[line, n]) if (line, n) in self._texts else increment

    # --- relayed sessions ---------------------------------------------------------------------------------

    def _row(self, line: RelayLine, tape: Tape) -> dict[str, Any]:
        at: dict[str, Any] = {"t": line.at}
        match line:
            case Relayed():
                return {
                    "relay": line.session,
                    **at,
                    "wall": line.wall,
                    "transport": line.transport,
                    "method": line.method,
                    "path": line.path.partition("?")[0],
                    "upstream": UPSTREAM,
                    "headers": self._headers(line.headers),
                    "rules": _rules(line.rules),
                }
            case AnswerHead():
                return {"answer": line.session, **at, "status": line.status, "headers": self._headers(line.headers)}
            case FromClient(text=text, binary=binary):
                if binary is not None:
                    return {"client": line.session, **at, "bytes": _blank(binary)}
                packed = tape.packer.event(ClientText(self.masker.text(self.scrubber.request(text))))
                return {"client": line.session, **at, **{name: packed[name] for name in packed if name != "type"}}
            case FromUpstream(binary=str(binary)):
                return {"up": line.session, **at, "bytes": _blank(binary)}
            case FromUpstream(deltas=None, message=message):
                return {"up": line.session, **at, **self._message(line.line, message, tape)}
            case FromUpstream(deltas=deltas):
                texts = [self._texts.get((line.line, n), delta) for n, delta in enumerate(deltas or ())]
                padding = {} if line.obfuscations is None else {"o": [*line.obfuscations]}
                return {"u": line.session, **at, "d": texts, **padding}
            case Unread():
                return {"unread": line.session, **at, "by": line.by, "reason": line.reason}
            case Gone():
                reason = self.scrubber.filler.text(line.reason)
                return {"gone": line.session, **at, "by": line.by, "code": line.code, "reason": reason}

    def _message(self, line: int, message: Any, tape: Tape) -> dict[str, Any]:
        if isinstance(message, str):
            return {"text": tape.packer.value(self.scrubber.filler.text(message))}
        scrubbed = self.scrubber.value(message)
        if (line, 0) in self._texts:
            scrubbed["delta"] = self._texts[line, 0]
        packed = tape.packer.event(ClientText(self.masker.text(_compact(scrubbed))))
        return {name: packed[name] for name in packed if name != "type"}

    def _headers(self, headers: Any) -> dict[str, str]:
        allowed = allowed_headers(headers, self.masker)
        return {name: self.scrubber.agent(text) if name == "user-agent" else text for name, text in allowed.items()}


def _hashable(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(part if isinstance(part, str | int) else str(part) for part in key)


def _compact(value: Any) -> str:
    return encode(value).decode()


def _blank(binary: str) -> str:
    """As many bytes, all zero, in base64."""
    try:
        n = len(base64.b64decode(binary))
    except ValueError:
        n = 0
    return base64.b64encode(bytes(n)).decode()
