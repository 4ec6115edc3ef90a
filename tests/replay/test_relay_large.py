"""A large message through a relay: its bytes go first, others have their turn while it is read, and its line keeps its place."""

import json
from typing import Any

import orjson
import pytest
import trio
from relaying import KEY, Rig, answer, event, frames, post

from turntape.replay import literals
from turntape.replay.lines import FromClient, FromUpstream, Gone
from turntape.replay.relay.intake import LARGE
from turntape.replay.relay.masking import PART
from turntape.replay.secrets import DEFAULT

LEAKED = "sk-proj-" + "Ab3dE6gH9jK2mN5pQ8sT1vW4yZ7b"
WORDS = "the quick brown fox jumps over it, "


def large(n_chars: int, *, leaked: str = "") -> str:
    """A request in which ``leaked`` lies across two of the parts that it is looked at in."""
    head = '{"type":"response.create","model":"m","instructions":"'
    text = (WORDS * (n_chars // len(WORDS)))[: PART - len(head) - 12] + leaked + " " + WORDS * (n_chars // len(WORDS))
    return orjson.dumps({"type": "response.create", "model": "m", "instructions": text}).decode()


def sent(text: str, *, from_client: bool = True) -> bytes:
    return bytes(frames(from_client=from_client).send_data(text, fin=True))


class Steps(trio.abc.Instrument):
    """Counts the characters that are searched for keys in one step of a task, between which others have their turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.most = self.all = 0
        search = literals.Literals._found_at

        def counted(self_: Any, text: str, begin: int) -> Any:
            self.now += min(len(text) - begin, literals.WINDOW)
            return search(self_, text, begin)

        monkeypatch.setattr(literals.Literals, "_found_at", counted)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.most, self.all, self.now = max(self.most, self.now), self.all + self.now, 0


@pytest.mark.parametrize("leaked", ["", LEAKED])
async def test_others_have_their_turn_while_a_large_message_is_looked_at(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, leaked: str
) -> None:
    """No more than a few parts of it are searched at once, though it has sixty; a key that lies across two is masked."""
    rig, steps = Rig(nursery), Steps(monkeypatch)
    client, upstream = await rig.websocket()
    text = large(60 * PART, leaked=leaked)
    trio.lowlevel.add_instrument(steps)
    nursery.start_soon(client.send, frame := sent(text))
    assert await upstream.receive(len(frame)) == frame
    await trio.testing.wait_all_tasks_blocked()
    trio.lowlevel.remove_instrument(steps)
    (told,) = [line for line in rig.fixture.lines if isinstance(line, FromClient)]
    assert told.text == DEFAULT.text(text) and ("[masked]" in told.text) == bool(leaked)
    assert steps.all >= len(text) and steps.most <= 4 * PART


async def test_what_is_told_behind_a_large_message_stands_behind_it(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """Of either side, and what others say meanwhile is recorded too."""
    rig = Rig(nursery)
    client, upstream = await rig.websocket()
    other, other_upstream = await rig.websocket()
    texts = [large(LARGE), '{"type":"a"}', large(2 * LARGE, leaked=LEAKED), '{"type":"b"}']
    said = [event("response.created", note=WORDS * (LARGE // 10)), event("response.completed", response={})]
    sent_on = b"".join(map(sent, texts))
    sent_back = b"".join(sent(text, from_client=False) for text in said)
    async with trio.open_nursery() as both:
        both.start_soon(client.send, sent_on)
        both.start_soon(other.send, sent('{"type":"other"}'))
        both.start_soon(upstream.receive, len(sent_on))
        await other_upstream.receive(len(sent('{"type":"other"}')))
    async with trio.open_nursery() as both:
        both.start_soon(upstream.send, sent_back)
        assert await client.receive(len(sent_back)) == sent_back
    await client.end()
    await upstream.end()
    await trio.testing.wait_all_tasks_blocked()
    lines = [line for line in rig.fixture.lines if getattr(line, "session", 0) == 1]
    assert [line.text for line in lines if isinstance(line, FromClient)] == [*map(DEFAULT.text, texts)]
    assert [m["type"] for line in lines if isinstance(line, FromUpstream) for m in line.messages] == [
        "response.created",
        "response.completed",
    ]
    assert isinstance(lines[-1], Gone)


async def test_a_connection_that_ends_meanwhile_leaves_nothing_out(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """What had been sent on when the relay was stopped is in the recording, masked."""
    rig = Rig(nursery)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as inner:
            rig.nursery = inner
            client, upstream = await rig.websocket()
            text = large(8 * LARGE, leaked=LEAKED)
            inner.start_soon(client.send, frame := sent(text) + sent('{"type":"after"}'))
            await upstream.receive(len(frame))
            assert not rig.named("client")  # it is being looked at
            scope.cancel()
    told = [line.text for line in rig.fixture.lines if isinstance(line, FromClient)]
    assert told == [DEFAULT.text(text), '{"type":"after"}']


async def test_a_large_post_and_its_large_answer_are_recorded(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """On a connection that is used again, with the client's own key masked where it is read aloud."""
    rig = Rig(nursery)
    client = rig.client()
    for number in range(2):
        body = large(2 * LARGE, leaked=KEY).encode()
        said = json.dumps({"object": "response", "output": [], "n": number, "text": f"{WORDS * 20_000}{KEY}"}).encode()
        head = post(body, more=f"Authorization: Bearer {KEY}\r\n")
        nursery.start_soon(client.send, head)
        if number == 0:
            upstream = await rig.accept()
        await upstream.head()
        assert await upstream.receive(len(body)) == body
        nursery.start_soon(upstream.send, answer(said))
        await client.head()
        assert await client.receive(len(said)) == said
        await trio.testing.wait_all_tasks_blocked()
    assert rig.relay.tape.n_turns == 2
    assert KEY.encode() not in rig.out.getvalue() and rig.out.getvalue().count(b"[masked]") == 2
    assert [line for line in rig.lines if "unread" in line] == []
