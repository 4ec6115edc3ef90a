"""What a reader of tool calls looks for, as regular expressions made from a family's marks."""

import re
from functools import cache

from attrs import define, field

from .model_families import Family

MAX_HEAD = 256
"""Characters in which a call must have named its tool; ours."""

MAX_KEY = 256
"""Characters of an argument's name and the tags about it; ours."""

_NAME, _ID = r"(?P<name>[\w./-]+?)", r"[\w.:/-]*?"
_KEY = r"(?P<key>[^<>\n]+?)"
_OBJECT_HEAD = (
    r'\{\s*(?:"(?:id|type)"\s*:\s*"[^"\\]*"\s*,\s*)*"name"\s*:\s*"(?P<name>[^"\\]+)"\s*'
    r'(?:,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)|(?=\}))'
)
_OBJECT_KEYS = ("name", "id", "type")
_OBJECT_TAIL = r'(?:\s*,\s*"\w+"\s*:\s*"[^"\\]*")*\s*\}'
_BEGUN = re.compile(r'[\s\[]*\{\s*"(\w*)("?)')
_NOT_BEGUN = re.compile(r"[\s\[]*(?:\{\s*)?")


def _pattern(mark: str, **places: str) -> str:
    """A regular expression for ``mark``, in which blanks may be missing or be others."""
    made = ""
    for part in re.split(r"(\s+|\{\w+\})", mark):
        if part.isspace():
            made += r"\s*"
        else:
            place = places.get(part[1:-1]) if part.startswith("{") else None
            made += place or re.escape(part)
    return made


@define(eq=False)
class Patterns:
    """What a reader looks for, made once for a family.

    Attributes:
        opens: marks that a call can begin with; ``closes`` those that end a section, ``ends`` what ends a call.
        head: from the beginning of a call to its arguments.
        tail: from the end of its arguments to the end of the call.
        max_tail: characters in which a call must end after its arguments.
        opening: what an argument in tags begins with, up to its name; "" where arguments are JSON.
        has_break: a line break behind ``key`` belongs to the tags.
        value_ends: marks that end a value.
    """

    family: Family
    opens: tuple[str, ...] = field(init=False)
    closes: tuple[str, ...] = field(init=False)
    ends: str = field(init=False)
    head: re.Pattern[str] = field(init=False)
    tail: re.Pattern[str] = field(init=False)
    max_tail: int = field(init=False)
    opening: str = field(init=False)
    has_break: bool = field(init=False)
    key: re.Pattern[str] = field(init=False)
    value_ends: tuple[str, ...] = field(init=False)

    @classmethod
    @cache
    def of(cls, family: Family) -> "Patterns":
        return cls(family)

    def __attrs_post_init__(self) -> None:
        family = self.family
        self.opens = tuple(mark for mark in (family.section[0].strip(), family.call[0].strip()) if mark)
        self.closes = tuple(mark for mark in (family.section[1].strip(),) if mark)
        self.ends = family.call[1].strip()
        opening, closing = family.parameter or ("", "")
        self.opening, self.has_break = opening.partition("{")[0], opening.endswith("\n")
        self.key = re.compile(_pattern(opening.rstrip("\n"), key=_KEY) + ("\n?" if self.has_break else ""))
        self.value_ends = tuple(dict.fromkeys((closing, closing.lstrip("\n"))))
        if family.json:
            self.head = re.compile((r"\s*\[?\s*" if family.json == "list" else r"\s*") + _OBJECT_HEAD)
            tail = _OBJECT_TAIL
        else:
            heads = [_pattern(head.strip(), name=_NAME, id=_ID) for head in family.heads]
            numbered = (head.replace("(?P<name>", f"(?P<name{n}>") for n, head in enumerate(heads))
            goes_on = rf"(?={re.escape(self.opening)}|{re.escape(self.ends)})" if self.opening else r"(?=\{)"
            self.head = re.compile(rf"\s*(?:{'|'.join(numbered)})\s*{goes_on}")
            tail = r"\s*" + _pattern(family.tail.strip()) if family.tail else ""
        self.tail = re.compile(tail + r"\s*" + re.escape(self.ends))
        self.max_tail = MAX_HEAD if family.json else len(self.ends) + len(family.tail) + 16

    def may_begin_object(self, held: str) -> bool:
        """Whether ``held`` can still become the head of a call in a JSON object."""
        if begun := _BEGUN.match(held):
            key, is_whole = begun[1], bool(begun[2])
            return key in _OBJECT_KEYS if is_whole else any(each.startswith(key) for each in _OBJECT_KEYS)
        return _NOT_BEGUN.fullmatch(held) is not None
