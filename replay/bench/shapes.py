"""Shapes of agent sessions: how many steps and calls, how many tokens each way, how long tools and people take.

A *request* is one message of a person up to the final answer; a *step* is one model call. The distributions are fitted
to public traces of Claude Code and Codex sessions (TraceLab, arXiv 2606.30560, and the kv-cache-tester corpus); the
fits are estimates, and a token stands for 4.2 bytes of JSON in them. Tokens, unless a name ends in ``_s``: seconds.
"""

from random import Random
from typing import Protocol

from attrs import frozen

from .draws import Constant, Count, Draw, LogNormal, Mixture

BYTES_PER_TOKEN = 4.2
"""Of new items, as JSON."""

CONSTANT_TOKENS = 8_500
"""Of a context: instructions and tools, which every request carries."""

COMPACTED_ABOVE = 240_000
COMPACTED_TO = LogNormal(65_000, 0.4)
"""A conversation that would grow beyond the first begins anew with a summary of the second's size."""

MOST_IN_A_FRAME = 40_000
OVERHEAD_S = LogNormal(0.13, 0.5)
"""Of the client, around the calls of one step."""

HUMAN_GAP_S = Mixture(((0.95, LogNormal(70, 1.75)), (0.05, LogNormal(4 * 3600, 1.5))))
USER_TEXT = LogNormal(150, 2.0, most=20_000)


class Requests(Protocol):
    """How the steps that tools cause are spread over a session's requests."""

    def counts(self, random: Random) -> list[int]:
        """Such steps of each request."""
        ...


@frozen
class Fixed:
    n_steps: tuple[int, ...]

    def counts(self, random: Random) -> list[int]:
        return [*self.n_steps]


@frozen
class Drawn:
    """Each request for itself; a share of them calls no tool."""

    n_requests: int
    idle_share: float
    n_steps: LogNormal

    def counts(self, random: Random) -> list[int]:
        drawn = (
            0 if random.random() < self.idle_share else round(self.n_steps.draw(random)) for _ in range(self.n_requests)
        )
        return [*drawn]


@frozen
class Spread:
    """A fixed sum, spread by weights; a share of the requests calls no tool, but never all."""

    n_requests: int
    idle_share: float
    weight: LogNormal
    n_steps: int

    def counts(self, random: Random) -> list[int]:
        weights = [
            0.0 if random.random() < self.idle_share else self.weight.draw(random) for _ in range(self.n_requests)
        ]
        if not any(weights):
            weights[0] = 1.0
        counts, so_far, given = list[int](), 0.0, 0
        for weight in weights:
            so_far += weight
            upto = round(self.n_steps * so_far / sum(weights))
            counts.append(upto - given)
            given = upto
        return counts


@frozen(kw_only=True)
class Habits:
    """How one kind of agent works.

    Attributes:
        output: of a step. Where ``output_base`` and ``output_per_call`` are given it is a factor of what they make.
        frame: what the outputs of a step's calls bring, together; of each call where ``frame_is_per_call``.
        early: factors of ``frame`` at the first steps of a session: a session begins with much reading.
        kept_share: of an output, stays in the conversation; the rest is reasoning, which is dropped.
        n_calls: of a step that calls; at least one.
        tools_s: names of tools, each with its share of the calls and the time of one.
    """

    output: Draw
    frame: Draw
    kept_share: float
    n_calls: Count
    tools_s: tuple[tuple[float, tuple[str, Draw]], ...]
    early: tuple[float, ...] = ()
    output_base: float = 0.0
    output_per_call: float = 0.0
    frame_is_per_call: bool = False


@frozen
class Children:
    """Sub-agents that a parent starts in waves, and waits for.

    Args:
        after: steps of the parent that start a wave, from 0.
        n_each: sub-agents of one wave.
    """

    shape: "Shape"
    after: tuple[int, ...]
    n_each: int


@frozen(kw_only=True)
class Shape:
    """
    Attributes:
        base: the context of the first request before the person's words; not used where something is ``carried``.
        carried: what the first request brings beside instructions and tools: the session is resumed.
        compacts: where its context would grow too long; else it is taken to end before.
    """

    name: str
    says: str
    requests: Requests
    habits: Habits
    base: int = 14_000
    carried: Draw | None = None
    compacts: bool = True
    children: Children | None = None


