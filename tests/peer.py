"""Both neighbours of a ``Session`` for synchronous tests: the client that talks to it and the model behind it."""

import collections
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import orjson
from attrs import define, field

from turntape.core.canonical import Item
from turntape.core.seam import (
    Arguments,
    CancelSample,
    ClientText,
    Close,
    Effect,
    Event,
    Finish,
    Increment,
    Limits,
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
    Text,
    ToolCall,
)
from turntape.core.session import Session

Answer = Callable[[StartSample], Sequence[Increment]]


def say(*texts: str, reason: str = "stop") -> Answer:
    """A model that always says this."""
    return lambda start: (*map(Text, texts), Finish(reason))


def call(*names: str) -> Answer:
    """A model that calls these tools until it has as many outputs, and then says so."""

    def answer(start: StartSample) -> Sequence[Increment]:
        outputs = [item for item in start.context.items_after(None) if item.closes_call]
        if len(outputs) >= len(names):
            return Text("done"), Finish()
        increments: list[Increment] = []
        for n, name in enumerate(names):
            increments += [ToolCall(f"call_{name}_{n}", name), Arguments('{"n":'), Arguments(f"{n}}}")]
        return (*increments, Finish())

    return answer


def output(call_id: str, text: str = "42", **fields: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text, **fields}


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text}


@define(eq=False)
class SharedStore:
    """What outlives a session: records by id, and who owns them."""

    records: dict[str, Record] = field(factory=dict)

    def chain(self, response_id: str | None, owner: str) -> tuple[bytes, ...] | None:
        items: list[bytes] = []
        while response_id is not None:
            record = self.records.get(response_id)
            if record is None or record.owner != owner:
                return None
            items[:0] = record.items
            response_id = record.previous_id
        return tuple(items)

    def item(self, item_id: str, owner: str) -> bytes | None:
        for record in self.records.values():
            for encoded in record.items if record.owner == owner else ():
                if orjson.loads(encoded).get("id") == item_id:
                    return encoded
        return None


@define(eq=False)
class Peer:
    """A session, its client and its model.

    Attributes:
        answer: what the model says to a sample; None leaves samples waiting in ``starts``.
        sent: every server event so far, decoded, in order.
        starts: every sample that was asked for, in order.
        store: answers loads and saves at once; None leaves them waiting in ``asked``.
    """

    answer: Answer | None = field(factory=lambda: say("Hello", ", ", "there."))
    store: SharedStore | None = field(factory=SharedStore)
    transport: str = "websocket"
    dialect: str = "current"
    owner: str = ""
    default_model: str = ""
    limits: Limits = field(factory=Limits)
    seed: str = "00" * 16
    now: float = 0.0
    session: Any = field(factory=Session)
    sent: list[dict[str, Any]] = field(factory=list)
    starts: list[StartSample] = field(factory=list)
    cancelled: list[str] = field(factory=list)
    asked: list[Load | Save] = field(factory=list)
    closed: Close | None = None

    def __attrs_post_init__(self) -> None:
        self.feed(
            Opened(
                seed=self.seed,
                wall=1_795_970_000.0,
                transport=self.transport,
                dialect=self.dialect,
                owner=self.owner,
                default_model=self.default_model,
                limits=self.limits,
            )
        )

    def feed(self, *events: Event, now: float | None = None) -> list[dict[str, Any]]:
        """Feed events, and what the model and the store answer to them; return what the client is sent meanwhile."""
        self.now = self.now if now is None else now
        n_before = len(self.sent)
        queue = collections.deque(events)
        while queue:
            for effect in self.session.receive(queue.popleft(), now=self.now):
                queue.extend(self._perform(effect))
        return self.sent[n_before:]

    def _perform(self, effect: Effect) -> Iterable[Event]:
        match effect:
            case Send(data):
                self.sent += [orjson.loads(one) for one in data]
            case StartSample(sample_id):
                self.starts.append(effect)
                if self.answer is not None:
                    return [Started(sample_id), Sampled(sample_id, tuple(self.answer(effect)))]
            case CancelSample(sample_id):
                self.cancelled.append(sample_id)
            case Load(stream_id, owner, response_id, item_ids) if self.store is not None:
                items = self.store.chain(response_id, owner)
                return [Loaded(stream_id, items, tuple(self.store.item(item_id, owner) for item_id in item_ids))]
            case Save(stream_id, record) if self.store is not None:
                self.store.records[record.response_id] = record
                return [Saved(stream_id)]
            case Load() | Save():
                self.asked.append(effect)
            case Close():
                self.closed = effect
        return []

    def text(self, text: str, now: float | None = None) -> list[dict[str, Any]]:
        return self.feed(ClientText(text), now=now)

    def create(self, input: Any = "hi", *, now: float | None = None, **fields: Any) -> list[dict[str, Any]]:
        """Send ``response.create`` with ``store: false`` unless told otherwise; a field of ``...`` is left out."""
        body = {"type": "response.create", "model": "m", "store": False, "input": input, **fields}
        return self.text(json.dumps({k: v for k, v in body.items() if v is not ...}), now)

    def append(self, *items: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
        return self.text(orjson.dumps({"type": "response.append", "input": items, **fields}).decode())

    def sampled(self, *batch: Increment, n: int = -1, now: float | None = None) -> list[dict[str, Any]]:
        """The model says ``batch`` for the n-th sample asked for, by default the last."""
        return self.feed(Sampled(self.starts[n].sample_id, batch), now=now)

    def fail(self, code: str = "server_error", n: int = -1, **fields: Any) -> list[dict[str, Any]]:
        return self.feed(SampleFailed(self.starts[n].sample_id, code, **fields))

    def started(self, n: int = -1) -> list[dict[str, Any]]:
        return self.feed(Started(self.starts[n].sample_id))

    def prompt(self, n: int = -1) -> list[dict[str, Any]]:
        """The conversation of the n-th sample asked for."""
        return [item.value for item in self.starts[n].context.items_after(None)]


def types(events: Iterable[dict[str, Any]]) -> list[str]:
    """Event types without their common prefix."""
    return [event["type"].removeprefix("response.") for event in events]


def response_id(events: Iterable[dict[str, Any]]) -> str:
    """The one response that these events are about."""
    ids = {event["response"]["id"] for event in events if "response" in event}
    assert len(ids) == 1, ids
    return str(ids.pop())


def texts(items: Iterable[dict[str, Any] | Item]) -> list[str]:
    """Each item in a few words: its role and text, or its type and payload."""
    shown = []
    for item in items:
        value = item.value if isinstance(item, Item) else item
        content = value.get("content")
        if isinstance(content, list):
            content = "".join(part.get("text", part.get("refusal", "?")) for part in content)
        kind = value.get("role") or value.get("type")
        shown.append(f"{kind}: {content or value.get('arguments') or value.get('output') or value.get('input') or ''}")
    return shown
