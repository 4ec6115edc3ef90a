"""A session that keeps a diary: same interface as ``Session``, so that the driver cannot tell."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import orjson
from attrs import define, field

from turntape.core.seam import (
    CancelSample,
    Effect,
    Event,
    Finish,
    Opened,
    Sampled,
    SampleFailed,
    Send,
    Started,
    StartSample,
    ToolCall,
)
from turntape.transport.driver import SessionLike

from .errors import ReplayError
from .fixture import FORMAT, SHORT, Counts
from .masking import EventMasker
from .packing import BLOB_BYTES, Packer, digest
from .presets import preset_for
from .secrets import DEFAULT, Masker
from .shadow import copied
from .shapes import MASK

SHORT_KEYS = {cls: key for key, cls in SHORT.items()}


def sent_digest(effects: Sequence[Effect]) -> str:
    """What a short line says of its effects."""
    return digest(b"\n".join(entry for effect in effects if isinstance(effect, Send) for entry in effect.data), 8)


@define(eq=False)
class Tape:
    """One fixture file, which many sessions may share: ``receive`` is one synchronous call, so their lines never mix.

    A disk that fails ends the recording, not the sessions: what was written is a valid shorter one.

    Args:
        out: an empty, buffered file. ``flush`` empties the buffer; it is called at every turn, and should be on a timer.
        header: further keys of the first line, such as ``note``.

        refuses: a secret ends the recording, rather than being masked.

    Attributes:
        failure: why nothing is written any more.
        refused: the same, if it is a secret that should not be written, and where that stood.
        n_lost: sessions whose recording ended before they did, since their masked events make no session.
    """

    out: BinaryIO
    header: Mapping[str, Any] = field(factory=dict)
    refuses: bool = False
    failure: OSError | None = field(init=False, default=None)
    refused: str = field(init=False, default="")
    n_lost: int = field(init=False, default=0)
    n_bytes: int = field(init=False, default=0)
    n_sessions: int = field(init=False, default=0)
    n_turns: int = field(init=False, default=0)
    n_calls: int = field(init=False, default=0)
    packer: Packer = field(init=False, factory=Packer)
    _written: set[str] = field(init=False, factory=set)

    def __attrs_post_init__(self) -> None:
        self._write(orjson.dumps({"turntape": FORMAT, **self.header}) + b"\n")
        self.flush()  # a process that is killed at once leaves a recording of nothing, and not an empty file

    @classmethod
    def create(cls, path: str | Path, header: Mapping[str, Any] | None = None, *, refuses: bool = False) -> "Tape":
        """Begin a new file that only its owner may read: prompts and tool outputs are in it.

        Raises:
            ReplayError: the file is there already, or cannot be made.
        """
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise ReplayError(
                f"{path}: is there already; a recording is never written over. Name another file."
            ) from None
        except OSError as exc:
            raise ReplayError(f"{path}: cannot be created: {exc.strerror}.") from None
        return cls(open(fd, "wb"), header or {}, refuses)

    @property
    def counts(self) -> Counts:
        return Counts(self.n_sessions, self.n_turns, self.n_calls, self.n_bytes)

    def flush(self) -> None:
        """Hand everything written so far to the operating system."""
        if self.failure is None:
            try:
                self.out.flush()
            except OSError as exc:
                self.failure = exc

    def close(self) -> None:
        self.flush()
        try:
            self.out.close()
        except OSError as exc:
            self.failure = self.failure or exc

    def refuse(self, what: str) -> None:
        """End the recording here: what comes holds a secret. What was written is a valid shorter one."""
        if not self.refused:
            self.flush()
            self.refused = what

    def begin(self, head: dict[str, Any]) -> int:
        """Write the first half of a line, what it refers to before it; return the line's offset in bytes."""
        encoded = orjson.dumps(head)
        self._write_blobs()
        at = self.n_bytes
        self._write(encoded[:-1])
        return at

    def end(self, tail: dict[str, Any]) -> None:
        """Write the second half, what it refers to after it."""
        self._write(b",%b\n" % orjson.dumps(tail)[1:])
        self._write_blobs()

    def line(self, row: dict[str, Any]) -> None:
        """Write a whole line, what it refers to before it."""
        encoded = orjson.dumps(row)
        apart = (*self.packer.new.values(), *self.packer.new_arrays.values())
        if self.refuses and any(MASK.encode() in part for part in (encoded, *apart)):
            self.refuse("a secret in a message")  # which a relay has masked before
        self._write_blobs()
        self._write(encoded + b"\n")

    def _write_blobs(self) -> None:
        new, self.packer.new = self.packer.new, {}
        arrays, self.packer.new_arrays = self.packer.new_arrays, {}
        tails = {name: b'"value":%b}' % encoded for name, encoded in new.items()}
        tails |= {name: row[1:] for name, row in arrays.items()}
        for name, tail in tails.items():
            if name not in self._written:
                self._written.add(name)
                self._write(b'{"blob":"%b",%b\n' % (name.encode(), tail))

    def _write(self, line: bytes) -> None:
        if self.failure is None and not self.refused:
            try:
                self.out.write(line)
            except OSError as exc:
                self.failure = exc
            else:
                self.n_bytes += len(line)


