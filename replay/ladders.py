"""Whether an upstream's events stand in the order that the protocol gives them, and say the same thing twice alike.

What a server may leave out is no deviation if it leaves it out altogether: numbers, ``response.created``, the
``content_part`` events, deltas before a ``.done``, the output of the terminal event.
"""

from collections.abc import Mapping
from typing import Any

from attrs import define, field

from .messages import ENDS, Gist, is_answer_event, output_of, response_in

PARTS: Mapping[str, tuple[str, str]] = {
    "output_text": ("content_index", "text"),
    "refusal": ("content_index", "refusal"),
    "reasoning_text": ("content_index", "text"),
    "reasoning_summary_text": ("summary_index", "text"),
    "function_call_arguments": ("", "arguments"),
    "custom_tool_call_input": ("", "input"),
}
"""Name of an event between ``response.`` and ``.delta`` or ``.done``: the field that numbers its part, and the one that
holds all of it."""


STEMS = frozenset({"output_item", "content_part", "reasoning_summary_part", *PARTS})


class LadderBroken(Exception):
    """An event that may not stand where it does. The text is a clause without an end."""


@define(eq=False)
class _Item:
    """An output item as far as it has come.

    Attributes:
        texts: what deltas have said, by the kind of event and the part's number.
        parts: those that an event has begun, by the field that numbers them.
    """

    id: str | None
    index: int | None
    is_done: bool = False
    texts: dict[tuple[str, int], list[str]] = field(factory=dict)
    parts: set[tuple[str, int]] = field(factory=set)
    done: dict[str, Any] | None = None


