"""A fixture as backend: the recorded take, to the same conversation and settings only. Nothing is guessed."""

import math
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import orjson
import trio
from attrs import define, field

from turntape.core.seam import Increment, SampleFailed, Started, StartSample
from turntape.core.session import Session
from turntape.transport.backends.base import BackendError, Batch

from .differences import allowing_rules, differences, shown
from .errors import ReplayError
from .fixture import Fixture
from .packing import encode
from .reading import Reader, Reading
from .rules import Ruleset
from .substitution import Substitution
from .takes import NewSession, Take, takes


@define(eq=False)
class _Recorded:
    """A take under its rules.

    Attributes:
        order: its place among all takes.
    """

    take: Take
    order: int
    reading: Reading
    settings: bytes
    delivered: bool = False


@define(eq=False)
class _Shelf:
    """The takes that share rules: those not yet played, by what they answer, in recorded order."""

    reader: Reader
    recorded: list[_Recorded] = field(factory=list)
    free: dict[tuple[str, str, bytes], list[_Recorded]] = field(factory=dict)

    def add(self, take: Take, order: int) -> None:
        reading = self.reader.read(take.start.context, take.start.request.instructions)
        one = _Recorded(take, order, reading, self.reader.settings(take.start, reading.learned))
        self.recorded.append(one)
        self.free.setdefault(self.key(take.start.model, reading, one.settings), []).append(one)

    def key(self, model: str, reading: Reading, settings: bytes) -> tuple[str, str, bytes]:
        return model, reading.fold.key, settings


