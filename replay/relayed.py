"""One relayed session: its messages as events of a session of ours, and which answer belongs to which request."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import orjson
from attrs import define, field, frozen

from turntape.core.context import Context
from turntape.core.response import INCOMPLETE_REASONS
from turntape.core.seam import (
    ClientGone,
    ClientText,
    Effect,
    Event,
    Finish,
    Increment,
    Limits,
    Load,
    Loaded,
    Opened,
    Sampled,
    SampleFailed,
    Save,
    Saved,
    Send,
    Started,
    StartSample,
    event_type,
)
from turntape.transport.backends.base import BackendError
from turntape.transport.backends.chat_errors import Refusals
from turntape.transport.backends.chat_tools import ToolNames
from turntape.transport.backends.responses_stream import EventReader
from turntape.transport.driver import SessionLike
from turntape.transport.websocket import dialect_of

from .keeping import Kept
from .lines import AnswerHead, FromClient, FromUpstream, Gone, Relayed, Step, Unread
from .messages import ASKING, EXPRESSIBLE, Gist, ends, failed, is_answer_event, json_object, output_of, response_in

Answer = tuple[Step, Sequence[Effect], str | None]
"""A step of our session, its effects, and the name of the exception that it ended in."""

MANY = 1 << 30
UNBOUNDED = Limits(
    max_age_s=MANY, n_lanes=MANY, n_in_flight=MANY, n_waiting=MANY, n_kept=MANY, n_referable=1 << 16, accept_s=MANY
)
"""The bounds were the upstream's to set, and what it let pass has passed."""

OVER = ("response.completed", "response.incomplete", "response.failed", "response.done")


@frozen
class NotReplayable:
    """Something of a relayed session that no take says, or not in full.

    Attributes:
        line: of the file: the client's request, or else where it shows.
        problem: what is lost and why, as a clause.
    """

    line: int
    session: int
    problem: str

    def __str__(self) -> str:
        return f"line {self.line}, session {self.session}: {self.problem}"


@frozen
class Unlike:
    """An answer of which a session of ours says something else than the upstream did.

    Attributes:
        line: where the answer ended.
    """

    line: int
    heard: str
    said: str


class Findings(Protocol):
    """Where a session reports to."""

    lost: list[NotReplayable]
    unlike: list[Unlike]


@define(eq=False)
class Ahead:
    """What a session can only be opened with if its later lines are known.

    Attributes:
        streams: a POST that wants a stream.
        appends: the client continues with ``response.append``.
        parks: the upstream ends samples with ``response.done``.
    """

    streams: bool = False
    appends: bool = False
    parks: bool = False


@define(eq=False)
class _Request:
    """A message that wants an answer.

    Attributes:
        refused: why our session refuses it.
        heard: output items as the upstream ended them; ``said`` are ours.
        is_over: our session has ended its answer.
        is_heard: the upstream has.
    """

    line: int
    lane: str | None
    sample_id: str | None = None
    asked: Context | None = None
    refused: str | None = None
    refused_code: str = ""
    reader: EventReader | None = None
    started: bool = False
    own_id: str | None = None
    heard: list[dict[str, Any]] = field(factory=list)
    said: list[dict[str, Any]] = field(factory=list)
    is_over: bool = False
    is_heard: bool = False
    is_lost: bool = False


