"""Which backend answers which model: looked up once for each sample, with another to go to before the first token."""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import trio
from attrs import define, evolve, field, frozen

from turntape.core.seam import StartSample
from turntape.core.wire import ReasoningSettings

from .backends.base import Backend, BackendError, Batch, Warmable
from .health import Health, find_backend_error, is_failure
from .ledger import served
from .log import line
from .truncating import Truncator

logger = logging.getLogger(__name__)

CLOSE_S = 10.0  # what closing a backend that a new table does not name may take

N_WARMED = 8
"""Connections that are opened ahead at once."""

ANY = "*"
"""The name of the route for every model that has none of its own."""

SHOWN = 20
"""Names of models that a refusal lists at most."""


@define(eq=False)
class Upstream:
    """One backend, with what is known of its health and its use.

    Attributes:
        name: as the configuration has it, for messages. Never a URL with a query.
        n_running: samples under way.
        retired: no table names it any more; closed when its last sample has ended.
    """

    name: str
    backend: Backend
    health: Health = field(init=False)
    n_running: int = field(default=0, init=False)
    retired: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.health = Health(self.name)

    @asynccontextmanager
    async def in_use(self) -> AsyncIterator[None]:
        """Around one sample: keeps the backend open until it has ended."""
        self.n_running += 1
        try:
            yield
        finally:
            self.n_running -= 1
            if self.retired and not self.n_running:
                await self.close()

    async def retire(self) -> None:
        """Close the backend, now or when its last sample has ended."""
        self.retired = True
        if not self.n_running:
            await self.close()

    async def close(self) -> None:
        with trio.move_on_after(CLOSE_S, shield=True):
            try:
                await self.backend.aclose()
            except Exception:  # neither the sample that ended nor the other backends are to suffer
                logger.exception("backend %s: cannot be closed", self.name)


@frozen(kw_only=True)
class Defaults:
    """What a request gets that does not say otherwise. None: nothing."""

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    reasoning_effort: str | None = None


@frozen(kw_only=True)
class Route:
    """What one public name stands for.

    Attributes:
        name: the public name.
        model: the name that the backend knows; "" for the name as it was asked for.
        context_window: tokens of prompt and answer together; None if not known.
        max_output: tokens of one answer at most; a request for more is lowered to it.
        fallbacks: asked in this order if ``upstream`` is down or full, with their own settings.
    """

    name: str
    upstream: Upstream
    model: str = ""
    context_window: int | None = None
    max_output: int | None = None
    defaults: Defaults = Defaults()
    fallbacks: tuple["Route", ...] = ()

    def resolved(self, start: StartSample) -> StartSample:
        """``start`` as this route's backend is to see it."""
        request, defaults, changes = start.request, self.defaults, dict[str, Any]()
        for name in ("temperature", "top_p", "max_output_tokens"):
            if getattr(request, name) is None and (default := getattr(defaults, name)) is not None:
                changes[name] = default
        wanted = changes.get("max_output_tokens", request.max_output_tokens)
        if self.max_output is not None and wanted is not None and wanted > self.max_output:
            changes["max_output_tokens"] = self.max_output
        raw = dict(changes)
        reasoning = request.reasoning
        if defaults.reasoning_effort is not None and (reasoning is None or reasoning.effort is None):
            effort = defaults.reasoning_effort
            reasoning = reasoning or ReasoningSettings()
            raw["reasoning"] = {**reasoning.raw, "effort": effort}
            changes["reasoning"] = evolve(reasoning, effort=effort, raw=raw["reasoning"])
        model = self.model or start.model
        if model != request.model:
            changes["model"] = raw["model"] = model
        if not changes:
            return start
        return evolve(start, model=model, request=evolve(request, **changes, raw=request.raw | raw))


