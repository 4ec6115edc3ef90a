"""Opens the backends of a plan, each once, and makes the table by which requests are routed to them."""

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager

import click
import trio
from attrs import define, field, frozen

from turntape.core.seam import StartSample
from turntape.transport import router
from turntape.transport.backends.base import Backend, BackendError, Batch
from turntape.transport.backends.chat import ChatBackend
from turntape.transport.backends.responses import ResponsesBackend
from turntape.transport.backends.responses_upstreams import UPSTREAMS, upstream_named
from turntape.transport.backends.script import Script, ScriptError
from turntape.transport.backends.scripted import ScriptedBackend
from turntape.transport.http_client import HttpClient, Response
from turntape.transport.http_connections import IDLE_S, Connections
from turntape.transport.http_target import Target
from turntape.transport.router import Defaults, Route, RouteTable, Upstream

from .keys import BackendKey, find_key
from .plan import Plan, PlannedBackend, PlannedRoute
from .tables import ANY

SECURE_IDLE_S = 50.0
"""Over https, where the next server is far and usually a cloud's front end, which closes after 60 s or more; ours. A
connection that is closed all the same is replaced before anything is lost."""


@frozen
class Opened:
    """What a backend was made from: equal ones are the same backend, across reloads too."""

    planned: PlannedBackend
    key: BackendKey


@define(eq=False)
class HttpSettings(HttpClient):
    """A client that sends more headers with every request.

    Args:
        more: as the configuration has them.
    """

    more: tuple[tuple[str, str], ...] = ()

    def post(
        self, target: Target, headers: Sequence[tuple[str, str]], body: Sequence[bytes]
    ) -> AbstractAsyncContextManager[Response]:
        return super().post(target, (*headers, *self.more), body)

    def get(self, target: Target, headers: Sequence[tuple[str, str]]) -> AbstractAsyncContextManager[Response]:
        return super().get(target, (*headers, *self.more))


@define(eq=False)
class Keyless:
    """Stands for a backend whose key is not there: refuses each request with what to do, and sends nothing.

    Attributes:
        reason: which key, and where it should be.
    """

    name: str
    reason: str
    models: tuple[str, ...] = ()

    def sample(self, start: StartSample) -> AbstractAsyncContextManager[trio.abc.ReceiveChannel[Batch]]:
        raise BackendError(f"The backend {self.name} {self.reason}.", code="invalid_api_key", status=401)

    async def aclose(self) -> None: ...


@define(eq=False)
class Upstreams:
    """Every backend that is open.

    Args:
        environment: where keys may be.
    """

    environment: Mapping[str, str] = field(factory=lambda: os.environ, repr=False)
    _open: dict[Opened, Upstream] = field(factory=dict, init=False)

    async def route(self, plan: Plan) -> RouteTable:
        """The table of ``plan``. Backends that are open already are used again; others are opened.

        Raises:
            click.UsageError: a script, a model file or a key file cannot be read, or a URL cannot be used. Nothing
                that was opened for this table stays open.
        """

        def keyed() -> dict[PlannedBackend, Opened]:
            return {backend: Opened(backend, find_key(backend, self.environment)) for backend in plan.backends}

        # a key file may be a pipe that nobody writes to: only the reload waits for it, and never the sessions
        wanted = await trio.to_thread.run_sync(keyed, abandon_on_cancel=True)
        fresh = dict[Opened, Upstream]()
        try:
            for opened in wanted.values():
                if opened not in self._open and opened not in fresh:
                    fresh[opened] = Upstream(opened.planned.name, await open_backend(opened.planned, opened.key))
        except BaseException:
            for upstream in fresh.values():
                await upstream.close()
            raise
        self._open = {opened: self._open.get(opened) or fresh[opened] for opened in wanted.values()}

        def made(planned: PlannedRoute) -> Route:
            return self._made(planned, self._open[wanted[planned.backend]], tuple(map(made, planned.fallbacks)))

        routes = {router.ANY if planned.name == ANY else planned.name: made(planned) for planned in plan.routes}
        offered = () if plan.tabled else routes[router.ANY].upstream.backend.models
        return RouteTable(routes, tuple(dict.fromkeys((*plan.listed, *offered))))

    @property
    def key_variables(self) -> frozenset[str]:
        """Where in the environment the keys of these backends stand."""
        return frozenset(opened.key.variable for opened in self._open if opened.key.variable)

    @property
    def keys(self) -> tuple[str, ...]:
        """What is presented to these backends, for whoever must not write it down."""
        return tuple(opened.key.value for opened in self._open if opened.key.value)

    @property
    def missing_keys(self) -> list[str]:
        """What is wrong with each backend that has no key and needs one."""
        return [f"{opened.planned.name} {opened.key.missing}" for opened in self._open if opened.key.missing]

    @staticmethod
    def _made(planned: PlannedRoute, upstream: Upstream, fallbacks: tuple[Route, ...]) -> Route:
        table = planned.table
        return Route(
            name=planned.name,
            upstream=upstream,
            model=planned.model,
            context_window=table.context_window,
            max_output=table.max_output,
            defaults=Defaults(
                temperature=table.temperature,
                top_p=table.top_p,
                max_output_tokens=table.max_output_tokens,
                reasoning_effort=table.reasoning_effort,
            ),
            fallbacks=fallbacks,
        )


