"""Every option of the command line, once: flag, key in turntape.toml and environment variable share its name."""

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import click
from attrs import fields, frozen
from click.core import ParameterSource

from .specs import BackendSpec, SpecError
from .tables import Tables

F = TypeVar("F", bound=Callable[..., Any])

ENVIRONMENT_PREFIX = "TURNTAPE_"


class EnvironmentFailed(click.ClickException):
    """The command was right, but a port, a file or a program was not there for it: exit code 3."""

    exit_code = 3


@frozen
class StoreSpec:
    """Where stored responses live: a SQLite file, or None for this process's memory."""

    path: Path | None

    def __str__(self) -> str:
        return str(self.path or "memory (stored responses end with the server)")


class BackendType(click.ParamType[BackendSpec]):
    """A backend by its kind and place, by the name of a preset, or by that of a table in the configuration."""

    name = "backend"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "BACKEND"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> BackendSpec:
        if isinstance(value, BackendSpec):
            return value
        try:
            return BackendSpec.parse(str(value), tables_of(ctx).backends)
        except SpecError as exc:
            self.fail(str(exc), param, ctx)


def tables_of(context: click.Context | None) -> Tables:
    """The tables of the configuration that ``context``'s program was started with; none without one."""
    tables = context.find_root().obj if context is not None else None
    return tables if isinstance(tables, Tables) else Tables()


class StoreType(click.ParamType[StoreSpec]):
    """A file, or ``memory`` (given as None): stored responses then end with the server."""

    name = "store"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "FILE|memory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> StoreSpec:
        if isinstance(value, StoreSpec):
            return value
        if not str(value):
            self.fail("it is empty; give a file, or the word memory", param, ctx)
        return StoreSpec(None if value == "memory" else Path(value))


class Seconds(click.ParamType[float]):
    """A finite number of seconds.

    Args:
        above_zero: refuse 0 too.
    """

    name = "seconds"

    def __init__(self, *, above_zero: bool = False) -> None:
        self.above_zero = above_zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number of seconds, such as 15 or 0.5", param, ctx)
        if not math.isfinite(seconds) or seconds < 0 or (self.above_zero and not seconds):
            self.fail(f"{value} seconds: it must be {'above 0' if self.above_zero else '0 or more'}", param, ctx)
        return seconds


class OriginType(click.ParamType[str]):
    """A web page's origin as browsers name it, ``scheme://host[:port]``, or ``*``."""

    name = "origin"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        origin = str(value)
        if origin != "*" and not re.fullmatch(
            r"[A-Za-z][A-Za-z0-9+.-]*://([^\s/:@?#\[\]]+|\[[0-9A-Fa-f:.]+\])(:\d+)?", origin
        ):
            self.fail(
                f"{origin!r} is no origin; write scheme://host or scheme://host:port, nothing after it, or *",
                param,
                ctx,
            )
        return origin.lower()  # as browsers write it


class WholeNumber(click.IntRange):
    """An integer within bounds, so called in messages."""

    name = "whole number"


class RunsType(click.ParamType[int]):
    """A number of runs, or ``any`` (given as 0)."""

    name = "runs"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "N|any"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value)
        if text == "any":
            return 0
        if not re.fullmatch(r"[1-9]\d{0,5}", text, re.ASCII):
            self.fail(f"{text[:32]!r} is no number of runs; give 1 or more, or the word any", param, ctx)
        return int(text)


class ReportFile(click.ParamType[Path]):
    """A file for a report, or ``-`` for standard output; an option in its place shows that it was forgotten."""

    name = "file"

    WANTED = "--json wants a file here: --json FILE, or --json - for standard output"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if str(value).startswith("--") or not str(value):
            raise click.UsageError(self.WANTED, ctx)
        return Path(value)


FILE = click.Path(path_type=Path)
EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

KINDS_OF_PROSE = ("instructions", "tools", "messages", "reasoning", "arguments", "outputs")
"""Which scrub can keep; those of ``replay.prose``, which is loaded when they are asked for."""


def default_store() -> StoreSpec:
    return StoreSpec(data_folder() / "responses.sqlite3")


def data_folder() -> Path:
    """The user's, by the XDG base directory specification."""
    home = os.environ.get("XDG_DATA_HOME", "")
    folder = Path(home) if os.path.isabs(home) else Path.home() / ".local" / "share"
    return folder / "turntape"


class Option(click.Option):
    """A click option that names the environment variable when that is where a wrong value came from."""

    def get_error_hint(self, ctx: click.Context | None) -> str:
        hint = super().get_error_hint(ctx)
        source = ctx and self.name and ctx.get_parameter_source(self.name)
        return f"{hint}, from {self.envvar}" if source is ParameterSource.ENVIRONMENT else hint


def option(flag: str, *names: str, **settings: Any) -> Callable[[F], F]:
    """Return a click option whose environment variable follows from ``flag``."""
    variable = ENVIRONMENT_PREFIX + flag.partition("/")[0].removeprefix("--").replace("-", "_").upper()
    return click.option(flag, *names, cls=Option, **{"envvar": variable, "show_default": True, **settings})


