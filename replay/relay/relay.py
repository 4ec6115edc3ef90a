"""What all connections of one relay share: where it leads, who may come in, and what of it is recorded."""

import logging
from collections import Counter
from collections.abc import Callable

import trio
from attrs import define, field

from turntape.transport.guard import Guard
from turntape.transport.http_connections import Connections

from ..recorder import Tape
from ..secrets import Masker
from .exchanges import Exchange
from .heads import HeadError, RequestHead
from .intake import Intake
from .masking import Screen
from .tap import TapSession
from .upstream import Upstream

logger = logging.getLogger(__name__)

RESPONSES = "responses"
"""Last segment of the paths that are recorded."""

NAMED_ROUTES = 32
"""How many routes that are not recorded are counted apart."""

SHORTEST_KEY = 12
"""Characters from which on a client's key is masked wherever it stands. Shorter ones are words such as "ollama"."""

KNOWN_KEYS = 64


@define(eq=False)
class Relay:
    """A relay to one upstream.

    Args:
        guard: its keys are those that clients may present; they go to the upstream as they are.
        websocket: whether upgrades are sent on; if not they get 426, and agents go on over HTTP.
        secrets: what is masked besides known shapes of keys and each client's own.
        names: of variables and fields whose values are masked.
        on_unreachable: told when the upstream could not be connected to.

    Attributes:
        n_others: requests that were sent on and not recorded, by method and path.
    """

    upstream: Upstream
    tape: Tape
    guard: Guard
    websocket: bool = True
    secrets: tuple[str, ...] = field(default=(), repr=False)
    names: tuple[str, ...] = ()
    connections: Connections = field(factory=Connections)
    on_unreachable: Callable[[str], None] = logger.warning
    n_others: Counter[str] = field(factory=Counter)
    masker: Masker = field(init=False)
    _screens: dict[str, Screen] = field(factory=dict, repr=False)
    _progress: trio.Event = field(factory=trio.Event)

    def __attrs_post_init__(self) -> None:
        self.masker = Masker.of(self.secrets, self.names)

    def admit(self, request: RequestHead) -> None:
        """Return if ``request`` may be sent on.

        Raises:
            Forbidden: a web page asks that may not, or a key is missing.
            HeadError: it asks for a WebSocket, and there is none.
        """
        self.guard.check_page(request.headers)
        if self.guard.keys and request.method != "OPTIONS":
            self.guard.check_key(request.headers)
        if request.wants_websocket and not self.websocket:
            raise HeadError("This relay takes no WebSocket; use HTTP.", status=426, code="websocket_off")

    async def connect(self) -> trio.abc.Stream:
        """A connection to the upstream. Raises ``HttpError``."""
        return await self.connections.open(self.upstream.target)

    def rewritten(self, request: RequestHead) -> bytes:
        """The head of ``request`` as the upstream gets it."""
        return request.sent_to(host=self.upstream.target.where, target=self.upstream.path(request.target))

    def exchange(self, request: RequestHead, *, at: float) -> Exchange:
        """A request that is about to be sent on."""
        is_responses = request.path.rstrip("/").rpartition("/")[2] == RESPONSES
        if not is_responses or not (request.method == "POST" or request.wants_websocket):
            route = f"{request.method} {self.masker.text(request.path[:100])}"
            known = route in self.n_others or len(self.n_others) < NAMED_ROUTES
            self.n_others[route if known else "others"] += 1
            return Exchange(request, None)
        tap = TapSession(self.tape, self._screen_for(request))
        tap.begin(
            at=at,
            transport="websocket" if request.wants_websocket else "http",
            method=request.method,
            path=request.path,
            upstream=self.upstream.url,
            headers=request.headers,
        )
        return Exchange(request, Intake(tap))

    def progressed(self) -> None:
        """Something was read or has ended: whoever waits until nobody is busy looks again."""
        if self._progress.statistics().tasks_waiting:
            self._progress.set()
            self._progress = trio.Event()

    async def progress(self) -> None:
        await self._progress.wait()

    def _screen_for(self, request: RequestHead) -> Screen:
        """Knows the client's own key, so that it is masked in what a tool reads aloud too."""
        authorization = request.headers.get("authorization", "")
        key = authorization.partition(" ")[2].strip() or request.headers.get("api-key", "").strip()
        key = key if len(key) >= SHORTEST_KEY else ""
        if key not in self._screens:
            if len(self._screens) >= KNOWN_KEYS:
                self._screens.clear()
            self._screens[key] = Screen(Masker.of((*self.secrets, key), self.names) if key else self.masker)
        return self._screens[key]
