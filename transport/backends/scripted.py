"""A backend that plays a script: for a first try, for tests and demonstrations, and for load at any token speed."""

import hashlib
import re
import secrets
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import orjson
import trio
from attrs import asdict, define, field, frozen

from turntape.core.context import estimate_tokens
from turntape.core.seam import (
    Arguments,
    Finish,
    Increment,
    Message,
    Reasoning,
    Refusal,
    StartSample,
    Summary,
    Text,
    ToolCall,
    Usage,
)
from turntape.core.tools import Tool, echoed

from .base import BackendError, Batch
from .conversation import Conversations, Facts
from .script import (
    Cut,
    End,
    Fail,
    Hang,
    Pause,
    Rule,
    SayCall,
    SayReasoning,
    SayRefusal,
    SaySummary,
    SayText,
    Script,
    Speed,
    find_tool,
)
from .script_choice import offered_tools, said_by_schema, steps_for

MAX_BATCH = 64
"""Increments in one batch: a client that can keep up gets a fast stream in few writes."""

MIN_WAIT_S = 0.004
"""A paced stream wakes up no more often than this and brings all that is due: thousands of streams stay cheap."""

TOKEN = re.compile(r" ?\w{1,6}| ?[^\w\s]{1,4}|\s{1,16}")
"""Four or five characters of English or code, at word boundaries: about what tokenizers make of them."""

PLACEHOLDER = re.compile(r"\{(n_outputs|last_output|last_user|model)\}")
MAX_PLACEHOLDER = 2000
"""Characters of a conversation that a template may repeat."""

Control = Pause | Fail | Hang | Cut | End
TOKENS = Text | Refusal | Reasoning | Summary | Arguments
"""Increments that count as one token each; the others mark beginnings."""


@frozen
class _Take:
    """One sample, decided: what will be said, and how fast.

    Attributes:
        beats: increments and controls, made as they are needed; the last is a control.
        refusal: a step that comes before the request is accepted.
    """

    beats: Iterator[Increment | Control]
    speed: Speed
    refusal: Fail | Hang | None
    input_tokens: int
    cached_tokens: int
    max_tokens: int | None


