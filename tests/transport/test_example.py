"""The smallest value of a schema is one that the schema accepts."""

from typing import Any

import pytest

from turntape.transport.backends.example import example

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
