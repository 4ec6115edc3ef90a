"""Events and effects as JSON values, with every big value held once, in a blob.

A value of ``BLOB_BYTES`` or more, encoded, is replaced by ``{"$blob": NAME}``. That is done at fixed places and
never deeper: an object's own fields, the fields of its ``response``, and the elements of an ``input``, ``output``
or ``items`` array in either. So what a turn costs is a few C-speed passes over its bytes, a repeated value is
found again by its hash, and somebody's own ``{"$blob": ...}`` at such a place is told apart by being a blob itself.

The Response objects of big server events repeat each other: each is ``{"$like": NAME, ...}`` with the fields only in
which it differs from the first of the recording, which is a blob, big values in it replaced as above.

The ``input`` of a request that begins as an earlier one is a blob too: the name of that one, and what is new. What the
server events of one line say again is said once; see ``repeats``.
"""

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import cattrs
import orjson
from attrs import frozen

from turntape.core.seam import ClientText, Effect, Event, Increment, Send, StartSample

from .histories import MOST_ELEMENTS, Histories
from .repeats import EACH, MARKS, SAME, Once, each, is_mark, same, texts_again

BLOB_BYTES = 1024
MAX_JSON_PER_CHARACTER = 6  # "\u0000"
REFERENCE, LIKE = "$blob", "$like"
PLAIN = frozenset({str, int, float, bool, type(None)})
"""Types of values that refer to nothing."""
LISTS = frozenset({"input", "output", "items"})

BY_NAME: dict[str, type[Any]] = {cls.__name__: cls for cls in (*Event.__args__, *Increment.__args__)}


def digest(encoded: bytes, size: int = 16) -> str:
    """Hex name of some bytes. ``size`` in bytes: 16 where a value is filed under it, 8 where it only checks."""
    return hashlib.blake2b(encoded, digest_size=size).hexdigest()


