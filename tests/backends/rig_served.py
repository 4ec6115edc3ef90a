"""What rigs share whose server is played over memory streams: the frame, refusals, and what goes wrong in mid-stream."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import trio
from backends.rig import Asked, Cut, Fail, Garbage, Hang, Overflow, Playing, Step, Turn, Turns, Wait
from chat_server import CUT, HANG, ChatServer, Reply, refusing, sse
from chat_server import Step as ServerStep

from turntape.transport.backends.base import Backend
from turntape.transport.http_client import HttpClient
from turntape.transport.http_connections import Connections


class ServedRig(ABC):
    """One backend whose server is played.

    Attributes:
        overflow: the error object of a prompt that is too long, in the server's words.
    """

    virtual_time: ClassVar[bool] = True
    where: ClassVar[str] = "model.test"
    key: ClassVar[str] = "hunter2-hunter2"
    cannot: ClassVar[dict[str, str]] = {}
    overflow: ClassVar[dict[str, Any]] = {
        "message": "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens.",
        "type": "BadRequestError",
        "code": 400,
    }

    @abstractmethod
    async def begin(self, nursery: trio.Nursery, turns: Turns, asked: list[Asked]) -> tuple[ChatServer, Backend]:
        """A server that plays ``turns``, and the backend that asks it.

        Args:
            asked: for what the server is asked; see ``Playing``.
        """

    @asynccontextmanager
    async def playing(self, *turns: Turn) -> AsyncIterator[Playing]:
        asked: list[Asked] = []
        async with trio.open_nursery() as nursery:
            server, backend = await self.begin(nursery, Turns(turns), asked)
            yield Playing(backend, asked, server.gone)
            await backend.aclose()
            nursery.cancel_scope.cancel()

    def refusal(self, turn: Turn) -> Reply | None:
        """The answer to a request that is refused; None if it is not."""
        match turn:
            case [Fail(status, _, _, retry_after) as fail, *_]:
                headers = {"retry_after": retry_after} if retry_after else {}
                return refusing(status, {"error": self.error(fail)}, **headers)({})
            case [Overflow(), *_]:
                return refusing(400, {"error": self.overflow})({})
        return None

    def error(self, fail: Fail) -> dict[str, Any]:
        """The error object of a refusal."""
        return {"message": fail.message, "code": fail.code, "type": "error"}


def client_of(server: ChatServer) -> HttpClient:
    return HttpClient(Connections(connect=server.connect))


def trouble(step: Step) -> ServerStep:
    """What servers of every dialect do alike when a step says nothing and ends nothing well."""
    match step:
        case Wait(seconds):
            return seconds
        case Hang():
            return HANG
        case Cut():
            return CUT
        case Fail(status, _, message):
            return sse({"error": {"message": message, "code": status, "type": "error"}})
        case Garbage():
            return b"data: <nonsense>\n\n"
    raise AssertionError(f"{step} can only stand first")
