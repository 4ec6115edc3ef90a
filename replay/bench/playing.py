"""One rollout played against a server: its threads beside each other, and what each turn took."""

import secrets
from functools import partial

import trio
from attrs import define, field, frozen

from turntape.replay.drive.wire import Server
from turntape.transport.http_client import HttpClient
from turntape.transport.http_connections import Connect, Connections

from .client import Answer, Asking, BenchFailed, way
from .model import MARK, Mark
from .network import Counts, Network
from .rollout import Rollout, Turn

KEPT_S = 600.0
"""How long a kept connection stays: as long as any pause of a session that is played."""


@frozen(kw_only=True)
class Playing:
    """How rollouts are played.

    Attributes:
        design: one of ``client.DESIGNS``.
        cold: every POST opens a connection of its own, as agents do; else they are kept.
        gap_cap_s: no wait for tools or people is longer; 0 leaves them out.
    """

    design: str
    network: Network = field(factory=Network)
    cold: bool = True
    gap_cap_s: float = 0.0
    model: str = "bench"


@frozen(kw_only=True)
class TurnPlayed:
    """One turn; seconds.

    Attributes:
        context_turn: its number in its thread, from 0.
        ttft_s: from the request's beginning to the first delta; None if there was none.
        took_s: to the terminal event.
        after_s: from the last delta to the terminal event.
        gaps_s: between two reads that brought deltas.
    """

    thread: int
    context_turn: int
    ttft_s: float | None
    took_s: float
    after_s: float
    output_tokens: int
    n_deltas: int
    gaps_s: tuple[float, ...] = field(repr=False)

    def overhead_s(self, tokens_per_s: float) -> float:
        """Of the server and the network: what the turn took beyond the model's own time. 0 tokens/s is a model without any."""
        return self.took_s - (self.output_tokens / tokens_per_s if tokens_per_s else 0.0)


@frozen(kw_only=True)
class Played:
    """
    Attributes:
        waited_s: for tools and people, of the first thread.
    """

    wall_s: float
    waited_s: float
    counts: Counts
    turns: tuple[TurnPlayed, ...] = field(repr=False)


async def play(
    rollout: Rollout,
    seed: int,
    playing: Playing,
    base_url: str,
    *,
    key: str | None = None,
    connect: Connect = trio.open_tcp_stream,
) -> Played:
    """Play the rollout of this shape and seed once.

    Args:
        connect: opens connections beneath the network.

    Raises:
        BenchFailed: a turn was not answered well.
        ValueError: the URL cannot be used.
    """
    try:
        return await _play(rollout, seed, playing, base_url, key, connect)
    except BaseExceptionGroup as group:  # of tasks beside each other, which end together when one fails
        if failed := _failures(group):
            raise failed[0] from None
        raise


async def _play(
    rollout: Rollout, seed: int, playing: Playing, base_url: str, key: str | None, connect: Connect
) -> Played:
    counts = Counts()
    async with trio.open_nursery() as nursery:
        opened = playing.network.connect(nursery, counts, connect)
        connections = Connections(connect=opened, n_idle=0 if playing.cold else 64, idle_s=KEPT_S)
        server = Server(base_url, key, client=HttpClient(connections))
        run, began = _Run(rollout, seed, playing, server), trio.current_time()
        await run.play()
        await server.client.aclose()
        nursery.cancel_scope.cancel()
    turns = sorted(run.turns, key=lambda turn: (turn.thread, turn.context_turn))
    return Played(wall_s=run.ended_at - began, waited_s=run.waited_s, counts=counts, turns=tuple(turns))


def _failures(group: BaseException) -> list[BenchFailed]:
    if isinstance(group, BaseExceptionGroup):
        return [failure for one in group.exceptions for failure in _failures(one)]
    return [group] if isinstance(group, BenchFailed) else []


@define(eq=False)
class _Run:
    rollout: Rollout
    seed: int
    playing: Playing
    server: Server
    turns: list[TurnPlayed] = field(factory=list)
    waited_s: float = 0.0
    ended_at: float = 0.0  # the last turn so far; goodbyes are no part of a rollout
    _over: dict[tuple[int, int], trio.Event] = field(init=False)
    _name: str = field(factory=partial(secrets.token_hex, 8))

    def __attrs_post_init__(self) -> None:
        threads = self.rollout.threads
        self._over = {(n, at): trio.Event() for n, thread in enumerate(threads) for at in range(len(thread))}

    async def play(self) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(len(self.rollout.threads)):
                nursery.start_soon(self._thread, number)

    async def _thread(self, number: int) -> None:
        mark = Mark(self.rollout.name, self.seed, number, self._name)
        there = way(self.playing.design, Asking(self.server, self.playing.model, {MARK: str(mark)}))
        try:
            for at, turn in enumerate(self.rollout.threads[number]):
                for other in turn.after:
                    await self._over[other].wait()
                if wait_s := turn.wait_s(self.playing.gap_cap_s):
                    await trio.sleep(wait_s)
                    self.waited_s += wait_s if number == 0 else 0.0
                self.turns.append(_played(number, at, turn, await there.ask(turn)))
                self.ended_at = trio.current_time()
                self._over[number, at].set()
        finally:
            with trio.move_on_after(1.0, shield=True):
                await there.aclose()


def _played(thread: int, at: int, turn: Turn, answer: Answer) -> TurnPlayed:
    assert answer.ended_at is not None
    return TurnPlayed(
        thread=thread,
        context_turn=at,
        ttft_s=answer.first_at - answer.asked_at if answer.first_at is not None else None,
        took_s=answer.ended_at - answer.asked_at,
        after_s=answer.ended_at - answer.last_at if answer.last_at is not None else 0.0,
        output_tokens=turn.output_tokens,
        n_deltas=answer.n_deltas,
        gaps_s=tuple(answer.gaps_s),
    )
