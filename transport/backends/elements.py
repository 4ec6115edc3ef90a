"""Elements of a JSON array that a conversation only appends to, kept as a few long byte strings that its forks share."""

from bisect import bisect_right
from collections.abc import Iterable

from attrs import define, field, frozen

MERGED = 64
"""Strings that become one: a request of a thousand turns is some ten of them and a few short ones, not two thousand."""


@define(eq=False)
class _Run:
    """Strings in order, the older of them merged; each byte is copied once for that.

    Attributes:
        ends: bytes up to the end of each.
        n_merged: how many, from the first, are not merged again.
    """

    pieces: list[bytes] = field(factory=list)
    ends: list[int] = field(factory=list)
    n_merged: int = 0

    @property
    def n_bytes(self) -> int:
        return self.ends[-1] if self.ends else 0

    def append(self, piece: bytes) -> None:
        self.ends.append(self.n_bytes + len(piece))
        self.pieces.append(piece)
        if len(self.pieces) - self.n_merged >= MERGED:
            self.pieces[self.n_merged :] = [b"".join(self.pieces[self.n_merged :])]
            self.ends[self.n_merged :] = self.ends[-1:]
            self.n_merged += 1

    def until(self, end: int) -> list[bytes]:
        """The strings of the first ``end`` bytes."""
        n = bisect_right(self.ends, end)
        found, begin = self.pieces[:n], self.ends[n - 1] if n else 0
        if begin < end:
            found.append(self.pieces[n][: end - begin])
        return found

    def fork(self, end: int) -> "_Run":
        forked = _Run()
        for piece in self.until(end):
            forked.pieces.append(piece)
            forked.ends.append(forked.n_bytes + len(piece))
        forked.n_merged = min(self.n_merged, len(forked.pieces))
        return forked


@frozen(eq=False, repr=False)
class Elements:
    """A beginning of a run: never changes, whoever goes on from it.

    Attributes:
        n_bytes: of all elements, each with a comma before it.
    """

    n_bytes: int = 0
    _run: _Run = field(factory=_Run)

    def plus(self, encoded: Iterable[bytes]) -> "Elements":
        """These elements and more. The first to go on from here appends; others share what was there."""
        added = b"".join([b"," + element for element in encoded])
        if not added:
            return self
        run = self._run if self._run.n_bytes == self.n_bytes else self._run.fork(self.n_bytes)
        run.append(added)
        return Elements(run.n_bytes, run)

    def pieces(self) -> list[bytes]:
        """Strings that make up all elements, each of these with a comma before it."""
        return self._run.until(self.n_bytes)
