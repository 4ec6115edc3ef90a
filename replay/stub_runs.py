"""Which takes have been played: once in each run of the recording, on each lane in recorded order."""

import weakref
from collections.abc import Iterator, Sequence

from attrs import define, field

from turntape.core.context import Context
from turntape.core.seam import StartSample

from .packing import digest
from .stub_library import Asked, Recorded

Choice = tuple["Run", Recorded, Asked]

N_LINKS = 16
"""How far back in a conversation its run is looked for. A turn adds two links; further back it is a fork."""


@define(eq=False)
class Run:
    """One time that the whole recording is played.

    Attributes:
        number: counted from 1.
        playing: takes that are on their way.
        played: takes that were played to their end.
        lost: those of them whose client was gone before anybody could tell that it had heard the end.
        spent: takes without an end that were played to a client that did not leave where the recorded one did.
        ended: when takes came to their end, on Trio's clock.
        strayed: lanes whose client goes on in another order than the recorded one.
    """

    number: int
    begun: set[int] = field(factory=set)
    playing: set[int] = field(factory=set)
    played: set[int] = field(factory=set)
    lost: set[int] = field(factory=set)
    spent: set[int] = field(factory=set)
    ended: dict[int, float] = field(factory=dict)
    strayed: set[str] = field(factory=set)

    def is_free(self, recorded: Recorded) -> bool:
        order = recorded.order
        return not (order in self.playing or order in self.spent) and (order not in self.played or order in self.lost)

    def is_next(self, recorded: Recorded) -> bool:
        """Whether its turn has come: the one before it on its lane was asked for."""
        return recorded.before is None or recorded.before.order in self.begun

    def begin(self, recorded: Recorded) -> None:
        self.begun.add(recorded.order)
        self.playing.add(recorded.order)
        if recorded.before is not None:
            self.lost.discard(recorded.before.order)  # its answer was heard: the conversation goes on


@define(eq=False)
class Runs:
    """Every run so far. Each has its own cursor on every lane, so that they can go on at the same time.

    Args:
        n_turns: of one run.
        at_most: runs; None for any number.
    """

    n_turns: int
    at_most: int | None = 1
    begun: list[Run] = field(factory=list)
    _open: list[Run] = field(factory=list)  # those that have something left to play, so that many runs cost no more
    _run_of: weakref.WeakKeyDictionary[Context, Run] = field(factory=weakref.WeakKeyDictionary)

    def choose(self, start: StartSample, matching: Sequence[tuple[Recorded, Asked]]) -> Choice | None:
        """What is to answer ``start``: a take that is free and whose turn it is, in the run that its conversation began.

        Settings that are equal go before settings that may differ, and a take that came to its end goes before one that
        was cut off, since a recorded client that was cut off asked again. One that nobody had goes before one that may be lost.
        """
        for whole in (True, False):
            for run in self._candidates(start):
                found = [
                    (one, asked)
                    for one, asked in matching
                    if one.whole is whole and run.is_free(one) and run.is_next(one)
                ]
                if found:
                    one, asked = min(
                        found, key=lambda pair: (pair[0].warned != digest(pair[1].warned), pair[0].order in run.played)
                    )
                    return run, one, asked
        return None

    def ahead(self, matching: Sequence[tuple[Recorded, Asked]]) -> Recorded | None:
        """A take that answers but for its place on its lane: the turn before it has not been asked for."""
        every = self.begun or [Run(1)]
        return next((one for run in every for one, _ in matching if run.is_free(one) and not run.is_next(one)), None)

    def begin(self, start: StartSample, choice: Choice) -> None:
        run, recorded, _ = choice
        if run.number > len(self.begun):
            self.begun.append(run)
            self._open.append(run)
        run.begin(recorded)
        self._run_of[start.context] = run

    def lose(self, run: Run, recorded: Recorded) -> None:
        """``recorded`` was played, and its client is gone without a word: it may be asked for again."""
        run.lost.add(recorded.order)
        if run not in self._open:
            self._open.append(run)
            self._open.sort(key=lambda one: one.number)

    @property
    def counted(self) -> list[Run]:
        """Those that should have been played to their end: as many as were wanted, or all that began."""
        n = self.at_most or max(1, len(self.begun))
        return [*self.begun, *(Run(number) for number in range(len(self.begun) + 1, n + 1))]

    def _candidates(self, start: StartSample) -> Iterator[Run]:
        own = self._own(start)
        if own is not None:
            yield own
        self._open = [run for run in self._open if run.playing or run.lost or len(run.played) < self.n_turns]
        yield from (run for run in self._open if run is not own)
        if self.at_most is None or len(self.begun) < self.at_most:
            yield Run(len(self.begun) + 1)

    def _own(self, start: StartSample) -> Run | None:
        """The run in which an earlier turn of this conversation was played, if it came over the same connection."""
        for n, link in enumerate(start.context.links()):
            if n == N_LINKS:
                return None
            if (run := self._run_of.get(link)) is not None:
                return run
        return None
