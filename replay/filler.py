"""Texts without what they say: as long, with the same white space, and the same for the same text.

A filler follows from the place at which its text first came up in the file, not from the text: nothing of it can be
guessed from its filler but its length and where its words ended. Different texts get different fillers, as far as
their length allows.
"""

import hashlib
import re
from functools import partial

from attrs import define, field

from .packing import decode

_LETTERS = str.maketrans("0123456789abcdef", "etaoinshrdlucmfw")
_WORD = re.compile(r"\S+")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"(\s*:)?', re.DOTALL)
_ESCAPED_WORD = re.compile(r"(\\[nrt])|(?:\\u[0-9a-fA-F]{4}|\\[^nrtu]|[^\\\s])+")  # or an escaped white space
_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$.-]{0,63}")
TRIES = 32
"""For a filler that no other text has; a text of two letters may have to share one."""


@define(eq=False)
class Filler:
    """The fillers of one file."""

    _made: dict[str, str] = field(init=False, factory=dict)
    _escaped: dict[str, str] = field(init=False, factory=dict)  # by how a string is written within JSON
    _used: set[str] = field(init=False, factory=set)

    def text(self, text: str) -> str:
        """The filler of ``text``. JSON stays JSON: of an object or an array only the strings in it are filled."""
        if (known := self._made.get(text)) is None:
            known = self._made[text] = _STRING.sub(self._string, text) if _is_json(text) else self._fill(text, _WORD)
        return known

    def name(self, name: str) -> str:
        """``name``, if it can be one of a field; else its filler."""
        return name if _NAME.fullmatch(name) else self.text(name)

    def _string(self, match: re.Match[str]) -> str:
        """A string within a JSON text, quoted and escaped as it is."""
        inner, colon = match[1], match[2] or ""
        if not (colon and _NAME.fullmatch(inner)):
            made, word = (self._escaped, _ESCAPED_WORD) if "\\" in inner else (self._made, _WORD)
            if inner not in made:
                made[inner] = self._fill(inner, word)
            inner = made[inner]
        return f'"{inner}"{colon}'

    def _fill(self, text: str, word: re.Pattern[str]) -> str:
        filler = text
        for n in range(TRIES):
            seed = f"{len(self._used)}.{n}".encode()
            letters = hashlib.shake_128(seed).hexdigest(len(text) // 2 + 1).translate(_LETTERS)
            filler = word.sub(partial(_letters, letters), text)
            if filler not in self._used:
                break
        self._used.add(filler)
        return filler


def _letters(letters: str, match: re.Match[str]) -> str:
    return match[0] if match.lastindex else letters[match.start() : match.end()]


def _is_json(text: str) -> bool:
    if text.lstrip()[:1] not in ("{", "["):
        return False
    try:
        decode(text.encode())
    except (ValueError, RecursionError):
        return False
    return True


def assembled(filler: Filler, pieces: list[str]) -> list[str]:
    """The filler of a text that came in ``pieces``, in pieces of the same length."""
    whole, at, cut = filler.text("".join(pieces)), 0, list[str]()
    for piece in pieces:
        cut.append(whole[at : at + len(piece)])
        at += len(piece)
    return cut
