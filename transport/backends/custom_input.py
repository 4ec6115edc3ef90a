"""The text of a custom tool's ``input``, decoded from JSON arguments while they are still coming."""

import re

import orjson

_HEAD = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_HEAD_TOKENS = ("{", '"input"', ":", '"')
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_SPECIAL = re.compile(r'["\\]')
_HEX = re.compile(r"[0-9A-Fa-f]{4}")
LONE = "\ufffd"


def _may_become_head(text: str) -> bool:
    """Whether ``text`` is the beginning of ``{"input":"``, blanks allowed between."""
    rest = text.lstrip()
    for token in _HEAD_TOKENS:
        if len(rest) < len(token):
            return token.startswith(rest)
        if not rest.startswith(token):
            return False
        rest = rest[len(token) :].lstrip()
    return True


class CustomInput:
    """Feed it arguments as they come; it gives the decoded input as far as it is certain.

    Arguments that are not an object beginning with ``input`` are kept until the end, and then read as
    well as may be: an object's ``input`` or only string, a JSON string, or else the text itself, since
    models sometimes write the free text bare. Invalid escapes stand for themselves.
    """

    def __init__(self) -> None:
        self._held = ""  # not decoded yet: an incomplete head or escape, or everything if it cannot be streamed
        self._state = "head"

    def feed(self, text: str) -> str:
        """The part of the input that is new."""
        if self._state == "closed":
            return ""
        if self._state == "string":
            return self._decode(self._held + text)
        self._held += text
        if self._state == "head":
            if match := _HEAD.match(self._held):
                self._state = "string"
                return self._decode(self._held[match.end() :])
            if not _may_become_head(self._held):
                self._state = "whole"
        return ""

    def end(self) -> str:
        """The rest: nothing more comes."""
        held, self._held = self._held, ""
        if self._state == "whole":
            return _read(held)
        return LONE if self._state == "string" and _surrogate(held, 0) else ""

    def _decode(self, text: str) -> str:
        out: list[str] = []
        at = 0
        self._held = ""
        while special := _SPECIAL.search(text, at):
            out.append(text[at : special.start()])
            at = special.start()
            if text[at] == '"':
                self._state = "closed"
                return "".join(out)
            decoded, after = _escape(text, at)
            if after == at:  # not all of it is here
                self._held = text[at:]
                return "".join(out)
            out.append(decoded)
            at = after
        out.append(text[at:])
        return "".join(out)


def _surrogate(text: str, at: int) -> int:
    r"""The code of a ``\uXXXX`` at ``at`` if it is a surrogate, else 0."""
    if text.startswith("\\u", at) and (digits := _HEX.match(text, at + 2)):
        code = int(digits[0], 16)
        return code if 0xD800 <= code <= 0xDFFF else 0
    return 0


def _escape(text: str, at: int) -> tuple[str, int]:
    """What the escape at ``at`` stands for, and where it ends; ``at`` itself if it is not whole."""
    if len(text) < at + 2:
        return "", at
    letter = text[at + 1]
    if letter != "u":
        return _ESCAPES.get(letter, letter), at + 2
    digits = _HEX.match(text, at + 2)
    if digits is None:
        whole = len(text) >= at + 6 or not re.fullmatch(r"[0-9A-Fa-f]*", text[at + 2 : at + 6])
        return ("\\u", at + 2) if whole else ("", at)
    first = _surrogate(text, at)
    if not first:
        return chr(int(digits[0], 16)), at + 6
    if first >= 0xDC00:
        return LONE, at + 6
    second = _surrogate(text, at + 6)
    if second >= 0xDC00:
        return chr(0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)), at + 12
    if len(text) < at + 12 and _may_become_escape(text[at + 6 :]):
        return "", at
    return LONE, at + 6


def _may_become_escape(text: str) -> bool:
    return re.fullmatch(r"(\\(u[0-9A-Fa-f]{0,3})?)?", text) is not None


def _read(text: str) -> str:
    """The input in arguments that could not be streamed."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        strings = [part for part in value.values() if isinstance(part, str)]
        if isinstance(value.get("input"), str):
            return str(value["input"])
        if len(strings) == 1:
            return strings[0]
        return text if value else ""
    return text
