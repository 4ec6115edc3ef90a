"""The responses backend as a rig: behind it stands a second Turntape, or a server with few of the API's ways."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import chat_server
import orjson
import trio
import trio.testing
from attrs import define, evolve
from backends.rig import Asked, Call, End, Fail, Playing, Say, Step, Think, Turn, Turns, ended, pieces
from backends.rig_scripted import Watched, script_of
from backends.rig_served import ServedRig, client_of, trouble
from chat_server import ChatServer, Reply, sse
from serving import Server

from turntape.core.seam import Usage
from turntape.transport.backends.base import Backend
from turntape.transport.backends.responses import ResponsesBackend
from turntape.transport.backends.responses_upstreams import UNKNOWN, Upstream
from turntape.transport.backends.scripted import ScriptedBackend
from turntape.transport.http_client import HttpClient
from turntape.transport.http_connections import Connections
from turntape.transport.server import ServerSettings

KEY = "hunter2-hunter2"


@define
class TurntapeRig:
    """A second Turntape with the scripted backend: the whole API, over HTTP or WebSocket.

    Attributes:
        scheme: "http" or "ws".
        row: how the first one sees it.
        store: let it store.
    """

    scheme: str
    row: Upstream = UNKNOWN
    store: bool = False
    virtual_time: ClassVar[bool] = True
    where: ClassVar[str] = "model.test"
    key: ClassVar[str] = KEY
    cannot: ClassVar[dict[str, str]] = {
        "garbage": "a Turntape upstream sends no nonsense",
    }

    def _as_asked(self, turn: Turn) -> Turn:
        return turn if self.row.native else [*map(as_function, turn)]

    @asynccontextmanager
    async def playing(self, *turns: Turn) -> AsyncIterator[Playing]:
        gone = trio.Event()
        async with trio.open_nursery() as nursery:
            played = Watched(ScriptedBackend(script_of(*map(self._as_asked, turns))), gone)
            upstream = Server(nursery, played, ServerSettings(keys=frozenset({KEY})))

            async def connect(host: str, port: int) -> trio.abc.Stream:
                return upstream.connect()

            backend = ResponsesBackend(
                f"{self.scheme}://{self.where}/v1",
                self.key,
                upstream=self.row,
                store=self.store,
                client=HttpClient(Connections(connect=connect)),
            )
            yield Playing(backend, gone=gone)
            await backend.aclose()
            nursery.cancel_scope.cancel()


def as_function(step: Step) -> Step:
    """A call as a server sees it that was offered functions only."""
    if not isinstance(step, Call):
        return step
    arguments = orjson.dumps({"input": step.arguments}).decode() if step.custom else step.arguments
    return evolve(step, arguments=arguments, custom=False, namespace=None)


class PlainRig(ServedRig):
    """A server that knows functions alone and leaves out what it can: no created, no numbers, no [DONE]."""

    overflow: ClassVar[dict[str, Any]] = {
        "message": "The input exceeds the context window of this model.",
        "code": "context_length_exceeded",
    }

    async def begin(self, nursery: trio.Nursery, turns: Turns, asked: list[Asked]) -> tuple[ChatServer, Backend]:
        def script(request: dict[str, Any]) -> Reply:
            asked.append(asked_of(request))
            turn = turns.take()
            return self.refusal(turn) or Reply(_steps(ended(turn)))

        server = ChatServer(nursery, script)
        return server, ResponsesBackend(f"http://{self.where}/v1", self.key, client=client_of(server))


def asked_of(request: dict[str, Any]) -> Asked:
    names = frozenset(tool["name"] for tool in request.get("tools") or ())
    schema = ((request.get("text") or {}).get("format") or {}).get("schema")
    mode = request.get("tool_choice", "auto" if names else "none")
    return Asked(orjson.dumps(request["input"]).decode(), mode, names, schema)


def _steps(turn: list[Step]) -> Iterator[chat_server.Step]:
    n_calls = 0
    for n, step in enumerate(map(as_function, turn)):
        match step:
            case Say(text, n_chunks):
                for piece in pieces(text, n_chunks):
                    yield sse({"type": "response.output_text.delta", "item_id": f"i{n}", "delta": piece})
                item = {"id": f"i{n}", "type": "message", "role": "assistant", "content": [_text("output_text", text)]}
                yield sse({"type": "response.output_item.done", "item": item})
            case Think(text, n_chunks):
                for piece in pieces(text, n_chunks):
                    yield sse({"type": "response.reasoning_text.delta", "item_id": f"i{n}", "delta": piece})
                item = {"id": f"i{n}", "type": "reasoning", "summary": [], "content": [_text("reasoning_text", text)]}
                yield sse({"type": "response.output_item.done", "item": item})
            case Call(name, arguments, call_id, n_chunks=n_chunks):
                item = {"id": f"i{n}", "type": "function_call", "call_id": call_id or f"call_{n_calls}", "name": name}
                n_calls += 1
                yield sse({"type": "response.output_item.added", "item": {**item, "arguments": ""}})
                for piece in pieces(arguments, n_chunks):
                    yield sse({"type": "response.function_call_arguments.delta", "item_id": f"i{n}", "delta": piece})
                yield sse({"type": "response.output_item.done", "item": {**item, "arguments": arguments}})
            case End(reason, usage):
                yield sse(_end(reason, usage))
            case Fail(_, code, message):
                yield sse({"type": "error", "code": code, "message": message, "param": None})
            case _:
                yield trouble(step)


def _text(kind: str, text: str) -> dict[str, Any]:
    return {"type": kind, "text": text}


def _end(reason: str, usage: Usage | None) -> dict[str, Any]:
    reasons = {"length": "max_output_tokens", "content_filter": "content_filter"}
    response: dict[str, Any] = {"id": "resp_1", "status": "incomplete" if reason in reasons else "completed"}
    if reason in reasons:
        response["incomplete_details"] = {"reason": reasons[reason]}
    if usage is not None:
        response["usage"] = {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        }
    return {"type": f"response.{response['status']}", "response": response}
