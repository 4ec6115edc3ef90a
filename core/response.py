"""``OpenResponse``: increments in, numbered and encoded server events out.

Events are put together from bytes that are encoded once: what a response echoes of its request, each
finished item, and for deltas a template of which only the number and the text change.
"""

import re
from collections.abc import Callable
from typing import Any

import orjson
from attrs import define, field

from . import reasoning
from .canonical import Item
from .context import Context, estimate_tokens
from .seam import (
    Arguments,
    Encrypted,
    Finish,
    Increment,
    Message,
    Reasoning,
    Refusal,
    Summary,
    Text,
    ToolCall,
    Usage,
)
from .wire import ResponseCreate

ENCRYPTED = "reasoning.encrypted_content"
INCOMPLETE_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""``Finish.reason`` to ``incomplete_details.reason``."""


class NonsenseFromBackend(Exception):
    """Increments that describe no output, such as arguments without a call."""


def without_surrogates(text: str) -> str:
    """``text`` with U+FFFD for every lone surrogate: what a backend says must be encodable."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def encode_event(type_: str, stream_id: str | None, **fields: object) -> bytes:
    """One server event. ``type`` stands first; the default lane has no ``stream_id``, not a null one."""
    lane = {} if stream_id is None else {"stream_id": stream_id}
    return orjson.dumps({"type": type_, **lane, **fields})


@define(eq=False, repr=False)
class _Part:
    """The part of an item that deltas go to.

    Attributes:
        prefix: name of its events after ``response.``: "output_text", "refusal", "reasoning_text", ...
        where: encoded fields that place it in the response.
        fragments: deltas so far.
        delta_head, delta_middle, delta_tail: the template of its delta event.
        reasons: its text counts as reasoning.
    """

    prefix: str
    where: bytes
    delta_head: bytes
    delta_middle: bytes
    delta_tail: bytes
    reasons: bool
    index: int = 0
    fragments: list[str] = field(factory=list)


