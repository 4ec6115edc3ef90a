"""How fast a recorded take is played: at once, as recorded, scaled, or at so many tokens a second."""

import itertools
import math
import re
from collections.abc import Iterable, Iterator

from attrs import frozen

from turntape.core.seam import Arguments, Increment, Reasoning, Refusal, Summary, Text
from turntape.transport.backends.base import Batch

from .errors import ReplayError

FORMS = "instant, recorded, xN for N times as fast as recorded, or N for N tokens a second"

N_JOINED = 64
"""Increments that are said in one go where nothing waits: each go costs a look at every client, and a write. Ours."""

_TOKENS = (Text, Refusal, Reasoning, Summary, Arguments)


@frozen
class Pace:
    """When each batch of a take is due. All times are counted from the request, so that no delay adds up.

    Attributes:
        speed: how many times as fast as recorded; infinite for no waiting.
        tokens_per_s: in place of that: increments of text come evenly, one at a time, the first at once.
        joined: nothing waits, and batches are joined: the client gets the same events, in fewer pieces.
    """

    speed: float = math.inf
    tokens_per_s: float | None = None
    joined: bool = False

    @classmethod
    def of(cls, speed: "float | str | Pace") -> "Pace":
        """
        Args:
            speed: a pace, a factor, or one as ``--speed`` writes it.

        Raises:
            ReplayError: it is none of them.
        """
        if isinstance(speed, Pace):
            return speed
        if isinstance(speed, str):
            return cls._parsed(speed)
        if not speed > 0:
            raise ReplayError(f"The speed should be a number above 0, but it is {speed}.")
        return cls(speed)

    @classmethod
    def _parsed(cls, text: str) -> "Pace":
        if text in ("instant", "recorded"):
            return cls(joined=True) if text == "instant" else cls(1.0)
        match = re.fullmatch(r"(x?)(\d+(?:\.\d+)?)", text, re.ASCII)
        number = float(match[2]) if match else 0.0
        if match is None or not 0 < number < math.inf:
            raise ReplayError(f"The speed {text[:32]!r} is none: give {FORMS}, with N above 0.")
        return cls(number) if match[1] else cls(tokens_per_s=number)

    def __str__(self) -> str:
        if self.tokens_per_s is not None:
            return f"{self.tokens_per_s:g} tokens/s"
        if self.speed == 1:
            return "as recorded"
        return f"{self.speed:g} times as fast as recorded" if math.isfinite(self.speed) else "instant"

    def due(self, offset_s: float) -> float:
        """When what was recorded at ``offset_s`` is due, in seconds since the request."""
        return 0.0 if self.tokens_per_s is not None else offset_s / self.speed

    def timed(self, batches: Iterable[tuple[float, Batch]]) -> Iterator[tuple[float, Batch]]:
        """Each batch with when it is due; at so many tokens a second they are cut anew."""
        if self.joined:
            every = (increment for _, batch in batches for increment in batch)
            while joined := tuple(itertools.islice(every, N_JOINED)):
                yield 0.0, joined
            return
        if self.tokens_per_s is None:
            for offset_s, batch in batches:
                yield offset_s / self.speed, batch
            return
        due, n_tokens = 0.0, 0
        held: list[Increment] = []
        for increment in (increment for _, batch in batches for increment in batch):
            if isinstance(increment, _TOKENS):
                at, n_tokens = n_tokens / self.tokens_per_s, n_tokens + 1
                if at > due and held:
                    yield due, tuple(held)
                    held = []
                due = at
            held.append(increment)
        if held:
            yield due, tuple(held)
