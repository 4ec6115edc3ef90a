"""The emulated network: what arrives when, on a clock that does not wait."""

import math

import pytest
import trio
import trio.testing

from turntape.replay.bench.flow import FIRST_WINDOW_BYTES, Flow
from turntape.replay.bench.network import WINDOW_BYTES, Counts, Network


async def connected(
    nursery: trio.Nursery, network: Network, counts: Counts | None = None
) -> tuple[trio.abc.Stream, trio.abc.Stream]:
    """A connection through ``network``: its near and its far end."""
    near, far = trio.testing.memory_stream_pair()

    async def opened(host: str, port: int) -> trio.abc.Stream:
        return near

    return await network.connect(nursery, counts or Counts(), opened)("h", 1), far


@pytest.mark.parametrize(("tls", "round_trips"), [(False, 1), (True, 2)])
async def test_a_connection_takes_its_handshakes(
    autojump_clock: trio.testing.MockClock, tls: bool, round_trips: int
) -> None:
    """TCP takes one round trip, TLS another."""
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        await connected(nursery, Network(rtt_s=0.04, tls=tls))
        assert trio.current_time() - began == pytest.approx(0.04 * round_trips)
        nursery.cancel_scope.cancel()


async def test_bytes_take_half_a_round_trip_and_their_own_time(autojump_clock: trio.testing.MockClock) -> None:
    """100 kB at 1 MB/s and 40 ms take 120 ms up, and as much down at the same rate."""
    async with trio.open_nursery() as nursery:
        near, far = await connected(nursery, Network(rtt_s=0.04, up=1e6, down=1e6))
        began, arrived = trio.current_time(), bytearray()
        nursery.start_soon(near.send_all, b"u" * 100_000)
        while len(arrived) < 100_000:
            arrived += await far.receive_some()
        assert trio.current_time() - began == pytest.approx(0.12)
        began, arrived = trio.current_time(), bytearray()
        await far.send_all(b"d" * 100_000)
        while len(arrived) < 100_000:
            arrived += await near.receive_some(50_000)
        assert trio.current_time() - began == pytest.approx(0.12)
        assert arrived == b"d" * 100_000
        nursery.cancel_scope.cancel()


async def test_a_stream_of_small_writes_is_delayed_and_not_slowed_down(autojump_clock: trio.testing.MockClock) -> None:
    """A byte each millisecond arrives each millisecond, half a round trip later."""
    async with trio.open_nursery() as nursery:
        near, far = await connected(nursery, Network(rtt_s=0.04))
        began = trio.current_time()

        async def say() -> None:
            for n in range(50):
                await far.send_all(bytes([n]))
                await trio.sleep(0.001)

        nursery.start_soon(say)
        at = dict[int, float]()
        while len(at) < 50:
            at |= {n: trio.current_time() - began for n in await near.receive_some()}
        assert [at[n] for n in range(50)] == pytest.approx([0.02 + n / 1000 for n in range(50)])
        nursery.cancel_scope.cancel()


async def test_large_requests_arrive_piece_by_piece(autojump_clock: trio.testing.MockClock) -> None:
    """A server reads the first part of a long upload before the last was sent."""
    async with trio.open_nursery() as nursery:
        near, far = await connected(nursery, Network(rtt_s=0.04, up=1e6))
        began = trio.current_time()
        nursery.start_soon(near.send_all, b"u" * 1_000_000)
        await far.receive_some()
        assert trio.current_time() - began < 0.05
        nursery.cancel_scope.cancel()


async def test_the_end_comes_behind_what_was_sent_before(autojump_clock: trio.testing.MockClock) -> None:
    """A server that speaks and hangs up is heard first, and its end is seen as often as one looks."""
    async with trio.open_nursery() as nursery:
        near, far = await connected(nursery, Network(rtt_s=0.04))
        await far.send_all(b"bye")
        await far.aclose()
        assert [await near.receive_some(), await near.receive_some(), await near.receive_some()] == [b"bye", b"", b""]


