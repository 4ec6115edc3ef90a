"""The one converter of JSON values to wire models: exact kinds, unknown fields kept, errors that say where and why.

cattrs coerces by default ("false" becomes True, null "None"). The wire does not, so every primitive
has a hook of its own. A model with a field ``raw`` gets the whole object as it came.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import attrs
import cattrs
from cattrs.gen import make_dict_structure_fn

from .errors import InvalidField, MissingField, ProtocolError

T = TypeVar("T")

MAX_ELEMENTS = 65_536
"""Of one array. Ours: real histories have some thousands of items, and each costs far more memory than its bytes."""

KINDS = {
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    dict: "an object",
    list: "an array",
    type(None): "null",
}


def kind_of(value: object) -> str:
    """What JSON calls this kind of value."""
    return KINDS.get(type(value), type(value).__name__)


class Mismatch(ValueError):
    """A value that does not fit; its text completes "Invalid value for 'x': ..."."""


def expect(value: Any, *types: type) -> Any:
    """Return ``value`` if it is exactly of one of ``types``; subclasses do not count (True is no integer)."""
    if type(value) not in types:
        raise Mismatch(f"expected {KINDS[types[-1]]}, but got {kind_of(value)} instead")
    return value


def one_of(value: Any, *choices: str) -> str:
    """Return ``value`` if it is one of these strings."""
    if expect(value, str) not in choices:
        raise Mismatch(f"expected one of {', '.join(map(repr, choices))}, but got {value[:64]!r}")
    return str(value)


converter = cattrs.Converter(prefer_attrib_converters=False)
for _primitive in (str, bool, int):
    converter.register_structure_hook(_primitive, lambda value, type_: expect(value, type_))
converter.register_structure_hook(float, lambda value, _: float(expect(value, int, float)))
converter.register_structure_hook_func(lambda type_: type_ == dict[str, Any], lambda value, _: expect(value, dict))


def _checked_sequence(type_: Any) -> Callable[[Any, Any], Any]:
    """Arrays become tuples, but a string or an object is not an array of characters or keys.

    The first bad element ends it: cattrs' own hook keeps an exception for each, a hundred times the size of the
    message that caused them.
    """
    element_type = type_.__args__[0]
    inner = converter.get_structure_hook(element_type)

    def structure(value: Any, _: Any) -> Any:
        if len(expect(value, list)) > MAX_ELEMENTS:
            raise Mismatch(f"expected at most {MAX_ELEMENTS} elements, but got {len(value)}")
        elements: list[Any] = []
        try:
            for element in value:
                elements.append(inner(element, element_type))
        except Exception as exc:  # noqa: BLE001 - whatever it is, cattrs' error tree says where
            n = len(elements)
            exc.add_note(cattrs.IterableValidationNote(f"in element {n}", n, element_type))
            raise cattrs.IterableValidationError("in an array", [exc], type_) from None
        return tuple(elements)

    return structure


converter.register_structure_hook_factory(
    lambda type_: getattr(type_, "__origin__", None) is tuple and type_.__args__[-1:] == (...,), _checked_sequence
)


def _model(cls: type[T]) -> Callable[[Any, Any], T]:
    inner = make_dict_structure_fn(cls, converter)
    keeps_raw = any(field.name == "raw" for field in attrs.fields(cls))  # type: ignore[arg-type]

    def structure(value: Any, _: Any) -> T:
        expect(value, dict)
        return inner({**value, "raw": value} if keeps_raw else value, cls)

    return structure


converter.register_structure_hook_factory(attrs.has, _model)


def structure(value: Any, type_: type[T], *, at: str = "") -> T:
    """``value`` as ``type_``.

    Args:
        at: path of ``value`` in the client's object, for errors.

    Raises:
        ProtocolError: names the first bad field in ``param``, what it holds, and what it should hold.
    """
    try:
        return converter.structure(value, type_)
    except (cattrs.BaseValidationError, Mismatch, ProtocolError) as exc:
        raise _first_error(exc, at) from None


def _first_error(exc: BaseException, path: str) -> ProtocolError:
    """The first leaf of cattrs' error tree, as an error for the client."""
    while isinstance(exc, cattrs.BaseValidationError):
        exc = exc.exceptions[0]
        for note in getattr(exc, "__notes__", ()):
            if isinstance(note, cattrs.AttributeValidationNote):
                path += f".{note.name}"
            elif isinstance(note, cattrs.IterableValidationNote):
                path += f"[{note.index}]"
    param = path.removeprefix(".")
    if isinstance(exc, ProtocolError):
        return type(exc)(exc.message, param=".".join(filter(None, (param, exc.param))))
    if isinstance(exc, KeyError):
        return MissingField(f"Missing required parameter: '{param}'.", param=param)
    return InvalidField(f"Invalid value for '{param}': {exc}.", param=param)
