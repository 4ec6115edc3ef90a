"""Input items: one wire model for each type that can come from a client, and what is refused."""

from collections.abc import Mapping
from typing import Any

import orjson
from attrs import frozen

from .canonical import Item
from .errors import UnsupportedField
from .structuring import Mismatch, converter, expect, kind_of, one_of
from .tools import ToolDefinition


@frozen
class Role:
    """A message's role; a class of its own so that the converter checks it."""

    name: str


@frozen
class Content:
    """Text, or an array of typed parts."""


@frozen
class Part:
    """One typed part of a content."""


@frozen
class MessageItem:
    role: Role
    content: Content
    type: str = "message"
    phase: str | None = None


@frozen
class FunctionCallItem:
    call_id: str
    name: str
    arguments: str
    type: str
    namespace: str | None = None


@frozen
class CustomToolCallItem:
    call_id: str
    name: str
    input: str
    type: str
    namespace: str | None = None


@frozen
class ToolOutputItem:
    call_id: str
    output: Content
    type: str


@frozen
class ReasoningItem:
    type: str
    summary: tuple[Part, ...] | None = None
    content: tuple[Part, ...] | None = None
    encrypted_content: str | None = None


@frozen
class ItemReference:
    id: str
    type: str | None = None


@frozen
class AdditionalTools:
    type: str
    tools: tuple[ToolDefinition, ...]


@frozen
class OpaqueItem:
    """An item of the API that says nothing to a model here: kept, and passed over."""

    type: str


KNOWN: Mapping[str, type] = {
    "message": MessageItem,
    "function_call": FunctionCallItem,
    "function_call_output": ToolOutputItem,
    "custom_tool_call": CustomToolCallItem,
    "custom_tool_call_output": ToolOutputItem,
    "reasoning": ReasoningItem,
    "item_reference": ItemReference,
    "additional_tools": AdditionalTools,
    "configuration_update": OpaqueItem,
    "web_search_call": OpaqueItem,
    "file_search_call": OpaqueItem,
    "code_interpreter_call": OpaqueItem,
    "image_generation_call": OpaqueItem,
}

PART_TEXT = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "summary_text": "text",
    "reasoning_text": "text",
    "refusal": "refusal",
}


def _role(value: Any, _: Any) -> Role:
    return Role(one_of(value, "user", "assistant", "system", "developer"))


def _content(value: Any, _: Any) -> Content:
    if isinstance(value, str):
        return Content()
    if not isinstance(value, list):
        raise Mismatch(f"expected a string or an array of content parts, but got {kind_of(value)} instead")
    converter.structure(value, tuple[Part, ...])
    return Content()


def _part(value: Any, _: Any) -> Part:
    kind = expect(expect(value, dict).get("type"), str)
    if kind in PART_TEXT:
        expect(value.get(PART_TEXT[kind]), str)
    elif kind not in ("input_image", "input_file"):
        raise Mismatch(f"unknown content part type {kind[:64]!r}")
    return Part()


def _item(value: Any, _: Any) -> Item:
    """Unknown fields are kept: the client's own object is the item."""
    kind = expect(value, dict).get("type")
    if kind is None:
        kind = "message" if "role" in value else "item_reference" if "id" in value else "message"
    model = KNOWN.get(expect(kind, str))
    if model is not None:
        converter.structure({**value, "type": kind}, model)
    elif ":" not in kind:  # a vendor's own item has a prefix (Open Responses): kept, and passed over
        raise UnsupportedField(f"Items of type '{kind[:64]}' are not supported by this server.", param="type")
    if value.get("type") is None:
        value = {**value, "type": kind}
    try:
        return Item.of(value)
    except orjson.JSONEncodeError as exc:
        raise Mismatch(f"nested too deeply ({exc})") from None


converter.register_structure_hook(Role, _role)
converter.register_structure_hook(Content, _content)
converter.register_structure_hook(Part, _part)
converter.register_structure_hook(Item, _item)


def user_message(text: str) -> dict[str, Any]:
    """The item that a string ``input`` stands for."""
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
