"""Imports point one way, and the core can reach nothing that would surprise it."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = ("core", "transport", "replay", "turntape")  # each may import those before it
LINKS = {"core", "transport", "replay"}  # in turntape/: the same folders again, for editors

CORE_MAY_IMPORT = {
    # libraries: classes, JSON both ways
    "attrs",
    "cattrs",
    "orjson",
    # pure parts of the standard library: no clock, no randomness, no I/O, no threads, no logging
    "__future__",
    "base64",
    "binascii",
    "bisect",
    "collections",
    "copy",
    "dataclasses",
    "enum",
    "functools",
    "hashlib",
    "heapq",
    "itertools",
    "json",
    "math",
    "operator",
    "re",
    "string",
    "struct",
    "types",
    "typing",
    "unicodedata",
    "weakref",
    "zlib",
}


def sources(layer: str) -> list[Path]:
    return sorted(
        path for path in (ROOT / layer).rglob("*.py") if not LINKS & set(path.relative_to(ROOT / layer).parts[:-1])
    )


def imports(source: str, package: list[str]) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of everything that a module of ``package`` imports, wherever in its text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            yield node.lineno, stem
            yield from ((node.lineno, f"{stem}.{alias.name}") for alias in node.names)


def package_of(path: Path) -> list[str]:
    parts = list(path.relative_to(ROOT).parts[:-1])
    return parts if parts[0] == "turntape" else ["turntape", *parts]


def layer_of(name: str) -> str | None:
    """The layer that a dotted name belongs to; None for other people's code."""
    head, *rest = name.split(".")
    if head != "turntape":
        return None
    return rest[0] if rest and rest[0] in LINKS else "turntape"


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_point_one_way(layer: str) -> None:
    """The command line may use replay, replay the transport, the transport the core, and never the reverse."""
    allowed = LAYERS[: LAYERS.index(layer) + 1]
    assert sources(layer), f"nothing in {layer}/"
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sources(layer)
        for line, name in imports(path.read_text(), package_of(path))
        if (target := layer_of(name)) and target not in allowed
    ]
    assert not wrong


def test_core_imports_only_what_is_pure() -> None:
    """Nothing in the core can read a clock, draw a random number, do I/O, log or start a thread."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sources("core")
        for line, name in imports(path.read_text(), package_of(path))
        if layer_of(name) is None and name.partition(".")[0] not in CORE_MAY_IMPORT
    ]
    assert not wrong


def test_core_calls_nothing_impure_among_the_builtins() -> None:
    """The core opens no file, prints nothing, and orders nothing by a hash that differs from run to run."""
    banned = {"open", "print", "input", "hash", "exec", "eval", "__import__", "breakpoint"}
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} calls {node.func.id}"
        for path in sources("core")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in banned
    ]
    assert not wrong


def test_the_allow_list_names_real_modules() -> None:
    """Every name on the list can be imported, so that none stands there by mistake."""
    unknown = CORE_MAY_IMPORT - sys.stdlib_module_names - {"attrs", "cattrs", "orjson"}
    assert not unknown


def test_relative_and_nested_imports_are_seen() -> None:
    """An import inside a function, or by dots, is found and resolved like any other."""
    source = "def f():\n    from ..store import Store\n    import time\n"
    found = [name for _, name in imports(source, ["turntape", "transport", "backends"])]
    assert sorted(found) == ["time", "turntape.transport.store", "turntape.transport.store.Store"]
