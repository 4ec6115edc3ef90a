"""Arrays that begin as an earlier one of the file: a client without a chain sends its whole history with each request."""

from collections.abc import Sequence

from attrs import define, field, frozen

KEPT = 64
"""Histories that a new one is compared with: the newest of as many conversations; ours."""

MOST_ELEMENTS = 1 << 16
"""A longer array is written as it is; ours."""


@frozen(eq=False)
class History:
    """An array of the file.

    Attributes:
        name: of its line; empty if it stands in the request itself, where no other can refer to it.
        digests: of each element.
    """

    name: str
    digests: tuple[bytes, ...]


@define(eq=False)
class Histories:
    """The arrays that the next one may go on from, oldest first."""

    _kept: list[History] = field(factory=list)

    def before(self, digests: Sequence[bytes]) -> tuple[History | None, int]:
        """The array that begins most like one of these elements, and how many of its first are the same."""
        best, most = None, 0
        for history in reversed(self._kept):
            n = _n_equal(history.digests, digests)
            if n > most:
                best, most = history, n
        return best, most

    def add(self, name: str, digests: tuple[bytes, ...], instead_of: History | None) -> None:
        """Remember an array.

        Args:
            instead_of: one that is the beginning of this.
        """
        if instead_of is not None:
            self._kept.remove(instead_of)
        self._kept.append(History(name, digests))
        del self._kept[:-KEPT]


def _n_equal(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    n = min(len(one), len(other))
    if tuple(one[:n]) == tuple(other[:n]):
        return n
    return next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
