"""One relayed session: its messages as events of a session of ours, and which answer belongs to which request."""

from collections.abc import Iterator
from typing import Any

import orjson
from attrs import define, field

from turntape.core.response import INCOMPLETE_REASONS
from turntape.core.seam import ClientGone, ClientText, Finish, Increment, Sampled, SampleFailed, Started
from turntape.transport.backends.base import BackendError
from turntape.transport.driver import SessionLike
from turntape.transport.websocket import dialect_of

from .keeping import Kept
from .lines import AnswerHead, FromClient, FromUpstream, Gone, Relayed, Unread
from .messages import ASKING, EXPRESSIBLE, Gist, ends, failed, is_answer_event, json_object, output_of, response_in
from .own_session import Answer, OwnSession, opened
from .requests import Findings, NotReplayable, Request, Requests, Unheard, Unlike


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
class RelayedSession:
    """Feeds ``session`` as its relayed original went."""

    relay: Relayed
    session: SessionLike
    kept: Kept
    ahead: Ahead
    findings: Findings
    _own: OwnSession = field(init=False)
    _requests: Requests = field(factory=Requests)
    _ids: dict[str, str] = field(factory=dict)  # ours for each of the upstream's, as far as this session has seen them
    _told: dict[str, set[str]] = field(factory=dict)  # by upstream response: items of its earlier samples
    _head: AnswerHead | None = None
    _n_beside: int = 0  # messages that ask for no answer, which an error may be about
    _is_passed_over: bool = False

    def __attrs_post_init__(self) -> None:
        self._own = OwnSession(self.relay, self.session, self.kept, self._requests, self.findings)

    def begin(self) -> Iterator[Answer]:
        relay = self.relay
        path = relay.path.partition("?")[0].rstrip("/")
        if relay.transport == "http" and not (relay.method == "POST" and path.endswith("/responses")):
            self._is_passed_over = True
            self._lose(relay.line, f"{relay.method} {path[:80]} is no request for a response")
            return
        transport = relay.transport if relay.transport == "websocket" else "sse" if self.ahead.streams else "json"
        yield from self._own.feed(opened(relay, transport, self._dialect()), 0.0, relay.line)

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
        request = self._own.feeding = Request(line.line, lane)
        self._requests.add(request)
        ours = self.kept.translated(value, self._ids)
        text = line.text if ours is value else orjson.dumps(ours).decode()
        yield from self._own.feed(ClientText(text), line.at, line.line)
        self._own.feeding = None

    # --- the upstream ---------------------------------------------------------------------------------

    def _from_upstream(self, line: FromUpstream) -> Iterator[Answer]:
        status = self._head.status if self._head is not None and self.relay.transport == "http" else None
        if status is not None and status >= 400:
            if (request := self._requests.answered_by(None)) is not None:
                yield from self._refusal(request, line.message, line.at, line.line)
            return
        if not is_answer_event(line.message):
            return
        request = self._requests.answered_by(line.message.get("stream_id"))
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

    def _note(self, request: Request, message: dict[str, Any]) -> None:
        """Keep what later lines may name."""
        item = message.get("item")
        if message.get("type") == "response.created":
            self._told.pop(str(response_in(message).get("id")), None)
        if message.get("type") == "response.output_item.done" and isinstance(item, dict):
            request.heard.append(item)
        for one in (item, *output_of(response_in(message))):
            if isinstance(one, dict) and isinstance(one.get("id"), str):
                self.kept.items[one["id"]] = one

    def _heard(self, request: Request, line: FromUpstream) -> Iterator[Answer]:
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

    def _answer(self, request: Request, line: FromUpstream, failure: SampleFailed | None) -> Iterator[Answer]:
        assert request.sample_id is not None and request.reader is not None
        message = line.message
        if not request.started and not (failure is not None and message.get("type") == "error"):
            request.started = True
            yield from self._own.feed(Started(request.sample_id), line.at, line.line)
        self._meet(request, message)
        if failure is not None:
            yield from self._own.feed(failure, line.at, line.line)
            return
        reader = request.reader
        said: tuple[Increment, ...] = reader.hear(self._since(message) if line.deltas is None else line.messages)
        try:
            if reader.ended:
                said += reader.end()
        except BackendError as exc:
            if said:
                yield from self._own.feed(Sampled(request.sample_id, said), line.at, line.line)
            broken = Unheard(request.sample_id, exc.code, str(exc), status=exc.status)
            yield from self._own.feed(broken, line.at, line.line)
            self._lose_once(request, f"its answer cannot be read: {exc}")
            return
        if said:
            yield from self._own.feed(Sampled(request.sample_id, said), line.at, line.line)
        if said and isinstance(said[-1], Finish):
            self._compare(request, message, line.line)

    def _meet(self, request: Request, message: dict[str, Any]) -> None:
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

    def _compare(self, request: Request, message: dict[str, Any], line: int) -> None:
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
                self.kept.items[own["id"]] = own

    def _refusal(self, request: Request, body: Any, at: float, line: int) -> Iterator[Answer]:
        """The answer to a POST was an error."""
        assert self._head is not None
        request.is_heard = True
        if request.sample_id is not None and not request.is_over:
            failure = failed(body, request.sample_id, status=self._head.status, headers=self._head.headers)
            assert failure is not None, "a status of 400 and more is a failure"
            yield from self._own.feed(failure, at, line)

    def _why_refused(self, request: Request) -> str:
        if request.refused_code == "previous_response_not_found":
            return "it continues a response that this recording does not hold, or could not replay"
        return f"the core refuses what the upstream took: {request.refused}"

    def _lose_once(self, request: Request, problem: str) -> None:
        if not request.is_lost:
            request.is_lost = True
            self._lose(request.line, problem)

    # --- the end --------------------------------------------------------------------------------------

    def _gone(self, line: Gone) -> Iterator[Answer]:
        if line.by == "upstream":
            while (request := self._requests.unanswered()) is not None:
                assert request.sample_id is not None
                if self._head is not None and self._head.status >= 400:
                    yield from self._refusal(request, "", line.at, line.line)
                    continue
                request.is_heard = True
                code = "" if line.code is None else f" with code {line.code}"
                message = f"The upstream closed the connection{code} before its answer had ended."
                dropped = SampleFailed(request.sample_id, "server_error", message, status=502)
                yield from self._own.feed(dropped, line.at, line.line)
        yield from self._own.feed(ClientGone(line.code), line.at, line.line)
