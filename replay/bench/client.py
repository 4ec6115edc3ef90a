"""The bench's client: one thread of a rollout in one of four designs, with the same parser and the same JSON in each."""

from collections.abc import Sequence
from typing import Any

import orjson
import trio
from attrs import define, field, frozen

from turntape.replay.drive.wire import APPEND_HEADER, Server
from turntape.replay.errors import ReplayError
from turntape.transport.http_connections import HttpError
from turntape.transport.websocket_client import Rejected, WebSocketClient

from .rollout import Item, Turn

DESIGNS = ("http-full", "http-chain", "ws-create", "ws-append")
"""HTTP with the whole history, HTTP with ``previous_response_id``, WebSocket with it, WebSocket with ``response.append``."""

MAX_REFUSAL_BYTES = 4096
QUOTED = 300


class BenchFailed(ReplayError):
    """The server refused or broke off a turn: what it would have been measured at is unknown."""


@define(eq=False)
class Answer:
    """One answer as it came. Times are on Trio's clock, in seconds.

    Attributes:
        first_at, last_at: of the deltas; None if there were none.
        gaps_s: between two reads that brought deltas.
        open: the response waits to be appended to.
    """

    asked_at: float
    first_at: float | None = None
    last_at: float | None = None
    ended_at: float | None = None
    gaps_s: list[float] = field(factory=list)
    n_deltas: int = 0
    response_id: str = ""
    open: bool = False

    def read(self, texts: Sequence[bytes | str]) -> None:
        """Take the events of one read. Raises ``BenchFailed``."""
        now, n_before = trio.current_time(), self.n_deltas
        for text in texts:
            event = orjson.loads(text)
            kind = event["type"]
            if kind.endswith(".delta"):
                self.n_deltas += 1
            elif kind in ("response.completed", "response.done"):
                self.response_id, self.ended_at = event["response"]["id"], now
                self.open = event["response"].get("status") == "in_progress"
            elif kind in ("error", "response.failed", "response.incomplete"):
                raise BenchFailed(f"The server answered a turn with {kind}: {_quoted(text)}")
        if self.n_deltas > n_before:
            if self.last_at is None:
                self.first_at = now
            else:
                self.gaps_s.append(now - self.last_at)
            self.last_at = now


@frozen
class Asking:
    """What stays the same in a thread's requests.

    Args:
        extra: more fields of each request.
    """

    server: Server
    model: str
    extra: dict[str, Any] = field(factory=dict)

    def body(self, turn: Turn, items: Sequence[Item]) -> Item:
        return {**turn.body(items, model=self.model), **self.extra}


@define(eq=False)
class Http:
    """One POST a turn, over connections of the server's client, which keeps them or does not.

    Args:
        chains: by ``previous_response_id``, for which the server has to store.
    """

    asking: Asking
    chains: bool
    _history: list[Item] = field(factory=list)
    _last_id: str = ""

    async def ask(self, turn: Turn) -> Answer:
        """Raises ``BenchFailed``."""
        if self.chains:
            body = {**self.asking.body(turn, turn.new), "store": True}
            if self._last_id and not turn.anew:
                body["previous_response_id"] = self._last_id
        else:
            self._history = [*turn.new] if turn.anew else [*self._history, *turn.new]
            body = self.asking.body(turn, self._history)
        body.pop("type")  # a POST has none
        server, encoded = self.asking.server, orjson.dumps({**body, "stream": True})
        headers = (*server.headers, ("Content-Type", "application/json"), ("Accept", "text/event-stream"))
        answer = Answer(trio.current_time())
        try:
            async with server.client.post(server.http_target, headers, (encoded,)) as response:
                if response.status != 200:
                    said = await response.body(MAX_REFUSAL_BYTES)
                    raise BenchFailed(f"The server answered a turn with HTTP {response.status}: {_quoted(said)}")
                while (events := await response.events()) is not None:
                    answer.read([event for event in events if event != b"[DONE]"])
        except HttpError as exc:
            raise BenchFailed(f"The server {exc}.") from exc
        if answer.ended_at is None:
            raise BenchFailed("The server ended its answer without saying so.")
        self._last_id = answer.response_id
        self._history += turn.said if not self.chains else ()
        return answer

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


@define(eq=False)
class Socket:
    """One WebSocket for the whole thread; its handshake is part of the first turn."""

    asking: Asking
    appends: bool
    _socket: WebSocketClient | None = None
    _last: Answer | None = None

    async def ask(self, turn: Turn) -> Answer:
        """Raises ``BenchFailed``."""
        body, last = self.asking.body(turn, turn.new), self._last
        if last is not None and not turn.anew:
            if last.open:
                body = {"type": "response.append", "input": [*turn.new]}
            else:
                body["previous_response_id"] = last.response_id
        encoded = orjson.dumps(body).decode()
        answer = Answer(trio.current_time())
        try:
            socket = await self._opened()
            await socket.send(encoded)
            while answer.ended_at is None:
                answer.read(await socket.receive())
        except Rejected as exc:
            raise BenchFailed(f"The server refused the WebSocket with HTTP {exc.status}: {_quoted(exc.body)}") from exc
        except HttpError as exc:
            raise BenchFailed(f"The server {exc}.") from exc
        self._last = answer
        return answer

    async def _opened(self) -> WebSocketClient:
        if self._socket is None:
            server = self.asking.server
            headers = (*server.headers, *([APPEND_HEADER] if self.appends else []))
            self._socket = await WebSocketClient.open(server.client.connections, server.websocket_target, headers)
        return self._socket

    async def aclose(self) -> None:
        if self._socket is not None:
            await self._socket.aclose()


def way(design: str, asking: Asking) -> Http | Socket:
    """One thread's way to the server, in one of ``DESIGNS``."""
    match design:
        case "http-full" | "http-chain":
            return Http(asking, chains=design == "http-chain")
        case "ws-create" | "ws-append":
            return Socket(asking, appends=design == "ws-append")
    raise ValueError(f"{design!r} is none of {', '.join(DESIGNS)}")


def _quoted(text: bytes | str) -> str:
    """The beginning of what a server said, on one line."""
    said = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    return "".join(c if c.isprintable() else " " for c in said[:QUOTED])
