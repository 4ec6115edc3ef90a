"""From a shape and a seed to a rollout: the numbers of a plan, as items of the right size."""

from random import Random
from typing import Any

import orjson
from attrs import define, evolve, field

from .plan import Plan, Step, plan
from .prose import Writer
from .rollout import Item, Rollout, Turn, encoded_bytes
from .shapes import BYTES_PER_TOKEN, Shape

INSTRUCTIONS_BYTES = 15 << 10
TOOLS_BYTES = 20 << 10
ENVELOPE_BYTES = 1536
"""Of a request, beside instructions, tools and items."""

TOOLS = [
    "shell",
    "poll",
    "edit",
    "search",
    "read",
    "list",
    "fetch",
    "plan",
    "note",
    "image",
    "agent",
    "wait",
    "compare",
    "measure",
    "format",
    "ask",
]
LEAST_TEXT = 1


def generate(shape: Shape, seed: int) -> Rollout:
    """The session of ``shape`` with this seed; the same each time, and its first words differ from any other's."""
    random = Random(f"{shape.name} {seed}")
    planned = plan(shape, random)
    generator = _Generator(random, f"{shape.name} {seed}", settings())
    children = [
        generator.turns(child, number, begins_after=((0, after),))
        for number, (after, child) in enumerate(planned.children, 1)
    ]
    parent = list(generator.turns(planned, 0))
    for number, (after, child) in enumerate(planned.children, 1):
        waits = parent[after + 1]
        parent[after + 1] = evolve(waits, after=(*waits.after, (number, len(child.steps) - 1)))
    return Rollout(shape.name, (tuple(parent), *children))


def settings() -> Item:
    """Of every request: instructions of 15 KiB, 16 tools of 20 KiB, and what else an agent sets."""
    writer = Writer(Random(0))
    tools = [_tool(name, writer, TOOLS_BYTES // len(TOOLS)) for name in TOOLS]
    made: Item = {
        "instructions": writer.text(INSTRUCTIONS_BYTES),
        "tools": tools,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
    }
    rest = len(orjson.dumps(made)) - len(orjson.dumps(made["instructions"])) - len(orjson.dumps(tools))
    return {**made, "client_metadata": {"session": writer.text(ENVELOPE_BYTES - rest - 80)}}


def _tool(name: str, writer: Writer, n_bytes: int) -> Item:
    def made(description: str) -> Item:
        properties = {
            "target": {"type": "string", "description": description},
            "lines": {"type": "integer", "description": "How many lines to give at most."},
        }
        parameters = {"type": "object", "properties": properties, "required": ["target"]}
        return {"type": "function", "name": name, "strict": False, "parameters": parameters}

    return made(writer.text(n_bytes - encoded_bytes([made("")])))


@define(eq=False)
class _Generator:
    """
    Args:
        mark: stands in the first words of each thread, so that no prefix cache has them from another session.
    """

    random: Random
    mark: str
    settings: Item
    _writer: Writer = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._writer = Writer(self.random)

    def turns(self, planned: Plan, thread: int, begins_after: tuple[tuple[int, int], ...] = ()) -> tuple[Turn, ...]:
        made = list[Turn]()
        before: Step | None = None
        for n, step in enumerate(planned.steps):
            call_ids = [f"call_{thread}_{n}_{k}" for k in range(len(step.calls))]
            outputs = [item["call_id"] for item in made[-1].said if item["type"] == "function_call"] if made else []
            made.append(
                Turn(
                    settings=self.settings,
                    after=begins_after if before is None else (),
                    new=tuple(self._new(step, outputs, f"{self.mark}, thread {thread}")),
                    said=tuple(self._said(step, call_ids)),
                    anew=before is None or step.anew,
                    output_tokens=step.output,
                    reasoning_tokens=step.output - step.kept,
                    tools_s=tuple(call.took_s for call in before.calls) if before is not None else (),
                    overhead_s=step.overhead_s,
                    gap_s=step.gap_s,
                )
            )
            before = step
        return tuple(made)

    def _new(self, step: Step, call_ids: list[str], mark: str) -> list[Item]:
        new = list[Item]()
        if step.carried:
            opening = "The conversation until now, in short.\n" if step.anew else f"This is session {mark}.\n"
            role = "user" if step.anew else "developer"
            new.append(self._filled(_message(role, "input_text", opening), step.carried))
        if step.of_user or step.anew:  # after a compaction the calls are gone, and their outputs are told
            return [*new, self._filled(_message("user", "input_text", ""), step.new)] if step.new else new
        for call_id in call_ids:
            item = {"type": "function_call_output", "call_id": call_id, "output": ""}
            new.append(self._filled(item, step.new / len(call_ids)))
        return new

    def _said(self, step: Step, call_ids: list[str]) -> list[Item]:
        if not step.calls:
            return [self._filled(_message("assistant", "output_text", ""), step.kept)]
        said = list[Item]()
        for call, call_id in zip(step.calls, call_ids, strict=True):
            item = {"type": "function_call", "call_id": call_id, "name": call.tool, "arguments": ""}
            bare = encoded_bytes([{**item, "arguments": '{"target":""}'}])
            n_bytes = round(BYTES_PER_TOKEN * step.kept / len(step.calls)) - bare
            text = self._writer.text(max(n_bytes, LEAST_TEXT)).replace("\n", "; ")
            said.append({**item, "arguments": orjson.dumps({"target": text}).decode()})
        return said

    def _filled(self, item: Item, tokens: float) -> Item:
        """The item, with text behind its own, so that it takes so many tokens as JSON; its own at least."""
        n_bytes = round(BYTES_PER_TOKEN * tokens) - encoded_bytes([item])
        text = self._writer.text(max(n_bytes, LEAST_TEXT))
        if "content" not in item:
            return {**item, "output": item["output"] + text}
        [part] = item["content"]
        return {**item, "content": [{**part, "text": part["text"] + text}]}


def _message(role: str, kind: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}
