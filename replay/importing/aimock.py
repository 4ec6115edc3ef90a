"""Fixtures of aimock (JSON files, as version 1.43 reads them) to conversations.

Such a fixture names a part of the last user message and what is answered. It holds no conversation, so each becomes one
turn: of a message that is just that part, under rules that let every message pass that has it. What continues another
fixture, by ``turnIndex``, ``hasToolResult`` or ``toolCallId``, becomes a later turn of the same conversation.
"""

import re
from collections.abc import Iterator
from typing import Any

import orjson
from attrs import define, field

from turntape.core.seam import (
    Arguments,
    Finish,
    Increment,
    Message,
    SampleFailed,
    Summary,
    Text,
    ToolCall,
    Usage,
)
from turntape.replay.secrets import Masker

from .conversations import Batches, Conversation, Imported, ImportedTurn, ImportFailed, Source
from .json_values import json_values

NOTES = (
    "Imported from aimock fixtures, which are matched by a part of the last user message.",
    (
        "A stub compares more, the whole conversation, but rules let pass what aimock does not look at: the rest of a "
        "message, tool outputs, settings, and the model where none is named. Take them out to make the check strict."
    ),
    "Nothing in them says when anything was said: times begin at 0.",
)

SETTINGS = (
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "temperature",
    "top_p",
    "top_logprobs",
    "max_output_tokens",
    "max_tool_calls",
    "reasoning",
    "text",
    "truncation",
    "include",
    "metadata",
    "service_tier",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "client_metadata",
)
"""Fields of a request that aimock does not look at."""

CHUNK = 20
"""Characters that aimock streams at once unless a fixture says otherwise."""

MAX_WAIT_MS = 86_400_000
"""A longer pause than a day is no pause of a stream."""

ANY, MODEL, SOME_OUTPUT = "any message", "any-model", "…"
REASONS = {"length": "length", "max_tokens": "length", "content_filter": "content_filter"}
OTHER_ENDPOINTS = "only fixtures of texts and tool calls are imported"


def entries_of(values: list[Any]) -> list[Any] | None:
    """The fixtures in the values of a file, None if that is no file of aimock's."""
    match values:
        case [{"fixtures": list(entries)}] | [list(entries)]:
            ours = all(isinstance(entry, dict) and "match" in entry and "response" in entry for entry in entries)
            return entries if entries and ours else None
    return None


def read(source: Source, imported: Imported) -> None:
    """Add the fixtures of one file.

    Raises:
        ImportFailed: it is no file of fixtures.
    """
    entries = entries_of([value for _, value in json_values(source)])
    if entries is None:
        raise ImportFailed(source.name, "", 'is no file of aimock: {"fixtures":[{"match":…,"response":…}]}.')
    fixtures = list[_Entry]()
    for number, entry in enumerate(entries, 1):
        where = f"{source.name}: fixture {number}"
        if (why := _foreign(entry)) is not None:
            imported.skipped.append(f"{where}: {why}")
        else:
            fixtures.append(_Entry(where, f"fixture {number}", entry))
    for fixture in fixtures:
        fixture.parent = _parent(fixture, fixtures)
        if fixture.parent is None and fixture.depth > 0:
            imported.skipped.append(f"{fixture.where}: continues a fixture that is not in the file")
    for root in fixtures:
        if root.parent is None and root.depth == 0:
            turns = [*_turns(root, fixtures)]
            imported.conversations.append(Conversation(tuple(turns), rules=_rules(root, fixtures, imported.masker)))


@define(eq=False)
class _Entry:
    """One fixture of the file."""

    where: str
    name: str
    value: dict[str, Any]
    parent: "_Entry | None" = None
    calls: list[tuple[str, str, str]] = field(init=False)  # id, name, arguments

    def __attrs_post_init__(self) -> None:
        given = [block for block in self.blocks if block["type"] == "toolCall"]
        if not self.blocks and "error" not in self.response:
            given = self.response.get("toolCalls") or []
        self.calls = [
            (str(call.get("id") or f"call_{self.name.replace(' ', '_')}_{n}"), call["name"], _text(call["arguments"]))
            for n, call in enumerate(given, 1)
        ]

    @property
    def match(self) -> dict[str, Any]:
        match: dict[str, Any] = self.value["match"]
        return match

    @property
    def response(self) -> dict[str, Any]:
        response: dict[str, Any] = self.value["response"]
        return response

    @property
    def blocks(self) -> list[dict[str, Any]]:
        return [] if "error" in self.response else self.response.get("blocks") or []

    @property
    def depth(self) -> int:
        """Answers before this one; at least that many."""
        if type(depth := self.match.get("turnIndex")) is int:
            return depth
        return int(self.match.get("hasToolResult") is True or "toolCallId" in self.match)

    @property
    def topic(self) -> tuple[str, ...]:
        return tuple(repr(self.match.get(name)) for name in ("userMessage", "systemMessage", "model", "context"))


