"""Feed a recording to fresh sessions: the same events must give the same effects, byte for byte."""

from collections.abc import Sequence
from typing import Any

import orjson
from attrs import define, field, frozen

from turntape.core.seam import CancelSample, Effect, Event, Finish, Sampled, SampleFailed, Send, StartSample
from turntape.core.session import Session

from .differences import differences, excerpts
from .errors import Divergence
from .fixture import Fixture
from .ladders import Ladder, LadderBroken
from .lines import Blob, FromUpstream, Gone, Line, Relayed, Step, Turn, Unread
from .packing import MissingBlob, Packer, Unpacker, decode, digest, encode
from .reconstruction import Reconstruction
from .recorder import sent_digest
from .requests import NotReplayable
from .takes import NewSession, recorded_steps


@frozen
class Verified:
    """What was found to hold.

    Attributes:
        n_sessions: that this server recorded, which are equal byte for byte; so are their ``n_steps``.
        n_turns: of those.
        whole: the file ends with a whole line.
        n_relayed: sessions that came through a relay, of which ladders, numbering and reconstruction hold.
        n_relayed_turns: samples of those.
        not_replayable: what of those no take says.
    """

    n_sessions: int
    n_steps: int
    n_turns: int
    whole: bool
    n_relayed: int = 0
    n_relayed_turns: int = 0
    not_replayable: tuple[NotReplayable, ...] = ()

    def __str__(self) -> str:
        lines: list[str] = []
        if self.n_sessions or not self.n_relayed:
            parts = ((self.n_sessions, "session"), (self.n_steps, "step"), (self.n_turns, "turn"))
            lines.append(f"{_counted(*parts)}: equal byte for byte")
        if self.n_relayed:
            counted = _counted((self.n_relayed, "relayed session"), (self.n_relayed_turns, "turn"))
            held = "ladders, numbering and reconstruction hold (not byte-exact: another server made them)"
            lines.append(f"{counted}: {held}")
        told = "; ".join(lines) + ("" if self.whole else "; the last line was cut off")
        if self.not_replayable:
            told += "\n".join(
                (f"; {len(self.not_replayable)} not replayable:", *(f"  {one}" for one in self.not_replayable))
            )
        return told


def _counted(*parts: tuple[int, str]) -> str:
    return ", ".join(f"{n:,} {name}{'' if n == 1 else 's'}" for n, name in parts)


def verify(fixture: Fixture, new_session: NewSession = Session) -> Verified:
    """Check every line in the file's order: no driver, no backend, no network.

    Raises:
        Divergence: the first line that is not what today's core makes of the recording, or that was edited.
    """
    answers, relayed = recorded_steps(fixture, new_session), _Relayed(fixture, new_session)
    unpacker = Unpacker(fixture.blobs)
    keys: dict[tuple[int, str], str] = {}
    n_steps = n_turns = 0
    sessions = set[int]()
    last = next((line for line in reversed(fixture.lines) if not isinstance(line, Blob)), None)
    ended: tuple[int, str] | None = None  # the sample whose turn line should come next
    running = set[tuple[int, str]]()
    for line in fixture.lines:
        match line:
            case Step():
                if ended is not None:
                    raise Divergence(
                        fixture.name, line.line, f"the turn line of sample {ended[1]} is missing before it"
                    )
                step, effects, raised = next(answers)
                n_steps += 1
                if _is_as_sent(step, effects):
                    continue
                sessions.add(step.session)
                if raised is None and (sample := _ended_by(step.event)) is not None:
                    ended = (step.session, sample) if (step.session, sample) in running else None
                    running.discard((step.session, sample))
                for effect in effects:
                    if isinstance(effect, StartSample):
                        keys[step.session, effect.sample_id] = effect.context.fold.key
                        running.add((step.session, effect.sample_id))
                    elif isinstance(effect, CancelSample):
                        running.discard((step.session, effect.sample_id))
                _check(fixture, unpacker, step, effects, raised, is_last=step is last)
            case Blob(number, name, value):
                if digest(encode(value)) != name:
                    problem = f"the value is not the one that was filed as {name}: one of them was edited"
                    raise Divergence(fixture.name, number, problem)
            case Turn(number, session, sample_id, key):
                n_turns += 1
                if (session, sample_id) != ended and (session, sample_id) in keys:
                    problem = "the turn line does not stand right behind the end of its sample, or stands there twice"
                    raise Divergence(fixture.name, number, problem)
                ended = None
                if (today := keys.get((session, sample_id), "no such sample")) != key:
                    raise Divergence(fixture.name, number, "the turn answers another conversation", key, today)
            case _:
                relayed.check(line)
    lost = tuple(relayed.reconstruction.findings.lost)
    return Verified(len(sessions), n_steps, n_turns, fixture.whole, relayed.n_sessions, relayed.n_turns, lost)


