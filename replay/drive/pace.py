"""How an answer came: folds over the times at which its increments were read."""

import itertools
import math
from collections.abc import Iterable, Sequence

from attrs import define, field

from turntape.core.context import estimate_tokens
from turntape.core.seam import Finish, Increment, Sampled, SampleFailed, Started, Usage
from turntape.replay.takes import Take

from .report import Pace


def says(increment: Increment) -> bool:
    """Whether a client can notice it."""
    return not isinstance(increment, Finish) and getattr(increment, "text", " ") != ""


def n_bytes(increments: Iterable[Increment]) -> int:
    """How much text they hold, as UTF-8."""
    return sum(len(text.encode("utf-8", "replace")) for i in increments if (text := getattr(i, "text", "")))


@define(eq=False)
class Heard:
    """An answer as it comes. Times are on one clock.

    Attributes:
        asked_at: when the request went out.
        reads: each read that brought something.
        ended_at: when it was over, however it ended.
    """

    asked_at: float
    reads: list[tuple[float, tuple[Increment, ...]]] = field(factory=list)
    ended_at: float | None = None
    _n_bytes: int = 0

    def hear(self, batch: Sequence[Increment], at: float) -> None:
        if batch:
            self.reads.append((at, tuple(batch)))
            self._n_bytes += n_bytes(batch)

    @property
    def n_bytes(self) -> int:
        return self._n_bytes

    @property
    def increments(self) -> tuple[Increment, ...]:
        return tuple(increment for _, batch in self.reads for increment in batch)

    @property
    def first_at(self) -> float | None:
        return next((at for at, batch in self.reads if any(map(says, batch))), None)

    @property
    def finish(self) -> Finish | None:
        return next((i for _, batch in reversed(self.reads) for i in batch if isinstance(i, Finish)), None)

    def pace(self) -> Pace:
        at = [at for at, batch in self.reads if any(map(says, batch))]
        gaps = sorted(later - sooner for sooner, later in itertools.pairwise(at))
        usage: Usage | None = self.finish.usage if self.finish is not None else None
        n_tokens = usage.output_tokens if usage is not None else estimate_tokens(self._n_bytes)
        span = at[-1] - at[0] if at else 0.0
        return Pace(
            ttft_s=_rounded(at[0] - self.asked_at) if at else None,
            took_s=_rounded(self.ended_at - self.asked_at) if self.ended_at is not None else None,
            itl_p50_s=percentile(gaps, 50),
            itl_p99_s=percentile(gaps, 99),
            tokens_per_s=round((n_tokens - 1) / span, 1) if span > 0 and n_tokens > 1 else None,
            input_tokens=usage.input_tokens if usage is not None else None,
            cached_tokens=usage.cached_tokens if usage is not None else None,
            output_tokens=usage.output_tokens if usage is not None else None,
            reasoning_tokens=usage.reasoning_tokens if usage is not None else None,
        )


def recorded_pace(take: Take) -> Pace:
    heard = Heard(0.0, ended_at=take.duration_s)
    for at, event in take.events:
        match event:
            case Sampled(batch=batch):
                heard.hear(batch, at)
            case Started() | SampleFailed():
                pass
    return heard.pace()


def percentile(ordered: Sequence[float], percent: float) -> float | None:
    """The nearest rank; None of nothing."""
    return _rounded(ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]) if ordered else None


def _rounded(seconds: float) -> float:
    return round(seconds, 6)
