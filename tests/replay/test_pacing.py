"""How fast a take is played: every batch at its time, and none later because the one before it was."""

import math
import re

import pytest
import trio
from stubbed import CALL, rollout, taken
from taped import Recording, live, user

from turntape.core.seam import Finish, Message, Sampled, SampleFailed, Started, Text
from turntape.replay.errors import ReplayError
from turntape.replay.pacing import Pace
from turntape.replay.stub import FixtureBackend
from turntape.transport.backends.base import BackendError


async def times(backend: FixtureBackend, *, each_s: float = 0.0) -> list[tuple[float, str]]:
    """When each batch of the answer to "List." came, and its text; its reader takes a while over each."""
    start = live().ask(user("List."))
    assert start is not None
    began, found = trio.current_time(), []
    async with backend.sample(start) as batches:
        async for batch in batches:
            text = "".join(increment.text for increment in batch if isinstance(increment, Text))
            found.append((round(trio.current_time() - began, 6), text))
            await trio.sleep(each_s)
    return found


def spoken() -> Recording:
    """Two tokens in one read, a pause, and a third."""
    recording = Recording()
    client = recording.client()
    start = client.ask(user("List."))
    assert start is not None
    client.feed(Started(start.sample_id), step=0.05)
    client.feed(Sampled(start.sample_id, (Text("a"), Text("b"))), step=0.2)
    client.feed(Sampled(start.sample_id, (Text("c"),)), step=1.0)
    client.feed(Sampled(start.sample_id, (Finish(),)), step=0.01)
    return recording


@pytest.mark.parametrize(
    ("speed", "expected"),
    [
        ("instant", [(0, "abc")]),
        ("recorded", [(0.05, ""), (0.25, "ab"), (1.25, "c"), (1.26, "")]),
        ("x2", [(0.025, ""), (0.125, "ab"), (0.625, "c"), (0.63, "")]),
        ("4", [(0, ""), (0, "a"), (0.25, "b"), (0.5, "c")]),
    ],
)
async def test_a_take_is_as_fast_as_it_should_be(
    autojump_clock: trio.testing.MockClock, speed: str, expected: list[tuple[float, str]]
) -> None:
    """At once and in one piece, as recorded in the recorded pieces, scaled, or one token after the other, the first at once."""
    assert await times(FixtureBackend.load([spoken().fixture], speed=speed)) == expected


async def test_a_slow_reader_does_not_shift_what_follows(autojump_clock: trio.testing.MockClock) -> None:
    """Times are counted from the request: what was late has no part in when the next one comes."""
    backend = FixtureBackend.load([spoken().fixture], speed="recorded")
    assert [at for at, _ in await times(backend, each_s=0.3)] == [0.05, 0.35, 1.25, 1.55]


async def test_the_end_of_an_answer_waits_for_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """At so many tokens a second an item begins with its first token, and the end comes with the last."""
    backend = FixtureBackend.load([rollout().fixture], speed="10")
    start = live().ask(user("List."))
    batches = await taken(backend, start)
    assert batches == [(), CALL[0], (*CALL[1], Finish())]
    assert trio.current_time() == pytest.approx(0.1)
    recording = Recording()
    recording.client().turn(user("List."), say=((Message("commentary"),), (Text("a"), Text("b"))))
    batches = await taken(FixtureBackend.load([recording.fixture], speed="10"), live().ask(user("List.")))
    assert batches == [(), (Message("commentary"), Text("a")), (Text("b"), Finish())]


@pytest.mark.parametrize("speed", ["fast", "", "0", "x0", "-1", "x", "nan", "1e400", "x1.5.2", "٣", "1" * 400])
def test_a_speed_that_is_none_is_explained(speed: str) -> None:
    """With the four forms that there are."""
    with pytest.raises(ReplayError, match=re.escape("is none: give instant, recorded, xN")):
        Pace.of(speed)


@pytest.mark.parametrize("speed", [0.0, -1.0, math.nan])
def test_a_factor_is_above_zero(speed: float) -> None:
    with pytest.raises(ReplayError, match="The speed should be a number above 0"):
        Pace.of(speed)


def test_a_pace_says_what_it_is() -> None:
    shown = [str(Pace.of(speed)) for speed in ("instant", "recorded", "x2", "x0.5", "1000", 4.0)]
    assert shown == [
        "instant",
        "as recorded",
        "2 times as fast as recorded",
        "0.5 times as fast as recorded",
        "1000 tokens/s",
        "4 times as fast as recorded",
    ]


async def test_a_long_answer_at_once_comes_in_pieces() -> None:
    """All of it, in its order, in pieces between which other clients have their turn."""
    recording = Recording()
    words = [f"word {n} " for n in range(200)]
    recording.client().turn(user("List."), say=tuple((Text(word),) for word in words))
    batches = await taken(FixtureBackend.load([recording.fixture], speed="instant"), live().ask(user("List.")))
    said = [increment.text for batch in batches for increment in batch if isinstance(increment, Text)]
    assert said == words and 1 < len(batches) < 10 and batches[-1][-1] == Finish()


async def test_a_recorded_failure_at_once_begins_as_it_did() -> None:
    """A response that was accepted and then failed is told of first, though there is nothing to say."""
    recording = Recording()
    client = recording.client()
    start = client.ask(user("List."))
    assert start is not None
    client.feed(Started(start.sample_id))
    client.feed(SampleFailed(start.sample_id, "server_error", "No.", 500))
    backend, said = FixtureBackend.load([recording.fixture], speed="instant"), list[object]()
    start = live().ask(user("List."))
    assert start is not None
    with pytest.raises(BackendError, match=re.escape("No.")):
        async with backend.sample(start) as batches:
            async for batch in batches:
                said.append(batch)
    assert said == [()]
