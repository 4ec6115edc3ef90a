"""Harmony, the format of gpt-oss: messages to token ids, one closed segment per message; no I/O.

Text from outside is encoded as ordinary text, so that it cannot forge a message: ``<|end|>`` in a
file that a tool read stays six characters of prose. Source: openai/harmony, whose tokens these are.
"""

from collections.abc import Sequence
from typing import Any

from attrs import define, field, frozen

from .rendering import Tokenizer
from .typescript import type_of

START, END, MESSAGE, CHANNEL, CONSTRAIN, RETURN, CALL = 200006, 200007, 200008, 200005, 200003, 200002, 200012
END_OF_TEXT = 199999
FIRST_SPECIAL = 199998
"""Ids from here on are markers or reserved; none is text."""

STOPS = (RETURN, CALL, END_OF_TEXT)
"""Where sampling ends. ``<|end|>`` is no stop: another message of the same turn follows it."""

IDENTITY = "You are ChatGPT, a large language model trained by OpenAI."
CUTOFF = "2024-06"
EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
"""The three efforts that the model was trained with, for every name of one; anything else counts as medium."""

MAX_WORDS = 4096
"""Words of headers that are kept: roles, channels, and the names of tools."""

ANALYSIS, COMMENTARY, FINAL = "analysis", "commentary", "final"


@frozen
class Function:
    """A tool as the model is shown it: a function of the namespace ``functions``."""

    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None


@define(eq=False)
class Harmony:
    """Renders single messages.

    Attributes:
        n_encoded: tokens that the vocabulary has made so far; a turn must add those of its new text and no more.
    """

    tokenizer: Tokenizer
    n_encoded: int = 0
    _words: dict[str, list[int]] = field(factory=dict, init=False, repr=False)

    def system(self, *, date: str, effort: str | None, has_functions: bool) -> list[int]:
        """The message that says who the model is and which channels there are.

        Args:
            date: YYYY-MM-DD.
            effort: as the client wrote it; None for the model's own default, medium.
        """
        channels = f"# Valid channels: {ANALYSIS}, {COMMENTARY}, {FINAL}. Channel must be included for every message."
        if has_functions:
            channels += "\nCalls to these tools must go to the commentary channel: 'functions'."
        sections = (
            f"{IDENTITY}\nKnowledge cutoff: {CUTOFF}\nCurrent date: {date}",
            f"Reasoning: {EFFORTS.get(effort or 'medium', 'medium')}",
            channels,
        )
        return self.message("system", "\n\n".join(sections))

    def developer(self, instructions: str | None, functions: Sequence[Function] = ()) -> list[int]:
        """Instructions and the tools on offer; nothing if there are neither."""
        sections = ["# Instructions", instructions] if instructions else []
        if functions:
            sections += ["# Tools", _namespace(functions)]
        return self.message("developer", "\n\n".join(sections)) if sections else []

    def message(self, role: str, text: str, *, channel: str | None = None) -> list[int]:
        """A message of the user, or of the assistant in a channel."""
        header = [] if channel is None else [CHANNEL, *self.words(channel)]
        return [START, *self.words(role), *header, MESSAGE, *self.text(text), END]

    def call(self, name: str, arguments: str) -> list[int]:
        """The assistant's call of a function."""
        return [*self.prompt(), *self.call_header(name), *self.text(arguments), CALL]

    def output(self, name: str, text: str) -> list[int]:
        """What the function said."""
        author = self.words(f"functions.{name}", " to=assistant")
        return [START, *author, CHANNEL, *self.words(COMMENTARY), MESSAGE, *self.text(text), END]

    def call_header(self, name: str) -> list[int]:
        """What stands between the author of a call and its arguments."""
        form = [*self.words(" "), CONSTRAIN, *self.words("json")]
        return [*self.words(f" to=functions.{name}"), CHANNEL, *self.words(COMMENTARY), *form, MESSAGE]

    def prompt(self) -> list[int]:
        """What stands behind the conversation when the assistant is to speak."""
        return [START, *self.words("assistant")]

    def words(self, *words: str) -> list[int]:
        """Words of headers, each encoded for itself as the reference does it, and once only."""
        ids: list[int] = []
        for word in words:
            if word not in self._words:
                if len(self._words) >= MAX_WORDS:
                    self._words.clear()
                self._words[word] = self.text(word)
            ids += self._words[word]
        return ids

    def text(self, text: str) -> list[int]:
        """Ordinary text, which no marker can come out of."""
        ids = list(self.tokenizer.encode(text))
        self.n_encoded += len(ids)
        return ids


def _namespace(functions: Sequence[Function]) -> str:
    lines = ["## functions\n", "namespace functions {\n"]
    for function in functions:
        lines += [f"// {line}" for line in _lines(function.description)]
        if function.parameters is None:
            lines.append(f"type {function.name} = () => any;\n")
        else:
            lines.append(f"type {function.name} = (_: {type_of(function.parameters)}) => any;\n")
    return "\n".join([*lines, "} // namespace functions"])


def _lines(text: str) -> list[str]:
    """Lines as the reference splits them: at line feeds, with or without a carriage return; no last empty one."""
    *lines, last = text.split("\n")
    return [line.removesuffix("\r") for line in lines] + ([last] if last else [])
