"""``Session``: one client connection, or one HTTP POST, as a function of its events."""

import hashlib
import math
from collections.abc import Mapping

import orjson
from attrs import define, evolve, field

from .canonical import Item, without_echo
from .context import Context
from .continuation import continued
from .errors import (
    SHOWN,
    BackendRefused,
    ConnectionLimitReached,
    InvalidField,
    ItemNotFound,
    PreviousResponseNotFound,
    ProtocolError,
    ResponseNotFound,
    ShuttingDown,
    StoreUnavailable,
    error_type,
)
from .lane import ROOT, Kept, Lane, Loading, Waiting
from .lanes import Lanes
from .response import INCOMPLETE_REASONS, NonsenseFromBackend, OpenResponse, encode_event
from .seam import (
    CancelSample,
    ClientGone,
    ClientText,
    Close,
    Drain,
    Effect,
    Event,
    Finish,
    Increment,
    Load,
    Loaded,
    Opened,
    Record,
    Sampled,
    SampleFailed,
    Save,
    Saved,
    Send,
    Started,
    StartSample,
    StoreFailed,
    Tick,
    Usage,
)
from .states import BUSY, Input, State
from .wire import (
    Added,
    ResponseAppend,
    ResponseCreate,
    check_choice,
    echo,
    read,
    read_event_type,
    read_stream_id,
    structure_append,
    structure_create,
)

MAX_REFERABLE_BYTES = 64 << 20
"""Items that ``item_reference`` can name hold at most this much JSON, the newest of them excepted; ours."""


