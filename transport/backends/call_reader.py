"""Finds tool calls in the text of a model, as its family writes them, while the text is still coming."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from attrs import define, field

from turntape.core.seam import Arguments, Increment, Text, ToolCall

from .call_patterns import MAX_HEAD, MAX_KEY, Patterns
from .call_values import TaggedArguments
from .chat_tools import ToolNames
from .custom_input import CustomInput


def _name(head: re.Match[str]) -> str:
    return next(text for text in head.groupdict().values() if text)


def _overlap(text: str, marks: tuple[str, ...]) -> int:
    """Characters at the end of ``text`` that may be the beginning of a mark."""
    longest = min(max(map(len, marks), default=1) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if any(mark.startswith(text[-n:]) for mark in marks)), 0)


def _first(text: str, marks: tuple[str, ...]) -> tuple[int, str]:
    """Where the first mark stands, the longest of those that stand there; -1 if none does."""
    found = [(text.find(mark), -len(mark), mark) for mark in marks if mark in text]
    return (min(found)[0], min(found)[2]) if found else (-1, "")


@define(eq=False)
class CallReader:
    """Finds calls in text that comes in pieces. What is no call after all stays text, marks included.

    Args:
        new_call_id: makes the id of a call.
        schemas: of the parameters of each tool, by the name that the model sees.
    """

    names: ToolNames
    new_call_id: Callable[[], str]
    patterns: Patterns
    schemas: Mapping[str, Mapping[str, Any]] = field(factory=dict)
    _state: str = field(init=False)
    _held: str = ""
    _opened: str = ""  # marks of a call whose head has not come: they are text if it does not
    _in_section: bool = False
    _skips_blanks: bool = False  # those around calls are no message
    _decoder: CustomInput | None = None
    _tagged: TaggedArguments | None = None
    _depth: int = 0
    _in_string: bool = False
    _escaped: bool = False
    _out: list[Increment] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        self._state = "start" if self.patterns.family.json == "bare" else "text"

    def feed(self, text: str) -> tuple[Increment, ...]:
        self._held += text
        while getattr(self, f"_{self._state}")():
            pass
        return self._taken()

    def end(self) -> tuple[Increment, ...]:
        """Nothing more comes: what was held back."""
        held, self._held = self._held, ""
        match self._state:
            case "start" | "text":
                self._say(held)
            case "head":
                self._say(self._opened + held)
            case "arguments" if self._decoder is not None:
                self._pass(self._decoder.end())
            case "keys":
                assert self._tagged is not None
                self._pass(self._tagged.end(), is_last=True)
                if not self.patterns.ends.startswith(held.strip()):
                    self._say(held)
            case "value":
                assert self._tagged is not None
                self._pass(self._tagged.value(held) + self._tagged.cut(), is_last=True)
            case "tail" if not self._may_be_tail(held):
                self._say(held)
            case "next" if held.strip():
                self._say(held)
        return self._taken()

    def _taken(self) -> tuple[Increment, ...]:
        out, self._out = self._out, []
        return tuple(out)

    def _say(self, text: str) -> None:
        if self._skips_blanks:
            text = text.lstrip()
        if text:
            self._skips_blanks = False
            self._out.append(Text(text))

    # Each state takes what it can from what is held, and says whether the next one may go on.

    def _start(self) -> bool:
        """The beginning of a content, where a bare object is a call."""
        rest = self._held.lstrip()
        if not rest:
            return False
        self._state = "text"
        if rest[0] == "{":
            self._open(self._held[: len(self._held) - len(rest)], rest)
        return True

    def _text(self) -> bool:
        opens, closes = self.patterns.opens, self.patterns.closes if self._in_section else ()
        at, mark = _first(self._held, opens + closes)
        if at < 0:
            kept = _overlap(self._held, opens + closes)
            said = self._held[: len(self._held) - kept]
            self._held = self._held[len(said) :]
            if self._skips_blanks and not said.strip():
                return False
            self._say(said)
            return False
        self._say(self._held[:at])
        after = self._held[at + len(mark) :]
        if mark in closes:
            self._held, self._in_section = after, False
            return True
        family = self.patterns.family
        call = family.call[0].strip()
        if mark != call and call:  # a section, whose calls have marks of their own
            if not (rest := after.lstrip()).startswith(call):
                if len(rest) < len(call) and call.startswith(rest):
                    self._held = self._held[at:]  # not all of the marks are here
                    return False
                self._say(mark)
                self._held = after
                return True
            mark, after = self._held[at:][: len(mark) + len(after) - len(rest) + len(call)], rest[len(call) :]
        self._open(mark, after)
        return True

    def _open(self, opened: str, after: str) -> None:
        self._opened, self._held, self._state = opened, after, "head"

    def _head(self) -> bool:
        patterns = self.patterns
        head = patterns.head.match(self._held)
        if head and head.end() <= MAX_HEAD and not (patterns.ends and patterns.ends in head[0]):
            self._begin(_name(head))
            rest = self._held[head.end() :]
            if patterns.family.json and rest[:1] == "}":  # a call without arguments
                self._arguments_end("{}")
            self._held = rest
            return True
        ended = patterns.ends and patterns.ends in self._held
        is_none = patterns.family.json and not patterns.may_begin_object(self._held)
        if len(self._held) > MAX_HEAD or ended or is_none:
            self._say(self._opened)
            self._state = "text"
            return True
        return False

    def _begin(self, name: str) -> None:
        key = self.names.key(name)
        self._out.append(ToolCall(self.new_call_id(), key.name, key.namespace, key.custom))
        self._decoder = CustomInput() if key.custom else None
        self._skips_blanks, self._in_section = True, bool(self.patterns.closes)
        self._depth, self._in_string, self._escaped = 0, False, False
        if self.patterns.family.parameter is not None:
            self._tagged, self._state = TaggedArguments(self.schemas.get(name, {})), "keys"
        else:
            self._state = "arguments"

    def _pass(self, arguments: str, *, is_last: bool = False) -> None:
        decoder = self._decoder
        if decoder is not None:
            arguments = decoder.feed(arguments) + (decoder.end() if is_last else "")
        if arguments:
            self._out.append(Arguments(arguments))

    def _arguments_end(self, last: str) -> None:
        self._pass(last, is_last=True)
        self._decoder, self._state = None, "tail"

    def _arguments(self) -> bool:
        end = self._object_end()
        text, self._held = (self._held, "") if end is None else (self._held[:end], self._held[end:])
        if end is None:
            self._pass(text)
            return False
        self._arguments_end(text)
        return True

    def _keys(self) -> bool:
        """Between two arguments in tags."""
        assert self._tagged is not None
        patterns, rest = self.patterns, self._held.lstrip()
        key = patterns.key.match(rest)
        if key is not None and key.end() <= MAX_KEY:
            if patterns.has_break and key.end() == len(rest):
                return False
            self._pass(self._tagged.key(key["key"]))
            self._held, self._state = rest[key.end() :], "value"
            return True
        if rest.startswith(patterns.opening) and len(rest) <= MAX_KEY:
            return False
        if any(mark.startswith(rest) and mark != rest for mark in (patterns.opening, patterns.ends)):
            return False
        self._arguments_end(self._tagged.end())  # by its mark, or by something that is no argument
        return True

    def _value(self) -> bool:
        assert self._tagged is not None
        ends = self.patterns.value_ends
        at, mark = _first(self._held, ends)
        kept = 0 if at >= 0 else _overlap(self._held, ends)
        text = self._held[:at] if at >= 0 else self._held[: len(self._held) - kept]
        if at < 0:
            self._held = self._held[len(text) :]
            self._pass(self._tagged.value(text))
            return False
        self._held, self._state = self._held[at + len(mark) :], "keys"
        self._pass(self._tagged.value(text) + self._tagged.value_end())
        return True

    def _tail(self) -> bool:
        patterns = self.patterns
        tail = patterns.tail.match(self._held)
        if tail and tail.end() <= patterns.max_tail:
            is_listed = patterns.family.json in ("list", "bare")
            self._held, self._state = self._held[tail.end() :], "next" if is_listed else "text"
            return True
        if len(self._held) > patterns.max_tail or not self._may_be_tail(self._held):
            self._state = "text"
            return True
        return False

    def _may_be_tail(self, held: str) -> bool:
        """Whether ``held`` may be the beginning of what ends a call."""
        family = self.patterns.family
        if family.json and held.lstrip().startswith(","):
            return True  # another key of the object
        wanted = ("}" if family.json else "") + family.tail + self.patterns.ends
        return "".join(wanted.split()).startswith("".join(held.split()))

    def _next(self) -> bool:
        """After an object of a list."""
        rest = self._held.lstrip()
        comma = rest[:1] if rest[:1] in (",", ";") else ""
        more = rest[len(comma) :].lstrip()
        if not more and (comma or not rest):
            return False
        if more.startswith("{"):
            self._open(comma, rest[len(comma) :])
        else:
            self._held, self._state = rest.removeprefix("]"), "text"
        return True

    def _object_end(self) -> int | None:
        """Where the object that the arguments are ends in what is held."""
        for at, c in enumerate(self._held):
            if self._escaped:
                self._escaped = False
            elif self._in_string:
                self._escaped, self._in_string = c == "\\", c != '"'
            elif c == '"':
                self._in_string = True
            elif c in "{[":
                self._depth += 1
            elif c in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return at + 1
        return None
