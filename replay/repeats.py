"""What the server events of one line say again, said once: texts, items and responses by where they stand before.

``{"$same": [N, FIELD]}`` is what stands at ``FIELD`` of the line's event ``N``, counted from 0. It may stand for a text of an
item or a part, for an item in the output of a response, and for a field of an event. An event whose delta is
``{"$each": [...]}`` is several, one for each string, that differ in nothing else but their numbers. Both are only at places
where an event of ours never has an object, or where none has these keys.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import orjson
from attrs import define, field

SAME, EACH = "$same", "$each"
MARKS = tuple(f'"{mark}"'.encode() for mark in (SAME, EACH, "$blob", "$like"))
"""An event that says one of these itself is left as it is."""

WORTH_BYTES = 64
"""What is shorter is said again: the reference is half as long."""

TEXTS = ("text", "arguments", "input", "refusal")
PARTS = ("content", "summary")

Event = dict[str, Any]


def is_mark(value: Any, mark: str) -> bool:
    return isinstance(value, dict) and len(value) == 1 and mark in value


@define
class Once:
    """The events of one line, oldest first.

    Args:
        limit: bytes from which on an item or part is held apart, so that nothing in it may refer to this line.
    """

    limit: int
    _n: int = 0
    _texts: dict[str, list[Any]] = field(factory=dict)
    _values: dict[bytes, list[Any]] = field(factory=dict)

    def events(self, sent: Sequence[bytes]) -> Iterator[bytes | Event]:
        """Each event, or each run of events: as it was sent where it has nothing that others say too."""
        run: Event | None = None
        for encoded in sent:
            value = None if any(mark in encoded for mark in MARKS) else orjson.loads(encoded)
            if run is not None and isinstance(value, dict) and _continues(value, run):
                run["delta"][EACH].append(value["delta"])
                self._n += 1
                continue
            if run is not None:
                yield _ended(run)
                run = None
            if not isinstance(value, dict):
                yield encoded
            elif isinstance(value.get("delta"), str):
                run = {**value, "delta": {EACH: [value["delta"]]}}
            else:
                once = {name: self._field(name, inner) for name, inner in value.items()}
                yield encoded if once == value else once
            self._n += 1
        if run is not None:
            yield _ended(run)

    def _field(self, name: str, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value, name) if name in TEXTS else value
        if not isinstance(value, dict) or name not in ("item", "part", "response"):
            return value
        encoded = orjson.dumps(value)
        if len(encoded) < WORTH_BYTES:
            return value
        if name != "part":
            if (before := self._values.get(encoded)) is not None:
                return {SAME: before}
            self._values[encoded] = [self._n, name]
        if name == "response":
            output = value.get("output")
            return {**value, "output": [*map(self._item, output)]} if isinstance(output, list) else value
        once = self._texts_in(value)
        return once if len(orjson.dumps(once)) < self.limit else value

    def _item(self, item: Any) -> Any:
        before = self._values.get(orjson.dumps(item))
        return item if before is None else {SAME: before}

    def _texts_in(self, value: Event) -> Event:
        """An item or a part by the texts that were said before."""
        return {
            name: self._text(inner)
            if name in TEXTS and isinstance(inner, str)
            else [self._texts_in(part) if isinstance(part, dict) else part for part in inner]
            if name in PARTS and isinstance(inner, list)
            else inner
            for name, inner in value.items()
        }

    def _text(self, text: str, name: str = "") -> Any:
        if len(text) < WORTH_BYTES:
            return text
        if (before := self._texts.get(text)) is not None:
            return {SAME: before}
        if name:
            self._texts[text] = [self._n, name]
        return text


def _continues(value: Event, run: Event) -> bool:
    """Whether ``value`` is one delta more of the run: all fields in their order, and the next number."""
    if [*value] != [*run] or not isinstance(value["delta"], str):
        return False
    number, n = run.get("sequence_number"), len(run["delta"][EACH])
    if number is not None and value["sequence_number"] != number + n:
        return False
    return all(value[name] == run[name] for name in value if name not in ("delta", "sequence_number"))


def _ended(run: Event) -> Event:
    [*deltas] = run["delta"][EACH]
    return run if len(deltas) > 1 else {**run, "delta": deltas[0]}


def each(event: Event) -> list[Event]:
    """The events that one stands for. Raises ``ValueError``."""
    deltas, number = event["delta"][EACH], event.get("sequence_number")
    if not isinstance(deltas, list) or not (number is None or type(number) is int):
        raise ValueError(f"{EACH!r} should be an array of strings, in an event with a number or none")
    numbers = [{} if number is None else {"sequence_number": number + n} for n in range(len(deltas))]
    return [{**event, **own, "delta": delta} for own, delta in zip(numbers, deltas, strict=True)]


def same(mark: Event, before: Sequence[Any]) -> Any:
    """What ``mark`` stands for. Raises ``ValueError``."""
    match mark[SAME]:
        case [int(n), str(name)] if 0 <= n < len(before) and isinstance(before[n], dict) and name in before[n]:
            return before[n][name]
    raise ValueError(f"{SAME!r} should name an event before on its line and a field of that, not {mark[SAME]!r}")


def texts_again(value: Event, before: Sequence[Any]) -> Event:
    """An item or part with the texts that it refers to. Raises ``ValueError``."""
    again = value.copy()
    for name in TEXTS:
        if type(inner := value.get(name)) is dict and is_mark(inner, SAME):
            again[name] = same(inner, before)
    for name in PARTS:
        if (inner := value.get(name)) and type(inner) is list:
            again[name] = [texts_again(part, before) if type(part) is dict else part for part in inner]
    return again
