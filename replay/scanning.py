"""Secrets in a recording that exists: where they stand, also those that no single line holds."""

import base64
import json
import re
from collections.abc import Iterator
from typing import Any

import orjson
from attrs import define, field, frozen

from turntape.core.seam import ClientText, Encrypted, Finish, Sampled, SampleFailed, ToolCall

from .fixture import Fixture
from .lines import FromClient, FromUpstream, Step
from .secrets import DEFAULT, Finding, Masker
from .shapes import MASK

BEFORE, AFTER = 32, 16
"""Characters shown around a finding."""

NEAR = 1000
"""Characters before a finding in which the key that it stands under is looked for."""

_KEY = re.compile(r'"((?:[^"\\]|\\.){1,64})":')
_NAMES = {"in": "event", "out": "effects", "d": "text", "a": "arguments", "r": "reasoning", "up": "upstream"}


@frozen
class Found:
    """One finding.

    Attributes:
        line: of the file, counted from 1; where it begins.
        last_line: where it ends.
        place: kind of line, and the key that stands before it.
        excerpt: what stands around it, every finding masked.
        certain: of a known shape, or configured; else it only looks like a secret.
    """

    line: int
    last_line: int
    kind: str
    place: str
    excerpt: str
    certain: bool


def scan(content: bytes, fixture: Fixture, masker: Masker = DEFAULT) -> list[Found]:
    """Everything in the file that ``masker`` finds, in the order of its lines.

    Args:
        content: of the file, which ``fixture`` was read from.
    """
    found = list[Found]()
    for number, line in enumerate(content.decode(errors="replace").split("\n"), 1):
        found += _in_line(line, number, masker)
    for text in _assembled(fixture):
        found += text.findings(masker)
    return sorted(found, key=lambda one: (one.line, one.last_line))


def _in_line(line: str, number: int, masker: Masker) -> Iterator[Found]:
    findings, head = masker.findings(line), _KEY.search(line)
    for finding in findings:
        before = [*_KEY.finditer(line, max(0, finding.start - NEAR), finding.start)]
        key = before[-1][1] if before else ""
        kind = _NAMES.get(head[1], head[1]) if head else "line"
        place = f"{kind}, {_NAMES.get(key, key)}" if key and key != (head and head[1]) else kind
        yield Found(number, number, finding.kind, place, _excerpt(line, finding, findings), finding.certain)


def _excerpt(text: str, shown: Finding, findings: list[Finding]) -> str:
    """``text`` around ``shown``, without any of ``findings``."""
    start, end = max(0, shown.start - BEFORE), min(len(text), shown.end + AFTER)
    parts, at = list[str](), start
    for finding in findings:
        if finding.end <= start or finding.start >= end:
            continue
        parts += text[at : max(at, finding.start)], MASK
        at = max(at, finding.end)
    parts.append(text[at:end])
    return "".join(character if character.isprintable() else " " for character in "".join(parts))


@define(eq=False)
class _Text:
    """A text that is spread over lines.

    Attributes:
        pieces: each with its line.
        place: what it is.
        whole: show also what stands in one piece: its line holds it in another form.
    """

    place: str
    pieces: list[tuple[int, str]] = field(factory=list)
    whole: bool = False

    def findings(self, masker: Masker) -> Iterator[Found]:
        text = "".join(piece for _, piece in self.pieces)
        findings = masker.findings(text)
        for finding in findings:
            first, last = self._piece(finding.start), self._piece(finding.end - 1)
            if first == last and not self.whole:
                continue  # its line has been searched
            lines = self.pieces[first][0], self.pieces[last][0]
            place = self.place if self.whole else f"{self.place}, in {last - first + 1} pieces"
            yield Found(*lines, finding.kind, place, _excerpt(text, finding, findings), finding.certain)

    def _piece(self, at: int) -> int:
        for number, (_, piece) in enumerate(self.pieces):
            if at < len(piece):
                return number
            at -= len(piece)
        raise AssertionError("a finding lies outside of its text")


def _assembled(fixture: Fixture) -> Iterator[_Text]:
    open_: dict[tuple[Any, ...], _Text] = {}
    for line in fixture.lines:
        match line:
            case Step(session=session, event=Sampled(sample_id, batch)):
                for increment in batch:
                    match increment:
                        case Finish() | ToolCall() | Encrypted():
                            yield from _ended(open_, session, sample_id)
                        case _ if (text := getattr(increment, "text", None)) is not None:
                            kind = type(increment).__name__
                            key: tuple[Any, ...] = (session, sample_id, kind, getattr(increment, "part", 0))
                            if key not in open_:
                                yield from _ended(open_, session, sample_id)
                                open_[key] = _Text(kind.lower())
                            open_[key].pieces.append((line.line, text))
            case Step(session=session, event=SampleFailed(sample_id)):
                yield from _ended(open_, session, sample_id)
            case Step(event=ClientText(text)) | FromClient(text=text) if "\\u00" in text:
                yield from _unescaped(text, line.line)
            case FromClient(binary=str(binary)) | FromUpstream(binary=str(binary)):
                yield _Text("binary message", [(line.line, _decoded(binary))], whole=True)
            case FromUpstream(session=session):
                for message in line.messages:
                    if isinstance(message, dict) and isinstance(message.get("delta"), str):
                        places = ("type", "item_id", "output_index", "content_index", "summary_index", "stream_id")
                        key = (session, *(str(message.get(place)) for place in places))
                        text = open_.setdefault(key, _Text(str(message.get("type"))))
                        text.pieces.append((line.line, message["delta"]))
    yield from open_.values()


def _ended(open_: dict[tuple[Any, ...], _Text], *head: Any) -> Iterator[_Text]:
    for key in [key for key in open_ if key[: len(head)] == head]:
        yield open_.pop(key)


def _unescaped(text: str, line: int) -> Iterator[_Text]:
    """A request in which ASCII is escaped, as it is read."""
    try:
        plain = orjson.dumps(json.loads(text)).decode()
    except (ValueError, TypeError, RecursionError):
        return
    yield _Text("request, escaped", [(line, plain)], whole=True)


def _decoded(binary: str) -> str:
    try:
        return base64.b64decode(binary).decode(errors="replace")
    except ValueError:
        return ""
