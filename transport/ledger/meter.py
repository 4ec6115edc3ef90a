"""Follows one session's events and effects, and makes one record of each response at its end."""

import logging
import re
from collections.abc import Sequence
from typing import Any, Protocol

import orjson
from attrs import define, field

from turntape.core.seam import (
    Effect,
    Event,
    Finish,
    Opened,
    Sampled,
    SampleFailed,
    Save,
    Saved,
    Send,
    StartSample,
    StoreFailed,
    Usage,
    event_type,
)
from turntape.core.wire import ResponseCreate

from .record import UsageRecord
from .served import Served

logger = logging.getLogger(__name__)

PRODUCT = re.compile(r"[A-Za-z][\w.-]{0,31}/[\w.+-]{1,24}(?=\s|$)(?: \d[\d.]{0,15}(?=\s|$))?")
"""What a User-Agent begins with: a program and its version. What else stands there may be anything, a key too."""

ENDS = (b'{"type":"response.completed"', b'{"type":"response.incomplete"', b'{"type":"response.failed"')
PARKS = b'{"type":"response.done"'
MARKS = (*ENDS, PARKS)
RESPONSE, OUTPUT = b',"response":', b',"output":['
"""Where an event's Response object begins, and where its output does. Inside a string their quotes would be escaped."""


class Taker(Protocol):
    """What records are given to: a ``Ledger``."""

    def put(self, record: UsageRecord) -> None:
        """Never waits."""
        ...


@define(eq=False)
class _Answer:
    """A response under way.

    Attributes:
        began_s, sample_began_s: seconds since the session's beginning.
        sample_id: of the sample that runs; "" between samples and while the response is saved.
        parked: waits for tool outputs.
    """

    request: ResponseCreate
    model: str
    began_s: float
    served: Served = field(factory=Served)
    response_id: str = ""
    sample_id: str = ""
    sample_began_s: float = 0.0
    parked: bool = False
    n_samples: int = 0
    n_uncounted: int = 0
    is_estimated: bool = False
    counts: list[int] = field(factory=lambda: [0, 0, 0, 0])  # input, cached, output, reasoning
    ttft_s: float | None = None
    sampling_s: float = 0.0

    def begin(self, sample_id: str, now: float) -> None:
        self.sample_id, self.sample_began_s, self.parked = sample_id, now, False
        self.n_samples += 1

    def end_sample(self, now: float) -> None:
        self.sampling_s += now - self.sample_began_s
        self.sample_id = ""

    def count(self, usage: Usage | None, response: dict[str, Any]) -> None:
        """Add what a sample used: as its backend counted, or else as its response says."""
        if usage is not None:
            more = (usage.input_tokens, usage.cached_tokens, usage.output_tokens, usage.reasoning_tokens)
        elif said := response.get("usage"):
            self.is_estimated = True
            more = (
                said["input_tokens"],
                said["input_tokens_details"]["cached_tokens"],
                said["output_tokens"],
                said["output_tokens_details"]["reasoning_tokens"],
            )
        else:
            self.n_uncounted += 1
            return
        self.counts = [old + new for old, new in zip(self.counts, more, strict=True)]


