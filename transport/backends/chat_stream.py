"""Chunks of a chat-completions stream to increments, whichever server they come from; no I/O.

Every rule here has a server behind it: calls without ids or indexes, one index for all calls, names in
fragments or repeated, reasoning under four names, usage in any chunk, a missing end.
"""

from collections.abc import Callable
from typing import Any

import orjson
from attrs import define, field

from turntape.core.seam import Arguments, Finish, Increment, Reasoning, Refusal, ToolCall, Usage

from .base import BackendError
from .chat_chunk import content_parts, load_chunk
from .chat_dialect import Dialect
from .chat_errors import Refusals
from .chat_tools import ToolNames
from .chat_usage import read_usage
from .custom_input import CustomInput
from .reasoning_details import FIELD, DetailCollector
from .think_tags import ThinkTags

__all__ = ["ChunkReader", "read_usage"]

REASONS = {"length": "length", "model_length": "length", "content_filter": "content_filter"}
"""Any other finish reason is "stop", those of ``BROKEN`` apart."""

BROKEN = {
    "error": "server_error",
    "abort": "server_error",
    "insufficient_system_resource": "server_is_overloaded",
}
"""Finish reasons of a sample that was cut off, and the code that says so. Sources: OpenRouter, SGLang, DeepSeek."""


@define(eq=False)
class _Call:
    """One call as far as it has come.

    Attributes:
        written: its arguments as the server sent them.
        told: it has been begun; what comes is passed on at once.
        id_is_ours: it came without an id and was given one.
    """

    id: str | None
    id_is_ours: bool = False
    name: str = ""
    written: list[str] = field(factory=list)
    told: bool = False
    decoder: CustomInput | None = None

    @property
    def is_whole(self) -> bool:
        try:
            orjson.loads("".join(self.written))
        except orjson.JSONDecodeError:
            return False
        return True


