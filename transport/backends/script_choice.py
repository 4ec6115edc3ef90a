"""How a script keeps to what a request demands: ``tool_choice``, ``parallel_tool_calls`` and ``text.format``."""

from collections.abc import Sequence
from typing import Any

import orjson
from attrs import evolve

from turntape.core.seam import StartSample
from turntape.core.tools import Tool, ToolChoice
from turntape.core.wire import ResponseCreate, TextFormat

from .base import BackendError
from .example import UnusableSchema, encoded_example
from .script import LAST, SayCall, SayRefusal, SayText, Step, find_tool

NOTHING_LEFT = "The script calls a tool here and says nothing else, but this request does not allow that call."


def offered_tools(start: StartSample) -> tuple[Tool, ...]:
    """The tools that may be called: those of the request, then those that the conversation brought."""
    choice = start.request.choice
    if choice.mode == "none":
        return ()
    tools = start.request.callable_tools + start.context.tools
    return tools if choice.only is None else tuple(tool for tool in tools if tool.name in choice.only)


def steps_for(say: Sequence[Step], request: ResponseCreate, tools: tuple[Tool, ...]) -> tuple[Step, ...]:
    """What is left of a rule, and what is put in its place, so that the answer is one that the request allows.

    Args:
        tools: as ``offered_tools`` gives them.
    """
    steps = _calls_allowed(say, request.choice, tools, parallel=request.parallel_tool_calls is not False)
    if request.choice.mode == "required" and tools and not any(isinstance(step, SayCall) for step in steps):
        steps = _called(steps, tools[0])
    text_format = None if request.text is None else request.text.format
    if text_format is not None and text_format.type != "text":
        steps = _as_json(steps, text_format)
    return tuple(steps)


def _calls_allowed(
    say: Sequence[Step], choice: ToolChoice, tools: tuple[Tool, ...], *, parallel: bool
) -> Sequence[Step]:
    """``say`` without the calls that the choice rules out, and without a second one where calls may not be parallel."""
    restricted = choice.mode == "none" or choice.only is not None
    kept, n_calls = list[Step](), 0
    for step in say:
        if isinstance(step, SayCall):
            if (restricted and find_tool(step.tool, tools) is None) or (n_calls and not parallel):
                continue
            n_calls += 1
        kept.append(step)
    speaks = any(isinstance(step, SayText | SayRefusal | SayCall | LAST) for step in kept)
    if len(kept) < len(say) and not speaks:
        kept.append(SayText(NOTHING_LEFT))
    return kept


def _called(steps: Sequence[Step], tool: Tool) -> Sequence[Step]:
    """``steps`` with a call of ``tool`` in place of what they say to the user."""
    if any(isinstance(step, LAST) for step in steps):
        return steps
    kind = "custom" if tool.custom else "function"
    name = tool.name if tool.namespace is None else f"{tool.namespace}.{tool.name}"
    return [*(step for step in steps if not isinstance(step, SayText | SayRefusal)), SayCall(f"{kind}:{name}")]


def _as_json(steps: Sequence[Step], text_format: TextFormat) -> Sequence[Step]:
    """``steps`` with one text that fits the format, unless their own texts are JSON: then the script knows better."""
    texts = [step for step in steps if isinstance(step, SayText)]
    if all(_is_json(step.text) for step in texts):
        return [evolve(step, is_json=True) if isinstance(step, SayText) else step for step in steps]
    if text_format.type == "json_object":
        value = orjson.dumps({"text": texts[-1].text}).decode()
    else:
        value = said_by_schema(text_format.schema, where="text.format", param="text.format.schema")
    said = SayText(value, texts[-1].phase, is_json=True)
    return [said if step is texts[-1] else step for step in steps if step is texts[-1] or not isinstance(step, SayText)]


def said_by_schema(schema: Any, *, where: str, param: str) -> str:
    """The least JSON that fits ``schema``. Raises ``BackendError`` for one that the client should change."""
    try:
        return encoded_example(schema)
    except UnusableSchema as exc:
        message = f"The script needs an example for the schema of {where}, but that {exc}."
        raise BackendError(message, code="invalid_prompt", status=400, param=param) from None


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True
