"""The commands that look at the configuration: which models there are, and whether each can be used."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click
import orjson
import trio
from attrs import asdict, define, evolve, field, frozen

from turntape.transport.backends.base import Backend
from turntape.transport.backends.script import ScriptError

from .keys import BackendKey, find_key, key_doubts
from .options import Model
from .plan import PlannedBackend, PlannedRoute, plan
from .probing import Probe, ProbeFailed
from .slips import doubts
from .specs import AT_FILE
from .tables import ANY, Tables
from .upstreams import Keyless, make_backend

N_AT_ONCE = 8

FALLBACK = " (fallback)"
"""Behind the public name, where one of its fallbacks is looked at."""


@frozen(kw_only=True)
class Row:
    """One model, as ``turntape models`` lists it. ``name`` is "*" for every name that has no row of its own."""

    name: str
    backend: str
    model: str
    context_window: int | None
    renderer: str | None
    fallback: tuple[str, ...]


def models(model: Model, tables: Tables, *, as_json: bool) -> int:
    """List the public names, and what each stands for, and say what is missing for it. Nothing is connected to."""
    backends = [*plan(model, tables).backends, *_unused(model, tables)]
    for doubt in (*doubts(tables), *key_doubts(backends)):
        click.echo(f"warning: {doubt}", err=True)
    rows = [_row(route) for route in _routes(model, tables)]
    if as_json:
        click.echo(orjson.dumps({"models": [asdict(row) for row in rows]}))
        return 0
    head = ("MODEL", "BACKEND", "NAME THERE", "WINDOW", "RENDERER", "FALLBACK")
    cells = [
        (
            row.name,
            row.backend,
            row.model or "as asked",
            str(row.context_window or "-"),
            row.renderer or "-",
            ", ".join(row.fallback) or "-",
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    for line in (head, *cells):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    return 0


def doctor(model: Model, tables: Tables, *, sample: bool, as_json: bool) -> int:
    """Look at each backend and model, say what is wrong with it, and return 1 if anything is."""
    for doubt in doubts(tables):
        click.echo(f"warning: {doubt}", err=True)
    checks = trio.run(_check_all, list(_to_check(model, tables)), sample, (lambda _: None) if as_json else _say)
    ok = all(check.ok for check in checks)
    if as_json:
        click.echo(orjson.dumps({"ok": ok, "checks": [asdict(check) for check in checks]}))
    return 0 if ok else 1


# --- what there is --------------------------------------------------------------------------------------


def _routes(model: Model, tables: Tables) -> Iterator[PlannedRoute]:
    """Every route under a name that can be shown. Without tables that of --model, or of a file's own names."""
    planned = plan(model, tables)
    if planned.tabled:
        yield from planned.routes
        return
    [route] = planned.routes
    for name in planned.listed or _own_names(route.backend) or (ANY,):
        yield evolve(route, table=evolve(route.table, name=name))


def _own_names(backend: PlannedBackend) -> tuple[str, ...]:
    """Names that a file says itself; none for a server, which would have to be asked, or for a file that is at fault."""
    if backend.table.spec.kind not in AT_FILE:
        return ()
    try:
        return _made(backend, BackendKey()).models
    except (ValueError, ScriptError):
        return ()


def _row(route: PlannedRoute) -> Row:
    return Row(
        name=route.name,
        backend=str(route.backend),
        model=route.model,
        context_window=route.table.context_window,
        renderer=route.backend.renderer if route.backend.table.spec.kind == "tokens" else None,
        fallback=route.table.fallback,
    )


# --- whether it can be used -----------------------------------------------------------------------------


@frozen
class Asked:
    """One thing to look at: a model at a backend."""

    name: str
    backend: PlannedBackend
    model: str


@frozen
class Check:
    """What came of it.

    Attributes:
        name: the public name; "" for a backend that no model uses.
        said: the first sentence says what is well, or what is wrong and what to do.
    """

    name: str
    backend: str
    model: str
    ok: bool
    said: tuple[str, ...]


