"""The chat backend as a rig: steps become chunks of a chat-completions server over memory streams."""

from collections.abc import Iterator
from typing import Any

import chat_server
import orjson
import trio
from backends.rig import Asked, Call, End, Say, Think, Turn, Turns, ended, pieces
from backends.rig_served import ServedRig, client_of, trouble
from chat_server import DONE, ChatServer, Reply, chunk, sse

from turntape.core.seam import Usage
from turntape.transport.backends.base import Backend
from turntape.transport.backends.chat import ChatBackend


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
            case _:
                yield trouble(step)


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


class ChatRig(ServedRig):
    async def begin(self, nursery: trio.Nursery, turns: Turns, asked: list[Asked]) -> tuple[ChatServer, Backend]:
        def script(request: dict[str, Any]) -> Reply:
            asked.append(asked_of(request))
            turn = turns.take()
            return self.refusal(turn) or Reply(_steps(turn))

        server = ChatServer(nursery, script)
        return server, ChatBackend(f"http://{self.where}/v1", self.key, client=client_of(server))
