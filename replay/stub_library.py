"""What a stub can play: every recorded take under its rules, found by what it answers."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import trio
from attrs import define, field, frozen

from turntape.core.seam import StartSample
from turntape.core.session import Session

from .errors import ReplayError
from .fixture import Fixture
from .packing import digest, encode
from .reading import Learned, Reader, Reading
from .rules import Ruleset, unknown_settings
from .secrets import DEFAULT, Masker
from .stub_volumes import Shelved, Volume
from .takes import NewSession, Take

READ_AT_START = 4_000_000
"""Bytes of recordings that are read whole at the start, about a second; of more only the indexes are. Ours."""

Key = tuple[str, str, str]
"""Model, conversation and a hash of the settings, as far as they are compared exactly."""


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
        return self.model, self.reading.fold.key, digest(self.settings)


@define(eq=False)
class Recorded:
    """A take under its rules: what it is found by. What it says is in its volume, and read again when it was put away.

    Attributes:
        order: sorts it among all takes, as they were recorded.
        number: of the turn, as ``turntape show`` counts those of its fixture.
        place: among the takes of its volume.
        states: keys of its conversation after each item that counts.
        warned: hash of the settings that may differ.
        whole: it came to an end, and is to be played.
        unheard: its answer could not be read: it is shown, and never played.
        before: the turn before it on its lane that came to an end; None for the first.
        asked_at: seconds since 1970; ``ended_at`` too.
    """

    volume: Volume
    shelf: "Shelf"
    order: int
    number: int
    place: int
    session: int
    stream: str | None
    where: str
    whole: bool
    key: Key
    states: tuple[str, ...]
    warned: str
    before: "Recorded | None" = None
    asked_at: float = 0.0
    ended_at: float = 0.0
    unheard: bool = False

    @property
    def lane(self) -> str:
        return f"session {self.session}" + (f", lane {self.stream}" if self.stream is not None else "")

    @property
    def take(self) -> Take:
        """Raises ``ReplayError``: its file has changed, or is gone."""
        return self.volume.takes()[self.place]

    @property
    def asked(self) -> Asked:
        """Raises ``ReplayError``, as ``take`` does."""
        return self.shelf.read(self.take.start)

    @property
    def learned(self) -> Learned:
        """Raises ``ReplayError``, as ``take`` does."""
        start = self.take.start
        return self.shelf.reader.read(start.context, start.request.instructions).learned


@define(eq=False)
class Shelf:
    """The takes that share rules.

    Attributes:
        unread: volumes that have takes for this shelf, which are not on it yet; with the keys of the conversations
            that they can be asked for first, once those are known.
    """

    reader: Reader
    recorded: list[Recorded] = field(factory=list)
    by_key: dict[Key, list[Recorded]] = field(factory=dict)
    unread: dict[Volume, frozenset[str] | None] = field(factory=dict)

    @property
    def changes_items(self) -> bool:
        """Whether its rules reach into items, so that the keys in a file are not those under the rules."""
        return bool(self.reader.rules.replace or self.reader.rules.learn)

    def read(self, start: StartSample) -> Asked:
        """A live request as the rules of this shelf see it."""
        reader = self.reader
        reading = reader.read(start.context, start.request.instructions)
        model = "" if "model" in reader.rules.ignored | reader.rules.warned else start.model
        settings = reader.settings(start, reading.learned)
        return Asked(model, reading, settings, reader.warned(start, reading.learned))

    def add(self, recorded: Recorded) -> None:
        self.recorded.append(recorded)
        if recorded.unheard:
            return
        self.by_key.setdefault(recorded.key, []).append(recorded)


@define(eq=False)
class Library:
    """Every take of all fixtures, on shelves by their rules.

    Of many fixtures only the indexes are read at first. One is read whole when a request could be its own, or when
    nothing else answers; from then on what finds its takes stays, and the takes are put away when others are needed.

    Args:
        rules: hold for every fixture, after its own.
        masker: what it hides in a recording it hides in requests, before they are compared.
        root: files in this folder are named from there in messages.

    Attributes:
        models: those recorded, in the order in which they occur.
        rules_used: every rule of every shelf.
        settings: names of those that the takes read so far were asked with.
        not_replayable: what a relay recorded and no take can say, a line for each.
        broken: what was found to be no recording that can be played, after the start.
    """

    rules: Sequence[Any] = ()
    new_session: NewSession = Session
    masker: Masker = DEFAULT
    root: Path | None = None
    shelves: dict[bytes, Shelf] = field(factory=dict)
    volumes: list[Volume] = field(factory=list)
    models: dict[str, None] = field(factory=dict)
    rules_used: list[Any] = field(factory=list)
    settings: set[str] = field(factory=set)
    not_replayable: list[str] = field(factory=list)
    broken: list[ReplayError] = field(factory=list)
    _shelved: Shelved = field(factory=Shelved)
    _unread: dict[Volume, None] = field(factory=dict)
    _reading: trio.Lock = field(factory=trio.Lock)
    _beside: dict[int, dict[str, tuple[Recorded, ...]]] = field(factory=dict)  # by volume and lane

    def add_all(self, sources: Iterable[str | Path | Fixture]) -> None:
        """
        Raises:
            ReplayError: a fixture cannot be read or replayed, or its rules cannot be used.
        """
        found = [source if isinstance(source, Fixture) else Path(source) for source in sources]
        size = sum(source.stat().st_size for source in found if isinstance(source, Path) and source.is_file())
        for source in found:
            self.add(source, whole=size <= READ_AT_START)

    def add(self, source: Path | Fixture, *, whole: bool = True) -> None:
        """Put a fixture's takes on their shelves.

        Args:
            whole: now; otherwise its index is enough for now, if it has one.

        Raises:
            ReplayError: it cannot be replayed, or its rules cannot be used.
        """
        volume = Volume(source, len(self.volumes), self._name(source), self._shelved, self.new_session)
        self.volumes.append(volume)
        index = None if whole else volume.look()
        if index is None:
            self._read(volume)
            return
        self._unread[volume] = None
        volume.n_turns = index.n_turns
        keys: dict[Shelf, set[str]] = {}
        for one in index.asked:
            self.models.setdefault(one.model)
            keys.setdefault(self._shelf(index.rules[one.session]), set()).add(one.key)
        for shelf, own in keys.items():
            shelf.unread[volume] = None if shelf.changes_items else frozenset(own)

    def _name(self, source: Path | Fixture) -> str:
        if isinstance(source, Fixture):
            return source.name
        inside = self.root is not None and source.is_relative_to(self.root)
        return str(source.relative_to(self.root) if self.root is not None and inside else source)

    async def read_for(self, start: StartSample) -> None:
        """Read what could answer ``start`` and was not read yet.

        Raises:
            ReplayError: a recording that could be the one turns out not to be playable.
        """
        if not self._unread:
            return
        async with self._reading:
            for shelf in self.shelves.values():
                if not shelf.unread:
                    continue
                key = shelf.read(start).reading.fold.key
                for volume, keys in [*shelf.unread.items()]:
                    if keys is None:
                        await trio.lowlevel.checkpoint()
                        keys = shelf.unread[volume] = self._first_keys(volume, shelf)
                    if key in keys:
                        self._read_late(volume)

    async def read_all(self) -> bool:
        """Read everything, other tasks in between; whether there was anything left. What cannot be played is ``broken``."""
        if not self._unread:
            return False
        async with self._reading:
            for volume in [*self._unread]:
                await trio.lowlevel.checkpoint()
                try:
                    self._read_late(volume)
                except ReplayError as exc:
                    self.broken.append(exc)
                    self._unread.pop(volume)
                    for shelf in self.shelves.values():
                        shelf.unread.pop(volume, None)
        return True

    def read_named(self, name: str) -> list[Recorded]:
        """The turns of the fixtures of this name, in recorded order. Raises ``ReplayError``."""
        named = [volume for volume in self.volumes if volume.name == name]
        for volume in named:
            if volume in self._unread:
                self._read_late(volume)
        turns = self.turns
        return [one for volume in named for one in turns[volume]]

    @property
    def n_turns(self) -> int:
        """How many came to an end, and can be played."""
        return sum(volume.n_turns for volume in self.volumes)

    @property
    def doubts(self) -> list[str]:
        """Settings that its own rules name and that nothing has: slips of the keyboard, most likely. None before all is read."""
        return [] if self._unread else unknown_settings(self.rules, self.settings)

    @property
    def turns(self) -> dict[Volume, list[Recorded]]:
        """Those of them that were read, each volume's in recorded order."""
        found: dict[Volume, list[Recorded]] = {volume: [] for volume in self.volumes}
        for one in sorted(
            (one for shelf in self.shelves.values() for one in shelf.recorded), key=lambda one: one.order
        ):
            if one.whole:
                found[one.volume].append(one)
        return found

    def matching(self, start: StartSample) -> list[tuple[Recorded, Asked]]:
        """Every take read so far that answers ``start``, in recorded order, with the request as its rules see it."""
        found: list[tuple[Recorded, Asked]] = []
        for shelf in self.shelves.values():
            asked = shelf.read(start)
            found += [(one, asked) for one in shelf.by_key.get(asked.key, ())]
        return sorted(found, key=lambda pair: pair[0].order)

    def beside(self, recorded: Recorded) -> tuple[Recorded, ...]:
        """Turns on other lanes of its recording that went on while its own did."""
        return self._beside.get(recorded.volume.number, {}).get(recorded.lane, ())

    def _shelf(self, rules: tuple[Any, ...]) -> Shelf:
        own = [*rules, *self.rules]
        key = encode(own)
        if key not in self.shelves:
            self.rules_used += [rule for rule in own if rule not in self.rules_used]
            self.shelves[key] = Shelf(Reader(Ruleset.of(own), self.masker))
        return self.shelves[key]

    def _first_keys(self, volume: Volume, shelf: Shelf) -> frozenset[str]:
        """Keys under rules of what can be asked of an unread volume before anything else is."""
        opening = volume.opening()
        if opening is None:
            self._read_late(volume)
            return frozenset()
        return frozenset(shelf.read(take.start).reading.fold.key for take in opening)

    def _read_late(self, volume: Volume) -> None:
        self._read(volume)
        self._unread.pop(volume)
        for shelf in self.shelves.values():
            shelf.unread.pop(volume, None)

    def _read(self, volume: Volume) -> None:
        found = volume.takes()
        self.not_replayable += [f"{volume.name}:{one.line}: {one.problem}" for one in volume.lost]
        numbers = {id(take): n for n, take in enumerate(sorted(found, key=lambda take: take.session), 1)}
        before: dict[tuple[int, str | None], Recorded] = {}
        names: dict[str, str] = {}  # one object for each key, however many turns have it
        lanes: dict[str, list[Recorded]] = {}
        for place, take in enumerate(found):
            self.models.setdefault(take.start.model)
            self.settings.update(take.start.request.raw)
            shelf = self._shelf(take.rules)
            asked, lane = shelf.read(take.start), (take.session, stream_id(take.start))
            recorded = Recorded(
                volume=volume,
                shelf=shelf,
                order=(volume.number << 32) + place,
                number=numbers[id(take)],
                place=place,
                session=take.session,
                stream=lane[1],
                where=take.where,
                whole=take.whole,
                key=asked.key,
                states=tuple(names.setdefault(state.key, state.key) for state in asked.reading.all_states),
                warned=digest(asked.warned),
                before=before.get(lane),
                asked_at=take.opened_at + take.began,
                ended_at=take.opened_at + take.began + take.duration_s,
                unheard=take.unheard,
            )
            shelf.add(recorded)
            lanes.setdefault(recorded.lane, []).append(recorded)
            if take.whole:
                before[lane] = recorded
        volume.n_turns = sum(take.whole for take in found)
        self._beside |= {volume.number: _beside(lanes)} if len(lanes) > 1 else {}


def _beside(lanes: dict[str, list[Recorded]]) -> dict[str, tuple[Recorded, ...]]:
    """For each lane the turns with an end on those that overlap it in time."""
    spans = sorted((own[0].asked_at, max(one.ended_at for one in own), name) for name, own in lanes.items())
    found: dict[str, list[Recorded]] = {}
    for place, (_, ended, name) in enumerate(spans):
        for began, _, other in spans[place + 1 :]:
            if began >= ended:
                break
            found.setdefault(name, []).extend(one for one in lanes[other] if one.whole)
            found.setdefault(other, []).extend(one for one in lanes[name] if one.whole)
    return {name: tuple(beside) for name, beside in found.items()}


def stream_id(start: StartSample) -> str | None:
    """The lane that a request named."""
    name = start.request.raw.get("stream_id")
    return name if isinstance(name, str) else None
