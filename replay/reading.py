"""Conversations under rules: the form in which two that lawfully differ are equal bytes."""

import json
import re
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson
from attrs import field, frozen

from turntape.core.canonical import Fold, Item, canonical
from turntape.core.context import Context
from turntape.core.seam import StartSample

from .rules import VALUE, Learn, Replace, Ruleset
from .secrets import DEFAULT, Masker

SHORTEST_LEARNED = 2
"""A shorter value, such as the folder "/", is replaced where it was learned and nowhere else."""

KNOWN_BYTES = 4 << 20
"""Of items whose form under the rules is known at most, encoded: those of the histories that clients send again. Ours."""

NEVER_CHANGED = frozenset({"type", "role", "call_id"})
"""Keys of an item whose values say what it is: no rule reaches them."""

DELIVERY = frozenset(
    {
        "type",
        "input",
        "stream",
        "stream_id",
        "stream_options",
        "generate",
        "store",
        "background",
        "previous_response_id",
        "response_id",
        "model",
    }
)
"""Fields of a request that say how it is sent, kept or continued, and not what is asked; the model is compared apart."""


@frozen
class Learned:
    """Values learned from one conversation, and what each stands for; the first of a rule has its plain placeholder.

    Attributes:
        values: value and placeholder, in the order in which they were learned.
        anywhere: matches each value that is replaced anywhere; None if there is none.
        named: placeholder of each such match.
    """

    values: tuple[tuple[str, str], ...] = ()
    anywhere: re.Pattern[str] | None = field(default=None, eq=False, repr=False)
    named: dict[str, str] = field(factory=dict, eq=False, repr=False)

    def and_from(self, text: str, rules: Sequence[Learn]) -> "Learned":
        known = dict(self.values)
        for rule in rules:
            for match in rule.pattern.finditer(text):
                value = match[VALUE]
                if value and value not in known:
                    n = sum(name == rule.with_ or name.startswith(rule.with_ + "#") for name in known.values())
                    known[value] = f"{rule.with_}#{n + 1}" if n else rule.with_
        if len(known) == len(self.values):
            return self
        named = {json_form(value): placeholder for value, placeholder in known.items()} | known
        return Learned(tuple(known.items()), occurrences(known), named)

    def placeholder(self, value: str) -> str:
        return self.named.get(value, value)


def occurrences(values: Iterable[str]) -> re.Pattern[str] | None:
    """Matches any of ``values`` as a whole name: "/src/a" also in "/src/a/b" and "/src/a.", not in "/src/ab" or "/src/a.c".

    The longest first; as it is, and as it is written inside a JSON text.
    """
    forms = {form for value in values if len(value) >= SHORTEST_LEARNED for form in (value, json_form(value))}
    if not forms:
        return None
    return re.compile("(?:" + "|".join(map(re.escape, sorted(forms, key=lambda f: (-len(f), f)))) + r")(?![\w-]|\.\w)")