@frozen
class RouteTable:
    """Every route of one configuration.

    Attributes:
        routes: by public name; ``ANY`` for all other names.
        listed: public names to list, the first of which is for requests that name none.
    """

    routes: Mapping[str, Route]
    listed: tuple[str, ...]

    @property
    def upstreams(self) -> list[Upstream]:
        every = (each.upstream for route in self.routes.values() for each in (route, *route.fallbacks))
        return list({id(upstream): upstream for upstream in every}.values())

    def route(self, model: str) -> Route:
        """Raises ``BackendError`` for a name that the table does not have."""
        route = self.routes.get(model) or self.routes.get(ANY)
        if route is None:
            known = ", ".join(self.listed[:SHOWN]) + (", …" if len(self.listed) > SHOWN else "")
            raise BackendError(
                f"The model {model[:128]!r} is not configured here; this server has: {known}.",
                code="model_not_found",
                status=404,
                param="model",
            )
        return route


@define(eq=False)
class Router:
    """A backend that is many: each sample goes to the backend of its model's route."""

    table: RouteTable
    models: tuple[str, ...] = field(init=False)
    _truncator: Truncator = field(factory=Truncator, init=False)

    def __attrs_post_init__(self) -> None:
        self.models = self.table.listed

    async def replace(self, table: RouteTable) -> None:
        """Use ``table`` from the next sample on. Samples under way keep their backend, which then closes."""
        before, self.table, self.models = self.table, table, table.listed
        kept = {id(upstream) for upstream in table.upstreams}
        for upstream in before.upstreams:
            if id(upstream) not in kept:
                await upstream.retire()

    def sample(self, start: StartSample) -> AbstractAsyncContextManager[AsyncIterator[Batch]]:
        """See ``Backend.sample``. Once a token has come, a failure is the sample's."""
        route = self.table.route(start.model)
        if route.fallbacks or start.request.truncation == "auto" or route.upstream.health.tripped:
            return self._tried(start, route)
        return self._asked(start, route)

    async def warm(self) -> None:
        """Connect to every backend that can be connected to ahead. One that cannot be reached is a line for debugging:
        whoever asks for it hears why."""
        room = trio.CapacityLimiter(N_WARMED)
        async with trio.open_nursery() as nursery:
            for upstream in self.table.upstreams:
                if isinstance(upstream.backend, Warmable):
                    nursery.start_soon(_warm, upstream, upstream.backend, room)

    async def aclose(self) -> None:
        for upstream in self.table.upstreams:
            await upstream.close()

    # --- one sample -------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _asked(self, start: StartSample, route: Route) -> AsyncIterator[AsyncIterator[Batch]]:
        """The backend's own batches: nothing stands between, so nothing is paid for each of them."""
        upstream = route.upstream
        self._truncator.check(start, route.context_window)
        async with upstream.in_use():
            with upstream.health.asking():
                resolved = route.resolved(start)
                served.say(upstream.name, resolved.model)
                async with upstream.backend.sample(resolved) as batches:
                    yield batches

    @trio.as_safe_channel
    async def _tried(self, start: StartSample, route: Route) -> AsyncGenerator[Batch, None]:
        """One backend after the other, and shorter conversations, until a token has come."""
        error: BackendError | None = None
        for candidate in (route, *route.fallbacks):
            upstream = candidate.upstream
            if error is not None:
                what = f"{error.status} {error.code}: {line(str(error))}"
                logger.warning("model %s: %s is asked instead, after %s", line(start.model), upstream.name, what)
            for asked in self._truncator.attempts(start, candidate.context_window):
                begun = False
                try:
                    async with self._asked(asked, candidate) as batches:
                        async for batch in batches:
                            upstream.health.answers()
                            begun = begun or bool(batch)
                            yield batch
                    return
                except (BackendError, BaseExceptionGroup) as exc:
                    error = find_backend_error(exc)
                    if error is None or begun:
                        raise
                if error.code != "context_length_exceeded":
                    break
            assert error is not None  # there is at least one attempt, and it did not return
            if not _may_answer_elsewhere(error):
                break
        assert error is not None
        raise error from None


async def _warm(upstream: Upstream, backend: Warmable, room: trio.CapacityLimiter) -> None:
    async with room, upstream.in_use():
        try:
            await backend.warm()
        except Exception as exc:  # noqa: BLE001 - nobody has asked for anything yet
            logger.debug("backend %s: no connection ahead: %s", upstream.name, line(str(exc)))


def _may_answer_elsewhere(error: BackendError) -> bool:
    """Whether another backend may have what this one refuses: it is down, full, or out of credit."""
    return is_failure(error) or error.status in (402, 429, 503)
