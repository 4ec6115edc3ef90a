"""Runs of one recording: each plays every take once, and they can go on side by side."""

import pytest
import trio
from stubbed import CALL, DONE, answered, places, refused, rollout, taken
from taped import Client, Recording, live, output, user

from turntape.core.seam import Arguments, ClientGone, Finish, Sampled, Started, StartSample, Text
from turntape.replay.errors import ReplayError
from turntape.replay.fixture import Fixture
from turntape.replay.stub import HOLD_S, FixtureBackend


def load(recording: Recording, runs: int | None = 1) -> FixtureBackend:
    return FixtureBackend.load([Fixture.parse(recording.content, name="f.jsonl")], runs=runs)


async def test_a_recording_is_played_as_often_as_it_may_be() -> None:
    """Twice, and a third time is a miss that says so."""
    backend = load(rollout(), runs=2)
    for _ in range(2):
        client = live()
        await answered(backend, client, user("List."))
        await answered(backend, client, output("call_1", "README.md"))
    error = await refused(backend, live().ask(user("List.")))
    assert "every take has been played or is being played in each of 2 runs" in str(error)
    assert (backend.n_takes, backend.n_played, backend.unused()) == (4, 4, [])


async def test_any_number_of_runs() -> None:
    """What has been begun is what is counted."""
    backend = load(rollout(), runs=None)
    assert (backend.n_runs, backend.n_takes, len(backend.unused())) == (1, 2, 1)
    for _ in range(5):
        await answered(backend, live(), user("List."))
    assert (backend.n_runs, backend.n_takes, backend.n_played) == (5, 10, 5)
    assert [line.partition(":")[0] for line in backend.unused()] == [f"run {n}" for n in range(1, 6)]


async def test_parallel_runs_each_have_their_own_place() -> None:
    """Two agents that do the same at once each get their whole run, whoever is ahead."""
    backend = load(rollout(), runs=2)
    one, two = live(), live()
    await answered(backend, one, user("List."))
    await answered(backend, two, user("List."))
    await answered(backend, two, output("call_1", "README.md"))
    assert [line.partition(":")[0] for line in backend.unused()] == ["run 1"]
    await answered(backend, one, output("call_1", "README.md"))
    assert not backend.unused() and not backend.misses


async def test_what_was_not_played_is_told_for_each_run() -> None:
    """A run that never began is one line."""
    backend = load(rollout(), runs=3)
    client = live()
    await answered(backend, client, user("List."))
    await answered(backend, client, output("call_1", "README.md"))
    await answered(backend, live(), user("List."))
    unplayed = places(backend)[1]
    assert backend.unused() == [f"run 2: {unplayed}: this turn was not played", "run 3: did not begin"]


def test_a_number_of_runs_below_one_is_refused() -> None:
    with pytest.raises(ReplayError, match="The number of runs should be 1 or more, but it is 0"):
        load(rollout(), runs=0)


# --- clients that leave -------------------------------------------------------------------------------------


def connect(backend: FixtureBackend) -> Client:
    """A client whose session is the stub's."""
    return Client(backend.new_session(), "ee" * 16)


async def heard(backend: FixtureBackend, client: Client, *items: object) -> None:
    """A turn that the stub plays to its end, whatever of it reaches the client."""
    start = client.ask(*items)
    assert start is not None
    for n, batch in enumerate(await taken(backend, start)):
        client.feed(Sampled(start.sample_id, batch) if n else Started(start.sample_id))


async def test_an_answer_that_may_be_lost_is_played_again() -> None:
    """All of it had been sent when the client vanished without a close frame: it may ask again, and that is said."""
    backend = load(rollout())
    notes: list[str] = []
    backend.on_note = notes.append
    client = connect(backend)
    await heard(backend, client, user("List."))
    client.feed(ClientGone(None))
    again = connect(backend)
    await heard(backend, again, user("List."))
    assert notes == ["asked again: turn 1, at f.jsonl:5; whoever asked before left without a close frame"]
    await heard(backend, again, output("call_1", "README.md"))
    assert (backend.n_played, backend.misses, backend.unused()) == (2, [], [])