@define(eq=False)
class FixtureBackend:
    """Answers from recordings.

    Attributes:
        models: those recorded.
        misses: what was asked and not found; a stub that ends with any has failed.
        speed: how many times faster than recorded; infinite for no waiting at all.
        on_miss: told of each miss as it happens.
    """

    models: tuple[str, ...]
    speed: float = math.inf
    misses: list[str] = field(factory=list)
    on_miss: Callable[[str], object] | None = None
    _shelves: list[_Shelf] = field(factory=list)
    _fixtures: list[Fixture] = field(factory=list)

    @classmethod
    def load(
        cls,
        paths: Iterable[str | Path | Fixture],
        *,
        rules: Sequence[Any] = (),
        speed: float = math.inf,
        new_session: NewSession = Session,
    ) -> "FixtureBackend":
        """
        Args:
            rules: hold for every fixture, after its own.

        Raises:
            ReplayError: a fixture cannot be read, its rules cannot be used, or it holds nothing to play.
        """
        if not speed > 0:
            raise ReplayError(f"The speed should be a number above 0, but it is {speed}.")
        fixtures = [path if isinstance(path, Fixture) else Fixture.load(path) for path in paths]
        shelves: dict[bytes, _Shelf] = {}
        models: dict[str, None] = {}
        order = 0
        for fixture in fixtures:
            for take in takes(fixture, new_session):
                models.setdefault(take.start.model)
                if not take.whole:
                    continue  # cancelled, or cut off: nobody knows how it would have ended
                own = [*take.rules, *rules]
                shelf = shelves.setdefault(encode(own), _Shelf(Reader(Ruleset.of(own))))
                shelf.add(take, order)
                order += 1
        if not order:
            names = ", ".join(fixture.name for fixture in fixtures) or "no file"
            raise ReplayError(f"There is nothing to play: {names} holds no finished turn.")
        return cls(tuple(models), speed, shelves=[*shelves.values()], fixtures=fixtures)

    @property
    def n_takes(self) -> int:
        """How many turns can be played, each of them once."""
        return sum(len(shelf.recorded) for shelf in self._shelves)

    @property
    def n_played(self) -> int:
        """How many were played to their end."""
        return sum(one.delivered for shelf in self._shelves for one in shelf.recorded)

    @trio.as_safe_channel
    async def sample(self, start: StartSample) -> AsyncGenerator[Batch, None]:
        found = self._find(start)
        if found is None:
            self.misses.append(self._explain(start))
            if self.on_miss is not None:
                self.on_miss(self.misses[-1])
            raise BackendError(self.misses[-1], code="fixture_miss", status=400)
        recorded, queue, reading = found
        queue.remove(recorded)
        try:
            async for batch in self._play(recorded, reading):
                yield batch
        finally:
            if not recorded.delivered:  # its client will come back and ask again
                queue.append(recorded)
                queue.sort(key=lambda one: one.order)

    def unused(self) -> list[str]:
        """One line for each take that was never played to its end; one for a fixture of which none was."""
        lines: list[str] = []
        for fixture in self._fixtures:
            own = [one for shelf in self._shelves for one in shelf.recorded if one.take.fixture is fixture]
            left = sorted((one for one in own if not one.delivered), key=lambda one: one.order)
            if left and len(left) == len(own):
                lines.append(f"{fixture.name}: none of its {len(own)} turns was played")
            else:
                lines += [f"{one.take.where}: this turn was not played" for one in left]
        return lines

    async def aclose(self) -> None:
        """Nothing is held."""

    def _find(self, start: StartSample) -> tuple[_Recorded, list[_Recorded], Reading] | None:
        """The take recorded first, among all rules, that answers ``start``."""
        found: list[tuple[_Recorded, list[_Recorded], Reading]] = []
        for shelf in self._shelves:
            reading = shelf.reader.read(start.context, start.request.instructions)
            settings = shelf.reader.settings(start, reading.learned)
            if queue := shelf.free.get(shelf.key(start.model, reading, settings)):
                found.append((queue[0], queue, reading))
        return min(found, key=lambda one: one[0].order, default=None)

    async def _play(self, recorded: _Recorded, reading: Reading) -> AsyncGenerator[Batch, None]:
        take, began, accepted = recorded.take, trio.current_time(), False
        batches = Substitution.between(recorded.reading.learned, reading.learned).applied(take)
        for offset, event in take.events:
            if math.isfinite(self.speed):
                await trio.sleep_until(began + offset / self.speed)
            match event:
                case SampleFailed():
                    recorded.delivered = True
                    raise BackendError(
                        event.message,
                        code=event.code,
                        status=event.status,
                        param=event.param,
                        retry_after=event.retry_after,
                    )
                case Started():
                    if not accepted:
                        accepted = True
                        yield ()
                case _:
                    batch: tuple[Increment, ...] = next(batches)
                    recorded.delivered = event is take.events[-1][1]
                    yield batch

    def _explain(self, start: StartSample) -> str:
        """Which recorded turn is nearest to ``start``, where they part, and what would let it pass."""
        best: tuple[tuple[int, bool, bool, bool], _Shelf, _Recorded, Reading] | None = None
        for shelf in self._shelves:
            reading = shelf.reader.read(start.context, start.request.instructions)
            asked, settings = reading.all_states, shelf.reader.settings(start, reading.learned)
            for one in shelf.recorded:
                n = _n_common(asked, one.reading.all_states)
                same = reading.fold.key == one.reading.fold.key
                rank = (n, same, one.take.start.model == start.model and one.settings == settings, not one.delivered)
                if best is None or rank > best[0]:
                    best = rank, shelf, one, reading
        assert best is not None, "load() refuses fixtures without a take"
        (n, same, _, _), shelf, nearest, reading = best
        place = f"No recorded turn answers this request. Nearest is the turn at {nearest.take.where}"
        if not same:
            return place + _items_differ(n, nearest.reading, reading)
        if nearest.take.start.model != start.model:
            return f"{place}, of the same conversation: it was recorded with model {nearest.take.start.model!r}, not {start.model!r}."
        settings = shelf.reader.settings(start, reading.learned)
        if nearest.settings != settings:
            found = [*differences(orjson.loads(nearest.settings), orjson.loads(settings))]
            rule = {"rule": "ignore", "fields": sorted({difference.path[0] for difference in found})}
            return f"{place}, of the same conversation; its settings differ:{shown(found)}{_would_allow(rule)}"
        n_takes = sum(
            one.reading.fold.key == nearest.reading.fold.key and one.settings == settings for one in shelf.recorded
        )
        times = "once" if n_takes == 1 else f"{n_takes} times"
        return f"{place}, the same in all; it was recorded {times}, and every take has been played or is being played."


def _n_common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many leading states are equal. Keys are cumulative, so equal ones need no look before them."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[middle - 1].key == other[middle - 1].key:
            low = middle
        else:
            high = middle - 1
    return low


def _items_differ(n: int, recorded: Reading, asked: Reading) -> str:
    expected, got = recorded.all_states, asked.all_states
    if n == len(got):
        kind = orjson.loads(expected[n].form)["type"]
        return f", which goes on where this conversation ends: its item {n + 1} is a {kind}, and there is none here."
    if n == len(expected):
        kind = orjson.loads(got[n].form)["type"]
        return f", which ends where this conversation goes on: item {n + 1} here is a {kind}, and there is none in it."
    one, other = orjson.loads(expected[n].form), orjson.loads(got[n].form)
    found = [*differences(one, other)]
    rules = allowing_rules(one["type"], found) if one["type"] == other["type"] else []
    return f"; item {n + 1}, a {one['type']}, differs:{shown(found)}{_would_allow(*rules)}"


def _would_allow(*rules: dict[str, Any]) -> str:
    shown = ",".join(orjson.dumps(rule).decode() for rule in rules)
    return f"\n  If that may differ, add to the rules of its session: {shown}" if rules else ""
