"""Arguments that stand between tags, as a JSON object: which are strings is what the tool's schema says."""

import json
from collections.abc import Mapping
from typing import Any

from attrs import define

N_DEEP = 8
"""References and alternatives in a schema that are followed; ours."""

_WORDS = {"True": "true", "False": "false", "None": "null"}
"""What templates that write Python's words teach their models."""


def types_of(schema: object, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """JSON types that a value may have; empty where the schema does not say."""
    if not isinstance(schema, dict) or depth > N_DEEP:
        return frozenset()
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        found: Any = root
        for step in reference[2:].split("/"):
            found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        return types_of(found, root, depth + 1)
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset((named,))
    if isinstance(named, list):
        return frozenset(each for each in named if isinstance(each, str))
    values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema["const"]] if "const" in schema else []
    if values:
        return frozenset("string" if isinstance(value, str) else "other" for value in values)
    several = [types_of(each, root, depth + 1) for key in ("anyOf", "oneOf") for each in _list(schema.get(key))]
    return frozenset().union(*several) if several and all(several) else frozenset()


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


@define
class TaggedArguments:
    """Feed it keys and values as they come; it gives the JSON of the object piece by piece.

    Text of a value that is a string is passed on at once. Any other value has to be whole first: JSON stays as it is,
    and what is no JSON becomes a string, for the client to judge.

    Args:
        schema: of the tool's parameters; an empty one if it is not known.
    """

    schema: Mapping[str, Any]
    _is_first: bool = True
    _is_string: bool = False
    _types: frozenset[str] = frozenset()
    _held: str = ""

    def key(self, key: str) -> str:
        properties = self.schema.get("properties")
        known = properties.get(key) if isinstance(properties, dict) else None
        self._types = types_of(known, self.schema)
        self._is_string, self._held = self._types == {"string"}, ""
        before, self._is_first = "{" if self._is_first else ", ", False
        return f"{before}{_quoted(key)}: " + ('"' if self._is_string else "")

    def value(self, text: str) -> str:
        if self._is_string:
            return _quoted(text)[1:-1]
        self._held += text
        return ""

    def value_end(self) -> str:
        return '"' if self._is_string else self._whole()

    def cut(self) -> str:
        """The value ends in its midst: what has come of it."""
        return self._held

    def end(self) -> str:
        return "{}" if self._is_first else "}"

    def _whole(self) -> str:
        text = self._held.strip()
        if text in _WORDS and "string" not in self._types:
            text = _WORDS[text]
        elif text == "None" and "null" in self._types:
            text = "null"
        try:
            value = json.loads(text, parse_constant=_refuse)
        except (ValueError, RecursionError):
            return _quoted(self._held)
        if "string" in self._types and not (value is None and "null" in self._types):
            return _quoted(self._held)
        return text


def _refuse(word: str) -> None:
    raise ValueError(word)  # NaN and Infinity are no JSON
