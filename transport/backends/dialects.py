"""The table of chat-completions servers: which there are, and which row of ``dialects.toml`` holds for a model there."""

import re
import tomllib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, Literal
from urllib.parse import urlsplit

import attrs
import cattrs
from attrs import frozen
from cattrs.gen import make_dict_structure_fn

from turntape.core.structuring import Mismatch, expect

from .chat_dialect import Dialect

FILE = "dialects.toml"
ANY = "*"


@frozen
class Preset:
    """A server, or a kind of server, that has a name.

    Attributes:
        base_url: "" if each user has one of their own.
        key_env: the environment variable that its own tools read a key from; "" if it has none.
        auth: how a key is sent: "bearer", or "api-key", a header of that name. "none" needs none, and a key that is
            given all the same is a bearer token.
        headers: sent with every request.
        hosts: globs of HOST or HOST:PORT by which a URL is known to be one of its own.
        responses: its Responses API, if it has one: "none", "stateless", "stored" (it keeps responses), "stored_optin"
            (only if its operator says so).
        ws: the Responses API over WebSocket too.
        source: where the facts stand.
    """

    name: str
    base_url: str = ""
    key_env: str = ""
    auth: Literal["bearer", "api-key", "none"] = "bearer"
    headers: Mapping[str, str] = attrs.field(factory=dict)
    hosts: tuple[str, ...] = ()
    responses: Literal["none", "stateless", "stored", "stored_optin"] = "none"
    ws: bool = False
    source: str = ""


@frozen
class Row:
    """One row: where it holds, where its facts come from, and what they are.

    Attributes:
        backend: a preset's name, or "*" for every server.
        models: globs of model names, letters of any case.
        extends: the row whose values hold where this one has none of its own.
        confidence: "measured": a probe or a recorded stream; "documented": vendor's documents, types or source;
            "assumed": deduced.
    """

    name: str
    backend: str
    source: str
    confidence: Literal["measured", "documented", "assumed"]
    dialect: Dialect
    models: tuple[str, ...] = (ANY,)
    extends: str = ""

    def holds(self, backend: str, model: str) -> bool:
        return self.backend in (ANY, backend) and any(fnmatchcase(model.lower(), glob) for glob in self.models)


@frozen
class Table:
    presets: Mapping[str, Preset]
    rows: tuple[Row, ...]


class DialectError(ValueError):
    """The table cannot be used; the text names the row or preset, the key and the cure."""


def exact_converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True)
    for primitive in (str, bool, int):
        converter.register_structure_hook(primitive, lambda value, type_: expect(value, type_))
    converter.register_structure_hook_func(
        lambda type_: getattr(type_, "__origin__", None) is tuple,
        lambda value, type_: tuple(converter.structure(each, type_.__args__[0]) for each in expect(value, list)),
    )
    converter.register_structure_hook_func(
        lambda type_: type_ in (Mapping[str, Any], Mapping[str, str]), lambda value, _: expect(value, dict)
    )
    converter.register_structure_hook_factory(
        attrs.has, lambda cls: make_dict_structure_fn(cls, converter, _cattrs_forbid_extra_keys=True)
    )
    return converter


_converter = exact_converter()
_ROW_KEYS = {"name", "backend", "models", "extends", "source", "confidence"}


def _structured(value: Any, type_: Any, where: str) -> Any:
    try:
        return _converter.structure(value, type_)
    except (cattrs.BaseValidationError, Mismatch) as exc:
        reasons = "; ".join(cattrs.transform_error(exc, path=where))
        raise DialectError(reasons) from None


def read_table(text: str) -> Table:
    """The table in a TOML document.

    Raises:
        DialectError: a key is unknown or missing, a value is of the wrong kind, or a name leads nowhere.
    """
    try:
        value = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise DialectError(f"not valid TOML: {exc}") from exc
    if unknown := value.keys() - {"backend", "row"}:
        raise DialectError(f"unknown table '{min(unknown)}'; there are [backend.NAME] and [[row]]")
    presets = {
        name: _structured({**expect(entry, dict), "name": name}, Preset, f"[backend.{name}]")
        for name, entry in value.get("backend", {}).items()
    }
    raws: dict[str, dict[str, Any]] = {}
    for n, raw in enumerate(value.get("row", [])):
        name = raw.get("name")
        if not isinstance(name, str) or name in raws:
            raise DialectError(f"[[row]] number {n + 1}: needs a 'name' that no other row has")
        raws[name] = raw
    return Table(presets, tuple(_row(name, raws, presets) for name in raws))


def _row(name: str, raws: Mapping[str, dict[str, Any]], presets: Mapping[str, Preset]) -> Row:
    where, raw = f"[[row]] '{name}'", raws[name]
    settings: dict[str, Any] = {}
    seen = [name]
    while (base := raws[seen[-1]].get("extends")) is not None:
        if base not in raws or base in seen:
            raise DialectError(f"{where}: extends {base!r}, which is no other row; write the name of one")
        seen.append(base)
    for link in reversed(seen):
        settings |= {key: entry for key, entry in raws[link].items() if key not in _ROW_KEYS}
    dialect = _structured({**settings, "name": name}, Dialect, where)
    for rule in dialect.errors:
        _check_pattern(rule.match, where)
    _check_pattern(dialect.call_ids, where)
    row: Row = attrs.evolve(
        _structured({**{key: raw[key] for key in _ROW_KEYS & raw.keys()}, "dialect": {}}, Row, where), dialect=dialect
    )
    if row.backend != ANY and row.backend not in presets:
        raise DialectError(f'{where}: there is no [backend.{row.backend}]; add it, or write "*"')
    return row


def _check_pattern(pattern: str, where: str) -> None:
    try:
        re.compile(pattern)
    except re.error as exc:
        raise DialectError(f"{where}: {pattern!r} is no regular expression ({exc})") from None


@cache
def table() -> Table:
    """The table that is installed with this package."""
    return read_table(files(__package__).joinpath(FILE).read_text(encoding="utf-8"))


def presets() -> Mapping[str, Preset]:
    """Every server that can be named, by name."""
    return table().presets


def preset_for(backend: str) -> Preset | None:
    """The preset of a name, or the one that a URL belongs to; None for a URL of another host, and for "".

    Raises:
        ValueError: a name that no preset has; the text lists those there are.
    """
    if "://" not in backend:
        if not backend:
            return None
        if backend not in presets():
            raise ValueError(
                f"there is no backend {backend[:64]!r}; known are {', '.join(sorted(presets()))}, and URLs"
            )
        return presets()[backend]
    try:
        parts = urlsplit(backend)
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        return None  # whoever opens a connection says what is wrong with it
    names = (host, f"{host}:{port}")
    return next((p for p in presets().values() if any(fnmatchcase(n, glob) for glob in p.hosts for n in names)), None)


@lru_cache(512)
def dialect_for(backend: str, model: str) -> Dialect:
    """The dialect that ``model`` is asked in: of the first row that holds.

    Args:
        backend: a preset's name, a URL, or "" for a server that nothing is known about.

    Raises:
        ValueError: a name that no preset has.
    """
    preset = preset_for(backend)
    name = preset.name if preset is not None else ""
    return next((row.dialect for row in table().rows if row.holds(name, model)), Dialect())