@define(eq=False)
class ChunkReader:
    """Reads one answer.

    Increments have one open item at a time, while servers may interleave calls: a call whose arguments
    are not whole stays open, and what follows it waits until they are, or until the end.

    Args:
        new_call_id: makes the id of a call that came without one.

    Attributes:
        done: ``[DONE]`` was read.
        finish_reason: as the server wrote it, once it has.
        reasoning_field: name under which reasoning came, or "".
        failure: why the answer is broken; what came before it counts.
        usage: the counts that came last, if any did.
    """

    names: ToolNames
    dialect: Dialect
    refusals: Refusals
    new_call_id: Callable[[], str]
    done: bool = False
    finish_reason: str | None = None
    reasoning_field: str = ""
    failure: BackendError | None = None
    usage: Usage | None = None
    _think: ThinkTags = field(factory=ThinkTags)
    _details: DetailCollector = field(factory=DetailCollector)
    _n_events: int = 0
    _has_output: bool = False
    _calls: list[_Call] = field(factory=list)
    _by_index: dict[int, _Call] = field(factory=dict)
    _open: _Call | None = None  # the one call that increments go to
    _waiting: list[_Call | Increment] = field(factory=list)
    _out: list[Increment] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        if not self.dialect.think_tags:
            self._think.stop()

    @property
    def has_calls(self) -> bool:
        return bool(self._calls)

    @property
    def ended(self) -> bool:
        """Nothing more is worth reading: call ``end``."""
        return self.done or self.failure is not None

    def feed(self, events: list[bytes]) -> tuple[Increment, ...]:
        """What the chunks of one read say."""
        for event in events:
            if self.ended:
                break
            if event.strip() == b"[DONE]":
                self.done = True
                break
            self._chunk(event)
            self._n_events += 1
        out, self._out = self._out, []
        return tuple(out)

    def end(self) -> tuple[Increment, ...]:
        """The stream ended: what was held back, and ``Finish``.

        Raises:
            BackendError: ``failure``, or it ended too early, or said nothing at all.
        """
        if self.failure is not None:
            raise self.failure
        self._say_held()
        if self.finish_reason is None and not (self.done and self._has_output):
            raise self.refusals.unfinished(self._n_events, "chat completion", has_output=self._has_output)
        self._end_call()
        waiting, self._waiting = self._waiting, []
        for entry in waiting:
            if not isinstance(entry, _Call):
                self._out.append(entry)
            elif entry.name:
                self._tell_call(entry)
                self._end_call()
            else:
                raise self.refusals.broken("sent a tool call without a name")
        reason = REASONS.get(self.finish_reason or "stop", "stop")
        if self._calls and reason != "length":
            reason = "stop"  # calls make a turn, whatever the server calls its end
        out, self._out = self._out, []
        return (*out, Finish(reason, self.usage))

    # --- chunks -------------------------------------------------------------------------------------

    def _chunk(self, event: bytes) -> None:
        chunk = load_chunk(event)
        if not isinstance(chunk, dict):
            self.failure = self.refusals.broken("sent an event that is not a JSON object")
            return
        choices = chunk.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        groq = chunk.get("x_groq") if isinstance(chunk.get("x_groq"), dict) else {}
        assert isinstance(groq, dict)
        if choice.get("index") in (0, None):
            delta = choice.get("delta") or choice.get("message")  # the second in an answer that is not streamed
            if isinstance(delta, dict):
                self._delta(delta)
            if isinstance(reason := choice.get("finish_reason"), str) and reason:
                self.finish_reason = reason
        for usage in (chunk.get("usage"), groq.get("usage"), choice.get("usage")):
            if isinstance(usage, dict):
                self.usage = read_usage(usage, chunk.get("timings"), self.dialect)
        error = chunk.get("error") or groq.get("error") or choice.get("error")
        if error or (not choice and isinstance(chunk.get("message"), str)):
            self.failure = self.refusals.midstream({**chunk, "error": error} if error else chunk, self._n_events)
        elif self.finish_reason in BROKEN:
            self.failure = self.refusals.broken(
                f"gave up the answer (finish reason {self.finish_reason!r})", code=BROKEN[self.finish_reason]
            )

    def _delta(self, delta: dict[str, Any]) -> None:
        if text := self._reasoning(delta):
            self._say(Reasoning(text))
            self._think.stop()
        if self.dialect.reasoning_in == FIELD:
            self._details.feed(delta.get(FIELD))
        content = delta.get("content")
        if content:
            self._say_details()
        if isinstance(content, str):
            for increment in self._think.feed(content):
                self._say(increment)
        elif isinstance(content, list):
            for increment in content_parts(content):
                self._say(increment)
        if isinstance(refusal := delta.get("refusal"), str) and refusal:
            self._say(Refusal(refusal))
        calls = delta.get("tool_calls")
        for entry in calls if isinstance(calls, list) else ():
            if isinstance(entry, dict):
                self._call_delta(entry)

    def _say_details(self) -> None:
        for increment in self._details.take():
            self._say(increment)

    def _say_held(self) -> None:
        for increment in self._think.end():
            self._say(increment)
        self._say_details()

    def _reasoning(self, delta: dict[str, Any]) -> str:
        """Reasoning under the first name that holds some."""
        for name in self.dialect.reasoning_fields:
            if isinstance(text := delta.get(name), str) and text:
                self.reasoning_field = self.reasoning_field or name
                return text
        details = delta.get("reasoning_details")
        if not isinstance(details, list):
            return ""
        texts = (part.get("text") or part.get("summary") for part in details if isinstance(part, dict))
        return "".join(text for text in texts if isinstance(text, str))

    # --- one item at a time -------------------------------------------------------------------------

    def _say(self, increment: Increment) -> None:
        self._has_output = True
        self._make_way()
        if self._open is None and not self._waiting:
            self._out.append(increment)
        else:
            self._waiting.append(increment)

    def _make_way(self) -> None:
        """Another item begins: end the open call if its arguments are whole, and so on with what waited."""
        while self._open is not None and self._open.is_whole:
            self._end_call()
            while self._waiting and self._open is None:
                entry = self._waiting.pop(0)
                if not isinstance(entry, _Call):
                    self._out.append(entry)
                elif entry.name and entry.written:
                    self._tell_call(entry)
                else:
                    self._waiting.insert(0, entry)
                    return

    def _tell_call(self, call: _Call) -> None:
        """Begin ``call`` and pass on what it has."""
        key = self.names.key(call.name)
        if call.id is None:
            call.id, call.id_is_ours = self.new_call_id(), True
        call.told, self._open = True, call
        call.decoder = CustomInput() if key.custom else None
        self._out.append(ToolCall(call.id, key.name, key.namespace, key.custom))
        self._tell_arguments(call, "".join(call.written))

    def _tell_arguments(self, call: _Call, text: str) -> None:
        if call.decoder is not None:
            text = call.decoder.feed(text)
        if text:
            self._out.append(Arguments(text))

    def _end_call(self) -> None:
        call, self._open = self._open, None
        if call is None:
            return
        if call.decoder is not None:
            if rest := call.decoder.end():
                self._out.append(Arguments(rest))
        elif not "".join(call.written).strip():
            self._out.append(Arguments("{}"))

    # --- calls --------------------------------------------------------------------------------------

    def _call_delta(self, entry: dict[str, Any]) -> None:
        function = entry.get("function")
        if not isinstance(function, dict):
            function = {}
        name, arguments = function.get("name"), function.get("arguments")
        name = name if isinstance(name, str) else ""
        if isinstance(arguments, dict):  # some servers send the object itself
            arguments = orjson.dumps(arguments).decode()
        arguments = arguments if isinstance(arguments, str) else ""
        call = self._find(entry, name, arguments)
        if call is None:
            return
        if name and not call.told:
            call.name = self._joined_name(call.name, name)
        if arguments and call.told and call is not self._open:
            if arguments.strip():
                self.failure = self.refusals.broken("sent more arguments for a tool call that was whole")
            return
        if arguments:
            call.written.append(arguments)
        if call is self._open:
            self._tell_arguments(call, arguments)
        elif self._open is None and self._waiting[0] is call and call.name and call.written:
            self._waiting.pop(0)
            self._tell_call(call)

    def _find(self, entry: dict[str, Any], name: str, arguments: str) -> _Call | None:
        """The call that a delta belongs to; a new one if it opens one."""
        call_id, index = entry.get("id"), entry.get("index")
        call_id = call_id if isinstance(call_id, str) and call_id else None
        index = index if type(index) is int else None
        at_index = None if index is None else self._by_index.get(index)
        if call_id is not None:
            known = next((call for call in reversed(self._calls) if call.id == call_id), None)
            if known is not None:
                return known
            if at_index is not None and (at_index.id is None or at_index.id_is_ours):
                at_index.id = at_index.id or call_id
                return at_index
            return self._begin_call(call_id, index)  # a new id is a new call, even at an index in use (Ollama)
        if at_index is not None:
            return at_index
        if index is None and self._calls:
            latest = self._calls[-1]
            if not (name and latest.written and latest.is_whole):
                return latest
        if not name and not arguments:
            return None
        return self._begin_call(None, index)

    def _begin_call(self, call_id: str | None, index: int | None) -> _Call:
        self._say_held()
        call = _Call(call_id)
        self._has_output = True
        self._make_way()
        self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        self._waiting.append(call)
        return call

    def _joined_name(self, so_far: str, more: str) -> str:
        """A name in fragments grows until it is a tool's; one that is repeated does not."""
        if so_far + more in self.names.keys:
            return so_far + more
        return so_far if so_far == more or so_far in self.names.keys else so_far + more
