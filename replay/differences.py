"""Where two JSON values part, in a few lines for a terminal, and the rule that would let them pass."""

import re
from collections.abc import Iterator
from typing import Any

import orjson
from attrs import frozen

from .kinds import kind_of_difference
from .packing import encode

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
    encoded = encode(value).decode()
    return encoded if len(encoded) <= 2 * AROUND else encoded[: 2 * AROUND] + "…"


def _around(text: str, place: int) -> str:
    first, last = max(0, place - AROUND), place + AROUND
    cut = orjson.dumps(text[first:last].encode("utf-8", "replace").decode()).decode()
    return ("…" if first else "") + cut + ("…" if last < len(text) else "")


_VALUE = r"""[^\s"'=,;()<>\[\]{}]"""
"""What values are made of: what is quoted, stands in brackets, or behind "=" or a comma ends there."""


def allowing_rules(item_type: str | None, found: list[Difference]) -> list[dict[str, Any]]:
    """Narrow ``replace`` rules with which ``found``, which should be pairs of texts, would not count; [] if there are none.

    A rule is for a kind of value where all that differs is of one kind. Else it names what stands before the first
    differing value on its line, or after it, so that it lets no more pass.

    Args:
        item_type: of the item that differs; None for the settings.
    """
    rules: list[dict[str, Any]] = []
    for difference in found:
        own = _rules_for(item_type, difference)
        if not own:
            return []
        rules += [rule for rule in own if rule not in rules]
    return rules if len(rules) <= MAX_DIFFERENCES else []


def _rules_for(item_type: str | None, difference: Difference) -> list[dict[str, Any]]:
    expected, got = difference.expected, difference.got
    if not (isinstance(expected, str) and isinstance(got, str)):
        return []
    at = ".".join("*" if name.isdigit() else name for name in difference.path)
    place = {"at": at} if item_type is None else {"items": [item_type], "at": at}
    rules: list[dict[str, Any]] = []
    while expected != got and len(rules) < MAX_DIFFERENCES:
        if (kind := kind_of_difference(expected, got)) is not None:
            rules.append({"rule": "replace", "kind": kind, **place})
            return rules
        pattern = _around_a_value(expected, got)
        if pattern is None:
            return []
        rules.append({"rule": "replace", **place, "pattern": pattern, "with": "…"})
        before = common_start(expected, got)
        expected, got = re.sub(pattern, "…", expected), re.sub(pattern, "…", got)
        if expected != got and common_start(expected, got) <= before - AROUND:
            return []
    return rules if expected == got else []


def _around_a_value(expected: str, got: str) -> str | None:
    """Matches the first value in which the texts part wherever it stands behind the same words, or, if it begins its line,
    before the same ones: those that both texts have, without numbers, which may be others the next time."""
    place = common_start(expected, got)
    line_start = expected.rfind("\n", 0, place) + 1
    value, rest = _value_at(expected, line_start, place)
    other, other_rest = _value_at(got, line_start, place)
    before = expected[max(line_start, place - len(value) - AROUND) : _begin(expected, line_start, place)]
    plain = r"\S+" if _is_word(value, before, rest) and _is_word(other, before, other_rest) else _VALUE + "*"
    if re.search(r"\w", before):
        return _literal(before) + plain
    line = re.match(r"[^\n\d]*", rest[: common_start(rest, other_rest)])
    after = line[0][:AROUND] if line else ""
    return r"(?m)^" + _literal(before) + plain + _literal(after) if re.search(r"\w", after) else None


def _begin(text: str, line_start: int, place: int) -> int:
    found = re.search(_VALUE + r"*\Z", text[line_start:place])
    return line_start + found.start() if found else place


def _value_at(text: str, line_start: int, place: int) -> tuple[str, str]:
    """The value at ``place``, and what stands behind it."""
    begin = _begin(text, line_start, place)
    found = re.compile(_VALUE + "*").match(text, begin)
    end = found.end() if found else begin
    return text[begin:end], text[end:]


def _is_word(value: str, before: str, rest: str) -> bool:
    """White space, and nothing else, is around it."""
    return bool(value) and (not before or before[-1].isspace()) and (not rest or rest[0].isspace())


def _literal(text: str) -> str:
    return re.escape(text).replace(r"\ ", " ")
