"""How the lines of a relay are read: each becomes its class, short deltas by the message that they repeat."""

import contextlib
import json
from typing import Any

import orjson
from attrs import define, field

from .lines import AnswerHead, FromClient, FromUpstream, Gone, Relayed, RelayLine, Unread
from .packing import Unpacker, decode, exactly, finite

KEYS: dict[str, frozenset[str]] = {
    "relay": frozenset({"relay", "t", "wall", "transport", "method", "path", "upstream", "headers", "rules"}),
    "answer": frozenset({"answer", "t", "status", "headers"}),
    "client": frozenset({"client", "t", "json", "spaced", "text", "bytes"}),
    "up": frozenset({"up", "t", "json", "spaced", "text", "bytes"}),
    "u": frozenset({"u", "t", "d", "o"}),
    "unread": frozenset({"unread", "t", "by", "reason"}),
    "gone": frozenset({"gone", "t", "by", "code", "reason"}),
}
"""The first key of each line, which holds the number of its session, and all that the line may have."""

TRANSPORTS = ("websocket", "http")
SIDES = ("client", "upstream")


@define(eq=False)
class RelayReader:
    """Where the reading of the relayed sessions of one file has come to."""

    unpacker: Unpacker
    _last: dict[int, dict[str, Any] | None] = field(factory=dict)  # by session: its last delta in full, counted on

    def __contains__(self, session: object) -> bool:
        return session in self._last

    def read(self, kind: str, row: dict[str, Any], line: int) -> RelayLine:
        """
        Args:
            kind: one of ``KEYS``.

        Raises:
            ValueError: with what is wrong.
            KeyError: of a field that it lacks.
        """
        if unknown := row.keys() - KEYS[kind]:
            raise ValueError(f"{min(unknown)!r} is not part of it")
        session, at = exactly(row[kind], int), finite(row["t"])
        if kind == "relay":
            self._last[session] = None
            return self._relayed(row, line, session, at)
        if session not in self._last:
            raise ValueError(f"it belongs to relayed session {session}, which no line before it begins")
        match kind:
            case "answer":
                return AnswerHead(line, session, at, exactly(row["status"], int), _headers(row["headers"]))
            case "client":
                return self._client(row, line, session, at)
            case "up":
                return self._up(row, line, session, at)
            case "u":
                return self._short(row, line, session, at)
        by, reason = _one_of("by", row["by"], SIDES), exactly(row.get("reason", ""), str)
        if kind == "unread":
            return Unread(line, session, at, by, reason)
        code = row.get("code")
        return Gone(line, session, at, by, None if code is None else exactly(code, int), reason)

    def _relayed(self, row: dict[str, Any], line: int, session: int, at: float) -> Relayed:
        rules = row.get("rules", [])
        exactly(rules, list)
        return Relayed(
            line=line,
            session=session,
            at=at,
            wall=finite(row["wall"]),
            transport=_one_of("transport", row["transport"], TRANSPORTS),
            method=exactly(row["method"], str),
            path=exactly(row["path"], str),
            upstream=exactly(row["upstream"], str),
            headers=_headers(row["headers"]),
            rules=tuple(rules),
        )

    def _client(self, row: dict[str, Any], line: int, session: int, at: float) -> FromClient:
        match row:
            case {"json": value}:
                return FromClient(line, session, at, orjson.dumps(self.unpacker.value(value)).decode())
            case {"spaced": value}:
                return FromClient(line, session, at, json.dumps(self.unpacker.value(value)))
            case {"text": value}:
                return FromClient(line, session, at, exactly(self.unpacker.value(value), str))
            case {"bytes": value}:
                return FromClient(line, session, at, "", exactly(self.unpacker.value(value), str))
        raise ValueError("it should hold 'json', 'spaced', 'text' or 'bytes'")

    def _up(self, row: dict[str, Any], line: int, session: int, at: float) -> FromUpstream:
        match row:
            case {"json": value} | {"spaced": value}:
                message = self.unpacker.value(value)
            case {"text": value}:
                message = exactly(self.unpacker.value(value), str)
                with contextlib.suppress(ValueError, RecursionError):  # no JSON: it stays the text
                    message = decode(message.encode("utf-8", "surrogatepass"))
            case {"bytes": value}:
                return FromUpstream(line, session, at, None, binary=exactly(self.unpacker.value(value), str))
            case _:
                raise ValueError("it should hold 'json', 'spaced', 'text' or 'bytes'")
        if isinstance(message, dict) and str(message.get("type")).endswith(".delta"):
            self._last[session] = dict(message)
        return FromUpstream(line, session, at, message)

    def _short(self, row: dict[str, Any], line: int, session: int, at: float) -> FromUpstream:
        base = self._last[session]
        if base is None:
            raise ValueError("it shortens a delta, and its session has none before it")
        deltas, padding = _texts("d", row["d"]), row.get("o")
        obfuscations = None if padding is None else _texts("o", padding)
        if obfuscations is not None and len(obfuscations) != len(deltas):
            raise ValueError("'o' should have as many strings as 'd'")
        number = base.get("sequence_number")
        n = number + 1 if type(number) is int else None
        if n is not None:
            base["sequence_number"] = n + len(deltas) - 1
        return FromUpstream(line, session, at, base, deltas, obfuscations, n)


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ValueError(f"{name!r} should be an array of strings")
    return tuple(value)


def _headers(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ValueError("'headers' should be an object of strings")
    return value


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ValueError(f"{name!r} should be one of {', '.join(allowed)}")
    return str(value)
