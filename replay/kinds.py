"""Kinds of values that differ from run to run, such as dates and uuids, and how each is known in a text."""

import re
from collections.abc import Mapping

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}"
_DAY = r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{0,6},? )?"
_NUMERIC_DATE = r"\d{4}-\d\d-\d\d|\d{4}/\d\d/\d\d|\d\d?[/.]\d\d?[/.]\d{4}"
_WRITTEN_DATE = rf"{_DAY}(?:\d\d? {_MONTH},? \d{{4}}|{_MONTH} \d\d?,? \d{{4}})"
_CLOCK = r"\d\d?:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?[AaPp]\.?[Mm]\.?)?(?: ?(?:Z|UTC|GMT|[+-]\d\d:?\d\d))?"

KINDS: Mapping[str, re.Pattern[str]] = {
    "uuid": re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"),
    "hash": re.compile(r"\b(?:[0-9a-f]{7,128}|[0-9A-F]{7,128})\b"),
    "time": re.compile(
        rf"(?<![\w:.])(?:{_DAY}{_MONTH}  ?\d\d? {_CLOCK} \d{{4}}|(?:(?:{_NUMERIC_DATE}|{_WRITTEN_DATE})(?:,? |T))?{_CLOCK})(?![\w:])"
    ),
    "date": re.compile(rf"(?<![\w/.-])(?:{_NUMERIC_DATE}|{_WRITTEN_DATE})(?![\w/-])"),
    "path": re.compile(r"""(?<![\w/.:~])(?:~?/|[A-Za-z]:\\)[^\s"'`<>|:;,()\[\]{}*?]*[^\s"'`<>|:;,()\[\]{}*?.]"""),
    "number": re.compile(r"(?<![\w.])[-+]?\d+(?:[.,]\d+)*(?:[eE][-+]?\d+)?"),
}
"""What each kind is in a text, the narrower kinds first.

``hash`` is 7 or more hexadecimal digits; ``time`` is one of day, with the date before it if there is one; ``path`` is
absolute and has no spaces; ``number`` may have digits behind a point and a power of ten, and a unit right behind it.
"""


def placeholder(kind: str) -> str:
    """What stands for every value of a kind."""
    return f"<{kind}>"


def kind_of_difference(expected: str, got: str) -> str | None:
    """The narrowest kind whose values are all that differs between two texts; numbers are not proposed: they mean something."""
    for kind, pattern in KINDS.items():
        if kind != "number" and _same(pattern, kind, expected, got):
            return kind
    return None


def _same(pattern: re.Pattern[str], kind: str, expected: str, got: str) -> bool:
    return pattern.sub(placeholder(kind), expected) == pattern.sub(placeholder(kind), got)
