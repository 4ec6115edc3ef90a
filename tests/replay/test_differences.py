"""What a miss says: the place, both sides, and rules that let this difference pass and no more."""

import re

import pytest

from turntape.replay.differences import allowing_rules, differences, shown

VALUE = r"""[^\s"'=,;()<>\[\]{}]*"""


def suggested(one: str, other: str) -> list[str]:
    return [rule["pattern"] for rule in allowing_rules("message", [*differences({"a": one}, {"a": other})])]


@pytest.mark.parametrize(
    "one, other, patterns",
    [
        ("Took 12 ms", "Took 7 ms", [r"Took \S+"]),
        ("12 files", "13 files", [r"(?m)^\S+ files"]),
        ("a: 1\nb: 2\nsame", "a: 3\nb: 4\nsame", [r"a: \S+", r"b: \S+"]),
        ('{"id":"r_8","ok":1}', '{"id":"r_9z","ok":1}', [r'\{"id":"' + VALUE]),
        ("took elapsed=1s, n=3", "took elapsed=22s, n=3", ["took elapsed=" + VALUE]),
        ("Monday 12 files", "Tuesday 13 files", []),  # what stands behind may be another number the next time
        ("12", "13", []),  # a rule would let every word pass
        ("one thing", "quite another, longer thing", []),
        ("Took 12 ms", "Took 7 ms more", []),
    ],
)
def test_a_suggested_rule_is_narrow_and_enough(one: str, other: str, patterns: list[str]) -> None:
    """It names the words around the difference; where there are none, nothing is suggested."""
    assert suggested(one, other) == patterns
    for pattern in patterns:
        one, other = re.sub(pattern, "…", one), re.sub(pattern, "…", other)
    assert (one == other) is bool(patterns)


def test_a_structural_difference_has_no_rule() -> None:
    """Only texts can be replaced."""
    for one, other in (({"a": 1}, {"a": 2}), ({"a": "x"}, {}), ({"a": "b 1", "c": 1}, {"a": "b 2", "c": 2})):
        assert allowing_rules("message", [*differences(one, other)]) == []


def test_every_place_is_found_and_long_values_are_cut() -> None:
    """Missing keys and elements, other kinds, other values; five are shown."""
    one = {"a": [1, {"b": "x" * 500 + "1"}], "c": None, "same": 0}
    other = {"a": [True, {"b": "x" * 500 + "2"}, 3], "d": {}, "same": 0}
    found = [*differences(one, other)]
    assert [".".join(difference.path) for difference in found] == ["a.0", "a.1.b", "a.2", "c", "d"]
    lines = shown(found).splitlines()[1:]
    assert lines[0].strip() == "a.0: recorded 1, got true"
    assert lines[1].strip() == f'a.1.b: recorded …"{"x" * 40}1", got …"{"x" * 40}2"'
    assert lines[2].strip() == "a.2: recorded nothing, got 3"
    assert shown(found * 2).endswith("and 5 more")
