"""What each public model name stands for, worked out from the options and the tables before anything is opened."""

from collections.abc import Iterator
from pathlib import Path

import click
from attrs import evolve, frozen

from turntape.transport.backends.dialects import presets

from .options import Model
from .specs import BackendSpec
from .tables import ANY, BackendTable, ModelTable, Tables


@frozen
class PlannedBackend:
    """A backend as it will be opened.

    Attributes:
        renderer: for backends that take tokens; ``family`` likewise.
        variables: what the model's chat template is told besides.
        chosen: it is the one that ``--backend`` names: the key given on the command line or in TURNTAPE_BACKEND_KEY is its.
        key_file: by ``--backend-key-file``.
    """

    table: BackendTable
    renderer: str = "auto"
    chosen: bool = False
    key_file: Path | None = None
    family: str = ""
    variables: tuple[tuple[str, str | bool | int | float], ...] = ()

    @property
    def name(self) -> str:
        return self.table.name

    @property
    def url(self) -> str:
        """Base URL; "" for a backend that is at none. Its query may hold a key."""
        spec = self.table.spec
        return spec.url or (presets()[spec.name].base_url if spec.kind == "preset" else "")

    def __str__(self) -> str:
        """Its name, and what and where it is as far as the name does not say. Never a URL's query."""
        spec = self.table.spec
        more = [] if str(spec) == self.name else [str(spec)]
        if spec.kind == "preset" and not spec.url:
            more.append(self.url)
        return f"{self.name} ({', '.join(more)})" if more else self.name


@frozen
class PlannedRoute:
    """One public name, or ``ANY``; see ``Route``."""

    table: ModelTable
    backend: PlannedBackend
    fallbacks: tuple["PlannedRoute", ...] = ()

    @property
    def name(self) -> str:
        return self.table.name

    @property
    def model(self) -> str:
        """The name that goes to the backend; "" for the one that was asked for."""
        return self.table.model or ("" if self.name == ANY else self.name)


@frozen
class Plan:
    """Every route, the default first.

    Attributes:
        tabled: the names come from [models] tables, so that there are no others.
    """

    routes: tuple[PlannedRoute, ...]
    listed: tuple[str, ...]
    tabled: bool

    @property
    def backends(self) -> list[PlannedBackend]:
        every = (each.backend for route in self.routes for each in (route, *route.fallbacks))
        return list(dict.fromkeys(every))


def plan(model: Model, tables: Tables) -> Plan:
    """The routes of one configuration.

    Raises:
        click.UsageError: ``--model`` is no name of a table, though there are tables.
    """
    chosen = PlannedBackend(_defined(model.backend, tables), chosen=True, key_file=model.backend_key_file)
    if not tables.models:
        return Plan((PlannedRoute(ModelTable(name=ANY), chosen),), (model.model,) if model.model else (), False)
    if model.model and model.model not in tables.models and ANY not in tables.models:
        known = ", ".join(tables.models)
        raise click.UsageError(
            f"--model: {model.model!r} is not among the [models] of {tables.path}; known are: {known}"
        )
    routes = {name: _route(table, chosen, tables) for name, table in tables.models.items()}
    listed = tuple(dict.fromkeys(name for name in (model.model, *routes) if name and name != ANY))
    return Plan(tuple(routes.values()), listed, True)


def _defined(spec: BackendSpec, tables: Tables) -> BackendTable:
    return tables.backends[spec.name] if spec.kind == "table" else BackendTable(name=str(spec), spec=spec)


def _route(table: ModelTable, chosen: PlannedBackend, tables: Tables) -> PlannedRoute:
    fallbacks = dict.fromkeys(_fallbacks(table, chosen, tables, {table.name}))
    return PlannedRoute(table, _backend(table, chosen, tables), tuple(fallbacks))


def _backend(table: ModelTable, chosen: PlannedBackend, tables: Tables) -> PlannedBackend:
    if table.backend is None or _defined(table.backend, tables) == chosen.table:
        own = evolve(chosen, renderer=table.renderer)
    else:
        own = PlannedBackend(_defined(table.backend, tables), table.renderer)
    return evolve(own, family=table.family, variables=table.template_variables)


def _fallbacks(table: ModelTable, chosen: PlannedBackend, tables: Tables, seen: set[str]) -> Iterator[PlannedRoute]:
    """The fallbacks of ``table``, each with its own right behind it. Two models may name each other.

    Args:
        seen: models that were given already, which is noted here: one that several lead to is asked once.
    """
    for name in table.fallback:
        if name in tables.models:
            if name not in seen:
                seen.add(name)
                other = tables.models[name]
                yield PlannedRoute(other, _backend(other, chosen, tables))
                yield from _fallbacks(other, chosen, tables, seen)
        else:
            spec = BackendSpec.parse(name, tables.backends)
            same = ModelTable(name=table.name, backend=spec, model=table.model, renderer=table.renderer)
            yield PlannedRoute(same, _backend(same, chosen, tables))
