"""The chat and the tokens backend before a real llama.cpp server with a real model, as rigs."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson
import trio
from attrs import define, field
from backends import steering
from backends.rig import Cut, Fail, Hang, Playing, Turn, Turns
from llama_server import LlamaServer

from turntape.transport.backends.chat import ChatBackend
from turntape.transport.backends.tokens import TokensBackend
from turntape.transport.http_client import HttpClient, Response
from turntape.transport.http_target import Target

Headers = Sequence[tuple[str, str]]

EOS = 2
"""``<|im_end|>`` of SmolLM2."""

POLL_S = 0.005
"""How often another process is looked at."""

GONE_S = 3.0
"""llama.cpp sees that a client has left after the token that it is at; no answer here is over so soon by itself."""

CANNOT = {
    "garbage": "llama.cpp speaks its protocol",
    "slow": "a real prefill takes the time that it takes",
    "content_filter": "llama.cpp has no filter",
    "retry_after": "llama.cpp names no time to come back",
    "404": "one model answers to any name",
    "429": "llama.cpp limits no rates: requests wait for the slot",
    "500": "nothing that can be asked makes it fail so",
    "503": "only while it loads its model",
    "silence": "a real model goes on until its server is dead",
}
CANNOT_CHAT = {
    **CANNOT,
    "call_ids": "llama.cpp makes ids of its own",
    "several": "nothing holds the model to a second call",
    "malformed": "llama.cpp lets no such call be written where it is bound, and answers an error where it is not",
}
CANNOT_TOKENS = {**CANNOT, "call_ids": "calls are text: their ids are made here"}


@define(eq=False)
class SteeredClient(HttpClient):
    """Adds to each request for an answer what makes the model say the script's words.

    Args:
        steer: headers and body as they are to be sent, once the server can be asked.
    """

    steer: Callable[[str, Headers, bytes], Awaitable[tuple[Headers, bytes]]] = field(kw_only=True)

    @asynccontextmanager
    async def post(self, target: Target, headers: Headers, body: Sequence[bytes]) -> AsyncIterator[Response]:
        headers, changed = await self.steer(target.path, headers, b"".join(body))
        async with HttpClient.post(self, target, headers, (changed,)) as response:
            yield response

    @asynccontextmanager
    async def get(self, target: Target, headers: Headers) -> AsyncIterator[Response]:
        headers, _ = await self.steer(target.path, headers, b"")
        async with HttpClient.get(self, target, headers) as response:
            yield response


@define(eq=False)
class Play:
    """The server while it plays some turns: what it is to say next, whether it lives, who left it."""

    server: LlamaServer
    nursery: trio.Nursery
    turns: Turns
    gone: trio.Event = field(factory=trio.Event)
    _lives: trio.Event = field(factory=trio.Event)
    _own: HttpClient = field(factory=HttpClient)

    def __attrs_post_init__(self) -> None:
        self._lives.set()

    async def ask(self, path: str, asked: dict[str, Any] | None = None) -> bytes:
        """What the server answers to us, beside the backend."""
        target = Target.parse(self.server.url.removesuffix("/v1") + path)
        headers = (("Authorization", f"Bearer {self.server.key}"), ("Content-Type", "application/json"))
        own = self._own
        asking = own.get(target, headers) if asked is None else own.post(target, headers, (orjson.dumps(asked),))
        async with asking as response:
            assert response.status == 200
            return await response.body(1 << 20)

    async def slot(self) -> dict[str, Any]:
        [slot] = orjson.loads(await self.ask("/slots"))
        return dict(slot)

    async def count(self, name: str) -> int:
        """A counter of the server's own, which no answer brings."""
        lines = (await self.ask("/metrics")).decode().splitlines()
        [value] = [line.split()[1] for line in lines if line.startswith(f"llamacpp:{name} ")]
        return int(value)

    async def ids(self, text: str) -> list[int]:
        return list(orjson.loads(await self.ask("/tokenize", {"content": text}))["tokens"])

    async def steer(self, path: str, headers: Headers, body: bytes) -> tuple[Headers, bytes]:
        """See ``SteeredClient``."""
        await self._lives.wait()
        if not steering.is_steered(path):
            return headers, body
        turn = self.turns.take()
        if isinstance(turn[0], Fail):
            assert turn[0].status == 401
            return tuple((k, "Bearer another" if k == "Authorization" else v) for k, v in headers), body
        ids = await self.ids(steering.text_of(turn))
        changed = steering.steered(orjson.loads(body), turn, n_ctx=self.server.n_ctx, eos=EOS, ids=ids)
        if isinstance(turn[-1], Hang):
            self.nursery.start_soon(self._see_who_leaves)
        elif isinstance(turn[-1], Cut | Fail):
            self.nursery.start_soon(self._die, 2 * len(steering.text_of(turn)))
        return headers, orjson.dumps(changed)

    async def until(self, holds: Callable[[dict[str, Any]], bool]) -> None:
        """Return once the slot is so."""
        while not holds(await self.slot()):
            await trio.sleep(POLL_S)

    async def _see_who_leaves(self) -> None:
        await self.until(is_busy)
        await self.until(lambda slot: not is_busy(slot))
        self.gone.set()

    async def _die(self, n_decoded: int) -> None:
        """Kill the server after so many tokens, and start it again."""
        await self.until(lambda slot: is_busy(slot) and slot["next_token"][0]["n_decoded"] >= n_decoded)
        self._lives = trio.Event()
        self.server.kill()
        await trio.to_thread.run_sync(self.server.start)
        self._lives.set()


def is_busy(slot: dict[str, Any]) -> bool:
    return bool(slot["is_processing"])


@define(eq=False)
class LlamaServerRig:
    """One of the two backends with this server.

    Attributes:
        kind: "chat" or "tokens".
        play: the last one, for cases of this server alone.
    """

    kind: str
    server: LlamaServer
    cannot: Mapping[str, str] = field(init=False)
    key: str = field(init=False)
    virtual_time: bool = False
    where: str = "127.0.0.1"
    play: Play | None = None

    def __attrs_post_init__(self) -> None:
        self.cannot = CANNOT_CHAT if self.kind == "chat" else CANNOT_TOKENS
        self.key = self.server.key

    @asynccontextmanager
    async def playing(self, *turns: Turn) -> AsyncIterator[Playing]:
        async with trio.open_nursery() as nursery:
            play = self.play = Play(self.server, nursery, Turns(turns))
            backend = self.backend(self.server.url, SteeredClient(steer=play.steer))
            yield Playing(backend, gone=play.gone, gone_s=GONE_S)
            await backend.aclose()
            nursery.cancel_scope.cancel()

    def backend(self, url: str, client: HttpClient) -> ChatBackend | TokensBackend:
        if self.kind == "chat":
            return ChatBackend(url, self.key, preset="llamacpp", client=client)
        return TokensBackend(url, key=self.key, client=client)
