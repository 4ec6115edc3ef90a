"""The ``[backends]`` and ``[models]`` tables of the configuration file, each key checked by name, kind and range."""

import difflib
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from attrs import evolve, field, frozen

from turntape.transport.backends.dialects import presets
from turntape.transport.backends.model_families import families
from turntape.transport.backends.template_variables import RESERVED

from .specs import NAME, BackendSpec, SpecError

KINDS = {bool: "a boolean", int: "an integer", float: "a number", str: "a string", list: "a list", dict: "a table"}

TABLES = ("backends", "models")

ANY = "*"
"""The name of the model table for every name that has none of its own."""

_KEY_HEADERS = re.compile(r"(?i)authorization|cookie|.*(key|token|secret|password).*")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS = frozenset(
    {
        "host",
        "content-length",
        "content-type",
        "transfer-encoding",
        "connection",
        "accept-encoding",
        "upgrade",
        *(f"sec-websocket-{each}" for each in ("accept", "extensions", "key", "protocol", "version")),
    }
)

SERVERS = ("turntape",)
"""Kinds of servers that are no presets."""

ENGINE = ("window", "slots", "threads", "gpu-layers")
"""Keys of a backend that samples from a model file."""

RENDERERS = ("auto", "harmony", "template")


class ConfigError(click.UsageError):
    """The configuration file cannot be used: exit code 2, as for a wrong flag."""


def kind_of(value: object) -> str:
    return KINDS.get(type(value), "a date or time")


@frozen(kw_only=True)
class BackendTable:
    """One backend: ``[backends.NAME]``, or what ``--backend`` says.

    Attributes:
        spec: never the name of another table.
        path: the file that the table stands in; None for what ``--backend`` says.
        server: what kind of server is at its URL, where its host does not tell: the name of a preset.
        store: a Responses server may store the responses it gives, and continue them.
        tokenizer: folder with the files of the model that a server of token ids runs.
        window: tokens that each answer of a model file may see; None for the engine's own choice, as for the next three.
        slots: answers of a model file that are sampled at once.
        threads: CPU threads of a model file.
        gpu_layers: layers of a model file that a GPU holds; -1 for as many as fit.
        key_env: the variable that holds its key; None for the preset's own, if it is one.
        headers: sent with each request, besides ours.
        connect_timeout: seconds for name, TCP and TLS together.
        answer_timeout: seconds to the head of an answer.
        silence_timeout: seconds between two reads of it.
        idle_connections: kept open for the next request.
        idle_timeout: seconds for which they are; None for what suits the server.
    """

    name: str
    spec: BackendSpec
    path: Path | None = None
    server: str = ""
    store: bool = False
    tokenizer: Path | None = None
    window: int | None = None
    slots: int | None = None
    threads: int | None = None
    gpu_layers: int | None = None
    key_env: str | None = None
    key_file: Path | None = None
    headers: tuple[tuple[str, str], ...] = ()
    connect_timeout: float = 10.0
    answer_timeout: float = 600.0
    silence_timeout: float = 600.0
    idle_connections: int = 64
    idle_timeout: float | None = None


