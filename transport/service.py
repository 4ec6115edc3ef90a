"""What all connections of one server share: its settings, who may come in, and what a session is made of."""

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator

import trio
from attrs import define, field, frozen

from turntape.core.seam import Limits, Opened

from .backends.base import Backend
from .compression import Compression, Memories
from .driver import Driver, Link, SessionLike
from .guard import Guard, Headers
from .ledger.meter import Taker
from .store import Store

MAX_AGENT_CHARS = 256


@frozen(kw_only=True)
class ServerSettings:
    """How one server listens and what it allows.

    Attributes:
        port: 0 for one that is free.
        keys: API keys, any of which lets a client in; none lets in whoever reaches the port, which is then
            a loopback one.
        allow_origins: web origins whose pages may call; "*" for any.
        websocket: whether upgrades are accepted; if not they get 426, and agents go on over HTTP.
        max_message_bytes: of a WebSocket message or a request body, decompressed. A WebSocket message that came
            uncompressed is measured in characters, so one that is not ASCII may have more bytes.
        compression: whether permessage-deflate is accepted from a client that offers it.
        limits: of each session.
        default_model: the model of a request that names none; "" for the first that the backend lists by then.
        models: names listed under ``/v1/models`` before the backend's own.
        grace_s: how long turns in flight may take once shutdown has begun.
        max_connections: open at once; more are answered 503.
    """

    host: str = "127.0.0.1"
    port: int = 0
    keys: frozenset[str] = field(default=frozenset(), repr=False)
    allow_origins: frozenset[str] = frozenset()
    websocket: bool = True
    max_message_bytes: int = 64 << 20
    compression: Compression = "auto"
    limits: Limits = field(factory=Limits)
    default_model: str = ""
    models: tuple[str, ...] = ()
    grace_s: float = 30.0
    max_connections: int = 1024


@define(eq=False)
class Service:
    """One server, as its connections see it."""

    settings: ServerSettings
    new_session: Callable[[], SessionLike]
    backend: Backend
    store: Store
    shutdown: trio.Event
    ledger: Taker | None = None
    guard: Guard = field(init=False)
    started_at: int = field(init=False, factory=lambda: int(time.time()))  # seconds since 1970
    memories: Memories = field(init=False, factory=Memories)
    n_open: int = field(init=False, default=0)  # connections
    _n_at_work: int = field(init=False, default=0)
    _idle: trio.Event = field(init=False, factory=trio.Event)

    def __attrs_post_init__(self) -> None:
        self.guard = Guard(self.settings.keys, self.settings.allow_origins, self.settings.host)

    def opened(self, headers: Headers, *, transport: str, owner: str, dialect: str = "current") -> Opened:
        """All that a session may know of its connection. Credentials never cross the seam: only a label does."""
        return Opened(
            seed=secrets.token_hex(16),
            wall=time.time(),
            transport=transport,
            dialect=dialect,
            owner=owner,
            agent=headers.get("user-agent", "")[:MAX_AGENT_CHARS],
            default_model=self.settings.default_model or next(iter(self.backend.models), ""),
            limits=self.settings.limits,
        )

    @property
    def models(self) -> tuple[str, ...]:
        """What is listed now: a backend can be told of other models while it serves."""
        return tuple(dict.fromkeys((*self.settings.models, *self.backend.models)))

    async def run(self, link: Link, opened: Opened) -> None:
        """Run one session to its end."""
        await Driver(link, self.new_session(), self.backend, self.store, self.ledger).run(opened, self.shutdown)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Count as in flight: shutdown waits for what is inside, within its grace."""
        self._n_at_work += 1
        try:
            yield
        finally:
            self._n_at_work -= 1
            if not self._n_at_work:
                self._idle.set()
                self._idle = trio.Event()

    async def wait_idle(self) -> None:
        """Return once nothing is in flight."""
        while self._n_at_work:
            await self._idle.wait()


def request_id() -> str:
    """A fresh value for ``x-request-id``."""
    return f"req_{secrets.token_hex(16)}"