@define(eq=False)
class ScriptedBackend:
    """A ``Backend`` that needs no model.

    Args:
        script: what to say when.
        seed: makes call ids a function of the conversation; else the script's seed, else they are random.
    """

    script: Script
    seed: str | None = None
    models: tuple[str, ...] = field(init=False)
    _conversations: Conversations = field(init=False)
    _n_played: dict[int, int] = field(factory=dict, init=False)  # by a rule's index, for those that are limited

    def __attrs_post_init__(self) -> None:
        self.models = self.script.models
        self.seed = self.script.seed if self.seed is None else self.seed
        self._conversations = Conversations(
            frozenset(text for rule in self.script.rules for text in rule.when.mentions)
        )

    @trio.as_safe_channel
    async def sample(self, start: StartSample) -> AsyncGenerator[Batch, None]:
        take = self._take(start)
        await trio.sleep(take.speed.accept_s or 0.0)
        await _control(take.refusal)
        yield ()
        rate, due = take.speed.tokens_per_s or 0.0, trio.current_time() + (take.speed.first_token_s or 0.0)
        batch, n_tokens, n_reasoned, woke = list[Increment](), 0, 0, -MIN_WAIT_S
        begun = list[Increment]()  # beginnings go out with the first token that follows
        for beat in take.beats:
            full = take.max_tokens is not None and n_tokens >= take.max_tokens
            if isinstance(beat, End) or (full and not isinstance(beat, Pause | Fail | Hang | Cut)):
                end = End("length") if not isinstance(beat, End) else beat
                counted = Usage(take.input_tokens, n_tokens, take.cached_tokens, n_reasoned)
                finish = Finish(end.reason, Usage(**{**asdict(counted), **end.usage}))
                yield (*batch, *begun, finish)
                return
            if isinstance(beat, Pause | Fail | Hang | Cut):
                if batch or begun:
                    yield (*batch, *begun)
                    batch, begun = [], []
                if isinstance(beat, Cut):
                    return
                await _control(beat)
                due = max(due, trio.current_time())
                continue
            if not isinstance(beat, TOKENS):
                begun.append(beat)
                continue
            if due > trio.current_time():
                if batch:
                    yield tuple(batch)
                    batch = []
                await trio.sleep_until(max(due, woke + MIN_WAIT_S))
                woke = trio.current_time()
            due = due + 1 / rate if rate else due
            n_tokens += 1
            n_reasoned += isinstance(beat, Reasoning | Summary)
            batch += (*begun, beat)
            begun = []
            if len(batch) >= MAX_BATCH:
                yield tuple(batch)
                batch = []

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    # --- deciding -------------------------------------------------------------------------------------

    def _take(self, start: StartSample) -> _Take:
        facts, tools = self._conversations.facts(start.context), offered_tools(start)
        rule = self._rule(start, facts, tools)
        steps = steps_for(rule.say, start.request, tools)
        first = steps[0] if steps else None
        return _Take(
            beats=self._beats(steps, start, facts, tools),
            speed=self.script.speed_of(rule, start.model),
            refusal=first if isinstance(first, Fail | Hang) and not first.started else None,
            input_tokens=_n_input(start),
            cached_tokens=start.cached,
            max_tokens=start.request.max_output_tokens,
        )

    def _rule(self, start: StartSample, facts: Facts, tools: tuple[Tool, ...]) -> Rule:
        instructions = start.request.instructions or ""
        for n, rule in enumerate(self.script.rules):
            if rule.times is not None and self._n_played.get(n, 0) >= rule.times:
                continue
            if rule.when.holds(model=start.model, instructions=instructions, facts=facts, tools=tools):
                if rule.times is not None:
                    self._n_played[n] = self._n_played.get(n, 0) + 1
                return rule
        raise BackendError(
            f"No rule of the script holds here: {facts.n_outputs} tool outputs since the user said "
            f"{facts.last_user[:80]!r}, {len(tools)} tools offered. Add a last [[rule]] without 'when'.",
            code="invalid_prompt",
            status=400,
        )

    # --- saying ---------------------------------------------------------------------------------------

    def _beats(
        self, steps: tuple[Any, ...], start: StartSample, facts: Facts, tools: tuple[Tool, ...]
    ) -> Iterator[Increment | Control]:
        values = {"n_outputs": str(facts.n_outputs), "model": start.model}
        values |= {"last_output": facts.last_output[:MAX_PLACEHOLDER], "last_user": facts.last_user[:MAX_PLACEHOLDER]}
        n_calls = n_parts = 0
        for step in steps:
            match step:
                case SayText(text, phase, repeat, is_json):
                    yield Message(phase)
                    filled = _filled(text, _escaped(values) if is_json else values)
                    for _ in range(repeat):
                        yield from map(Text, _tokens(filled))
                case SayRefusal(text):
                    yield from map(Refusal, _tokens(_filled(text, values)))
                case SayReasoning(text, repeat):
                    for _ in range(repeat):
                        yield from map(Reasoning, _tokens(_filled(text, values)))
                case SaySummary(parts):
                    for text in parts:
                        for token in _tokens(_filled(text, values)):
                            yield Summary(token, n_parts)
                        n_parts += 1
                case SayCall():
                    yield from self._call(step, start, tools, values, n_calls)
                    n_calls += 1
                case _:
                    yield step
                    if not isinstance(step, Pause):
                        return
        yield End()

    def _call(
        self, step: SayCall, start: StartSample, tools: tuple[Tool, ...], values: dict[str, str], number: int
    ) -> Iterator[Increment]:
        tool = find_tool(step.tool, tools)
        if tool is None:  # a call of what nobody offers, as a model may make it too
            kind, _, name = step.tool.rpartition(":")
            tool = Tool(name, custom=kind == "custom")
        call_id = step.call_id or self._call_id(start, number)
        yield ToolCall(call_id, tool.name, tool.namespace, tool.custom)
        yield from map(Arguments, _tokens(_arguments(step.arguments, tool, values)))

    def _call_id(self, start: StartSample, number: int) -> str:
        if self.seed is None:
            return "call_" + secrets.token_hex(12)
        named = f"{self.seed}/{start.context.fold.key}/{number}"
        return "call_" + hashlib.blake2b(named.encode(), digest_size=12).hexdigest()


async def _control(step: Pause | Fail | Hang | None) -> None:
    match step:
        case Pause(seconds):
            await trio.sleep(seconds)
        case Hang():
            await trio.sleep_forever()
        case Fail():
            raise BackendError(
                step.message, code=step.code, status=step.status, param=step.param, retry_after=step.retry_after
            )


def _n_input(start: StartSample) -> int:
    """Tokens of the whole prompt, estimated as the session estimates them."""
    tools = orjson.dumps([echoed(tool) for tool in start.request.tools or ()])
    n_overhead = estimate_tokens(len(tools) - 2) + estimate_tokens(len(start.request.instructions or ""))
    return start.context.n_tokens + n_overhead


def _tokens(text: str) -> Iterator[str]:
    for match in TOKEN.finditer(text):
        yield match[0]


def _filled(text: str, values: dict[str, str]) -> str:
    """``text`` with its placeholders replaced. Nothing is evaluated, and other braces stay as they are."""
    return PLACEHOLDER.sub(lambda match: values[match[1]], text)


def _escaped(values: dict[str, str]) -> dict[str, str]:
    """``values`` as they may stand inside a JSON string."""
    return {key: orjson.dumps(value).decode()[1:-1] for key, value in values.items()}


def _arguments(arguments: str | dict[str, Any] | None, tool: Tool, values: dict[str, str]) -> str:
    if arguments is None:
        if tool.custom:
            return ""
        return said_by_schema(tool.parameters or {"type": "object"}, where=f"tool {tool.name[:64]!r}", param="tools")
    if isinstance(arguments, str):
        return _filled(arguments, values)
    return orjson.dumps(_filled_deep(arguments, values)).decode()


def _filled_deep(value: Any, values: dict[str, str]) -> Any:
    match value:
        case str():
            return _filled(value, values)
        case dict():
            return {key: _filled_deep(entry, values) for key, entry in value.items()}
        case list():
            return [_filled_deep(entry, values) for entry in value]
    return value
