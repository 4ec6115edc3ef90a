"""The ``responses`` backend: a Responses server over HTTP or WebSocket (OpenAI, xAI, vLLM, SGLang, another Turntape)."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

import orjson
import trio
from attrs import define, field, frozen

from turntape.core.context import Context
from turntape.core.seam import StartSample

from ..http_client import HttpClient, Response
from ..http_connections import HttpError
from ..http_target import Target
from ..websocket_client import Rejected, SocketClosed, websocket_target
from .answer_events import AnswerEvents
from .base import BackendError, Batch
from .chat_errors import Refusals
from .chat_tools import Offer
from .key import checked_key
from .responses_errors import failure_in
from .responses_items import Renderer, request_fields
from .responses_sockets import Socket, Sockets
from .responses_stream import EventReader
from .responses_upstreams import Upstream, upstream_at

PATH = "/responses"
MAX_ERROR_BYTES = 256 * 1024
DRAIN_S = 1.0
"""How long an answer that was given may take to end, so that its connection can be kept."""

LOST = "previous_response_not_found"
"""Code of a refusal that full input gets around."""

AGED = "websocket_connection_limit_reached"
"""Code of a refusal that a new connection gets around."""

Read = Callable[[], Awaitable["list[bytes] | list[str] | None"]]
"""The events of one read; None at the end of the answer."""


Body = tuple[bytes, ...]

N_LINKS = 16
"""How far back in a conversation a response to continue is looked for. A turn adds two links."""


@frozen
class _Said:
    """What the upstream answered to a context.

    Attributes:
        call_ids: of the calls in it.
    """

    response_id: str
    call_ids: frozenset[str]


@frozen
class _Bodies:
    """One request: as the continuation ``chained`` of a response that the upstream has, and with its full input.

    Attributes:
        response_id: the response to continue.
    """

    full: Callable[[], Body] = field(repr=False)  # made when needed: it grows with the conversation
    chained: Body | None = field(default=None, repr=False)
    response_id: str | None = None


def _with_path(url: str) -> str:
    base, mark, query = url.partition("?")
    base = base.rstrip("/")
    return (base if base.endswith(PATH) else base + PATH) + mark + query


@define(eq=False)
class ResponsesBackend:
    """Asks a Responses server for each sample, over warm connections.

    Over a WebSocket a conversation stays on its connection and a turn sends its new items only; over HTTP so does a
    conversation that the upstream stores (``store``). Whatever the upstream does not have any more is sent in full.

    Args:
        url: http(s):// or ws(s)://, usually ending in /v1. A user name or password in it is refused; a query is sent
            and never shown.
        key: of the upstream; never in a message, a log or a ``repr``.
        models: names to list. The model of a request is passed on as it is, listed or not.
        upstream: its row; None for the one that its host has.
        store: let an upstream that can store responses do so, and continue them. Its copies are then its own.
        client: the connections to use.
        n_sockets: WebSockets open at once. Who needs one more waits.

    Raises:
        ValueError: the URL or the key cannot be used; the text repeats neither.
    """

    url: str = field(repr=False)
    key: str | None = field(default=None, repr=False, converter=checked_key)
    models: tuple[str, ...] = ()
    upstream: Upstream | None = field(default=None, repr=False)
    store: bool = False
    client: HttpClient = field(factory=HttpClient, repr=False)
    n_sockets: int = 256
    handshake_headers: tuple[tuple[str, str], ...] = field(default=(), repr=False, kw_only=True)
    target: Target = field(init=False)
    renderer: Renderer = field(init=False, repr=False)
    row: Upstream = field(init=False, repr=lambda row: row.name)
    _sockets: Sockets | None = field(init=False, default=None, repr=False)
    _refusals: Refusals = field(init=False, repr=False)
    _said: WeakKeyDictionary[Context, _Said] = field(factory=WeakKeyDictionary, init=False, repr=False)
    _continues: bool = field(init=False, default=True, repr=False)  # until it says that it never does

    def __attrs_post_init__(self) -> None:
        url = _with_path(self.url)
        is_socket = url.partition("://")[0].lower() in ("ws", "wss")
        self.target = websocket_target(url) if is_socket else Target.parse(url)
        self.row = self.upstream or upstream_at(self.target.host)
        self.renderer = Renderer(self.row)
        self._refusals = Refusals(self.target.where, self.key)
        if is_socket:
            self._sockets = Sockets(
                self.client.connections, self.target, self._handshake, self.n_sockets, self.client.silence_s
            )

    def _handshake(self) -> tuple[tuple[str, str], ...]:
        return (*self._headers(), *self.handshake_headers)

    def _headers(self) -> tuple[tuple[str, str], ...]:
        agent = (("User-Agent", "turntape"),)
        if not self.key:
            return agent
        if self.row.key_header == "authorization":
            return (*agent, ("Authorization", f"Bearer {self.key}"))
        return (*agent, (self.row.key_header, self.key))

    @trio.as_safe_channel
    async def sample(self, start: StartSample) -> AsyncGenerator[Batch, None]:
        """See ``Backend.sample``. Whoever reads on after ``Finish``, to the end, lets the connection be kept."""
        offer = self.renderer.render(start.context, start.context.tools + start.request.callable_tools).offer
        reader = EventReader(offer.names, self._refusals)
        bodies = self._bodies(start, offer)
        asking = self._over_http(bodies) if self._sockets is None else self._over_websocket(bodies, start, reader)
        try:
            async with asking as read:
                yield ()
                batch: Batch = ()
                while not reader.ended and (events := await read()) is not None:
                    batch = reader.feed(events)
                    if batch and not reader.ended:
                        yield batch
                        batch = ()
                try:
                    last = reader.end()
                except BackendError:
                    if batch:
                        yield batch
                    raise
                self._note(start, reader)
                yield batch + last
        except HttpError as exc:
            raise self._refusals.failed(exc) from None

    async def warm(self) -> None:
        """See ``Warmable``."""
        if self._sockets is not None:
            await self._sockets.warm()
        else:
            await self.client.connections.warm(self.target)

    async def aclose(self) -> None:
        if self._sockets is not None:
            await self._sockets.aclose()
        await self.client.aclose()

    # --- what is asked ------------------------------------------------------------------------------

    def _bodies(self, start: StartSample, offer: Offer) -> _Bodies:
        fields = request_fields(start.request, offer, self.row)
        stores = self.store and self.row.stored
        delivery = {"type": "response.create"} if self._sockets is not None else {"stream": True}
        settings = orjson.dumps({**delivery, "model": start.model, "store": stores, **fields})[:-1]

        def body(items: bytes, *more: bytes) -> Body:
            return (settings, *more, b',"input":[', items, b"]}")

        def full() -> Body:
            return body(self.renderer.input(start.context))

        if not self._continues or (self._sockets is None and not stores):
            return _Bodies(full)
        answer: Context | None = None
        for link in islice(start.context.links(), N_LINKS):
            if answer is not None and (said := self._said.get(link)) is not None and _is_answer(answer, said):
                previous = b',"previous_response_id":' + orjson.dumps(said.response_id)
                new = self.renderer.input(start.context, answer)
                return _Bodies(full, body(new, previous), said.response_id)
            answer = link
        return _Bodies(full)

    def _note(self, start: StartSample, reader: EventReader) -> None:
        """Remember which response of the upstream answers this context, if a next turn could continue it."""
        if reader.response_id is not None and reader.finish_reason == "stop" and reader.n_told:
            self._said[start.context] = _Said(reader.response_id, frozenset(reader.call_ids))

    def _is_lost(self, error: BackendError, told: str) -> bool:
        """Whether a refusal is about the response to be continued; notes an upstream that never continues any."""
        if LOST in told:
            return True
        if error.param == "previous_response_id" or "previous_response_id" in str(error):
            self._continues = False
            return True
        return error.status == 404 and "response" in str(error).lower() and error.code != "model_not_found"

    # --- over HTTP ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def _over_http(self, bodies: _Bodies) -> AsyncIterator[Read]:
        headers = (
            ("Content-Type", "application/json"),
            ("Accept", "text/event-stream, application/json"),
            *self._headers(),
        )
        if bodies.chained is not None:
            async with self.client.post(self.target, headers, bodies.chained) as response:
                if 200 <= response.status < 300:
                    yield AnswerEvents(response, self._refusals, "output").read
                    await response.drain(DRAIN_S)
                    return
                error, told = await self._refusal(response)
                if not self._is_lost(error, told):
                    raise error
        async with self.client.post(self.target, headers, bodies.full()) as response:
            if not 200 <= response.status < 300:
                raise (await self._refusal(response))[0]
            yield AnswerEvents(response, self._refusals, "output").read
            await response.drain(DRAIN_S)

    async def _refusal(self, response: Response) -> tuple[BackendError, str]:
        """The error, and what the server said in its own words, which are for looking at only."""
        try:
            body = await response.body(MAX_ERROR_BYTES)
        except HttpError:
            body = b""  # the status says enough
        return self._refusals.refused(response.status, response.headers, body), body.decode(errors="replace")

    # --- over a WebSocket ---------------------------------------------------------------------------

    @asynccontextmanager
    async def _over_websocket(self, bodies: _Bodies, start: StartSample, reader: EventReader) -> AsyncIterator[Read]:
        assert self._sockets is not None
        try:
            socket = await self._sockets.take(bodies.response_id)
        except Rejected as exc:
            raise self._rejected(exc) from None
        keep = False
        try:
            first = await self._first(socket, bodies)
            if (error := _error_in(first[0])) is not None:
                keep, socket.response_id = True, None  # refused: the connection goes on, and has nothing to continue
                raise failure_in(self._refusals, error)

            async def read() -> list[str]:
                nonlocal first
                events, first = first or await socket.client.receive(), []
                return events

            yield read
            keep = reader.finish_reason is not None
            if keep and reader.response_id is not None:
                socket.holds(start.context, reader.response_id)
        finally:
            await self._sockets.give_back(socket, keep=keep)

    async def _first(self, socket: Socket, bodies: _Bodies) -> list[str]:
        """Ask, and once more with the full input if that may help; give the events of the first read."""
        assert self._sockets is not None
        body = bodies.chained if self._can_continue(socket, bodies) else None
        while True:
            try:
                await socket.client.send(b"".join(body or bodies.full()).decode())
                first = await socket.client.receive()
            except SocketClosed:
                if socket.is_fresh:
                    raise
                await self._reopen(socket)
                body = bodies.chained if self._can_continue(socket, bodies) else None
                continue
            error = _error_in(first[0])
            if error is None:
                return first
            if AGED in first[0] and not socket.is_fresh:
                await self._reopen(socket)
            elif body is None or not self._is_lost(failure_in(self._refusals, error), first[0]):
                return first
            body = None

    def _can_continue(self, socket: Socket, bodies: _Bodies) -> bool:
        """Whether the upstream has the response that ``bodies.chained`` continues: on this connection, or stored."""
        if bodies.chained is None:
            return False
        return socket.response_id == bodies.response_id or (self.store and self.row.stored)

    async def _reopen(self, socket: Socket) -> None:
        assert self._sockets is not None
        try:
            await self._sockets.reopen(socket)
        except Rejected as exc:
            raise self._rejected(exc) from None

    def _rejected(self, rejected: Rejected) -> BackendError:
        return self._refusals.refused(rejected.status, rejected.headers, rejected.body)


def _is_answer(link: Context, said: _Said) -> bool:
    """Whether ``link`` is what the upstream said: nothing that a client wrote, and the calls that it made."""
    kinds = {item.value.get("role") if item.type == "message" else item.type for item in link.items}
    calls = {item.call_id for item in link.items if item.opens_call}
    return kinds <= {"assistant", "reasoning", "function_call", "custom_tool_call"} and calls == said.call_ids


def _error_in(event: str) -> dict[str, Any] | None:
    """The event, if it is an error."""
    try:
        value = orjson.loads(event)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) and value.get("type") == "error" else None
