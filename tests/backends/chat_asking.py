"""A chat backend under a preset's name, and a chat server that it reaches over memory streams."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from chat_server import ChatServer, Script

from turntape.core.context import Context
from turntape.core.seam import Increment, StartSample
from turntape.core.wire import structure_create
from turntape.transport.backends.chat import ChatBackend
from turntape.transport.backends.dialects import presets
from turntape.transport.http_client import HttpClient
from turntape.transport.http_connections import Connections

KEY = "hunter2-hunter2"
LOOKUP = {
    "type": "function",
    "name": "lookup",
    "parameters": {"type": "object", "properties": {"key": {"type": "string"}}},
    "strict": False,
}


@asynccontextmanager
async def asking(preset: str, script: Script) -> AsyncIterator[tuple[ChatServer, ChatBackend]]:
    """A server under this preset's name, and a backend that reaches it over memory streams."""
    async with trio.open_nursery() as nursery:
        server = ChatServer(nursery, script)
        url = presets()[preset].base_url if preset in presets() else ""
        client = HttpClient(Connections(connect=server.connect))
        http_url = (url or "http://model.test/v1").replace("https:", "http:")
        yield server, ChatBackend(http_url, KEY, preset=preset, client=client)
        nursery.cancel_scope.cancel()


def start(model: str, items: Any, context: Context | None = None, **fields: Any) -> StartSample:
    request = structure_create({"model": model, "input": items, **fields})
    return StartSample("smp_1", model, request, (context or Context()).extend(request.input.items), 0)


async def said(backend: ChatBackend, asked: StartSample) -> list[Increment]:
    async with backend.sample(asked) as channel:
        return [increment async for batch in channel for increment in batch]
