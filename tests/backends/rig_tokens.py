"""The tokens backend as a rig: steps become ids of gpt-oss in the words of vLLM, SGLang or llama.cpp."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import orjson
import trio
from attrs import define
from backends.rig import Call, Cut, End, Fail, Garbage, Hang, Overflow, Playing, Say, Think, Turn, Wait, ended
from chat_server import CUT, HANG, Reply, refusing, sse
from chat_server import Step as ServerStep
from token_server import TokenServer, Voice, marked, resumed, vocabulary

from turntape.transport.backends.tokens import TokensBackend
from turntape.transport.http_client import HttpClient
from turntape.transport.http_connections import Connections


def _batches(text: str, n: int) -> Iterator[list[int]]:
    ids = marked(text)
    size = max(1, -(-len(ids) // n))
    yield from (ids[at : at + size] for at in range(0, len(ids), size))


def _steps(turn: Turn, voice: Voice) -> Iterator[ServerStep]:
    opening, last = "", "<|return|>"  # the message before is ended, and the next one's author written
    for step in ended(turn):
        match step:
            case Say(text, n):
                yield voice.chunk(marked(f"{opening}<|channel|>final<|message|>"))
                yield from map(voice.chunk, _batches(text, n))
                opening, last = "<|end|><|start|>assistant", "<|return|>"
            case Think(text, n):
                yield voice.chunk(marked(f"{opening}<|channel|>analysis<|message|>"))
                yield from map(voice.chunk, _batches(text, n))
                opening = "<|end|><|start|>assistant"
            case Call(name, arguments, _, _, custom, n):
                arguments = orjson.dumps({"input": arguments}).decode() if custom else arguments
                header = f"{opening} to=functions.{name}<|channel|>commentary <|constrain|>json<|message|>"
                yield voice.chunk(marked(header))
                yield from map(voice.chunk, _batches(arguments, n))
                last = "<|call|>"
            case End(reason, usage):
                if reason == "stop":
                    yield voice.chunk(marked(last))
                counts = usage and (usage.input_tokens, usage.cached_tokens, usage.output_tokens)
                yield voice.end(reason, counts or None)
            case Wait(seconds):
                yield seconds
            case Hang():
                yield HANG
            case Cut():
                yield CUT
            case Fail(status, _, message):
                yield sse({"error": {"message": message, "code": status, "type": "error"}})
            case Garbage():
                yield b"data: <nonsense>\n\n"
            case Overflow():
                raise AssertionError("an overflow is a refusal: the first step")


@define
class TokensRig:
    kind: str
    virtual_time: bool = True
    where: str = "model.test"
    key: str = "hunter2-hunter2"
    cannot: ClassVar[dict[str, str]] = {
        "several": "a call of gpt-oss ends its turn",
        "content_filter": "none of these servers has a filter",
        "call_ids": "gpt-oss gives calls no ids",
    }

    @asynccontextmanager
    async def playing(self, *turns: Turn) -> AsyncIterator[Playing]:
        left = [*turns]

        def play(prompt: str, schema: dict[str, Any] | None, voice: Voice) -> Reply:
            if (begun := resumed(prompt, schema)) is not None:
                return Reply([voice.chunk(marked(begun)), voice.end()])
            turn = left.pop(0) if len(left) > 1 else left[0]
            match turn:
                case [Fail(status, code, message, retry_after), *_]:
                    headers = {"retry_after": retry_after} if retry_after else {}
                    return refusing(status, {"error": {"message": message, "code": code}}, **headers)({})
                case [Overflow(), *_]:
                    message = "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens."
                    return refusing(400, {"error": {"message": message, "code": 400}})({})
            return Reply(_steps(turn, voice))

        async with trio.open_nursery() as nursery:
            server = TokenServer(nursery, kind=self.kind, play=play)
            client = HttpClient(Connections(connect=server.connect))
            backend = TokensBackend(f"http://{self.where}/v1", key=self.key, client=client, tokenizer=vocabulary())
            yield Playing(backend, [], server.gone)
            await backend.aclose()
            nursery.cancel_scope.cancel()
