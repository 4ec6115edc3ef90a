"""Tool definitions and ``tool_choice``: what the model may call, whatever shape the client gave it in."""

from collections.abc import Iterable
from typing import Any

import orjson
from attrs import field, frozen

from .errors import UnsupportedField
from .structuring import Mismatch, converter, expect, kind_of, one_of

INERT_PREFIXES = ("web_search", "tool_search")
"""Hosted tools that every Codex sends: accepted, never offered to the model. Refusing them would refuse Codex."""

HOSTED = frozenset(
    {
        "apply_patch",
        "code_interpreter",
        "computer",
        "computer_use_preview",
        "file_search",
        "image_generation",
        "local_shell",
        "mcp",
        "programmatic_tool_calling",
        "shell",
    }
)
"""Hosted tools of the API that this server does not run: refused by name."""


@frozen
class FunctionTool:
    name: str
    parameters: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None
    type: str = "function"
    raw: dict[str, Any] = field(factory=dict)


@frozen
class CustomTool:
    name: str
    description: str | None = None
    format: dict[str, Any] | None = None
    type: str = "custom"
    raw: dict[str, Any] = field(factory=dict)


@frozen
class NamespaceTool:
    name: str
    tools: tuple[FunctionTool | CustomTool, ...]
    description: str | None = None
    type: str = "namespace"
    raw: dict[str, Any] = field(factory=dict)


@frozen
class InertTool:
    """A hosted tool that is accepted and does nothing."""

    type: str
    raw: dict[str, Any] = field(factory=dict)


ToolDefinition = FunctionTool | CustomTool | NamespaceTool | InertTool


@frozen
class Tool:
    """One tool that the model may call.

    Attributes:
        custom: takes free text, constrained by ``format`` if there is one, and no JSON arguments.
        parameters: JSON Schema of the arguments, for functions.
    """

    name: str
    namespace: str | None = None
    custom: bool = False
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: dict[str, Any] | None = None


@frozen
class ToolChoice:
    """Attributes:
    mode: "auto", "none" or "required".
    only: names that may be called, or None for any tool.
    raw: as the client wrote it, for the echo.
    """

    mode: str = "auto"
    only: tuple[str, ...] | None = None
    raw: Any = "auto"


def _definition(value: Any, _: Any) -> ToolDefinition:
    kind = expect(expect(value, dict).get("type"), str)
    if kind == "function":
        return converter.structure(value, FunctionTool)
    if kind == "custom":
        return converter.structure(value, CustomTool)
    if kind == "namespace":
        return converter.structure(value, NamespaceTool)
    if kind.startswith(INERT_PREFIXES):
        return InertTool(kind, value)
    if kind in HOSTED:
        raise UnsupportedField(
            f"Tools of type '{kind[:64]}' are run by the API's own servers and not by this one. "
            "Offer a function or custom tool instead.",
            param="type",
        )
    raise Mismatch(f"unknown tool type {kind[:64]!r}; this server knows function, custom, namespace and web_search")


def _inner_definition(value: Any, _: Any) -> FunctionTool | CustomTool:
    kind = one_of(expect(value, dict).get("type"), "function", "custom")
    if kind == "function":
        return converter.structure(value, FunctionTool)
    return converter.structure(value, CustomTool)


MAX_KNOWN, MAX_KNOWN_BYTES = 8, 128 << 10
"""Arrays of tools that are remembered, and the JSON that each may have. An agent sends one or two, with every request."""

_known: dict[bytes, tuple[ToolDefinition, ...]] = {}
_callable: dict[int, tuple[tuple[ToolDefinition, ...], tuple[Tool, ...]]] = {}
"""What may be called of each array in ``_known``, by its identity: they live as long as it can be found here."""


def _definitions(value: Any, type_: Any) -> tuple[ToolDefinition, ...]:
    """The same JSON was checked before, and is the same tools: all that is seen of remembering them is the time.

    They are found by their JSON as it is written anew, 7 µs for 20 KB. To cut them out of the frame unread would save
    20 µs more, and take a scanner that must be right about every frame.
    """
    try:
        encoded = orjson.dumps(value)
    except orjson.JSONEncodeError:  # too deep: whoever answers says so
        encoded = b""
    if (known := _known.get(encoded)) is not None:
        return known
    checked: tuple[ToolDefinition, ...] = _check_definitions(value, type_)
    if 0 < len(encoded) <= MAX_KNOWN_BYTES:
        if len(_known) >= MAX_KNOWN:
            _known.clear()
            _callable.clear()
        _known[encoded] = checked
        _callable[id(checked)] = checked, callable_tools(checked)
    return checked


converter.register_structure_hook(ToolDefinition, _definition)
_check_definitions = converter.get_structure_hook(tuple[ToolDefinition, ...])
converter.register_structure_hook_func(lambda type_: type_ == tuple[ToolDefinition, ...], _definitions)
converter.register_structure_hook(FunctionTool | CustomTool, _inner_definition)


def callable_tools(definitions: Iterable[ToolDefinition], namespace: str | None = None) -> tuple[Tool, ...]:
    """The tools that a model may call, namespaces opened, in the order given.

    Those of a request's array that is remembered are the same object each time: what is made of them can be, too.
    """
    if (known := _callable.get(id(definitions))) is not None and known[0] is definitions:
        return known[1]
    found: list[Tool] = []
    for tool in definitions:
        match tool:
            case FunctionTool():
                found.append(Tool(tool.name, namespace, False, tool.description, tool.parameters, tool.strict))
            case CustomTool():
                found.append(Tool(tool.name, namespace, True, tool.description, format=tool.format))
            case NamespaceTool():
                found += callable_tools(tool.tools, tool.name)
    return tuple(found)


def _choice(value: Any, _: Any) -> ToolChoice:
    if isinstance(value, str):
        return ToolChoice(one_of(value, "none", "auto", "required"), None, value)
    if not isinstance(value, dict):
        raise Mismatch(f"expected a string or an object, but got {kind_of(value)} instead")
    kind = expect(value.get("type"), str)
    if kind in ("function", "custom"):
        return ToolChoice("required", (expect(value.get("name"), str),), value)
    if kind == "allowed_tools":
        mode = one_of(value.get("mode", "auto"), "auto", "required")
        names = tuple(
            expect(expect(tool, dict).get("name"), str)
            for tool in expect(value.get("tools"), list)
            if not str(expect(tool, dict).get("type")).startswith(INERT_PREFIXES)
        )
        return ToolChoice(mode, names, value)
    if kind.startswith(INERT_PREFIXES) or kind in HOSTED:
        raise UnsupportedField(f"This server does not run the hosted tool '{kind[:64]}', so it cannot be chosen.")
    raise Mismatch(f"unknown tool_choice type {kind[:64]!r}")


converter.register_structure_hook(ToolChoice, _choice)


def echoed(definition: ToolDefinition) -> dict[str, Any]:
    """A definition as the Response object shows it: functions always with their nullable keys (Open Responses tests)."""
    if isinstance(definition, FunctionTool):
        return {"description": None, "parameters": None, "strict": True, **definition.raw}
    return definition.raw