async def test_the_second_of_two_equal_conversations_is_no_retry_of_the_first() -> None:
    """The first client vanished without a close frame, as Codex does; the second gets the takes that nobody had yet."""
    recording = rollout()
    other = recording.client(seed="11" * 16)
    other.turn(user("List."), say=CALL)
    other.turn(output("call_1", "README.md"), say=DONE)
    backend = load(recording)
    notes: list[str] = []
    backend.on_note = notes.append
    for _ in range(2):
        client = connect(backend)
        await heard(backend, client, user("List."))
        await heard(backend, client, output("call_1", "README.md"))
        client.feed(ClientGone(None))
    assert (backend.n_played, notes, backend.unused()) == (4, [], [])


@pytest.mark.parametrize("how", ["closed", "went on", "still there"])
async def test_an_answer_that_was_heard_is_not_played_again(how: str) -> None:
    """A second asking is then another client's, and a miss."""
    backend = load(rollout())
    client = connect(backend)
    await heard(backend, client, user("List."))
    if how == "closed":
        client.feed(ClientGone(1000))
    if how == "went on":
        await heard(backend, client, output("call_1", "README.md"))
        client.feed(ClientGone(None))
        assert not backend._played  # nothing is kept of clients that are gone
    await refused(backend, live().ask(user("List.")))
    assert len(backend.misses) == 1


def interrupted() -> Recording:
    """A turn whose client left in the middle."""

    def leave(client: Client) -> None:
        start = client.ask(user("More."))
        assert start is not None
        client.feed(Started(start.sample_id))
        client.feed(Sampled(start.sample_id, (Text("half "),)))
        client.feed(ClientGone(None))

    return rollout(leave)


async def up_to_the_interrupt(backend: FixtureBackend) -> StartSample:
    client = live()
    await answered(backend, client, user("List."))
    await answered(backend, client, output("call_1", "README.md"))
    start = client.ask(user("More."))
    assert start is not None
    return start


async def test_an_interrupted_turn_is_played_as_far_as_it_went(autojump_clock: trio.testing.MockClock) -> None:
    """Then the stub waits for its client to interrupt too; the turn is none of those to be played."""
    backend = load(interrupted())
    start = await up_to_the_interrupt(backend)
    for _ in range(2):  # and once more: an interrupted agent may start over
        async with backend.sample(start) as batches:
            assert [await anext(batches) for _ in range(2)] == [(), (Text("half "),)]
            with trio.move_on_after(HOLD_S / 2):
                await anext(batches)
                pytest.fail("nothing follows")
    assert (backend.n_takes, backend.n_played, backend.misses, backend.unused()) == (2, 2, [], [])


async def test_a_client_that_does_not_interrupt_is_a_miss(autojump_clock: trio.testing.MockClock) -> None:
    """It is told after half a minute, and at once if it asks again."""
    backend = load(interrupted())
    start = await up_to_the_interrupt(backend)
    error = await refused(backend, start)
    assert "was cut off after what has been played" in str(error)
    before = trio.current_time()
    assert "cut off when it was recorded" in str(await refused(backend, start))
    assert trio.current_time() == before


async def test_a_whole_take_goes_before_one_that_was_cut_off() -> None:
    """A recorded client that lost its connection asked again: the stub gives the answer that it got then."""
    recording = Recording()
    client = recording.client(seed="1" * 32)
    start = client.ask(user("hi"))
    assert start is not None
    client.feed(Sampled(start.sample_id, (Text("ha"),)))
    client.feed(ClientGone(None))
    recording.client(seed="2" * 32).turn(user("hi"), say=DONE)
    assert await taken(load(recording), live().ask(user("hi"))) == [(), *DONE, (Finish(),)]


def test_a_session_of_a_stub_is_a_session() -> None:
    """It answers what needs no take: a warm-up."""
    client = connect(load(rollout()))
    client.ask(generate=False)
    assert [event["type"] for event in client.sent][-1] == "response.completed"


async def test_a_turn_without_an_end_holds_up_none_behind_it() -> None:
    """The turn before it on the lane is the one that came to an end."""
    recording = Recording()
    client = recording.client()
    start = client.ask(user("one"))
    assert start is not None
    client.feed(Sampled(start.sample_id, (Arguments("no call is open"),)))  # nonsense: the session cancels it
    client.turn(user("two"), say=DONE, follow=False)
    assert (await taken(load(recording), live().ask(user("two"))))[1:] == [*DONE, (Finish(),)]
