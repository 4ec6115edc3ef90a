"""The configuration file: a TOML file whose keys are the command line's options, checked before anything runs."""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from .options import ENVIRONMENT_PREFIX
from .tables import TABLES, ConfigError, Tables, kind_of, read_tables

DEFAULT_FILE = Path("turntape.toml")

OTHER_VARIABLES = frozenset({"CONFIG", "API_KEY", "BACKEND_KEY", "TEST_CACHE"})
"""What else TURNTAPE_ variables are read for: the group's option, Codex's key, the backend's, the tests' programs."""


def key_of(parameter: click.Parameter) -> str:
    """The name that an option has in the file: its flag without the dashes."""
    return parameter.opts[0].removeprefix("--")


def configurable(group: click.Group) -> dict[str, dict[str, click.Option]]:
    """The options of each command that the file may set, by key."""
    return {
        name: {
            key_of(parameter): parameter
            for parameter in command.params
            if isinstance(parameter, click.Option) and str(parameter.envvar or "").startswith(ENVIRONMENT_PREFIX)
        }
        for name, command in group.commands.items()
    }


def read(path: Path, context: click.Context) -> tuple[dict[str, Any], Tables]:
    """Return click's default map, the values that ``path`` gives for each command's options, and its tables.

    Args:
        context: of the group whose commands are meant; while it is read, its ``obj`` is the file's tables.

    Raises:
        ConfigError: the file cannot be read, a key is unknown, or a value has the wrong kind. The message
            names file, key, kind and cure.
    """
    assert isinstance(context.command, click.Group)
    commands = configurable(context.command)
    options = {key: option for by_key in commands.values() for key, option in by_key.items()}
    values = _parse(path)
    context.obj = tables = read_tables(path, values)
    for key, value in values.items():
        if key in TABLES:
            continue
        if key not in options or isinstance(value, dict):
            raise ConfigError(f"{path}: {_unknown(key, value, options)}")
        _check(path, key, value, options[key], context)
    defaults: dict[str, Any] = {
        command: {str(option.name): values[key] for key, option in by_key.items() if key in values}
        for command, by_key in commands.items()
    }
    return defaults, tables


def reread(path: Path) -> Tables:
    """The tables as the file has them now. Raises ``ConfigError``; its other keys hold until a new start."""
    return read_tables(path, _parse(path))


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be read ({exc.strerror}); give --config a file that can be") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path}: byte {exc.start} is not UTF-8; save the file as UTF-8") from exc
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"{path}: not valid TOML: {exc}") from exc


def _unknown(key: str, value: object, options: Iterable[str]) -> str:
    """Say what is wrong with a key that no option has, and what was probably meant."""
    if isinstance(value, dict):
        near = difflib.get_close_matches(key, TABLES, n=1, cutoff=0.6)
        meant = f"; did you mean [{near[0]}.NAME]?" if near else ""
        return f'"{key}" is a table; options stand at the top level, and tables are [backends.NAME] and [models.NAME]{meant}'
    if key in ("backend-key", "backend_key", "api-key", "api_key", "key"):
        return f'"{key}": keys do not belong here; write backend-key-file or key-file, or set TURNTAPE_BACKEND_KEY'
    if key == "config":
        return '"config": a configuration file cannot name another one'
    near = difflib.get_close_matches(key.replace("_", "-"), options, n=1, cutoff=0.7)
    cure = f'did you mean "{near[0]}"?' if near else f"known are: {', '.join(sorted(options))}"
    return f'"{key}" ({kind_of(value)}) is not an option; {cure}'


def unknown_variables(environment: Mapping[str, str], group: click.Command) -> list[str]:
    """One warning for each TURNTAPE_ variable that nothing reads, with the one that was probably meant."""
    assert isinstance(group, click.Group)
    options = (option for by_key in configurable(group).values() for option in by_key.values())
    known = {str(option.envvar).removeprefix(ENVIRONMENT_PREFIX) for option in options} | OTHER_VARIABLES
    warnings = list[str]()
    for variable, value in sorted(environment.items()):
        name = variable.removeprefix(ENVIRONMENT_PREFIX)
        if value and variable != name and name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
            meant = f"; did you mean {ENVIRONMENT_PREFIX}{near[0]}?" if near else ""
            warnings.append(f"{variable} is set, and no option reads it{meant}")
    return warnings


def _check(path: Path, key: str, value: object, option: click.Option, context: click.Context) -> None:
    """Raise ``ConfigError`` unless ``value`` is what the flag of this name would take."""
    wanted, fits, example = _wanted(option)
    if not fits(value):
        raise ConfigError(f'{path}: "{key}" is {kind_of(value)}, it must be {wanted}, such as {key} = {example}')
    try:
        for each in value if isinstance(value, list) else [value]:
            option.type.convert(each, option, context)
    except click.BadParameter as exc:
        raise ConfigError(f'{path}: "{key}": {exc.message}') from exc


def _wanted(option: click.Option) -> tuple[str, Any, str]:
    """What kind of TOML value an option takes: in words, as a test, and an example."""

    def a(*kinds: type) -> Any:
        return lambda value: type(value) in kinds

    if option.multiple:
        return "a list of strings", lambda v: type(v) is list and all(type(e) is str for e in v), '["https://my.page"]'
    if option.is_flag:
        return "a boolean", a(bool), "true"
    if isinstance(option.type, click.types.IntParamType):
        return "an integer", a(int), str(option.default)
    if option.type.name == "seconds":
        return "a number", a(int, float), str(option.default)
    return "a string", a(str), '"…"'


def use(context: click.Context, path: Path | None) -> None:
    """Let the options of ``context``'s commands default to what ``path``, or ./turntape.toml, says."""
    if path is None and not DEFAULT_FILE.exists():
        return
    context.default_map, context.obj = read(path or DEFAULT_FILE, context)
