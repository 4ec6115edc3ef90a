"""The commands that serve: each opens what its options name, runs a server on it, and says what came of it."""

import logging
import os
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import click
import trio

from turntape.core.session import Session
from turntape.transport.driver import SessionLike
from turntape.transport.guard import is_loopback
from turntape.transport.ledger.ledger import Ledger
from turntape.transport.memory_store import MemoryStore
from turntape.transport.router import Router, RouteTable
from turntape.transport.sqlite_store import SqliteStore
from turntape.transport.store import Store, StoreError

from . import __version__, agents, config
from . import demo as demonstration
from .keys import read_keys
from .ledgers import LedgerSpec, open_ledger
from .options import EnvironmentFailed, Listen, Model, Secrets, StoreSpec, default_store
from .plan import PlannedBackend, plan
from .recording import NewRecording
from .secrecy import Secrecy
from .serving import Address, Served, run
from .slips import doubts
from .tables import Tables
from .upstreams import Upstreams

logger = logging.getLogger(__name__)

NO_LEDGER = LedgerSpec("none")
"""What a recording is made without: the usage of each response is in it."""

_CLOSE_S = 10.0  # what closing a store or a backend may take before the process ends without it


def serve(
    listen: Listen, model: Model, tables: Tables, secrets: Secrets, *, folder: Path | None, ledger: LedgerSpec
) -> int:
    """Serve until a signal; with ``folder``, write every session to one new file there."""
    if folder is None:
        return start(_serve, listen, model, tables, ledger=ledger)
    need_parent(folder, option="--record")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as exc:
        raise EnvironmentFailed(f"--record: {folder} cannot be made ({exc.strerror})") from exc
    name = datetime.now(UTC).strftime("turntape-%Y%m%dT%H%M%S.%fZ.jsonl")
    with NewRecording(folder / name, "--record", Secrecy.of(secrets)) as recording:
        code = start(_serve, listen, model, tables, recording=recording, ledger=ledger)
    click.echo(recording.outcome(), err=True)
    return 1 if recording.refusal and not code else code


def record(
    listen: Listen,
    model: Model,
    tables: Tables,
    secrets: Secrets,
    *,
    out: Path,
    agent: tuple[str, ...],
    as_json: bool,
) -> int:
    """Serve until a signal, or until ``agent`` ends, and write every session to the new file ``out``."""
    with NewRecording(out, "--out", Secrecy.of(secrets)) as recording:
        code = start(_serve, listen, model, tables, recording=recording, agent=agent, as_json=as_json)
    click.echo(recording.outcome(as_json=as_json), err=bool(agent) or not as_json)
    failed = recording.refusal or (agent and not recording.tape.n_sessions)
    return 1 if failed and not code else code


def demo(url: str, key_file: Path | None) -> int:
    """Watch the demo agent work on the server at ``url``, or on one of its own; raise ``DemoFailed`` if it cannot."""
    keys = read_keys(key_file, option="--key-file") if key_file else (None,)
    trio.run(demonstration.run, url or None, keys[0], click.echo)
    return 0


def start(command: Callable[..., Awaitable[int]], listen: Listen, *rest: object, **more: object) -> int:
    """Check what can be checked before anything is opened, then run ``command`` under Trio."""
    keys = read_keys(listen.key_file, option="--key-file") if listen.key_file else ()
    if not keys and not is_loopback(listen.host):
        raise click.UsageError(
            f"--host {listen.host} can be reached from other machines, and no key is asked for; "
            "give --key-file, or leave --host at 127.0.0.1"
        )
    handler = logging.StreamHandler()  # to standard error
    handler.setFormatter(_Lower())
    logging.basicConfig(handlers=[handler], level=listen.log.upper())
    return trio.run(partial(command, listen, keys, *rest, **more))


