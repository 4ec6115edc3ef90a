"""Models with a chat template: their own template makes the text, and only what is new becomes tokens."""

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import orjson
from attrs import define, field, frozen

from turntape.core.context import Context
from turntape.core.rendering import Segment
from turntape.core.seam import Increment, Reasoning, StartSample, Text
from turntape.core.tools import Tool
from turntape.core.wire import ResponseCreate

from .chat_dialect import Dialect
from .chat_tools import key_of
from .llama_tools import OPEN, CallReader, in_words, without_tools
from .messages import Renderer
from .think_tags import OPEN as THINK
from .think_tags import ThinkTags
from .tokens_base import Prompt, Turn
from .tokens_choice import Choice
from .tokens_source import Decoder, Source
from .tokens_spoken import N_TAKES

DIALECT = Dialect(name="template", reasoning_in="reasoning_content")


@frozen(eq=False)
class Known:
    """Text whose tokens are known: those of the text before, and of what it adds.

    Attributes:
        n_text: characters in all; ``n_tokens`` likewise.
    """

    before: "Known | None"
    text: str = field(repr=False)
    segment: Segment = field(repr=False)
    n_text: int = field(init=False)
    n_tokens: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        n_text, n_tokens = (self.before.n_text, self.before.n_tokens) if self.before is not None else (0, 0)
        object.__setattr__(self, "n_text", n_text + len(self.text))
        object.__setattr__(self, "n_tokens", n_tokens + self.segment.n_tokens)

    def links(self) -> "list[Known]":
        """Oldest first."""
        found: list[Known] = []
        link: Known | None = self
        while link is not None:
            found.append(link)
            link = link.before
        return found[::-1]

    def begins(self, text: str) -> bool:
        at = 0
        for link in self.links():
            if not text.startswith(link.text, at):
                return False
            at += len(link.text)
        return True


