"""Items to chat messages: each is rendered and encoded once in its life, and a turn appends what is new."""

from typing import Any
from weakref import WeakKeyDictionary

import orjson
from attrs import define, field, frozen

from turntape.core.canonical import Item
from turntape.core.context import Context
from turntape.core.reasoning import reasoning_text
from turntape.core.tools import Tool

from .base import BackendError
from .chat_dialect import Dialect
from .chat_tools import Offer, ToolKey, ToolNames

BETWEEN_PARTS = "\n"
"""Joins the text parts of one content, as vLLM does; servers that want a string (Ollama) get one."""

BETWEEN_MESSAGES = "\n\n"
"""Joins an assistant's messages of one turn: templates refuse two assistant messages in a row."""


@define(eq=False)
class Transcript:
    """Messages as a server wants them: the calls of a turn in one assistant message, each output right after it.

    What may still change is held back: the assistant message that more items may join, and messages
    that have to wait until every call before them has its output.

    Attributes:
        reasoning_field: name under which reasoning goes back, or None.
        done: encoded messages.
        waiting: ids of calls without an output.
        after: encoded messages that follow the outputs.
    """

    dialect: Dialect
    names: ToolNames
    reasoning_field: str | None
    done: list[bytes] = field(factory=list)
    texts: list[str] = field(factory=list)
    reasoning: list[str] = field(factory=list)
    calls: list[orjson.Fragment] = field(factory=list)
    waiting: set[str] = field(factory=set)
    after: list[bytes] = field(factory=list)
    is_open: bool = False  # an assistant message is being collected

    def continued(self, names: ToolNames, reasoning_field: str | None) -> "Transcript":
        """A transcript that goes on from here and holds only what is new; this one stays as it is."""
        return Transcript(
            self.dialect,
            names,
            reasoning_field,
            [],
            list(self.texts),
            list(self.reasoning),
            list(self.calls),
            set(self.waiting),
            list(self.after),
            self.is_open,
        )

    def add(self, item: Item) -> None:
        """Raises ``BackendError`` for content that no chat message can hold."""
        value = item.value
        match item.type:
            case "message" if value["role"] == "assistant":
                self._say(_assistant_text(value["content"]))
            case "message":
                role = self.dialect.developer_role if value["role"] == "developer" else value["role"]
                self._tell(orjson.dumps({"role": role, "content": _content(value["content"])}))
            case "reasoning":
                if text := reasoning_text(item):
                    self._open()
                    self.reasoning.append(text)
            case "function_call":
                self._call(value, _arguments(value["arguments"]), custom=False)
            case "custom_tool_call":
                self._call(value, orjson.dumps({"input": value["input"]}).decode(), custom=True)
            case "function_call_output" | "custom_tool_call_output":
                self._output(value)
            case _:
                pass  # says nothing to the model: hosted calls, a vendor's own items, tools (offered with the request)

    def tail(self) -> list[bytes]:
        """Messages that are held back, as they stand now."""
        message = self._assistant_message()
        return [*([message] if message else []), *self.after]

    # --- each kind ----------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        if self.waiting and not self.is_open:  # between two outputs
            self.after.append(orjson.dumps({"role": "assistant", "content": text}))
            return
        self._open()
        self.texts.append(text)

    def _tell(self, message: bytes) -> None:
        if self.waiting:
            self.after.append(message)
            return
        self._close()
        self.done += self.after
        self.after = []
        self.done.append(message)

    def _call(self, value: dict[str, Any], arguments: str, *, custom: bool) -> None:
        self._open()
        key = ToolKey(value["name"], value.get("namespace"), custom)
        name = self.names.of_call(key)
        if name is None:
            self.names = self.names.including([key])
            name = self.names.wire[key]
        call_id = value["call_id"]
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self.calls.append(orjson.Fragment(orjson.dumps(call)))
        self.waiting.add(call_id)

    def _output(self, value: dict[str, Any]) -> None:
        self._close()
        call_id, output = value["call_id"], value["output"]
        self.waiting.discard(call_id)
        text, images = _output_text(output)
        self.done.append(orjson.dumps({"role": "tool", "tool_call_id": call_id, "content": text}))
        if images:
            intro = {"type": "text", "text": f"Images in the output of tool call {call_id}:"}
            self.after.append(orjson.dumps({"role": "user", "content": [intro, *images]}))

    def _open(self) -> None:
        if not self.is_open:
            self.is_open = True
            if not self.waiting:
                self.done += self.after
                self.after = []

    def _close(self) -> None:
        if message := self._assistant_message():
            self.done.append(message)
        self.texts, self.reasoning, self.calls, self.is_open = [], [], [], False

    def _assistant_message(self) -> bytes | None:
        text = BETWEEN_MESSAGES.join(filter(None, self.texts))
        if not text and not self.calls:
            return None  # reasoning alone is no message
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        always = self.dialect.reasoning_scope == "always"
        if self.reasoning_field and (always or (self.calls and self.reasoning)):
            message[self.reasoning_field] = BETWEEN_MESSAGES.join(self.reasoning)
        if self.calls:
            message["tool_calls"] = self.calls
        return orjson.dumps(message)


