"""What a stub says of a request that no recorded turn answers: the nearest one, where they part, what would let it pass."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import orjson
from attrs import frozen

from turntape.core.seam import StartSample

from .differences import Difference, allowing_rules, differences, shown
from .reading import State
from .stub_library import Asked, Recorded, Shelf

MAX_ITEMS = 5
"""Differing items of one conversation that are shown; ours."""

MAX_RULES = 10
"""Rules proposed for one request; one that needs more is another conversation. Ours."""


@frozen
class Ways:
    """How it is said that something may differ, where the stub was started.

    Attributes:
        ignore: of settings, by their names.
        rules: of a JSON array of rules.
    """

    ignore: Callable[[Sequence[str]], str]
    rules: Callable[[str], str]


COMMAND_LINE = Ways(
    lambda fields: " ".join(f"--ignore {shlex.quote(field)}" for field in fields),
    lambda rules: f"--rules FILE, a file with {rules}",
)


def too_early(recorded: Recorded) -> str:
    """The turn would answer, but the one before it on its lane has not been asked for."""
    before = recorded.before
    assert before is not None, "the first turn of a lane is never too early"
    return (
        f"Turn {recorded.number} is asked before turn {before.number}, at {recorded.where}: on one lane turns are played "
        f"in recorded order, and both are of {recorded.lane}. Turn {before.number} is at {before.where}."
    )


def no_answer(
    shelves: Iterable[Shelf],
    start: StartSample,
    *,
    n_runs: int | None,
    played: frozenset[int],
    ways: Ways = COMMAND_LINE,
) -> str:
    """No take answers ``start``, or every one that does has been played.

    Args:
        n_runs: how often each take could be played.
        played: takes to pass over where another one is as near.
        ways: how to let pass what differs.
    """
    best: tuple[tuple[int, bool, bool, bool, bool], Shelf, Recorded, Asked] | None = None
    for shelf in shelves:
        asked = shelf.read(start)
        states, (model, conversation, settings) = [state.key for state in asked.reading.all_states], asked.key
        for one in sorted(shelf.recorded, key=lambda one: one.order):
            n = _n_common(states, one.states)
            same = conversation == one.key[1]
            settled = (model, settings) == (one.key[0], one.key[2])
            rank = (n, same, len(states) == len(one.states), settled, one.order not in played)
            if best is None or rank > best[0]:
                best = rank, shelf, one, asked
    if best is None:  # every recording turned out to be broken
        return "There is no recorded turn to compare this request with."
    (n, same, *_), shelf, nearest, asked = best
    place = f"No recorded turn answers this request. Nearest is turn {nearest.number}, at {nearest.where}"
    recorded = nearest.asked
    if not same:
        expected, got = recorded.reading.all_states, asked.reading.all_states
        if n in (len(expected), len(got)):
            return place + _one_goes_on(expected, got)
        found = [*_differing_items(expected, got, n)]
        rules = _all_allowed(found) if len(expected) == len(got) else []
        items = "; ".join(str(item) for item in found[:MAX_ITEMS])
        more = f"; and {len(found) - MAX_ITEMS} more" if len(found) > MAX_ITEMS else ""
        settings_differ, fields, _ = _settings_differ(recorded, asked)
        too = f"\n  and {settings_differ}" if settings_differ else ""
        return f"{place}; {items}{more}{too}{_cure(ways, fields if rules else [], rules)}"
    place += ", of the same conversation"
    settings_differ, fields, narrower = _settings_differ(recorded, asked)
    if settings_differ:
        return f"{place}; {settings_differ}{_cure(ways, fields, [])}" + (
            f"\n  Or, as narrow as can be: {ways.rules(_array(narrower))}" if narrower else ""
        )
    if nearest.unheard:
        return f"{place}, whose answer could not be read when it was recorded: it is not replayable."
    if not nearest.whole:
        return f"{place}, which was cut off when it was recorded; it has been played as far as it goes."
    n_takes = len([one for one in shelf.by_key[asked.key] if one.whole])
    times = "once" if n_takes == 1 else f"{n_takes} times"
    once = "" if n_runs == 1 else f" in each of {n_runs} runs"
    return (
        f"{place}, the same in all; it was recorded {times}, and every take has been played or is being played{once}."
    )


def _n_common(one: Sequence[str], other: Sequence[str]) -> int:
    """How many leading keys are equal. They are cumulative, so equal ones need no look before them."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[middle - 1] == other[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low


def _one_goes_on(expected: Sequence[State], got: Sequence[State]) -> str:
    n = min(len(expected), len(got))
    longer = expected if len(expected) > n else got
    kind = orjson.loads(longer[n].form)["type"]
    if longer is expected:
        return f", which goes on where this conversation ends: its item {n + 1} is a {kind}, and there is none here."
    return f", which ends where this conversation goes on: item {n + 1} here is a {kind}, and there is none in it."


@frozen
class _Item:
    """One that differs, in the form that is compared."""

    number: int
    recorded: dict[str, Any]
    differences: list[Difference]
    is_of_one_type: bool

    def __str__(self) -> str:
        return f"item {self.number}, a {self.recorded['type']}, differs:{shown(self.differences)}"


def _differing_items(expected: Sequence[State], got: Sequence[State], n: int) -> Iterator[_Item]:
    """Those from the ``n``-th on. Of conversations of other lengths only that one is looked at: they may not be about the same."""
    last = len(got) if len(expected) == len(got) else n + 1
    for at in range(n, last):
        if expected[at].form != got[at].form:
            one, other = orjson.loads(expected[at].form), orjson.loads(got[at].form)
            yield _Item(at + 1, one, [*differences(one, other)], one["type"] == other["type"])


def _all_allowed(found: Sequence[_Item]) -> list[dict[str, Any]]:
    """Rules with which none of the items would differ; [] if there are none."""
    rules: list[dict[str, Any]] = []
    for item in found:
        own = allowing_rules(item.recorded["type"], item.differences) if item.is_of_one_type else []
        rules += [rule for rule in own if rule not in rules]
        if not own or len(rules) > MAX_RULES:
            return []
    return rules


def _settings_differ(recorded: Asked, asked: Asked) -> tuple[str, list[str], list[dict[str, Any]]]:
    """How, "" if they do not; names of those that do; and rules that let no more pass, if there are any."""
    if recorded.model != asked.model:
        says, fields = [f"it was recorded with model {recorded.model!r}, not {asked.model!r}"], ["model"]
    else:
        says, fields = [], []
    if recorded.settings == asked.settings:
        return "; ".join(says), fields, []
    found = [*differences(orjson.loads(recorded.settings), orjson.loads(asked.settings))]
    narrower = [] if fields else allowing_rules(None, found)
    fields += sorted({difference.path[0] for difference in found})
    return "; ".join([*says, f"its settings differ:{shown(found)}"]), fields, narrower


def _cure(ways: Ways, fields: Sequence[str], rules: Sequence[dict[str, Any]]) -> str:
    ways_out = [ways.ignore(fields)] if fields else []
    if rules:
        ways_out.append(ways.rules(_array(rules)))
    return f"\n  If that may differ: {' and '.join(ways_out)}" if ways_out else ""


def _array(rules: Sequence[dict[str, Any]]) -> str:
    return orjson.dumps(rules).decode()
