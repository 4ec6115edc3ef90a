"""What a stub can play: every recorded take under its rules, found by what it answers."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from attrs import define, field, frozen

from turntape.core.seam import StartSample
from turntape.core.session import Session

from .fixture import Fixture
from .packing import encode
from .reading import Reader, Reading
from .reconstruction import not_replayable
from .rules import Ruleset
from .secrets import DEFAULT, Masker
from .takes import NewSession, Take, takes

Key = tuple[str, str, bytes]
"""Model, conversation and settings, as far as they are compared exactly."""


@frozen(eq=False)
class Asked:
    """A request under rules.

    Attributes:
        warned: settings that may differ, which is then said.
    """

    model: str
    reading: Reading
    settings: bytes
    warned: bytes

    @property
    def key(self) -> Key:
        return self.model, self.reading.fold.key, self.settings


@define(eq=False)
class Recorded:
    """A take under its rules.

    Attributes:
        order: its place among all takes.
        number: of the turn, as ``turntape show`` counts those of its fixture.
        before: the turn before it on its lane that came to an end; None for the first.
    """

    take: Take
    order: int
    number: int
    asked: Asked
    before: "Recorded | None" = None

    @property
    def where(self) -> str:
        return self.take.where

    @property
    def lane(self) -> str:
        name = stream_id(self.take.start)
        return f"session {self.take.session}" + (f", lane {name}" if name is not None else "")


@define(eq=False)
class Shelf:
    """The takes that share rules, in recorded order."""

    reader: Reader
    recorded: list[Recorded] = field(factory=list)
    by_key: dict[Key, list[Recorded]] = field(factory=dict)

    def read(self, start: StartSample) -> Asked:
        """A live request as the rules of this shelf see it."""
        reader = self.reader
        reading = reader.read(start.context, start.request.instructions)
        model = "" if "model" in reader.rules.ignored | reader.rules.warned else start.model
        settings = reader.settings(start, reading.learned)
        return Asked(model, reading, settings, reader.warned(start, reading.learned))

    def add(self, recorded: Recorded) -> None:
        self.recorded.append(recorded)
        self.by_key.setdefault(recorded.asked.key, []).append(recorded)


@define(eq=False)
class Library:
    """Every take of all fixtures, on shelves by their rules.

    Args:
        rules: hold for every fixture, after its own.
        masker: what it hides in a recording it hides in requests, before they are compared.

    Attributes:
        models: those recorded, in the order in which they occur.
        rules_used: every rule of every shelf.
        not_replayable: what a relay recorded and no take can say, a line for each.
    """

    rules: Sequence[Any] = ()
    new_session: NewSession = Session
    masker: Masker = DEFAULT
    shelves: dict[bytes, Shelf] = field(factory=dict)
    fixtures: list[Fixture] = field(factory=list)
    models: dict[str, None] = field(factory=dict)
    rules_used: list[Any] = field(factory=list)
    not_replayable: list[str] = field(factory=list)
    _n_takes: int = 0

    def add(self, fixture: Fixture) -> None:
        """Put a fixture's takes on their shelves.

        Raises:
            ReplayError: it cannot be replayed, or its rules cannot be used.
        """
        self.fixtures.append(fixture)
        found = takes(fixture, self.new_session)
        self.not_replayable += [f"{fixture.name}:{one.line}: {one.problem}" for one in not_replayable(fixture)]
        numbers = {id(take): n for n, take in enumerate(sorted(found, key=lambda take: take.session), 1)}
        before: dict[tuple[int, str | None], Recorded] = {}
        for take in found:
            self.models.setdefault(take.start.model)
            own = [*take.rules, *self.rules]
            self.rules_used += [rule for rule in own if rule not in self.rules_used]
            shelf = self.shelves.setdefault(encode(own), Shelf(Reader(Ruleset.of(own), self.masker)))
            lane = take.session, stream_id(take.start)
            recorded = Recorded(take, self._n_takes, numbers[id(take)], shelf.read(take.start), before.get(lane))
            self._n_takes += 1
            shelf.add(recorded)
            if take.whole:
                before[lane] = recorded

    @property
    def recorded(self) -> Iterator[Recorded]:
        return (one for shelf in self.shelves.values() for one in shelf.recorded)

    @property
    def turns(self) -> list[Recorded]:
        """Those that came to an end, in recorded order: the ones to be played."""
        return sorted((one for one in self.recorded if one.take.whole), key=lambda one: one.order)

    def matching(self, start: StartSample) -> list[tuple[Recorded, Asked]]:
        """Every take that answers ``start``, in recorded order, with the request as its rules see it."""
        found: list[tuple[Recorded, Asked]] = []
        for shelf in self.shelves.values():
            asked = shelf.read(start)
            found += [(one, asked) for one in shelf.by_key.get(asked.key, ())]
        return sorted(found, key=lambda pair: pair[0].order)


def stream_id(start: StartSample) -> str | None:
    """The lane that a request named."""
    name = start.request.raw.get("stream_id")
    return name if isinstance(name, str) else None


def fixtures_of(paths: Iterable[Any]) -> Iterator[Fixture]:
    return (path if isinstance(path, Fixture) else Fixture.load(path) for path in paths)
