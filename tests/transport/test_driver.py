"""The driver alone: a fake client, a fake session or the real one, virtual time."""

import math

import pytest
import trio
import trio.testing
from attrs import define, field
from serving import HELLO, Model, create, endless

from turntape.core.context import Context
from turntape.core.seam import (
    CancelSample,
    ClientGone,
    ClientText,
    Close,
    Drain,
    Event,
    Finish,
    Load,
    Loaded,
    Opened,
    Record,
    Sampled,
    SampleFailed,
    Save,
    Saved,
    Send,
    Started,
    StartSample,
    StoreFailed,
    Text,
    Tick,
)
from turntape.core.session import Session
from turntape.core.wire import ResponseCreate
from turntape.transport.backends.base import BackendError
from turntape.transport.driver import Driver
from turntape.transport.memory_store import MemoryStore
from turntape.transport.outbox import SlowClient
from turntape.transport.store import StoreError

OPENED = Opened(seed="00" * 16, wall=1e9)
RECORD = Record("resp_1", None, "", 0, b"{}", (), 0)


class FakeLink:
    """A client in memory. ``texts`` is its keyboard; closing it means leaving."""

    def __init__(self):
        self.keyboard, self.texts = trio.open_memory_channel(math.inf)
        self.sent, self.closed_with = [], None
        self.gone_code = None
        self.may_read = trio.Event()
        self.may_read.set()
        self.slow = False

    async def __aiter__(self):
        async for text in self.texts:
            yield text

    def put(self, data):
        if self.slow:
            raise SlowClient("it does not read")
        self.sent += data

    async def room(self):
        await self.may_read.wait()

    async def aclose(self, code, reason):
        self.closed_with = code


@define(eq=False)
class FakeSession:
    """Does what the test says for each kind of event, and remembers all of them with their time."""

    answers: dict[type, list] = field(factory=dict)
    deadline: float = math.inf
    closed: bool = False
    events: list = field(factory=list)

    def receive(self, event: Event, *, now: float):
        assert not self.closed, "fed after it had closed"
        self.events.append((now, event))
        answer = self.answers.get(type(event), [])
        if isinstance(answer, Exception):
            raise answer
        effects = answer(self) if callable(answer) else answer
        self.closed = any(isinstance(effect, Close) for effect in effects) or isinstance(event, ClientGone)
        return effects

    def seen(self):
        return [event for _, event in self.events]


def start(sample_id="smp"):
    return StartSample(sample_id, "m", ResponseCreate(model="m"), Context(), 0)


class Rig:
    """A driver under way."""

    def __init__(self, nursery, session, backend=None, store=None):
        self.link, self.session, self.backend = FakeLink(), session, backend or Model()
        self.shutdown, self.over = trio.Event(), trio.Event()
        self.error = None
        self.driver = Driver(self.link, session, self.backend, store or MemoryStore())
        nursery.start_soon(self._run)

    async def _run(self):
        try:
            await self.driver.run(OPENED, self.shutdown)
        except* Exception as group:  # noqa: BLE001 - the test asserts what it was
            self.error = group
        self.over.set()

    def type(self, text):
        self.link.keyboard.send_nowait(text)

    def leave(self):
        self.link.keyboard.close()


async def test_each_batch_is_one_event_at_its_time(nursery, autojump_clock):
    """Acceptance, then batches as they come, each with the time it came; an empty batch later says nothing."""
    turn = [(0.25, ()), (0.25, (Text("a"), Text("b"))), (0.5, ()), (0.5, (Text("c"), Finish()))]
    session = FakeSession({ClientText: [start()]})
    rig = Rig(nursery, session, Model([turn]))
    rig.type("go")
    await trio.sleep(5)
    assert session.events == [
        (0.0, OPENED),
        (0.0, ClientText("go")),
        (0.25, Started("smp")),
        (0.5, Sampled("smp", (Text("a"), Text("b")))),
        (1.5, Sampled("smp", (Text("c"), Finish()))),
    ]
    rig.leave()
    await rig.over.wait()


