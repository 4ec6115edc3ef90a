"""The recordings in the repository: what a session answers is a contract, and each can be played."""

import json
from pathlib import Path

import pytest

from turntape.core.seam import ClientGone, ClientText, Effect, Opened, Sampled, Started, StartSample
from turntape.core.session import Session
from turntape.replay.fixture import Fixture
from turntape.replay.show import transcript
from turntape.replay.stub import FixtureBackend
from turntape.replay.takes import takes
from turntape.replay.verify import verify

FIXTURES = sorted((Path(__file__).parents[2] / "fixtures").glob("*.jsonl"))
each = pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)


def test_there_are_fixtures() -> None:
    """A chain, an append session, and parallel calls."""
    assert {"codex_fix_greeting", "codex_append", "openai_parallel_calls"} <= {path.stem for path in FIXTURES}


@each
def test_a_fixture_verifies(path: Path) -> None:
    """Byte for byte."""
    assert verify(Fixture.load(path)).whole


@each
async def test_a_fixture_plays_to_its_own_client_over_http(path: Path) -> None:
    """Each recorded prompt, sent whole and by a session of another seed, gets its recorded answer."""
    fixture = Fixture.load(path)
    backend = FixtureBackend.load([fixture])
    for take in takes(fixture):
        items = [item.value for item in take.start.context.items_after(None) if item.type != "reasoning"]
        body = {**take.start.request.raw, "input": items, "previous_response_id": None}
        for name in ("type", "stream_id", "generate"):
            body.pop(name, None)
        session = Session()
        session.receive(Opened(seed="ab" * 16, wall=0.0, transport="sse"), now=0.0)
        effects: list[Effect] = session.receive(ClientText(json.dumps(body)), now=0.0)
        start = next(effect for effect in effects if isinstance(effect, StartSample))
        async with backend.sample(start) as batches:
            played = [batch async for batch in batches]
        recorded = [event for _, event in take.events if not isinstance(event, Started)]
        assert played[1:] == [event.batch for event in recorded if isinstance(event, Sampled)]
    assert not backend.misses and not backend.unused()


@each
def test_a_fixture_holds_no_key_and_no_trace_of_where_it_was_made(path: Path) -> None:
    """Recordings were made in /tmp/demo, with keys that are no secret and are not in them."""
    content = path.read_text()
    assert not any(word in content for word in ("Bearer", "sk-", "/root/", "/Users/"))
    assert any(isinstance(step.event, ClientGone) for step in Fixture.load(path).steps)


@each
def test_a_fixture_has_a_transcript(path: Path) -> None:
    """Every turn is in it."""
    assert transcript(Fixture.load(path)).count("\nturn ") == Fixture.load(path).counts.n_turns