@define(eq=False, repr=False)
class Session:
    """Everything one connection knows. No I/O, clock, or randomness.

    Attributes:
        deadline: when a ``Tick`` is next wanted, in seconds since ``Opened``; ``inf`` for never.
        closed: no more events may be fed.
    """

    deadline: float = math.inf
    closed: bool = False
    lanes: Lanes = field(factory=Lanes)
    _opened: Opened = field(factory=lambda: Opened(seed="", wall=0.0))
    _now: float = 0.0
    _n_ids: int = 0
    _leaving: ProtocolError | None = None  # why no more creates are taken
    _leave_by: float = math.inf
    _sampling: dict[str, Lane] = field(factory=dict)  # by sample id
    _items: dict[str, Item] = field(factory=dict)  # by item id, oldest first: what item_reference can name
    _n_item_bytes: int = 0

    def receive(self, event: Event, *, now: float) -> list[Effect]:
        """Advance by one event and return what must be done, in order.

        Args:
            now: seconds since ``Opened``, rounded to 1 µs by the caller; never goes backwards.
        """
        assert not self.closed, "the driver fed a closed session"
        self._now = now
        match event:
            case Sampled(sample_id, batch):
                if (lane := self._sampling.get(sample_id)) is None:
                    return []  # cancelled earlier; its last batch was already on its way
                out: list[bytes] = []
                response = lane.response
                if response.announced:
                    lane.quiet_since = now
                    finish = self._add(lane, batch, out)
                    if finish is None:
                        lane.move(Input.DELTA)
                        return [Send(tuple(out))] if out else []
                else:
                    out += self._announce(lane)
                    finish = self._add(lane, batch, out)
                effects = self._after_batch(lane, finish, out)
            case Started(sample_id):
                lane = self._sampling.get(sample_id)
                if lane is None or lane.response.announced:
                    return []
                effects = [Send(tuple(self._announce(lane)))]
            case SampleFailed(sample_id):
                lane = self._sampling.get(sample_id)
                if lane is None:
                    return []
                effects = self._sample_failed(lane, event)
            case ClientText(text):
                effects = self._client_text(text)
            case Loaded(stream_id) | Saved(stream_id) | StoreFailed(stream_id):
                effects = self._store_answered(self.lanes[stream_id], event)
            case Opened():
                self._opened = event
                effects = []
            case ClientGone():
                self.closed = True
                return [*map(CancelSample, self._sampling), Close(1000)]
            case Drain():
                effects = self._leave(
                    ShuttingDown("The server is shutting down; reconnect and send the request again.")
                )
            case Tick():
                effects = self._tick()
        effects += self._advance()
        if not self.closed:
            self._rearm()
        return effects

    # --- client events: both designs become (parent context, new items) -----------------------------------

    def _client_text(self, text: str) -> list[Effect]:
        over_http = self._opened.transport != "websocket"
        try:
            raw = read(text)
            kind = "response.create" if over_http else read_event_type(raw)
            if not kind:
                return []
            stream_id = None if over_http else read_stream_id(raw)
        except ProtocolError as exc:
            return self._answered_over_http(self._error(exc, None))
        limits = self._opened.limits
        try:
            lane = self.lanes.open(stream_id, limits)
        except ProtocolError as exc:
            return [self._error(exc, stream_id)]
        if self._leaving is not None:
            return self._answered_over_http(self._refusal(lane, self._leaving))
        try:
            self.lanes.add(lane, Waiting(kind, raw, len(text)), limits)
        except ProtocolError as exc:
            return [self._refusal(lane, exc)]
        return []

    def _advance(self) -> list[Effect]:
        """Begin waiting client events while places in flight are free."""
        effects: list[Effect] = []
        while (turn := self.lanes.take(self._opened.limits)) is not None:
            lane, waiting = turn
            effects += self._append(lane, waiting) if waiting.type == "response.append" else self._create(lane, waiting)
            self.lanes.enqueue(lane)
        if self._leaving is not None and self.lanes.n_busy == 0 and not self.closed:
            effects += self._close(1001, "going away")
        return effects

    def _create(self, lane: Lane, waiting: Waiting) -> list[Effect]:
        lane.open = None  # the parked response, if there was one, is abandoned in silence
        over_http = self._opened.transport != "websocket"
        try:
            request = structure_create(waiting.raw, over_http=over_http, default_model=self._opened.default_model)
            if self._opened.transport == "count":
                request = evolve(request, store=False, generate=False)
            return self._resolve(lane, request)
        except ProtocolError as exc:
            return self._refuse(lane, exc, waiting.raw.get("previous_response_id"))

    def _append(self, lane: Lane, waiting: Waiting) -> list[Effect]:
        """Continue the response that is parked, or else the one that ended last, as the oldest clients expect."""
        last = lane.kept[-1] if lane.kept else None
        parked = lane.open
        try:
            request = structure_append(waiting.raw)
            named = request.response_id or request.previous_response_id
            target = parked.id if parked is not None else last.response_id if last is not None else None
            if target is None or (named is not None and named != target):
                shown = "is open" if named is None else f"with id '{named[:SHOWN]}' is open"
                raise ResponseNotFound(f"No response {shown} to append to; send response.create first.", param="type")
            if parked is not None:
                said = parked.said
            else:
                assert last is not None and last.request is not None
                said = list(last.said)
            new = tuple(without_echo(said, request.input.items))
            if parked is not None:
                return self._resolve(lane, evolve(request, input=Added(new)))
            assert last is not None and last.request is not None
            create = evolve(last.request, input=Added(new), previous_response_id=last.response_id)
            return self._resolve(lane, evolve(create, generate=None, prompt_cache_options=None))
        except ProtocolError as exc:
            if parked is not None:
                return self._fail(lane, exc.code, exc.message)  # the open response is the request that failed
            return [self._refusal(lane, exc)]

    def _resolve(self, lane: Lane, request: ResponseCreate | ResponseAppend) -> list[Effect]:
        """Find what ``request`` continues and refers to: here, or else in the store."""
        named = [item.value["id"] for item in request.input.items if item.type == "item_reference"]
        known = {item_id: self._items[item_id] for item_id in named if item_id in self._items}
        unknown = tuple(item_id for item_id in named if item_id not in known)
        parent: Kept | None = ROOT
        response_id = None
        if isinstance(request, ResponseCreate) and request.previous_response_id is not None:
            response_id = request.previous_response_id
            parent = self.lanes.kept(response_id)
        if parent is not None and not unknown:
            return self._begin(lane, request, parent, known)
        self.lanes.move(lane, Input.LOAD)
        lane.loading = Loading(request, parent, unknown, known)
        return [Load(lane.stream_id, self._opened.owner, response_id if parent is None else None, unknown)]

    def _begin(
        self, lane: Lane, request: ResponseCreate | ResponseAppend, parent: Kept, referenced: Mapping[str, Item]
    ) -> list[Effect]:
        """All is at hand: everything that can be refused is refused here, before anything moves."""
        items = [
            referenced[item.value["id"]] if item.type == "item_reference" else item for item in request.input.items
        ]
        if isinstance(request, ResponseAppend):
            response = lane.response
            context = continued(response.context, items, fill=False, lenient=True)
            if context.fold.open_calls:
                self.lanes.move(lane, Input.HOLD)
                response.resume(context, response.n_tokens_seen)  # half of the answer: the rest is to come
                return []
            self.lanes.move(lane, Input.APPEND)
            return [self._sample(lane, context, response.n_tokens_seen)]
        context = continued(
            parent.context,
            items,
            fill=self._opened.limits.fill_missing_outputs,
            lenient=not request.generates,
        )
        check_choice(request, context.tools)
        model = request.model or self._opened.default_model
        try:
            response = OpenResponse(
                id=self._id("resp"),
                stream_id=lane.stream_id,
                request=request,
                model=model,
                created_at=self._wall(),
                asked=context,
                context=context,
                saved=parent.saved,
                ids=self._id,
                echo=echo(request, model),
            )
        except orjson.JSONEncodeError as exc:
            raise InvalidField(f"The request is nested too deeply to be answered ({exc}).") from None
        lane.open = response
        if request.generates:
            self.lanes.move(lane, Input.CREATE)
            return [self._sample(lane, context, parent.n_cached)]
        response.cached = parent.n_cached
        return [Send(tuple(response.announce())), *self._end(lane, Input.WARMUP)]

    def _sample(self, lane: Lane, context: Context, cached: int) -> Effect:
        """The one place where a turn begins, whichever client event asked for it."""
        response, sample_id = lane.response, self._id("smp")
        response.resume(context, cached)
        lane.sample_id, lane.quiet_since = sample_id, self._now
        self._sampling[sample_id] = lane
        return StartSample(sample_id, response.model, response.request, context, cached)

    # --- backend and store events -------------------------------------------------------------------------

    def _announce(self, lane: Lane) -> list[bytes]:
        lane.move(Input.STARTED)
        lane.quiet_since = self._now
        return lane.response.announce()

    def _add(self, lane: Lane, batch: tuple[Increment, ...], out: list[bytes]) -> Finish | SampleFailed | None:
        try:
            return lane.response.add(batch, out)
        except NonsenseFromBackend as exc:
            return SampleFailed(lane.sample_id or "", "server_error", f"The backend sent {exc}.")

    def _after_batch(self, lane: Lane, ended: Finish | SampleFailed | None, out: list[bytes]) -> list[Effect]:
        effects: list[Effect] = [Send(tuple(out))] if out else []
        if ended is None:
            return effects
        if isinstance(ended, SampleFailed):
            effects.append(CancelSample(ended.sample_id))
            return effects + self._fail(lane, ended.code, ended.message)
        self._sample_over(lane)
        response = lane.response
        if self._opened.dialect == "append" and ended.reason == "stop" and response.context.fold.open_calls:
            self.lanes.move(lane, Input.PARK)
            snapshot = response.snapshot("in_progress", usage=response.usage(ended.usage))
            effects.append(Send((response.snapshot_event("response.done", snapshot),)))
            return effects
        return effects + self._end(lane, Input.FINISH, ended)

    def _sample_failed(self, lane: Lane, event: SampleFailed) -> list[Effect]:
        message = event.message or "The backend failed."
        if lane.response.announced:
            if event.code == "rate_limit_exceeded" and event.retry_after:
                message += f" Please try again in {event.retry_after}s."  # where Codex reads it
            return self._fail(lane, event.code, message)
        refused = BackendRefused(
            message, param=event.param, code=event.code, status=event.status, retry_after=event.retry_after
        )
        self._sample_over(lane)
        parent_id, lane.open = lane.response.request.previous_response_id, None
        return self._refuse(lane, refused, parent_id)

    def _store_answered(self, lane: Lane, event: Loaded | Saved | StoreFailed) -> list[Effect]:
        if isinstance(event, Saved):
            self.lanes.move(lane, Input.SAVED)
            return self._seal(lane, saved=True)
        if lane.state is State.SAVING:
            assert isinstance(event, StoreFailed)
            return self._fail(lane, "server_error", event.message)
        loading, lane.loading = lane.loading, None
        assert loading is not None, "the store answered a lane that did not ask"
        request = loading.request
        parent_id = request.previous_response_id
        try:
            if isinstance(event, StoreFailed):
                raise StoreUnavailable(event.message)
            referenced = dict(loading.known)
            for item_id, encoded in zip(loading.item_ids, event.referenced, strict=True):
                if encoded is None:
                    raise ItemNotFound(f"Item with id '{item_id[:SHOWN]}' not found.", param="input")
                referenced[item_id] = Item.decode(encoded)
            parent = loading.parent
            if parent is None:
                if event.items is None:
                    raise PreviousResponseNotFound(
                        f"Previous response with id '{str(parent_id)[:SHOWN]}' not found.", param="previous_response_id"
                    )
                context = Context().extend(map(Item.decode, event.items))
                parent = Kept(parent_id or "", context, context, (parent_id or "", context), None, 0)
            return self._begin(lane, request, parent, referenced)
        except ProtocolError as exc:
            if isinstance(request, ResponseAppend):
                return self._fail(lane, exc.code, exc.message)
            return self._refuse(lane, exc, parent_id)

    # --- how a response or a request ends -----------------------------------------------------------------

    def _sample_over(self, lane: Lane) -> None:
        del self._sampling[lane.sample_id or ""]
        lane.sample_id = None

    def _end(self, lane: Lane, input_: Input, finish: Finish | None = None) -> list[Effect]:
        """The open response has said all: seal it, or save it first."""
        response = lane.response
        reason = None if finish is None else INCOMPLETE_REASONS.get(finish.reason)
        response.ending = response.snapshot(
            "completed" if reason is None else "incomplete",
            now=self._wall(),
            usage=response.usage(Usage(*self._prompt_size(response)) if finish is None else finish.usage),
            incomplete=reason,
        )
        response.ending_type = "response.completed" if reason is None else "response.incomplete"
        if not response.request.stores:
            self.lanes.move(lane, input_)
            return self._seal(lane)
        self.lanes.move(lane, Input.SAVE)
        saved_id, saved = response.saved or (None, None)
        # A stored child of parents that were not stored carries their items: it must load without them.
        items = tuple(item.encoded for item in response.context.items_after(saved))
        record = Record(
            response_id=response.id,
            previous_id=saved_id,
            owner=self._opened.owner,
            created_at=response.created_at,
            response=response.ending,
            items=items,
            n_output=response.context.n_items - response.n_items_asked,
        )
        return [Save(lane.stream_id, record)]

    def _prompt_size(self, response: OpenResponse) -> tuple[int, int, int]:
        """Input, output and cached tokens of a warm-up."""
        usage = response.usage(None)
        return usage["input_tokens"], 0, usage["input_tokens_details"]["cached_tokens"]

    def _seal(self, lane: Lane, *, saved: bool = False) -> list[Effect]:
        response, lane.open = lane.response, None
        context = response.context
        lane.keep(
            Kept(
                response.id,
                response.asked,
                context,
                (response.id, context) if saved else response.saved,
                response.request,
                context.n_tokens,
            )
        )
        for item in (*response.request.input.items, *response.said):
            item_id = item.value.get("id")
            if isinstance(item_id, str) and item.type != "item_reference":
                self._remember(item_id, item)
        ended = response.snapshot_event(response.ending_type, response.ending)
        return self._answered_over_http(Send((ended,)))

    def _remember(self, item_id: str, item: Item) -> None:
        """Let ``item_reference`` name ``item``; the oldest are forgotten."""
        if (same := self._items.get(item_id)) is not None:
            self._n_item_bytes -= len(same.encoded)
        self._items[item_id] = item
        self._n_item_bytes += len(item.encoded)
        while len(self._items) > self._opened.limits.n_referable or (
            self._n_item_bytes > MAX_REFERABLE_BYTES and len(self._items) > 1
        ):
            self._n_item_bytes -= len(self._items.pop(next(iter(self._items))).encoded)

    def _fail(self, lane: Lane, code: str, message: str) -> list[Effect]:
        self.lanes.move(lane, Input.FAIL)
        response, lane.open = lane.response, None
        lane.evict(response.request.previous_response_id)
        if lane.sample_id is not None:
            self._sample_over(lane)
        snapshot = response.snapshot("failed", error={"code": code, "message": message})
        return self._answered_over_http(Send((response.snapshot_event("response.failed", snapshot),)))

    def _refuse(self, lane: Lane, exc: ProtocolError, parent_id: object) -> list[Effect]:
        """A create that got its turn and cannot be served."""
        self.lanes.move(lane, Input.REFUSE)
        lane.evict(parent_id)
        return self._answered_over_http(self._refusal(lane, exc))

    def _refusal(self, lane: Lane, exc: ProtocolError) -> Effect:
        if self._opened.dialect == "current":
            return self._error(exc, lane.stream_id)
        failed = OpenResponse(  # old Codex ignores error frames
            id=self._id("resp"),
            stream_id=lane.stream_id,
            request=ResponseCreate(),
            model=self._opened.default_model,
            created_at=self._wall(),
            asked=Context(),
            context=Context(),
            saved=None,
            ids=self._id,
            echo=echo(ResponseCreate(), self._opened.default_model),
        )
        snapshot = failed.snapshot("failed", error={"code": exc.code, "message": exc.message})
        return Send((failed.snapshot_event("response.failed", snapshot),))

    def _error(self, exc: ProtocolError, stream_id: str | None) -> Effect:
        error = {"type": error_type(exc.status), "code": exc.code, "message": exc.message, "param": exc.param}
        fields = {"sequence_number": 0, "status": exc.status, "error": error}
        if exc.retry_after is not None:
            error["headers"] = fields["headers"] = {"retry-after": exc.retry_after}  # type: ignore[assignment]
        return Send((encode_event("error", stream_id, **fields),))

    def _answered_over_http(self, answer: Effect) -> list[Effect]:
        """``answer``, and the end of the session if it was one POST."""
        if self._opened.transport == "websocket":
            return [answer]
        return [answer, *self._close(1000, "answered")]

    # --- time, leaving, small parts ------------------------------------------------------------------------

    def _tick(self) -> list[Effect]:
        limits, effects = self._opened.limits, list[Effect]()
        if self._now >= self._leave_by:
            effects += [CancelSample(sample_id) for sample_id in self._sampling]
            return effects + self._close(1001, "going away")
        if self._leaving is None and self._opened.transport == "websocket" and self._now >= limits.max_age_s:
            minutes = limits.max_age_s / 60
            reached = ConnectionLimitReached(
                f"Responses websocket connection limit reached ({minutes:g} minutes). "
                "Create a new websocket connection to continue."
            )
            effects += [self._error(reached, None), *self._leave(reached)]
            self._leave_by = round(self._now + limits.drain_s, 6)
        for lane in self.lanes:
            if lane.open is None or lane.state not in BUSY:
                continue
            if self._now < self._patience(lane):
                continue
            if lane.open.announced:
                lane.quiet_since = self._now
                effects.append(Send((lane.open.keepalive(),)))
            else:
                effects.append(Send(tuple(self._announce(lane))))
        return effects

    def _patience(self, lane: Lane) -> float:
        """Until when the open response of ``lane`` may be silent."""
        limits = self._opened.limits
        return round(lane.quiet_since + (limits.keepalive_s if lane.response.announced else limits.accept_s), 6)

    def _rearm(self) -> None:
        """Set the deadline. Deltas do not come here: a Tick that finds nothing due costs less than a timer per delta."""
        limits = self._opened.limits
        deadline = self._leave_by if self._leaving is not None else limits.max_age_s
        if self._opened.transport != "websocket" and self._leaving is None:
            deadline = math.inf
        for lane in self.lanes:
            if lane.open is not None and lane.state in BUSY:
                deadline = min(deadline, self._patience(lane))
        self.deadline = deadline

    def _leave(self, why: ProtocolError) -> list[Effect]:
        """Take no more client events, refuse those that wait, and close once nothing is in flight."""
        self._leaving = why
        return [self._refusal(lane, why) for lane in self.lanes.clear()]

    def _close(self, code: int, reason: str) -> list[Effect]:
        self.closed = True
        return [Close(code, reason)]

    def _wall(self) -> int:
        """Seconds since 1970."""
        return int(self._opened.wall + self._now)

    def _id(self, prefix: str) -> str:
        """The next id: the same session always names things the same way."""
        self._n_ids += 1
        key = bytes.fromhex(self._opened.seed)
        return f"{prefix}_{hashlib.blake2b(self._n_ids.to_bytes(8, 'big'), key=key, digest_size=16).hexdigest()}"
