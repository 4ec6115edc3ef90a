"""What a recording says of its turns by itself: sessions, models and keys, found without reading the whole file."""

import re
from collections.abc import Iterator
from typing import Any

import orjson
from attrs import frozen

from .fixture import Fixture

OPEN = re.compile(rb'\{"open":(\d+),"t":[^,]+,"rules":(.*?),"in":\{"type":"Opened"')
STEP = re.compile(rb'\{"step":(\d+),')
START = re.compile(
    rb'\{"type":"StartSample","sample_id":"([^"\\]+)","model":("(?:[^"\\]|\\.)*"),"key":"([0-9a-f]{32})"'
)
ENDS = (b'"type":"Finish"', b'"type":"SampleFailed"')
"""Each turn line stands behind one of these."""


@frozen
class Asked:
    """A sample that the recording started.

    Attributes:
        key: of the conversation that it answers, before any rule.
        began: offset of its line, in bytes.
        ended: there is an answer, to the end.
    """

    session: int
    model: str
    key: str
    began: int
    ended: bool


@frozen
class Index:
    """
    Attributes:
        rules: of each session, those of the header first.
        asked: in the file's order.
    """

    rules: dict[int, tuple[Any, ...]]
    asked: tuple[Asked, ...]

    @classmethod
    def of(cls, content: bytes, name: str) -> "Index | None":
        """The index of a file, or None if it has none that can be relied on.

        A file without one, or with another, has to be read whole: it was cut off or edited, has several lanes on one
        connection, or a relay wrote it.

        Raises:
            FixtureUnreadable: its first line is not that of a fixture which this version reads.
        """
        header = Fixture.parse(content[: content.find(b"\n") + 1] or content, name=name)
        if not content.endswith(b"\n") or b'"stream_id"' in content or b'\n{"relay":' in content:
            return None
        try:
            rules = {session: (*header.rules, *own) for session, own in _opened(content)}
            asked = _asked(content)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        known = {one.session for one in asked} <= rules.keys() and any(one.ended for one in asked)
        return cls(rules, asked) if known else None

    @property
    def n_turns(self) -> int:
        """How many came to an end."""
        return sum(one.ended for one in self.asked)

    def opening(self, content: bytes) -> bytes | None:
        """The file up to where its first turn that has an end was asked for: whatever can be asked of it before
        anything else. None if there are several sessions, each of which can be begun with.
        """
        if len({one.session for one in self.asked}) > 1:
            return None
        first = next(one for one in self.asked if one.ended)
        return content[: content.index(b"\n", first.began) + 1]


def _lines(content: bytes, beginning: bytes) -> Iterator[tuple[int, int]]:
    """Where lines that begin like this begin and end."""
    at = content.find(b"\n" + beginning)
    while at >= 0:
        end = content.index(b"\n", at + 1)
        yield at + 1, end
        at = content.find(b"\n" + beginning, end)


def _opened(content: bytes) -> Iterator[tuple[int, Any]]:
    for begins, ends in _lines(content, b'{"open":'):
        opened = OPEN.match(content, begins, ends)
        if opened is None:
            raise ValueError("not as it was written")
        yield int(opened[1]), orjson.loads(opened[2])


def _asked(content: bytes) -> tuple[Asked, ...]:
    """Raises ``ValueError``, ``KeyError``, ``TypeError`` or ``AttributeError`` where a line is not as it was written, or where
    the file says that it is.
    """
    ended = {}
    for begins, ends in _lines(content, b'{"turn":'):
        row = orjson.loads(content[begins:ends])
        ended[row["sample"]] = row["turn"], row["key"], *row["at"]
    found: list[Asked] = []
    at = content.find(b'{"type":"StartSample"')
    while at >= 0:
        begins = content.rindex(b"\n", 0, at) + 1
        step, start = STEP.match(content, begins), START.match(content, at)
        if step is None or start is None:
            raise ValueError("not as it was written")
        session, key = int(step[1]), start[3].decode()
        turn = ended.pop(start[1].decode(), None)
        if turn is not None:
            last = STEP.match(content, turn[3])
            if turn[:3] != (session, key, begins) or last is None or int(last[1]) != session:
                raise ValueError("the file was edited")
        found.append(Asked(session, orjson.loads(start[2]), key, begins, turn is not None))
        at = content.find(b'{"type":"StartSample"', start.end())
    tail = content.rfind(b'\n{"turn":')
    if ended or any(content.find(end, tail) >= 0 for end in ENDS):
        raise ValueError("a turn that was not asked for, or one whose line was cut off")
    return tuple(found)