def _to_check(model: Model, tables: Tables) -> Iterator[Asked]:
    """Every model at its backend and its fallbacks, once, then the backends that no model uses.

    With --model that model only: a sample of each may cost money.
    """
    routes = list(_routes(model, tables))
    only = [route for route in routes if route.name == model.model]
    routes = only or routes
    every = [(route.name, route) for route in routes]
    every += [(route.name + FALLBACK, each) for route in routes for each in route.fallbacks]
    seen = set[tuple[PlannedBackend, str]]()
    for n, (name, route) in enumerate(every):
        if n < len(routes) or (route.backend, route.model) not in seen:
            yield Asked(name, route.backend, "" if name == ANY and not route.table.model else route.model)
        seen.add((route.backend, route.model))
    if not model.model:
        yield from (Asked("", backend, "") for backend in _unused(model, tables))


def _unused(model: Model, tables: Tables) -> Iterator[PlannedBackend]:
    """The backends of the file that no model uses."""
    used = {backend.name for backend in plan(model, tables).backends}
    return (PlannedBackend(table) for table in tables.backends.values() if table.name not in used)


async def _check_all(asked: Sequence[Asked], sample: bool, say: Callable[[Check], None]) -> list[Check]:
    """Each in its turn as far as what is said goes, several at once as far as waiting goes."""
    doctor = _Doctor(sample)
    try:
        async with trio.open_nursery() as nursery:
            done = [trio.Event() for _ in asked]
            checks: list[Any] = [None] * len(asked)

            async def one(n: int) -> None:
                async with doctor.room:
                    checks[n] = await doctor.check(asked[n])
                done[n].set()

            for n in range(len(asked)):
                nursery.start_soon(one, n)
            for n in range(len(asked)):
                await done[n].wait()
                say(checks[n])
        return checks
    finally:
        await doctor.aclose()


@define(eq=False)
class _Doctor:
    """Probes of the backends, each made once."""

    sample: bool
    room: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(N_AT_ONCE))
    _probes: dict[PlannedBackend, tuple[Probe, trio.Lock]] = field(factory=dict, init=False)

    async def check(self, asked: Asked) -> Check:
        try:
            said = await self._look(asked)
            ok = True
        except ProbeFailed as exc:
            said, ok = (str(exc),), False
        return Check(asked.name, str(asked.backend), asked.model, ok, said)

    async def _look(self, asked: Asked) -> tuple[str, ...]:
        if asked.backend not in self._probes:
            try:
                key = find_key(asked.backend)
                self._probes[asked.backend] = Probe(asked.backend, key, _made(asked.backend, key)), trio.Lock()
            except click.UsageError as exc:
                raise ProbeFailed(exc.format_message()) from None
            except (ValueError, ScriptError) as exc:  # the file has been named
                raise ProbeFailed(str(exc).removeprefix(f"{asked.backend.table.spec.file}: ")) from None
        probe, lock = self._probes[asked.backend]
        async with lock:  # its list is asked for once
            said = await probe.look(asked.model)
            if not self.sample:
                return said
            if not asked.model and asked.backend.url:
                return *said, "not sampled: give --model"
            return *said, await probe.sample(asked.model or next(iter(probe.backend.models), "any"))

    async def aclose(self) -> None:
        for probe, _ in self._probes.values():
            await probe.backend.aclose()


def _made(planned: PlannedBackend, key: BackendKey) -> Backend:
    """Raises ``ValueError`` or ``ScriptError``."""
    return Keyless(planned.name, key.missing) if key.missing else make_backend(planned, key.value)


def _shown(name: str) -> str:
    """A public name, as people read it: also of a fallback."""
    bare = name.removesuffix(FALLBACK)
    return ("any model" if bare == ANY else bare or "no model") + name[len(bare) :]


def _say(check: Check) -> None:
    mark = click.style("ok  ", fg="green") if check.ok else click.style("FAIL", fg="red")
    model = f", model {check.model}" if check.model not in ("", check.name) else ""
    first, *rest = check.said
    click.echo(f"{mark}  {_shown(check.name)} at {check.backend}{model}: {first}")
    for sentence in rest:
        click.echo(f"      {sentence}")
