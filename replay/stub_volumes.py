"""The recordings of a stub on disk: which of them are in memory, and how one is read again."""

import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from attrs import define, field

from .errors import FixtureUnreadable
from .fixture import Fixture
from .requests import NotReplayable
from .stub_index import Index
from .takes import NewSession, Take, takes

KEPT_BYTES = 8_000_000
"""Bytes of recordings whose takes are kept in memory, where they need about six times as much; ours."""


@define(eq=False)
class Shelved:
    """Takes of the files that were needed last."""

    _takes: "OrderedDict[Volume, list[Take]]" = field(factory=OrderedDict)
    _n_bytes: int = 0

    def of(self, volume: "Volume", read: Callable[[], list[Take]]) -> list[Take]:
        if volume in self._takes:
            self._takes.move_to_end(volume)
            return self._takes[volume]
        found = self._takes[volume] = read()
        self._n_bytes += volume.n_bytes
        while self._n_bytes > KEPT_BYTES and len(self._takes) > 1:
            dropped, _ = self._takes.popitem(last=False)
            self._n_bytes -= dropped.n_bytes
        return found


@define(eq=False)
class Volume:
    """One fixture.

    Args:
        source: a file, or a recording that is in memory and stays there.
        number: its place among all, from 0.
        name: of the source, for messages.

    Attributes:
        n_turns: how many came to an end.
        n_bytes: size of the file.
        lost: what of a relay's recording is no take, once it was read.
    """

    source: Path | Fixture
    number: int
    name: str
    _shelved: Shelved
    _new_session: NewSession
    n_turns: int = 0
    n_bytes: int = 0
    lost: list[NotReplayable] = field(factory=list)
    _index: Index | None = None
    _written_ns: int | None = None  # when the file was written, as it was found first
    _held: list[Take] | None = None  # of a recording in memory

    def look(self) -> Index | None:
        """The file's own index, if it has one that can be relied on. Raises ``FixtureUnreadable``."""
        if not isinstance(self.source, Fixture):
            self._index = Index.of(self._content(self.source), self.name)
        return self._index

    def opening(self) -> list[Take] | None:
        """What can be asked of it before anything else, without answers; None if only reading all of it would tell.

        Raises:
            ReplayError: it cannot be read or replayed.
        """
        assert self._index is not None and not isinstance(self.source, Fixture), "only a file with an index is unread"
        content = self._index.opening(self._content(self.source))
        return None if content is None else takes(Fixture.parse(content, name=self.name), self._new_session)

    def takes(self) -> list[Take]:
        """All of them, read again if they were put away.

        Raises:
            ReplayError: the file cannot be read or replayed, or is not what it was.
        """
        if not isinstance(self.source, Fixture):
            return self._shelved.of(self, self._read)
        if self._held is None:
            self.lost = []
            self._held = takes(self.source, self._new_session, self.lost)
        return self._held

    def _read(self) -> list[Take]:
        assert not isinstance(self.source, Fixture)
        fixture = Fixture.parse(self._content(self.source), name=self.name)
        lost: list[NotReplayable] = []
        found = takes(fixture, self._new_session, lost)
        self.lost = lost
        fixture.lines, fixture.blobs = [], {}  # each take names its fixture, and nothing here needs its lines any more
        return found

    def _content(self, path: Path) -> bytes:
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                content = file.read()
        except OSError as exc:
            raise FixtureUnreadable(self.name, 0, f"cannot be read: {exc.strerror}.") from None
        if self._written_ns is None:
            self._written_ns, self.n_bytes = status.st_mtime_ns, len(content)
        elif (self._written_ns, self.n_bytes) != (status.st_mtime_ns, len(content)):
            raise FixtureUnreadable(self.name, 0, "has changed since the stub began; start the stub again.")
        return content