@define(eq=False)
class Ladder:
    """The events of one lane, answer after answer."""

    _number: int | None = None
    _response_id: str | None = None
    _is_open: bool = False
    _is_begun: bool = False  # it was created, or has an item: it cannot be created any more
    _n_events: int = 0
    _adds: bool = False
    _items: list[_Item] = field(factory=list)
    _n_before: int = 0  # items of earlier samples of the same response

    def climb(self, event: Mapping[str, Any]) -> None:
        """Raises ``LadderBroken``."""
        type_ = event.get("type")
        if not is_answer_event(event) or type_ is None:
            return
        if type_ == "error":
            self._close()
            return
        name = str(type_).removeprefix("response.")
        if not self._is_open or (name == "created" and self._is_begun):
            self._open(event)
        self._is_begun |= name == "created" or name.startswith("output_item")
        self._count(event)
        self._identify(event)
        stem, _, verb = name.rpartition(".")
        if type_ in ENDS:
            self._end(name, event)
        elif stem == "output_item":
            self._item(verb, event)
        elif stem in ("content_part", "reasoning_summary_part"):
            self._part(stem, verb, event)
        elif stem in PARTS and verb == "delta":
            self._delta(stem, event)
        elif stem in PARTS and verb == "done":
            self._text_done(stem, event)

    def _open(self, event: Mapping[str, Any]) -> None:
        if self._is_open:
            raise LadderBroken("a response is created while another of its lane goes on")
        response_id = response_in(event).get("id")
        if event["type"] == "response.created" and (response_id != self._response_id or response_id is None):
            self._n_before = 0
            if event.get("sequence_number") not in (None, 0):
                raise LadderBroken(
                    f"its sequence_number is {event['sequence_number']!r}, and it is the first of its response"
                )
        self._is_open, self._is_begun = True, False
        self._number, self._response_id = None, None
        self._items, self._adds, self._n_events = [], False, 0

    def _close(self) -> None:
        self._is_open = False

    def _count(self, event: Mapping[str, Any]) -> None:
        number, last = event.get("sequence_number"), self._number
        self._n_events += 1
        if number is None and (last is None or not _is_known(event)):
            return
        if type(number) is not int:
            raise LadderBroken(f"it has no sequence_number that is a whole number; the one before it has {last}")
        if last is None and self._n_events > 1:
            raise LadderBroken("it has a sequence_number, and those before it have none")
        if last is not None and number != last + 1:
            raise LadderBroken(f"its sequence_number is {number} after {last}")
        self._number = number

    def _identify(self, event: Mapping[str, Any]) -> None:
        response_id = response_in(event).get("id")
        if not isinstance(response_id, str) or not response_id:
            return
        if self._response_id is not None and response_id != self._response_id:
            raise LadderBroken(f"its response is {response_id[:64]!r}, which was {self._response_id[:64]!r} before")
        self._response_id = response_id

    # --- items ----------------------------------------------------------------------------------------

    def _item(self, verb: str, event: Mapping[str, Any]) -> None:
        value = event.get("item")
        if not isinstance(value, dict):
            raise LadderBroken("it has no item")
        index, item_id = _int(event.get("output_index")), _text(value.get("id"))
        if verb == "added":
            self._adds = True
            self._new(index, item_id)
            return
        if verb != "done":
            return
        item = self._find(index, item_id, opens=not self._adds)
        if item.is_done:
            raise LadderBroken("its item was done before")
        item.is_done, item.done = True, value
        self._whole_item(item, value)

    def _new(self, index: int | None, item_id: str | None) -> _Item:
        expected = self._n_before + len(self._items)
        if index is not None and index != expected and index != len(self._items):
            raise LadderBroken(f"its output_index is {index}; the next item is {expected}")
        self._items.append(_Item(item_id, index))
        return self._items[-1]

    def _find(self, index: int | None, item_id: str | None, *, opens: bool = False) -> _Item:
        for item in self._items:
            if index is not None and item.index is not None:
                if item.index != index:
                    continue
                if item_id is not None and item.id is not None and item.id != item_id:
                    raise LadderBroken(f"its item is {item_id[:64]!r}, which was {item.id[:64]!r} when it was added")
                return item
            if item_id is not None and item.id == item_id:
                return item
        if opens:
            return self._new(index, item_id)
        if index is None and item_id is None and self._items:
            return self._items[-1]
        raise LadderBroken("its item was not added before")

    def _of(self, event: Mapping[str, Any]) -> _Item:
        item = self._find(_int(event.get("output_index")), _text(event.get("item_id")))
        if item.is_done:
            raise LadderBroken("its item was done before")
        return item

    # --- what items say -------------------------------------------------------------------------------

    def _part(self, stem: str, verb: str, event: Mapping[str, Any]) -> None:
        item = self._of(event)
        by = "summary_index" if stem == "reasoning_summary_part" else "content_index"
        number = _int(event.get(by)) or 0
        if verb == "added":
            n = sum(1 for name, _ in item.parts if name == by)
            if number != n:
                raise LadderBroken(f"its {by} is {number}; the next part is {n}")
            item.parts.add((by, number))
        elif verb == "done":
            part = event.get("part")
            said = [text for (kind, n), text in item.texts.items() if PARTS[kind][0] == by and n == number]
            whole = part.get("text", part.get("refusal")) if isinstance(part, dict) else None
            _same("".join(said[-1]) if said else None, whole, "part")

    def _delta(self, stem: str, event: Mapping[str, Any]) -> None:
        by = PARTS[stem][0]
        item, number = self._of(event), (_int(event.get(by)) or 0) if by else 0
        used = any(name == by for name, _ in item.parts)
        if used and (by, number) not in item.parts:
            raise LadderBroken(f"its part {number} was not added before")
        delta = event.get("delta")
        if not isinstance(delta, str):
            raise LadderBroken("its delta is no text")
        item.texts.setdefault((stem, number), []).append(delta)

    def _text_done(self, stem: str, event: Mapping[str, Any]) -> None:
        by, key = PARTS[stem]
        item, number = self._of(event), (_int(event.get(by)) or 0) if by else 0
        said = item.texts.get((stem, number))
        _same(None if said is None else "".join(said), event.get(key), key)

    def _whole_item(self, item: _Item, value: dict[str, Any]) -> None:
        """What the deltas of ``item`` have said is what it holds at its end."""
        texts = {kind: "".join(pieces) for (kind, _), pieces in item.texts.items() if PARTS[kind][0] == ""}
        _same(texts.get("function_call_arguments"), value.get("arguments"), "arguments")
        _same(texts.get("custom_tool_call_input"), value.get("input"), "input")
        for by, name in (("content_index", "content"), ("summary_index", "summary")):
            said = {n: "".join(pieces) for (kind, n), pieces in item.texts.items() if PARTS[kind][0] == by}
            parts = value.get(name)
            for number, text in said.items():
                part = parts[number] if isinstance(parts, list) and number < len(parts) else None
                whole = part.get("text", part.get("refusal")) if isinstance(part, dict) else None
                if parts or text:
                    _same(text, whole if whole is not None else "", f"{name} {number}")

    # --- the end --------------------------------------------------------------------------------------

    def _end(self, name: str, event: Mapping[str, Any]) -> None:
        self._close()
        left = [item for item in self._items if not item.is_done]
        if left and name in ("completed", "done"):
            raise LadderBroken(f"it ends a response of which {len(left)} items are not done")
        output = output_of(response_in(event))
        if output and name in ("completed", "incomplete", "done"):
            mine = [Gist.of(item.done) for item in self._items if item.done is not None]
            theirs = [Gist.of(item) for item in output]
            if theirs[len(theirs) - len(mine) :] != mine or len(theirs) - len(mine) not in (0, self._n_before):
                raise LadderBroken("its output is not that of the items before it")
        self._n_before += len(self._items)


def _same(said: str | None, whole: Any, what: str) -> None:
    """Raises ``LadderBroken`` if deltas came, and are not what the whole says."""
    if said is None or said == whole:
        return
    shown = whole if isinstance(whole, str) else ""
    place = next((n for n, (a, b) in enumerate(zip(said, shown, strict=False)) if a != b), min(len(said), len(shown)))
    raise LadderBroken(f"its {what} is not what its deltas said: it differs from character {place} on")


def _is_known(event: Mapping[str, Any]) -> bool:
    """Whether the protocol has an event of this type; of others it says nothing."""
    name = str(event["type"]).removeprefix("response.")
    return event["type"] in ENDS or name in ("created", "in_progress", "queued") or name.rpartition(".")[0] in STEMS


def _int(value: Any) -> int | None:
    return value if type(value) is int else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
