"""Runs one session: the only code that both awaits and touches a ``Session``."""

import logging
import math
from collections.abc import AsyncIterator
from typing import Protocol

import trio
from attrs import define, field

from turntape.core.seam import (
    CancelSample,
    ClientGone,
    ClientText,
    Close,
    Drain,
    Effect,
    Event,
    Finish,
    Load,
    Loaded,
    Opened,
    Sampled,
    SampleFailed,
    Save,
    Saved,
    Send,
    Started,
    StartSample,
    StoreFailed,
    Tick,
)

from . import log
from .backends.base import Backend, BackendError
from .ledger import served
from .ledger.meter import Meter, Taker
from .outbox import SlowClient
from .store import Store, StoreError

logger = logging.getLogger(__name__)

SETTLE_S = 1.0
"""How long saves under way, and samples that are whole, may run on after the session has closed."""


class Link(Protocol):
    """A client, whatever the transport: texts in, server events out, one close."""

    gone_code: int | None
    """The close code the client sent, once the texts have ended."""

    def __aiter__(self) -> AsyncIterator[str]:
        """The client's texts; they end when it is gone."""
        ...

    def put(self, data: tuple[bytes, ...]) -> None:
        """Send server events. Never waits. Raises ``SlowClient`` past a hard cap."""
        ...

    async def room(self) -> None:
        """Return once the client has read enough for more to be made. Raises ``SlowClient``."""
        ...

    async def aclose(self, code: int, reason: str) -> None:
        """Say goodbye and return once the client has heard, or has stood still for too long."""
        ...


class SessionLike(Protocol):
    """``core.session.Session``, or the recorder that wraps one."""

    @property
    def closed(self) -> bool: ...

    @property
    def deadline(self) -> float: ...

    def receive(self, event: Event, *, now: float) -> list[Effect]: ...