@define(eq=False, repr=False)
class OpenResponse:
    """The response being produced: its context, its output so far, and its event counter.

    Attributes:
        asked: the conversation that the running sample answers.
        context: the same, and what was said since.
        saved: nearest stored ancestor: id and context.
        n_items_asked: items of the conversation when the response was created.
        said: finished items of the running sample.
        n_tokens_seen: tokens of the conversation up to the end of the last sample.
        announced: ``response.created`` has been sent.
        ending: the Response object of the terminal event, while that waits for the store.
    """

    id: str
    stream_id: str | None
    request: ResponseCreate
    model: str
    created_at: int
    asked: Context
    context: Context
    saved: tuple[str, Context] | None
    ids: Callable[[str], str]
    echo: dict[str, Any]
    n_items_asked: int = 0
    n_tokens_seen: int = 0
    announced: bool = False
    said: list[Item] = field(factory=list)
    output: list[bytes] = field(factory=list)
    cached: int = 0
    ending: bytes = b""
    ending_type: str = ""
    _lane: bytes = b""
    _encoded_echo: bytes = b""
    _n_overhead: int = 0
    _n_sent: int = 0
    _item: dict[str, Any] | None = None
    _part: _Part | None = None
    _n_parts: int = 0
    _summaries: list[dict[str, Any]] = field(factory=list)
    _n_said_bytes: int = 0
    _n_reasoned_bytes: int = 0

    def __attrs_post_init__(self) -> None:
        """Raises ``orjson.JSONEncodeError`` for a request nested deeper than orjson writes (254)."""
        self.n_items_asked = self.asked.n_items
        if self.stream_id is not None:
            self._lane = b'"stream_id":' + orjson.dumps(self.stream_id) + b","
        tools, instructions = orjson.dumps(self.echo["tools"]), orjson.dumps(self.echo["instructions"])
        self._n_overhead = estimate_tokens(len(tools) - 2) + estimate_tokens(len(self.request.instructions or ""))
        encoded = {**self.echo, "tools": orjson.Fragment(tools), "instructions": orjson.Fragment(instructions)}
        self._encoded_echo = orjson.dumps(encoded)[1:]

    # --- events ---------------------------------------------------------------------------------------

    def _event(self, type_: str, body: bytes) -> bytes:
        n, self._n_sent = self._n_sent, self._n_sent + 1
        return b'{"type":"%b",%b"sequence_number":%d,%b}' % (type_.encode(), self._lane, n, body)

    def snapshot(
        self,
        status: str,
        *,
        now: int | None = None,
        usage: dict[str, Any] | None = None,
        error: dict[str, Any] | None = None,
        incomplete: str | None = None,
        empty: bool = False,
    ) -> bytes:
        """The Response object with every key of the live API and of Open Responses.

        Args:
            now: seconds since 1970, when the response is completed.
            empty: leave the output out, as the lifecycle events before the end do.
        """
        tier = (self.request.service_tier or "auto") if status == "in_progress" else "default"
        varying = orjson.dumps(
            {
                "id": self.id,
                "object": "response",
                "created_at": self.created_at,
                "completed_at": now if status == "completed" else None,
                "status": status,
                "error": error,
                "incomplete_details": None if incomplete is None else {"reason": incomplete},
                "service_tier": tier,
                "usage": usage,
            }
        )
        output = b"" if empty else b",".join(self.output)
        return b'%b,"output":[%b],%b' % (varying[:-1], output, self._encoded_echo)

    def snapshot_event(self, type_: str, snapshot: bytes) -> bytes:
        return self._event(type_, b'"response":' + snapshot)

    def announce(self) -> list[bytes]:
        """``response.created`` and ``response.in_progress``: the second is the fork barrier of the WebSocket guide."""
        assert not self.announced
        self.announced = True
        snapshot = self.snapshot("in_progress", empty=True)
        return [
            self.snapshot_event("response.created", snapshot),
            self.snapshot_event("response.in_progress", snapshot),
        ]

    def keepalive(self) -> bytes:
        return self.snapshot_event("response.in_progress", self.snapshot("in_progress", empty=True))

    # --- increments -----------------------------------------------------------------------------------

    def resume(self, asked: Context, cached: int) -> None:
        """Another sample of this response begins."""
        self.asked, self.context, self.cached = asked, asked, cached
        self.said, self._n_said_bytes, self._n_reasoned_bytes = [], 0, 0

    def add(self, batch: tuple[Increment, ...], out: list[bytes]) -> Finish | None:
        """Append to ``out`` what the client is told about ``batch``; return its ``Finish``, if it has one.

        Raises:
            NonsenseFromBackend: ``out`` then holds what came before.
        """
        for increment in batch:
            match increment:
                case Text(text):
                    self._say("message", "output_text", text, out)
                case Arguments(text):
                    if self._part is None or not self._part.prefix.endswith(("arguments", "input")):
                        raise NonsenseFromBackend("arguments without a call")
                    self._delta(self._part, text, out)
                case Reasoning(text):
                    self._say("reasoning", "reasoning_text", text, out)
                case ToolCall():
                    self._begin_call(increment, out)
                case Summary(text, part):
                    self._summarise(text, part, out)
                case Refusal(text):
                    self._say("message", "refusal", text, out)
                case Message(phase):
                    self._begin_message(phase, out)
                case Encrypted(content):
                    self._encrypted(content, out)
                case Finish(reason):
                    self._end_item("completed" if reason == "stop" else "incomplete", out)
                    self.context = self.asked.extend(self.said) if self.said else self.asked
                    self.n_tokens_seen = self.context.n_tokens
                    return increment
        return None

    def _say(self, item_type: str, prefix: str, text: str, out: list[bytes]) -> None:
        if not text:
            return
        part = self._part
        if part is None or part.prefix != prefix:
            if self._item is None or self._item["type"] != item_type:
                if item_type == "message":
                    self._begin_message(None, out)
                else:
                    self._begin_reasoning(out)
            part = self._begin_part(prefix, out)
        self._delta(part, text, out)

    def _delta(self, part: _Part, text: str, out: list[bytes]) -> None:
        if not text:
            return
        n, self._n_sent = self._n_sent, self._n_sent + 1
        try:
            encoded = orjson.dumps(text)
        except orjson.JSONEncodeError:
            text = without_surrogates(text)
            encoded = orjson.dumps(text)
        out.append(b"%b%d%b%b%b" % (part.delta_head, n, part.delta_middle, encoded, part.delta_tail))
        part.fragments.append(text)
        n_bytes = len(encoded) - 2
        self._n_said_bytes += n_bytes
        if part.reasons:
            self._n_reasoned_bytes += n_bytes

    def _begin_message(self, phase: str | None, out: list[bytes]) -> None:
        item = {"id": self.ids("msg"), "type": "message", "status": "in_progress", "role": "assistant", "content": []}
        self._begin_item(item if phase is None else {**item, "phase": without_surrogates(phase)}, out)

    def _begin_reasoning(self, out: list[bytes]) -> None:
        item = {"id": self.ids("rs"), "type": "reasoning", "status": "in_progress", "summary": [], "content": []}
        self._begin_item(item, out)

    def _begin_call(self, call: ToolCall, out: list[bytes]) -> None:
        kind, prefix, payload = (
            ("custom_tool_call", "ctc", "input") if call.custom else ("function_call", "fc", "arguments")
        )
        item = {"id": self.ids(prefix), "type": kind, "status": "in_progress", payload: ""}
        item["call_id"], item["name"] = without_surrogates(call.call_id), without_surrogates(call.name)
        if call.namespace is not None:
            item["namespace"] = without_surrogates(call.namespace)
        self._begin_item(item, out)
        where = b'"item_id":%b,"output_index":%d' % (orjson.dumps(item["id"]), len(self.output))
        self._part = self._new_part("custom_tool_call_input" if call.custom else "function_call_arguments", where)

    def _begin_item(self, item: dict[str, Any], out: list[bytes]) -> None:
        self._end_item("completed", out)
        self._item, self._n_parts, self._summaries = item, 0, []
        body = b'"output_index":%d,"item":%b' % (len(self.output), orjson.dumps(item))
        out.append(self._event("response.output_item.added", body))

    def _new_part(self, prefix: str, where: bytes, tail: bytes = b"}", index: int = 0) -> _Part:
        head = b'{"type":"response.%b.delta",%b"sequence_number":' % (prefix.encode(), self._lane)
        return _Part(prefix, where, head, b"," + where + b',"delta":', tail, prefix.startswith("reasoning"), index)

    def _begin_part(self, prefix: str, out: list[bytes]) -> _Part:
        """Open a content part; an open one ends."""
        self._end_part("completed", out)
        assert self._item is not None
        where = b'"item_id":%b,"output_index":%d,"content_index":%d' % (
            orjson.dumps(self._item["id"]),
            len(self.output),
            self._n_parts,
        )
        body = where + b',"part":' + orjson.dumps(_content_part(prefix, ""))
        out.append(self._event("response.content_part.added", body))
        tail = b',"logprobs":[]}' if prefix == "output_text" else b"}"
        self._part = self._new_part(prefix, where, tail, self._n_parts)
        self._n_parts += 1
        return self._part

    def _summarise(self, text: str, number: int, out: list[bytes]) -> None:
        if self._item is None or self._item["type"] != "reasoning":
            self._begin_reasoning(out)
        part = self._part
        if part is None or part.prefix != "reasoning_summary_text" or number > part.index:
            self._end_part("completed", out)
            assert self._item is not None
            where = b'"item_id":%b,"output_index":%d,"summary_index":%d' % (
                orjson.dumps(self._item["id"]),
                len(self.output),
                len(self._summaries),
            )
            body = where + b',"part":{"type":"summary_text","text":""}'
            out.append(self._event("response.reasoning_summary_part.added", body))
            part = self._part = self._new_part("reasoning_summary_text", where, index=number)
        self._delta(part, text, out)

    def _encrypted(self, content: str, out: list[bytes]) -> None:
        if self._item is None or self._item["type"] != "reasoning":
            self._begin_reasoning(out)
        assert self._item is not None
        self._item["encrypted_content"] = without_surrogates(content)
        self._end_item("completed", out)

    def _end_part(self, status: str, out: list[bytes]) -> None:
        """Close the open part: its ``.done`` event, and its part event for those that are parts."""
        part, item = self._part, self._item
        if part is None or item is None:
            return
        self._part = None
        whole = "".join(part.fragments)
        text = orjson.dumps(whole)
        match part.prefix:
            case "function_call_arguments":
                item["arguments"] = whole
                out.append(self._event("response.function_call_arguments.done", part.where + b',"arguments":' + text))
            case "custom_tool_call_input":
                item["input"] = whole
                out.append(self._event("response.custom_tool_call_input.done", part.where + b',"input":' + text))
            case "reasoning_summary_text":
                finished = {"type": "summary_text", "text": whole}
                self._summaries.append(finished)
                out.append(self._event("response.reasoning_summary_text.done", part.where + b',"text":' + text))
                body = part.where + b',"part":{"type":"summary_text","text":%b}' % text
                if status != "completed":
                    body += b',"status":"incomplete"'
                out.append(self._event("response.reasoning_summary_part.done", body))
            case prefix:
                key = b"refusal" if prefix == "refusal" else b"text"
                tail = b',"logprobs":[]' if prefix == "output_text" else b""
                out.append(self._event(f"response.{prefix}.done", part.where + b',"%b":%b' % (key, text) + tail))
                item["content"].append(finished := _content_part(prefix, whole))
                body = part.where + b',"part":' + orjson.dumps(finished)
                out.append(self._event("response.content_part.done", body))

    def _end_item(self, status: str, out: list[bytes]) -> None:
        self._end_part(status, out)
        item = self._item
        if item is None:
            return
        self._item = None
        if item["type"] == "reasoning":
            item["summary"] = self._summaries
            if self.request.includes(ENCRYPTED) and "encrypted_content" not in item:
                item["encrypted_content"] = reasoning.seal(item["content"])
        item["status"] = status
        finished = Item(item, orjson.dumps(item))
        out.append(
            self._event(
                "response.output_item.done", b'"output_index":%d,"item":%b' % (len(self.output), finished.encoded)
            )
        )
        self.output.append(finished.encoded)
        if status == "completed" or not finished.opens_call:
            self.said.append(finished)  # nobody can run half a call: the conversation goes on without it

    # --- usage ----------------------------------------------------------------------------------------

    def usage(self, reported: Usage | None) -> dict[str, Any]:
        """Token counts of the running sample: the backend's own, or else an estimate from bytes."""
        if reported is None:
            n_input = self._n_overhead + self.asked.n_tokens
            reported = Usage(
                input_tokens=n_input,
                output_tokens=estimate_tokens(self._n_said_bytes),
                cached_tokens=self.cached,
                reasoning_tokens=estimate_tokens(self._n_reasoned_bytes),
            )
        return {
            "input_tokens": reported.input_tokens,
            "input_tokens_details": {"cached_tokens": reported.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": reported.output_tokens,
            "output_tokens_details": {"reasoning_tokens": reported.reasoning_tokens},
            "total_tokens": reported.input_tokens + reported.output_tokens,
        }


def _content_part(prefix: str, text: str) -> dict[str, Any]:
    match prefix:
        case "output_text":
            return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        case "refusal":
            return {"type": "refusal", "refusal": text}
    return {"type": "reasoning_text", "text": text}
