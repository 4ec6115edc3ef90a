"""The smallest value that a JSON Schema accepts: what a script says when a schema decides and it has no answer."""

import math
from typing import Any

import orjson
from attrs import define

MAX_DEPTH = 32
"""References that need themselves have no finite value; they end here. Ours."""

MAX_SIZE = 100_000
"""Values, alternatives and characters of one example. Ours: a few lines of schema can ask for gigabytes, or for ever."""

FORMATS = {
    "date": "2000-01-01",
    "date-time": "2000-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "duration": "P0D",
    "email": "a@example.com",
    "hostname": "example.com",
    "ipv4": "127.0.0.1",
    "ipv6": "::1",
    "uri": "https://example.com",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


class UnusableSchema(ValueError):
    """No example can be made of a schema; its text says why: "asks for ...", "is no ..."."""


def example(schema: Any) -> Any:
    """A value that fits ``schema``; null wherever null is allowed.

    Follows what structured outputs allow: types, enum, const, references within the document, anyOf, oneOf, allOf,
    required properties, lengths and ranges. ``pattern`` and ``not`` are passed over.

    Raises:
        UnusableSchema: it asks for more than ``MAX_SIZE``, or a keyword has a value of the wrong kind.
    """
    try:
        return _Maker(schema).example(schema, 0)
    except UnusableSchema:
        raise
    except (AttributeError, TypeError, ValueError, ArithmeticError) as exc:
        raise UnusableSchema(f"is no JSON Schema: a keyword has a value of the wrong kind ({exc})") from None


def encoded_example(schema: Any) -> str:
    """``example`` as JSON. Raises ``UnusableSchema``, also for a value that JSON cannot hold."""
    try:
        return orjson.dumps(example(schema)).decode()
    except orjson.JSONEncodeError as exc:
        raise UnusableSchema(f"asks for a value that cannot be written as JSON ({exc})") from None


@define(eq=False)
class _Maker:
    """Makes one example, within bounds.

    Attributes:
        root: the document that references are looked up in.
    """

    root: Any
    n_left: int = MAX_SIZE

    def spend(self, n: int) -> None:
        self.n_left -= n
        if self.n_left < 0:
            raise UnusableSchema(f"asks for more than {MAX_SIZE} values and characters; ask for fewer")

    def example(self, schema: Any, depth: int) -> Any:
        self.spend(1)
        if not isinstance(schema, dict):
            return ""  # true, or no schema: anything fits
        if depth > MAX_DEPTH:
            return None
        schema = self.flat(schema)
        if "const" in schema:
            return schema["const"]
        if isinstance(choices := schema.get("enum"), list) and choices:
            return None if None in choices else choices[0]
        match _type(schema):
            case "null":
                return None
            case "object":
                properties = schema.get("properties") or {}
                return {name: self.example(properties.get(name), depth + 1) for name in schema.get("required") or ()}
            case "array":
                ahead = schema.get("prefixItems") or []
                n_more = max(0, int(schema.get("minItems") or 0) - len(ahead))
                self.spend(n_more)
                return [self.example(kind, depth + 1) for kind in [*ahead, *[schema.get("items")] * n_more]]
            case "boolean":
                return False
            case "integer":
                return int(_number(schema, 1))
            case "number":
                return _number(schema, 0)
        text, n_characters = FORMATS.get(str(schema.get("format")), ""), int(schema.get("minLength") or 0)
        self.spend(n_characters)
        return text.ljust(n_characters, "x")

    def flat(self, schema: dict[str, Any]) -> dict[str, Any]:
        """``schema`` with its references and combinations replaced by one alternative."""
        for _ in range(MAX_DEPTH):
            if isinstance(schema.get("$ref"), str):
                rest = {key: value for key, value in schema.items() if key != "$ref"}
                schema = {**rest, **_resolved(schema["$ref"], self.root)}
                continue
            for key in ("anyOf", "oneOf", "allOf"):
                if isinstance(parts := schema.get(key), list) and parts:
                    rest = {name: value for name, value in schema.items() if name != key}
                    chosen = parts if key == "allOf" else [_smallest(parts)]
                    schema = self.merged([rest, *(part for part in chosen if isinstance(part, dict))])
                    break
            else:
                return schema
        return {}

    def merged(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        whole: dict[str, Any] = {}
        for part in parts:
            properties = {**(whole.get("properties") or {}), **(part.get("properties") or {})}
            required = [*(whole.get("required") or ()), *(part.get("required") or ())]
            self.spend(len(properties) + len(required))  # copied for each part
            whole = {**whole, **part}
            if properties:
                whole["properties"] = properties
            if required:
                whole["required"] = required
        return whole


def _smallest(parts: list[Any]) -> Any:
    return next((part for part in parts if isinstance(part, dict) and _type(part) == "null"), parts[0])


def _resolved(ref: str, root: Any) -> dict[str, Any]:
    found = root
    for step in ref.removeprefix("#").split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        found = found.get(step) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _type(schema: dict[str, Any]) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        return "null" if "null" in kind else str(kind[0]) if kind else ""
    if isinstance(kind, str):
        return kind
    if "properties" in schema or "required" in schema:
        return "object"
    return "array" if "items" in schema or "prefixItems" in schema else ""


def _number(schema: dict[str, Any], whole: int) -> float:
    """Zero if it is in range, else the bound that is nearest to it.

    Args:
        whole: 1 for whole numbers only.
    """
    step: float = schema.get("multipleOf") or whole
    low: float = schema.get("minimum", -math.inf)
    high: float = schema.get("maximum", math.inf)
    above: float = schema.get("exclusiveMinimum", -math.inf)
    below: float = schema.get("exclusiveMaximum", math.inf)
    if low <= 0 <= high and above < 0 < below:
        return 0
    if max(low, above) >= 0:
        value = max(low, above)
        if step:
            value = math.ceil(value / step) * step
        return value if value > above else value + (step or _between(above, min(high, below)))
    value = min(high, below)
    if step:
        value = math.floor(value / step) * step
    return value if value < below else value - (step or _between(max(low, above), below))


def _between(low: float, high: float) -> float:
    """A step from one of two bounds into their middle."""
    return 1 if math.isinf(low) or math.isinf(high) else (high - low) / 2
