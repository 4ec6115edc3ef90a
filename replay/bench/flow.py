"""One direction of a connection: when what is sent arrives, by bandwidth, distance and, if asked for, TCP's slow start."""

from collections import deque

from attrs import define, field

SEGMENT_BYTES = 1460
FIRST_WINDOW_BYTES = 10 * SEGMENT_BYTES
"""RFC 6928, section 2: what a new connection may send before the first acknowledgement."""

LEAST_TIMEOUT_S = 0.2
"""Linux adds this to the round trip, at least, for its retransmission timeout. An idle connection loses half its window in
each (RFC 2861, section 2.1; ``tcp_slow_start_after_idle``, which is on by default)."""


@define(eq=False)
class Flow:
    """
    Args:
        rate: bytes per second.
        slow_start: no more is on its way than a window, which grows by what is acknowledged while it is the limit. Nothing is lost.
    """

    rtt_s: float
    rate: float
    slow_start: bool
    window: float = FIRST_WINDOW_BYTES
    _free_at: float = 0.0
    _in_flight: deque[tuple[float, int]] = field(factory=deque)  # acknowledged when, bytes
    _n_in_flight: int = 0
    _peak: int = 0  # most in flight in this round trip
    _round_ends_at: float = 0.0
    _last_at: float | None = None

    def arrival(self, n_bytes: int, now: float) -> float:
        """When the last of ``n_bytes`` arrives that are given to the connection at ``now``. Calls are in the order of time."""
        at = max(now, self._free_at)
        if not self.slow_start:
            self._free_at = at + n_bytes / self.rate
            return self._free_at + self.rtt_s / 2
        while self._in_flight and self._in_flight[0][0] <= now:
            self._acknowledge()
        self._rest(now)
        while n_bytes > 0:
            segment = min(n_bytes, SEGMENT_BYTES)
            while self._in_flight and (self._in_flight[0][0] <= at or self._n_in_flight + segment > self.window):
                at = max(at, self._acknowledge())
            self._n_in_flight += segment
            if at >= self._round_ends_at:
                self._round_ends_at, self._peak = at + self.rtt_s, 0
            self._peak = max(self._peak, self._n_in_flight)
            at += segment / self.rate
            self._in_flight.append((at + self.rtt_s, segment))
            n_bytes -= segment
        self._free_at = self._last_at = at
        return at + self.rtt_s / 2

    def _acknowledge(self) -> float:
        """Take the next acknowledgement, and give when it came."""
        at, n_bytes = self._in_flight.popleft()
        self._n_in_flight -= n_bytes
        if self.window < 2 * self._peak:
            self.window += n_bytes
        return at

    def _rest(self, now: float) -> None:
        """Halve the window for each timeout in which nothing was sent."""
        timeout_s = self.rtt_s + LEAST_TIMEOUT_S
        idle_s = now - self._last_at if self._last_at is not None else 0.0
        while idle_s > timeout_s and self.window > FIRST_WINDOW_BYTES:
            self.window = max(self.window / 2, FIRST_WINDOW_BYTES)
            idle_s -= timeout_s
