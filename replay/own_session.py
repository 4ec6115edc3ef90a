"""Our session in the upstream's place: it is fed, its effects are followed, and the store that it asks is the file."""

import hashlib
from collections.abc import Iterator, Sequence

import orjson
from attrs import define, field

from turntape.core.seam import (
    Effect,
    Event,
    Limits,
    Load,
    Loaded,
    Opened,
    Save,
    Saved,
    Send,
    StartSample,
    event_type,
)
from turntape.transport.backends.chat_errors import Refusals
from turntape.transport.backends.chat_tools import ToolNames
from turntape.transport.backends.responses_stream import EventReader
from turntape.transport.driver import SessionLike

from .keeping import Kept
from .lines import Relayed, Step
from .requests import Findings, NotReplayable, Request, Requests, Unheard

Answer = tuple[Step, Sequence[Effect], str | None]
"""A step of our session, its effects, and the name of the exception that it ended in."""

MANY = 1 << 30
UNBOUNDED = Limits(
    max_age_s=MANY, n_lanes=MANY, n_in_flight=MANY, n_waiting=MANY, n_kept=MANY, n_referable=1 << 16, accept_s=MANY
)
"""The bounds were the upstream's to set, and what it let pass has passed."""

ENDED = ("response.completed", "response.incomplete", "response.failed", "response.done")
FOLLOWED = frozenset({"error", "response.created", "response.output_item.done", *ENDED})


def opened(relay: Relayed, transport: str, dialect: str) -> Opened:
    """The first event of a relayed session. Its ids follow from where it stands in the file."""
    return Opened(
        seed=hashlib.blake2b(b"relay %d %d" % (relay.session, relay.line), digest_size=16).hexdigest(),
        wall=relay.wall,
        transport=transport,
        dialect=dialect,
        agent=relay.headers.get("user-agent", ""),
        limits=UNBOUNDED,
    )


@define(eq=False)
class OwnSession:
    """Feeds ``session`` and keeps up with what it does for which request.

    Attributes:
        feeding: the request whose message is being fed.
        broken: the core has failed; nothing more is fed.
    """

    relay: Relayed
    session: SessionLike
    kept: Kept
    requests: Requests
    findings: Findings
    feeding: Request | None = None
    broken: bool = False
    _ids: dict[str | None, str] = field(factory=dict)  # by lane: our response, which appends go on with
    _now: float = 0.0

    def feed(self, event: Event, at: float, line: int) -> Iterator[Answer]:
        """One event, and those that its effects make: the answers of the store."""
        if self.session.closed or self.broken:
            return
        number, at = self.relay.session, max(round(at, 6), self._now)
        self._now = at
        rules = self.relay.rules if isinstance(event, Opened) else ()
        try:
            effects = self.session.receive(event, now=at)
        except Exception as exc:  # noqa: BLE001 - a fault of the core, which other sessions need not share
            self.broken, name = True, type(exc).__name__
            problem = f"a session of ours fails on it with {name}; the rest of its session is left out"
            self.findings.lost.append(NotReplayable(line, number, problem))
            yield Step(line, number, at, event, raised=name, rules=rules), (), name
            return
        yield Step(line, number, at, event, rules=rules), effects, None
        for effect in effects:
            match effect:
                case StartSample():
                    yield from self._sample_begins(effect, at, line)
                case Send(entries):
                    for entry in entries:
                        if event_type(entry) in FOLLOWED:
                            self._follow(entry)
                case Save(lane, record):
                    self.kept.saved(record)
                    yield from self.feed(Saved(lane), at, line)
                case Load(lane, _, response_id, item_ids):
                    items = None if response_id is None else self.kept.conversation(response_id)
                    yield from self.feed(Loaded(lane, items, tuple(map(self.kept.item, item_ids))), at, line)

    def _sample_begins(self, start: StartSample, at: float, line: int) -> Iterator[Answer]:
        lane = start.request.raw.get("stream_id")
        request = next((one for one in self.requests.open(lane) if one.sample_id is None), None)
        if request is None:
            return
        request.sample_id, request.asked = start.sample_id, start.context
        request.reader = EventReader(ToolNames(), Refusals("the upstream"))
        request.own_id = self._ids.get(lane)
        if request.is_heard:  # its answer came before its turn, and was not read
            yield from self.feed(Unheard(start.sample_id, "server_error", "not replayable"), at, line)

    def _follow(self, entry: bytes) -> None:
        """What the client is told now, of the request at hand."""
        told = orjson.loads(entry)
        kind, lane = told["type"], told.get("stream_id")
        request = next(iter(self.requests.open(lane)), None)
        if lane is None and self.feeding is not None and self.feeding.lane is not None:
            request = self.feeding  # what is wrong with it is its lane
        if request is None:
            return
        response = told.get("response") or {}
        match kind:
            case "response.created":
                request.own_id = self._ids[lane] = response["id"]
            case "response.output_item.done":
                request.said.append(told["item"])
            case "error":
                request.refuse(told["error"])
            case "response.failed" if request.sample_id is None and request.own_id is None:
                request.refuse(response["error"])
            case _:
                request.is_over = True
                if kind != "response.failed" and request.asked is not None:
                    self.kept.answered(response["id"], request.asked, request.said)