@pytest.mark.parametrize(
    "turn, failed",
    [
        (
            [(0, ()), (0, (Text("x"),))],
            SampleFailed("smp", "server_error", "The response stopped before it was finished."),
        ),
        ([], SampleFailed("smp", "server_error", "The response stopped before it was finished.")),
        (
            [BackendError("Wait.", code="rate_limit_exceeded", status=429, param="p", retry_after="3")],
            SampleFailed("smp", "rate_limit_exceeded", "Wait.", status=429, param="p", retry_after="3"),
        ),
        (
            [(0, ()), ZeroDivisionError("secret")],
            SampleFailed("smp", "server_error", "The server had an error while it sampled a response."),
        ),
    ],
)
async def test_a_failing_backend_fails_its_sample_only(nursery, autojump_clock, turn, failed, caplog):
    """Whatever a backend does wrong is one event that names it; the session goes on, and bugs stay inside."""
    session = FakeSession({ClientText: [start()]})
    rig = Rig(nursery, session, Model([turn]))
    rig.type("go")
    await trio.sleep(1)
    assert session.seen()[-1] == failed
    assert ("ZeroDivisionError" in caplog.text) == (failed.message.startswith("The server had"))
    rig.type("again")
    await trio.sleep(1)
    assert ClientText("again") in session.seen()
    rig.leave()
    await rig.over.wait()
    assert rig.error is None


async def test_a_backend_that_cannot_even_begin(nursery, autojump_clock, caplog):
    """A backend that raises before it is asked for anything fails the sample like any other."""

    class Broken(Model):
        def sample(self, start):
            raise RuntimeError("no")

    session = FakeSession({ClientText: [start()]})
    rig = Rig(nursery, session, Broken())
    rig.type("go")
    await trio.sleep(1)
    assert isinstance(session.seen()[-1], SampleFailed)
    rig.leave()
    await rig.over.wait()


async def test_a_bug_of_ours_ends_the_connection_and_its_samples(nursery, autojump_clock):
    """What the session raises comes out of ``run``, wherever it was fed from, and nothing runs on."""
    session = FakeSession({ClientText: [start()], Sampled: ZeroDivisionError()})
    rig = Rig(nursery, session, Model([endless()]))
    rig.type("go")
    await rig.over.wait()
    assert rig.error.split(ZeroDivisionError)[1] is None
    assert rig.backend.n_running == 0


async def test_cancelling_closes_the_generator_at_once(nursery, autojump_clock):
    """A cancelled sample is gone without time passing, and its late news never come."""
    session = FakeSession({ClientText: [start()], Tick: [CancelSample("smp"), CancelSample("unknown")]}, deadline=1.0)
    rig = Rig(nursery, session, Model([endless(pause_s=0.4)]))
    rig.type("go")
    session.answers[Tick] = lambda session: (
        setattr(session, "deadline", math.inf) or [CancelSample("smp"), CancelSample("?")]
    )
    await trio.sleep(1.0)
    await trio.testing.wait_all_tasks_blocked()
    assert rig.backend.n_running == 0
    n = len(session.events)
    await trio.sleep(5)
    assert len(session.events) == n and not any(isinstance(event, SampleFailed) for event in session.seen())
    rig.leave()
    await rig.over.wait()


async def test_a_client_that_goes_ends_its_samples(nursery, autojump_clock):
    """The session hears of it once, with the close code, and the backend is freed without time passing."""
    session = FakeSession({ClientText: [start()]})
    rig = Rig(nursery, session, Model([endless(pause_s=1)]))
    rig.type("go")
    await trio.sleep(2.5)
    rig.link.gone_code = 1001
    rig.leave()
    await rig.over.wait()
    assert trio.current_time() == 2.5
    assert session.seen()[-1] == ClientGone(1001)
    assert rig.backend.n_running == 0 and rig.link.closed_with is None


