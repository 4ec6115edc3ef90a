"""JSON Schemas as the TypeScript types that gpt-oss is shown, exactly as openai/harmony writes them."""

from typing import Any

import orjson

PRIMITIVES = {"number": "number", "integer": "number", "boolean": "boolean"}


def type_of(schema: Any, indent: str = "") -> str:
    """The type of a value that ``schema`` describes, descriptions as comments.

    What the reference does not know (``anyOf``, ``$ref``, ...) is ``any``, as there.
    """
    if not isinstance(schema, dict):
        return "any"
    if isinstance(variants := schema.get("oneOf"), list):
        return "".join(f"\n{indent} | {_nullable(variant, f'{indent}   ')}{_trailing(variant)}" for variant in variants)
    kind = schema.get("type")
    if isinstance(kind, list):
        names = ["number" if name == "integer" else name for name in kind if isinstance(name, str)]
        if names:
            return " | ".join(names)
    match kind:
        case "object":
            return _object(schema, indent)
        case "string":
            values = schema.get("enum")
            texts = [f'"{value}"' for value in values if isinstance(value, str)] if isinstance(values, list) else []
            return " | ".join(texts) or "string"
        case "array":
            return f"{type_of(schema['items'], indent)}[]" if "items" in schema else "Array<any>"
        case _:
            return PRIMITIVES.get(kind, "any") if isinstance(kind, str) else "any"


def _object(schema: dict[str, Any], indent: str) -> str:
    out: list[str] = []
    if (description := _text(schema, "description")) is not None:
        out.append(f"{indent}// {description}\n")
    out.append("{\n")
    properties, required = schema.get("properties"), schema.get("required")
    needed = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set[str]()
    for name, value in properties.items() if isinstance(properties, dict) else ():
        mark = "" if name in needed else "?"
        out += _property(f"{name}{mark}:", value if isinstance(value, dict) else {}, indent)
    return "".join([*out, f"{indent}}}"])


def _property(name: str, schema: dict[str, Any], indent: str) -> list[str]:
    out: list[str] = []
    description = _text(schema, "description")
    if (title := _text(schema, "title")) is not None:
        out.append(f"{indent}// {title}\n{indent}//\n")
    if schema.get("oneOf") is None and description is not None:
        out.append(f"{indent}// {description}\n")
    if isinstance(examples := schema.get("examples"), list) and examples:
        out.append(f"{indent}// Examples:\n")
        out += [f'{indent}// - "{example}"\n' for example in examples if isinstance(example, str)]
    if isinstance(variants := schema.get("oneOf"), list):
        return [*out, *_choice(name, schema, variants, indent)]
    out.append(f"{indent}{name} {_nullable(schema, f'{indent}    ')},")
    if schema.get("oneOf") is None and "default" in schema:
        out.append(f" // default: {_default(schema)}")
    return [*out, "\n"]


def _choice(name: str, schema: dict[str, Any], variants: list[Any], indent: str) -> list[str]:
    """A property with ``oneOf``: a variant per line. A description that its first variant repeats is said there."""
    out: list[str] = []
    description = _text(schema, "description")
    first = _text(variants[0], "description") if variants else None
    is_above = description is not None and description != first
    if is_above:
        out.append(f"{indent}// {description}\n")
    if "default" in schema:
        out.append(f"{indent}// default: {_default(schema)}\n")
    out.append(f"{indent}{name}\n")
    for n, variant in enumerate(variants):
        comments: list[str] = []
        told = _text(variant, "description")
        if not (n == 0 and is_above) and told is not None and told != description:
            comments.append(told)
        if isinstance(variant, dict) and "default" in variant:
            comments.append(f"default: {_default(variant)}")
        tail = f" // {' '.join(comments)}" if comments else ""
        out.append(f"{indent} | {_nullable(variant, f'{indent}   ')}{tail}\n")
    return [*out, f"{indent},\n"]


def _nullable(schema: Any, indent: str) -> str:
    text = type_of(schema, indent)
    nullable = isinstance(schema, dict) and schema.get("nullable") is True
    return f"{text} | null" if nullable and "null" not in text else text


def _trailing(schema: Any) -> str:
    comments = [] if (description := _text(schema, "description")) is None else [description]
    if isinstance(schema, dict) and "default" in schema:
        value = schema["default"]
        quoted = isinstance(value, str) and not _is_enum(schema)
        comments.append(f'default: "{value}"' if quoted else f"default: {_json(value)}")
    return f" // {' '.join(comments)}" if comments else ""


def _default(schema: dict[str, Any]) -> str:
    value = schema["default"]
    if isinstance(value, str):
        return value if _is_enum(schema) else f'"{value}"'
    return _json(value)


def _is_enum(schema: dict[str, Any]) -> bool:
    return isinstance(values := schema.get("enum"), list) and bool(values)


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _text(schema: Any, name: str) -> str | None:
    text = schema.get(name) if isinstance(schema, dict) else None
    return text if isinstance(text, str) else None
