"""Literals are found wherever they stand, and a text full of them is read piece by piece."""

import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from turntape.replay.literals import WINDOW, Literals
from turntape.replay.secrets import Masker
from turntape.replay.shapes import MASK

LITERALS = Literals.of(["sk-", "sk-proj-", "csk-", "k", "aab", "aabaab", "é+", "://"])
TEXTS = st.text(st.sampled_from("skproj-cab:/é+\ud800\N{GRINNING FACE}"), max_size=60)


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.integers(0, 20))
@example("csk-aabaab\ud800sk-proj-\N{GRINNING FACE}é+", 0)
def test_every_place_is_found_in_order(text: str, start: int) -> None:
    """Overlapping ones too, beside characters of any width and lone surrogates; a longer literal as its own beginning."""
    expected = [(at, head) for at in range(start, len(text)) for head in LITERALS.heads if text.startswith(head, at)]
    assert [*LITERALS.places(text, start)] == expected
    assert LITERALS.stand_in(text, start) == bool(expected)


@pytest.mark.parametrize("filler", ["a", "é", "\ud800"])
def test_what_lies_between_two_windows_is_found_once(filler: str) -> None:
    """Wherever the border cuts it."""
    for before in range(WINDOW - 5, WINDOW + 2):
        text = filler * before + "csk-" + filler
        assert [*LITERALS.places(text)] == [(before, "csk-"), (before + 1, "sk-"), (before + 2, "k")]
        assert LITERALS.stand_in(text)


def test_a_text_that_is_full_of_literals_is_read_as_far_as_it_is_asked_for() -> None:
    """However large it is, no more than one window's places are in memory."""

    class Large(str):
        looked_at = 0

        def __getitem__(self, where: slice | int) -> str:  # type: ignore[override]
            piece = super().__getitem__(where)
            self.looked_at += len(piece)
            return piece

    text = Large("k" * (20 * WINDOW))
    places = LITERALS.places(text)
    assert [at for at, _ in itertools.islice(places, WINDOW)] == [*range(WINDOW)]
    assert text.looked_at <= WINDOW + LITERALS.longest
    assert sum(1 for _ in places) == 19 * WINDOW
    assert text.looked_at <= len(text) + 20 * LITERALS.longest


def test_a_configured_secret_may_hold_a_byte_that_is_no_text() -> None:
    """A variable's value may: Python reads such bytes as lone surrogates."""
    masker = Masker.of(values=["pa\udcffword"])
    assert masker.text("is pa\udcffword, not pa\udcfeword \udcff") == f"is {MASK}, not pa\udcfeword \udcff"
