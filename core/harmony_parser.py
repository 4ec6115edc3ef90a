"""Sampled token ids to messages of harmony, wherever the batches are cut and whatever the model got wrong.

Models write headers that the format does not allow: two recipients, one before the channel or inside
``<|constrain|>``, no channel, no header at all. Nothing here raises: what has no header that can be
read is text for the user.
"""

import re
from collections.abc import Iterable

from attrs import define, field, frozen

from .harmony import CALL, CHANNEL, CONSTRAIN, END, END_OF_TEXT, FIRST_SPECIAL, MESSAGE, RETURN, START
from .rendering import Tokenizer

MAX_HEADER = 128
"""Ids after which a header that has not ended is text; ours: the longest real one has some 40."""

_RECIPIENT = re.compile(r"\bto=([^\s<]*)")
_MARKS = {CHANNEL: "<|channel|>", CONSTRAIN: "<|constrain|>"}
_ENDS = frozenset((END, RETURN, CALL, END_OF_TEXT))
_NOBODY = frozenset(("", "assistant", "user", "all"))


@frozen
class Header:
    """Who a message is for.

    Attributes:
        channel: "analysis", "commentary", "final", whatever else the model wrote, or "" for none.
        function: name of the function that is called, without its namespace, or None.
    """

    channel: str = ""
    function: str | None = None


@frozen
class Opened:
    """A message begins."""

    header: Header


@frozen
class Content:
    """More text of the open message."""

    text: str


@frozen
class Closed:
    """The open message is whole.

    Attributes:
        ids: everything sampled since the message before, its end included if it has one.
    """

    ids: tuple[int, ...]


ParserEvent = Opened | Content | Closed


def n_whole(text: bytes) -> int:
    """How many bytes of ``text`` there are before a UTF-8 character whose end is missing."""
    for n in range(1, min(3, len(text)) + 1):
        byte = text[-n]
        if byte >= 0xC0:
            n_needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(text) - n if n_needed > n else len(text)
        if byte < 0x80:
            break
    return len(text)


@define(eq=False)
class HarmonyParser:
    """Reads one sample, which begins after ``<|start|>assistant``.

    Attributes:
        n_analysis: ids of messages in the analysis channel, for usage.
    """

    tokenizer: Tokenizer
    n_analysis: int = 0
    _header: list[int] = field(factory=list)
    _ids: list[int] = field(factory=list)
    _is_open: bool = False
    _channel: str = ""
    _held: bytes = b""  # the beginning of a character
    _text_ids: list[int] = field(factory=list)  # ordinary ids of this batch, not decoded yet
    _out: list[ParserEvent] = field(factory=list)

    @property
    def open_ids(self) -> list[int]:
        """Everything sampled since the last message that is whole."""
        return list(self._ids)

    def feed(self, ids: Iterable[int]) -> list[ParserEvent]:
        """What the next ids say, in order."""
        for token in ids:
            if self._is_open:
                self._in_content(token)
            else:
                self._in_header(token)
        self._flush()
        return self._taken()

    def end(self) -> list[ParserEvent]:
        """Nothing more comes: the rest of what was held back."""
        if self._is_open:
            self._close()
        elif self._header:
            self._without_content()
        return self._taken()

    def _taken(self) -> list[ParserEvent]:
        out, self._out = self._out, []
        return out

    # --- header -------------------------------------------------------------------------------------

    def _in_header(self, token: int) -> None:
        self._ids.append(token)
        if token == MESSAGE:
            header, _ = self._read_header()
            self._open(header)
        elif token == START or token in _ENDS:
            self._without_content()
        elif token < FIRST_SPECIAL or token in _MARKS:
            self._header.append(token)
            if len(self._header) > MAX_HEADER:
                header, rest = self._read_header()
                self._open(header)
                if rest:
                    self._out.append(Content(rest))

    def _without_content(self) -> None:
        """A header that no content follows: what it says beyond a header's words is the content.

        The ids of one that says nothing go with the next message, so that no sampled id is lost.
        """
        header, rest = self._read_header()
        if rest or header.function is not None:
            self._open(header)
            if rest:
                self._out.append(Content(rest))
            self._close()

    def _read_header(self) -> tuple[Header, str]:
        """The header, and what stands in it that belongs in none."""
        text = self._decode_header()
        self._header = []
        before, mark, after = text.partition("<|channel|>")
        channel = ""
        if mark:
            word = re.match(r"[A-Za-z_]*?(?=to=|[^A-Za-z_]|$)", after)
            channel = word[0] if word else ""
            after = after[len(channel) :].replace("<|channel|>", " ")
        recipients = [name for name in _RECIPIENT.findall(f"{before} {after}") if name]
        rest = _RECIPIENT.sub(" ", f"{before}{after}" if not mark else f"{before} {after}")
        rest = rest.partition("<|constrain|>")[0]
        bare = re.search(r"\bfunctions\.([^\s<]+)", rest)
        if not recipients and bare and mark:
            recipients = [bare[0]]
        if mark or recipients or rest.strip() in ("assistant", ""):  # the author of a new message is no text
            rest = ""
        recipient = recipients[0] if recipients else ""
        function = None if recipient in _NOBODY else recipient.removeprefix("functions.")
        return Header(channel, function or None), rest

    def _decode_header(self) -> str:
        parts: list[str] = []
        run: list[int] = []
        for token in self._header:
            if token in _MARKS:
                parts += [self.tokenizer.decode(run).decode("utf-8", "replace"), _MARKS[token]]
                run = []
            else:
                run.append(token)
        return "".join([*parts, self.tokenizer.decode(run).decode("utf-8", "replace")])

    # --- content ------------------------------------------------------------------------------------

    def _open(self, header: Header) -> None:
        self._is_open, self._channel, self._held = True, header.channel, b""
        self._out.append(Opened(header))

    def _in_content(self, token: int) -> None:
        if token < FIRST_SPECIAL:
            self._ids.append(token)
            self._text_ids.append(token)
        elif token in _ENDS:
            self._ids.append(token)
            self._close()
        elif token in (START, CHANNEL):  # the end is missing
            self._close()
            self._in_header(token)
        else:
            self._ids.append(token)

    def _flush(self, *, final: bool = False) -> None:
        whole = self._held + self.tokenizer.decode(self._text_ids)
        n = len(whole) if final else n_whole(whole)
        text, self._held, self._text_ids = whole[:n].decode("utf-8", "replace"), whole[n:], []
        if text:
            self._out.append(Content(text))

    def _close(self) -> None:
        self._flush(final=True)
        if self._channel == "analysis":
            self.n_analysis += len(self._ids)
        self._out.append(Closed(tuple(self._ids)))
        self._ids, self._is_open = [], False
