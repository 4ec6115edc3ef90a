"""Conversations that went on beside each other: their answers end in recorded order, for a client may wait for the first."""

import math
from typing import Any

import pytest
import trio
import trio.testing
from stubbed import answered, taken
from taped import Client, Recording, live, user

from turntape.core.seam import Text
from turntape.replay.stub import FixtureBackend


def both(later_s: float = 0.05, *, begins_s: float = 0.0) -> Recording:
    """Two conversations of two turns each; of the second turns that of ``"one"`` ends first, by ``later_s``.

    Args:
        begins_s: by so much ``"two"`` begins later; a turn takes 0.3 s, and the next is asked for 0.1 s later.
    """
    recording = Recording()
    one, two = recording.client(), recording.client(seed="11" * 16)
    two.now = begins_s
    for client, name in ((one, "one"), (two, "two")):
        client.turn(user(f"Begin {name}."), say=((Text("Begun."),),))
        client.now += later_s * (name == "two")
        client.turn(user(f"Go on {name}."), say=((Text("Done."),),))
    return recording


async def begun(backend: FixtureBackend) -> tuple[Client, Client]:
    """Live clients of which each has had its first turn."""
    clients = live(), live()
    for client, name in zip(clients, ("one", "two"), strict=True):
        await answered(backend, client, user(f"Begin {name}."))
    return clients


async def test_answers_end_in_recorded_order(autojump_clock: trio.testing.MockClock) -> None:
    """Whoever asks first: an end waits for the one before it, and comes as long after it as it did, at most 0.1 s."""
    for later_s, gap in ((0.05, 0.05), (0.25, 0.1)):
        backend = FixtureBackend.load([both(later_s).fixture])
        one, two = await begun(backend)
        ended: list[tuple[str, float]] = []

        async def ask(client: Client, name: str, backend: Any = backend, ended: Any = ended) -> None:
            await taken(backend, client.ask(user(f"Go on {name}.")))
            ended.append((name, trio.current_time()))

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, two, "two")
            await trio.sleep(1.0)
            assert ended == []
            nursery.start_soon(ask, one, "one")
        assert [name for name, _ in ended] == ["one", "two"]
        assert [at - began for _, at in ended] == pytest.approx([1.0, 1.0 + gap])


async def test_an_end_does_not_wait_for_ever(autojump_clock: trio.testing.MockClock) -> None:
    """A client that goes on otherwise is answered after 5 seconds, which is said, and from then on at once."""
    recording = both()
    backend = FixtureBackend.load([recording.fixture])
    notes: list[str] = []
    backend.on_note = notes.append
    one, two = await begun(backend)
    began = trio.current_time()
    await answered(backend, two, user("Go on two."))
    assert trio.current_time() - began == pytest.approx(5.0)
    [note] = notes
    assert note.startswith("the end of turn 4 was held for 5 s: turn 2, at f") and "came before it" in note
    await answered(backend, one, user("Go on one."))
    assert trio.current_time() - began == pytest.approx(5.0)
    assert not backend.unused() and not backend.misses


@pytest.mark.parametrize("speed", [math.inf, 1.0])
async def test_what_was_recorded_one_after_the_other_waits_for_nothing(
    speed: float, autojump_clock: trio.testing.MockClock
) -> None:
    """Conversations that did not overlap may be played in any order, and at recorded speed the times alone say when."""
    backend = FixtureBackend.load([both(begins_s=9.0 if speed > 1 else 0.0).fixture], speed=speed)
    _, two = await begun(backend)
    began = trio.current_time()
    await answered(backend, two, user("Go on two."))
    assert trio.current_time() - began < 1.0


async def test_an_end_waits_for_a_request_that_came_before_it(autojump_clock: trio.testing.MockClock) -> None:
    """What the client did meanwhile in the other conversation it does again: its request is there before the end."""
    backend = FixtureBackend.load([both(later_s=0.35).fixture])
    one, two = await begun(backend)
    order: list[str] = []

    async def ask() -> None:
        await answered(backend, two, user("Go on two."))
        order.append("end of two")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.sleep(2.0)
        order.append("request of one")
        await answered(backend, one, user("Go on one."))
    assert order == ["request of one", "end of two"]
