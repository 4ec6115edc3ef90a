"""A vLLM or SGLang that runs a model with a chat template, played, and the tokens backend with that model's files."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import orjson
import trio
from attrs import define
from backends import chat_model
from backends.rig import Asked, Call, End, Say, Think, Turn, Turns, ended, pieces
from backends.rig_served import ServedRig, client_of, trouble
from chat_server import ChatServer, Reply
from chat_server import Step as ServerStep
from token_server import TokenServer, Voice, instance

from turntape.transport.backends.base import Backend
from turntape.transport.backends.tokens import TokensBackend


def _steps(turn: Turn, voice: Voice) -> Iterator[ServerStep]:
    def said(*texts: str) -> Iterator[bytes]:
        yield from (voice.chunk(chat_model.encode(text)) for text in texts if text)

    for step in ended(turn):
        match step:
            case Say(text, n):
                yield from said(*pieces(text, n))
            case Think(text, n):
                yield from said("<think>\n", *pieces(text, n), "</think>\n\n")
            case Call(name, arguments, _, _, custom, n):
                arguments = orjson.dumps({"input": arguments}).decode() if custom else arguments
                close = "}\n</tool_call>" if arguments.endswith("}") else ""  # a broken call ends nowhere
                yield from said(f'<tool_call>\n{{"name": "{name}", "arguments": ', *pieces(arguments, n), close)
            case End(reason, usage):
                if reason == "stop":
                    yield from said("<|im_end|>")
                counts = usage and (usage.input_tokens, usage.cached_tokens, usage.output_tokens)
                yield voice.end(reason, counts or None)
            case _:
                yield trouble(step)


@define
class FilesRig(ServedRig):
    kind: str
    cannot: ClassVar[dict[str, str]] = {
        "content_filter": "none of these servers has a filter",
        "call_ids": "models with a template give calls no ids",
    }

    async def begin(self, nursery: trio.Nursery, turns: Turns, asked: list[Asked]) -> tuple[ChatServer, Backend]:
        def play(prompt: str, schema: dict[str, Any] | None, voice: Voice) -> Reply:
            turn = turns.take()
            match turn:
                case [Say(text), *_] if schema is not None and not text.startswith("{"):
                    turn = [Say(orjson.dumps(instance(schema)).decode())]
            return self.refusal(turn) or Reply(_steps(turn, voice))

        server = TokenServer(nursery, kind=self.kind, play=play, root="tiny", decode=chat_model.decode)
        with tempfile.TemporaryDirectory() as folder:
            files = chat_model.write(Path(folder))
            backend = TokensBackend(
                f"http://{self.where}/v1", key=self.key, client=client_of(server), tokenizer_path=files
            )
            await backend.probe()  # loads the files in a thread, for which virtual time does not wait
        return server, backend
