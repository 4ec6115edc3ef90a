"""Sources with anything in them: an import makes a recording that verifies, or says what is wrong, and never breaks."""

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sources import CHAIN, WEATHER, Rollout, call, fixture, message, output

from turntape.replay.errors import ReplayError
from turntape.replay.fixture import Fixture
from turntape.replay.importing.kinds import import_all
from turntape.replay.verify import verify

JUNK = (None, True, -1, 0, 1e300, "", "\ud800", "ünïcode", [], {}, [None], {"a": []}, [[]], "x" * 2000, 10**25, [{}])


def rollout(version: str) -> list[Any]:
    made = Rollout(version).items(message("user", "Go."), {"type": "reasoning", "summary": [{"text": "Hm"}]})
    made.items(call("a", "sh", "{}"), {"type": "custom_tool_call", "call_id": "b", "name": "c", "input": "x"}).counted()
    made.items(output("a", "1"), {"type": "custom_tool_call_output", "call_id": "b", "output": "2"})
    made.items(message("assistant", "I w")).event("turn_aborted").items(message("user", "On."))
    made.items(message("assistant", "Done.")).counted().items(message("assistant", "In short.")).counted()
    made.line("compacted", {"message": "In short.", "replacement_history": [message("user", "In short.")]})
    return made.items(message("user", "More."), message("assistant", "No.")).counted().lines


TIMED = {"latency": 5, "chunkSize": 3, "streamingProfile": {"ttft": 5, "tps": 3}}
BLOCKS = {
    "blocks": [{"type": "text", "text": "a"}, {"type": "toolCall", "name": "f", "arguments": {}}],
    "usage": {"input_tokens": 1},
}
SOURCES = {
    "codex": rollout("0.98.0"),
    "codex new": rollout("0.171.0"),
    "openai-events": [{"at": 1.5, "request": CHAIN[0]["request"]}, *CHAIN[1:]],
    "aimock": [
        {
            "fixtures": [
                *WEATHER,
                fixture({"userMessage": "a", "turnIndex": 0, "systemMessage": ["b"]}, BLOCKS, **TIMED),
                fixture({"toolCallId": "call_1", "toolResultContains": "x"}, {"content": {"a": 1}, "reasoning": "r"}),
                fixture({"userMessage": "e"}, {"error": {"message": "m", "code": "c"}, "status": 429}),
            ]
        }
    ],
}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(inner, (*path, key))


def changed(values: list[Any], chance: random.Random) -> list[Any]:
    """The values with junk in one to three places, or with something missing."""
    values = copy.deepcopy(values)
    for _ in range(chance.randint(1, 3)):
        path = chance.choice([*places(values)] or [(0,)])
        inner: Any = values
        try:
            for key in path[:-1]:
                inner = inner[key]
            if chance.random() < 0.2:
                del inner[path[-1]]
            else:
                inner[path[-1]] = chance.choice(JUNK)
        except (LookupError, TypeError):
            continue
    return values


@pytest.mark.parametrize("kind", SOURCES)
def test_junk_in_a_source_breaks_nothing(kind: str, tmp_path: Path) -> None:
    """Wherever junk stands, there is a recording that verifies, or an error that names the source, and no half a file."""
    chance = random.Random(7)
    n_made = 0
    for n in range(250):
        source, out = tmp_path / "source", tmp_path / f"{n}.jsonl"
        source.write_text("".join(json.dumps(value) + "\n" for value in changed(SOURCES[kind], chance)))
        try:
            import_all([source], out, kind.partition(" ")[0])
        except ReplayError as exc:
            assert str(exc).startswith("source") and not out.exists()
        else:
            verify(Fixture.load(out))
            n_made += 1
            out.unlink()
    assert n_made > 100


@pytest.mark.parametrize("kind", SOURCES)
def test_a_source_may_end_anywhere(kind: str, tmp_path: Path) -> None:
    """A file that is cut off gives what was whole in it, or an error that names it."""
    content = "".join(json.dumps(value) + "\n" for value in SOURCES[kind]).encode()
    for end in range(0, len(content), 37):
        source, out = tmp_path / "source", tmp_path / f"{end}.jsonl"
        source.write_bytes(content[:end])
        try:
            import_all([source], out, kind.partition(" ")[0])
        except ReplayError as exc:
            assert str(exc).startswith("source")
        else:
            verify(Fixture.load(out))
