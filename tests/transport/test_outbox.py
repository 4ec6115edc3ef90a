"""Sends that never wait, over memory streams and one real socket."""

import pytest
import trio
import trio.testing

from turntape.transport.outbox import Outbox, SlowClient


async def test_leftovers_are_written_in_order(nursery):
    """What ``put`` cannot write at once leaves later, in order and whole."""
    ours, theirs = trio.testing.lockstep_stream_pair()
    outbox = Outbox(ours)
    nursery.start_soon(outbox.run)
    for n in range(100):
        outbox.put(b"%03d" % n)
    await outbox.send_all(b"end")
    received = b""
    while not received.endswith(b"end"):
        received += await theirs.receive_some(7)
    assert received == b"".join(b"%03d" % n for n in range(100)) + b"end"
    nursery.cancel_scope.cancel()


async def test_put_needs_no_task_where_a_socket_takes_it():
    """On a socket with room, ``put`` has sent before it returns, though nobody writes for it."""
    with trio.fail_after(5):
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        client = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
        outbox = Outbox(await listener.accept())
        outbox.put(b"now")
        assert await client.receive_some() == b"now"
        await outbox.aclose()
        outbox.put(b"after the end")  # goes nowhere: the descriptor may be another's by now
        assert await client.receive_some() == b""
        await listener.aclose()


async def test_cancelling_a_sender_tears_nothing(nursery):
    """A library's send that is cancelled has either not begun or is sent whole."""
    ours, theirs = trio.testing.lockstep_stream_pair()
    outbox = Outbox(ours)
    nursery.start_soon(outbox.run)
    with trio.CancelScope() as scope:
        scope.cancel()
        await outbox.send_all(b"never begun")
    outbox.put(b"A" * 8_000_000)
    with trio.move_on_after(0):
        await outbox.room()
    await outbox.send_all(b"next")
    received = b""
    while not received.endswith(b"next"):
        received += await theirs.receive_some(1 << 20)
    assert received == b"A" * 8_000_000 + b"next"
    nursery.cancel_scope.cancel()


async def test_a_client_that_never_reads_is_refused_more():
    """Past the hard limit ``put`` says so instead of queueing without bound; one large put is let through."""
    outbox = Outbox(trio.testing.memory_stream_pair()[0], hard_limit=10)
    outbox.put(b"x" * 20)
    for _ in range(2):
        with pytest.raises(SlowClient, match="20 bytes"):
            outbox.put(b"x")


async def test_room_waits_for_the_client_and_no_longer(nursery, autojump_clock):
    """``room`` returns at once while little is queued, and else when the client has read."""
    ours, theirs = trio.testing.lockstep_stream_pair()
    outbox = Outbox(ours, high=10)
    outbox.put(b"x" * 10)
    await outbox.room()
    outbox.put(b"x")
    with trio.move_on_after(1) as waiting:
        await outbox.room()
    assert waiting.cancelled_caught
    nursery.start_soon(outbox.run)
    nursery.start_soon(theirs.receive_some, 100)
    with trio.fail_after(1):
        await outbox.room()
        await outbox.flush()
    nursery.cancel_scope.cancel()


async def test_a_client_that_stands_still_is_given_up(nursery, autojump_clock):
    """Who reads nothing for ``stall_s`` is a slow client, for those that wait and for the next ``put``."""
    ours, _ = trio.testing.lockstep_stream_pair()
    outbox = Outbox(ours, high=1, stall_s=30)
    nursery.start_soon(outbox.run)
    outbox.put(b"xx")
    with pytest.raises(SlowClient, match="30 s"):
        await outbox.room()
    assert trio.current_time() == pytest.approx(30)
    with pytest.raises(SlowClient):
        outbox.put(b"x")
    nursery.cancel_scope.cancel()


async def test_a_broken_network_is_silent_and_frees_the_waiting(nursery):
    """After the network failed nothing raises and nobody waits: the reader alone says that the client is gone."""
    ours, theirs = trio.testing.lockstep_stream_pair()
    outbox = Outbox(ours, high=1)
    nursery.start_soon(outbox.run)
    outbox.put(b"xxx")
    await theirs.aclose()
    await outbox.room()
    outbox.put(b"more")
    await outbox.flush()
    nursery.cancel_scope.cancel()


async def test_unread_comes_first():
    """Bytes pushed back are read again before the stream's own, in pieces of the size asked for."""
    ours, theirs = trio.testing.memory_stream_pair()
    outbox = Outbox(ours)
    outbox.unread(b"abc")
    await theirs.send_all(b"def")
    assert [await outbox.receive_some(2) for _ in range(3)] == [b"ab", b"c", b"de"]
