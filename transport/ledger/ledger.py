"""Takes usage records without ever waiting, and writes them from a thread, many at a time, until all are kept."""

import logging
from collections import deque
from itertools import islice
from typing import Any

import trio
from attrs import define, evolve, field

from .record import LedgerError, Sink, UsageRecord

logger = logging.getLogger(__name__)

GATHER_S = 0.25
"""How long the first record waits for others to be written with it; ours. What ``kill -9`` can take is this and one write."""

RETRY_S = 2.0  # between attempts on a ledger that cannot be written: a disk that is full, a file that is locked
MAX_BATCH = 1024
"""Records that one write keeps; ours: a transaction of them takes some 10 ms."""

MAX_WAITING = 16384
"""Records that wait, some 10 MB; ours. Those beyond are added up, so that no count is lost and no turn waits for a disk."""

MAX_SUMS = 1024
"""Sums held apart; ours. What would need another is added up under ``OTHERS``: clients choose names of models."""

OTHERS = "(others)"
CLOSE_S = 5.0
"""How long closing tries to write what waits before it says what was not written."""


@define(eq=False)
class Ledger:
    """One per server. ``put`` may be called as soon as it is made, ``run`` writes."""

    sink: Sink
    _waiting: deque[UsageRecord] = field(init=False, factory=deque)
    _sums: dict[tuple[Any, ...], UsageRecord] = field(init=False, factory=dict)
    _news: trio.Event = field(init=False, factory=trio.Event)
    _is_failing: bool = field(init=False, default=False)

    def put(self, record: UsageRecord) -> None:
        """Take ``record``. Never waits, never raises."""
        if len(self._waiting) < MAX_WAITING:
            self._waiting.append(record)
        else:
            self._add_up(record)
        self._news.set()

    async def run(self) -> None:
        """Write what comes, for ever. What cannot be written is kept and tried again."""
        while True:
            await self._news.wait()
            self._news = trio.Event()
            await trio.sleep(GATHER_S)
            while self._has_some:
                if not await self._write_some():
                    await trio.sleep(RETRY_S)

    async def aclose(self) -> None:
        """Write what waits, close the sink, and say what could not be written. ``run`` must have ended."""
        with trio.move_on_after(CLOSE_S, shield=True):
            while self._has_some:
                if not await self._write_some():
                    await trio.sleep(GATHER_S)
        for record in self._waiting:
            self._add_up(record)
        self._waiting.clear()
        for record in self._sums.values():
            logger.error(
                "usage that is not in the ledger: owner %s, model %s, backend %s: "
                "%d responses (%s), %d input tokens (%d cached), %d output tokens",
                record.owner or "(none)",
                record.model[:128],
                record.backend,
                record.responses,
                record.status,
                record.input_tokens,
                record.cached_tokens,
                record.output_tokens,
            )
        self._sums.clear()
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self.sink.close)

    @property
    def _has_some(self) -> bool:
        return bool(self._waiting or self._sums)

    async def _write_some(self) -> bool:
        """Return whether the oldest that wait are kept now."""
        n_taken = min(len(self._waiting), MAX_BATCH)
        sums = {} if n_taken else dict(self._sums)
        batch = [*islice(self._waiting, n_taken), *sums.values()]
        if sums:
            self._sums = {}  # others may come while these are written
        try:
            await trio.to_thread.run_sync(self.sink.write, batch)
        except BaseException as exc:
            for record in sums.values():
                self._add_up(record)
            if not isinstance(exc, LedgerError):
                raise
            if not self._is_failing:
                logger.warning("%s Usage is kept in memory, and written when it can be.", exc)
            self._is_failing = True
            return False
        for _ in range(n_taken):
            self._waiting.popleft()
        if self._is_failing:
            logger.warning("the ledger can be written again")
        self._is_failing = False
        return True

    def _add_up(self, record: UsageRecord) -> None:
        def key(of: UsageRecord) -> tuple[Any, ...]:
            return of.owner, of.model, of.backend, of.upstream_model, of.status, of.error, of.estimated

        if key(record) not in self._sums and len(self._sums) >= MAX_SUMS:
            record = evolve(record, model=OTHERS, upstream_model=OTHERS)
        record = evolve(record, response_id="", agent="", transport="", dialect="", ttft_s=None)
        if (old := self._sums.get(key(record))) is not None:
            added: tuple[str, ...] = (
                "responses",
                "samples",
                "uncounted",
                "input_tokens",
                "cached_tokens",
                "output_tokens",
            )
            added += ("reasoning_tokens", "sampling_s", "duration_s")
            record = evolve(record, **{name: getattr(old, name) + getattr(record, name) for name in added})
        self._sums[key(record)] = record