@define(eq=False)
class _Relayed:
    """The relayed sessions of a file, as far as its lines have come."""

    fixture: Fixture
    new_session: NewSession
    reconstruction: Reconstruction = field(init=False)
    n_sessions: int = 0
    n_turns: int = 0
    _ladders: dict[int, dict[str | None, Ladder]] = field(factory=dict)  # by session and lane

    def __attrs_post_init__(self) -> None:
        self.reconstruction = Reconstruction(self.fixture, self.new_session)

    def check(self, line: Line) -> None:
        match line:
            case Relayed(session=session):
                self.n_sessions += 1
                self._ladders[session] = {}
            case FromUpstream(session=session):
                self._climb(line)
            case Unread(session=session) | Gone(session=session):
                self._ladders.pop(session, None)
        for _, effects, _ in self.reconstruction.feed(line):
            self.n_turns += sum(isinstance(effect, StartSample) for effect in effects)
        for unlike in self.reconstruction.findings.unlike:
            problem = "the answer cannot be said by increments as it was"
            raise Divergence(self.fixture.name, unlike.line, problem, unlike.heard, unlike.said)

    def _climb(self, line: FromUpstream) -> None:
        """The ladder of the lane goes on."""
        ladders = self._ladders.get(line.session)
        if ladders is None:
            return
        for message in line.messages:
            lane = message.get("stream_id") if isinstance(message, dict) else None
            ladder = ladders.setdefault(lane if isinstance(lane, str) else None, Ladder())
            try:
                ladder.climb(message if isinstance(message, dict) else {})
            except LadderBroken as exc:
                raise Divergence(self.fixture.name, line.line, f"{message['type']!r} deviates: {exc}") from None


def _is_as_sent(step: Step, effects: Sequence[Effect]) -> bool:
    """Whether a short line sends what it should, and nothing else is to be said of it. Nearly all lines are such."""
    if step.sent is None or step.out is not None or step.raised is not None or len(effects) != 1:
        return False
    [effect] = effects
    return type(effect) is Send and digest(b"\n".join(effect.data), 8) == step.sent


def _are_as_told(unpacker: Unpacker, effects: Sequence[Effect], out: list[dict[str, Any]]) -> bool:
    """Whether all that happens is that the recorded bytes are sent: the quick way to see what nearly always is so."""
    if len(effects) != len(out):
        return False
    for effect, row in zip(effects, out, strict=True):
        if type(effect) is not Send or row.keys() != {"type", "data"} or row["type"] != "Send":
            return False
    try:
        for effect, row in zip(effects, unpacker.effects(out), strict=True):
            assert isinstance(effect, Send)
            if [*map(orjson.dumps, row["data"])] != [*effect.data]:
                return False
    except (MissingBlob, orjson.JSONEncodeError, TypeError):
        return False  # what is wrong is said by whoever compares at length
    return True


def _ended_by(event: Event) -> str | None:
    """The id of the sample that ``event`` ends."""
    whole = isinstance(event, Sampled) and any(isinstance(increment, Finish) for increment in event.batch)
    return event.sample_id if isinstance(event, SampleFailed) or (isinstance(event, Sampled) and whole) else None


def _check(
    fixture: Fixture, unpacker: Unpacker, step: Step, effects: Sequence[Effect], raised: str | None, *, is_last: bool
) -> None:
    def diverge(problem: str, expected: str = "", got: str = "") -> None:
        raise Divergence(fixture.name, step.line, problem, expected, got)

    cut = step.out is None and step.sent is None and step.raised is None
    if cut and not is_last:
        diverge("the line ends after its event, as only the last line of a file can: the rest was taken away")
    if step.checked is not None and step.packed is not None and digest(encode(step.packed), 8) != step.checked:
        diverge("the event is not the one that was recorded: it was edited")
    if raised != step.raised and not (cut and raised is None):
        diverge("the session ends otherwise", step.raised or "with effects", raised or "with effects")
    if cut or raised is not None:
        return
    if step.sent is not None and (got := sent_digest(effects)) != step.sent:
        problem = "other bytes are sent than were recorded"
        diverge(problem, f"only the hash {step.sent} is known", f"hash {got}, of {_sent(effects)}")
    if step.out is None:
        return
    if _are_as_told(unpacker, effects, step.out):
        return
    packer = Packer()
    today = packer.effects(effects)
    same = orjson.dumps(today) == encode(step.out)
    if same and (is_last or packer.new.keys() <= fixture.blobs.keys()):
        return  # the blobs of the last line stand after it, and may have been cut off
    blobs = {name: decode(value) for name, value in packer.new.items()}
    if is_last:
        unpacker = Unpacker({**_big_values(effects), **fixture.blobs})
    try:
        recorded = unpacker.effects(step.out)
    except MissingBlob as exc:
        return diverge(str(exc))
    if not same:
        plain = Unpacker(blobs).effects(orjson.loads(orjson.dumps(today)))
        if encode(plain) != encode(recorded):
            diverge(*_first_difference(recorded, plain))


def _big_values(effects: Sequence[Effect]) -> dict[str, Any]:
    """Every value of today's effects that a recording may hold as a blob, by name."""
    packer = Packer()
    packer.effects(effects)
    for effect in effects:
        for entry in effect.data if isinstance(effect, Send) else ():
            packer.value(orjson.loads(entry))
    return {name: decode(value) for name, value in packer.new.items()}


def _sent(effects: Sequence[Effect]) -> str:
    """The events sent, in brief."""
    entries = [orjson.loads(entry) for effect in effects if isinstance(effect, Send) for entry in effect.data]
    shown = ", ".join(" ".join(filter(None, (entry["type"], repr(entry.get("delta", ""))))) for entry in entries)
    return shown[:300] or "nothing"


def _first_difference(recorded: list[dict[str, Any]], today: list[dict[str, Any]]) -> tuple[str, str, str]:
    """What differs, and both sides around it."""
    difference = next(differences(recorded, today), None)
    if difference is None:
        return "the keys of an effect stand in another order", "", ""
    number, *path = difference.path
    n = int(number)
    name = (recorded[n] if n < len(recorded) else today[n]).get("type", "effect")
    place = f"effect {n + 1} ({name})" + (f" differs at {'.'.join(path)}" if path else " is on one side only")
    expected, got = excerpts(difference.expected, difference.got)
    return place, expected, got