def json_form(text: str) -> str:
    """``text`` as it stands inside a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


@frozen(eq=False)
class State:
    """How far a conversation has come after one item: ``key`` names all of it.

    Attributes:
        item: that item, as it is compared.
        calls: the number of each call id that it may name.
    """

    key: str
    item: Item
    calls: Mapping[str, int]

    @property
    def form(self) -> bytes:
        """The canonical form of the item alone: made when it is asked for, which is where something differs."""
        return canonical(self.item, self.calls)


@frozen(eq=False, repr=False)
class Reading:
    """A conversation under rules.

    Attributes:
        parent: the reading that this one continues, or None if it was read from its beginning.
        states: after each item that counts, since ``parent``.
    """

    seed: Learned
    learned: Learned
    fold: Fold
    parent: "Reading | None"
    states: tuple[State, ...]

    @property
    def all_states(self) -> list[State]:
        readings: list[Reading] = []
        reading: Reading | None = self
        while reading is not None:
            readings.append(reading)
            reading = reading.parent
        return [state for reading in reversed(readings) for state in reading.states]


class Reader:
    """Reads conversations under one ruleset. An item is read once, unless a later one teaches what it held.

    Args:
        masker: what it hides is hidden here too, so that a masked recording is equal to the live request.
    """

    def __init__(self, rules: Ruleset, masker: Masker = DEFAULT) -> None:
        self.rules, self._masker = rules, masker
        self._readings: weakref.WeakKeyDictionary[Context, Reading] = weakref.WeakKeyDictionary()
        self._lessons: dict[
            tuple[bytes, Learned], Learned
        ] = {}  # what is known after an item; both bounded: see _know()
        self._items: dict[tuple[bytes, Learned], Item] = {}
        self._known_bytes = 0
        self._settings: dict[tuple[bytes, Learned], bytes] = {}  # bounded: see settings()

    def read(self, context: Context, instructions: str | None = None) -> Reading:
        """
        Args:
            instructions: of the request: values are learned from them first.
        """
        seed = Learned().and_from(instructions or "", self.rules.learn)
        unread: list[Context] = []
        reading: Reading | None = None
        for link in context.links():
            known = self._readings.get(link)
            if known is not None and known.seed == seed:
                reading = known
                break
            unread.append(link)
        for link in reversed(unread):
            reading = self._extended(reading, seed, link)
            self._readings[link] = reading
        assert reading is not None
        return reading

    def _extended(self, before: Reading | None, seed: Learned, link: Context) -> Reading:
        known = learned = seed if before is None else before.learned
        if self.rules.learn:
            for item in link.items:
                learned = self._learned(item, learned)
        if before is not None and learned != known:  # what was learned now may stand in what was read before
            return self._from(None, seed, learned, Fold(), link.items_after(None))
        fold = Fold() if before is None else before.fold
        return self._of_one_item(before, seed, learned, fold, link) or self._from(
            before, seed, learned, fold, link.items
        )

    def _of_one_item(
        self, before: Reading | None, seed: Learned, learned: Learned, fold: Fold, link: Context
    ) -> Reading | None:
        """``link``, whose fold is known already, where it adds one item and no rule has changed a thing so far."""
        if len(link.items) != 1 or fold.key != ("" if link.parent is None else link.parent.fold.key):
            return None
        (item,) = link.items
        if item.type == "reasoning" or self.item(item, learned) is not item:
            return None
        return Reading(seed, learned, link.fold, before, (State(link.fold.key, item, _calls_of(item, fold)),))

    def _from(
        self, before: Reading | None, seed: Learned, learned: Learned, fold: Fold, items: Iterable[Item]
    ) -> Reading:
        states: list[State] = []
        for item in items:
            if item.type == "reasoning":
                continue
            plain = self.item(item, learned)
            calls = _calls_of(item, fold)
            fold = fold.add(plain)
            states.append(State(fold.key, plain, calls))
        return Reading(seed, learned, fold, before, tuple(states))

    def _learned(self, item: Item, before: Learned) -> Learned:
        """What is known after ``item``."""
        if (known := self._lessons.get((item.encoded, before))) is not None:
            return known
        learned = before
        for text in _strings(item.value):
            learned = learned.and_from(text, self.rules.learn)
        self._know(item)
        self._lessons[item.encoded, before] = learned
        return learned

    def item(self, item: Item, learned: Learned) -> Item:
        """``item`` masked, with placeholders for what may differ."""
        if (known := self._items.get((item.encoded, learned))) is not None:
            return known
        plain = self._plain_item(item, learned)
        self._know(item)
        self._items[item.encoded, learned] = plain
        return plain

    def _know(self, item: Item) -> None:
        """Make room for ``item``: a client without a chain sends it again with each request."""
        self._known_bytes += len(item.encoded)
        if self._known_bytes > KNOWN_BYTES:
            self._lessons.clear()
            self._items.clear()
            self._known_bytes = len(item.encoded)

    def _plain_item(self, item: Item, learned: Learned) -> Item:
        encoded = item.encoded.decode()
        if (masked := self._masker.text(encoded)) is not encoded:
            item = Item.decode(masked.encode())
        rules = [rule for rule in self.rules.replace if not rule.items or item.type in rule.items]
        if not rules and not self.rules.learn:
            return item
        return Item.of(self._plain(item.value, (), rules, learned))

    def settings(self, start: StartSample, learned: Learned) -> bytes:
        """What is asked beside the conversation, as one JSON object with sorted keys; nulls count as absent."""
        uncompared = DELIVERY | self.rules.ignored | self.rules.warned
        exact = {
            name: value for name, value in start.request.raw.items() if value is not None and name not in uncompared
        }
        return self._plain_settings(exact, learned)

    def warned(self, start: StartSample, learned: Learned) -> bytes:
        """Those settings, and the model, that may differ if it is said."""
        raw = start.request.raw
        warned = {name: raw[name] for name in sorted(self.rules.warned - DELIVERY) if raw.get(name) is not None}
        plain = self._plain_settings(warned, learned)
        if "model" not in self.rules.warned:
            return plain
        return orjson.dumps({"model": start.model, **orjson.loads(plain)}, option=orjson.OPT_SORT_KEYS)

    def _plain_settings(self, asked: dict[str, Any], learned: Learned) -> bytes:
        encoded = orjson.dumps(asked, option=orjson.OPT_SORT_KEYS)
        if (known := self._settings.get((encoded, learned))) is not None:
            return known
        if len(self._settings) >= 64:  # an agent has one or two; nothing depends on the number
            self._settings.clear()
        rules = [rule for rule in self.rules.replace if not rule.items]
        masked = orjson.loads(self._masker.text(encoded.decode()))
        plain = orjson.dumps(self._plain(masked, (), rules, learned), option=orjson.OPT_SORT_KEYS)
        self._settings[encoded, learned] = plain
        return plain

    def _plain(self, value: Any, path: tuple[str, ...], rules: Sequence[Replace], learned: Learned) -> Any:
        if isinstance(value, str):
            return self._plain_text(value, path, rules, learned)
        if isinstance(value, dict):
            return {
                name: inner if not path and name in NEVER_CHANGED else self._plain(inner, (*path, name), rules, learned)
                for name, inner in value.items()
            }
        if isinstance(value, list):
            return [self._plain(inner, (*path, str(n)), rules, learned) for n, inner in enumerate(value)]
        return value

    def _plain_text(self, text: str, path: tuple[str, ...], rules: Sequence[Replace], learned: Learned) -> str:
        for lesson in self.rules.learn:
            if lesson.pattern.search(text):
                text = lesson.pattern.sub(lambda match: _with_value(match, learned), text)
        if learned.anywhere is not None:
            text = learned.anywhere.sub(lambda match: learned.named[match[0]], text)
        for rule in rules:
            if not rule.at or _at(path, rule.at):
                text = rule.pattern.sub(rule.with_, text)
        return text


def _calls_of(item: Item, fold: Fold) -> Mapping[str, int]:
    """The number of each call id that ``item`` may name, where ``fold`` is what came before it."""
    if item.call_id is not None and item.opens_call:
        return {**fold.open_calls, item.call_id: fold.n_calls + 1}
    return fold.open_calls


def _with_value(match: re.Match[str], learned: Learned) -> str:
    start, end = match.span(VALUE)
    whole, offset = match[0], match.start()
    return whole[: start - offset] + learned.placeholder(match[VALUE]) + whole[end - offset :]


def _at(path: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    return len(path) == len(wanted) and all(w in ("*", p) for p, w in zip(path, wanted, strict=True))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)
