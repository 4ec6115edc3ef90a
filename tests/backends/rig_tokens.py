"""The tokens backend as a rig: steps become ids of gpt-oss in the words of vLLM, SGLang or llama.cpp."""

from collections.abc import Iterator
from typing import Any, ClassVar

import orjson
import trio
from attrs import define
from backends.rig import Asked, Call, End, Say, Think, Turn, Turns, ended
from backends.rig_served import ServedRig, client_of, trouble
from chat_server import ChatServer, Reply
from chat_server import Step as ServerStep
from token_server import TokenServer, Voice, marked, resumed, vocabulary

from turntape.transport.backends.base import Backend
from turntape.transport.backends.tokens import TokensBackend


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
            case _:
                yield trouble(step)


@define
class TokensRig(ServedRig):
    kind: str
    cannot: ClassVar[dict[str, str]] = {
        "several": "a call of gpt-oss ends its turn",
        "content_filter": "none of these servers has a filter",
        "call_ids": "gpt-oss gives calls no ids",
    }

    async def begin(self, nursery: trio.Nursery, turns: Turns, asked: list[Asked]) -> tuple[ChatServer, Backend]:
        def play(prompt: str, schema: dict[str, Any] | None, voice: Voice) -> Reply:
            if (begun := resumed(prompt, schema)) is not None:
                return Reply([voice.chunk(marked(begun)), voice.end()])
            turn = turns.take()
            return self.refusal(turn) or Reply(_steps(turn, voice))

        server = TokenServer(nursery, kind=self.kind, play=play)
        return server, TokensBackend(
            f"http://{self.where}/v1", key=self.key, client=client_of(server), tokenizer=vocabulary()
        )
