"""Where any of some literals stands in a text: all of them in one pass, a window of the text at a time."""

import re
from collections.abc import Iterable, Iterator
from functools import partial

from ahocorasick_rs import AhoCorasick, Implementation
from attrs import define, field

WINDOW = 1 << 16
"""Characters that are searched at once: a text that is full of literals fills no memory with where they stand."""

_SURROGATE = re.compile("[\ud800-\udfff]")  # the automaton reads UTF-8, which has none


@define(eq=False)
class Literals:
    """Finds them by an automaton: no text costs more than one step for each of its bytes, and one for each place.

    Attributes:
        heads: those that begin with no other one, which is found in their place.
        longest: characters of the longest.
    """

    heads: tuple[str, ...]
    longest: int
    _automaton: AhoCorasick = field(repr=False)

    @classmethod
    def of(cls, literals: Iterable[str]) -> "Literals":
        """
        Args:
            literals: at least one, and none of them empty.
        """
        distinct = {*literals}
        heads = tuple(sorted(head for head in distinct if not any(head[:n] in distinct for n in range(1, len(head)))))
        automaton = AhoCorasick([*map(_encodable, heads)], implementation=Implementation.DFA)
        return cls(heads, max(map(len, heads)), automaton)

    def places(self, text: str, start: int = 0) -> Iterator[tuple[int, str]]:
        """Where one begins at ``start`` or later, and which: in order, also those that overlap.

        A lone surrogate stands for any other.
        """
        for begin in range(start, len(text), WINDOW):
            found = self._found_at(text, begin)
            for at, which in sorted((at, which) for which, at, _ in found if at < WINDOW):
                yield begin + at, self.heads[which]

    def stand_in(self, text: str, start: int = 0) -> bool:
        """Whether there is any such place."""
        return any(map(partial(self._found_at, text), range(start, len(text), WINDOW)))

    def _found_at(self, text: str, begin: int) -> list[tuple[int, int, int]]:
        """The literals of one window and of its overlap with the next: each with its beginning, counted from ``begin``."""
        window = text[begin : begin + WINDOW + self.longest - 1]
        try:
            return self._automaton.find_matches_as_indexes(window, overlapping=True)
        except UnicodeEncodeError:
            return self._automaton.find_matches_as_indexes(_encodable(window), overlapping=True)


def _encodable(text: str) -> str:
    """``text``, as long as it is, without lone surrogates."""
    return _SURROGATE.sub("\ufffd", text)
