"""What went over the wire in each session, as the page holds it: packed as in the file, tokens of one read together."""

import base64
from collections.abc import Iterable, Iterator
from typing import Any

import orjson
from attrs import define, field, frozen

from turntape.core.seam import ClientGone, ClientText, Drain, Effect, Opened, Send
from turntape.replay.fixture import Fixture
from turntape.replay.lines import AnswerHead, Blob, FromClient, FromUpstream, Gone, Line, Relayed, Step, Turn, Unread
from turntape.replay.packing import BLOB_BYTES, LISTS, REFERENCE, MissingBlob, Unpacker, digest, encode
from turntape.replay.takes import NewSession, openings, recorded_steps

DELTA = ".delta"


@frozen
class Frame:
    """One message, or several deltas that one read brought.

    Attributes:
        line: of the file.
        at: seconds since the session began.
        row: for the page, with its key "t" for the time. "c": the client's message, "x": one that is no JSON; "s": a
            server event; "d": texts of further events like the one before on this lane, with the next sequence
            numbers, and "o" their padding if they have any; "e": what else happened.
    """

    line: int
    at: float
    lane: str | None
    row: dict[str, Any]

    @property
    def asks(self) -> bool:
        """It is the client's."""
        return "c" in self.row or "x" in self.row


@define(eq=False)
class Wire:
    """One session.

    Attributes:
        opened: how it began; None if it is none that a session of ours could be.
        relay: the first line of a session that a relay wrote.
        frames: in the order in which they were sent.
    """

    blobs: dict[str, Any]
    opened: Opened | None
    relay: Relayed | None = None
    frames: list[Frame] = field(factory=list)
    _deltas: dict[str | None, dict[str, Any]] = field(factory=dict)  # by lane: the last event, if it is a delta

    @property
    def shown(self) -> dict[str, Any]:
        """What the page says of the session, and its frames."""
        opened, relay = self.opened, self.relay
        return {
            "wall": opened.wall if opened else relay.wall if relay else 0.0,
            "transport": self.transport,
            "dialect": opened.dialect if opened else "",
            "agent": opened.agent if opened else relay.headers.get("user-agent", "") if relay else "",
            "upstream": f"{relay.method} {relay.path} of {relay.upstream}" if relay else "",
            "frames": [frame.row if frame.lane is None else {**frame.row, "l": frame.lane} for frame in self.frames],
        }

    @property
    def transport(self) -> str:
        return self.opened.transport if self.opened else self.relay.transport if self.relay else ""

    def add(self, line: Line) -> None:
        """A line that a relay wrote."""
        match line:
            case AnswerHead(status=status):
                self._put(line, None, {"e": f"the upstream's answer began, status {status}"})
            case FromClient(text=text, binary=None):
                value = _json(text)
                self._put(line, self._lane(value), {"x": text} if value is None else {"c": self._packed(value)})
            case FromUpstream(binary=None):
                for message in line.messages:
                    self._server(line, self._packed(message))
            case FromClient(binary=str(binary)) | FromUpstream(binary=str(binary)):
                who = "client" if isinstance(line, FromClient) else "upstream"
                self._put(line, None, {"e": f"the {who} sent {len(base64.b64decode(binary)):,} bytes that are no text"})
            case Unread(by=by, reason=reason):
                self._put(line, None, {"e": f"from here on the {by} could not be read: {reason}"})
            case Gone(by=by, code=code, reason=reason):
                self._put(line, None, {"e": _end(f"the {by} left", code, reason)})

    def step(self, step: Step, effects: Iterable[Effect]) -> None:
        """A step of a session that this server ran, and what a session of today answers to it."""
        match step.event:
            case ClientText(text):
                value = _json(text)
                self._put(step, self._lane(value), {"x": text} if value is None else {"c": self._packed(value)})
            case ClientGone(code):
                self._put(step, None, {"e": _end("the client left", code)})
            case Drain():
                self._put(step, None, {"e": "the server began to shut down"})
        if step.raised is not None:
            self._put(step, None, {"e": f"the session raised {step.raised}"})
        if step.packed is None:  # a short line holds a hash of what was sent
            for effect in effects:
                for encoded in effect.data if isinstance(effect, Send) else ():
                    self._server(step, orjson.loads(encoded))
        for row in self._out(step):
            if row.get("type") == "Send" and isinstance(events := row.get("data"), list):
                for event in events:
                    self._server(step, self._packed(event))
            elif row.get("type") == "Close":
                self._put(step, None, {"e": _end("the server closed", row.get("code"), row.get("reason"))})

    def _out(self, step: Step) -> list[dict[str, Any]]:
        """The recorded effects, as far as the file holds what they refer to."""
        out = step.out or []
        try:
            return Unpacker(self.blobs).effects(out)
        except MissingBlob:
            return out

    def _lane(self, value: Any) -> str | None:
        lane = value.get("stream_id") if isinstance(value, dict) and self.transport == "websocket" else None
        return lane if isinstance(lane, str) else None

    def _put(self, line: Any, lane: str | None, row: dict[str, Any]) -> None:
        self.frames.append(Frame(line.line, line.at, lane, {"t": line.at, **row}))

    def _server(self, line: Any, event: Any) -> None:
        lane = self._lane(event)
        before = self._deltas.pop(lane, None)
        if not (isinstance(event, dict) and str(event.get("type")).endswith(DELTA)):
            return self._put(line, lane, {"s": event})
        self._deltas[lane] = event
        if before is None or event != _after(before, event):
            return self._put(line, lane, {"s": event})
        last = self.frames[-1]
        if last.line != line.line or last.lane != lane or "d" not in last.row:
            padding: dict[str, Any] = {"o": []} if "obfuscation" in event else {}
            self._put(line, lane, {"d": [], **padding})
        row = self.frames[-1].row
        row["d"].append(event["delta"])
        if "o" in row:
            row["o"].append(event["obfuscation"])

    def _packed(self, value: Any) -> Any:
        """A value as its file holds it: where that has a blob, its name."""
        if not isinstance(value, dict):
            return value
        return {name: self._field(name, inner) for name, inner in value.items()}

    def _field(self, name: str, value: Any) -> Any:
        if name == "response" and isinstance(value, dict):
            return {inner: self._elements(inner, below) for inner, below in value.items()}
        return self._elements(name, value)

    def _elements(self, name: str, value: Any) -> Any:
        listed = name in LISTS and isinstance(value, list)
        return [packed(each, self.blobs) for each in value] if listed else packed(value, self.blobs)