def _foreign(entry: dict[str, Any]) -> str | None:
    """Why a fixture is not imported."""
    match, response = entry["match"], entry["response"]
    if not isinstance(match, dict) or not isinstance(response, dict):
        return "its match and response should be objects"
    if match.get("endpoint", "chat") != "chat" or "inputText" in match:
        return OTHER_ENDPOINTS
    for name in ("userMessage", "model", "toolCallId", "toolResultContains"):
        if not isinstance(match.get(name, ""), str):
            return f"its match.{name} should be a string"
    try:
        orjson.dumps(entry)
    except orjson.JSONEncodeError as exc:
        return f"it holds what cannot be sent ({exc})"
    return None if isinstance(response.get("error"), dict) else _foreign_answer(response)


def _foreign_answer(response: dict[str, Any]) -> str | None:
    blocks, calls = response.get("blocks") or [], response.get("toolCalls") or []
    if "content" not in response and not blocks and not calls:
        return OTHER_ENDPOINTS
    if not isinstance(blocks, list) or not isinstance(calls, list):
        return "its blocks and toolCalls should be arrays"
    for part in [*({"type": "toolCall", **call} if isinstance(call, dict) else None for call in calls), *blocks]:
        match part:
            case {"type": "toolCall", "name": str(), "arguments": _} | {"type": "text", "text": str()}:
                pass
            case _:
                return "a tool call should have a name and arguments, and a block should be such a call or a text"
    return None


def _parent(entry: _Entry, entries: list[_Entry]) -> _Entry | None:
    """The fixture whose answer comes before that of ``entry``."""
    if entry.depth == 0:
        return None
    if (call_id := entry.match.get("toolCallId")) is not None:
        return next((other for other in entries if call_id in [call[0] for call in other.calls]), None)
    before = [other for other in entries if other.topic == entry.topic and other.depth < entry.depth]
    return max(before, key=lambda other: other.depth, default=None)


def _turns(root: _Entry, entries: list[_Entry]) -> Iterator[ImportedTurn]:
    """The turn of ``root``, then those of the fixtures that continue it."""
    yield _turn(root)
    for entry in entries:
        if entry.parent is root:
            yield from _turns(entry, entries)


def _turn(entry: _Entry) -> ImportedTurn:
    match = entry.match
    body: dict[str, Any] = {"model": match.get("model", MODEL), "store": False}
    if needed := _strings(match.get("systemMessage")):
        body["instructions"] = "\n".join(needed)
    if entry.parent is not None and entry.parent.calls:
        found = match.get("toolResultContains", SOME_OUTPUT)
        asked = [{"type": "function_call_output", "call_id": call[0], "output": found} for call in entry.parent.calls]
    else:
        text = match.get("userMessage", ANY)
        asked = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}]
    follows = None if entry.parent is None else entry.parent.name
    batches, failure = _answer(entry)
    return ImportedTurn(entry.where, 0.0, body, asked, batches, entry.name, follows, failure=failure)


def _answer(entry: _Entry) -> tuple[Batches, SampleFailed | None]:
    response = entry.response
    if isinstance(error := response.get("error"), dict):
        status = response.get("status")
        code = str(error.get("code") or error.get("type") or "server_error")
        failed = SampleFailed("", code, str(error.get("message", "")), status if type(status) is int else 500)
        return (), failed
    size = entry.value.get("chunkSize")
    size = size if type(size) is int and size > 0 else CHUNK
    increments = [*_increments(entry, size)]
    delays, batches, at = _delays(entry.value, len(increments)), list[tuple[float, tuple[Increment, ...]]](), 0.0
    for increment, delay in zip(increments, delays, strict=True):
        at += delay
        if delay or not batches:
            batches.append((at, (increment,)))
        else:
            batches[-1] = (at, (*batches[-1][1], increment))
    reason = REASONS.get(str(response.get("finishReason")), "stop")
    return (*batches, (at, (Finish(reason, _usage(response.get("usage"))),))), None


