"""The model of a rollout: a backend that says what the rollout says, at a given speed, in any process."""

from collections.abc import AsyncGenerator, Iterator
from functools import lru_cache

import trio
from attrs import define, field, frozen

from turntape.core.seam import Arguments, Finish, Increment, Message, StartSample, Text, ToolCall, Usage
from turntape.transport.backends.base import BackendError, Batch

from .generating import generate
from .rollout import Item, Rollout, Turn
from .shapes import SHAPES

MARK = "turntape_bench"
"""Field of a request: which thread of which session it is from. It stays the same for all of a thread's turns."""

MAX_BATCH = 64
MIN_WAIT_S = 0.004
"""A paced answer wakes up no more often than this and brings all that is due, as servers do that batch their streams."""

N_ROLLOUTS = 64
N_THREADS = 1 << 16


@frozen
class Mark:
    """
    Args:
        run: tells apart two sessions of the same seed.
    """

    shape: str
    seed: int
    thread: int
    run: str

    def __str__(self) -> str:
        return f"{self.shape}/{self.seed}/{self.thread}/{self.run}"

    @classmethod
    def parse(cls, text: str) -> "Mark":
        """Raises ``BackendError``."""
        shape, *rest = text.split("/")
        try:
            seed, thread, run = rest
            return cls(shape, int(seed), int(thread), run)
        except ValueError:
            raise BackendError(
                f"This server answers only a bench: its requests carry {MARK!r}.", code="invalid_prompt", status=400
            ) from None


@lru_cache(N_ROLLOUTS)
def rollout_of(shape: str, seed: int) -> Rollout:
    """The session that client and model know, made once in a process.

    Raises:
        KeyError: there is no such shape.
    """
    return generate(SHAPES[shape], seed)


@define(eq=False)
class RolloutModel:
    """A ``Backend``.

    Args:
        tokens_per_s: 0 is as fast as they are taken.
    """

    tokens_per_s: float = 0.0
    models: tuple[str, ...] = ("bench",)
    _n_asked: dict[str, int] = field(factory=dict)

    @trio.as_safe_channel
    async def sample(self, start: StartSample) -> AsyncGenerator[Batch, None]:
        turn = self._turn(str(start.request.raw.get(MARK, "")))
        yield ()
        began, rate = trio.current_time(), self.tokens_per_s
        ends = began + turn.output_tokens / rate if rate else began
        batch = list[Increment]()
        for n, increments in enumerate(
            pieces(turn), turn.reasoning_tokens + 1
        ):  # reasoning takes time, and is not shown
            if rate and (due := min(began + n / rate, ends)) > (now := trio.current_time()):
                if batch:
                    yield tuple(batch)
                    batch = []
                await trio.sleep_until(max(due, min(now + MIN_WAIT_S, ends)))
            batch += increments
            if len(batch) >= MAX_BATCH:
                yield tuple(batch)
                batch = []
        if ends > trio.current_time():
            if batch:
                yield tuple(batch)
                batch = []
            await trio.sleep_until(ends)
        usage = Usage(start.context.n_tokens, turn.output_tokens, start.cached, turn.reasoning_tokens)
        yield (*batch, Finish("stop", usage))

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    def _turn(self, text: str) -> Turn:
        """The next of its thread."""
        mark = Mark.parse(text)
        if mark.shape not in SHAPES:
            raise BackendError(f"There is no shape {mark.shape[:40]!r}.", code="invalid_prompt", status=400)
        threads = rollout_of(mark.shape, mark.seed).threads
        n_asked = self._n_asked.get(text, 0)
        if not (0 <= mark.thread < len(threads) and n_asked < len(threads[mark.thread])):
            raise BackendError("This session is over.", code="invalid_prompt", status=400)
        if text not in self._n_asked and len(self._n_asked) >= N_THREADS:
            self._n_asked.pop(next(iter(self._n_asked)))
        self._n_asked[text] = n_asked + 1
        return threads[mark.thread][n_asked]


def pieces(turn: Turn) -> Iterator[tuple[Increment, ...]]:
    """The answer, a token each: as many as the turn has that are shown, or fewer where its text has fewer characters."""
    n_left, items = turn.output_tokens - turn.reasoning_tokens, turn.said
    for n, item in enumerate(items):
        n_here = max(1, n_left // (len(items) - n))
        n_left -= n_here
        head, text = _told(item)
        size = max(1, -(-len(text) // n_here))
        for at in range(0, max(len(text), 1), size):
            piece = text[at : at + size]
            said: Increment = Arguments(piece) if isinstance(head, ToolCall) else Text(piece)
            yield (head, said) if at == 0 else (said,)


def _told(item: Item) -> tuple[Increment, str]:
    if item["type"] == "function_call":
        return ToolCall(item["call_id"], item["name"]), item["arguments"]
    return Message(None), item["content"][0]["text"]
