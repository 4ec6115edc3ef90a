"""What today's core makes otherwise of a recording: every line, and whether its samples still mean what they did."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import orjson
from attrs import define, field, frozen

from turntape.core.seam import (
    CancelSample,
    Effect,
    Finish,
    Load,
    Sampled,
    SampleFailed,
    Save,
    Send,
    StartSample,
    event_type,
)
from turntape.core.session import Session

from .differences import ABSENT, differences, excerpts
from .fixture import SHORT, Blob, Fixture, Step, Turn
from .packing import MissingBlob, Packer, Unpacker, decode, digest, encode
from .recorder import sent_digest
from .takes import NewSession, refeed

WHOLE = {
    "response.output_text.done": "text",
    "response.refusal.done": "refusal",
    "response.reasoning_text.done": "text",
    "response.reasoning_summary_text.done": "text",
    "response.function_call_arguments.done": "arguments",
    "response.custom_tool_call_input.done": "input",
}
"""Events that repeat everything that increments said, and where. It differs if they were edited."""

STORE_EFFECTS = (Load, Save)


@frozen
class Change:
    """One place of one line.

    Attributes:
        part: of the line: an effect such as ``"effect 2 (Send)"``, ``"bytes sent"``, ``"turn line"`` or ``"outcome"``.
        path: in the part, names and numbers; empty for the whole.
        old: as recorded; ``ABSENT`` if it was not there.
        new: as today's core has it; ``ABSENT`` if it is not there.
    """

    line: int
    part: str
    path: tuple[str, ...]
    old: Any
    new: Any

    def __str__(self) -> str:
        old, new = excerpts(self.old, self.new)
        place = " ".join(filter(None, (self.part, ".".join(self.path))))
        return f"{self.line}: {place}: {old} → {new}"

    def as_json(self) -> dict[str, Any]:
        sides = {"old": self.old, "new": self.new}
        known = {name: value for name, value in sides.items() if value is not ABSENT}
        return {"line": self.line, "part": self.part, "path": [*self.path], **known}


@frozen
class Finding:
    """Something about one line, in a sentence without an end."""

    line: int
    problem: str

    def __str__(self) -> str:
        return f"{self.line}: {self.problem}"


@define
class Comparison:
    """A recording beside what today's core makes of its events.

    Attributes:
        changes: in the order of the lines.
        edits: events and values that are not those that were recorded.
        moved: samples that answer another conversation. That follows from an edit; else they mean nothing any more.
        broken: why a recorded sample has no place in today's session.
        n_lines: lines that were compared.
    """

    changes: list[Change] = field(factory=list)
    edits: list[Finding] = field(factory=list)
    moved: list[Finding] = field(factory=list)
    broken: list[Finding] = field(factory=list)
    n_lines: int = 0

    @property
    def equal(self) -> bool:
        return not (self.changes or self.edits or self.broken)

    @property
    def n_changed(self) -> int:
        return len({change.line for change in self.changes})

    def __str__(self) -> str:
        edits = f", {len(self.edits)} edited" if self.edits else ""
        return f"{self.n_changed:,} of {self.n_lines:,} lines differ from what today's core makes of them{edits}"


def compare(fixture: Fixture, new_session: NewSession = Session) -> Comparison:
    """Feed the events to fresh sessions, and compare every line; nothing is written."""
    comparing = _Comparing(fixture)
    answers = refeed(fixture, new_session)
    last = next((line for line in reversed(fixture.lines) if not isinstance(line, Blob)), None)
    for line in fixture.lines:
        match line:
            case Blob(number, name, value):
                if digest(encode(value)) != name:
                    comparing.edited(number, f"the value is not the one that was filed as {name}")
            case Turn():
                comparing.turn(line)
            case Step():
                comparing.step(*next(answers), is_last=line is last)
    comparing.short_edits()
    comparing.result.edits.sort(key=lambda found: found.line)
    return comparing.result


@define
class _Comparing:
    """Where the comparison of one file has come to."""

    fixture: Fixture
    result: Comparison = field(factory=Comparison)
    _keys: dict[tuple[int, str], str] = field(factory=dict)  # of today's samples
    _running: set[tuple[int, str]] = field(factory=set)
    _due: tuple[int, str] | None = None  # the sample whose turn line should come next
    _shorts: list[tuple[Step, bool]] = field(factory=list)  # that send nothing but deltas: do they send the same?

    def edited(self, line: int, problem: str) -> None:
        if all(found.line != line for found in self.result.edits):
            self.result.edits.append(Finding(line, problem))

    def turn(self, turn: Turn) -> None:
        self.result.n_lines += 1
        at = turn.session, turn.sample_id
        if (today := self._keys.get(at, ABSENT)) != turn.key:
            self.result.changes.append(Change(turn.line, "turn line", ("key",), turn.key, today))
        elif at != self._due:
            self.result.changes.append(Change(turn.line, "turn line", (), turn.sample_id, ABSENT))
        self._due = None

    def step(self, step: Step, effects: Sequence[Effect], raised: str | None, *, is_last: bool) -> None:
        self.result.n_lines += 1
        if self._due is not None:
            self.result.changes.append(Change(step.line, "turn line before it", (), ABSENT, self._due[1]))
        self._due = None
        if step.checked is not None and step.packed is not None and digest(encode(step.packed), 8) != step.checked:
            self.edited(step.line, "the event is not the one that was recorded")
        if raised is not None and step.raised is None:
            self.result.broken.append(Finding(step.line, f"today's core fails here with {raised}"))
            return
        self._remember(step, effects)
        if raised != step.raised and not (step.out is None and step.sent is None and step.raised is None):
            outcome = Change(step.line, "outcome", (), step.raised or "effects", raised or "effects")
            self.result.changes.append(outcome)
            return
        if step.sent is not None:
            self._compare_sent(step, effects)
        if step.out is not None:
            self._compare_out(step, step.out, effects, is_last=is_last)

    def _remember(self, step: Step, effects: Sequence[Effect]) -> None:
        event = step.event
        if isinstance(event, Sampled | SampleFailed):
            at = step.session, event.sample_id
            whole = isinstance(event, SampleFailed) or any(isinstance(increment, Finish) for increment in event.batch)
            if whole and at in self._running:
                self._due = at
                self._running.discard(at)
        for effect in effects:
            if isinstance(effect, StartSample):
                self._keys[step.session, effect.sample_id] = effect.context.fold.key
                self._running.add((step.session, effect.sample_id))
            elif isinstance(effect, CancelSample):
                self._running.discard((step.session, effect.sample_id))

    def _compare_sent(self, step: Step, effects: Sequence[Effect]) -> None:
        today = sent_digest(effects)
        same = today == step.sent
        sent = [event_type(entry) for effect in effects if isinstance(effect, Send) for entry in effect.data]
        if sent and all(type_.endswith(".delta") for type_ in sent):
            self._shorts.append((step, same))
        if not same:
            self.result.changes.append(Change(step.line, "bytes sent", (), f"hash {step.sent}", f"hash {today}"))

    def _compare_out(self, step: Step, out: list[dict[str, Any]], effects: Sequence[Effect], *, is_last: bool) -> None:
        packer = Packer()
        today = packer.effects(effects)
        self._check_samples(step, out, effects)
        if orjson.dumps(today) == encode(out):
            return
        try:
            recorded = Unpacker(self.fixture.blobs).effects(out)
        except MissingBlob as exc:
            if not is_last:  # what it refers to stands after it, and may have been cut off
                self.edited(step.line, str(exc))
            return
        blobs = {name: decode(value) for name, value in packer.new.items()}
        plain = Unpacker(blobs).effects(orjson.loads(orjson.dumps(today)))
        if encode(plain) == encode(recorded):
            return
        found = [*self._changes_in(step, recorded, plain)]
        self.result.changes += found or [Change(step.line, "effects", (), "keys", "the same keys in another order")]

    def _changes_in(self, step: Step, recorded: list[dict[str, Any]], today: list[dict[str, Any]]) -> Iterator[Change]:
        for difference in differences(recorded, today):
            number, *path = difference.path
            effect = (recorded if int(number) < len(recorded) else today)[int(number)]
            part = f"effect {int(number) + 1} ({effect.get('type')})"
            match path:
                case ["data", entry, name] if int(entry) < len(recorded[int(number)]["data"]):
                    if WHOLE.get(recorded[int(number)]["data"][int(entry)].get("type")) == name:
                        self.edited(step.line, "the whole answer is not what the increments before it say")
            yield Change(step.line, part, tuple(path), difference.expected, difference.got)

    def _check_samples(self, step: Step, out: list[dict[str, Any]], effects: Sequence[Effect]) -> None:
        """Whether every sample that was recorded still has the place in the session that it had."""

        def broken(problem: str) -> None:
            self.result.broken.append(Finding(step.line, problem))

        recorded = {effect.get("sample_id"): effect for effect in out if effect.get("type") == "StartSample"}
        today = {effect.sample_id: effect for effect in effects if isinstance(effect, StartSample)}
        for sample_id in recorded.keys() - today.keys():
            broken(f"today's core does not start the sample {sample_id}, so what was recorded of it answers nothing")
        for sample_id in today.keys() - recorded.keys():
            broken(f"today's core starts a sample {sample_id} of which nothing was recorded")
        for sample_id in [sample_id for sample_id in recorded if sample_id in today]:
            was, start = recorded[sample_id], today[sample_id]
            if was.get("n_items") != start.context.n_items:
                items = f"{start.context.n_items} items, and was recorded with {was.get('n_items')}"
                self.result.moved.append(
                    Finding(step.line, f"the sample {sample_id} answers a conversation of {items}")
                )
        asked = Counter(type(effect).__name__ for effect in effects if isinstance(effect, STORE_EFFECTS))
        was_asked = Counter(
            str(effect.get("type")) for effect in out if effect.get("type") in [cls.__name__ for cls in STORE_EFFECTS]
        )
        if asked != was_asked:
            broken("today's core asks the store for other things, of which the recording holds no answers")

    def short_edits(self) -> None:
        """A short line holds no hash of its event. One that sends other deltas, where others of its kind send the same, was edited."""
        for kind in SHORT.values():
            own = [(step, same) for step, same in self._shorts if _kind(step) is kind]
            if any(same for _, same in own):
                for step, same in own:
                    if not same:
                        self.edited(step.line, "its increments are not those that were recorded")


def _kind(step: Step) -> type[Any] | None:
    return type(step.event.batch[0]) if isinstance(step.event, Sampled) and step.event.batch else None
