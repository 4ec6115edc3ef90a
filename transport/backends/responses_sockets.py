"""WebSockets to one Responses server: one for each chain in use, kept while the chain may go on, and bounded."""

from collections.abc import Callable
from weakref import ReferenceType, ref

import trio
from attrs import define, field

from turntape.core.context import Context

from ..http_connections import Connections
from ..http_target import Target
from ..websocket_client import WebSocketClient

IDLE_S = 1800.0
"""How long a connection is kept that nobody uses; ours. An agent's tool may take that long."""


@define(eq=False)
class Socket:
    """A connection and the response that the server still has on it.

    Attributes:
        is_fresh: it has not been used before.
        response_id: the last response that ended on it, which it can continue.
    """

    client: WebSocketClient
    is_fresh: bool = True
    response_id: str | None = None
    _asked: ReferenceType[Context] | None = None

    def holds(self, asked: Context, response_id: str) -> None:
        """The server now has this response, to the conversation ``asked``."""
        self.response_id, self._asked = response_id, ref(asked)

    @property
    def is_free(self) -> bool:
        """Nobody can continue what the server has on it: the conversation is gone."""
        return self.response_id is None or self._asked is None or self._asked() is None


@define(eq=False)
class Sockets:
    """Gives out connections; each is used by one sample at a time.

    Args:
        headers: makes those of a handshake.
        n_max: open at once. Who needs one more waits.
        silence_s: longest wait for the next bytes of an answer.
    """

    connections: Connections
    target: Target
    headers: Callable[[], tuple[tuple[str, str], ...]]
    n_max: int = 256
    silence_s: float = 600.0
    _idle: list[Socket] = field(factory=list, init=False)  # the latest last
    _room: trio.Semaphore = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._room = trio.Semaphore(self.n_max)

    async def take(self, response_id: str | None) -> Socket:
        """The connection that can continue this response if it is idle; else a free one, or a new one.

        Raises:
            HttpError, Rejected: a new one cannot be had.
        """
        await self._room.acquire()
        try:
            return await self._kept(response_id) or Socket(await self._open())
        except BaseException:
            self._room.release()
            raise

    async def warm(self) -> None:
        """Have one ready, without use. Raises as ``take``."""
        await self.give_back(await self.take(None), keep=True)

    async def reopen(self, socket: Socket) -> None:
        """A new connection in place of one that ended. Raises as ``take``; ``socket`` is to be given back all the same."""
        await socket.client.drop()
        socket.response_id = None
        socket.client, socket.is_fresh = await self._open(), True

    async def give_back(self, socket: Socket, *, keep: bool) -> None:
        """Keep the connection for the next sample, or close it at once."""
        self._room.release()
        if keep and socket.client.alive:
            socket.is_fresh = False
            socket.client.rest(IDLE_S)
            self._idle.append(socket)
        else:
            await socket.client.drop()

    async def aclose(self) -> None:
        """Close the idle connections; one in use is closed by its user."""
        idle, self._idle = self._idle, []
        for socket in idle:
            await self._end(socket)

    async def _kept(self, response_id: str | None) -> Socket | None:
        while True:
            fit = (each for each in reversed(self._idle) if _fits(each, response_id))
            free = (each for each in reversed(self._idle) if each.is_free)
            socket = next(fit, None) or next(free, None)
            if socket is None:
                return None
            self._idle.remove(socket)
            if await socket.client.wake():
                return socket

    async def _open(self) -> WebSocketClient:
        self._idle = [socket for socket in self._idle if socket.client.alive]
        n_in_use = self.n_max - self._room.value
        while self._idle and len(self._idle) + n_in_use > self.n_max:
            await self._end(self._idle.pop(0))
        return await WebSocketClient.open(self.connections, self.target, self.headers(), silence_s=self.silence_s)

    async def _end(self, socket: Socket) -> None:
        await socket.client.wake()
        await socket.client.aclose()


def _fits(socket: Socket, response_id: str | None) -> bool:
    return response_id is not None and socket.response_id == response_id
