"""In which order answers end that go on at the same time: as recorded, for a client may wait for whichever ends first."""

import trio
from attrs import define, field

from .stub_library import Recorded
from .stub_runs import Run

PATIENCE_S = 5.0
"""How long an end is held for a client that does not do what the recorded one did by then; ours."""

GAP_S = 0.1
"""At most so long after another end comes one that is told apart from it; ours."""


@define(eq=False)
class Order:
    """Holds the end of an answer until what was recorded before it has happened on the conversations beside it.

    That is: answers in flight that ended earlier have ended, and requests of conversations that have begun and came
    earlier have come. Only lanes that were recorded at the same time wait for each other.
    """

    _moved: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot)

    def moved(self) -> None:
        """A take began or ended."""
        self._moved.unpark_all()

    async def wait(self, run: Run, recorded: Recorded, beside: tuple[Recorded, ...], since: float) -> Recorded | None:
        """Return when ``recorded`` may end; what it was held for in vain, if its client did something else.

        Args:
            beside: takes on lanes of the same recording that went on at the same time.
            since: when it was asked for, on Trio's clock.
        """
        missed = None
        with trio.move_on_after(PATIENCE_S):
            while (missed := _first(run, recorded, beside)) is not None:
                await self._moved.park()
        if missed is not None:
            run.strayed.add(missed.lane)
        ends = [
            run.ended[one.order] + min(recorded.ended_at - one.ended_at, GAP_S)
            for one in beside
            if one.ended_at < recorded.ended_at and run.ended.get(one.order, -1.0) >= since
        ]
        if ends and max(ends) > trio.current_time():
            await trio.sleep_until(max(ends))
        return missed


def _first(run: Run, recorded: Recorded, beside: tuple[Recorded, ...]) -> Recorded | None:
    """A take that has to end, or to be asked for, before ``recorded`` may end."""
    for one in beside:
        if one.lane in run.strayed:
            continue
        if one.order in run.playing:
            if one.ended_at < recorded.ended_at:
                return one
        elif (
            one.asked_at < recorded.ended_at
            and one.order not in run.begun
            and one.before is not None
            and one.before.order in run.begun
        ):
            return one
    return None
