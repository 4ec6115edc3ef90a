"""A recording of two turns, and live clients that a stub plays it to."""

from collections.abc import Callable
from typing import Any

import pytest
from taped import Client, Recording, output, user

from turntape.core.seam import Arguments, Reasoning, Sampled, Started, StartSample, Text, ToolCall
from turntape.replay.stub import FixtureBackend
from turntape.transport.backends.base import BackendError, Batch

CALL: tuple[Batch, ...] = ((Reasoning("Hm."), ToolCall("call_1", "sh")), (Arguments('{"cmd":"ls"}'),))
DONE: tuple[Batch, ...] = ((Text("One "),), (Text("file."),))


async def taken(backend: FixtureBackend, start: StartSample | None) -> list[Batch]:
    assert start is not None
    async with backend.sample(start) as batches:
        return [batch async for batch in batches]


async def answered(backend: FixtureBackend, client: Client, *items: Any, **fields: Any) -> list[Batch]:
    """A turn of a live client, answered by the stub."""
    start = client.ask(*items, **fields)
    batches = await taken(backend, start)
    assert start is not None
    client.feed(Started(start.sample_id))
    for batch in batches[1:]:
        client.feed(Sampled(start.sample_id, batch))
    return batches


def places(backend: FixtureBackend) -> list[str]:
    """Where the turns that can be played were recorded."""
    return [one.where for turns in backend._library.turns.values() for one in turns]


async def refused(backend: FixtureBackend, start: StartSample | None) -> BackendError:
    with pytest.raises(BackendError) as caught:
        await taken(backend, start)
    return caught.value


def rollout(play: Callable[[Client], None] | None = None, **opened: Any) -> Recording:
    """A tool call and its answer."""
    recording = Recording()
    client = recording.client(**opened)
    client.ask(generate=False)
    client.turn(user("List."), say=CALL)
    client.turn(output("call_1", "README.md"), say=DONE)
    if play is not None:
        play(client)
    return recording