def wires(fixture: Fixture, new_session: NewSession) -> dict[int, Wire]:
    """Every session of a recording, by its number."""
    opened, steps = openings(fixture), recorded_steps(fixture, new_session)
    found: dict[int, Wire] = {}
    for line in fixture.lines:
        if isinstance(line, Blob | Turn):
            continue
        if line.session not in found:
            relay = line if isinstance(line, Relayed) else None
            found[line.session] = Wire(fixture.blobs, opened.get(line.session), relay)
        wire = found[line.session]
        if isinstance(line, Step):
            step, effects, _ = next(steps)
            wire.step(step, effects)
        else:
            wire.add(line)
    return found


def packed(value: Any, blobs: dict[str, Any], encoded: bytes | None = None) -> Any:
    """``value``, or a reference to it if the file holds it apart.

    Args:
        encoded: ``value`` as compact JSON, if that is at hand.
    """
    if not isinstance(value, dict | list) and not (isinstance(value, str) and len(value) * 6 >= BLOB_BYTES):
        return value
    name = digest(encode(value) if encoded is None else encoded)
    return {REFERENCE: name} if name in blobs else value


def references(value: Any) -> Iterator[str]:
    """Names of the blobs that a packed value refers to."""
    if isinstance(value, dict):
        if len(value) == 1 and isinstance(name := value.get(REFERENCE), str):
            yield name
        else:
            for inner in value.values():
                yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def _json(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _end(what: str, code: Any, reason: Any = "") -> str:
    return what + (f", close code {code}" if code else "") + (f": {reason}" if reason else "")


def _after(before: dict[str, Any], event: dict[str, Any]) -> dict[str, Any]:
    """The event that goes on where ``before`` ended, with the text and the padding of ``event``."""
    number = before.get("sequence_number")
    after = {**before, "delta": event.get("delta")}
    if isinstance(number, int):
        after["sequence_number"] = number + 1
    if "obfuscation" in before and "obfuscation" in event:
        after["obfuscation"] = event["obfuscation"]
    return after
