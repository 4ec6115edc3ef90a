"""Where two JSON values part, in a few lines for a terminal, and the rule that would let them pass."""

import re
from collections.abc import Iterator
from typing import Any

import orjson
from attrs import frozen

AROUND = 40
"""Characters shown on either side of a difference."""

MAX_DIFFERENCES = 5

ABSENT = object()


@frozen
class Difference:
    """One place; ``expected`` and ``got`` are ``ABSENT`` where there is nothing."""

    path: tuple[str, ...]
    expected: Any
    got: Any

    def __str__(self) -> str:
        expected, got = excerpts(self.expected, self.got)
        return f"{'.'.join(self.path) or 'the whole'}: recorded {expected}, got {got}"


def differences(expected: Any, got: Any, path: tuple[str, ...] = ()) -> Iterator[Difference]:
    """Every place where two JSON values differ, in order."""
    if isinstance(expected, dict) and isinstance(got, dict):
        for name in [*expected, *(name for name in got if name not in expected)]:
            yield from differences(expected.get(name, ABSENT), got.get(name, ABSENT), (*path, name))
    elif isinstance(expected, list) and isinstance(got, list):
        for n in range(max(len(expected), len(got))):
            here, there = expected[n] if n < len(expected) else ABSENT, got[n] if n < len(got) else ABSENT
            yield from differences(here, there, (*path, str(n)))
    elif type(expected) is not type(got) or expected != got:
        yield Difference(path, expected, got)


def common_start(one: str, other: str) -> int:
    """How many leading characters are equal."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter
    return next(n for n in range(shorter) if one[n] != other[n])


def shown(found: list[Difference]) -> str:
    lines = [f"\n    {difference}" for difference in found[:MAX_DIFFERENCES]]
    if len(found) > MAX_DIFFERENCES:
        lines.append(f"\n    and {len(found) - MAX_DIFFERENCES} more")
    return "".join(lines)


def excerpts(expected: Any, got: Any) -> tuple[str, str]:
    """Both values as text, cut to the surroundings of their first difference."""
    if not (isinstance(expected, str) and isinstance(got, str)):
        return _short(expected), _short(got)
    start = common_start(expected, got)
    return _around(expected, start), _around(got, start)


def _short(value: Any) -> str:
    if value is ABSENT:
        return "nothing"
    encoded = orjson.dumps(value).decode()
    return encoded if len(encoded) <= 2 * AROUND else encoded[: 2 * AROUND] + "…"


def _around(text: str, place: int) -> str:
    first, last = max(0, place - AROUND), place + AROUND
    cut = orjson.dumps(text[first:last].encode("utf-8", "replace").decode()).decode()
    return ("…" if first else "") + cut + ("…" if last < len(text) else "")


def allowing_rule(item_type: str, found: list[Difference]) -> dict[str, Any] | None:
    """A ``replace`` rule with which the first difference, one of two texts, would not count; None if none could."""
    if not found or not (isinstance(found[0].expected, str) and isinstance(found[0].got, str)):
        return None
    expected, got = found[0].expected, found[0].got
    start = common_start(expected, got)
    word = re.search(r"\S*\Z", expected[:start])
    begin = word.start() if word else start
    line = expected.rfind("\n", 0, begin) + 1
    before = re.escape(expected[max(line, begin - AROUND) : begin]).replace(r"\ ", " ")
    at = ".".join("*" if name.isdigit() else name for name in found[0].path)
    for pattern in (before + r"\S+", before + r"[^\n]*", r"(?s)^.*$"):
        if re.sub(pattern, "…", expected) == re.sub(pattern, "…", got):
            break
    return {"rule": "replace", "items": [item_type], "at": at, "pattern": pattern, "with": "…"}
