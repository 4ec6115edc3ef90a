"""Cells of a bench, measured: each design beside the others in every repeat, so that what disturbs one disturbs all."""

from collections.abc import Callable, Sequence
from statistics import median

import trio
from attrs import define, field, frozen

from turntape.core.context import estimate_tokens
from turntape.replay.drive.pace import percentile

from .model import rollout_of
from .playing import Played, Playing, play
from .report import Figures, Spread, TurnFigures
from .rollout import Turn, encoded_bytes
from .serving import Served


@frozen(kw_only=True)
class Cell:
    """What is measured as one.

    Attributes:
        sessions: that run side by side; each has a seed of its own, from ``seed`` on.
    """

    shape: str
    seed: int
    tokens_per_s: float
    playing: Playing
    sessions: int = 1


@frozen(kw_only=True)
class Measured:
    """One repeat of a cell; CPU and memory of the server's process, where they can be read."""

    sessions: tuple[Played, ...]
    cpu_s: float | None
    memory_bytes: int | None


async def measure(
    cells: Sequence[Cell], repeat: int, server: Served, note: Callable[[Cell, int], None] = lambda cell, n: None
) -> list[Figures]:
    """Figures of each cell, in the order given.

    Args:
        cells: at the speed of ``server``'s model.
        repeat: how often; one round before them, which warms everything up, is not counted.
        note: is told of each cell that was played, and in which round, 0 being the one that is not counted.

    Raises:
        BenchFailed: a turn was not answered well.
    """
    found: list[list[Measured]] = [[] for _ in cells]
    for n in range(repeat + 1):
        for cell, measured in zip(cells, found, strict=True):
            one = await _once(cell, server)
            if n:
                measured.append(one)
            note(cell, n)
    return [figures(cell, measured) for cell, measured in zip(cells, found, strict=True)]


async def _once(cell: Cell, server: Served) -> Measured:
    crowd = _Crowd(cell, server)
    before = server.cpu_s()
    async with trio.open_nursery() as nursery:
        for n in range(cell.sessions):
            nursery.start_soon(crowd.join, cell.seed + n)
    after = server.cpu_s()
    cpu_s = after - before if before is not None and after is not None else None
    sessions = tuple(played for _, played in sorted(crowd.played.items()))
    return Measured(sessions=sessions, cpu_s=cpu_s, memory_bytes=server.memory_bytes())


@define(eq=False)
class _Crowd:
    cell: Cell
    server: Served
    played: dict[int, Played] = field(factory=dict)

    async def join(self, seed: int) -> None:
        rollout = rollout_of(self.cell.shape, seed)
        self.played[seed] = await play(rollout, seed, self.cell.playing, self.server.base_url)


def figures(cell: Cell, measured: Sequence[Measured]) -> Figures:
    """Medians and spreads over the repeats; of each repeat the median of its sessions."""
    rate = cell.tokens_per_s

    def spread(of: Callable[[Played], float | None]) -> Spread | None:
        values = [[value for one in repeat.sessions if (value := of(one)) is not None] for repeat in measured]
        return Spread.of([median(some) for some in values if some])

    def sure(of: Callable[[Played], float]) -> Spread:
        found = spread(of)
        assert found is not None, "a cell was measured at least once"
        return found

    def cpu(of: Callable[[Played], int]) -> Spread | None:
        return Spread.of([one.cpu_s / sum(map(of, one.sessions)) for one in measured if one.cpu_s is not None])

    return Figures(
        shape=cell.shape,
        design=cell.playing.design,
        tokens_per_s=rate,
        sessions=cell.sessions,
        wall_s=sure(lambda played: played.wall_s),
        overhead_s=sure(lambda played: sum(turn.overhead_s(rate) for turn in played.turns)),
        ttft_s=spread(lambda played: _median([turn.ttft_s for turn in played.turns if turn.ttft_s is not None])),
        after_s=sure(lambda played: median(turn.after_s for turn in played.turns)),
        itl_p50_s=spread(lambda played: percentile(_gaps(played), 50)),
        itl_p99_s=spread(lambda played: percentile(_gaps(played), 99)),
        achieved_tokens_per_s=sure(lambda played: _tokens(played) / sum(turn.took_s for turn in played.turns)),
        up_bytes=sure(lambda played: played.counts.up),
        down_bytes=sure(lambda played: played.counts.down),
        connections=sure(lambda played: played.counts.connections),
        cpu_per_turn_s=cpu(lambda played: len(played.turns)),
        cpu_per_token_s=cpu(_tokens),
        memory_bytes=Spread.of([one.memory_bytes for one in measured if one.memory_bytes is not None]),
        turns=tuple(_turns(cell, [one.sessions[0] for one in measured])),
    )


def _turns(cell: Cell, repeats: Sequence[Played]) -> list[TurnFigures]:
    """Of the first thread."""
    thread = rollout_of(cell.shape, cell.seed).threads[0]
    found = list[TurnFigures]()
    for context_tokens, same in zip(
        _contexts(thread),
        zip(*([turn for turn in played.turns if turn.thread == 0] for played in repeats), strict=True),
        strict=True,
    ):
        ttft_s = _median([turn.ttft_s for turn in same if turn.ttft_s is not None])
        found.append(
            TurnFigures(
                turn=same[0].context_turn,
                context_tokens=context_tokens,
                ttft_s=None if ttft_s is None else round(ttft_s, 7),
                overhead_s=round(median(turn.overhead_s(cell.tokens_per_s) for turn in same), 7),
                after_s=round(median(turn.after_s for turn in same), 7),
            )
        )
    return found


def _contexts(thread: Sequence[Turn]) -> list[int]:
    """Tokens of each turn's request, by its bytes."""
    contexts, kept = list[int](), 0
    for turn in thread:
        new = encoded_bytes(turn.new)
        kept = new if turn.anew else kept + new
        contexts.append(estimate_tokens(turn.constant_bytes + kept))
        kept += encoded_bytes(turn.said)
    return contexts


def _tokens(played: Played) -> int:
    return sum(turn.output_tokens for turn in played.turns)


def _gaps(played: Played) -> list[float]:
    return sorted(gap for turn in played.turns for gap in turn.gaps_s)


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None
