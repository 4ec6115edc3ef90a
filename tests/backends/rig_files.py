"""A vLLM or SGLang that runs a model with a chat template, played, and the tokens backend with that model's files."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import orjson
import trio
from attrs import define
from backends import chat_model
from backends.rig import Call, Cut, End, Fail, Garbage, Hang, Overflow, Playing, Say, Think, Turn, Wait, ended, pieces
from chat_server import CUT, HANG, Reply, refusing, sse
from chat_server import Step as ServerStep
from token_server import TokenServer, Voice, instance

from turntape.transport.backends.tokens import TokensBackend
from turntape.transport.http_client import HttpClient
from turntape.transport.http_connections import Connections


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
class FilesRig:
    kind: str
    virtual_time: bool = True
    where: str = "model.test"
    key: str = "hunter2-hunter2"
    cannot: ClassVar[dict[str, str]] = {
        "content_filter": "none of these servers has a filter",
        "call_ids": "models with a template give calls no ids",
    }

    @asynccontextmanager
    async def playing(self, *turns: Turn) -> AsyncIterator[Playing]:
        left = [*turns]

        def play(prompt: str, schema: dict[str, Any] | None, voice: Voice) -> Reply:
            turn = left.pop(0) if len(left) > 1 else left[0]
            match turn:
                case [Fail(status, code, message, retry_after), *_]:
                    headers = {"retry_after": retry_after} if retry_after else {}
                    return refusing(status, {"error": {"message": message, "code": code}}, **headers)({})
                case [Overflow(), *_]:
                    message = "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens."
                    return refusing(400, {"error": {"message": message, "code": 400}})({})
                case [Say(text), *_] if schema is not None and not text.startswith("{"):
                    turn = [Say(orjson.dumps(instance(schema)).decode())]
            return Reply(_steps(turn, voice))

        with tempfile.TemporaryDirectory() as folder:
            async with trio.open_nursery() as nursery:
                server = TokenServer(nursery, kind=self.kind, play=play, root="tiny", decode=chat_model.decode)
                client = HttpClient(Connections(connect=server.connect))
                files = chat_model.write(Path(folder))
                backend = TokensBackend(f"http://{self.where}/v1", key=self.key, client=client, tokenizer_path=files)
                await backend.probe()  # loads the files in a thread, for which virtual time does not wait
                yield Playing(backend, [], server.gone)
                await backend.aclose()
                nursery.cancel_scope.cancel()
