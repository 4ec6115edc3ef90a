"""gpt-oss conversations as token ids: each item is encoded once in its life, and what the model said is never encoded."""

import time
from collections.abc import Callable
from itertools import chain
from weakref import WeakKeyDictionary

from attrs import define, evolve, field, frozen

from turntape.core.canonical import Item
from turntape.core.context import Context
from turntape.core.harmony import ANALYSIS, COMMENTARY, FINAL, STOPS, Function, Harmony
from turntape.core.reasoning import reasoning_text
from turntape.core.rendering import Segment, Tokenizer
from turntape.core.seam import StartSample
from turntape.core.tools import Tool
from turntape.core.wire import ResponseCreate

from .chat_tools import ToolKey, ToolNames, key_of
from .tokens_base import Prompt, text_of
from .tokens_choice import CUSTOM_PARAMETERS, Choice, custom_arguments, custom_description
from .tokens_shown import Shown
from .tokens_speech import HarmonySpeech
from .tokens_spoken import Takes

N_HEADS = 64
"""Beginnings of prompts that are kept: instructions and tools are the same from turn to turn."""

N_OFFERS, MAX_OFFER = 8, 1 << 20
"""Arrays of tools whose functions are kept, and the characters that each may have; core recognises smaller ones only."""


@frozen(eq=False)
class Rendered:
    """A context as token ids.

    Attributes:
        date: of the conversation's first request. It is in the first line of every prompt, so it must not change.
        open_calls: function names of the calls that wait for an output.
    """

    shown: Shown
    date: str
    names: ToolNames = field(repr=False)
    open_calls: dict[str, str] = field(repr=False)


@frozen(eq=False)
class Offered:
    """The tools of a request, as the model is shown them.

    Attributes:
        given: with those that a later definition replaces.
        names: what they are called in a conversation that begins with them.
        key: names the functions by what is shown of them.
    """

    given: tuple[Tool, ...]
    tools: tuple[Tool, ...]
    names: ToolNames
    functions: tuple[Function, ...]
    key: tuple[tuple[str, str, str], ...]

    @classmethod
    def of(cls, given: tuple[Tool, ...], names: ToolNames) -> "Offered":
        tools = tuple({key_of(tool): tool for tool in given}.values())
        names = names.including(map(key_of, tools))
        functions = tuple(_function(tool, names) for tool in tools)
        return cls(
            given, tools, names, functions, tuple((f.name, f.description, repr(f.parameters)) for f in functions)
        )

    def names_after(self, names: ToolNames) -> ToolNames:
        """The names of a conversation that had ``names``."""
        if names is self.names or not names.wire:
            return self.names
        return names.including(map(key_of, self.tools))

    def in_conversation(self, names: ToolNames) -> "Offered":
        """The same where the conversation's names are ``names``, which include these tools'."""
        return self if names is self.names or names == self.names else Offered.of(self.given, names)


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


