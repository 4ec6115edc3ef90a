"""A tool call that was required, at servers that do not see to it: text waits until it comes, and it is asked for twice."""

from attrs import define, evolve, field

from turntape.core.seam import Finish, Increment, Refusal, Text, ToolCall, Usage

from .base import Batch

REMINDER = "Call one of the tools now; do not answer in text."
"""What the model is told, as a user's message, if it answered without a call. Ours."""


@define(eq=False)
class RequiredCall:
    """Watches the first answer to a request that requires a call.

    Args:
        is_wanted: a call is required. If not, everything passes.

    Attributes:
        held: text that came before any call.
    """

    is_wanted: bool
    held: list[Increment] = field(factory=list)

    def passed(self, batch: Batch) -> Batch:
        """What may be said by now. A refusal is an answer too."""
        if not self.is_wanted:
            return batch
        if any(isinstance(increment, ToolCall | Refusal) for increment in batch):
            self.is_wanted = False
            return (*self.released(), *batch)
        self.held += (increment for increment in batch if isinstance(increment, Text))
        return tuple(increment for increment in batch if not isinstance(increment, Text))

    def released(self) -> Batch:
        """The text that was held back: no call comes after it."""
        held, self.held = self.held, []
        return tuple(held)

    def is_missing(self, finish: Increment) -> bool:
        """Whether the answer that ended so lacks its call; one that was cut short could not come to it."""
        return self.is_wanted and isinstance(finish, Finish) and finish.reason == "stop"


def with_spent(batch: Batch, spent: Usage | None) -> Batch:
    """``batch``, whose last is a ``Finish``, with the counts of an earlier answer added to its own."""
    finish = batch[-1]
    if spent is None or not isinstance(finish, Finish) or finish.usage is None:
        return batch
    own = finish.usage
    total = Usage(
        own.input_tokens + spent.input_tokens,
        own.output_tokens + spent.output_tokens,
        own.cached_tokens + spent.cached_tokens,
        own.reasoning_tokens + spent.reasoning_tokens,
    )
    return (*batch[:-1], evolve(finish, usage=total))