async def test_a_slow_client_slows_its_samplers_only(nursery, autojump_clock):
    """Without room no further batch is asked for, while the client's own texts still come through."""
    session = FakeSession({ClientText: lambda session: [start(f"smp{len(session.events)}")]})
    rig = Rig(nursery, session, Model([endless()]))
    rig.link.may_read = trio.Event()
    rig.type("one")
    rig.type("two")
    await trio.sleep(10)
    assert rig.backend.n_batches == 2 and rig.backend.n_running == 2
    rig.type("three")
    await trio.sleep(1)
    assert ClientText("three") in session.seen()
    rig.link.may_read.set()
    rig.leave()
    await rig.over.wait()
    assert rig.backend.n_running == 0


async def test_a_client_that_does_not_read_is_dropped(nursery, autojump_clock, caplog):
    """Past the hard cap the client counts as gone: the session is told, the log says why, and no goodbye waits."""
    session = FakeSession({ClientText: [start()], Sampled: [Send((b"x",))]})
    rig = Rig(nursery, session, Model([endless()]))
    rig.link.slow = True
    rig.type("go")
    await rig.over.wait()
    assert session.seen()[-1] == ClientGone(None)
    assert rig.error is None and rig.link.closed_with is None and rig.backend.n_running == 0
    assert "it does not read" in caplog.text


async def test_one_timer_follows_the_deadline(nursery, autojump_clock):
    """A tick comes at the deadline, not before, even if the deadline moved to and fro meanwhile."""

    def tick(session):
        session.deadline = math.inf
        return []

    def move(to):
        return lambda session: setattr(session, "deadline", to) or []

    session = FakeSession({Opened: move(10.0), ClientText: move(20.0), Tick: tick})
    rig = Rig(nursery, session)
    await trio.sleep(5)
    rig.type("later")
    await trio.sleep(10)
    assert not any(isinstance(event, Tick) for event in session.seen())
    session.answers[ClientText] = move(16.1234567)
    rig.type("sooner")
    await trio.sleep(10)
    assert [(now, event) for now, event in session.events if isinstance(event, Tick)] == [(16.123457, Tick())]
    rig.leave()
    await rig.over.wait()


async def test_times_never_go_back_and_are_whole_microseconds(nursery, autojump_clock):
    """Every time the session sees is rounded before it is used, so a recording holds the very value."""
    turn = [(1 / 3, ()), (1e-7, (Text("a"),)), (1e-7, (Text("b"), Finish()))]
    session = FakeSession({ClientText: [start()]})
    rig = Rig(nursery, session, Model([turn]))
    rig.type("go")
    await trio.sleep(1)
    times = [now for now, _ in session.events]
    assert times == sorted(times) and all(now == round(now, 6) for now in times)
    rig.leave()
    await rig.over.wait()


class SlowStore(MemoryStore):
    async def save(self, record):
        await trio.sleep(0.5)
        await super().save(record)


class BrokenStore(MemoryStore):
    def __init__(self, exc):
        super().__init__()
        self.exc = exc

    async def load(self, response_id, owner):
        raise self.exc

    async def save(self, record):
        raise self.exc


async def test_the_store_answers_beside_the_turn(nursery, autojump_clock):
    """Loads and saves run off the session's path and come back as events that name their lane."""
    session = FakeSession({ClientText: [Save("a", RECORD), Load("b", "", None, ()), Load("c", "", "resp_0", ("i",))]})
    rig = Rig(nursery, session, store=SlowStore())
    rig.type("go")
    await trio.sleep(1)
    assert sorted(map(repr, session.seen()[2:])) == sorted(
        map(repr, [Loaded("b", ()), Loaded("c", None, (None,)), Saved("a")])
    )
    rig.leave()
    await rig.over.wait()