@define(eq=False)
class RelayedSession:
    """Feeds ``session`` as its relayed original went."""

    relay: Relayed
    session: SessionLike
    kept: Kept
    ahead: Ahead
    findings: Findings
    _ids: dict[str, str] = field(factory=dict)
    _requests: dict[str | None, list[_Request]] = field(factory=dict)  # by lane, those without their whole answer
    _told: dict[str, set[str]] = field(factory=dict)  # by upstream response: items of its earlier samples
    _own_ids: dict[str | None, str] = field(factory=dict)  # by lane: our response, which appends go on with
    _head: AnswerHead | None = None
    _feeding: _Request | None = None  # the one that its message is being fed of
    _n_beside: int = 0  # messages that ask for no answer, which an error may be about
    _is_passed_over: bool = False
    _now: float = 0.0

    def begin(self) -> Iterator[Answer]:
        relay = self.relay
        path = relay.path.partition("?")[0].rstrip("/")
        if relay.transport == "http" and not (relay.method == "POST" and path.endswith("/responses")):
            self._is_passed_over = True
            self._lose(relay.line, f"{relay.method} {path[:80]} is no request for a response")
            return
        seed = hashlib.blake2b(b"relay %d %d" % (relay.session, relay.line), digest_size=16).hexdigest()
        transport = relay.transport if relay.transport == "websocket" else "sse" if self.ahead.streams else "json"
        opened = Opened(
            seed=seed,
            wall=relay.wall,
            transport=transport,
            dialect=self._dialect(),
            agent=relay.headers.get("user-agent", ""),
            limits=UNBOUNDED,
        )
        yield from self._feed(opened, 0.0, relay.line)

    def feed(self, line: AnswerHead | FromClient | FromUpstream | Unread | Gone) -> Iterator[Answer]:
        if self._is_passed_over:
            return
        match line:
            case AnswerHead():
                self._head = line
                if self.relay.transport == "websocket" and line.status != 101:
                    self._lose(
                        line.line, f"the handshake was refused with status {line.status}: there is no turn in it"
                    )
            case FromClient():
                yield from self._from_client(line)
            case FromUpstream():
                yield from self._from_upstream(line)
            case Unread():
                self._is_passed_over = True
                self._lose(line.line, f"from here on the {line.by} could not be read ({line.reason[:200]})")
            case Gone():
                yield from self._gone(line)

    def _dialect(self) -> str:
        if self.relay.transport != "websocket":
            return "current"
        if self.ahead.appends:
            return "append" if self.ahead.parks else "legacy"
        return dialect_of(self.relay.headers)

    def _lose(self, line: int, problem: str) -> None:
        self.findings.lost.append(NotReplayable(line, self.relay.session, problem))

    # --- our session ----------------------------------------------------------------------------------

    def _feed(self, event: Event, at: float, line: int) -> Iterator[Answer]:
        """One event, and those that its effects make: the answers of the store."""
        if self.session.closed or self._is_passed_over:
            return
        at = self._now = max(round(at, 6), self._now)
        rules = self.relay.rules if isinstance(event, Opened) else ()
        try:
            effects = self.session.receive(event, now=at)
        except Exception as exc:  # noqa: BLE001 - a fault of the core, which other sessions need not share
            self._is_passed_over = True
            self._lose(
                line, f"a session of ours fails on it with {type(exc).__name__}; the rest of the session is left out"
            )
            yield (
                Step(line, self.relay.session, at, event, raised=type(exc).__name__, rules=rules),
                (),
                type(exc).__name__,
            )
            return
        yield Step(line, self.relay.session, at, event, rules=rules), effects, None
        for effect in effects:
            match effect:
                case StartSample():
                    yield from self._sample_begins(effect, at, line)
                case Send(entries):
                    for entry in entries:
                        self._sent(entry)
                case Save(lane, record):
                    self.kept.saved(record)
                    yield from self._feed(Saved(lane), at, line)
                case Load(lane, _, response_id, item_ids):
                    items = None if response_id is None else self.kept.conversation(response_id)
                    yield from self._feed(Loaded(lane, items, tuple(map(self.kept.item, item_ids))), at, line)

    def _sample_begins(self, start: StartSample, at: float, line: int) -> Iterator[Answer]:
        lane = start.request.raw.get("stream_id")
        request = next((one for one in self._open(lane) if one.sample_id is None), None)
        if request is None:
            return
        request.sample_id, request.asked = start.sample_id, start.context
        request.reader = EventReader(ToolNames(), Refusals("the upstream"))
        request.own_id = self._own_ids.get(lane)
        if request.is_heard:  # it answered before its turn, and was not understood
            yield from self._feed(SampleFailed(start.sample_id, "server_error", "not replayable"), at, line)

    def _open(self, lane: str | None) -> list[_Request]:
        """Requests of a lane whose answer our session has not ended, oldest first."""
        return [one for one in self._requests.get(lane, ()) if not one.is_over and one.refused is None]

    def _sent(self, entry: bytes) -> None:
        """Follow what our session tells the client."""
        kind = event_type(entry)
        if kind not in ("error", "response.created", "response.output_item.done", *OVER):
            return
        value = orjson.loads(entry)
        lane = value.get("stream_id")
        request = next(iter(self._open(lane)), None)
        if lane is None and self._feeding is not None and self._feeding.lane is not None:
            request = self._feeding  # what is wrong with it is its lane
        if request is None:
            return
        response = value.get("response") or {}
        match kind:
            case "response.created":
                request.own_id = self._own_ids[lane] = response["id"]
            case "response.output_item.done":
                request.said.append(value["item"])
            case "error":
                self._refuse(request, value["error"])
            case "response.failed" if request.sample_id is None and request.own_id is None:
                self._refuse(request, response["error"])
            case _:
                request.is_over = True
                if kind != "response.failed" and request.asked is not None:
                    self.kept.answered(response["id"], request.asked, request.said)

    def _refuse(self, request: _Request, error: dict[str, Any]) -> None:
        if request.sample_id is None:
            request.refused, request.refused_code = error["message"], error["code"] or ""
        request.is_over = True

    # --- the client -----------------------------------------------------------------------------------

    def _from_client(self, line: FromClient) -> Iterator[Answer]:
        value = json_object(line.text)
        over_http = self.relay.transport == "http"
        type_ = ASKING[0] if over_http and value is not None else (value or {}).get("type")
        if value is None or type_ not in ASKING:
            if type_ != "response.processed":
                self._n_beside += 1
                shown = "that is no JSON object" if value is None else f"of type {str(type_)[:64]!r}"
                self._lose(line.line, f"a message {shown} is not replayed")
            return
        lane = value.get("stream_id")
        lane = lane if isinstance(lane, str) or lane is None else f"not a string: {lane!r}"
        request = _Request(line.line, lane)
        waiting = self._requests.setdefault(lane, [])
        waiting[:] = [one for one in waiting if not (one.is_heard and (one.is_over or one.refused is not None))]
        waiting.append(request)
        ours = self.kept.translated(value, self._ids)
        text = line.text if ours is value else orjson.dumps(ours).decode()
        self._feeding = request
        yield from self._feed(ClientText(text), line.at, line.line)
        self._feeding = None

    # --- the upstream ---------------------------------------------------------------------------------

    def _from_upstream(self, line: FromUpstream) -> Iterator[Answer]:
        status = self._head.status if self._head is not None and self.relay.transport == "http" else None
        if status is not None and status >= 400:
            if (request := self._asked(None)) is not None:
                yield from self._refusal(request, line.message, line.at, line.line)
            return
        if not is_answer_event(line.message):
            return
        request = self._asked(line.message)
        if request is None:
            response_id = response_in(line.message).get("id")
            if line.message.get("type") == "response.created":
                self._lose(line.line, f"response {str(response_id)[:64]} answers no request of this session")
            return
        if line.message.get("type") == "error" and request.started and self._n_beside:
            self._n_beside -= 1
            return
        if line.deltas is None:
            self._note(request, line.message)
        yield from self._heard(request, line)

    def _asked(self, message: dict[str, Any] | None) -> _Request | None:
        """The request that an event answers: the oldest of its lane, or the only one there is."""
        waiting = {
            lane: first
            for lane, requests in self._requests.items()
            if (first := next((one for one in requests if not one.is_heard), None)) is not None
        }
        lane = message.get("stream_id") if message is not None else None
        if lane in waiting:
            return waiting[lane]
        return next(iter(waiting.values())) if len(waiting) == 1 and lane is None else None

    def _note(self, request: _Request, message: dict[str, Any]) -> None:
        """Keep what later lines may name."""
        item = message.get("item")
        if message.get("type") == "response.created":
            self._told.pop(str(response_in(message).get("id")), None)
        if message.get("type") == "response.output_item.done" and isinstance(item, dict):
            request.heard.append(item)
        for one in (item, *output_of(response_in(message))):
            if isinstance(one, dict) and isinstance(one.get("id"), str):
                self.kept.items[one["id"]] = one

    def _heard(self, request: _Request, line: FromUpstream) -> Iterator[Answer]:
        message = line.message
        is_end = line.deltas is None and ends(message)
        request.is_heard |= is_end
        failure = failed(message, request.sample_id or "") if line.deltas is None else None
        if request.refused is not None:
            if failure is None:
                self._lose_once(request, self._why_refused(request))
            return
        if request.sample_id is None:
            if request.own_id is not None:
                self._meet(request, message)  # a warm-up, which our session ended by itself
            elif failure is None:
                self._lose_once(request, "its answer begins while an earlier one of its lane goes on")
            return
        if request.is_over:
            if is_end:
                self._lose_once(request, "its answer is in an order that increments cannot say")
            return
        yield from self._answer(request, line, failure)

    def _answer(self, request: _Request, line: FromUpstream, failure: SampleFailed | None) -> Iterator[Answer]:
        assert request.sample_id is not None and request.reader is not None
        message = line.message
        if not request.started and not (failure is not None and message.get("type") == "error"):
            request.started = True
            yield from self._feed(Started(request.sample_id), line.at, line.line)
        self._meet(request, message)
        if failure is not None:
            yield from self._feed(failure, line.at, line.line)
            return
        reader = request.reader
        said: tuple[Increment, ...] = reader.hear(self._since(message) if line.deltas is None else line.messages)
        try:
            if reader.ended:
                said += reader.end()
        except BackendError as exc:
            if said:
                yield from self._feed(Sampled(request.sample_id, said), line.at, line.line)
            broken = SampleFailed(request.sample_id, exc.code, str(exc), status=exc.status)
            yield from self._feed(broken, line.at, line.line)
            self._lose_once(request, f"its answer cannot be read: {exc}")
            return
        if said:
            yield from self._feed(Sampled(request.sample_id, said), line.at, line.line)
        if said and isinstance(said[-1], Finish):
            self._compare(request, message, line.line)

    def _meet(self, request: _Request, message: dict[str, Any]) -> None:
        """From here on the upstream's id of a response means ours."""
        response_id = response_in(message).get("id")
        if isinstance(response_id, str) and request.own_id is not None:
            self._ids[response_id] = self.kept.ids[response_id] = request.own_id

    def _since(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """An event without the items that earlier samples of the same response said."""
        response = response_in(message)
        earlier = self._told.get(str(response.get("id")))
        if not earlier or "type" not in message:
            return [message]
        new = [
            item for item in output_of(response) if item.get("id") not in earlier and item.get("call_id") not in earlier
        ]
        return [{**message, "response": {**response, "output": new}}]

    def _compare(self, request: _Request, message: dict[str, Any], line: int) -> None:
        """Whether our session said what the upstream did; item ids of one mean those of the other."""
        [whole] = self._since(message)
        response = response_in(whole)
        heard = output_of(response) or request.heard
        for kind in dict.fromkeys(str(item.get("type")) for item in heard if item.get("type") not in EXPRESSIBLE):
            self._lose(request.line, f"the {kind[:64]} of its answer is left out; the rest of it is played")
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        if reason not in (None, *INCOMPLETE_REASONS.values()):
            self._lose(
                request.line, f"its end for the reason {str(reason)[:64]!r} is played as one at the limit of tokens"
            )
        told = self._told.setdefault(str(response.get("id")), set())
        told.update(name for item in heard for name in (item.get("id"), item.get("call_id")) if isinstance(name, str))
        theirs = [(gist, item) for item in heard if not (gist := Gist.of(item)).is_empty and gist.type in EXPRESSIBLE]
        ours = [(gist, item) for item in request.said if not (gist := Gist.of(item)).is_empty]
        if [gist for gist, _ in theirs] != [gist for gist, _ in ours]:
            shown = [str([(gist.type, *gist.words) for gist, _ in side])[:500] for side in (theirs, ours)]
            self.findings.unlike.append(Unlike(line, *shown))
        for (gist, item), (other, own) in zip(theirs, ours, strict=False):
            if gist == other and isinstance(item.get("id"), str):
                self._ids[item["id"]] = self.kept.ids[item["id"]] = own["id"]

    def _refusal(self, request: _Request, body: Any, at: float, line: int) -> Iterator[Answer]:
        """The answer to a POST was an error."""
        assert self._head is not None
        request.is_heard = True
        if request.sample_id is not None and not request.is_over:
            failure = failed(body, request.sample_id, status=self._head.status, headers=self._head.headers)
            assert failure is not None, "a status of 400 and more is a failure"
            yield from self._feed(failure, at, line)

    def _why_refused(self, request: _Request) -> str:
        if request.refused_code == "previous_response_not_found":
            return "it continues a response that this recording does not hold, or could not replay"
        return f"the core refuses what the upstream took: {request.refused}"

    def _lose_once(self, request: _Request, problem: str) -> None:
        if not request.is_lost:
            request.is_lost = True
            self._lose(request.line, problem)

    # --- the end --------------------------------------------------------------------------------------

    def _gone(self, line: Gone) -> Iterator[Answer]:
        if line.by == "upstream":
            while (request := self._unanswered()) is not None:
                assert request.sample_id is not None
                if self._head is not None and self._head.status >= 400:
                    yield from self._refusal(request, "", line.at, line.line)
                    continue
                request.is_heard = True
                code = "" if line.code is None else f" with code {line.code}"
                message = f"The upstream closed the connection{code} before its answer had ended."
                dropped = SampleFailed(request.sample_id, "server_error", message, status=502)
                yield from self._feed(dropped, line.at, line.line)
        yield from self._feed(ClientGone(line.code), line.at, line.line)

    def _unanswered(self) -> _Request | None:
        """A request whose sample nobody will end."""
        for requests in self._requests.values():
            for one in requests:
                if one.sample_id is not None and not one.is_over and not one.is_heard:
                    return one
        return None
