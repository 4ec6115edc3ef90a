"""Reasoning that a server left in the content: what stands between ``<think>`` and ``</think>`` at its beginning."""

from turntape.core.seam import Increment, Reasoning, Text

OPEN, CLOSE = "<think>", "</think>"


class ThinkTags:
    """Feed it content as it comes; it tells reasoning and text apart, and holds back what may still be a tag.

    Only a content that begins with the tag is taken apart: later in a text it may be what the text is about.
    """

    def __init__(self, opening: str = OPEN, closing: str = CLOSE) -> None:
        self._open, self._close = opening, closing
        self._state = "start"  # then "opened", "thinking", "gap" and "text"; without a tag "text" at once
        self._held = ""

    def stop(self) -> None:
        """Reasoning comes by another way: the content is all text."""
        if self._state == "start":
            self._state = "text"

    def feed(self, text: str) -> list[Increment]:
        """What is certain by now."""
        if self._state == "text" and not self._held:
            return [Text(text)] if text else []
        self._held += text
        said: list[Increment] = []
        if self._state == "start":
            rest = self._held.lstrip()
            if rest.startswith(self._open):
                self._state, self._held = "opened", rest[len(self._open) :]
            elif not self._open.startswith(rest):
                self._state = "text"
        if self._state == "opened" and (rest := self._held.lstrip()):
            self._state, self._held = "thinking", rest
        if self._state == "thinking":
            thought, tag, rest = self._held.partition(self._close)
            n_kept = 0 if tag else _overlap(thought, self._close)
            self._held = rest if tag else thought[len(thought) - n_kept :]
            thought = thought[: len(thought) - n_kept]
            if thought:
                said.append(Reasoning(thought))
            if tag:
                self._state = "gap"
        if self._state == "gap" and (rest := self._held.lstrip()):
            self._state, self._held = "text", rest
        if self._state == "text":
            said += [Text(self._held)] if self._held else []
            self._held = ""
        return said

    def end(self) -> list[Increment]:
        """The rest: the content is over."""
        held, self._held = self._held, ""
        state, self._state = self._state, "text"
        if not held or state in ("opened", "gap"):
            return []
        return [Reasoning(held) if state == "thinking" else Text(held)]


def _overlap(text: str, tag: str) -> int:
    """Characters at the end of ``text`` that may be the beginning of ``tag``."""
    return next((n for n in range(min(len(text), len(tag) - 1), 0, -1) if tag.startswith(text[-n:])), 0)
