"""What a request demands of a sample (tools, a format), and tools as functions; the same for every renderer of ids."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from attrs import frozen

from turntape.core.tools import Tool
from turntape.core.wire import ResponseCreate

from .chat_tools import ToolNames, key_of

CUSTOM_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The tool's whole input, as free text."}},
    "required": ["input"],
    "additionalProperties": False,
}
"""Arguments of a custom tool, which a model that knows functions only writes as JSON."""


@frozen
class Choice:
    """What a sample must and must not do. Names are those that the model sees.

    Attributes:
        allowed: schema of the arguments of each function that may be called.
        denied: functions that are offered and may not be called.
        must_call: the sample has to call one of them.
        schema: JSON Schema of the answer's text, or None.
    """

    allowed: Mapping[str, Mapping[str, Any]]
    denied: frozenset[str] = frozenset()
    must_call: bool = False
    schema: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, request: ResponseCreate, tools: Sequence[Tool], names: ToolNames) -> "Choice":
        choice = request.choice
        only = None if choice.only is None else frozenset(choice.only)
        allowed = {
            names.wire[key_of(tool)]: parameters_of(tool)
            for tool in tools
            if choice.mode != "none" and (only is None or tool.name in only)
        }
        form = request.text.format if request.text is not None else None
        schema: Mapping[str, Any] | None = None
        if form is not None and form.type == "json_schema":
            schema = form.schema
        elif form is not None and form.type == "json_object":
            schema = {"type": "object"}
        denied = frozenset(names.wire[key_of(tool)] for tool in tools) - allowed.keys()
        return cls(allowed, denied, choice.mode == "required" and bool(allowed), schema)


def parameters_of(tool: Tool) -> Mapping[str, Any]:
    """Schema of the arguments of the function that a tool is to the model."""
    return CUSTOM_PARAMETERS if tool.custom else tool.parameters or {"type": "object"}


def custom_description(tool: Tool) -> str:
    """A custom tool's description, and its grammar in words: a function's schema cannot say it."""
    grammar = tool.format or {}
    parts = [tool.description or ""]
    if grammar.get("type") == "grammar":
        syntax, definition = grammar.get("syntax", "lark"), grammar.get("definition", "")
        parts.append(f"The text of `input` must match this {syntax} grammar:\n\n{definition}")
    return "\n\n".join(part for part in parts if part)


def custom_arguments(text: str) -> str:
    """A custom tool's input as the arguments of the function that stands for it."""
    return orjson.dumps({"input": text}).decode()
