"""A session as a stub runs it: faults strike its connection, and the stub hears of clients that left without a word."""

from collections.abc import Iterable
from typing import Protocol

from attrs import define, field

from turntape.core.seam import (
    ABNORMAL,
    CancelSample,
    ClientGone,
    Close,
    Effect,
    Event,
    Opened,
    SampleFailed,
    Send,
    StartSample,
    Tick,
    event_type,
)
from turntape.transport.driver import SessionLike

from .stub_faults import Faults
from .stub_library import stream_id


class Stage(Protocol):
    """The stub, as its sessions see it."""

    faults: Faults

    def heard(self, sample_ids: Iterable[str]) -> None:
        """The client went on, or left as it should: what these samples said has reached it."""
        ...

    def unheard(self, sample_ids: Iterable[str]) -> None:
        """The client is gone without a close frame: nobody knows whether the ends of these samples have reached it."""
        ...


@define(eq=False)
class StubSession:
    """Same interface as ``Session``, so that the driver cannot tell."""

    session: SessionLike
    stage: Stage
    _transport: str = ""
    _closed: bool = False
    _stalled: bool = False
    _last: dict[str | None, str] = field(factory=dict)  # by lane: the sample that was started last

    @property
    def closed(self) -> bool:
        return self._closed or self.session.closed

    @property
    def deadline(self) -> float:
        return self.session.deadline

    def receive(self, event: Event, *, now: float) -> list[Effect]:
        if (
            isinstance(event, SampleFailed)
            and (fault := self.stage.faults.struck.pop(event.sample_id, None)) is not None
        ):
            return self._struck(fault.kind, event, now)
        if isinstance(event, Opened):
            self._transport = event.transport
        effects = self.session.receive(event, now=now)
        for effect in effects:
            if isinstance(effect, StartSample):
                self._started(effect)
        if isinstance(event, ClientGone):
            tell = self.stage.unheard if event.code is None else self.stage.heard
            tell(self._last.values())
        elif self.session.closed:
            self.stage.heard(self._last.values())
        if self._stalled and isinstance(event, Tick):
            return [effect for effect in effects if not _is_keepalive(effect)]
        return effects

    def _started(self, start: StartSample) -> None:
        lane = stream_id(start)
        if (before := self._last.get(lane)) is not None:
            self.stage.heard((before,))
        self._last[lane] = start.sample_id

    def _struck(self, kind: str, event: SampleFailed, now: float) -> list[Effect]:
        """The sample ended in a fault of the connection."""
        websocket = self._transport == "websocket"
        match kind:
            case "drop":
                return self._dies(now, Close(ABNORMAL))
            case "stall":
                self._stalled = True
                return []
            case "1009" if websocket:
                return self._dies(now, Close(1009, "message too big"))
            case "limit" if websocket:
                refused = self.session.receive(event, now=now)
                return [*refused, *self._dies(now, Close(1001, "connection limit reached"))]
        return self.session.receive(event, now=now)

    def _dies(self, now: float, close: Close) -> list[Effect]:
        """For the session it is as if the client had left."""
        self._closed = True
        effects = [] if self.session.closed else self.session.receive(ClientGone(None), now=now)
        self.stage.unheard(self._last.values())
        return [*(effect for effect in effects if isinstance(effect, CancelSample)), close]


def _is_keepalive(effect: Effect) -> bool:
    return isinstance(effect, Send) and all(event_type(entry) == "response.in_progress" for entry in effect.data)
