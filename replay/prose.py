"""Values of the Responses API without their prose: what says what a thing is stays, what somebody wrote is filled."""

import base64
import binascii
import json
import re
from typing import Any

import orjson
from attrs import define, field

from turntape.core.reasoning import PREFIX, seal

from .filler import Filler
from .packing import decode, encode

KINDS = ("instructions", "tools", "messages", "reasoning", "arguments", "outputs")
"""Of prose, each of which can be kept."""

_KEPT = frozenset(
    [
        "type",
        "id",
        "object",
        "role",
        "status",
        "model",
        "name",
        "namespace",
        "call_id",
        "item_id",
        "response_id",
        "previous_response_id",
        "stream_id",
        "phase",
        "service_tier",
        "effort",
        "verbosity",
        "truncation",
        "tool_choice",
        "include",
        "mode",
        "detail",
        "syntax",
        "code",
        "param",
        "reason",
        "retry-after",
        "conversation",
        "event_id",
        "prompt_cache_retention",
    ]
)
"""Fields whose values say what a thing is, if they look like a name."""

_LIKE_A_NAME = re.compile(r"[A-Za-z0-9_.:/$\[\]-]{0,128}")
_FREE = frozenset({"metadata", "client_metadata"})  # whose fields anybody names
_SCHEMAS = frozenset({"parameters", "schema", "input_schema", "output_schema"})
_SCHEMA_KEPT = frozenset({"type", "$ref", "$schema", "format", "required"})
_SCHEMA_VALUES = frozenset({"enum", "const", "default", "examples"})
_BY_PREFIX = {
    "message": "messages",
    "input_text": "messages",
    "output_text": "messages",
    "refusal": "messages",
    "response.output_text": "messages",
    "response.refusal": "messages",
    "reasoning": "reasoning",
    "response.reasoning": "reasoning",
    "response.function_call_arguments": "arguments",
    "response.custom_tool_call_input": "arguments",
}


def kind_of(type_: object) -> str:
    """Which prose an item, a part or an event of this type holds; "" if it is of no one kind."""
    if not isinstance(type_, str):
        return ""
    if type_.endswith("_call_output"):
        return "outputs"
    if type_.endswith("_call"):
        return "arguments"
    return next((kind for prefix, kind in _BY_PREFIX.items() if type_.startswith(prefix)), "")


@define(eq=False)
class Scrubber:
    """Attributes:
    keep: kinds of prose that are left as they are.
    """

    keep: frozenset[str] = frozenset()
    filler: Filler = field(factory=Filler)

    def request(self, text: str) -> str:
        """A client's message, encoded as it was; one that is no JSON is one text."""
        try:
            value = decode(text.encode("utf-8", "surrogatepass"))
        except (ValueError, RecursionError):
            return self.filler.text(text)
        scrubbed = self.value(value)
        if isinstance(value, dict) and isinstance(value.get("input"), str) and "messages" in self.keep:
            scrubbed["input"] = value["input"]
        try:
            return json.dumps(scrubbed) if json.dumps(value) == text else encode(scrubbed).decode()
        except RecursionError:
            return self.filler.text(text)

    def encoded(self, item: bytes) -> bytes:
        return orjson.dumps(self.value(orjson.loads(item)))

    def value(self, value: Any, name: str = "") -> Any:
        """
        Args:
            name: of the field that holds ``value``.
        """
        if isinstance(value, str):
            return self._string(value, name)
        if isinstance(value, list):
            return [] if name == "logprobs" else [self.value(inner, name) for inner in value]
        if not isinstance(value, dict):
            return value
        if name in _FREE:
            return self.free(value)
        if name in _SCHEMAS:
            return value if "tools" in self.keep else self.schema(value)
        if name == "reasoning":  # the settings, which are words of the API
            return {inner: self._named(below) for inner, below in value.items()}
        if kind_of(value.get("type")) in self.keep:
            return value
        return {self.filler.name(inner): self._field(inner, below) for inner, below in value.items()}

    def free(self, value: Any) -> Any:
        """A value whose every string is somebody's own."""
        if isinstance(value, str):
            return self.filler.text(value)
        if isinstance(value, list):
            return [*map(self.free, value)]
        if isinstance(value, dict):
            return {self.filler.name(name): self.free(inner) for name, inner in value.items()}
        return value

    def schema(self, value: Any) -> Any:
        """A JSON Schema: its form stays."""
        if isinstance(value, str):
            return self.filler.text(value)
        if isinstance(value, list):
            return [*map(self.schema, value)]
        if not isinstance(value, dict):
            return value
        scrubbed = dict[str, Any]()
        for name, inner in value.items():
            if name in _SCHEMA_VALUES:
                below = self.free(inner)
            elif name in _SCHEMA_KEPT and not isinstance(inner, dict):
                names = inner if isinstance(inner, list) else [inner]
                kept = [self.filler.name(one) if isinstance(one, str) and one[:1] != "#" else one for one in names]
                below = kept if isinstance(inner, list) else kept[0]
            else:
                below = self.schema(inner)
            scrubbed[self.filler.name(name)] = below
        return scrubbed

    def _field(self, name: str, value: Any) -> Any:
        if name in self.keep and name in ("instructions", "tools"):
            return value
        return self.value(value, name)

    def _named(self, value: Any) -> Any:
        return value if not isinstance(value, str) or _LIKE_A_NAME.fullmatch(value) else self.filler.text(value)

    def _string(self, text: str, name: str) -> str:
        if name in _KEPT and _LIKE_A_NAME.fullmatch(text):
            return text
        if name == "encrypted_content":
            return self.sealed(text)
        if text.startswith("data:") and "," in text[:100]:
            head, comma, rest = text.partition(",")
            return head + comma + self.filler.text(rest)
        return self.filler.text(text)

    def sealed(self, text: str) -> str:
        """Reasoning as it travels through a client: our own is opened and sealed again, another's is filled."""
        if "reasoning" in self.keep:
            return text
        if text.startswith(PREFIX):
            try:
                parts = orjson.loads(base64.urlsafe_b64decode(text.removeprefix(PREFIX)))
                return seal([{**part, "text": self.filler.text(part["text"])} for part in parts["content"]])
            except (binascii.Error, ValueError, KeyError, TypeError):
                pass
        return self.filler.text(text)

    def agent(self, agent: str) -> str:
        """The program and its version, without the machine."""
        return agent.split(" ", 1)[0]