@define(eq=False)
class Recorder:
    """Writes every call of ``receive`` to ``tape``; an exception of the session is noted and passes through.

    No secret that ``masker`` knows is written. From the first event that holds one the lines are those of a second
    session, which is fed the masked events, so that the recording is whole in itself; the client's own is not touched.

    Args:
        rules: what may differ when this session is replayed; None takes the preset for the client's User-Agent.
    """

    session: SessionLike
    tape: Tape
    rules: Sequence[Any] | None = None
    masker: Masker = DEFAULT
    _number: int = field(init=False, default=0)
    _last_sample: str = field(init=False, default="")
    _running: dict[str, tuple[str, int]] = field(init=False, factory=dict)  # sample id -> key, offset of its start
    _events: EventMasker = field(init=False)
    _shadow: SessionLike | None = field(init=False, default=None)
    _lost: bool = field(init=False, default=False)  # the masked events make no session

    def __attrs_post_init__(self) -> None:
        self._events = EventMasker(self.masker)

    @property
    def closed(self) -> bool:
        return self.session.closed

    @property
    def deadline(self) -> float:
        return self.session.deadline

    def receive(self, event: Event, *, now: float) -> list[Effect]:
        if not self._lost and not self.tape.refused:
            *before, masked = self._events.masked(event)
            if self.tape.refuses and self._events.found:
                self.tape.refuse(self._events.found)
        if self._lost or self.tape.refused:
            return self.session.receive(event, now=now)
        if self._shadow is None:
            if masked is event and not before:
                return self._record(event, now, partial(self.session.receive, event, now=now))
            self._shadow = copied(self.session)
        return self._record_masked(event, [*before, masked], now, self._shadow)

    def _record_masked(self, event: Event, masked: list[Event], now: float, shadow: SessionLike) -> list[Effect]:
        """Feed ``event`` to the session, and what stands for it to its shadow; write what the shadow does."""
        answer: list[Effect] | BaseException | None = None

        def both(last: Event) -> list[Effect]:
            nonlocal answer
            try:
                answer = self.session.receive(event, now=now)
            except BaseException as exc:  # noqa: BLE001 - raised below, once the line is whole
                answer = exc
            return shadow.receive(last, now=now)

        try:
            for extra in masked[:-1]:
                self._record(extra, now, partial(shadow.receive, extra, now=now))
            self._record(masked[-1], now, partial(both, masked[-1]))
        except Exception:  # noqa: BLE001 - only of a shadow: two ids that were keys have become one, say
            self._lost = True
            if not isinstance(answer, BaseException):
                self.tape.n_lost += 1
        if answer is None:  # the shadow failed at what was held before this event
            return self.session.receive(event, now=now)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _record(self, event: Event, now: float, receive: Callable[[], list[Effect]]) -> list[Effect]:
        """Write the line of ``event`` around the call that it stands for."""
        head = self._short(event, now)
        checked = ""
        if head is None:
            head, checked = self._full(event, now)
        at = self.tape.begin(head)
        try:
            effects = receive()
        except BaseException as exc:
            self.tape.end({"raised": type(exc).__name__})  # this line ends here; other sessions write on
            self.tape.flush()
            raise
        if not checked and all(isinstance(effect, Send) for effect in effects):
            self.tape.end({"h": sent_digest(effects)})
        else:
            out = self.tape.packer.effects(effects)
            self.tape.end({"out": out, "h": checked or sent_digest(effects)})
        self._index(event, effects, at)
        return effects

    def _full(self, event: Event, now: float) -> tuple[dict[str, Any], str]:
        row = self.tape.packer.event(event)
        if self._is_of_last(event):
            del row["sample_id"]
        packed = orjson.dumps(row)
        checked = digest(packed, 8)
        if not isinstance(event, Opened):
            return {"step": self._number, "t": now, "in": orjson.Fragment(packed)}, checked
        self.tape.n_sessions += 1
        self._number = self.tape.n_sessions
        rules = preset_for(event) if self.rules is None else self.rules
        return {"open": self._number, "t": now, "rules": [*rules], "in": orjson.Fragment(packed)}, checked

    def _is_of_last(self, event: Event) -> bool:
        """Whether it is of the sample that the session started last, so that its line need not say so."""
        if not isinstance(event, Started | Sampled | SampleFailed):
            return False
        return event.sample_id == self._last_sample and event.sample_id in self._running

    def _short(self, event: Event, now: float) -> dict[str, Any] | None:
        """The short form of ``event``, if it has one: strings of one kind, for the sample that was started last."""
        if not isinstance(event, Sampled) or not self._is_of_last(event) or not event.batch:
            return None
        kind = type(event.batch[0])
        if (key := SHORT_KEYS.get(kind)) is None:  # type: ignore[arg-type]
            return None
        if any(type(increment) is not kind for increment in event.batch):
            return None
        texts = [increment.text for increment in event.batch]  # type: ignore[union-attr]
        if not "".join(texts).isascii():
            try:
                orjson.dumps(texts)
            except orjson.JSONEncodeError:
                return None  # a lone surrogate
        return {"s": self._number, "t": now, key: texts} if max(map(len, texts)) < BLOB_BYTES // 4 else None

    def _index(self, event: Event, effects: list[Effect], at: int) -> None:
        """Write a ``turn`` line when a sample has ended: its conversation's key, and where its steps are."""
        if isinstance(event, Sampled):
            self.tape.n_calls += sum(isinstance(increment, ToolCall) for increment in event.batch)
        ended = isinstance(event, SampleFailed) or (
            isinstance(event, Sampled) and any(isinstance(increment, Finish) for increment in event.batch)
        )
        if ended and (run := self._running.pop(event.sample_id, None)) is not None:  # type: ignore[union-attr]
            self.tape.n_turns += 1
            self.tape.begin({"turn": self._number, "sample": event.sample_id, "key": run[0]})  # type: ignore[union-attr]
            self.tape.end({"at": [run[1], at]})
            self.tape.flush()
        for effect in effects:
            match effect:
                case StartSample(sample_id, context=context):
                    self._last_sample = sample_id
                    self._running[sample_id] = context.fold.key, at
                case CancelSample(sample_id):
                    self._events.forget(sample_id)
                    self._running.pop(sample_id, None)  # nobody knows how it would have ended: no turn