@frozen(kw_only=True)
class ModelTable:
    """One public name: ``[models.NAME]``. What is None is left as the request has it.

    Attributes:
        backend: None for the one that ``--backend`` names.
        model: the name that the backend knows; "" for the public one.
        family: how a model with a chat template writes its calls; "" to see it in the template.
        template_variables: what that template is told besides, sorted by name.
        fallback: models of the file, or backends, in the order in which they are asked.
    """

    name: str
    backend: BackendSpec | None = None
    model: str = ""
    context_window: int | None = None
    max_output: int | None = None
    renderer: str = "auto"
    family: str = ""
    template_variables: tuple[tuple[str, str | bool | int | float], ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    reasoning_effort: str | None = None
    fallback: tuple[str, ...] = ()


@frozen
class Tables:
    """Both tables of one file; empty without one."""

    path: Path | None = None
    backends: Mapping[str, BackendTable] = field(factory=dict)
    models: Mapping[str, ModelTable] = field(factory=dict)


@frozen
class _Kind:
    """What a key takes: in words, as a test, and an example in TOML."""

    wanted: str
    fits: Callable[[Any], bool]
    example: str


def _is_text(value: Any) -> bool:
    return type(value) is str and bool(value) and value.isprintable()


def _is_number(low: float, high: float = math.inf) -> Callable[[Any], bool]:
    return lambda value: type(value) in (int, float) and math.isfinite(value) and low <= value <= high


def _is_count(low: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and value >= low


def _is_texts(value: Any) -> bool:
    return _is_text(value) or (type(value) is list and bool(value) and all(map(_is_text, value)))


def _is_variable(pair: tuple[str, Any]) -> bool:
    name, value = pair
    is_finite = type(value) in (str, bool, int) or (type(value) is float and math.isfinite(value))
    return is_finite and re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) is not None and name not in RESERVED


def _is_seconds(value: Any) -> bool:
    return _is_number(0)(value) and value > 0


_TEXT = "a string that is not empty"
_SECONDS = _Kind("a number of seconds above 0", _is_seconds, "30")
_TOKENS = _Kind("an integer above 0", _is_count(1), "131072")

_BACKEND = {
    "spec": _Kind(_TEXT, _is_text, '"chat+http://127.0.0.1:8000/v1"'),
    "server": _Kind(_TEXT, _is_text, '"vllm"'),
    "store": _Kind("a boolean", lambda value: type(value) is bool, "true"),
    "tokenizer": _Kind(_TEXT, _is_text, '"models/Qwen2.5-7B-Instruct"'),
    "window": _TOKENS,
    "slots": _Kind("an integer above 0", _is_count(1), "2"),
    "threads": _Kind("an integer above 0", _is_count(1), "8"),
    "gpu-layers": _Kind("an integer, -1 for as many as fit", _is_count(-1), "-1"),
    "key-env": _Kind(
        "the name of an environment variable",
        lambda value: type(value) is str and re.fullmatch(r"[A-Za-z_]\w*", value, re.ASCII) is not None,
        '"CEREBRAS_API_KEY"',
    ),
    "key-file": _Kind(_TEXT, _is_text, '"cerebras.key"'),
    "headers": _Kind(
        "a table of strings",
        lambda value: type(value) is dict and all(type(each) is str for each in value.values()),
        '{ X-Title = "mine" }',
    ),
    "connect-timeout": _SECONDS,
    "answer-timeout": _SECONDS,
    "silence-timeout": _SECONDS,
    "idle-connections": _Kind("an integer, 0 or more", _is_count(0), "64"),
    "idle-timeout": _SECONDS,
}

_MODEL = {
    "backend": _Kind(_TEXT, _is_text, '"cerebras"'),
    "model": _Kind(_TEXT, _is_text, '"gpt-oss-120b"'),
    "context-window": _TOKENS,
    "max-output": _TOKENS,
    "renderer": _Kind(f"one of {', '.join(RENDERERS)}", lambda value: value in RENDERERS, '"harmony"'),
    "family": _Kind(f"one of {', '.join(families())}", lambda value: value in tuple(families()), '"qwen3-coder"'),
    "template-variables": _Kind(
        "a table of strings, booleans and numbers, whose names are no word of the conversation's own",
        lambda value: type(value) is dict and all(map(_is_variable, value.items())),
        "{ enable_thinking = false }",
    ),
    "temperature": _Kind("a number from 0 to 2", _is_number(0, 2), "0.7"),
    "top-p": _Kind("a number from 0 to 1", _is_number(0, 1), "0.9"),
    "max-output-tokens": _TOKENS,
    "reasoning-effort": _Kind(_TEXT, _is_text, '"medium"'),
    "fallback": _Kind("a string, or a list of strings", _is_texts, '"slow"'),
}


def read_tables(path: Path, values: Mapping[str, Any]) -> Tables:
    """The tables among the top-level ``values`` of ``path``.

    Raises:
        ConfigError: a key is unknown, or a value of the wrong kind, out of range, or a name that leads nowhere. The
            message names file, table, key, kind and cure.
    """
    backends = _entries(path, "backends", values)
    models = _entries(path, "models", values)
    read = {name: _backend(path, name, entry) for name, entry in backends.items()}
    return Tables(path, read, {name: _model(path, name, entry, read, models) for name, entry in models.items()})


def _entries(path: Path, table: str, values: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    entries = values.get(table, {})
    if type(entries) is not dict:
        raise ConfigError(f'{path}: "{table}" is {kind_of(entries)}, it must be tables, such as [{table}.mine]')
    for name, entry in entries.items():
        if not name or not name.isprintable() or len(name) > 256:
            raise ConfigError(f"{path}: [{table}]: {name[:64]!r} is no name; write 1 to 256 characters on one line")
        if type(entry) is not dict:
            raise ConfigError(
                f'{path}: [{table}]: "{name}" is {kind_of(entry)}, it must be a table of its own: [{table}.{name}]'
            )
        if table == "backends" and not NAME.fullmatch(name):
            raise ConfigError(f"{path}: [backends]: {name!r} is no name; letters, digits, '.', '_' and '-' make one")
    return entries


def _checked(path: Path, where: str, entry: Mapping[str, Any], kinds: Mapping[str, _Kind]) -> None:
    for key, value in entry.items():
        if key not in kinds:
            if key.replace("_", "-") in ("key", "api-key", "apikey"):
                cure = 'keys do not belong here; write key-env = "VARIABLE" or key-file = "FILE"'
            else:
                near = difflib.get_close_matches(key.replace("_", "-"), kinds, n=1, cutoff=0.7)
                cure = f'did you mean "{near[0]}"?' if near else f"known are: {', '.join(sorted(kinds))}"
            shown = json.dumps(key[:64], ensure_ascii=False)
            raise ConfigError(f"{path}: {where}: {shown} ({kind_of(value)}) is not known; {cure}")
        kind = kinds[key]
        if not kind.fits(value):
            shown = f"{kind_of(value)} out of range" if isinstance(value, int | float) else kind_of(value)
            raise ConfigError(
                f'{path}: {where}: "{key}" is {shown}, it must be {kind.wanted}, such as {key} = {kind.example}'
            )


def _backend(path: Path, name: str, entry: Mapping[str, Any]) -> BackendTable:
    where = f"[backends.{name}]"
    _checked(path, where, entry, _BACKEND)
    try:
        spec = BackendSpec.parse(entry.get("spec", name))
    except SpecError as exc:
        if "spec" not in entry:
            raise ConfigError(f'{path}: {where}: "spec" is missing; write spec = {_BACKEND["spec"].example}') from exc
        raise ConfigError(f'{path}: {where}: "spec": {exc}') from exc
    if (server := entry.get("server", "")) and server not in SERVERS and server not in presets():
        known = ", ".join(sorted({*SERVERS, *presets()}))
        raise ConfigError(f'{path}: {where}: "server": {server!r} is no kind of server; known are: {known}')
    for key, kind, form in (("tokenizer", "tokens", "tokens+URL"), *((key, "llama", "llama:FILE") for key in ENGINE)):
        if key in entry and spec.kind != kind:
            raise ConfigError(f'{path}: {where}: "{key}" is for {form} only; leave it out, or write such a spec')
    if "key-env" in entry and "key-file" in entry:
        raise ConfigError(f'{path}: {where}: "key-env" and "key-file" are both given; leave one out')
    for header, value in entry.get("headers", {}).items():
        if _KEY_HEADERS.fullmatch(header):
            raise ConfigError(
                f'{path}: {where}: "headers": {header} looks like a key, which does not belong here; '
                "write key-env or key-file"
            )
        if not _HEADER.fullmatch(header) or header.lower() in _OURS or not (value.isascii() and value.isprintable()):
            raise ConfigError(
                f'{path}: {where}: "headers": {header!r} cannot be sent; names are letters, digits and dashes, values '
                f"printable ASCII, and these are set by turntape: {', '.join(sorted(_OURS))}"
            )
    times = ("connect-timeout", "answer-timeout", "silence-timeout", "idle-timeout", "idle-connections")
    return BackendTable(
        name=name,
        spec=spec,
        path=path,
        server=server,
        store=entry.get("store", False),
        tokenizer=Path(entry["tokenizer"]) if "tokenizer" in entry else None,
        key_env=entry.get("key-env"),
        key_file=Path(entry["key-file"]) if "key-file" in entry else None,
        headers=tuple(entry.get("headers", {}).items()),
        **{key.replace("-", "_"): entry[key] for key in (*times, *ENGINE) if key in entry},
    )


def _model(
    path: Path,
    name: str,
    entry: Mapping[str, Any],
    backends: Mapping[str, BackendTable],
    models: Mapping[str, Any],
) -> ModelTable:
    where = model_key(name)
    _checked(path, where, entry, _MODEL)
    fallback = entry.get("fallback", [])
    names = (fallback,) if isinstance(fallback, str) else tuple(fallback)
    for each in names:
        if each in (name, ANY):
            raise ConfigError(f'{path}: {where}: "fallback" cannot be {each!r}; name another model, or a backend')
        if each not in models:
            _spec(path, where, "fallback", each, backends)
    spec = _spec(path, where, "backend", entry["backend"], backends) if "backend" in entry else None
    rest = {key.replace("-", "_"): value for key, value in entry.items() if key not in ("backend", "fallback")}
    if told := rest.pop("template_variables", None):
        rest["template_variables"] = tuple(sorted(told.items()))
    return evolve(ModelTable(name=name, backend=spec, fallback=names), **rest)


def model_key(name: str) -> str:
    """A model's table, as a message names it."""
    return f'[models."{name}"]' if not NAME.fullmatch(name) or "." in name else f"[models.{name}]"


def _spec(path: Path, where: str, key: str, text: str, backends: Mapping[str, BackendTable]) -> BackendSpec:
    try:
        return BackendSpec.parse(text, backends)
    except SpecError as exc:
        what = "neither a model of this file nor a backend: " if key == "fallback" else ""
        raise ConfigError(f'{path}: {where}: "{key}": {what}{exc}') from exc
