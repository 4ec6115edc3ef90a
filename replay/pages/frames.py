"""What went over the wire in each session, as the page holds it: packed as in the file, tokens of one read together."""

from collections.abc import Iterable, Iterator
from typing import Any

import orjson
from attrs import define, field, frozen

from turntape.core.seam import ClientGone, ClientText, Drain, Effect, Opened, Send
from turntape.replay.fixture import Fixture, Step
from turntape.replay.takes import NewSession, refeed

DELTA = ".delta"


@frozen
class Frame:
    """One message, or several deltas that one read of the backend brought.

    Attributes:
        line: of the file.
        at: seconds since the session's ``Opened``.
        row: for the page, with its key "t" for the time. "c": the client's message, "x": one that is no JSON; "s": a
            server event; "d": texts of further events like the one before on this lane, with the next sequence numbers;
            "e": what else happened.
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
        frames: in the order in which they were sent.
    """

    opened: Opened
    frames: list[Frame] = field(factory=list)
    _deltas: dict[str | None, dict[str, Any]] = field(factory=dict)  # by lane: the last event, if it is a delta

    def add(self, step: Step, effects: Iterable[Effect]) -> None:
        match step.event:
            case ClientText(text):
                packed = step.packed or {}
                value = packed.get("json", packed.get("spaced"))
                self._put(step, self._lane(value), {"x": text} if value is None else {"c": value})
            case ClientGone(code):
                self._put(step, None, {"e": "the client left" + (f", close code {code}" if code else "")})
            case Drain():
                self._put(step, None, {"e": "the server began to shut down"})
        if step.raised is not None:
            self._put(step, None, {"e": f"the session raised {step.raised}"})
        if step.packed is None:  # a short line holds a hash of what was sent
            for effect in effects:
                for encoded in effect.data if isinstance(effect, Send) else ():
                    self._server(step, orjson.loads(encoded))
        for row in step.out or ():
            if row.get("type") == "Send" and isinstance(events := row.get("data"), list):
                for event in events:
                    self._server(step, event)
            elif row.get("type") == "Close":
                reason = f": {row.get('reason')}" if row.get("reason") else ""
                self._put(step, None, {"e": f"the server closed, close code {row.get('code')}{reason}"})

    def _lane(self, value: Any) -> str | None:
        lane = value.get("stream_id") if isinstance(value, dict) and self.opened.transport == "websocket" else None
        return lane if isinstance(lane, str) else None

    def _put(self, step: Step, lane: str | None, row: dict[str, Any]) -> None:
        self.frames.append(Frame(step.line, step.at, lane, {"t": step.at, **row}))

    def _server(self, step: Step, event: Any) -> None:
        lane = self._lane(event)
        before = self._deltas.pop(lane, None)
        if not (isinstance(event, dict) and str(event.get("type")).endswith(DELTA)):
            return self._put(step, lane, {"s": event})
        self._deltas[lane] = event
        if before is None or event != _after(before, event.get("delta")):
            return self._put(step, lane, {"s": event})
        last = self.frames[-1]
        if last.line == step.line and last.lane == lane and "d" in last.row:
            last.row["d"].append(event["delta"])
        else:
            self._put(step, lane, {"d": [event["delta"]]})


def wires(fixture: Fixture, new_session: NewSession) -> dict[int, Wire]:
    """Every session of a recording, by its number."""
    found: dict[int, Wire] = {}
    for step, effects, _ in refeed(fixture, new_session):
        if step.session not in found and isinstance(step.event, Opened):
            found[step.session] = Wire(step.event)
        found[step.session].add(step, effects)
    return found


def references(value: Any) -> Iterator[str]:
    """Names of the blobs that a packed value refers to."""
    if isinstance(value, dict):
        if len(value) == 1 and isinstance(name := value.get("$blob"), str):
            yield name
        else:
            for inner in value.values():
                yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def _after(before: dict[str, Any], delta: Any) -> dict[str, Any]:
    """The event that goes on where ``before`` ended."""
    number = before.get("sequence_number")
    counted = {"sequence_number": number + 1} if isinstance(number, int) else {}
    return {**before, "delta": delta, **counted}
