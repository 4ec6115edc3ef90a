"""Models with a chat template: their own template makes the text, and only what is new becomes tokens."""

from collections.abc import Callable, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import orjson
from attrs import define, evolve, field, frozen

from turntape.core.context import Context
from turntape.core.rendering import Segment
from turntape.core.seam import Arguments, Increment, Reasoning, StartSample, Text, ToolCall
from turntape.core.tools import Tool
from turntape.core.wire import ResponseCreate

from .base import BackendError
from .call_patterns import Patterns
from .call_reader import CallReader
from .chat_dialect import Dialect
from .chat_tools import ToolNames, key_of
from .llama_tools import in_words, without_tools
from .messages import Renderer
from .model_families import DEFAULT, Family, families, family_of
from .template_variables import Variables, variables
from .think_tags import ThinkTags
from .tokens_base import Prompt, Turn
from .tokens_choice import Choice, parameters_of
from .tokens_source import Decoder, Shape, Source, Told
from .tokens_spoken import N_TAKES

DIALECT = Dialect(name="template", reasoning_in="reasoning_content")

_PROBED: Final = "look_at"
_ARGUMENTS: Final = {"key": "a b", "n": 5}
_PARAMETERS: Final = {
    "type": "object",
    "properties": {
        "key": {"type": "string", "description": "A key."},
        "n": {"type": "integer", "description": "A number."},
    },
    "required": ["key", "n"],
}
"""A call that the template is to write, to see how it does."""


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

    Args:
        told_family: the name of the model's family; "" to see it in the template.
        told_variables: what the template is told besides.

    Attributes:
        family: how the model writes calls and reasoning.
        n_again: tokens that were known and had to be made again, since the template changed what went before.
    """

    source: Source = field(repr=False)
    new_call_id: Callable[[], str] = field(repr=False)
    name: str = "template"
    notes: tuple[str, ...] = ()
    n_encoded: int = 0
    n_again: int = 0
    told_family: str = ""
    told_variables: Variables = field(factory=dict)
    takes_tools: bool = field(init=False)
    family: Family = field(init=False, repr=False)
    _stop_ids: tuple[int, ...] = field(init=False, repr=False)
    _shape: Shape = field(default=Shape(), init=False)
    messages: Renderer = field(factory=lambda: Renderer(DIALECT), init=False, repr=False)
    _prompts: WeakKeyDictionary[Context, Known] = field(factory=WeakKeyDictionary, init=False, repr=False)
    _said: WeakKeyDictionary[Context, list[Known]] = field(factory=WeakKeyDictionary, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.takes_tools = "tools" in self.source.template
        family = families()[self.told_family] if self.told_family else family_of(self.source.template)
        if not self.takes_tools:  # calls are as we tell it in words
            family = evolve(families()[DEFAULT], think=family.think, stops=family.stops)
        self.family = family
        stops = (self.source.token(stop) for stop in self.family.stops)
        self._stop_ids = tuple(dict.fromkeys([*self.source.stop_ids, *(each for each in stops if each is not None)]))

    async def check(self) -> None:
        """See whether the template lets a prompt grow, and note it if not. Raises ``BackendError``."""
        self.notes = self.source.notes
        question = {"role": "user", "content": "One?"}
        answer = {"role": "assistant", "content": "Two."}
        told = Told(self.told_variables)
        first = await self.source.text([question], (), told)
        second = await self.source.text([question, answer, {"role": "user", "content": "Three?"}], (), told)
        if not second.startswith(first + "Two."):
            changed = (
                "Its chat template writes an answer in the history otherwise than the model did, so each turn turns the "
                "answer before it into tokens again, and the server reads them again."
            )
            self.notes += (changed,)
        elif "think" in self.source.template:
            thought = {**answer, "reasoning_content": "Hm-hm."}
            if "Hm-hm." not in await self.source.text([question, thought, question], (), told):
                forgotten = (
                    "Its chat template leaves out what was thought before the last user's message, so such a message turns "
                    "the turn before it into tokens again, and the server reads it again."
                )
                self.notes += (forgotten,)
        if not self.takes_tools:
            self.notes += (
                "Its chat template knows no tools; they are told in words, and calls are read from the text.",
            )
        else:
            await self._check_calls()

    async def _check_calls(self) -> None:
        """Find the shape in which the template writes a call as the model's family does, and note it if there is none."""
        known = Told(self.told_variables)
        shapes = [Shape(text, null) for null in (False, True) for text in (True, False)]
        for shape in [Shape()] if self.source.adapts else shapes:
            try:
                before, after = await self._exchange(evolve(known, shape=shape))
            except BackendError as exc:
                if exc.status != 400:
                    raise
                continue
            n_same = next((n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(before))
            reader = CallReader(ToolNames(), lambda: "call", Patterns.of(self.family), {_PROBED: _PARAMETERS})
            read = [*reader.feed(after[n_same:]), *reader.end()]
            names = [increment.name for increment in read if isinstance(increment, ToolCall)]
            arguments = "".join(increment.text for increment in read if isinstance(increment, Arguments))
            if names == [_PROBED] and _is_json(arguments, _ARGUMENTS):
                self._shape = shape
                return
        unread = (
            f"Its chat template writes no call in the history that is read as {self.family.name} writes them: calls may be "
            "missed. Set family for its model, or use chat+URL."
        )
        self.notes += (unread,)

    async def _exchange(self, told: Told) -> tuple[str, str]:
        """Prompts with a tool, before and after it was called."""
        question = {"role": "user", "content": "One?"}
        function = {"name": _PROBED, "description": "Looks.", "parameters": _PARAMETERS}
        call: dict[str, Any] = {"id": "call_0", "type": "function"}
        call["function"] = {"name": _PROBED, "arguments": orjson.dumps(_ARGUMENTS).decode()}
        output = {"role": "tool", "tool_call_id": "call_0", "content": "Two."}
        tools = [orjson.dumps({"type": "function", "function": function})]
        called = {"role": "assistant", "content": None, "tool_calls": [call]}
        before = await self.source.text([question], tools, told)
        return before, await self.source.text(self.family.with_ids([question, called, output]), tools, told)

    async def prompt(self, start: StartSample) -> Prompt:
        request = start.request
        tools = _offered(request, start.context.tools + request.callable_tools)
        rendered = self.messages.render(start.context, tools)
        notes = [in_words(rendered.offer)] if tools and not self.takes_tools else []
        messages = orjson.loads(b"[" + rendered.messages([request.instructions or ""], notes) + b"]")
        family = self.family
        told = Told(variables(self.source.template, request, self.told_variables), self._shape)
        if self.takes_tools:
            text = await self.source.text(family.with_ids(messages), rendered.offer.encoded, told)
        else:
            text = await self.source.text(without_tools(messages), (), told)
        known = await self._known(start.context, text)
        choice = Choice.of(request, tools, rendered.offer.names)
        thinks = text.rstrip().endswith(family.think[0])
        call, schema = "", choice.schema
        if choice.must_call:
            call, name = family.begun(choice.allowed)
            schema = family.schema(choice.allowed, name)
        thought = f"{family.think[1]}\n\n" if thinks and (choice.must_call or schema is not None) else ""
        first = Turn(tuple(await self._tokens(thought + call, is_first=False)), schema)
        calls: CallReader | None = None
        if tools:
            schemas = {rendered.offer.names.wire[key_of(tool)]: parameters_of(tool) for tool in tools}
            calls = CallReader(rendered.offer.names, self.new_call_id, Patterns.of(family), schemas)
        tags = ThinkTags(*family.think)
        if thinks and not thought:
            tags.feed(family.think[0])
        keep = self._keeper(start.context, known)
        speech = TemplateSpeech(keep, calls, thought + call, call, first.ids, self.source, self._stop_ids, tags)
        ids = b",".join([link.segment.encoded for link in known.links() if link.segment.n_tokens])
        return Prompt([ids], known.n_tokens, speech, self._stop_ids, first, family.marks)

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


def _is_json(text: str, value: object) -> bool:
    try:
        return bool(orjson.loads(text) == value)
    except orjson.JSONDecodeError:
        return False


@define(eq=False)
class TemplateSpeech:
    """See ``Speech``: reasoning and calls between the marks of the model's family, and text."""

    _keep: Callable[[str, Sequence[int]], None] = field(repr=False)
    _calls: CallReader | None
    _begun: str  # by us, all of it
    _begun_call: str  # the part of it that the call begins with
    _begun_ids: Sequence[int]
    _source: Source = field(repr=False)
    _stop_ids: Sequence[int] = field(repr=False)
    _tags: ThinkTags = field(repr=False)
    ended: bool = False
    turn: Turn | None = None
    n_reasoning: int = 0
    _texts: list[str] = field(factory=list)
    _ids: list[int] = field(factory=list)
    _is_end: bool = False  # the last id shows no text: it ended the turn
    _decoder: Decoder | None = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._decoder = self._source.decoder()

    def resume(self) -> list[Increment]:
        return self._read([Text(self._begun_call)] if self._begun_call else [])

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