def _unsupported(what: str, cure: str) -> BackendError:
    return BackendError(
        f"The input holds {what}, which a chat-completions server cannot take. {cure}",
        code="invalid_prompt",
        status=400,
        param="input",
    )


def _text(part: dict[str, Any]) -> str | None:
    """Text of a part, a refusal's included; None for an image.

    Raises:
        BackendError: for a file.
    """
    kind = part["type"]
    if kind == "input_file":
        raise _unsupported("a part of type 'input_file'", "Send the file's text as an 'input_text' part instead.")
    if kind == "input_image":
        return None
    return str(part["refusal"] if kind == "refusal" else part["text"])


def _image(part: dict[str, Any]) -> dict[str, Any]:
    url, detail = part.get("image_url"), part.get("detail")
    if not isinstance(url, str) or not url:
        raise _unsupported(
            "a part of type 'input_image' without an 'image_url'",
            "Send the image as an http(s) or data URL; uploaded files are unknown to it.",
        )
    image = {"url": url}
    if isinstance(detail, str) and detail != "auto":
        image["detail"] = detail
    return {"type": "image_url", "image_url": image}


def _content(content: Any) -> Any:
    """A string if it is all text, since some servers tear arrays apart; otherwise typed parts."""
    if isinstance(content, str):
        return content
    texts = [_text(part) for part in content]
    if None not in texts:
        return BETWEEN_PARTS.join(filter(None, texts))
    return [
        _image(part) if text is None else {"type": "text", "text": text}
        for part, text in zip(content, texts, strict=True)
    ]


def _assistant_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    texts = [_text(part) for part in content]
    if None in texts:
        raise _unsupported("an image in an assistant's message", "Send it in a user's message instead.")
    return BETWEEN_PARTS.join(filter(None, texts))


def _output_text(output: Any) -> tuple[str, list[dict[str, Any]]]:
    """A tool's output as one string, and its images, which only a user's message can carry."""
    if isinstance(output, str):
        return output, []
    texts: list[str] = []
    images: list[dict[str, Any]] = []
    for part in output:
        text = _text(part)
        if text is None:
            images.append(_image(part))
            text = f"[image {len(images)}: in a message below]"
        texts.append(text)
    return BETWEEN_PARTS.join(texts), images


def _arguments(text: str) -> str:
    """Arguments that are surely a JSON object: servers parse the whole history and fail on what a model once wrote."""
    if not text.strip():
        return "{}"
    try:
        if isinstance(orjson.loads(text), dict):
            return text
    except orjson.JSONDecodeError:
        pass
    return orjson.dumps({"unreadable_arguments": text}).decode()


# --- kept between samples --------------------------------------------------------------------------------


@frozen(eq=False)
class Rendered:
    """A context as messages: its parent's and the new ones.

    Attributes:
        joined: the messages that this link adds, commas between.
        transcript: where the next link goes on.
        offer: the tools that the conversation was offered last.
    """

    parent: "Rendered | None"
    joined: bytes = field(repr=False)
    transcript: Transcript = field(repr=False)
    offer: Offer = field(repr=False)

    def messages(self, *before: bytes) -> bytes:
        """Elements of the field ``messages``, commas between.

        Args:
            before: encoded messages to put in front.
        """
        pieces: list[bytes] = []
        link: Rendered | None = self
        while link is not None:
            if link.joined:
                pieces.append(link.joined)
            link = link.parent
        return b",".join([*before, *reversed(pieces), *self.transcript.tail()])


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
            rendered = Rendered(rendered.parent, rendered.joined, rendered.transcript, offer)
            self._kept[context] = rendered
        return rendered

    def _link(self, parent: Rendered | None, link: Context, offer: Offer) -> Rendered:
        name = self.dialect.reasoning_in
        reasoning_field = (self.reasoning_field or None) if name == "" else name
        if parent is None:
            transcript = Transcript(self.dialect, offer.names, reasoning_field)
        else:
            transcript = parent.transcript.continued(offer.names, reasoning_field)
        for item in link.items:
            transcript.add(item)
            self.n_rendered += 1
        joined, transcript.done = b",".join(transcript.done), []
        return Rendered(parent, joined, transcript, offer.named(transcript.names))