@define(eq=False)
class Meter:
    """One session's. A response that tool outputs are appended to is one record, however many samples it took."""

    ledger: Taker
    opened: Opened
    _lanes: dict[str | None, _Answer] = field(init=False, factory=dict)
    _sampling: dict[str, tuple[str | None, _Answer]] = field(init=False, factory=dict)
    _now: float = field(init=False, default=0.0)

    def watch(self, sample_id: str) -> Served:
        """Where it is to be said who answers this sample."""
        return self._sampling[sample_id][1].served if sample_id in self._sampling else Served()

    def follow(self, event: Event, effects: Sequence[Effect], now: float) -> None:
        """Take note of what the session made of ``event``.

        Args:
            now: seconds since the session's beginning.
        """
        self._now = now
        if type(event) is Sampled and len(effects) == 1 and isinstance(only := effects[0], Send):
            running = self._sampling.get(event.sample_id)
            if running is None or (running[1].ttft_s is not None and not only.data[-1].startswith(MARKS)):
                return  # one of many batches: nothing to note
        try:
            self._follow(event, effects)
        except Exception:
            logger.exception("usage could not be followed; the responses of this session go on without")

    def _follow(self, event: Event, effects: Sequence[Effect]) -> None:
        if isinstance(event, Sampled):
            self._sampled(event, effects)
        elif isinstance(event, SampleFailed):
            self._failed(event, effects)
        elif isinstance(event, Saved | StoreFailed) and self._is_saving(event.stream_id):
            failed = isinstance(event, StoreFailed)
            self._end(event.stream_id, self._ending(effects) or "failed", "server_error" if failed else None)
        else:
            self._others(effects)
        for effect in effects:
            if isinstance(effect, StartSample):
                self._start(effect)

    def close(self) -> None:
        """The session is over: nobody waits for what is still open."""
        for lane, answer in list(self._lanes.items()):
            if answer.sample_id:
                answer.end_sample(self._now)
                answer.count(None, {})
            self._end(lane, "cancelled", None)

    def _start(self, start: StartSample) -> None:
        lane = start.request.raw.get("stream_id")
        answer = self._lanes.get(lane)
        if answer is None or answer.request is not start.request:
            if answer is not None:
                self._end(lane, "cancelled", None)  # parked, and left for another
            answer = self._lanes[lane] = _Answer(start.request, start.model, self._now)
        answer.begin(start.sample_id, self._now)
        self._sampling[start.sample_id] = lane, answer

    def _sampled(self, event: Sampled, effects: Sequence[Effect]) -> None:
        if (running := self._sampling.get(event.sample_id)) is None:
            return  # cancelled: this came too late
        lane, answer = running
        if answer.ttft_s is None:
            answer.ttft_s = self._now - answer.sample_began_s
        finish = next((entry for entry in reversed(event.batch) if isinstance(entry, Finish)), None)
        status = self._ending(effects)
        if finish is None and status is None:
            return
        del self._sampling[event.sample_id]
        answer.end_sample(self._now)
        usage = finish.usage if finish is not None and status != "failed" else None
        response = self._response(effects)
        answer.count(usage, response)
        answer.response_id = response.get("id", "")
        if status is not None:
            self._end(lane, status, "server_error" if status == "failed" else None)
        else:
            answer.parked = not any(isinstance(effect, Save) for effect in effects)

    def _failed(self, event: SampleFailed, effects: Sequence[Effect]) -> None:
        if (running := self._sampling.pop(event.sample_id, None)) is None:
            return
        lane, answer = running
        answer.end_sample(self._now)
        answer.count(None, {})
        answer.response_id = self._response(effects).get("id", answer.response_id)
        self._end(lane, "failed", event.code)

    def _is_saving(self, lane: str | None) -> bool:
        answer = self._lanes.get(lane)
        return answer is not None and not answer.sample_id and not answer.parked

    def _others(self, effects: Sequence[Effect]) -> None:
        """An append that is refused fails the response that waited for it."""
        if not any(answer.parked for answer in self._lanes.values()):
            return
        for effect in effects:
            for entry in effect.data if isinstance(effect, Send) else ():
                if not entry.startswith(ENDS):
                    continue
                head, _, encoded = entry.partition(RESPONSE)
                lane, response = orjson.loads(head + b"}").get("stream_id"), _beginning(encoded)
                answer = self._lanes.get(lane)
                if answer is not None and answer.response_id == response["id"]:
                    self._end(lane, response["status"], (response["error"] or {}).get("code"))

    @staticmethod
    def _ending(effects: Sequence[Effect]) -> str | None:
        """The status of the response that ends among ``effects``."""
        for effect in effects:
            if isinstance(effect, Send) and effect.data and effect.data[-1].startswith(ENDS):
                return event_type(effect.data[-1]).removeprefix("response.")
        return None

    @staticmethod
    def _response(effects: Sequence[Effect]) -> dict[str, Any]:
        """What comes before the output in the Response object that a sample ended with; empty if there is none."""
        for effect in effects:
            if isinstance(effect, Save):
                return _beginning(effect.record.response)
            if isinstance(effect, Send) and effect.data and effect.data[-1].startswith(MARKS):
                return _beginning(effect.data[-1].partition(RESPONSE)[2])
        return {}

    def _end(self, lane: str | None, status: str, error: str | None) -> None:
        answer, opened = self._lanes.pop(lane), self.opened
        if answer.sample_id:
            self._sampling.pop(answer.sample_id, None)
        n_input, n_cached, n_output, n_reasoning = answer.counts
        self.ledger.put(
            UsageRecord(
                at=round(opened.wall + self._now, 6),
                owner=opened.owner,
                agent=product[0] if (product := PRODUCT.match(opened.agent)) else "",
                transport=opened.transport,
                dialect=opened.dialect,
                response_id=answer.response_id,
                model=answer.model,
                backend=answer.served.backend,
                upstream_model=answer.served.model,
                status=status,
                error=error,
                samples=answer.n_samples,
                uncounted=answer.n_uncounted,
                estimated=answer.is_estimated,
                input_tokens=n_input,
                cached_tokens=n_cached,
                output_tokens=n_output,
                reasoning_tokens=n_reasoning,
                ttft_s=None if answer.ttft_s is None else round(answer.ttft_s, 6),
                sampling_s=round(answer.sampling_s, 6),
                duration_s=round(self._now - answer.began_s, 6),
            )
        )


def _beginning(response: bytes) -> dict[str, Any]:
    """Id, status, error and usage of an encoded Response object; its output, and what it echoes, may be large."""
    found: dict[str, Any] = orjson.loads(response[: response.index(OUTPUT)] + b"}")
    return found
