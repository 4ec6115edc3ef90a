"""Files of other tools, in our own words: Codex rollouts, logs of events, fixtures of aimock; and what is made of them."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attrs import define, field

from turntape.replay.fixture import Fixture
from turntape.replay.importing.conversations import Imported
from turntape.replay.importing.kinds import import_all

Json = dict[str, Any]


@define
class Made:
    """What an import came to."""

    imported: Imported
    fixture: Fixture
    header: Json


def made(folder: Path, content: str | bytes | Iterable[Any], *, kind: str | None = None, name: str = "source") -> Made:
    """Import a file with this content, which may be JSON values of a line each."""
    source, out = folder / name, folder / f"{name}.out.jsonl"
    if not isinstance(content, str | bytes):
        content = "".join(json.dumps(value) + "\n" for value in content)
    source.write_bytes(content.encode() if isinstance(content, str) else content)
    imported, _ = import_all([source], out, kind)
    return Made(imported, Fixture.load(out), json.loads(out.read_text().split("\n")[0]))


def message(role: str, text: str, **more: Any) -> Json:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}], **more}


def call(call_id: str, name: str, arguments: str) -> Json:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def output(call_id: str, text: str) -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


@define
class Rollout:
    """The lines of a rollout, one every tenth of a second from 2026-11-29T12:00:00Z."""

    version: str = "0.98.0"
    instructions: str | None = "Be brief.\nBe kind."
    lines: list[Json] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        base = {"base_instructions": {"text": self.instructions}} if self.instructions else {}
        self.line("session_meta", {"id": "x", "originator": "codex_exec", "cli_version": self.version, **base})
        self.line("turn_context", {"model": "some-model"})

    def line(self, kind: str, payload: Json) -> "Rollout":
        seconds, tenths = divmod(len(self.lines), 10)
        at = f"2026-11-29T12:00:{seconds:02}.{tenths}00Z"
        self.lines.append({"timestamp": at, "type": kind, "payload": payload})
        return self

    def items(self, *items: Json) -> "Rollout":
        for item in items:
            self.line("response_item", item)
        return self

    def counted(self, n_input: int = 100, n_output: int = 10) -> "Rollout":
        """The tokens of the last answer, as all three versions tell them."""
        usage = {"input_tokens": n_input, "cached_input_tokens": 40, "output_tokens": n_output}
        usage |= {"reasoning_output_tokens": 3, "total_tokens": n_input + n_output}
        counts = {"total_token_usage": usage | {"total_tokens": len(self.lines)}, "last_token_usage": usage}
        return self.line("event_msg", {"type": "token_count", "info": counts})

    def event(self, kind: str) -> "Rollout":
        return self.line("event_msg", {"type": kind})


# --- logs of Responses events ------------------------------------------------------------

USAGE = {
    "input_tokens": 20,
    "input_tokens_details": {"cached_tokens": 5},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 27,
}


def response(response_id: str, status: str, **more: Any) -> Json:
    return {
        "id": response_id,
        "object": "response",
        "created_at": 1_800_000_000,
        "status": status,
        "model": "m",
        **more,
    }


def said(response_id: str, *deltas: str) -> list[Json]:
    """The events of an answer of text."""
    text = "".join(deltas)
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    return [
        {"type": "response.created", "response": response(response_id, "in_progress", output=[])},
        {"type": "response.output_item.added", "output_index": 0, "item": item | {"content": []}},
        *({"type": "response.output_text.delta", **place, "delta": delta} for delta in deltas),
        {"type": "response.output_text.done", **place, "text": text},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": response(response_id, "completed", output=[item], usage=USAGE)},
    ]


def called(response_id: str, call_id: str, arguments: str) -> list[Json]:
    """The events of an answer that is a call."""
    item = {"id": "fc_1", "type": "function_call", "call_id": call_id, "name": "sh", "arguments": arguments}
    return [
        {"type": "response.created", "response": response(response_id, "in_progress", output=[])},
        {"type": "response.output_item.added", "output_index": 0, "item": item | {"arguments": ""}},
        {"type": "response.function_call_arguments.delta", "item_id": "fc_1", "output_index": 0, "delta": arguments},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": response(response_id, "completed", output=[item], usage=USAGE)},
    ]


CHAIN = [
    {"request": {"model": "m", "input": [message("user", "List.")], "stream": True}},
    *called("resp_a", "call_x", '{"cmd":"ls"}'),
    {
        "request": {
            "model": "m",
            "input": [output("call_x", "README")],
            "previous_response_id": "resp_a",
            "stream": True,
        }
    },
    *said("resp_b", "One ", "file."),
]


# --- fixtures of aimock ------------------------------------------------------------


def fixture(match: Json, response: Json, **more: Any) -> Json:
    return {"match": match, "response": response, **more}


WEATHER = (
    fixture(
        {"userMessage": "weather", "hasToolResult": False},
        {"toolCalls": [{"id": "call_1", "name": "look", "arguments": {"city": "SF"}}]},
    ),
    fixture({"userMessage": "weather", "hasToolResult": True}, {"content": "It is sunny."}),
)
