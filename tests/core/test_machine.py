"""Any order of events keeps the promises that a client relies on; frames are built from ids that are live."""

import json
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from peer import Peer, SharedStore, output, user

from turntape.core import lane as lane_module
from turntape.core.seam import (
    Arguments,
    ClientGone,
    ClientText,
    Drain,
    Finish,
    Limits,
    Load,
    Loaded,
    Message,
    Reasoning,
    Record,
    Refusal,
    Sampled,
    SampleFailed,
    Saved,
    Started,
    StoreFailed,
    Summary,
    Text,
    Tick,
    ToolCall,
)
from turntape.core.states import TRANSITIONS, Input, State

TERMINAL = {"response.completed", "response.failed", "response.incomplete"}
LANES = st.sampled_from([None, None, "a", "b"])
APPENDED = {(state, input_) for state in (State.PARKED, State.LOADING) for input_ in (Input.APPEND, Input.HOLD)}
APPENDED |= {(State.PARKED, Input.FAIL), (State.LOADING, Input.FAIL)}

pairs_hit: set[tuple[State, Input]] = set()


class SessionMachine(RuleBasedStateMachine):
    """A client, a model and a store that do anything they may do, in any order."""

    @initialize(
        dialect=st.sampled_from(["current", "append", "append", "legacy"]),
        fill=st.booleans(),
        n_in_flight=st.sampled_from([1, 16, 16]),
    )
    def open(self, dialect: str, fill: bool, n_in_flight: int) -> None:
        limits = Limits(max_age_s=3600.0, fill_missing_outputs=fill, n_in_flight=n_in_flight, n_waiting=8, n_lanes=2)
        self.moves: list[tuple[State, Input]] = []
        self.real_step = lane_module.step
        lane_module.step = self.step
        self.peer = Peer(answer=None, store=None, dialect=dialect, limits=limits)
        self.kept = SharedStore()
        self.n_asked = self.n_answered_early = 0
        self.next_number: dict[str, int] = {}
        self.created: list[str] = []
        self.ended: list[str] = []
        self.n_errors = self.n_fresh_failures = 0
        self.open_samples: dict[str, str | None] = {}
        stored = {"id": "msg_stored", "type": "message", "role": "user", "content": "before"}
        self.kept.records["resp_stored"] = Record("resp_stored", None, "", 0, b"{}", (json.dumps(stored).encode(),), 0)
        self.ids = ["resp_unknown", "resp_stored"]
        self.item_ids = ["msg_unknown", "msg_stored"]
        self.gone = self.left = False

    def step(self, state: State, input_: Input) -> State:
        after = self.real_step(state, input_)
        self.moves.append((state, input_))
        pairs_hit.add((state, input_))
        return after

    def teardown(self) -> None:
        if not hasattr(self, "peer"):
            return
        try:
            self.settle()
        finally:
            lane_module.step = self.real_step

    # --- what may happen -----------------------------------------------------------------------------------

    def feed(self, event: Any, now: float | None = None) -> None:
        peer = self.peer
        if peer.session.closed:
            return
        n_starts = len(peer.starts)
        lanes = {sample_id: lane.stream_id for sample_id, lane in peer.session._sampling.items()}
        sent = peer.feed(event, now=round(peer.now + 0.01, 6) if now is None else now)
        for start in peer.starts[n_starts:]:
            lanes[start.sample_id] = peer.session._sampling[start.sample_id].stream_id
        self.open_samples = {sample_id: lanes[sample_id] for sample_id in peer.session._sampling}
        for one in sent:
            self.check(one)

    def check(self, event: dict[str, Any]) -> None:
        if event["type"] == "error":
            assert event["status"] >= 400 and event["error"]["message"] and event["error"]["code"]
            self.n_errors += 1
            return
        response = event.get("response")
        key = str(event.get("stream_id"))
        if event["type"] == "response.created":
            self.created.append(response["id"])
            self.ids.append(response["id"])
            self.next_number[key] = 0
        elif event["type"] == "response.failed" and response["id"] not in self.created:
            self.n_fresh_failures += 1
            assert event["sequence_number"] == 0
            return
        assert event["sequence_number"] == self.next_number[key], event
        self.next_number[key] += 1
        if event["type"] in TERMINAL:
            assert response["id"] not in self.ended
            self.ended.append(response["id"])
        if event["type"] == "response.output_item.done":
            self.item_ids.append(event["item"]["id"])

    def client(self, **body: Any) -> None:
        if not self.peer.session.closed and not self.gone:
            self.n_asked += 1
            self.feed(ClientText(json.dumps({k: v for k, v in body.items() if v is not ...})))

    def outputs(self, parent: str | None, which: str) -> list[dict[str, Any]]:
        """Outputs for calls that really wait, as far as the client can know them."""
        open_calls: list[str] = []
        for lane in self.peer.session.lanes:
            for kept in lane.kept:
                if kept.response_id == parent:
                    open_calls = list(kept.context.fold.open_calls)
            if parent is None and lane.open is not None:
                open_calls = list(lane.open.context.fold.open_calls)
        if which == "first":
            open_calls = open_calls[:1]
        return [output(call_id) for call_id in open_calls] + ([output("call_orphan")] if which == "orphan" else [])

    def extra(self, more: str) -> list[dict[str, Any]]:
        match more:
            case "text":
                return [user("go on")]
            case "bad":
                return [{"role": "nobody"}]
            case "stored":
                return [{"type": "item_reference", "id": "msg_stored"}]
            case "reference":
                return [{"type": "item_reference", "id": self.item_ids[-1]}]
            case "unknown":
                return [{"type": "item_reference", "id": "msg_unknown"}]
        return []

    def few_wait(self) -> bool:
        return self.peer.session.lanes.n_waiting < 3 or len(self.peer.sent) % 7 == 0

    @precondition(few_wait)
    @rule(
        lane=LANES,
        parent=st.sampled_from([None, None, None, -1, -1, -1, -2, -3, 0, 1]),
        which=st.sampled_from(["all", "all", "all", "all", "first", "orphan", "none"]),
        more=st.sampled_from(
            ["text", "text", "text", "text", "text", "stored", "reference", "unknown", "nothing", "bad"]
        ),
        generate=st.sampled_from([True, True, False]),
        store=st.booleans(),
    )
    def create(self, lane: str | None, parent: int | None, which: str, more: str, generate: bool, store: bool) -> None:
        parent_id = None if parent is None else self.ids[parent % len(self.ids)]
        items = [] if which == "none" else self.outputs(parent_id or "", which)
        self.client(
            type="response.create",
            model="m",
            input=[*items, *self.extra(more)],
            previous_response_id=parent_id,
            generate=... if generate else False,
            store=store,
            stream_id=lane or ...,
        )

    def parked(self) -> list[str | None]:
        return [lane.stream_id for lane in self.peer.session.lanes if lane.state is State.PARKED]

    @precondition(lambda self: self.parked())
    @rule(
        which=st.sampled_from(["all", "all", "first", "first", "orphan"]),
        more=st.sampled_from(["nothing", "nothing", "text", "stored", "stored", "unknown"]),
    )
    def append_to_parked(self, which: str, more: str) -> None:
        items = [*self.outputs(None, which), *self.extra(more)]
        self.client(type="response.append", input=items, stream_id=self.parked()[0] or ...)

    @precondition(lambda self: self.parked())
    @rule(more=st.sampled_from(["text", "text", "text", "bad", "stored"]), generate=st.booleans(), store=st.booleans())
    def create_on_parked(self, more: str, generate: bool, store: bool) -> None:
        self.client(
            type="response.create",
            model="m",
            input=self.extra(more),
            generate=generate,
            store=store,
            stream_id=self.parked()[0] or ...,
        )

    @precondition(few_wait)
    @rule(lane=LANES, which=st.sampled_from(["all", "orphan"]), more=st.sampled_from(["nothing", "text", "stored"]))
    def append(self, lane: str | None, which: str, more: str) -> None:
        items = [*self.outputs(None, which), *self.extra(more)]
        self.client(type="response.append", input=items, stream_id=lane or ...)

    @precondition(lambda self: len(self.peer.sent) % 5 == 0)
    @rule(text=st.sampled_from(["{", "[]", '{"type":"x"}', '{"type":"response.create","stream_id":""}', "\ud800"]))
    def nonsense(self, text: str) -> None:
        if not self.peer.session.closed and not self.gone:
            self.n_asked += 1
            self.feed(ClientText(text))

    @precondition(lambda self: self.open_samples)
    @rule(
        n=st.integers(0, 15),
        kind=st.sampled_from(["started", "text", "text", "call", "call", "call", "mix", "bad", "fail"]),
        more=st.booleans(),
    )
    def model(self, n: int, kind: str, more: bool) -> None:
        sample_id = sorted(self.open_samples)[n % len(self.open_samples)]
        call_id = f"call_{len(self.peer.sent)}"
        match kind:
            case "started":
                self.feed(Started(sample_id))
            case "fail":
                self.feed(SampleFailed(sample_id, "server_error", "broken"))
            case "bad":
                self.feed(Sampled(sample_id, (Message(), Arguments("{}"))))
            case _:
                batches: dict[str, tuple[Any, ...]] = {
                    "text": (Text("a"), Text(""), Text("\ud83d")),
                    "call": (ToolCall(call_id, "f"), Arguments("{}")),
                    "mix": (
                        Summary("s"),
                        Reasoning("r"),
                        Message("commentary"),
                        Refusal("no"),
                        ToolCall(call_id, "g", None, True),
                        ToolCall(call_id + "_2", "h", "ns"),
                    ),
                }
                self.feed(Sampled(sample_id, batches[kind] if more else (*batches[kind], Finish())))

    @precondition(lambda self: self.open_samples)
    @rule(n=st.integers(0, 15))
    def model_calls(self, n: int) -> None:
        """The most likely thing of all: the sample ends with tool calls."""
        sample_id = sorted(self.open_samples)[n % len(self.open_samples)]
        calls = [ToolCall(f"call_{len(self.peer.sent)}_{i}", "f") for i in range(2)]
        self.feed(Sampled(sample_id, (*calls, Finish())))

    @precondition(lambda self: self.open_samples)
    @rule(n=st.integers(0, 15), reason=st.sampled_from(["stop", "stop", "length", "content_filter"]))
    def finish(self, n: int, reason: str) -> None:
        sample_id = sorted(self.open_samples)[n % len(self.open_samples)]
        self.feed(Sampled(sample_id, (Finish(reason),)))

    @precondition(lambda self: self.peer.starts)
    @rule()
    def late(self) -> None:
        """Increments of a sample that may be over long ago."""
        if self.peer.starts[0].sample_id not in self.open_samples:
            self.feed(Sampled(self.peer.starts[0].sample_id, (Text("late"), Finish())))

    @precondition(lambda self: self.peer.asked)
    @rule(works=st.sampled_from([True, True, True, False]))
    def storage(self, works: bool) -> None:
        asked = self.peer.asked.pop(0)
        if not works:
            self.feed(StoreFailed(asked.stream_id, "disk full"))
        elif isinstance(asked, Load):
            items = self.kept.chain(asked.response_id, asked.owner)
            found = tuple(self.kept.item(item_id, asked.owner) for item_id in asked.item_ids)
            self.feed(Loaded(asked.stream_id, items, found))
        else:
            self.kept.records[asked.record.response_id] = asked.record
            self.feed(Saved(asked.stream_id))

    @rule()
    def time_passes(self) -> None:
        deadline = self.peer.session.deadline
        if deadline < 3000.0:
            self.feed(Tick(), now=max(deadline, self.peer.now))

    @precondition(lambda self: len(self.peer.sent) > 40)
    @rule(how=st.sampled_from(["drain", "old", "gone"]))
    def end(self, how: str) -> None:
        if self.left or self.gone:
            return
        if how == "gone":
            self.gone = True
            self.feed(ClientGone())
        elif how == "drain":
            self.left = True
            self.feed(Drain())
        else:
            self.left = True
            self.n_answered_early += 1  # the frame that says so answers nobody
            self.feed(Tick(), now=3600.0)

    # --- what must hold ------------------------------------------------------------------------------------

    @invariant()
    def one_open_sample_per_lane(self) -> None:
        if not hasattr(self, "peer"):
            return
        lanes = list(self.open_samples.values())
        assert len(lanes) == len(set(lanes)) <= self.peer.limits.n_in_flight
        for lane in self.peer.session.lanes:
            assert (lane.state is State.SAMPLING) == (lane.stream_id in lanes)
            assert (lane.open is not None) or lane.state in (State.IDLE, State.LOADING)

    def settle(self) -> None:
        """Answer all that waits; then every request has had its one answer."""
        for _ in range(1000):
            if self.peer.session.closed:
                break
            if self.peer.asked:
                self.storage(works=True)
            elif self.open_samples:
                self.feed(Sampled(min(self.open_samples), (Finish(),)))
            else:
                break
        if self.gone:
            return
        assert not any(lane.waiting for lane in self.peer.session.lanes)
        assert len(set(self.created)) == len(self.created)
        parked = {lane.open.id for lane in self.peer.session.lanes if lane.open is not None}
        unanswered = set(self.created) - set(self.ended) - parked
        assert len(unanswered) <= sum(
            1
            for state, input_ in self.moves
            if state is State.PARKED and input_ in (Input.CREATE, Input.WARMUP, Input.SAVE, Input.REFUSE, Input.LOAD)
        ), "a response that nobody abandoned has no end"
        n_appended = sum(move in APPENDED for move in self.moves)
        n_answers = len(self.created) + self.n_errors + self.n_fresh_failures - self.n_answered_early
        assert n_answers == self.n_asked - n_appended


def test_any_order_of_events_keeps_the_promises_and_reaches_every_transition() -> None:
    """No sequence gaps, one open sample a lane, one answer to every request, nothing raises, every row of the table hit."""
    every = {(state, input_) for state, row in TRANSITIONS.items() for input_ in row}
    pairs_hit.clear()
    for round_ in range(12):
        run_state_machine_as_test(
            seed(round_)(type("SessionMachine", (SessionMachine,), {})),
            settings=settings(
                max_examples=300,
                stateful_step_count=60,
                deadline=None,
                database=None,
                phases=[Phase.generate],  # a shrunk run is no easier to read, and shrinking 60 steps takes minutes
                suppress_health_check=list(HealthCheck),
            ),
        )
        if round_ >= 2 and pairs_hit == every:
            break
    assert every - pairs_hit == set()
