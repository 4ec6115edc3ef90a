"""A rollout: an agent session as its client plays it, item for item, with what the model answers and how long tools take."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import orjson
from attrs import field, frozen

Item = dict[str, Any]


@frozen(eq=False, kw_only=True, slots=False)  # it keeps what it was asked once
class Turn:
    """One model call.

    Attributes:
        settings: that its request carries: instructions, tools and the like, without model and input. Turns share them.
        new: items that it adds to the conversation.
        said: items of the answer, as a client sends them back.
        anew: it continues nothing: ``new`` is the whole conversation.
        output_tokens: that the model samples, reasoning included.
        reasoning_tokens: those of them that ``said`` does not show.
        tools_s: how long each call of the turn before took; they run side by side.
        overhead_s: of the client, after them.
        gap_s: how long the person took before it; of a recording, all that passed.
        after: turns of other threads that must be over before it, each by the numbers of thread and turn, from 0.
    """

    settings: Item = field(repr=False)
    new: tuple[Item, ...]
    said: tuple[Item, ...]
    anew: bool = False
    output_tokens: int
    reasoning_tokens: int = 0
    tools_s: tuple[float, ...] = ()
    overhead_s: float = 0.0
    gap_s: float = 0.0
    after: tuple[tuple[int, int], ...] = ()

    @cached_property
    def constant_bytes(self) -> int:
        """Of its request, without the items."""
        return len(orjson.dumps(self.body([], model="")))

    def body(self, items: Sequence[Item], *, model: str) -> Item:
        """A request of these items."""
        return {"type": "response.create", "model": model, **self.settings, "input": [*items]}

    def wait_s(self, cap_s: float) -> float:
        """Seconds between the answer before and this request, at most ``cap_s``."""
        return min(self.gap_s + max(self.tools_s, default=0.0) + self.overhead_s, cap_s)


@frozen(eq=False)
class Rollout:
    """A session and its sub-agents.

    Attributes:
        threads: conversations beside each other, each in its order.
    """

    name: str
    threads: tuple[tuple[Turn, ...], ...] = field(repr=False)

    @property
    def n_turns(self) -> int:
        return sum(map(len, self.threads))

    def up_bytes(self, *, full: bool) -> int:
        """What the client sends in all, by requests with what is new, or with the whole conversation (``full``)."""
        total = 0
        for thread in self.threads:
            kept = 0
            for turn in thread:
                new = encoded_bytes(turn.new)
                kept = kept + new if full and not turn.anew else new
                total += turn.constant_bytes + kept
                kept += encoded_bytes(turn.said)
        return total


def encoded_bytes(items: Sequence[Item]) -> int:
    """Of the items as JSON, with a comma behind each."""
    return sum(len(orjson.dumps(item)) + 1 for item in items)
