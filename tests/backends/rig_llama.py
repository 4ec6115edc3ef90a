"""The llama backend as a rig: its engine, with a thing in llama.cpp's place that says what the steps tell it."""

import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import orjson
import trio
from attrs import define, field
from backends.rig import (
    Asked,
    Call,
    Cut,
    End,
    Fail,
    Garbage,
    Hang,
    Overflow,
    Playing,
    Say,
    Think,
    Turn,
    Turns,
    Wait,
    ended,
    pieces,
)
from backends.rig_chat import _usage
from chat_server import chunk
from gguf import LLAMA, gguf

from turntape.transport.backends.llama import LlamaBackend
from turntape.transport.backends.llama_engine import Engine

Callback = Callable[[bytes], bool]

PROGRESS = orjson.dumps(chunk(role="assistant", content=None))
"""What llama.cpp says for each batch of the prompt."""

OVERFLOW = {
    "code": 400,
    "message": "request (9000 tokens) exceeds the available context size (8192 tokens), try increasing it",
    "type": "exceed_context_size_error",
}


@define(eq=False)
class Player:
    """Answers as xllamacpp's server object does: in the thread that calls it."""

    turns: Turns
    token: trio.lowlevel.TrioToken
    playing: Playing | None = None
    asked: list[Asked] = field(factory=list)

    def handle_chat_completions(self, body: bytes, put: Callback) -> None:
        asked = asked_of(orjson.loads(body))
        self.asked.append(asked)
        turn = self.turns.take()
        if asked.mode == "required" and not isinstance(turn[0], Call):
            turn = [Call(min(asked.tools), "{}")]  # as the grammar makes it
        for said in self._says(turn):
            if put(said):
                assert self.playing is not None
                self.token.run_sync_soon(self.playing.gone.set)
                return

    def _says(self, turn: Turn) -> Iterator[bytes]:
        if isinstance(turn[0], Overflow):
            yield orjson.dumps({"error": OVERFLOW})
            return
        yield PROGRESS
        for step in ended(turn):
            match step:
                case Say(text, n):
                    yield from (orjson.dumps(chunk(content=piece)) for piece in pieces(text, n))
                case Think(text, n):
                    yield from (orjson.dumps(chunk(reasoning_content=piece)) for piece in pieces(text, n))
                case Call(name, arguments, _, _, custom, n):
                    arguments = orjson.dumps({"input": arguments}).decode() if custom else arguments
                    text = f'<tool_call>{{"name":"{name}","arguments":{arguments}}}</tool_call>'
                    yield from (orjson.dumps(chunk(content=piece)) for piece in pieces(text, n))
                case End(reason, usage):
                    yield orjson.dumps(chunk(reason))
                    if usage is not None:
                        yield orjson.dumps(_usage(usage))
                case Wait(seconds):
                    time.sleep(seconds)
                case Hang():
                    while True:  # it has batches, or tokens, that say nothing
                        time.sleep(0.01)
                        yield PROGRESS
                case Cut():
                    return
                case Fail(status, _, message):
                    yield orjson.dumps({"error": {"message": message, "code": status, "type": "server_error"}})
                case Garbage():
                    yield b"<nonsense>"
                    return
                case Overflow():
                    raise AssertionError("an overflow is a refusal: the first step")


def asked_of(request: dict[str, Any]) -> Asked:
    """What the grammar allows, in the words of every dialect."""
    rules = dict(line.split(": ", 1) for line in request.get("grammar", "").splitlines()[1:])
    start = rules.get("start", "")
    names = (orjson.loads(rule.split(" %json ")[0]) for name, rule in rules.items() if name[4:].isdigit())
    mode = "required" if start == "call" else "none" if start == "TEXT" or start.startswith("%json") else "auto"
    schema = rules.get("answer", start).partition("%json ")[2]
    bound = orjson.loads(schema) if schema else None
    if bound is not None:
        del bound["x-guidance"]
    tools = frozenset(name.removeprefix('{"name":"').removesuffix('","arguments":') for name in names)
    return Asked(orjson.dumps(request["messages"]).decode(), mode, tools, bound)


class LlamaRig:
    virtual_time = False
    where, key = "llama:model.gguf", ""
    cannot: ClassVar[dict[str, str]] = {
        "refusals": "there is no server between, which could refuse",
        "retry_after": "there is no server between, which could refuse",
        "key": "it takes no key",
        "slow": "the thread that waits has no virtual time",
        "malformed": "the grammar lets no such call be written",
        "content_filter": "llama.cpp has none",
        "call_ids": "calls are text: their ids are made here",
    }

    @asynccontextmanager
    async def playing(self, *turns: Turn) -> AsyncIterator[Playing]:
        player = Player(Turns(turns), trio.lowlevel.current_trio_token())
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "model.gguf")
            file.write_bytes(gguf(LLAMA))
            backend = LlamaBackend(file)
        backend._engine = Engine(player, trio.CapacityLimiter(1))
        playing = player.playing = Playing(backend, player.asked)
        yield playing
        await backend.aclose()