def _increments(entry: _Entry, size: int) -> Iterator[Increment]:
    response, calls = entry.response, iter(entry.calls)
    if isinstance(reasoning := response.get("reasoning"), str):
        yield from (Summary(piece) for piece in _pieces(reasoning, size))
    blocks = entry.blocks
    if not blocks:
        blocks = [{"type": "text", "text": _text(response["content"])}] if response.get("content") else []
        blocks += [{"type": "toolCall"} for _ in entry.calls]
    for block in blocks:
        if block.get("type") == "text":
            yield Message()
            yield from (Text(piece) for piece in _pieces(str(block.get("text", "")), size))
        else:
            call_id, name, arguments = next(calls)
            yield ToolCall(call_id, name)
            yield from (Arguments(piece) for piece in _pieces(arguments, size))


def _delays(value: dict[str, Any], count: int) -> list[float]:
    """Seconds before each piece, as aimock waits."""
    timings, profile = _object(value.get("recordedTimings")), _object(value.get("streamingProfile"))
    gap = _number(value.get("latency")) / 1000
    first, between = gap, [gap]
    if profile:
        first = _number(profile.get("ttft")) / 1000
        between = [1 / rate if (rate := _number(profile.get("tps"))) else 0.0]
    if timings:
        first = _number(timings.get("ttftMs")) / 1000
        gaps = timings.get("interChunkDelaysMs")
        between = [_number(delay) / 1000 for delay in gaps] if isinstance(gaps, list) and gaps else [0.0]
    return [first if n == 0 else between[min(n - 1, len(between) - 1)] for n in range(count)]


def _rules(root: _Entry, entries: list[_Entry], masker: Masker) -> tuple[Any, ...]:
    """What aimock lets differ in a conversation that begins with ``root``."""
    family = [entry for entry in entries if entry is root or _has_ancestor(entry, root)]
    ignored = [*SETTINGS]
    rules: list[Any] = []
    if "model" not in root.match:
        ignored.append("model")
    if needed := [*map(masker.text, _strings(root.match.get("systemMessage")))]:
        rules.append({"rule": "replace", "at": "instructions", **_having(needed, "\n".join(needed))})
    else:
        ignored.append("instructions")
    texts = {masker.text(entry.match["userMessage"]) for entry in family if "userMessage" in entry.match}
    for at in ("content.*.text", "content"):  # a client may send a message as parts, or as a text
        place = {"rule": "replace", "items": ["message"], "at": at}
        rules += [{**place, **_having([text], text)} for text in sorted(texts)] or [{**place, **_having([], ANY)}]
    results = [entry.match["toolResultContains"] for entry in family if "toolResultContains" in entry.match]
    found = sorted({masker.text(text) for text in results})
    for at in ("output", "output.*.text"):
        place = {"rule": "replace", "items": ["function_call_output"], "at": at}
        rules += [{**place, **_having([text], text)} for text in found] or [{**place, **_having([], SOME_OUTPUT)}]
    return ({"rule": "ignore", "fields": ignored}, *rules)


def _has_ancestor(entry: _Entry, root: _Entry) -> bool:
    return entry.parent is not None and (entry.parent is root or _has_ancestor(entry.parent, root))


def _having(needed: list[str], with_: str) -> dict[str, str]:
    """A text that has all of ``needed`` becomes ``with_``."""
    wanted = "".join(f"(?=.*{_literally(text)})" for text in needed)
    return {"pattern": rf"(?s)\A{wanted}.*\Z", "with": with_.replace("\\", r"\\")}


def _literally(text: str) -> str:
    return re.escape(text).replace(r"\ ", " ")


def _strings(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [*map(str, value)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    """Objects stand for their JSON."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _pieces(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float:
    return float(value) if type(value) in (int, float) and 0 < value < MAX_WAIT_MS else 0.0


def _usage(usage: Any) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    counts = [
        next((usage[name] for name in names if type(usage.get(name)) is int), None)
        for names in (("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens"))
    ]
    return None if counts[0] is None or counts[1] is None else Usage(counts[0], counts[1])