EXEC_S = Mixture(((0.41, Constant(0.02)), (0.565, LogNormal(0.323, 0.8)), (0.025, LogNormal(15, 0.8, most=60))))
POLL_S = Mixture(((0.28, Constant(0.02)), (0.72, LogNormal(5, 1.94, most=300))))
TOOLS_S = (
    (0.65, ("shell", EXEC_S)),
    (0.22, ("poll", POLL_S)),
    (0.085, ("edit", LogNormal(0.059, 2.36, most=10))),
    (0.045, ("search", LogNormal(1.2, 2.2, most=600))),
)
N_CALLS = Count((0, 0.739, 0.155, 0.07, 0.026, 0.01))

CODEX = Habits(
    output=Mixture(((0.22, LogNormal(42, 0.25)), (0.78, LogNormal(276, 1.125)))),
    frame=Mixture(((0.25, LogNormal(60, 0.6)), (0.75, LogNormal(450, 1.9, most=16_000)))),
    early=(2.2,) * 5,
    kept_share=0.8,
    n_calls=N_CALLS,
    tools_s=TOOLS_S,
)
CLAUDE = Habits(
    output=LogNormal(252, 1.42, most=16_000),
    frame=LogNormal(292, 1.795, most=24_000),
    early=(7.0, *(2.2,) * 4),
    kept_share=1.0,
    n_calls=N_CALLS,
    tools_s=TOOLS_S,
)
SUB_AGENT = Habits(
    output=CLAUDE.output,
    frame=CLAUDE.frame,
    early=(2.2,) * 5,
    kept_share=1.0,
    n_calls=N_CALLS,
    tools_s=TOOLS_S,
)
RESUMED = Habits(output=CODEX.output, frame=CODEX.frame, kept_share=0.8, n_calls=N_CALLS, tools_s=TOOLS_S)
BURST = Habits(
    output=LogNormal(1, 0.3),
    output_base=40,
    output_per_call=55,
    frame=LogNormal(120, 1),
    frame_is_per_call=True,
    kept_share=0.8,
    n_calls=Count((0, 0, 0, 1, 1, 1, 1, 1, 1)),
    tools_s=((1.0, ("shell", LogNormal(0.08, 0.6))),),
)
CHILD = Shape(name="fanout-child", says="one sub-agent of fanout", requests=Fixed((10,)), habits=SUB_AGENT, base=10_500)

SHAPES = {
    shape.name: shape
    for shape in (
        Shape(
            name="chatty",
            says="a person asks eight times, with few calls in between",
            requests=Drawn(8, 0.42, LogNormal(2.2, 0.8, most=6)),
            habits=CODEX,
        ),
        Shape(
            name="codex-typical",
            says="three requests to Codex, 43 steps",
            requests=Fixed((20, 12, 8)),
            habits=CODEX,
        ),
        Shape(
            name="claude-typical",
            says="three requests to Claude Code, 43 steps",
            requests=Fixed((16, 12, 12)),
            habits=CLAUDE,
            base=19_000,
        ),
        Shape(
            name="codex-long",
            says="412 steps of Codex, compacted on the way",
            requests=Spread(12, 0.42, LogNormal(1, 1.2), 400),
            habits=CODEX,
        ),
        Shape(
            name="burst-tools",
            says="one request, 60 steps of three to eight quick calls",
            requests=Fixed((60,)),
            habits=BURST,
        ),
        Shape(
            name="fanout",
            says="a parent and eight sub-agents, four at a time",
            requests=Fixed((20,)),
            habits=CODEX,
            children=Children(CHILD, after=(4, 12), n_each=4),
        ),
        Shape(
            name="resume-full",
            says="a long session sent whole on a new connection, then ten steps",
            requests=Fixed((10,)),
            habits=RESUMED,
            carried=LogNormal(119_000, 0.9, least=30_000, most=245_000),
            compacts=False,
        ),
    )
}
"""By name."""