@pytest.mark.parametrize(
    "exc, said", [(StoreError("disk full; make room"), "disk full; make room"), (OSError("/secret"), None)]
)
async def test_a_failing_store_fails_what_asked(nursery, autojump_clock, exc, said, caplog):
    """A store's own error is told to the client; a bug in it is logged and told without its text."""
    session = FakeSession({ClientText: [Save("a", RECORD), Load("b", "", "resp_0", ())]})
    rig = Rig(nursery, session, store=BrokenStore(exc))
    rig.type("go")
    await trio.sleep(1)
    failed = [event for event in session.seen() if isinstance(event, StoreFailed)]
    assert {event.stream_id for event in failed} == {"a", "b"}
    for event in failed:
        assert event.message == said if said else "secret" not in event.message
    assert (said is None) == ("store crashed" in caplog.text)
    rig.leave()
    await rig.over.wait()


async def test_a_save_under_way_outlives_its_client(nursery, autojump_clock):
    """A client that drops while its response is being stored can come back for it."""
    session, store = FakeSession({ClientText: [Save(None, RECORD)]}), SlowStore()
    rig = Rig(nursery, session, store=store)
    rig.type("go")
    await trio.testing.wait_all_tasks_blocked()
    rig.leave()
    await rig.over.wait()
    assert await store.get("resp_1", "") is not None
    assert not any(isinstance(event, Saved) for event in session.seen()), "a closed session hears nothing"


async def test_a_whole_sample_may_give_back_its_connection(nursery, autojump_clock):
    """A backend whose last batch was taken runs to its own end, so that it can keep its connection."""
    ended = []

    class Pooled(Model):
        @trio.as_safe_channel
        async def sample(self, start):
            yield ()
            yield (Text("x"), Finish())
            await trio.sleep(0.1)  # the rest of the upstream's body
            ended.append("kept")

    session = FakeSession({ClientText: [start()], Sampled: [Close(1000)]})
    rig = Rig(nursery, session, Pooled())
    rig.type("go")
    await rig.over.wait()
    assert ended == ["kept"] and rig.link.closed_with == 1000


async def test_close_cancels_what_is_not_whole(nursery, autojump_clock):
    """A session that closes over a running sample ends it at once."""
    session = FakeSession({ClientText: lambda session: [start()] if len(session.events) == 2 else [Close(1001, "bye")]})
    rig = Rig(nursery, session, Model([endless(pause_s=10)]))
    rig.type("go")
    await trio.sleep(1)
    rig.type("close")
    await rig.over.wait()
    assert trio.current_time() == 1 and rig.backend.n_running == 0 and rig.link.closed_with == 1001


async def test_shutdown_drains(nursery, autojump_clock):
    """Shutdown is an event among others: the turn in flight ends, then the connection closes with 1001."""
    rig = Rig(nursery, Session(), Model([[(0, ()), (1, (Text("he"),)), (1, (Text("y"), Finish()))]]))
    rig.type(create())
    await trio.sleep(1.5)
    rig.shutdown.set()
    await rig.over.wait()
    assert b'"response.completed"' in rig.link.sent[-1] and rig.link.closed_with == 1001
    assert trio.current_time() == 2


async def test_shutdown_before_the_first_word(nursery, autojump_clock):
    """A session that opens while the server shuts down is drained at once."""
    session = FakeSession({Drain: [Close(1001)]})
    rig = Rig(nursery, session)
    rig.shutdown.set()
    await rig.over.wait()
    assert session.seen() == [OPENED, Drain()]


async def test_sessions_share_nothing_but_backend_and_store(nursery, autojump_clock):
    """Two real sessions answer side by side from one backend."""
    backend = Model([HELLO])
    rigs = [Rig(nursery, Session(), backend) for _ in range(2)]
    for rig in rigs:
        rig.type(create())
    await trio.sleep(1)
    for rig in rigs:
        assert b'"response.completed"' in rig.link.sent[-1]
        rig.leave()
        await rig.over.wait()
