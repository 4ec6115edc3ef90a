"""A conversation as the input of a Responses server: each item is rendered once, and a turn appends what is new."""

from typing import Any
from weakref import WeakKeyDictionary

import orjson
from attrs import define, field, frozen

from turntape.core.canonical import Item
from turntape.core.context import Context
from turntape.core.reasoning import reasoning_text
from turntape.core.tools import InertTool, Tool, ToolDefinition, echoed
from turntape.core.wire import ResponseCreate

from .chat_dialect import Dialect
from .chat_tools import Offer, ToolKey, ToolNames
from .responses_upstreams import Upstream

OURS = frozenset({"id", "status", "client_metadata", "internal_chat_message_metadata_passthrough"})
"""Keys of an item that mean nothing to the upstream: our ids are not its ids, and it would look for them."""

SEALED_HERE = "turntape-"
"""How ``encrypted_content`` begins that this server made, for whichever backend."""

AS_FUNCTIONS = Dialect(strict=True)


@frozen(eq=False)
class Rendered:
    """What one link of a context adds to the input.

    Attributes:
        joined: its items, commas between.
        offer: the tools that the conversation was offered last.
    """

    joined: bytes = field(repr=False)
    offer: Offer = field(repr=False)


@define(eq=False)
class Renderer:
    """Renders contexts, and keeps the result as long as the context lives.

    Attributes:
        n_rendered: items rendered so far, for benchmarks.
    """

    upstream: Upstream
    n_rendered: int = 0
    _kept: WeakKeyDictionary[Context, Rendered] = field(factory=WeakKeyDictionary, repr=False)

    def render(self, context: Context, tools: tuple[Tool, ...]) -> Rendered:
        """The newest link of ``context``, with ``tools`` on offer. O(items that no earlier call has seen)."""
        new: list[Context] = []
        offer = Offer()
        for link in context.links():
            if (known := self._kept.get(link)) is not None:
                offer = known.offer
                break
            new.append(link)
        if not self.upstream.native:
            offer = offer.renewed(tools, AS_FUNCTIONS)
        for link in reversed(new):
            names, encoded = offer.names, list[bytes]()
            for item in link.items:
                names, piece = self._item(item, names)
                encoded += [piece] if piece else []
                self.n_rendered += 1
            offer = offer.named(names)
            self._kept[link] = Rendered(b",".join(encoded), offer)
        rendered = self._kept[context]
        if rendered.offer is not offer:
            rendered = self._kept[context] = Rendered(rendered.joined, offer)
        return rendered

    def input(self, context: Context, after: Context | None = None) -> bytes:
        """Elements of ``input``: what ``after`` does not have, commas between. All of it must have been rendered."""
        pieces: list[bytes] = []
        for link in context.links():
            if link is after:
                break
            if joined := self._kept[link].joined:
                pieces.append(joined)
        return b",".join(reversed(pieces))

    def _item(self, item: Item, names: ToolNames) -> tuple[ToolNames, bytes]:
        """``item`` as the upstream takes it; b"" if it says nothing to it."""
        value = {k: v for k, v in item.value.items() if k not in OURS and v is not None}
        match item.type:
            case "message":
                value["type"] = "message"
                if not self.upstream.native:
                    value.pop("phase", None)
            case "reasoning":
                return names, self._reasoning(item, value)
            case "function_call" | "custom_tool_call" if not self.upstream.native:
                names, value = _as_function_call(value, names)
            case "custom_tool_call_output" if not self.upstream.native:
                value["type"] = "function_call_output"
            case "function_call" | "function_call_output" | "custom_tool_call" | "custom_tool_call_output":
                pass
            case "additional_tools" if self.upstream.native:
                pass
            case _:
                return names, b""  # hosted calls, a vendor's own items, tools (offered with the request)
        return names, orjson.dumps(value)

    def _reasoning(self, item: Item, value: dict[str, Any]) -> bytes:
        sealed, summary = value.get("encrypted_content"), value.get("summary") or []
        if self.upstream.encrypted and isinstance(sealed, str) and not sealed.startswith(SEALED_HERE):
            return orjson.dumps({"type": "reasoning", "summary": summary, "encrypted_content": sealed})
        text = reasoning_text(item)
        if not (self.upstream.raw_reasoning and text):
            return b""
        content = [{"type": "reasoning_text", "text": text}]
        return orjson.dumps({"type": "reasoning", "summary": summary, "content": content})


def _as_function_call(value: dict[str, Any], names: ToolNames) -> tuple[ToolNames, dict[str, Any]]:
    custom = value["type"] == "custom_tool_call"
    key = ToolKey(value["name"], value.get("namespace"), custom)
    name = names.of_call(key)
    if name is None:
        names = names.including([key])
        name = names.wire[key]
    arguments = orjson.dumps({"input": value["input"]}).decode() if custom else value["arguments"]
    return names, {"type": "function_call", "call_id": value["call_id"], "name": name, "arguments": arguments}


def request_fields(request: ResponseCreate, offer: Offer, upstream: Upstream) -> dict[str, Any]:
    """Everything in the request but the model, the input and what says how it is delivered: what the client set."""
    fields: dict[str, Any] = {}
    for name in ("instructions", "max_output_tokens", "temperature", "top_p"):
        if (value := getattr(request, name)) is not None:
            fields[name] = value
    if request.reasoning is not None and (reasoning := _set(request.reasoning.raw)):
        fields["reasoning"] = reasoning
    text = _set(request.text.raw) if request.text is not None else {}
    if not upstream.native:
        text.pop("verbosity", None)
    if upstream.always_format:
        text.setdefault("format", {"type": "text"})
    if text:
        fields["text"] = text
    if upstream.encrypted and request.includes("reasoning.encrypted_content"):
        fields["include"] = ["reasoning.encrypted_content"]
    if upstream.cache_key and request.prompt_cache_key is not None:
        fields["prompt_cache_key"] = request.prompt_cache_key
    if upstream.native:
        for name in ("service_tier", "truncation"):
            if (value := getattr(request, name)) is not None:
                fields[name] = value
    return fields | (_native_tools(request) if upstream.native else _function_tools(request, offer, upstream))


def _set(value: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in value.items() if each is not None}


def _native_tools(request: ResponseCreate) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    offered: list[ToolDefinition] = [tool for tool in request.tools or () if not isinstance(tool, InertTool)]
    if offered:
        fields["tools"] = [echoed(tool) if not tool.raw else tool.raw for tool in offered]
    if request.tool_choice is not None:
        fields["tool_choice"] = request.tool_choice.raw
    if request.parallel_tool_calls is not None:
        fields["parallel_tool_calls"] = request.parallel_tool_calls
    return fields


def _function_tools(request: ResponseCreate, offer: Offer, upstream: Upstream) -> dict[str, Any]:
    """Tools as functions; a choice among them by offering only those, which every server honours."""
    functions = [orjson.loads(encoded)["function"] for encoded in offer.encoded]
    if not functions:
        return {}
    mode, only = request.choice.mode, request.choice.only
    if only is not None:
        functions = [each for each in functions if offer.names.key(each["name"]).name in only]
        if not functions:
            return {}
    fields: dict[str, Any] = {"tools": [{"type": "function", "strict": False, **each} for each in functions]}
    if mode != "auto":
        fields["tool_choice"] = mode
    if request.parallel_tool_calls is False and upstream.parallel:
        fields["parallel_tool_calls"] = False
    return fields
