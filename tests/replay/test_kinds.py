"""Kinds of values: what is one, what is none, and which is proposed for a difference."""

from typing import Any

import pytest

from turntape.replay.differences import allowing_rules, differences
from turntape.replay.kinds import KINDS, kind_of_difference, placeholder


@pytest.mark.parametrize(
    ("kind", "text", "plain"),
    [
        ("uuid", "id=6f1b2c3d-0000-4000-8000-00000000000A.", "id=<uuid>."),
        ("uuid", "6f1b2c3d-0000-4000-8000", "6f1b2c3d-0000-4000-8000"),
        ("hash", "commit 0b8811f and d41d8cd98f00b204e9800998ecf8427e", "commit <hash> and <hash>"),
        ("hash", "0b8811 deed 0xabcdef12 Abcdef1", "0b8811 deed 0xabcdef12 Abcdef1"),
        ("date", "on 2026-11-29, Nov 29, 2026, Sunday, 29 November 2026 or 11/29/2026", "on <date>, <date>, <date> or <date>"),
        ("date", "2026-11-291 v1.2.3 12/13", "2026-11-291 v1.2.3 12/13"),
        ("time", "at 18:59, 18:59:01.123 or 6:59 PM", "at <time>, <time> or <time>"),
        ("time", "2026-11-29T18:59:01Z and 2026-11-29 18:59:01+01:00", "<time> and <time>"),
        ("time", "Sun Nov 29 18:59:01 UTC 2026", "<time>"),
        ("time", "file.py:18:59 line 10:2", "file.py:18:59 line 10:2"),
        ("path", "in /tmp/x-1/a.py, '/home/ada' and ~/.config/t.", "in <path>, '<path>' and <path>."),
        ("path", r"at C:\work\a.py now", "at <path> now"),
        ("path", "https://host/a and and/or 1/2 src/a", "https://host/a and and/or 1/2 src/a"),
        ("number", "12 ms, -0.5s, 1,024 of 1e-7", "<number> ms, <number>s, <number> of <number>"),
        ("number", "v2 x3.4", "v2 x3.4"),
    ],
)  # fmt: skip
def test_a_kind_is_known_in_a_text(kind: str, text: str, plain: str) -> None:
    """And only where its value stands by itself."""
    assert KINDS[kind].sub(placeholder(kind), text) == plain


@pytest.mark.parametrize(
    ("expected", "got", "kind"),
    [
        ("a 6f1b2c3d-0000-4000-8000-000000000001", "a 00000000-1111-4222-8333-444444444444", "uuid"),
        ("at 0b8811f", "at 318bf02", "hash"),
        ("on 2026-11-29 and 2026-11-30", "on 2027-01-02 and 2027-01-03", "date"),
        ("at 2026-11-29T18:59:01Z", "at 2026-11-29T20:00:00Z", "time"),
        ("in /tmp/a/b", "in /tmp/c", "path"),
        ("exit code 0", "exit code 1", None),
        ("one", "two", None),
        ("on 2026-11-29", "on 2026-11-29 and 2026-11-30", None),
    ],
)
def test_the_kind_of_a_difference(expected: str, got: str, kind: str | None) -> None:
    """All that differs must be of it; a number is never proposed, since it may be an exit code."""
    assert kind_of_difference(expected, got) == kind


def rules(one: Any, other: Any, item_type: str | None = "message") -> list[dict[str, Any]]:
    return allowing_rules(item_type, [*differences(one, other)])


def test_a_miss_proposes_the_kind() -> None:
    """For its place; for settings without an item's type; for several places a rule each."""
    one = {"content": [{"text": "at 18:59:01"}, {"text": "took 12 ms"}]}
    other = {"content": [{"text": "at 20:00:59"}, {"text": "took 7 ms"}]}
    place = {"items": ["message"], "at": "content.*.text"}
    assert rules(one, other) == [
        {"rule": "replace", "kind": "time", **place},
        {"rule": "replace", **place, "pattern": r"took \S+", "with": "…"},
    ]
    settings = rules({"instructions": "It is 2026-11-29."}, {"instructions": "It is 2027-01-02."}, None)
    assert settings == [{"rule": "replace", "kind": "date", "at": "instructions"}]
