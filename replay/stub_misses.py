"""What a stub says of a request that no recorded turn answers: the nearest one, where they part, what would let it pass."""

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from turntape.core.seam import StartSample

from .differences import allowing_rules, differences, shown
from .reading import Reading
from .stub_library import Asked, Recorded, Shelf


def too_early(recorded: Recorded) -> str:
    """The turn would answer, but the one before it on its lane has not been asked for."""
    before = recorded.before
    assert before is not None, "the first turn of a lane is never too early"
    return (
        f"Turn {recorded.number} is asked before turn {before.number}, at {recorded.where}: on one lane turns are played "
        f"in recorded order, and both are of {recorded.lane}. Turn {before.number} is at {before.where}."
    )


def no_answer(shelves: Iterable[Shelf], start: StartSample, *, n_runs: int | None, played: frozenset[int]) -> str:
    """No take answers ``start``, or every one that does has been played.

    Args:
        n_runs: how often each take could be played.
        played: takes to pass over where another one is as near.
    """
    best: tuple[tuple[int, bool, bool, bool], Shelf, Recorded, Asked] | None = None
    for shelf in shelves:
        asked = shelf.read(start)
        states, (model, conversation, settings) = [state.key for state in asked.reading.all_states], asked.key
        for one in sorted(shelf.recorded, key=lambda one: one.order):
            n = _n_common(states, one.states)
            same = conversation == one.key[1]
            settled = (model, settings) == (one.key[0], one.key[2])
            rank = (n, same, settled, one.order not in played)
            if best is None or rank > best[0]:
                best = rank, shelf, one, asked
    if best is None:  # every recording turned out to be broken
        return "There is no recorded turn to compare this request with."
    (n, same, _, _), shelf, nearest, asked = best
    place = f"No recorded turn answers this request. Nearest is turn {nearest.number}, at {nearest.where}"
    if not same:
        return place + _items_differ(n, nearest.asked.reading, asked.reading)
    place += ", of the same conversation"
    recorded = nearest.asked
    if recorded.model != asked.model:
        says = f"it was recorded with model {recorded.model!r}, not {asked.model!r}."
        return f"{place}: {says}{_would_allow({'rule': 'ignore', 'fields': ['model']})}"
    if recorded.settings != asked.settings:
        found = [*differences(orjson.loads(recorded.settings), orjson.loads(asked.settings))]
        fields = sorted({difference.path[0] for difference in found})
        rules = allowing_rules(None, found) or [{"rule": "ignore", "fields": fields}]
        return f"{place}; its settings differ:{shown(found)}{_would_allow(*rules)}"
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


def _items_differ(n: int, recorded: Reading, asked: Reading) -> str:
    expected, got = recorded.all_states, asked.all_states
    if n == len(got):
        kind = orjson.loads(expected[n].form)["type"]
        return f", which goes on where this conversation ends: its item {n + 1} is a {kind}, and there is none here."
    if n == len(expected):
        kind = orjson.loads(got[n].form)["type"]
        return f", which ends where this conversation goes on: item {n + 1} here is a {kind}, and there is none in it."
    one, other = orjson.loads(expected[n].form), orjson.loads(got[n].form)
    found = [*differences(one, other)]
    rules = allowing_rules(one["type"], found) if one["type"] == other["type"] else []
    return f"; item {n + 1}, a {one['type']}, differs:{shown(found)}{_would_allow(*rules)}"


def _would_allow(*rules: dict[str, Any]) -> str:
    shown = ",".join(orjson.dumps(rule).decode() for rule in rules)
    return f"\n  If that may differ, add to the rules of its session, or to a --rules file: {shown}" if rules else ""
