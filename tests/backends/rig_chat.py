"""The chat backend as a rig: steps become chunks of a chat-completions server over memory streams."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import chat_server
import orjson
import trio
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
    Wait,
    ended,
    pieces,
)
from chat_server import CUT, DONE, HANG, ChatServer, Reply, chunk, refusing, sse

from turntape.core.seam import Usage
from turntape.transport.backends.chat import ChatBackend
from turntape.transport.http_client import HttpClient
from turntape.transport.http_connections import Connections


def reply_of(turn: Turn) -> Reply:
    match turn:
        case [Fail(status, code, message, retry_after), *_]:
            headers = {"retry_after": retry_after} if retry_after else {}
            return refusing(status, {"error": {"message": message, "code": code, "type": "error"}}, **headers)({})
        case [Overflow(), *_]:
            message = "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens."
            return refusing(400, {"error": {"message": message, "type": "BadRequestError", "code": 400}})({})
    return Reply(_steps(turn))


def _steps(turn: Turn) -> Iterator[chat_server.Step]:
    n_calls = 0
    for step in ended(turn):
        match step:
            case Say(text, n):
                yield from (sse(chunk(content=piece)) for piece in pieces(text, n))
            case Think(text, n):
                yield from (sse(chunk(reasoning_content=piece)) for piece in pieces(text, n))
            case Call(name, arguments, call_id, _, custom, n):
                call_id = call_id or f"call_{n_calls}"
                yield sse(chunk(tool_calls=[chat_server.call(n_calls, call_id, name, "")]))
                arguments = orjson.dumps({"input": arguments}).decode() if custom else arguments
                for piece in pieces(arguments, n):
                    yield sse(chunk(tool_calls=[chat_server.call(n_calls, arguments=piece)]))
                n_calls += 1
            case End(reason, usage):
                yield sse(chunk("tool_calls" if n_calls and reason == "stop" else reason))
                if usage is not None:
                    yield sse(_usage(usage))
                yield DONE
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


def _usage(usage: Usage) -> dict[str, Any]:
    return chat_server.usage(
        usage.input_tokens,
        usage.output_tokens,
        prompt_tokens_details={"cached_tokens": usage.cached_tokens},
        completion_tokens_details={"reasoning_tokens": usage.reasoning_tokens},
    )


def asked_of(request: dict[str, Any]) -> Asked:
    offered = frozenset(tool["function"]["name"] for tool in request.get("tools") or ())
    choice = request.get("tool_choice", "auto")
    if isinstance(choice, dict):
        choice, offered = "required", frozenset({choice["function"]["name"]})
    schema = (request.get("response_format") or {}).get("json_schema", {}).get("schema")
    return Asked(orjson.dumps(request["messages"]).decode(), choice, offered, schema)


class ChatRig:
    virtual_time = True
    where, key = "model.test", "hunter2-hunter2"
    cannot: ClassVar[dict[str, str]] = {}

    @asynccontextmanager
    async def playing(self, *turns: Turn) -> AsyncIterator[Playing]:
        asked: list[Asked] = []
        left = [*turns]

        def script(request: dict[str, Any]) -> Reply:
            asked.append(asked_of(request))
            return reply_of(left.pop(0) if len(left) > 1 else left[0])

        async with trio.open_nursery() as nursery:
            server = ChatServer(nursery, script)
            backend = ChatBackend(
                f"http://{self.where}/v1", self.key, client=HttpClient(Connections(connect=server.connect))
            )
            yield Playing(backend, asked, server.gone)
            await backend.aclose()
            nursery.cancel_scope.cancel()
