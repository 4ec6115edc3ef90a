"""Items to chat messages: each is rendered and encoded once in its life, and a turn appends what is new."""

from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import orjson
from attrs import define, field, frozen

from turntape.core.canonical import Item
from turntape.core.context import Context
from turntape.core.reasoning import reasoning_text
from turntape.core.tools import Tool

from .chat_dialect import Dialect
from .chat_tools import Offer, ToolKey, ToolNames
from .elements import Elements
from .message_parts import arguments_of, assistant_text, content_of, output_text, wire_id, with_thinking
from .reasoning_details import FIELD, details_of

BETWEEN_MESSAGES = "\n\n"
"""Joins an assistant's messages of one turn, and the system messages in front: templates refuse two in a row."""

CONTENT_THINKING = "content_thinking"
"""In place of a field's name: reasoning goes back as a thinking part of the content (Mistral)."""


@define(eq=False)
class Transcript:
    """Messages as a server wants them: the calls of a turn in one assistant message, each output right after it.

    What may still change is held back: the assistant message that more items may join, and messages
    that have to wait until every call before them has its output.

    Attributes:
        reasoning_field: name under which reasoning goes back, or None.
        system: texts of the system messages that lead the conversation, where they are to be one.
        done: encoded messages.
        last_role: of the last message in ``done``, or before it; "" before the first.
        waiting: ids of calls without an output.
        after: role and encoded message of those that follow the outputs.
    """

    dialect: Dialect
    names: ToolNames
    reasoning_field: str | None
    done: list[bytes] = field(factory=list)
    texts: list[str] = field(factory=list)
    reasoning: list[str] = field(factory=list)
    details: list[dict[str, Any]] = field(factory=list)
    calls: list[orjson.Fragment] = field(factory=list)
    waiting: set[str] = field(factory=set)
    after: list[tuple[str, bytes]] = field(factory=list)
    is_open: bool = False  # an assistant message is being collected
    system: list[str] = field(factory=list)
    last_role: str = ""

    def continued(self, names: ToolNames, reasoning_field: str | None) -> "Transcript":
        """A transcript that goes on from here and holds only what is new; this one stays as it is."""
        return Transcript(
            self.dialect,
            names,
            reasoning_field,
            [],
            list(self.texts),
            list(self.reasoning),
            list(self.details),
            list(self.calls),
            set(self.waiting),
            list(self.after),
            self.is_open,
            list(self.system),
            self.last_role,
        )

    def add(self, item: Item) -> None:
        """Raises ``BackendError`` for content that no chat message can hold."""
        value = item.value
        match item.type:
            case "message" if value["role"] == "assistant":
                self._say(assistant_text(value["content"]))
            case "message":
                self._hear(value["role"], content_of(value["content"], self.dialect))
            case "reasoning":
                details = details_of(item)
                if (text := reasoning_text(item)) or details:
                    self._open()
                    self.reasoning += [text] if text else []
                    self.details += details
            case "function_call":
                self._call(value, arguments_of(value["arguments"]), custom=False)
            case "custom_tool_call":
                self._call(value, orjson.dumps({"input": value["input"]}).decode(), custom=True)
            case "function_call_output" | "custom_tool_call_output":
                self._output(value)
            case _:
                pass  # says nothing to the model: hosted calls, a vendor's own items, tools (offered with the request)

    def tail(self, reminder: str = "") -> list[bytes]:
        """Messages that are held back, as they stand now, and a user's message if there is a ``reminder``."""
        message = self._assistant_message()
        held = [*([("assistant", message)] if message else []), *self.after]
        if reminder:
            held.append(("user", orjson.dumps({"role": "user", "content": reminder})))
        return [encoded for _, encoded in self._bridged(held)]

    # --- each kind ----------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        if self.waiting and not self.is_open:  # between two outputs
            if message := self._assistant(text, [], []):
                self.after.append(("assistant", message))
            return
        self._open()
        self.texts.append(text)

    def _hear(self, role: str, content: Any) -> None:
        """A message that is not the assistant's."""
        if role == "developer":
            role = self.dialect.developer_role
        if role != "user" and self.dialect.system_messages == "merge_first":
            if isinstance(content, str) and not (self.last_role or self.is_open or self.waiting or self.after):
                self.system.append(content)
                return
            role = "user"
        message = orjson.dumps({"role": role, "content": content})
        if self.waiting:
            self.after.append((role, message))
            return
        self._close()
        self._release()
        self._emit([(role, message)])

    def _release(self) -> None:
        """What waited for outputs is next."""
        after, self.after = self.after, []
        self._emit(after)

    def _emit(self, messages: list[tuple[str, bytes]]) -> None:
        for role, message in self._bridged(messages):
            self.done.append(message)
            self.last_role = role

    def _bridged(self, messages: Iterable[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
        """``messages``, with an assistant's word between a tool's output and a user where the server wants one."""
        bridged: list[tuple[str, bytes]] = []
        last_role = self.last_role
        for role, message in messages:
            if last_role == "tool" and role == "user" and (bridge := self._assistant(self.dialect.bridge, [], [])):
                bridged.append(("assistant", bridge))
            bridged.append((role, message))
            last_role = role
        return bridged

    def _call(self, value: dict[str, Any], arguments: str, *, custom: bool) -> None:
        self._open()
        key = ToolKey(value["name"], value.get("namespace"), custom)
        name = self.names.of_call(key)
        if name is None:
            self.names = self.names.including([key])
            name = self.names.wire[key]
        call_id = value["call_id"]
        function = {"name": name, "arguments": arguments}
        call = {"id": wire_id(call_id, self.dialect), "type": "function", "function": function}
        self.calls.append(orjson.Fragment(orjson.dumps(call)))
        self.waiting.add(call_id)

    def _output(self, value: dict[str, Any]) -> None:
        self._close()
        call_id, output = value["call_id"], value["output"]
        self.waiting.discard(call_id)
        sent_id = wire_id(call_id, self.dialect)
        text, images = output_text(output, self.dialect)
        self._emit([("tool", orjson.dumps({"role": "tool", "tool_call_id": sent_id, "content": text}))])
        if images:
            intro = {"type": "text", "text": f"Images in the output of tool call {sent_id}:"}
            self.after.append(("user", orjson.dumps({"role": "user", "content": [intro, *images]})))

    def _open(self) -> None:
        if not self.is_open:
            self.is_open = True
            if not self.waiting:
                self._release()

    def _close(self) -> None:
        if message := self._assistant_message():
            self._emit([("assistant", message)])
        self.texts, self.reasoning, self.details, self.calls, self.is_open = [], [], [], [], False

    def _assistant_message(self) -> bytes | None:
        text = BETWEEN_MESSAGES.join(filter(None, self.texts))
        return self._assistant(text, self.reasoning, self.calls, self.details)

    def _assistant(
        self, text: str, thoughts: list[str], calls: list[orjson.Fragment], details: list[dict[str, Any]] | None = None
    ) -> bytes | None:
        if not text and not calls:
            return None  # reasoning alone is no message
        message: dict[str, Any] = {"role": "assistant"}
        if text or self.dialect.null_content:
            message["content"] = text or None
        always = self.dialect.reasoning_scope == "always"
        if self.reasoning_field == FIELD:
            if calls and details:
                message[FIELD] = details
            elif calls and thoughts:
                message["reasoning"] = BETWEEN_MESSAGES.join(thoughts)
        elif self.reasoning_field and (always or (calls and thoughts)):
            reasoning = BETWEEN_MESSAGES.join(thoughts)
            if self.reasoning_field == CONTENT_THINKING:
                message["content"] = with_thinking(reasoning, text)
            else:
                message[self.reasoning_field] = reasoning
        if calls:
            message["tool_calls"] = calls
        return orjson.dumps(message)


# --- kept between samples --------------------------------------------------------------------------------


@frozen(eq=False)
class Rendered:
    """A context as messages.

    Attributes:
        done: the messages that stand.
        transcript: where the next link goes on.
        offer: the tools that the conversation was offered last.
    """

    done: Elements = field(repr=False)
    transcript: Transcript = field(repr=False)
    offer: Offer = field(repr=False)

    def pieces(self, instructions: Sequence[str] = (), notes: Sequence[str] = (), reminder: str = "") -> list[bytes]:
        """Elements of the field ``messages``, commas between; a piece ends where a message does.

        Args:
            instructions: texts that stand in the system message in front, before the conversation's own.
            notes: texts that stand there after them.
            reminder: text of a user's message at the end.
        """
        text = BETWEEN_MESSAGES.join(filter(None, [*instructions, *self.transcript.system, *notes]))
        system = [b"," + orjson.dumps({"role": "system", "content": text})] if text else []
        tail = [b"," + message for message in self.transcript.tail(reminder)]
        pieces = [*system, *self.done.pieces(), *tail]
        if pieces:
            pieces[0] = pieces[0][1:]
        return pieces

    def messages(self, instructions: Sequence[str] = (), notes: Sequence[str] = ()) -> bytes:
        """The same in one piece."""
        return b"".join(self.pieces(instructions, notes))


@define(eq=False)
class Renderer:
    """Renders contexts, and keeps the result as long as the context lives.

    Attributes:
        reasoning_field: name under which the server sends reasoning, once it has; "" before.
        n_rendered: items rendered so far, for benchmarks.
    """

    dialect: Dialect
    reasoning_field: str = ""
    n_rendered: int = 0
    _kept: WeakKeyDictionary[Context, Rendered] = field(factory=WeakKeyDictionary, repr=False)

    def render(self, context: Context, tools: tuple[Tool, ...]) -> Rendered:
        """``context`` with ``tools`` on offer. O(items that no earlier call has seen).

        Raises:
            BackendError: the content of an item cannot be sent.
        """
        new: list[Context] = []
        rendered: Rendered | None = None
        for link in context.links():
            rendered = self._kept.get(link)
            if rendered is not None:
                break
            new.append(link)
        offer = (rendered.offer if rendered is not None else Offer()).renewed(tools, self.dialect)
        for link in reversed(new):
            rendered = self._link(rendered, link, offer)
            offer = rendered.offer
            self._kept[link] = rendered
        assert rendered is not None
        if offer is not rendered.offer:
            rendered = Rendered(rendered.done, rendered.transcript, offer)
            self._kept[context] = rendered
        return rendered

    def _link(self, parent: Rendered | None, link: Context, offer: Offer) -> Rendered:
        name = self.dialect.reasoning_in
        reasoning_field = {"same": self.reasoning_field or None, "none": None}.get(name, name)
        if parent is None:
            transcript = Transcript(self.dialect, offer.names, reasoning_field)
        else:
            transcript = parent.transcript.continued(offer.names, reasoning_field)
        for item in link.items:
            transcript.add(item)
            self.n_rendered += 1
        new, transcript.done = transcript.done, []
        done = (parent.done if parent is not None else Elements()).plus(new)
        return Rendered(done, transcript, offer.named(transcript.names))
