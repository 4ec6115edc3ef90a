"""The table of model families: how each writes tool calls and reasoning, and which one a chat template belongs to."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import cattrs
from attrs import frozen

from turntape.core.structuring import Mismatch

from .dialects import exact_converter

FILE = "model_families.toml"
DEFAULT = "hermes"
"""The family of models that are told of tools in words, and of templates with no marks that are known."""

Marks = tuple[str, str]

_TOKEN = re.compile(r"<[^<>{}\s]+>|\[/?[A-Z_]+\]")


class FamilyError(ValueError):
    """The table cannot be used; the text names the family, the key and the cure."""


@frozen
class Family:
    """How one family writes. A line break at the end of a mark is written where a call is begun for the model, and may
    be missing where one is read; so may all blanks within a mark.

    Attributes:
        template: texts that stand in a template of this family, all of them.
        source: where the facts stand.
        confidence: see the table.
        section: what stands around all calls of one turn; "" for nothing.
        call: what stands around each.
        heads: what a call begins with before its arguments, ``{name}`` and ``{id}`` in place of these: the one that is
            written first, then others that are read. None where the name stands in a JSON object.
        tail: what ends a call after its arguments.
        json: how a name in a JSON object stands: one "object" between the call's marks; a "list" of objects; "bare",
            objects at the beginning of a content, with a semicolon or comma between.
        arguments: the key of the arguments in such an object, where one is begun for the model; others are read too.
        parameter: what stands around each argument, ``{key}`` in place of its name; None where arguments are JSON.
        think: what stands around reasoning.
        ids: ids that calls in the history get, ``{n}`` counting calls; "" for those that they have.
        stops: tokens that end a turn, besides those that the model's files name.
    """

    name: str
    source: str
    confidence: Literal["measured", "documented", "assumed"]
    template: tuple[str, ...] = ()
    section: Marks = ("", "")
    call: Marks = ("", "")
    heads: tuple[str, ...] = ()
    tail: str = ""
    json: Literal["", "object", "list", "bare"] = ""
    arguments: str = "arguments"
    parameter: Marks | None = None
    think: Marks = ("<think>", "</think>")
    ids: str = ""
    stops: tuple[str, ...] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that may be special tokens, which a server must not leave out of the text."""
        found = " ".join((*self.section, *self.call, *self.think, *(self.parameter or ()), *self.heads))
        return tuple(dict.fromkeys(_TOKEN.findall(found)))

    def begun(self, names: Iterable[str]) -> tuple[str, str | None]:
        """How a call to one of ``names`` is begun for the model, and the name if it stands there already."""
        opening = self.section[0] + self.call[0]
        if self.json:
            return "" if self.json == "bare" else opening, None
        first, *others = names
        if others:
            return opening + self.heads[0].partition("{name}")[0], None
        return opening + self.heads[0].replace("{name}", first).replace("{id}", "0"), first

    def schema(self, allowed: Mapping[str, Mapping[str, Any]], name: str | None) -> Mapping[str, Any] | None:
        """JSON Schema of what follows such a beginning; None if no schema can say it."""
        if not self.json:
            return None if name is None or self.parameter is not None else allowed[name]
        calls = [
            {
                "type": "object",
                "properties": {"name": {"const": each}, self.arguments: schema},
                "required": ["name", self.arguments],
                "additionalProperties": False,
            }
            for each, schema in allowed.items()
        ]
        one = calls[0] if len(calls) == 1 else {"anyOf": calls}
        return {"type": "array", "items": one, "minItems": 1, "maxItems": 1} if self.json == "list" else one

    def with_ids(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Chat messages in which calls have the ids that this family knows."""
        if not self.ids:
            return messages
        told = dict[str, str]()
        out = list[dict[str, Any]]()
        for message in messages:
            if calls := message.get("tool_calls"):
                for call in calls:
                    told[call["id"]] = self.ids.format(name=call["function"]["name"], n=len(told))
                message = {**message, "tool_calls": [{**call, "id": told[call["id"]]} for call in calls]}
            elif message["role"] == "tool":
                message = {**message, "tool_call_id": told.get(message["tool_call_id"], message["tool_call_id"])}
            out.append(message)
        return out


def read_families(text: str) -> tuple[Family, ...]:
    """The families in a TOML document. Raises ``FamilyError``."""
    try:
        value = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise FamilyError(f"not valid TOML: {exc}") from exc
    if unknown := value.keys() - {"family"}:
        raise FamilyError(f"unknown table '{min(unknown)}'; there is [[family]] only")
    return tuple(_family(n, entry) for n, entry in enumerate(value.get("family", ())))


def _family(n: int, entry: dict[str, Any]) -> Family:
    where = f"[[family]] '{entry.get('name', n + 1)}'"
    try:
        family = _converter.structure(entry, Family)
    except (cattrs.BaseValidationError, Mismatch) as exc:
        raise FamilyError("; ".join(cattrs.transform_error(exc, path=where))) from None
    if bool(family.json) == bool(family.heads):
        raise FamilyError(f"{where}: needs either 'json' or 'heads': where a call's name stands")
    if any("{name}" not in head for head in family.heads):
        raise FamilyError(f"{where}: a head without {{name}} names no tool; write {{name}} where it stands")
    if not any((*family.section, *family.call)):
        raise FamilyError(f"{where}: needs marks: 'section', 'call' or both")
    return family


def _marks(value: Any, _: Any) -> Marks:
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(each, str) for each in value):
        raise Mismatch(f"must be two strings, what begins and what ends it, not {type(value).__name__}")
    return value[0], value[1]


_converter = exact_converter()
_converter.register_structure_hook_func(lambda type_: type_ == Marks, _marks)
_converter.register_structure_hook_func(lambda type_: type_ == Marks | None, _marks)


@cache
def families() -> Mapping[str, Family]:
    """Those that are installed with this package, by name."""
    read = read_families(files(__package__).joinpath(FILE).read_text(encoding="utf-8"))
    return {family.name: family for family in read}


def family_of(template: str) -> Family:
    """The family that a chat template belongs to."""
    return next(family for family in families().values() if all(mark in template for mark in family.template))
