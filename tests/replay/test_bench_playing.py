"""Rollouts played against our server: four designs, one conversation."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from attrs import evolve

from turntape.core.seam import StartSample
from turntape.core.session import Session
from turntape.replay.bench.client import DESIGNS, BenchFailed
from turntape.replay.bench.generating import generate
from turntape.replay.bench.model import RolloutModel
from turntape.replay.bench.network import Network
from turntape.replay.bench.playing import Played, Playing, play
from turntape.replay.bench.shapes import SHAPES
from turntape.transport.http_connections import Connect
from turntape.transport.memory_store import MemoryStore
from turntape.transport.server import ServerSettings, serve_connection
from turntape.transport.service import Service

URL = "http://127.0.0.1/v1"


class Watched(RolloutModel):
    """The same model, which keeps what it was asked."""

    def __init__(self, tokens_per_s: float = 0.0) -> None:
        super().__init__(tokens_per_s)
        self.starts: list[StartSample] = []

    def sample(self, start: StartSample):  # type: ignore[no-untyped-def]
        self.starts.append(start)
        return super().sample(start)


@asynccontextmanager
async def served(model: RolloutModel) -> AsyncIterator[Connect]:
    """Our server in memory; gives what connects to it."""
    service = Service(ServerSettings(), Session, model, MemoryStore(), trio.Event())
    async with trio.open_nursery() as nursery:

        async def connect(host: str, port: int) -> trio.abc.Stream:
            ours, theirs = trio.testing.memory_stream_pair()
            nursery.start_soon(serve_connection, service, theirs)
            return ours

        yield connect
        nursery.cancel_scope.cancel()


async def played(model: RolloutModel, shape: str, playing: Playing, seed: int = 1) -> Played:
    async with served(model) as connect:
        return await play(generate(SHAPES[shape], seed), seed, playing, URL, connect=connect)


@pytest.mark.parametrize("shape", ["chatty", "fanout"])
async def test_each_design_asks_the_model_for_the_same_conversations(shape: str) -> None:
    """Whatever is sent, by whatever way, the model sees one and the same conversation at each turn."""
    asked = []
    for design in DESIGNS:
        model = Watched()
        found = await played(model, shape, Playing(design=design))
        assert len(found.turns) == generate(SHAPES[shape], 1).n_turns
        asked.append(sorted(start.context.fold.key for start in model.starts))
    assert asked[1:] == asked[:1] * 3


async def test_a_compacted_conversation_is_begun_anew_in_each_design() -> None:
    """A turn that continues nothing is asked with what it brings, and with nothing else."""
    rollout = generate(SHAPES["chatty"], 1)
    [thread] = rollout.threads
    turns = [
        evolve(turn, anew=at in (0, 3), new=thread[0].new if at == 3 else turn.new) for at, turn in enumerate(thread)
    ]
    for design in DESIGNS:
        model = Watched()
        async with served(model) as connect:
            await play(evolve(rollout, threads=(tuple(turns[:4]),)), 1, Playing(design=design), URL, connect=connect)
        assert model.starts[3].context.fold.key == model.starts[0].context.fold.key


async def test_only_what_is_new_goes_up(autojump_clock: trio.testing.MockClock) -> None:
    """With history over HTTP a client sends as much as the rollout says, and an appending one far less than a creating one."""
    rollout, up = generate(SHAPES["burst-tools"], 1), dict[str, int]()
    for design in DESIGNS:
        up[design] = (await played(Watched(), "burst-tools", Playing(design=design))).counts.up
    assert up["http-full"] == pytest.approx(rollout.up_bytes(full=True), rel=0.01)
    assert up["ws-create"] == pytest.approx(rollout.up_bytes(full=False), rel=0.02)
    assert up["http-chain"] == pytest.approx(up["ws-create"], rel=0.02)
    assert up["ws-append"] < up["ws-create"] / 5


async def test_a_paced_model_takes_its_tokens_time(autojump_clock: trio.testing.MockClock) -> None:
    """At 100 tokens a second a rollout takes a hundredth of a second for each token, reasoning included."""
    [thread] = generate(SHAPES["chatty"], 1).threads
    found = await played(Watched(100.0), "chatty", Playing(design="ws-create"))
    assert found.wall_s == pytest.approx(sum(turn.output_tokens for turn in thread) / 100, abs=0.001)
    assert sum(turn.overhead_s(100.0) for turn in found.turns) == pytest.approx(0, abs=0.001)
    assert found.turns[0].ttft_s == pytest.approx((thread[0].reasoning_tokens + 1) / 100, abs=0.005)


async def test_waits_are_played_up_to_their_cap(autojump_clock: trio.testing.MockClock) -> None:
    """Tools and people take their time, each wait at most as long as the cap."""
    [thread] = generate(SHAPES["chatty"], 1).threads
    found = await played(Watched(), "chatty", Playing(design="ws-append", gap_cap_s=2.0))
    assert found.wall_s == pytest.approx(sum(turn.wait_s(2.0) for turn in thread), abs=0.001)
    assert found.waited_s == pytest.approx(found.wall_s, abs=0.001)


async def test_a_new_connection_for_each_post_costs_a_round_trip_each(autojump_clock: trio.testing.MockClock) -> None:
    """With 100 ms there and back: a cold POST takes two, a kept one and a WebSocket's turn one, and the socket opens once."""
    network, n = Network(rtt_s=0.1), generate(SHAPES["chatty"], 1).n_turns
    walls = dict[tuple[str, bool], float]()
    for design, cold in [("http-full", True), ("http-full", False), ("ws-create", True), ("ws-append", True)]:
        walls[design, cold] = (
            await played(Watched(), "chatty", Playing(design=design, cold=cold, network=network))
        ).wall_s
    assert walls["http-full", True] == pytest.approx(0.2 * n, abs=0.01)
    assert walls["http-full", False] == pytest.approx(0.1 * n + 0.1, abs=0.01)
    assert walls["ws-create", True] == pytest.approx(0.1 * n + 0.2, abs=0.01)
    assert walls["ws-append", True] == pytest.approx(0.1 * n + 0.2, abs=0.01)


async def test_an_uplink_holds_back_what_is_large(autojump_clock: trio.testing.MockClock) -> None:
    """At a million bytes a second the wall time is a millionth of a second for each byte that goes up."""
    found = await played(Watched(), "chatty", Playing(design="http-full", network=Network(up=1e6)))
    assert found.wall_s == pytest.approx(found.counts.up / 1e6, rel=0.001)


async def test_a_refusal_ends_the_run_with_what_the_server_said() -> None:
    """A turn that cannot be answered is no measurement: the server's words are told."""
    rollout = evolve(generate(SHAPES["chatty"], 1), name="unheard-of")
    for design in DESIGNS:
        async with served(RolloutModel()) as connect:
            with pytest.raises(BenchFailed, match="There is no shape 'unheard-of'"):
                await play(rollout, 1, Playing(design=design), URL, connect=connect)