class _Lower(logging.Formatter):
    """Writes "warning:" as everything else does here that is no log."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return f"{record.levelname.lower()}: {record.message}"


def where(backend: PlannedBackend) -> str:
    """A backend as whoever starts the server should know it: its name, and where prompts go if that does not say."""
    url = backend.url.partition("?")[0]  # a query may hold a key
    return backend.name if not url or url in backend.name else f"{backend.name} ({url})"


async def _serve(
    listen: Listen,
    keys: tuple[str, ...],
    model: Model,
    tables: Tables,
    *,
    recording: NewRecording | None = None,
    agent: tuple[str, ...] = (),
    as_json: bool = False,
    ledger: LedgerSpec = NO_LEDGER,
) -> int:
    async with (
        open_router(model, tables) as (router, upstreams),
        open_store(model.store) as store,
        open_ledger(ledger) as usage,
    ):
        _warn(tables, upstreams)
        new_session: Callable[[], SessionLike] = Session
        if recording:
            recording.keys = lambda: (*keys, *upstreams.keys)
            new_session = recording.session
        served = Served(
            listen=listen,
            keys=keys,
            new_session=new_session,
            backend=router,
            store=store,
            ledger=usage,
            beside=partial(_beside, router, recording, usage, for_agent=bool(agent)),
            reload=partial(reload, model, router, upstreams, tables.path),
        )

        def started(address: Address) -> None:
            planned = plan(model, tables)
            notes = {"backend": ", ".join(map(where, planned.backends)), "store": str(model.store)}
            if usage:
                notes["usage"] = str(ledger)
            if planned.tabled:
                routes = (f"{route.name} → {route.backend.name}" for route in planned.routes)
                notes["models"] = f"{', '.join(routes)}, from {tables.path}"
            first = next(iter(router.models), "")
            if recording:
                notes["recording"] = str(recording.path)
                if agent:  # without one, how to start Codex is said at once
                    recording.hint.text = agents.hidden_codex(
                        agent, url=address.local, model=first, websocket=listen.websocket
                    )
            announce(
                address,
                notes,
                listen=listen,
                keys=keys,
                model=first,
                piped=as_json or bool(agent),
                agent=agent,
            )

        async def run_agent(address: Address) -> int:
            key = keys[0] if keys else ""
            command = agents.launch(
                agent,
                url=address.local,
                key=key,
                model=next(iter(router.models), ""),
                websocket=listen.websocket,
                environment=os.environ,
            )
            return await agents.run(command, without=upstreams.key_variables)

        return await run(served, started=started, task=run_agent if agent else None)


async def _beside(router: Router, recording: NewRecording | None, ledger: Ledger | None, *, for_agent: bool) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(router.warm)
        if ledger:
            nursery.start_soon(ledger.run)
        if recording:
            nursery.start_soon(recording.keep_flushed)
            if for_agent:
                nursery.start_soon(recording.say_if_nobody_comes)


def announce(
    address: Address,
    notes: dict[str, str],
    *,
    listen: Listen,
    keys: tuple[str, ...],
    model: str,
    piped: bool = False,
    agent: tuple[str, ...] = (),
) -> None:
    """Say where the server listens and how to reach it, on standard error.

    The line that programs wait for stands alone on standard output.

    Args:
        piped: standard output is another's, or for JSON only: that line goes to standard error too.
        agent: it is about to be started, and needs to be told nothing.
    """
    notes["keys"] = f"{len(keys)}, from {listen.key_file}" if keys else "none asked for; only this machine can connect"
    if not is_loopback(listen.host):
        notes["network"] = f"other machines can reach this server; from this one it is {address.local}"
    key = '"$KEY"' if keys else agents.NO_KEY  # never a key itself
    if not agent:
        overrides = agents.codex_overrides(url=address.local, model=model, websocket=listen.websocket)
        codex = shlex.join(["codex", *(part for value in overrides for part in ("-c", value))])
        notes["Codex"] = f"{agents.KEY_VARIABLE}={key} {codex}"
        notes["SDK"] = f"OPENAI_BASE_URL={address.local} OPENAI_API_KEY={key}"
    click.echo(f"turntape {__version__}", err=True)
    for name, note in notes.items():
        click.echo(f"  {name:<11}{note}", err=True)
    click.echo(f"listening on {address.bound}", err=piped)


def need_parent(path: Path, *, option: str) -> None:
    """Raise ``click.UsageError`` unless the folder that ``path`` is to be made in is there."""
    if not path.parent.is_dir():
        raise click.UsageError(f"{option}: there is no folder {path.parent}; make it first")


@asynccontextmanager
async def open_router(model: Model, tables: Tables) -> AsyncIterator[tuple[Router, Upstreams]]:
    """Every backend that the options and the tables name, behind one; closed afterwards.

    Raises:
        click.UsageError: a script, a model file, or the file with a key, cannot be read.
    """
    upstreams = Upstreams()
    router = Router(await upstreams.route(plan(model, tables)))
    try:
        yield router, upstreams
    finally:
        with trio.move_on_after(_CLOSE_S, shield=True):
            await router.aclose()


async def reload(model: Model, router: Router, upstreams: Upstreams, path: Path | None) -> None:
    """Route by what ``path`` says now; if it cannot be used, say why and go on as before."""
    if path is None:
        click.echo("nothing to reload: the server was started without a configuration file", err=True)
        return
    try:
        tables = config.reread(path)
        table = await upstreams.route(plan(model, tables))
    except click.ClickException as exc:
        click.echo(f"error: {exc.format_message()}; the tables before it still hold", err=True)
        return
    except Exception:  # a bug of a backend's is no reason for every session to end
        logger.exception("cannot reload %s; the tables before it still hold", path)
        return
    before = router.table
    await router.replace(table)
    _warn(tables, upstreams)
    names = ", ".join(router.models) or "any"
    click.echo(f"reloaded {path}: models {names}; {_changes(before, table)}", err=True)


def _changes(before: RouteTable, after: RouteTable) -> str:
    """What another table changed, in words."""
    was, now = before.routes, after.routes
    found = {
        "new": [name for name in now if name not in was],
        "changed": [name for name in now if name in was and now[name] != was[name]],
        "gone": [name for name in was if name not in now],
    }
    said = [f"{what}: {', '.join(names)}" for what, names in found.items() if names]
    first = next(iter(after.listed), "")
    if first and first != next(iter(before.listed), ""):
        said.append(f"requests that name no model get {first}")
    return "; ".join(said) or "nothing changed"


def _warn(tables: Tables, upstreams: Upstreams) -> None:
    for doubt in (*doubts(tables), *(f"the backend {reason}" for reason in upstreams.missing_keys)):
        click.echo(f"warning: {doubt}", err=True)


@asynccontextmanager
async def open_store(spec: StoreSpec) -> AsyncIterator[Store]:
    """The store that ``spec`` names; closed afterwards.

    Raises:
        click.UsageError: its folder is not there.
        EnvironmentFailed: it cannot be opened.
    """
    store: Store
    if spec.path is None:
        store = MemoryStore()
    else:
        if spec != default_store():  # whose folder is ours to make
            need_parent(spec.path, option="--store")
        try:
            store = await SqliteStore.open(spec.path)
        except StoreError as exc:
            raise EnvironmentFailed(str(exc)) from exc
    try:
        yield store
    finally:
        with trio.move_on_after(_CLOSE_S, shield=True):
            await store.aclose()