@define(eq=False)
class TemplateRenderer:
    """Renders contexts through the template and the tokenizer of a source.

    The template gets all messages each time and gives the whole text, for it may look at all of it; where the text goes on
    from one whose tokens are known, only the rest is turned into tokens.

    Attributes:
        n_again: tokens that were known and had to be made again, since the template changed what went before.
    """

    source: Source = field(repr=False)
    new_call_id: Callable[[], str] = field(repr=False)
    name: str = "template"
    notes: tuple[str, ...] = ()
    n_encoded: int = 0
    n_again: int = 0
    takes_tools: bool = field(init=False)
    messages: Renderer = field(factory=lambda: Renderer(DIALECT), init=False, repr=False)
    _prompts: WeakKeyDictionary[Context, Known] = field(factory=WeakKeyDictionary, init=False, repr=False)
    _said: WeakKeyDictionary[Context, list[Known]] = field(factory=WeakKeyDictionary, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.takes_tools = "tools" in self.source.template

    async def check(self) -> None:
        """See whether the template lets a prompt grow, and note it if not. Raises ``BackendError``."""
        self.notes = self.source.notes
        question = {"role": "user", "content": "One?"}
        answer = {"role": "assistant", "content": "Two."}
        first = await self.source.text([question], ())
        second = await self.source.text([question, answer, {"role": "user", "content": "Three?"}], ())
        if not second.startswith(first + "Two."):
            changed = (
                "Its chat template writes an answer in the history otherwise than the model did, so each turn turns the "
                "answer before it into tokens again, and the server reads them again."
            )
            self.notes += (changed,)
        elif "think" in self.source.template:
            thought = {**answer, "reasoning_content": "Hm-hm."}
            if "Hm-hm." not in await self.source.text([question, thought, question], ()):
                forgotten = (
                    "Its chat template leaves out what was thought before the last user's message, so such a message turns "
                    "the turn before it into tokens again, and the server reads it again."
                )
                self.notes += (forgotten,)
        if not self.takes_tools:
            self.notes += (
                "Its chat template knows no tools; they are told in words, and calls are read from the text.",
            )

    async def prompt(self, start: StartSample) -> Prompt:
        request = start.request
        tools = _offered(request, start.context.tools + request.callable_tools)
        rendered = self.messages.render(start.context, tools)
        notes = [in_words(rendered.offer)] if tools and not self.takes_tools else []
        messages = orjson.loads(b"[" + rendered.messages([request.instructions or ""], notes) + b"]")
        if self.takes_tools:
            text = await self.source.text(messages, rendered.offer.encoded)
        else:
            text = await self.source.text(without_tools(messages), ())
        known = await self._known(start.context, text)
        choice = Choice.of(request, tools, rendered.offer.names)
        begun, first = "", Turn((), choice.schema)
        if choice.must_call:
            begun = OPEN
            first = Turn(tuple(await self._tokens(begun, is_first=False)), _call_schema(choice))
        calls = CallReader(rendered.offer.names, self.new_call_id) if tools else None
        speech = TemplateSpeech(self._keeper(start.context, known), calls, begun, first.ids, self.source)
        if text.rstrip().endswith(THINK) and not begun:
            speech.thinks()
        return Prompt(
            [link.segment.encoded for link in known.links()], known.n_tokens, speech, self.source.stop_ids, first
        )

    async def _known(self, context: Context, text: str) -> Known:
        """Tokens of ``text``: those that are known, and those of the rest."""
        before: Known | None = None
        newest: Known | None = None
        for link in context.links():
            known = [*self._said.get(link, ()), *([self._prompts[link]] if link in self._prompts else [])]
            newest = newest or next(iter(known), None)
            before = next((each for each in known if each.begins(text)), None)
            if before is not None:
                break
        if newest is not None and newest is not before:
            self.n_again += newest.n_tokens - (before.n_tokens if before is not None else 0)
        if before is not None and before.n_text == len(text):
            return before
        rest = text if before is None else text[before.n_text :]
        ids = await self._tokens(rest, is_first=before is None)
        result = self._prompts[context] = Known(before, rest, Segment.of(ids))
        return result

    def _keeper(self, context: Context, prompt: Known) -> Callable[[str, Sequence[int]], None]:
        def keep(text: str, ids: Sequence[int]) -> None:
            said = Known(prompt, text, Segment.of(ids))
            self._said[context] = [said, *self._said.get(context, ())][:N_TAKES]

        return keep

    async def _tokens(self, text: str, *, is_first: bool) -> list[int]:
        if not text:
            return []
        ids = await self.source.tokens(text, is_first=is_first)
        self.n_encoded += len(ids)
        return ids


def _offered(request: ResponseCreate, tools: Sequence[Tool]) -> tuple[Tool, ...]:
    choice = request.choice
    unique = {key_of(tool): tool for tool in tools}.values()
    if choice.mode == "none":
        return ()
    return tuple(tool for tool in unique if choice.only is None or tool.name in choice.only)


def _call_schema(choice: Choice) -> dict[str, Any]:
    """Of a call to one of the allowed tools, its name first."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": schema},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for name, schema in choice.allowed.items()
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


@define(eq=False)
class TemplateSpeech:
    """See ``Speech``: reasoning between think tags, calls between tool call tags, and text."""

    _keep: Callable[[str, Sequence[int]], None] = field(repr=False)
    _calls: CallReader | None
    _begun: str
    _begun_ids: Sequence[int]
    _source: Source = field(repr=False)
    ended: bool = False
    turn: Turn | None = None
    n_reasoning: int = 0
    _tags: ThinkTags = field(factory=ThinkTags, repr=False)
    _texts: list[str] = field(factory=list)
    _ids: list[int] = field(factory=list)
    _is_end: bool = False  # the last id shows no text: it ended the turn
    _decoder: Decoder | None = field(init=False, repr=False)
    _stop_ids: frozenset[int] = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._decoder = self._source.decoder()
        self._stop_ids = frozenset(self._source.stop_ids)

    def thinks(self) -> None:
        """The prompt has opened the reasoning."""
        self._tags.feed(THINK)

    def resume(self) -> list[Increment]:
        if self._begun:
            self._tags.stop()
        return self._read([Text(self._begun)] if self._begun else [])

    def feed(self, ids: Sequence[int], text: str) -> list[Increment]:
        if self._decoder is not None:
            end = next((n for n, token in enumerate(ids) if token in self._stop_ids), len(ids))
            self.ended = self._is_end = self.ended or end < len(ids)
            text = self._decoder.feed(ids[:end])
            self._ids += ids[: end + 1]
        else:
            self._ids += ids
            if ids or text:
                self._is_end = not text
        if not text:
            return []
        self._texts.append(text)
        said = self._tags.feed(text)
        if any(isinstance(increment, Reasoning) for increment in said):
            self.n_reasoning += len(ids)
        return self._read(said)

    def end(self) -> list[Increment]:
        out = self._read(self._tags.end())
        return [*out, *self._calls.end()] if self._calls is not None else out

    def keep(self) -> None:
        sampled = self._ids[:-1] if self._is_end else self._ids
        text = "".join(self._texts)
        if self._decoder is not None and not self._decoder.says(sampled, text):
            return  # an answer that was cut within a character
        self._keep(self._begun + text, [*self._begun_ids, *sampled])

    def _read(self, said: Sequence[Increment]) -> list[Increment]:
        if self._calls is None:
            return [*said]
        out: list[Increment] = []
        for increment in said:
            out += self._calls.feed(increment.text) if isinstance(increment, Text) else [increment]
        return out
