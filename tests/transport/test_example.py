"""The smallest value of a schema is one that the schema accepts."""

from typing import Any

import pytest

from turntape.transport.backends.example import UnusableSchema, encoded_example, example

TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "required": ["name", "children", "next"],
        }
    },
    "$ref": "#/$defs/node",
}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string"}, ""),
        ({"type": "string", "minLength": 3}, "xxx"),
        ({"type": "string", "format": "date"}, "2000-01-01"),
        ({"type": "boolean"}, False),
        ({"type": "null"}, None),
        ({"type": "integer"}, 0),
        ({"type": "integer", "minimum": 3}, 3),
        ({"type": "integer", "exclusiveMinimum": 3}, 4),
        ({"type": "integer", "minimum": 3, "multipleOf": 5}, 5),
        ({"type": "integer", "maximum": -3}, -3),
        ({"type": "integer", "exclusiveMaximum": -3}, -4),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, 0.5),
        ({"type": "number", "minimum": 0.5}, 0.5),
        ({"type": "integer", "minimum": 0.5}, 1),
        ({"enum": ["b", "a"]}, "b"),
        ({"const": [1]}, [1]),
        ({"type": ["string", "null"]}, None),
        ({"type": "array", "items": {"type": "integer"}}, []),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, [0, 0]),
        ({"type": "array", "prefixItems": [{"type": "integer"}], "items": {"const": "x"}, "minItems": 2}, [0, "x"]),
        ({"type": "object", "properties": {"a": {"type": "string"}, "b": {}}, "required": ["a"]}, {"a": ""}),
        ({"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"a": 0}),
        ({"anyOf": [{"type": "integer", "minimum": 7}, {"type": "string"}]}, 7),
        ({"oneOf": [{"type": "string"}, {"type": "null"}]}, None),
        (
            {
                "allOf": [
                    {"properties": {"a": {"const": 1}}, "required": ["a"]},
                    {"properties": {"b": {"const": 2}}, "required": ["b"]},
                ]
            },
            {"a": 1, "b": 2},
        ),
        (TREE, {"name": "", "children": [], "next": None}),
        (True, ""),
        ({}, ""),
        (None, ""),
    ],
)
def test_the_least_value_that_fits(schema: Any, value: Any) -> None:
    """Types, ranges, lengths, alternatives, references and required properties are kept."""
    found = example(schema)
    assert found == value
    assert type(found) is type(value)


def test_a_schema_that_needs_itself_ends() -> None:
    """A schema without any finite value, or with a reference to itself, gives something and does not run for ever."""
    endless = {"type": "object", "properties": {"x": {"$ref": "#"}}, "required": ["x"]}
    assert isinstance(example(endless), dict)
    assert example({"$ref": "#"}) == ""
    assert example({"$ref": "#/absent"}) == ""


TWICE = {"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}, "required": ["a", "b"]}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "minItems": 10**9},
        {"type": "string", "minLength": 10**9},
        TWICE,  # 2 to the power of MAX_DEPTH values
        {"allOf": [{"properties": {str(n): {}}} for n in range(1000)]},
    ],
)
def test_a_schema_cannot_ask_for_without_end(schema: Any) -> None:
    """A few lines of schema take neither the server's memory nor its time: they are refused with the bound."""
    with pytest.raises(UnusableSchema, match="more than 100000"):
        example(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": "x", "required": ["a"]},
        {"type": "object", "required": 7},
        {"type": "object", "required": [{}]},
        {"type": "array", "prefixItems": 1},
        {"type": "array", "minItems": "x"},
        {"type": "array", "minItems": 1e308},
        {"type": "integer", "minimum": "3"},
        {"type": "string", "minLength": "x"},
        {"type": "object", "required": [1]},
        {"const": 1 << 64},
    ],
)
def test_what_is_no_schema_is_refused(schema: Any) -> None:
    """A keyword of the wrong kind, or a value that JSON cannot hold, is the client's mistake and not the server's."""
    with pytest.raises(UnusableSchema, match=r"wrong kind|more than|as JSON"):
        encoded_example(schema)