async def open_backend(planned: PlannedBackend, key: BackendKey) -> Backend:
    """The backend, ready for samples.

    Raises:
        click.UsageError: what it is made from cannot be used; names the backend and the cure.
    """
    if key.missing:
        return Keyless(planned.name, key.missing)
    try:
        backend = make_backend(planned, key.value)
        if planned.table.spec.kind == "llama":
            await _load(backend)
    except (ValueError, ScriptError, BackendError) as exc:
        where = "--backend" if planned.chosen else f"backend {planned.name}"
        raise click.UsageError(f"{where}: {exc}") from exc
    return backend


async def _load(backend: Backend) -> None:
    """Load a model file now, and not while the first client waits."""
    from turntape.transport.backends.llama import LlamaBackend
    from turntape.transport.backends.llama_engine import EngineError

    assert isinstance(backend, LlamaBackend)
    try:
        await backend.load()
    except EngineError as exc:
        raise ValueError(str(exc)) from exc


def make_backend(planned: PlannedBackend, key: str | None) -> Backend:
    """The backend; nothing is connected or loaded yet. Raises ``ValueError`` or ``ScriptError``."""
    table, url = planned.table, planned.url
    if planned.family and table.spec.kind != "tokens":
        raise ValueError('"family" of a model is for tokens+URL only; leave it out, or write such a backend')
    if planned.variables and table.spec.kind not in ("tokens", "llama"):
        raise ValueError(
            '"template-variables" of a model are for tokens+URL and llama:FILE only; leave them out, or write such a backend'
        )
    match table.spec.kind:
        case "scripted":
            return ScriptedBackend(Script.load(table.spec.file) if table.spec.file else Script.default())
        case "llama":
            from turntape.transport.backends.llama import LlamaBackend
            from turntape.transport.backends.llama_engine import EngineSettings

            assert table.spec.file is not None
            chosen = {
                "n_ctx": table.window,
                "n_slots": table.slots,
                "threads": table.threads,
                "n_gpu_layers": table.gpu_layers,
            }
            settings = EngineSettings(**{key: n for key, n in chosen.items() if n is not None})
            return LlamaBackend(table.spec.file, settings, variables=dict(planned.variables))
        case "tokens":
            from turntape.transport.backends.tokens import TokensBackend

            server, client = table.server or "auto", http_client(planned)
            return TokensBackend(
                url,
                key=key,
                server=server,
                renderer=planned.renderer,
                client=client,
                tokenizer_path=table.tokenizer,
                family=planned.family,
                variables=dict(planned.variables),
            )
        case "responses":
            return _responses(planned, key, table.server)
    name = table.spec.name or table.server  # of the preset, whose dialects hold wherever it is
    if table.spec.kind == "preset" and any(row.name == name and row.native for row in UPSTREAMS):
        return _responses(planned, key, name)  # which takes all that agents send
    return ChatBackend(url, key=key, preset=name, client=http_client(planned))


def _responses(planned: PlannedBackend, key: str | None, server: str) -> Backend:
    table, url = planned.table, planned.url
    return ResponsesBackend(
        url,
        key,
        upstream=upstream_named(server) if server else None,
        store=table.store,
        client=http_client(planned),
        handshake_headers=table.headers,
    )


def http_client(planned: PlannedBackend) -> HttpSettings:
    """Connections with the limits and headers that the table gives."""
    table = planned.table
    secure = planned.url.startswith(("https://", "wss://"))
    return HttpSettings(
        Connections(
            connect_timeout_s=table.connect_timeout,
            n_idle=table.idle_connections,
            idle_s=table.idle_timeout or (SECURE_IDLE_S if secure else IDLE_S),
        ),
        head_timeout_s=table.answer_timeout,
        silence_s=table.silence_timeout,
        more=table.headers,
    )
