"""JSON values one after another: a line each, over many lines as ``to_json`` writes them, or as an event stream."""

import json
import re
from collections.abc import Iterator
from typing import Any

from turntape.replay.packing import decode

from .conversations import ImportFailed, Source

_NEXT = re.compile(r"\S")
_EVENT_STREAM = re.compile(rb"\A\s*(?:event|data|id|retry)?:", re.MULTILINE)


def json_values(source: Source) -> Iterator[tuple[str, Any]]:
    """Each value and the line where it begins.

    Raises:
        ImportFailed: names the line that is not JSON. An end in the middle of a value is just the end.
    """
    if _EVENT_STREAM.match(source.content):
        yield from _of_event_stream(source)
        return
    lines = source.content.split(b"\n")
    if lines and all(map(_may_be_whole, lines[:2])):
        yield from _of_lines(source, lines)
    else:
        yield from _of_text(source)


def _may_be_whole(line: bytes) -> bool:
    try:
        decode(line)
    except (ValueError, RecursionError):
        return not line.strip()
    return True


def _of_lines(source: Source, lines: list[bytes]) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield f"line {number}", decode(line)
            except (ValueError, RecursionError):
                if number < len(lines):
                    raise ImportFailed(source.name, f"line {number}", "is not JSON.") from None


def _of_text(source: Source) -> Iterator[tuple[str, Any]]:
    try:
        text = source.content.decode()
    except UnicodeDecodeError:
        raise ImportFailed(source.name, "", "is not UTF-8 text.") from None
    decoder = json.JSONDecoder()
    n_text = len(text.rstrip())
    at, line = 0, 1
    while at < n_text:
        start = _NEXT.search(text, at).start()  # type: ignore[union-attr]  # there is one before n_text
        line += text.count("\n", at, start)
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError) as exc:
            if isinstance(exc, json.JSONDecodeError) and (exc.pos >= n_text or exc.msg.startswith("Unterminated")):
                return
            raise ImportFailed(source.name, f"line {line}", "is not JSON.") from None
        yield f"line {line}", value
        line += text.count("\n", start, end)
        at = end


def _of_event_stream(source: Source) -> Iterator[tuple[str, Any]]:
    pieces, first = list[bytes](), 0
    for number, line in enumerate([*source.content.split(b"\n"), b""], 1):
        line = line.rstrip(b"\r")
        if line.startswith(b"data:"):
            first = first if pieces else number
            pieces.append(line[5:].removeprefix(b" "))
        elif not line and pieces:
            text, pieces = b"\n".join(pieces), []
            if text.strip() == b"[DONE]":
                continue
            try:
                yield f"line {first}", decode(text)
            except (ValueError, RecursionError):
                raise ImportFailed(source.name, f"line {first}", "holds no JSON.") from None
