"""The options that say where usage is written and what is added up, and the ledger that they name."""

import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import click
import trio
from attrs import frozen

from turntape.transport.ledger.ledger import Ledger
from turntape.transport.ledger.record import LedgerError, Sink

from .options import EnvironmentFailed, data_folder, option

BARE = ("otel", "none")
"""Kinds that name no file."""

KEYS = ("model", "owner", "day", "backend", "agent", "status")
"""What usage can be added up for."""


@frozen
class LedgerSpec:
    """Where usage is written: a file of ``kind`` "sqlite" or "jsonl", to a collector ("otel"), or nowhere ("none").

    Attributes:
        is_chosen: somebody asked for it, and does not want to go without.
    """

    kind: str
    path: Path = Path()
    is_chosen: bool = True

    def __str__(self) -> str:
        return self.kind if self.kind in BARE else f"{self.kind}:{self.path}"


class LedgerType(click.ParamType[LedgerSpec]):
    """``sqlite:FILE``, ``jsonl:FILE``, ``otel`` or ``none``."""

    name = "ledger"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "sqlite:FILE|jsonl:FILE|otel|none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> LedgerSpec:
        if isinstance(value, LedgerSpec):
            return value
        kind, _, path = str(value).partition(":")
        if value in BARE:
            return LedgerSpec(str(value))
        if kind not in ("sqlite", "jsonl") or not path:
            self.fail(f"{value!r} is no ledger; write sqlite:FILE, jsonl:FILE, otel or none", param, ctx)
        return LedgerSpec(kind, Path(path))


class SinceType(click.ParamType[float]):
    """A time in the past, as seconds since 1970: a day in UTC, or how long ago. "" is the beginning of all."""

    name = "time"

    UNITS: ClassVar[dict[str, int]] = {"m": 60, "h": 3600, "d": 86400}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float) or not value:
            return float(value or 0)
        text = str(value)
        if ago := re.fullmatch(r"(\d{1,6})([mhd])", text, re.ASCII):
            return time.time() - int(ago[1]) * self.UNITS[ago[2]]
        try:
            return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
        except ValueError:
            self.fail(f"{text[:32]!r} is no time; write a day, such as 2026-11-30, or 30m, 12h, 7d", param, ctx)


def default_ledger() -> LedgerSpec:
    return LedgerSpec("sqlite", data_folder() / "usage.sqlite3", is_chosen=False)


ledger_option = option(
    "--ledger",
    type=LedgerType(),
    default=default_ledger,
    show_default="a SQLite file in the user's data folder",
    help="Where the tokens of each response are written down.",
)


by_option = option("--by", type=click.Choice(KEYS), default="model", help="What each sum is for.")

since_option = option(
    "--since",
    type=SinceType(),
    default="",
    show_default="the beginning",
    metavar="TIME",
    help="A day (2026-11-30, UTC), or how long ago: 30m, 12h, 7d.",
)


@asynccontextmanager
async def open_ledger(spec: LedgerSpec) -> AsyncIterator[Ledger | None]:
    """The ledger that ``spec`` names, or None; afterwards what waits is written, and it is closed.

    Raises:
        click.UsageError: its folder is not there.
        EnvironmentFailed: it cannot be opened, and was asked for. One that nobody asked for is done without, which is said.
    """
    if spec.kind == "none":
        yield None
        return
    if spec.is_chosen and spec.kind not in BARE and not spec.path.parent.is_dir():
        raise click.UsageError(f"--ledger: there is no folder {spec.path.parent}; make it first")
    try:
        ledger = Ledger(await trio.to_thread.run_sync(_sink, spec))
    except LedgerError as exc:
        if spec.is_chosen:
            raise EnvironmentFailed(str(exc)) from exc
        click.echo(f"warning: usage is not written down: {exc}", err=True)
        yield None
        return
    try:
        yield ledger
    finally:
        await ledger.aclose()


def _sink(spec: LedgerSpec) -> Sink:
    """Raises ``LedgerError``. What nobody asked for is not loaded."""
    if spec.kind == "otel":
        from turntape.transport.ledger.otel import OtelSink

        return OtelSink()
    if spec.kind == "sqlite":
        from turntape.transport.ledger.sqlite import SqliteSink

        return SqliteSink(spec.path)
    from turntape.transport.ledger.json_lines import JsonLinesSink

    return JsonLinesSink(spec.path)