def together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return one decorator that adds ``options`` in the order given."""

    def add(command: F) -> F:
        for each in reversed(options):
            command = each(command)
        return command

    return add


@frozen
class Listen:
    """Who may connect, and where: the values of ``listen_options``."""

    host: str
    port: int
    key_file: Path | None
    allow_origin: tuple[str, ...]
    websocket: bool
    max_message_bytes: int
    compression: Literal["auto", "on", "off"]
    grace: float
    keepalive: float
    log: str


listen_options = together(
    option(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="Address to listen on; beyond this machine only with --key-file.",
    ),
    option(
        "--port",
        type=WholeNumber(0, 65535),
        default=8765,
        show_default="8765; a free one for an agent behind --",
        metavar="PORT",
        help="Port to listen on; 0 picks a free one.",
    ),
    option("--key-file", type=EXISTING_FILE, help="Keys that clients may present, one a line; # begins a comment."),
    option(
        "--allow-origin",
        type=OriginType(),
        multiple=True,
        metavar="ORIGIN",
        help="Web page origin that may connect; repeatable.",
    ),
    option("--websocket/--no-websocket", default=True, help="Offer the WebSocket, or HTTP only."),
    option(
        "--max-message-bytes",
        type=WholeNumber(min=1024),
        default=64 * 1024 * 1024,
        metavar="BYTES",
        help="Largest request accepted, as one WebSocket message or one body.",
    ),
    option(
        "--compression",
        type=click.Choice(("auto", "on", "off")),
        default="auto",
        help="Compress WebSocket messages of clients that offer it; auto: unless they are on this machine.",
    ),
    option(
        "--grace",
        type=Seconds(),
        default=30.0,
        metavar="SECONDS",
        help="How long responses in flight may go on after a signal to stop.",
    ),
    option(
        "--keepalive",
        type=Seconds(above_zero=True),
        default=15.0,
        metavar="SECONDS",
        help="Silence of an open response after which response.in_progress is repeated.",
    ),
    option(
        "--log",
        type=click.Choice(("warning", "info")),
        default="warning",
        help="What is said on standard error while serving: failures; or refused requests too.",
    ),
)


@frozen
class Model:
    """What answers, and what is kept: the values of ``model_options``."""

    backend: BackendSpec
    model: str
    backend_key_file: Path | None
    store: StoreSpec = StoreSpec(None)


backend_options = together(
    option(
        "--backend",
        type=BackendType(),
        default="scripted",
        help="What answers: scripted[:FILE], chat+URL, tokens+URL, responses+URL, llama:FILE, or a name: cerebras, "
        "openai, vllm, ollama, …, or a [backends] table.",
    ),
    option(
        "--model",
        default="",
        metavar="NAME",
        show_default=False,
        help="Model that is listed first, and used by requests that name none.",
    ),
    option("--backend-key-file", type=EXISTING_FILE, help="File with the backend's key; or TURNTAPE_BACKEND_KEY."),
)

model_options = together(
    backend_options,
    option(
        "--store",
        type=StoreType(),
        default=default_store,
        show_default="a file in the user's data folder; memory for record",
        help="Where responses with store:true are kept.",
    ),
)


stub_options = together(
    option(
        "--speed",
        default="instant",
        metavar="SPEED",
        help="instant, recorded, xN for N times as fast as recorded, or N for N tokens a second.",
    ),
    option("--runs", type=RunsType(), default="1", help="How often the whole recording can be played, or any."),
    option("--rules", type=EXISTING_FILE, help="File with rules for what may differ: a JSON array."),
    option("--ignore", multiple=True, metavar="FIELD", help="Setting that is not compared; repeatable."),
    option("--warn", multiple=True, metavar="FIELD", help="Setting that may differ, if it is said; repeatable."),
    option(
        "--fault",
        multiple=True,
        metavar="TURN:KIND[=VALUE]",
        help="Once, at a turn as show numbers it: drop, stall, 429[=SECONDS], failed[=CODE], not-found, limit or 1009; "
        "repeatable.",
    ),
    option(
        "--on-miss",
        type=click.Choice(("fail", "record")),
        default="fail",
        help="What a request that is not recorded gets: a refusal, or an answer from elsewhere, which is recorded.",
    ),
    option(
        "--upstream",
        default="",
        show_default=False,
        metavar="URL",
        help="Responses server that is asked on a miss; or --backend.",
    ),
    option("--out", type=FILE, help="With --on-miss record: the recording of the whole run, a new file."),
)


@frozen
class Secrets:
    """What a recording hides: the values of ``secret_options``."""

    secrets: str = "mask"
    secret_env: tuple[str, ...] = ()
    secret_file: Path | None = None


secret_values = together(
    option(
        "--secret-env",
        multiple=True,
        metavar="NAME",
        help="Variable whose value is a secret too, and whatever a text assigns to that name; repeatable.",
    ),
    option("--secret-file", type=EXISTING_FILE, help="More secrets, one a line; # begins a comment."),
)

secret_options = together(
    option(
        "--secrets",
        type=click.Choice(("mask", "refuse")),
        default="mask",
        help="What happens to keys in texts: they are masked, or the recording ends before the first.",
    ),
    secret_values,
)

T = TypeVar("T", Listen, Model, Secrets)


def take(kind: type[T], values: dict[str, Any]) -> T:
    """Return the options of ``kind`` among a command's ``values``; a field has its default where there is none."""
    return kind(**{field.name: values[field.name] for field in fields(kind) if field.name in values})


json_option = option("--json/--no-json", "as_json", show_default=False, help="Print the result as JSON, for programs.")
