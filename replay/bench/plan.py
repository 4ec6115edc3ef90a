"""One session of a shape as numbers: what each step brings, says and waits for; and what that sums up to."""

from collections.abc import Iterator
from random import Random

from attrs import define, field, frozen

from .draws import chosen
from .shapes import (
    BYTES_PER_TOKEN,
    COMPACTED_ABOVE,
    COMPACTED_TO,
    CONSTANT_TOKENS,
    HUMAN_GAP_S,
    MOST_IN_A_FRAME,
    OVERHEAD_S,
    USER_TEXT,
    Habits,
    Shape,
)

CONSTANT_BYTES = (20 + 15) * 1024 + 1536
"""Of every request: 20 KiB of tools, 15 KiB of instructions, and what stands around them."""


@frozen(kw_only=True)
class PlannedCall:
    """A call of one step. ``took_s`` is the tool's time."""

    tool: str
    took_s: float


@frozen(kw_only=True)
class Step:
    """One model call; tokens.

    Attributes:
        of_user: a person begins it; else it brings the outputs of the previous step's calls.
        carried: what it brings from before: the start of a session, or a summary.
        new: what it brings of its own.
        anew: it continues nothing, since the conversation was compacted.
        context: of the request, in all.
        kept: of ``output``, what stays in the conversation.
        gap_s: how long the person took before it; 0 at the beginning and between tools.
        overhead_s: of the client, with the calls of the step before.
    """

    of_user: bool
    carried: int
    new: int
    anew: bool
    context: int
    output: int
    kept: int
    calls: tuple[PlannedCall, ...]
    gap_s: float
    overhead_s: float


@frozen(kw_only=True)
class Plan:
    """One thread, with those that it starts.

    Attributes:
        children: of each, after which step it starts.
    """

    shape: Shape
    steps: tuple[Step, ...]
    children: "tuple[tuple[int, Plan], ...]" = ()

    def threads(self) -> "Iterator[Plan]":
        """This one and all that it starts."""
        yield self
        for _, child in self.children:
            yield from child.threads()


@frozen(kw_only=True)
class Totals:
    """What a session comes to; tokens and bytes.

    Attributes:
        frames: what the outputs of tools bring, in all.
        final_context: of the parent, its last answer included.
        contexts: of all requests.
        up_incremental, up_full: sent by the client where a request brings what is new, and where it brings everything.
    """

    steps: int
    calls: int
    frames: int
    output: int
    final_context: int
    contexts: int
    up_incremental: int
    up_full: int

    @classmethod
    def of(cls, plan: Plan) -> "Totals":
        steps = [step for thread in plan.threads() for step in thread.steps]
        constant, last = CONSTANT_BYTES * len(steps), plan.steps[-1]
        return cls(
            steps=len(steps),
            calls=sum(len(step.calls) for step in steps),
            frames=sum(step.new for step in steps if not step.of_user),
            output=sum(step.output for step in steps),
            final_context=last.context + last.kept,
            contexts=sum(step.context for step in steps),
            up_incremental=round(constant + BYTES_PER_TOKEN * sum(step.carried + step.new for step in steps)),
            up_full=round(constant + BYTES_PER_TOKEN * sum(step.context - CONSTANT_TOKENS for step in steps)),
        )


def plan(shape: Shape, random: Random) -> Plan:
    """A session of ``shape``; the same generator state gives the same session."""
    steps = tuple(_Planner(shape, random).steps())
    children = shape.children
    if children is None:
        return Plan(shape=shape, steps=steps)
    started = tuple((after, plan(children.shape, random)) for after in children.after for _ in range(children.n_each))
    return Plan(shape=shape, steps=steps, children=started)


@define(eq=False)
class _Planner:
    shape: Shape
    random: Random
    _context: int = 0
    _steps: list[Step] = field(factory=list)

    def steps(self) -> list[Step]:
        for n_request, n_tool_steps in enumerate(self.shape.requests.counts(self.random)):
            resumed = n_request == 0 and self.shape.carried is not None
            self._add(0 if resumed else self._whole(USER_TEXT.draw(self.random)), of_user=True, calls=n_tool_steps > 0)
            for n in range(n_tool_steps):
                self._add(self._frame(), of_user=False, calls=n < n_tool_steps - 1)
        return self._steps

    def _add(self, new: int, *, of_user: bool, calls: bool) -> None:
        random, habits = self.random, self.shape.habits
        first, anew, carried = not self._steps, False, 0
        if first:
            carried = self._start()
            self._context = CONSTANT_TOKENS + carried
        elif self.shape.compacts and self._context + new > COMPACTED_ABOVE:
            anew, total = True, self._whole(COMPACTED_TO.draw(random))
            carried = max(total - CONSTANT_TOKENS, 1)
            self._context = CONSTANT_TOKENS + carried
        self._context += new
        made = self._calls(habits) if calls else ()
        scale = (habits.output_base + habits.output_per_call * len(made)) or 1.0
        output = self._whole(scale * habits.output.draw(random))
        kept = max(1, round(habits.kept_share * output))
        self._steps.append(
            Step(
                of_user=of_user,
                carried=carried,
                new=new,
                anew=anew,
                context=self._context,
                output=output,
                kept=kept,
                calls=made,
                gap_s=HUMAN_GAP_S.draw(random) if of_user and not first else 0.0,
                overhead_s=0.0 if of_user else OVERHEAD_S.draw(random),
            )
        )
        self._context += kept

    def _start(self) -> int:
        if self.shape.carried is not None:
            return self._whole(self.shape.carried.draw(self.random))
        return self.shape.base - CONSTANT_TOKENS

    def _frame(self) -> int:
        habits, at = self.shape.habits, len(self._steps)
        n_drawn = len(self._steps[-1].calls) if habits.frame_is_per_call else 1
        factor = habits.early[at - 1] if at <= len(habits.early) else 1.0
        drawn = factor * sum(habits.frame.draw(self.random) for _ in range(n_drawn))
        return self._whole(min(drawn, MOST_IN_A_FRAME))

    def _calls(self, habits: Habits) -> tuple[PlannedCall, ...]:
        made = list[PlannedCall]()
        for _ in range(habits.n_calls.draw(self.random)):
            tool, took_s = chosen(habits.tools_s, self.random)
            made.append(PlannedCall(tool=tool, took_s=took_s.draw(self.random)))
        return tuple(made)

    @staticmethod
    def _whole(tokens: float) -> int:
        return max(1, round(tokens))