@define(eq=False)
class HarmonyRenderer:
    """Renders contexts for gpt-oss, and keeps the result as long as they live.

    Args:
        today: the date that a new conversation begins with, YYYY-MM-DD.
        keeps: False renders conversation and tools anew for each request, for measuring only. Ids that were sampled are
            kept all the same: made again from their text they might be others.

    Attributes:
        n_left_out: tokens of reasoning that the latest prompt did without, since their turn has ended. A server has to
            prefill again what stands behind the first of them, once for each turn of the user.
    """

    tokenizer: Tokenizer = field(repr=False)
    new_call_id: Callable[[], str] = field(repr=False)
    today: Callable[[], str] = field(default=_today, repr=False)
    keeps: bool = True
    name: str = "harmony"
    notes: tuple[str, ...] = (
        "Reasoning is left out of the prompt once its turn has ended, so a user's next message prefills that turn again.",
    )
    n_left_out: int = 0
    harmony: Harmony = field(init=False, repr=False)
    takes: Takes = field(factory=Takes, init=False, repr=False)
    _kept: WeakKeyDictionary[Context, Rendered] = field(factory=WeakKeyDictionary, init=False, repr=False)
    _offers: dict[int, Offered] = field(factory=dict, init=False, repr=False)
    _heads: dict[object, Segment] = field(factory=dict, init=False, repr=False)
    _opening: Segment = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.harmony = Harmony(self.tokenizer)
        self._opening = Segment.of(self.harmony.prompt())

    @property
    def n_encoded(self) -> int:
        return self.harmony.n_encoded

    async def prompt(self, start: StartSample) -> Prompt:
        if not self.keeps:
            self._kept.clear()
            self._heads.clear()
            self._offers.clear()
        offered = self._offered(start.context.tools + start.request.callable_tools)
        rendered = self._render(start.context, offered)
        offered = offered.in_conversation(rendered.names)
        head = self._head(start.request, rendered.date, offered)
        shown, self.n_left_out = rendered.shown, rendered.shown.n_left_out
        pieces = [head.encoded, *shown.ids.pieces(), b"," + self._opening.encoded]
        n_tokens = head.n_tokens + shown.n_tokens + self._opening.n_tokens
        choice = Choice.of(start.request, offered.tools, rendered.names)
        speech = HarmonySpeech(self.harmony, rendered.names, choice, self.new_call_id, self.takes, start.context)
        return Prompt(pieces, n_tokens, speech, STOPS)

    def _offered(self, given: tuple[Tool, ...]) -> Offered:
        """Found by identity: ``callable_tools`` gives the same object for tools that are sent again."""
        known = self._offers.get(id(given))
        if known is None or known.given is not given:
            known = Offered.of(given, ToolNames())
            if sum(map(len, chain.from_iterable(known.key))) > MAX_OFFER:
                return known
            if len(self._offers) >= N_OFFERS:
                del self._offers[next(iter(self._offers))]
            self._offers[id(given)] = known
        return known

    def _head(self, request: ResponseCreate, date: str, offered: Offered) -> Segment:
        effort = request.reasoning.effort if request.reasoning is not None else None
        key = date, effort, request.instructions, offered.key
        head = self._heads.pop(key, None)
        if head is None:
            ids = self.harmony.system(date=date, effort=effort, has_functions=bool(offered.functions))
            head = Segment.of(ids + self.harmony.developer(request.instructions, offered.functions))
        self._heads[key] = head
        if len(self._heads) > N_HEADS:
            del self._heads[next(iter(self._heads))]
        return head

    def _render(self, context: Context, offered: Offered) -> Rendered:
        """O(links, and items that no earlier call has seen)."""
        new: list[Context] = []
        rendered: Rendered | None = None
        for link in context.links():
            rendered = self._kept.get(link)
            if rendered is not None:
                break
            new.append(link)
        for link in reversed(new):
            rendered = self._kept[link] = self._link(rendered, link, offered)
        assert rendered is not None
        names = offered.names_after(rendered.names)
        if names is not rendered.names:
            rendered = self._kept[context] = evolve(rendered, names=names)
        return rendered

    def _link(self, parent: Rendered | None, link: Context, offered: Offered) -> Rendered:
        names = offered.names_after(parent.names if parent is not None else ToolNames())
        open_calls = dict(parent.open_calls) if parent is not None else {}
        said = self._said_before(link)
        shown = parent.shown if parent is not None else Shown()
        for n, item in enumerate(link.items):
            if item.type in ("function_call", "custom_tool_call"):
                key = ToolKey(item.value["name"], item.value.get("namespace"), item.type == "custom_tool_call")
                name = names.of_call(key)
                if name is None:
                    names = names.including([key])
                    name = names.wire[key]
                open_calls[item.value["call_id"]] = name
            known = said[n] if n < len(said) else self.takes.recalled(item)
            shown = shown.plus(known or self._segment(item, open_calls))
            if item.closes_call:
                open_calls.pop(item.value["call_id"], None)
        date = parent.date if parent is not None else self.today()
        return Rendered(shown, date, names, open_calls)

    def _said_before(self, link: Context) -> list[Segment]:
        """Segments of the link's first items, as far as they were sampled for the context that it goes on from."""
        return self.takes.matched(link.parent, link.items) if link.parent is not None else []

    def _segment(self, item: Item, open_calls: dict[str, str]) -> Segment:
        value, harmony = item.value, self.harmony
        match item.type:
            case "message" if value["role"] == "assistant":
                channel = COMMENTARY if value.get("phase") == "commentary" else FINAL
                text = text_of(value["content"])
                return Segment.of(
                    harmony.message("assistant", text, channel=channel), "" if channel != FINAL else FINAL
                )
            case "message" if value["role"] == "user":
                return Segment.of(harmony.message("user", text_of(value["content"])))
            case "message":
                return Segment.of(harmony.developer(text_of(value["content"])))
            case "reasoning" if text := reasoning_text(item):
                return Segment.of(harmony.message("assistant", text, channel=ANALYSIS), ANALYSIS)
            case "function_call":
                return Segment.of(harmony.call(open_calls[value["call_id"]], value["arguments"]))
            case "custom_tool_call":
                return Segment.of(harmony.call(open_calls[value["call_id"]], custom_arguments(value["input"])))
            case "function_call_output" | "custom_tool_call_output":
                name = open_calls.get(value["call_id"], "unknown")
                return Segment.of(harmony.output(name, text_of(value["output"])))
        return Segment(b"", 0)  # says nothing to the model


def _function(tool: Tool, names: ToolNames) -> Function:
    """A tool as the model is shown it; a custom one is a function with one text."""
    name = names.wire[key_of(tool)]
    if not tool.custom:
        return Function(name, tool.description or "", tool.parameters)
    return Function(name, custom_description(tool), CUSTOM_PARAMETERS)
