"""Which turn of one recording corresponds to which of another, and in what the two differ."""

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

import orjson
from attrs import field, frozen

from turntape.core.canonical import canonical
from turntape.replay.packing import encode
from turntape.replay.reading import Reader
from turntape.replay.rules import Ruleset
from turntape.replay.takes import Take
from turntape.replay.tracks import Track


@frozen
class _Plain:
    """A turn as its rules let it be compared; ``number`` is its place on the page."""

    number: int
    prompt: tuple[bytes, ...]
    said: tuple[bytes, ...]
    ended: str
    model: str = field(eq=False)
    settings: bytes = field(eq=False)


def aligned(one: Sequence[Track], other: Sequence[Track]) -> list[dict[str, Any]]:
    """Every turn of both, in pairs where there are two: "a" and "b" are their places, counted over all tracks.

    "differs" names what is not the same: "prompt" (what is new in it), "answer", "outcome", "model", "settings".
    Two turns are a pair if they say the same, or if they stand at the same place between two that do.
    """
    mine, theirs = _plain(one), _plain(other)
    pairs: list[dict[str, Any]] = []
    for a, b in _paired(mine, theirs, key=_first_prompt):
        for turn, counterpart in _paired(a or [], b or [], key=lambda turn: (turn.prompt, turn.said, turn.ended)):
            pairs.append(
                {
                    "a": turn and turn.number,
                    "b": counterpart and counterpart.number,
                    "differs": _differences(turn, counterpart) if turn and counterpart else [],
                }
            )
    return pairs


def _plain(found: Sequence[Track]) -> list[list[_Plain]]:
    readers: dict[bytes, Reader] = {}
    number = 0
    plain: list[list[_Plain]] = []
    for track in found:
        row: list[_Plain] = []
        before: set[str] = set()
        for take in track.takes:
            rules = encode(take.rules)
            if rules not in readers:
                readers[rules] = Reader(Ruleset.of(take.rules))
            row.append(_read(number, take, readers[rules], before))
            number += 1
        plain.append(row)
    return plain


def _read(number: int, take: Take, reader: Reader, before: set[str]) -> _Plain:
    """
    Args:
        before: keys of the conversations that its track has had; those of this turn are added.
    """
    reading = reader.read(take.start.context, take.start.request.instructions)
    states = reading.all_states
    known = max((n for n, state in enumerate(states, 1) if state.key in before), default=0)
    before.update(state.key for state in states)
    said = [reader.item(item, reading.learned) for item in take.said()]
    fold = reading.fold
    for item in said:
        fold = fold.add(item)
    before.add(fold.key)
    failure = take.failure
    return _Plain(
        number=number,
        prompt=tuple(_without_number(state.form) for state in states[known:]),
        said=tuple(_without_number(canonical(item, {})) for item in said),
        ended=failure.code if failure else take.finish.reason if take.finish else "",
        model=take.start.model,
        settings=reader.settings(take.start, reading.learned),
    )


def _without_number(form: bytes) -> bytes:
    """A canonical form that does not say how many calls went before it."""
    value = orjson.loads(form)
    value.pop("call_id", None)
    return orjson.dumps(value)


def _paired(one: Sequence[Any], other: Sequence[Any], *, key: Any) -> Iterator[tuple[Any | None, Any | None]]:
    """Everything of both, in order: what is equal by ``key`` in pairs, and what stands between in pairs as far as it goes."""
    matcher = SequenceMatcher(None, [*map(key, one)], [*map(key, other)], autojunk=False)
    for _, i, i_end, j, j_end in matcher.get_opcodes():
        for n in range(max(i_end - i, j_end - j)):
            yield one[i + n] if i + n < i_end else None, other[j + n] if j + n < j_end else None


def _first_prompt(track: list[_Plain]) -> tuple[bytes, ...]:
    return track[0].prompt


def _differences(one: _Plain, other: _Plain) -> list[str]:
    compared = {
        "prompt": one.prompt == other.prompt,
        "answer": one.said == other.said,
        "outcome": one.ended == other.ended,
        "model": one.model == other.model,
        "settings": one.settings == other.settings,
    }
    return [name for name, same in compared.items() if not same]
