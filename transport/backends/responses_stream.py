"""Events of a Responses stream to increments, whichever server they come from; no I/O.

Nothing is taken from an event that some server leaves out: numbers are not looked at, items are known by their id or
their place, and what no delta said is taken from the event that ends it, or from the whole response at the end.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from attrs import define, field

from turntape.core.seam import (
    Arguments,
    Encrypted,
    Finish,
    Increment,
    Message,
    Reasoning,
    Refusal,
    Summary,
    Text,
    ToolCall,
    Usage,
)

from .base import BackendError
from .chat_errors import Refusals
from .chat_tools import ToolNames
from .chat_usage import count
from .custom_input import CustomInput
from .responses_errors import failure_in

INCOMPLETE = {"content_filter": "content_filter"}
"""Any other reason is a limit."""

CALLS = ("function_call", "custom_tool_call")

DELTAS: Mapping[str, tuple[str, str]] = {
    "output_text": ("message", "text"),
    "refusal": ("message", "refusal"),
    "reasoning_text": ("reasoning", "reasoning"),
    "reasoning": ("reasoning", "reasoning"),
    "reasoning_summary_text": ("reasoning", "summary"),
    "function_call_arguments": ("function_call", "arguments"),
    "custom_tool_call_input": ("custom_tool_call", "arguments"),
}
"""Name of an event between ``response.`` and ``.delta`` or ``.done``: the kind of its item, and of what it says."""

WHOLE = ("text", "refusal", "arguments", "input")
"""Fields of a ``.done`` event that hold everything its deltas said."""


@define(eq=False)
class _Part:
    """What one part of an item says, in pieces; the first ``n_told`` of them were passed on."""

    pieces: list[str] = field(factory=list)
    n_told: int = 0

    def news(self) -> list[str]:
        new, self.n_told = self.pieces[self.n_told :], len(self.pieces)
        return new


@define(eq=False)
class _Item:
    """One output item as far as it has come.

    Attributes:
        said: its parts in the order of their first word, by the kind of what they say and their number.
        begun: something of it was passed on.
    """

    kind: str
    id: str | None = None
    index: int | None = None
    name: str = ""
    call_id: str = ""
    namespace: str | None = None
    phase: str | None = None
    encrypted: str = ""
    said: dict[tuple[str, int], _Part] = field(factory=dict)
    is_done: bool = False
    begun: bool = False
    decoder: CustomInput | None = None

    def hear(self, what: str, number: int, text: str, *, whole: bool) -> None:
        """A delta, or with ``whole`` everything: what was said already stays, since it cannot be taken back."""
        part = self.said.get((what, number))
        if part is None:
            part = self.said[what, number] = _Part()
        if whole:
            so_far = "".join(part.pieces)
            text = text[len(so_far) :] if text.startswith(so_far) else ""
        if text:
            part.pieces.append(text)


@define(eq=False)
class EventReader:
    """Reads one answer.

    Increments have one open item at a time: an item that began while a call is open waits until that is done.

    Attributes:
        response_id: of the upstream, once it has said it.
        finish_reason: of the end, once it has been read.
        failure: why the answer is broken; what came before it counts.
        call_ids: of the calls that were passed on.
        n_told: increments that were passed on.
    """

    names: ToolNames
    refusals: Refusals
    response_id: str | None = None
    finish_reason: str | None = None
    failure: BackendError | None = None
    call_ids: set[str] = field(factory=set)
    n_told: int = 0
    _usage: Usage | None = None
    _n_events: int = 0
    _items: list[_Item] = field(factory=list)
    _n_over: int = 0  # items, from the first on, that are told to their end
    _passed: list[_Item] = field(factory=list)  # messages and reasoning among those that nobody said to be done
    _out: list[Increment] = field(factory=list)

    @property
    def ended(self) -> bool:
        """Nothing more is to be read: call ``end``."""
        return self.finish_reason is not None or self.failure is not None

    def feed(self, events: list[bytes] | list[str]) -> tuple[Increment, ...]:
        """What the events of one read say."""
        return self.hear(_loads(event) for event in events if event.strip() not in (b"[DONE]", "[DONE]"))

    def hear(self, events: Iterable[Any]) -> tuple[Increment, ...]:
        """The same, of events that are decoded."""
        for value in events:
            if self.ended:
                break
            if isinstance(value, dict):
                self._event(value)
                self._n_events += 1
            else:
                self.failure = self.refusals.broken("sent an event that is not a JSON object")
            self._tell()
        return self._taken()

    def end(self) -> tuple[Increment, ...]:
        """The stream ended: what was held back, and ``Finish``.

        Raises:
            BackendError: ``failure``, or it ended too early.
        """
        if self.failure is not None:
            raise self.failure
        if self.finish_reason is None:
            has_output = bool(self._items) or self.response_id is not None
            raise self.refusals.unfinished(self._n_events, "response", has_output=has_output)
        return (*self._taken(), Finish(self.finish_reason, self._usage))

    def _taken(self) -> tuple[Increment, ...]:
        out, self._out = self._out, []
        self.n_told += len(out)
        return tuple(out)

    # --- events -------------------------------------------------------------------------------------

    def _event(self, event: dict[str, Any]) -> None:
        type_ = event.get("type")
        if not isinstance(type_, str):
            if isinstance(event.get("output"), list):  # an answer that is not streamed
                self._over(event, str(event.get("status")))
            elif event.get("error"):
                self.failure = failure_in(self.refusals, event, self._n_events)
            return
        name = type_.removeprefix("response.")
        response = event.get("response")
        if isinstance(response, dict) and isinstance(response.get("id"), str):
            self.response_id = response["id"]
        stem, _, verb = name.rpartition(".")
        if type_ == "error":
            self.failure = failure_in(self.refusals, event, self._n_events)
        elif name in ("completed", "done", "incomplete", "failed", "cancelled"):
            self._over(response if isinstance(response, dict) else {}, name)
        elif stem == "output_item" and isinstance(item := event.get("item"), dict):
            self._whole_item(item, _int(event.get("output_index")), is_done=verb == "done")
        elif stem in DELTAS and verb in ("delta", "done"):
            self._part(stem, event, whole=verb == "done")

    def _part(self, stem: str, event: dict[str, Any], *, whole: bool) -> None:
        kind, what = DELTAS[stem]
        text = (
            next((event[key] for key in WHOLE if isinstance(event.get(key), str)), None)
            if whole
            else event.get("delta")
        )
        if not isinstance(text, str):
            return
        item = self._find(event.get("item_id"), _int(event.get("output_index")), kind)
        number = event.get("summary_index") if what == "summary" else event.get("content_index")
        item.hear(what, 0 if what == "arguments" else _int(number) or 0, text, whole=whole)

    def _whole_item(self, value: dict[str, Any], index: int | None, *, is_done: bool) -> None:
        kind = value.get("type")
        if kind not in ("message", "reasoning", *CALLS):
            return
        item = self._find(value.get("id"), index, kind, opens=not is_done)
        item.kind = kind
        for key in ("name", "call_id", "namespace", "phase"):
            if isinstance(text := value.get(key), str) and text:
                setattr(item, key, text)
        if isinstance(sealed := value.get("encrypted_content"), str) and is_done:
            item.encrypted = sealed
        if is_done:
            self._whole_content(item, value)
            item.is_done = True

    def _whole_content(self, item: _Item, value: dict[str, Any]) -> None:
        for key in ("arguments", "input"):
            if isinstance(text := value.get(key), str):
                item.hear("arguments", 0, text, whole=True)
        for key, what in (("summary", "summary"), ("content", "reasoning" if item.kind == "reasoning" else "text")):
            parts = value.get(key)
            for n, part in enumerate(parts if isinstance(parts, list) else ()):
                if not isinstance(part, dict):
                    continue
                if isinstance(text := part.get("text"), str):
                    item.hear(what, n, text, whole=True)
                elif isinstance(text := part.get("refusal"), str):
                    item.hear("refusal", n, text, whole=True)

    def _find(self, id_: Any, index: int | None, kind: str, *, opens: bool = False) -> _Item:
        """The item that an event is about; a new one if nothing else can be meant.

        Args:
            opens: the event says that an item begins. Others are about the open one if their id is not known:
                servers mix ids up.
        """
        id_ = id_ if isinstance(id_, str) and id_ else None
        family = CALLS if kind in CALLS else (kind,)
        own = [item for item in self._items if item.kind in family]
        for item in reversed(own):
            if id_ is not None and item.id == id_:
                return item
        for item in reversed(own):
            if index is not None and item.index == index and (not opens or item.id is None):
                return item
        if own and not own[-1].is_done and not opens:
            return own[-1]
        self._items.append(_Item(kind, id_, index))
        return self._items[-1]

    def _over(self, response: dict[str, Any], how: str) -> None:
        if how in ("failed", "cancelled"):
            self.failure = failure_in(self.refusals, response, self._n_events)
            return
        if isinstance(response.get("id"), str):
            self.response_id = response["id"]
        output = response.get("output")
        for index, item in enumerate(output if isinstance(output, list) else ()):
            if isinstance(item, dict) and self._is_news(item):
                self._whole_item(item, None if item.get("id") else index, is_done=True)
        for item in self._items:
            item.is_done = True
        if isinstance(usage := response.get("usage"), dict):
            self._usage = read_usage(usage)
        self.finish_reason = "stop"
        if how == "incomplete":
            details = response.get("incomplete_details")
            reason = details.get("reason") if isinstance(details, dict) else None
            self.finish_reason = INCOMPLETE.get(str(reason), "length")

    def _is_news(self, item: dict[str, Any]) -> bool:
        """Whether an item of the whole response can be told from those that came by, or is none of them."""
        if item.get("id") is not None and any(known.id == item["id"] for known in self._items):
            return True
        if item.get("type") in CALLS:
            return all(known.call_id != item.get("call_id") for known in self._items)
        return all(known.kind != item.get("type") for known in self._items)

    # --- one item at a time -------------------------------------------------------------------------

    def _tell(self) -> None:
        """Pass on what is new of the open item, and of those after it once it is over."""
        for item in self._passed:
            self._tell_parts(item)
        for item in self._items[self._n_over :]:
            if item.kind in CALLS:
                self._tell_call(item)
            else:
                self._tell_parts(item)
            if self.failure is not None:
                return
            if not item.is_done:
                if item.kind in CALLS or item is self._items[-1]:
                    return
                self._passed.append(item)  # the next one has begun: some servers do not say that this one is done
            elif item.encrypted:
                self._out.append(Encrypted(item.encrypted))
            self._n_over += 1

    def _tell_parts(self, item: _Item) -> None:
        for (what, number), part in item.said.items():
            for piece in part.news():
                if item.kind == "message" and not item.begun:
                    self._out.append(Message(item.phase))
                item.begun = True
                match what:
                    case "summary":
                        self._out.append(Summary(piece, number))
                    case "reasoning":
                        self._out.append(Reasoning(piece))
                    case "refusal":
                        self._out.append(Refusal(piece))
                    case _:
                        self._out.append(Text(piece))

    def _tell_call(self, item: _Item) -> None:
        if not item.begun:
            if not (item.name and item.call_id):
                if item.is_done:
                    self.failure = self.refusals.broken("sent a tool call without a name or a call_id")
                return
            self._begin_call(item)
        part = item.said.setdefault(("arguments", 0), _Part())
        new = part.news()
        if item.decoder is not None:
            new = [*map(item.decoder.feed, new), item.decoder.end() if item.is_done else ""]
        elif item.is_done and item.kind == "function_call" and not "".join(part.pieces).strip():
            new = ["{}"]
        self._out += [Arguments(piece) for piece in new if piece]

    def _begin_call(self, item: _Item) -> None:
        item.begun = True
        self.call_ids.add(item.call_id)
        if item.kind == "custom_tool_call":
            self._out.append(ToolCall(item.call_id, item.name, item.namespace, True))
            return
        key = self.names.key(item.name)
        if item.namespace is not None or item.name not in self.names.keys:
            self._out.append(ToolCall(item.call_id, item.name, item.namespace))
            return
        item.decoder = CustomInput() if key.custom else None
        self._out.append(ToolCall(item.call_id, key.name, key.namespace, key.custom))


def _loads(event: bytes | str) -> Any:
    """The JSON in ``event``, or None. What orjson refuses for a lone surrogate, the standard library reads."""
    try:
        return orjson.loads(event)
    except orjson.JSONDecodeError:
        try:
            return json.loads(event)
        except (ValueError, RecursionError):
            return None


def _int(value: Any) -> int | None:
    return value if type(value) is int else None


def read_usage(usage: dict[str, Any]) -> Usage:
    """What the server does not count is 0."""
    details = [usage.get(f"{which}_tokens_details") for which in ("input", "output")]
    n_input, n_output, n_cached, n_reasoned = (
        count(usage.get("input_tokens")),
        count(usage.get("output_tokens")),
        count(details[0].get("cached_tokens") if isinstance(details[0], dict) else 0),
        count(details[1].get("reasoning_tokens") if isinstance(details[1], dict) else 0),
    )
    return Usage(n_input, n_output, min(n_cached, n_input), min(n_reasoned, n_output))
