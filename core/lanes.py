"""``Lanes``: all lanes of one connection, which of them work at once, and what may wait in their FIFOs."""

import collections
from collections.abc import Iterator

from attrs import define, field

from .errors import QueueFull, StreamLimitReached
from .lane import Kept, Lane, Waiting
from .seam import Limits
from .states import BUSY, Input

MAX_WAITING_BYTES = 64 << 20
"""Client events that wait hold at most this much text, but one may always wait; ours."""


@define(eq=False)
class Lanes:
    """Attributes:
    n_busy: lanes that hold a place in flight.
    n_waiting: client events in all FIFOs.
    """

    n_busy: int = 0
    n_waiting: int = 0
    _by_id: dict[str | None, Lane] = field(factory=dict)
    _n_waiting_bytes: int = 0
    _ready: collections.deque[Lane] = field(factory=collections.deque)  # may begin when a place is free, oldest first

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._by_id.values())

    def __getitem__(self, stream_id: str | None) -> Lane:
        return self._by_id[stream_id]

    def open(self, stream_id: str | None, limits: Limits) -> Lane:
        """The lane of this name, new or not. A name counts from its first use to the end of the connection."""
        lane = self._by_id.get(stream_id)
        if lane is None:
            n_named = len(self._by_id) - (None in self._by_id)
            if stream_id is not None and n_named >= limits.n_lanes:
                raise StreamLimitReached(
                    f"This connection has reached the maximum number of distinct stream ids ({limits.n_lanes}). "
                    "Reuse one of them, or open a new connection.",
                    param="stream_id",
                )
            lane = self._by_id[stream_id] = Lane(stream_id, limits.n_kept)
        return lane

    def kept(self, response_id: str) -> Kept | None:
        """The remembered response of this id, on whichever lane it was made."""
        return next(filter(None, (lane.find(response_id) for lane in self)), None)

    def move(self, lane: Lane, input_: Input) -> None:
        was_busy = lane.state in BUSY
        lane.move(input_)
        self.n_busy += (lane.state in BUSY) - was_busy
        if was_busy:
            self.enqueue(lane)

    def add(self, lane: Lane, waiting: Waiting, limits: Limits) -> None:
        """Put a client event at the end of its lane's FIFO. Raises ``QueueFull``."""
        too_long = self.n_waiting > 0 and self._n_waiting_bytes + waiting.n_bytes > MAX_WAITING_BYTES
        if self.n_waiting >= limits.n_waiting or too_long:
            raise QueueFull("Too many requests wait on this connection; wait until one has been answered.")
        self.n_waiting += 1
        self._n_waiting_bytes += waiting.n_bytes
        lane.waiting.append(waiting)
        self.enqueue(lane)

    def enqueue(self, lane: Lane) -> None:
        """Let ``lane`` begin its next event, if it has one and can, when its turn for a place comes."""
        if lane.waiting and not lane.queued and lane.state not in BUSY:
            lane.queued = True
            self._ready.append(lane)

    def take(self, limits: Limits) -> tuple[Lane, Waiting] | None:
        """The next client event to begin, if there is one and a place in flight is free."""
        if not self._ready or self.n_busy >= limits.n_in_flight:
            return None
        lane = self._ready.popleft()
        lane.queued = False
        waiting = lane.waiting.popleft()
        self.n_waiting -= 1
        self._n_waiting_bytes -= waiting.n_bytes
        return lane, waiting

    def clear(self) -> list[Lane]:
        """Empty all FIFOs; return the lane of each event that waited."""
        refused = [lane for lane in self for _ in lane.waiting]
        for lane in self:
            lane.waiting.clear()
            lane.queued = False
        self._ready.clear()
        self.n_waiting = self._n_waiting_bytes = 0
        return refused