@define(eq=False)
class Driver:
    """One client until either side closes. Any task may ``feed``; the order of calls is the recorded order.

    An exception of the session itself ends ``run`` with it; everything that a backend, a store or a
    client does wrong becomes an event.
    """

    link: Link
    session: SessionLike
    backend: Backend
    store: Store
    ledger: Taker | None = None
    """Gets a record of each response; None: nobody wants to know."""
    _meter: Meter | None = field(init=False, default=None)
    _opened_at: float = field(init=False, default=0.0)
    _now: float = field(init=False, default=0.0)
    _nursery: trio.Nursery = field(init=False)  # samples and saves: may settle after the session has closed
    _ears: trio.Nursery = field(init=False)  # all that brings news: ends with the session
    _samples: dict[str, trio.CancelScope] = field(init=False, factory=dict)
    _timer: trio.CancelScope = field(init=False, factory=trio.CancelScope)
    _ended: trio.Event = field(init=False, factory=trio.Event)
    _close: Close = field(init=False, default=Close(1000))
    _gone: bool = field(init=False, default=False)

    async def run(self, opened: Opened, shutdown: trio.Event) -> None:
        """Serve the client until the session has closed and its end is delivered.

        Args:
            shutdown: when it is set, the session is told to drain.
        """
        if self.ledger is not None:
            self._meter = Meter(self.ledger, opened)
        try:
            async with trio.open_nursery() as self._nursery:
                async with trio.open_nursery() as self._ears:
                    self._opened_at = trio.current_time()
                    self.feed(opened)
                    self._ears.start_soon(self._read)
                    self._ears.start_soon(self._tick)
                    self._ears.start_soon(self._relay, shutdown)
                    await self._ended.wait()
                    self._ears.cancel_scope.cancel()
                for scope in self._samples.values():
                    scope.cancel()  # those that are whole are no longer among them
                if not self._gone:
                    await self.link.aclose(self._close.code, self._close.reason)
                self._nursery.cancel_scope.deadline = trio.current_time() + SETTLE_S
        finally:
            if self._meter is not None:
                self._meter.close()

    def feed(self, *events: Event) -> None:
        """Advance the session and start what it asks for. Nothing here waits, so nothing can come between.

        What it sends to the client because of all ``events`` leaves in one write.
        """
        sends: list[bytes] = []
        metered: list[tuple[Event, list[Effect], float]] = []
        slow: SlowClient | None = None
        try:
            for event in events:
                if self.session.closed:
                    return  # news that was on its way when the session ended
                effects = self.session.receive(event, now=self._time_of(event))
                if self._meter is not None:
                    metered.append((event, effects, self._now))
                for effect in effects:
                    if isinstance(effect, Send):
                        if not isinstance(event, SampleFailed | StoreFailed):  # which have been logged
                            log.session_refused(effect.data)
                        sends += effect.data
                    else:
                        self._perform(effect)
        finally:
            try:
                if sends and not self._gone:
                    self.link.put(tuple(sends))
            except SlowClient as exc:
                slow = exc
            if self._meter is not None:  # now that the client has what it waits for
                for news in metered:
                    self._meter.follow(*news)
        if slow is not None:
            self._drop(slow)
        elif self.session.closed:
            self._ended.set()
        elif self._opened_at + self.session.deadline < self._timer.deadline:
            # a later deadline needs nothing: the timer wakes at the old one and looks again
            self._timer.deadline = self._opened_at + self.session.deadline

    def _time_of(self, event: Event) -> float:
        """Seconds since the session's beginning: rounded first, so that the recorded value is the used value."""
        now = max(self._now, round(trio.current_time() - self._opened_at, 6))
        if isinstance(event, Tick):  # which is never early by a rounding
            now = max(now, math.ceil(self.session.deadline * 1e6) / 1e6)
        self._now = now
        return now

    def _perform(self, effect: Effect) -> None:
        match effect:
            case StartSample(sample_id):
                self._samples[sample_id] = trio.CancelScope()
                self._nursery.start_soon(self._sample, effect)
            case CancelSample(sample_id):
                if scope := self._samples.get(sample_id):
                    scope.cancel()
            case Load():
                self._ears.start_soon(self._load, effect)
            case Save():
                self._nursery.start_soon(self._save, effect)
            case Close():
                self._close = effect
                self._ended.set()

    async def _read(self) -> None:
        """The one task that is always reading: only a reader sees pings answered and a client go."""
        try:
            async for text in self.link:
                self.feed(ClientText(text))
        except SlowClient as exc:
            self._drop(exc)
        else:
            self._leave(self.link.gone_code)

    def _leave(self, code: int | None) -> None:
        self._gone = True
        self.feed(ClientGone(code))
        self._ended.set()

    def _drop(self, reason: SlowClient) -> None:
        if not self._gone:
            logger.warning("client dropped: %s", reason)
            self._leave(None)

    async def _tick(self) -> None:
        """The only timer; ``feed`` moves its deadline from outside."""
        while True:
            with trio.CancelScope(deadline=self._opened_at + self.session.deadline) as self._timer:
                await trio.sleep_forever()
            if trio.current_time() >= self._opened_at + self.session.deadline:
                self.feed(Tick())

    async def _relay(self, shutdown: trio.Event) -> None:
        await shutdown.wait()
        self.feed(Drain())

    async def _sample(self, start: StartSample) -> None:
        """Feed what the backend makes of ``start``; a slow client slows this sampler, and nothing else."""
        sample_id = start.sample_id
        accepted = whole = is_said = False
        failed = SampleFailed(sample_id, "server_error", "The response stopped before it was finished.")
        ours: Exception | None = None
        if self._meter is not None:
            served.watch(self._meter.watch(sample_id))
        with self._samples[sample_id] as scope:
            try:
                async with self.backend.sample(start) as batches:
                    async for batch in batches:
                        try:
                            news: list[Event] = []
                            if not accepted:
                                accepted = True
                                news.append(Started(sample_id))
                            if batch and not whole:
                                whole = any(isinstance(increment, Finish) for increment in batch)
                                if whole:
                                    # no longer to be cancelled: it only gives back its connection now
                                    self._samples.pop(sample_id, None)
                                news.append(Sampled(sample_id, batch))
                            self.feed(*news)
                            if not whole:
                                await self.link.room()
                        except SlowClient as exc:
                            self._drop(exc)
                        except Exception as exc:  # noqa: BLE001 - raised below, beyond what catches the backend's
                            ours = exc
                            break
            except* BackendError as group:
                failed = _refusal(sample_id, error := _first(group))
                is_said = error.is_said or error.code == "fixture_miss"  # the stub shows its own, prompts and all
                if whole:
                    logger.warning("backend failed after a sample was whole: %s", failed.message)
            except* Exception:
                failed = SampleFailed(sample_id, "server_error", "The server had an error while it sampled a response.")
                logger.exception("backend crashed")
        if self._samples.get(sample_id) is scope:
            del self._samples[sample_id]
        if ours is not None:
            raise ours
        if not whole and not scope.cancelled_caught:
            if not is_said:
                log.sample_failed(start, failed, begun=accepted, listed=self.backend.models)
            self.feed(failed)

    async def _load(self, load: Load) -> None:
        event: Event
        try:
            items: tuple[bytes, ...] | None = ()
            if load.response_id is not None:
                items = await self.store.load(load.response_id, load.owner)
            referenced = await self.store.items(load.item_ids, load.owner) if load.item_ids else ()
            event = Loaded(load.stream_id, items, referenced)
        except StoreError as exc:
            log.store_failed("read", str(exc))
            event = StoreFailed(load.stream_id, str(exc))
        except Exception:
            logger.exception("store crashed")
            event = StoreFailed(load.stream_id, "Stored responses could not be read; try again.")
        self.feed(event)

    async def _save(self, save: Save) -> None:
        event: Event
        try:
            await self.store.save(save.record)
            event = Saved(save.stream_id)
        except StoreError as exc:
            log.store_failed("write", str(exc))
            event = StoreFailed(save.stream_id, str(exc))
        except Exception:
            logger.exception("store crashed")
            event = StoreFailed(save.stream_id, "The response could not be stored; try again, or send 'store': false.")
        self.feed(event)


def _first(group: BaseExceptionGroup[BackendError]) -> BackendError:
    exc: BaseException = group
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    assert isinstance(exc, BackendError)
    return exc


def _refusal(sample_id: str, exc: BackendError) -> SampleFailed:
    return SampleFailed(sample_id, exc.code, str(exc), status=exc.status, param=exc.param, retry_after=exc.retry_after)