async def test_a_client_that_does_not_read_holds_its_server_back(autojump_clock: trio.testing.MockClock) -> None:
    """What is on the way to a client is bounded, and goes on when it reads."""
    async with trio.open_nursery() as nursery:
        near, far = trio.testing.lockstep_stream_pair()

        async def opened(host: str, port: int) -> trio.abc.Stream:
            return near

        distant = await Network(rtt_s=0.04).connect(nursery, Counts(), opened)("h", 1)
        n_sent = 0

        async def say() -> None:
            nonlocal n_sent
            while n_sent < 8 * WINDOW_BYTES:
                await far.send_all(bytes(65536))
                n_sent += 65536

        nursery.start_soon(say)
        await trio.testing.wait_all_tasks_blocked()
        assert n_sent <= 2 * WINDOW_BYTES
        n_read = 0
        while n_read < 8 * WINDOW_BYTES:
            n_read += len(await distant.receive_some())
        assert n_sent == 8 * WINDOW_BYTES
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("network", [Network(), Network(rtt_s=0.04)])
async def test_bytes_and_connections_are_counted(autojump_clock: trio.testing.MockClock, network: Network) -> None:
    """With and without a network between."""
    counts = Counts()
    async with trio.open_nursery() as nursery:
        near, far = await connected(nursery, network, counts)
        nursery.start_soon(near.send_all, b"12345")
        await far.receive_some()
        await far.send_all(b"123")
        await near.receive_some()
        assert counts == Counts(up=5, down=3, connections=1)
        await near.aclose()


@pytest.mark.parametrize(("n_windows", "round_trips"), [(1, 0.5), (3, 1.5), (7, 2.5), (15, 3.5)])
def test_a_new_connection_sends_twice_as_much_in_each_round_trip(n_windows: int, round_trips: float) -> None:
    """Ten segments first, then twenty, then forty: the last byte arrives half a round trip after it could leave."""
    assert Flow(0.1, math.inf, True).arrival(n_windows * FIRST_WINDOW_BYTES, 0.0) == pytest.approx(0.1 * round_trips)


def test_bandwidth_limits_a_window_that_has_grown() -> None:
    """Far beyond what the line holds, slow start costs a few round trips, once."""
    plain, slow = Flow(0.04, 2.5e6, False), Flow(0.04, 2.5e6, True)
    assert plain.arrival(2_500_000, 0.0) == pytest.approx(1.02)
    first = slow.arrival(2_500_000, 0.0)
    assert 1.05 < first < 1.2
    assert slow.arrival(2_500_000, first) == pytest.approx(first + 1.0, abs=0.03)


def test_a_connection_that_rests_begins_again_with_a_small_window() -> None:
    """For a moment its window is kept; after many seconds it is as a new one, and no smaller."""
    flow = Flow(0.1, math.inf, True)
    flow.arrival(15 * FIRST_WINDOW_BYTES, 0.0)
    assert flow.arrival(8 * FIRST_WINDOW_BYTES, 0.55) == pytest.approx(0.6)
    assert flow.arrival(3 * FIRST_WINDOW_BYTES, 60.0) == pytest.approx(60.15)


def test_small_writes_do_not_make_a_window_grow() -> None:
    """A window that was never filled says nothing about the line: it stays."""
    flow = Flow(0.1, math.inf, True)
    for n in range(1000):
        flow.arrival(100, n / 100)
    assert flow.window == FIRST_WINDOW_BYTES


async def test_slow_start_holds_a_large_request_back(autojump_clock: trio.testing.MockClock) -> None:
    """Seven first windows take two more round trips than without."""
    for slow_start, expected in ((False, 0.02), (True, 0.1)):
        async with trio.open_nursery() as nursery:
            near, far = await connected(nursery, Network(rtt_s=0.04, slow_start=slow_start))
            began, arrived = trio.current_time(), 0
            nursery.start_soon(near.send_all, bytes(7 * FIRST_WINDOW_BYTES))
            while arrived < 7 * FIRST_WINDOW_BYTES:
                arrived += len(await far.receive_some())
            assert trio.current_time() - began == pytest.approx(expected)
            nursery.cancel_scope.cancel()