def encode(value: Any) -> bytes:
    """``value`` as compact JSON; lone surrogates and deep nesting, which orjson refuses, by the standard library."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def decode(encoded: bytes) -> Any:
    """The inverse of ``encode``. Raises ``ValueError``."""
    try:
        return orjson.loads(encoded)
    except orjson.JSONDecodeError:
        return json.loads(encoded)


def refers(value: Any) -> bool:
    """Whether ``value`` says by a key of its own that it stands for another."""
    return isinstance(value, dict) and (REFERENCE in value or LIKE in value)


def _is_response(value: Any) -> bool:
    return isinstance(value, dict) and value.get("object") == "response" and not refers(value)


@frozen
class _FirstResponse:
    """The Response object that others are written by: its blob, and each of its fields, encoded."""

    name: str
    fields: dict[str, bytes]


class Packer:
    """Makes rows of events and effects.

    Attributes:
        new: encoded values that were replaced since somebody last took them away, by name.
        new_arrays: the same of arrays that others may go on from, each as its line has it.
    """

    def __init__(self) -> None:
        self.new: dict[str, bytes] = {}
        self.new_arrays: dict[str, bytes] = {}
        self._histories = Histories()
        self._first: _FirstResponse | None = None

    def event(self, event: Event) -> dict[str, Any]:
        return self._packed(event)

    def effects(self, effects: Sequence[Effect]) -> list[dict[str, Any]]:
        """All that one event led to."""
        once = Once(BLOB_BYTES)
        return [
            {"type": "Send", "data": [*map(self._sent, once.events(effect.data))]}
            if type(effect) is Send
            else self._packed(effect)
            for effect in effects
        ]

    def _packed(self, value: Any) -> dict[str, Any]:
        token = _PACKER.set(self)
        try:
            return _tagged(value)
        finally:
            _PACKER.reset(token)

    def value(self, value: Any) -> Any:
        """Any JSON value, split at the places named above."""
        if not isinstance(value, dict) or refers(value):
            return self._leaf(value)
        return {name: self._field(name, inner) for name, inner in value.items()}

    def _field(self, name: str, value: Any) -> Any:
        if name == "response" and isinstance(value, dict) and not refers(value):
            return {inner: self._elements(inner, below) for inner, below in value.items()}
        return self._elements(name, value)

    def _elements(self, name: str, value: Any) -> Any:
        return [*map(self._leaf, value)] if name in LISTS and isinstance(value, list) else self._leaf(value)

    def _leaf(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if value is None or isinstance(value, int | float):
            return value
        encoded = encode(value)
        return self._blob(encoded) if len(encoded) >= BLOB_BYTES or refers(value) else orjson.Fragment(encoded)

    def _blob(self, encoded: bytes) -> dict[str, str]:
        name = digest(encoded)
        self.new[name] = encoded
        return {REFERENCE: name}

    def _text(self, text: str) -> Any:
        if len(text) < BLOB_BYTES // MAX_JSON_PER_CHARACTER and text.isascii():
            return text
        try:
            encoded = orjson.dumps(text)
        except orjson.JSONEncodeError:
            return self._blob(encode(text))  # a lone surrogate, which no other line can hold
        return self._blob(encoded) if len(encoded) >= BLOB_BYTES else orjson.Fragment(encoded)

    def _encoded(self, encoded: bytes) -> Any:
        """A JSON value that is bytes already."""
        if len(encoded) < BLOB_BYTES and REFERENCE.encode() not in encoded and LIKE.encode() not in encoded:
            return orjson.Fragment(encoded)
        return self.value(orjson.loads(encoded))

    def _sent(self, event: bytes | dict[str, Any]) -> Any:
        """A server event: as it was sent, or with what it says again by reference."""
        if isinstance(event, bytes):
            marked = any(mark in event for mark in MARKS)
            if len(event) < BLOB_BYTES and not marked:
                return orjson.Fragment(event)
            value = orjson.loads(event)
            if not isinstance(value, dict) or refers(value):
                return self._leaf(value)
            if marked:  # no object or array of it can be taken for a reference in a blob
                return {
                    name: self._blob(encode(inner)) if isinstance(inner, dict | list) else self._leaf(inner)
                    for name, inner in value.items()
                }
            event = value
        return {
            name: self._response(inner) if name == "response" and _is_response(inner) else self._field(name, inner)
            for name, inner in event.items()
        }

    def _response(self, response: dict[str, Any]) -> dict[str, Any]:
        """A Response object by what makes it differ from the first one."""
        packed = {name: self._elements(name, value) for name, value in response.items()}
        fields = {name: encode(value) for name, value in packed.items()}
        if self._first is None:
            if SAME.encode() in fields.get("output", b""):
                return packed  # of this line alone
            self._first = _FirstResponse(self._blob(encode(packed))[REFERENCE], fields)
        if [*fields] != [*self._first.fields]:
            return packed
        own = {name: packed[name] for name, encoded in fields.items() if encoded != self._first.fields[name]}
        return {LIKE: self._first.name, **own}

    def _client_text(self, event: ClientText) -> dict[str, Any]:
        """The JSON itself if it can be written back to the same bytes, so that it can be read and edited; else the text."""
        try:
            value = orjson.loads(event.text)
            if orjson.dumps(value) == event.text.encode():
                return {"json": self._request(value)}
            if json.dumps(value) == event.text:
                return {"spaced": self._request(value)}
        except (ValueError, TypeError, RecursionError):
            pass  # not JSON, or a kind of JSON that is not written back: lone surrogates, deep nesting
        return {"text": self._text(event.text)}

    def _request(self, value: Any) -> Any:
        packed = self.value(value)
        if isinstance(value, dict) and isinstance(packed, dict) and isinstance(items := value.get("input"), list):
            packed["input"] = self._history(items, packed["input"])
        return packed

    def _history(self, items: list[Any], packed: list[Any]) -> Any:
        """An array by an earlier one that it goes on from, if it has enough of that."""
        if len(items) > MOST_ELEMENTS:
            return packed
        encoded = [*map(encode, items)]
        if sum(map(len, encoded)) < BLOB_BYTES:
            return packed
        digests = tuple(hashlib.blake2b(element, digest_size=16).digest() for element in encoded)
        before, n = self._histories.before(digests)
        if before is None or sum(map(len, encoded[:n])) < BLOB_BYTES:
            self._histories.add("", digests, None)
            return packed
        is_whole = n == len(before.digests)
        name = before.name
        if not name or not is_whole or n < len(items):
            start = {"start": name} | ({} if is_whole else {"n": n}) if name else {}
            row = orjson.dumps({**start, "then": packed[n:] if name else packed})
            name = digest(row)
            self.new_arrays[name] = row
            self._histories.add(name, before.digests[:n] + digests[n:], before if is_whole else None)
        return {REFERENCE: name}

    def _start(self, start: StartSample) -> dict[str, Any]:
        """The conversation by its key and sizes, the settings by hash: both follow from the client texts."""
        return {
            "sample_id": start.sample_id,
            "model": self._text(start.model),
            "key": start.context.fold.key,
            "n_items": start.context.n_items,
            "n_tokens": start.context.n_tokens,
            "cached": start.cached,
            "request": digest(encode(start.request.raw), 8),
        }


_PACKER: ContextVar[Packer] = ContextVar("_PACKER")
_UNPACKER: ContextVar["Unpacker"] = ContextVar("_UNPACKER")
"""Whose blobs are at hand: a converter costs a millisecond to make, so all share one."""


def _tagged(value: Any) -> dict[str, Any]:
    return {"type": type(value).__name__, **_WRITER.unstructure(value, type(value))}


_WRITER = cattrs.Converter()
_WRITER.register_unstructure_hook(str, lambda value: _PACKER.get()._text(value))
_WRITER.register_unstructure_hook(bytes, lambda value: _PACKER.get()._encoded(value))
_WRITER.register_unstructure_hook(ClientText, lambda value: _PACKER.get()._client_text(value))
_WRITER.register_unstructure_hook(StartSample, lambda value: _PACKER.get()._start(value))
_WRITER.register_unstructure_hook_func(lambda type_: type_ == Increment, _tagged)


class MissingBlob(ValueError):
    """A value is referred to that the file does not hold."""


class Unpacker:
    """Reads the rows that a ``Packer`` made.

    Args:
        blobs: decoded values by name; may grow while rows are read.
    """

    def __init__(self, blobs: Mapping[str, Any]) -> None:
        self._blobs = blobs
        self._firsts: dict[str, dict[str, Any]] = {}

    def event(self, row: Any) -> Event:
        """Raises ``ValueError`` with what is wrong and where in ``row``."""
        token = _UNPACKER.set(self)
        try:
            event: Event = _untagged(row, Event)
        except cattrs.BaseValidationError as exc:
            raise ValueError("; ".join(cattrs.transform_error(exc, "in", _reason)[:3])) from None
        finally:
            _UNPACKER.reset(token)
        return event

    def value(self, packed: Any) -> Any:
        """The inverse of ``Packer.value``. Raises ``MissingBlob``."""
        if not isinstance(packed, dict) or REFERENCE in packed:
            return self._resolved(packed)
        return {name: inner if type(inner) in PLAIN else self._field(name, inner) for name, inner in packed.items()}

    def array(self, row: Mapping[str, Any]) -> list[Any]:
        """An array that others may go on from, by its line. Raises ``ValueError``."""
        if unknown := row.keys() - {"blob", "start", "n", "then"}:
            raise ValueError(f"{min(unknown)!r} is not part of it")
        before = self._blob(row["start"]) if "start" in row else []
        if not isinstance(before, list):
            raise MissingBlob(f"the blob {row['start']!r} is no array, so nothing can go on from it")
        n = exactly(row.get("n", len(before)), int)
        if not 0 <= n <= len(before):
            raise ValueError(f"'n' should be at most the {len(before)} elements of the array that it goes on from")
        return [*before[:n], *map(self._resolved, exactly(row["then"], list))]

    def effects(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """All effects of one line as plain JSON values. Raises ``MissingBlob``."""
        said: list[Any] = []
        return [{name: self._effect_field(name, value, said) for name, value in row.items()} for row in rows]

    def _effect_field(self, name: str, value: Any, said: list[Any]) -> Any:
        match name, value:
            case "data", list():
                n_before = len(said)
                for event in value:
                    said += self._sent(event, said)
                return said[n_before:]
            case "record", dict():
                inner = {
                    name: self._resolved(below) for name, below in value.items() if name not in ("response", "items")
                }
                return (
                    value
                    | inner
                    | {
                        "response": self.value(value.get("response")),
                        "items": [*map(self.value, value.get("items", ()))],
                    }
                )
        return self._resolved(value)

    def _sent(self, packed: Any, said: Sequence[Any]) -> list[Any]:
        """The server events that one of the file stands for.

        Args:
            said: those before it on its line.
        """
        if not isinstance(packed, dict) or REFERENCE in packed:
            return [self._resolved(packed)]
        try:
            if is_mark(packed.get("delta"), EACH):
                return each(packed)
            event = packed.copy()
            for name, inner in packed.items():
                if type(inner) not in PLAIN:
                    event[name] = self._sent_field(name, inner, said)
        except ValueError as exc:
            raise MissingBlob(str(exc)) from None
        return [event]

    def _sent_field(self, name: str, value: Any, said: Sequence[Any]) -> Any:
        if type(value) is not dict or REFERENCE in value:
            return self._field(name, value)
        if SAME in value:
            return same(value, said)
        if name in ("item", "part"):
            return texts_again(value, said)
        if name == "response" and (output := value.get("output")) and isinstance(output, list):
            items = [same(item, said) if is_mark(item, SAME) else self._resolved(item) for item in output]
            return self._field(name, value) | {"output": items}
        return self._field(name, value)

    def _resolved(self, value: Any) -> Any:
        if type(value) is not dict or REFERENCE not in value:
            return value
        return self._blob(value[REFERENCE])

    def _blob(self, name: Any) -> Any:
        if not isinstance(name, str) or name not in self._blobs:
            raise MissingBlob(f"the blob {name!r} is missing; it should stand before its first use")
        return self._blobs[name]

    def _like(self, name: Any) -> dict[str, Any]:
        """The Response object that others are written by."""
        first = self._blob(name)
        if (known := self._firsts.get(name)) is not None:
            return known
        if not isinstance(first, dict):
            raise MissingBlob(f"the blob {name!r} is no object, so nothing can be like it")
        self._firsts[name] = resolved = {inner: self._elements(inner, below) for inner, below in first.items()}
        return resolved

    def _field(self, name: str, value: Any) -> Any:
        if name == "response" and isinstance(value, dict) and REFERENCE not in value:
            own = {
                inner: below if type(below) in PLAIN else self._elements(inner, below)
                for inner, below in value.items()
                if inner != LIKE
            }
            return self._like(value[LIKE]) | own if LIKE in value else own
        return self._elements(name, value)

    def _elements(self, name: str, value: Any) -> Any:
        return [*map(self._resolved, value)] if name in LISTS and isinstance(value, list) else self._resolved(value)

    def _client_text(self, row: dict[str, Any]) -> ClientText:
        match row:
            case {"json": value}:
                return ClientText(orjson.dumps(self.value(value)).decode())
            case {"spaced": value}:
                return ClientText(json.dumps(self.value(value)))
            case {"text": value}:
                return ClientText(exactly(self._resolved(value), str))
        raise ValueError("a ClientText holds 'json', 'spaced' or 'text'")


def _untagged(row: Any, type_: Any) -> Any:
    cls = BY_NAME.get(str(row.get("type"))) if isinstance(row, dict) else None
    if cls is None or cls not in type_.__args__:
        raise ValueError(f"expected an object whose 'type' is one of {', '.join(c.__name__ for c in type_.__args__)}")
    return _READER.structure({name: value for name, value in row.items() if name != "type"}, cls)


_READER = cattrs.Converter(forbid_extra_keys=True)
for _primitive in (bool, int):
    _READER.register_structure_hook(_primitive, lambda value, type_: exactly(value, type_))
_READER.register_structure_hook(float, lambda value, _: finite(value))
_READER.register_structure_hook(str, lambda value, type_: exactly(_UNPACKER.get()._resolved(value), type_))
_READER.register_structure_hook(bytes, lambda value, _: orjson.dumps(_UNPACKER.get().value(value)))
_READER.register_structure_hook(ClientText, lambda value, _: _UNPACKER.get()._client_text(value))
_READER.register_structure_hook_func(lambda type_: type_ == Increment, _untagged)


def exactly(value: Any, type_: type) -> Any:
    if type(value) is not type_:
        raise ValueError(f"expected {type_.__name__}, got {type(value).__name__}")
    return value


def _reason(exc: BaseException, type_: type[Any] | None) -> str:
    return str(exc) if type(exc) in (ValueError, MissingBlob) else cattrs.v.format_exception(exc, type_)


def finite(value: Any) -> float:
    """``value``, if it is a number that a session can reckon with. Raises ``ValueError``: Python reads ``NaN`` and ``1e999`` too."""
    if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
        raise ValueError(f"expected a finite number, got {value if type(value) is float else type(value).__name__}")
    return float(value)
