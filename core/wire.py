"""Client events of the Responses API as attrs classes, and how a text becomes one."""

import json
import re
from typing import Any

import orjson
from attrs import field, frozen

from . import items as _items  # registers the item models with the converter
from .canonical import Item
from .errors import (
    SHOWN,
    InvalidField,
    InvalidJson,
    InvalidStreamId,
    MissingField,
    UnknownField,
    UnsupportedEventType,
    UnsupportedField,
)
from .structuring import Mismatch, converter, expect, kind_of, one_of, structure
from .tools import Tool, ToolChoice, ToolDefinition, callable_tools, echoed

STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}")
EVENT_TYPES = ("response.create", "response.append")
IGNORED_EVENT_TYPES = ("response.processed",)
"""Sent by Codex near 0.130, which expects no reply. Source: PROTOCOL section 3 of the client survey, 2026-11."""

MAX_METADATA_PAIRS, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512  # OpenAI API reference


@frozen
class TextFormat:
    """``text.format``: "text", "json_object", or "json_schema" with a name and a schema."""

    type: str = "text"
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


@frozen
class TextSettings:
    format: TextFormat | None = None
    verbosity: str | None = None
    raw: dict[str, Any] = field(factory=dict)


@frozen
class ReasoningSettings:
    effort: str | None = None
    summary: str | None = None
    raw: dict[str, Any] = field(factory=dict)


@frozen
class PromptCacheOptions:
    prewarm: bool | None = None
    raw: dict[str, Any] = field(factory=dict)


@frozen
class Added:
    """What a request adds to the conversation."""

    items: tuple[Item, ...] = ()


@frozen
class ResponseCreate:
    """``response.create``, or the body of a POST: every field of the API that this server acts on or echoes.

    Fields keep the client's value; an absent or null field has its default. Unknown fields stay in ``raw``.
    """

    model: str | None = None
    input: Added = Added()
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    store: bool | None = None
    stream: bool | None = None
    generate: bool | None = None
    background: bool | None = None
    prompt: Any = None
    tools: tuple[ToolDefinition, ...] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    truncation: str | None = None
    text: TextSettings | None = None
    reasoning: ReasoningSettings | None = None
    include: tuple[str, ...] | None = None
    metadata: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    user: str | None = None
    raw: dict[str, Any] = field(factory=dict, repr=False)

    @property
    def stores(self) -> bool:
        return self.store is not False

    @property
    def generates(self) -> bool:
        prewarm = self.prompt_cache_options is not None and self.prompt_cache_options.prewarm is True
        return self.generate is not False and not prewarm

    @property
    def callable_tools(self) -> tuple[Tool, ...]:
        """Tools that this request itself offers; the conversation may have brought more (``Context.tools``)."""
        return callable_tools(self.tools or ())

    @property
    def choice(self) -> ToolChoice:
        return self.tool_choice or ToolChoice()

    def includes(self, name: str) -> bool:
        return name in (self.include or ())


@frozen
class ResponseAppend:
    """``response.append`` of the prototype: more input for the response that is open."""

    input: Added
    response_id: str | None = None
    previous_response_id: str | None = None


def _added(value: Any, _: Any) -> Added:
    if value is None:
        return Added()
    if isinstance(value, str):
        return Added((Item.of(_items.user_message(value)),))
    if not isinstance(value, list):
        raise Mismatch(f"expected a string or an array of items, but got {kind_of(value)} instead")
    return Added(converter.structure(value, tuple[Item, ...]))


def _text_format(value: Any, _: Any) -> TextFormat:
    kind = one_of(expect(value, dict).get("type"), "text", "json_object", "json_schema")
    if kind == "json_schema":
        expect(value.get("name"), str)
        expect(value.get("schema"), dict)
    optional = {name: value.get(name) for name in ("name", "schema", "strict", "description")}
    for name, allowed in (("name", str), ("schema", dict), ("strict", bool), ("description", str)):
        if optional[name] is not None:
            expect(optional[name], allowed)
    return TextFormat(kind, **optional)


converter.register_structure_hook(Added, _added)
converter.register_structure_hook(TextFormat, _text_format)


def read(text: str) -> dict[str, Any]:
    """Return the JSON object in ``text``; nothing in it is checked.

    Raises:
        InvalidJson: with the parser's reason and place.
    """
    try:
        raw = orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        if "surrogate" not in str(exc):
            raise InvalidJson(f"The message is not valid JSON: {exc}.") from None
        raw = _with_lone_surrogates_replaced(text)
    if not isinstance(raw, dict):
        raise InvalidJson(f"Expected a JSON object with a 'type', but got {kind_of(raw)} instead.")
    return raw


def _with_lone_surrogates_replaced(text: str) -> Any:
    """The standard library reads what orjson refuses: lone surrogates, which JavaScript agents do send."""
    try:
        plain = json.dumps(json.loads(text), ensure_ascii=False, allow_nan=False)
        return orjson.loads(re.sub("[\ud800-\udfff]", "\ufffd", plain))
    except (ValueError, RecursionError) as exc:
        raise InvalidJson(f"The message is not valid JSON: {exc}.") from None


def read_event_type(raw: dict[str, Any]) -> str:
    """Return the event's type, or "" for one that is to be ignored."""
    kind = raw.get("type")
    if kind in EVENT_TYPES:
        return str(kind)
    if kind in IGNORED_EVENT_TYPES:
        return ""
    if kind is None:
        raise UnsupportedEventType("Missing required parameter: 'type'.", param="type")
    shown = repr(kind[:64]) if isinstance(kind, str) else kind_of(kind)
    known = " and ".join(f"'{name}'" for name in EVENT_TYPES)
    raise UnsupportedEventType(f"Unsupported event type {shown}; this server knows {known}.", param="type")


def read_stream_id(raw: dict[str, Any]) -> str | None:
    """Null counts as omitted."""
    stream_id = raw.get("stream_id")
    if stream_id is not None and not (isinstance(stream_id, str) and STREAM_ID.fullmatch(stream_id)):
        raise InvalidStreamId(
            "'stream_id' must be a non-empty string of at most 256 characters: letters, digits, '_', '-' and '.'.",
            param="stream_id",
        )
    return stream_id


def structure_create(raw: dict[str, Any], *, over_http: bool = False, default_model: str = "") -> ResponseCreate:
    """The checked request.

    Raises:
        ProtocolError: names the field, what it holds, and what it should hold.
    """
    if over_http:
        for name in ("stream_id", "generate"):
            if name in raw:
                raise UnknownField(f"Unknown parameter: '{name}'. It exists on WebSocket connections only.", param=name)
    request = structure(raw, ResponseCreate)
    if not (request.model or default_model):
        raise MissingField("Missing required parameter: 'model'.", param="model")
    if request.background:
        raise UnsupportedField("Background responses are not supported; leave 'background' out.", param="background")
    if request.prompt is not None:
        raise UnsupportedField("Prompt templates are not supported; send 'instructions' and 'input'.", param="prompt")
    if request.conversation is not None:
        raise UnsupportedField(
            "Conversations are not supported; continue with 'previous_response_id' instead.", param="conversation"
        )
    _check_ranges(request)
    return request


def _check_ranges(request: ResponseCreate) -> None:
    for name, low, high in (
        ("temperature", 0, 2),
        ("top_p", 0, 1),
        ("top_logprobs", 0, 20),
        ("max_output_tokens", 1, None),
        ("max_tool_calls", 0, None),
    ):
        value = getattr(request, name)
        if value is not None and (value < low or (high is not None and value > high)):
            bounds = f"at least {low}" if high is None else f"between {low} and {high}"
            raise InvalidField(f"Invalid value for '{name}': expected a number {bounds}, but got {value}.", param=name)
    for name, choices in (("truncation", ("auto", "disabled")),):
        value = getattr(request, name)
        if value is not None and value not in choices:
            raise InvalidField(
                f"Invalid value for '{name}': expected one of {', '.join(map(repr, choices))}, but got {value[:64]!r}.",
                param=name,
            )
    if request.text is not None and request.text.verbosity not in (None, "low", "medium", "high"):
        raise InvalidField(
            f"Invalid value for 'text.verbosity': expected one of 'low', 'medium', 'high', "
            f"but got {request.text.verbosity[:64]!r}.",
            param="text.verbosity",
        )
    metadata = request.metadata or {}
    if len(metadata) > MAX_METADATA_PAIRS:
        raise InvalidField(
            f"Invalid value for 'metadata': expected at most {MAX_METADATA_PAIRS} pairs, but got {len(metadata)}.",
            param="metadata",
        )
    for key, value in metadata.items():
        if not isinstance(value, str) or len(key) > MAX_METADATA_KEY or len(value) > MAX_METADATA_VALUE:
            raise InvalidField(
                f"Invalid value for 'metadata.{key[:64]}': expected a string of at most {MAX_METADATA_VALUE} "
                f"characters under a key of at most {MAX_METADATA_KEY}, but got {kind_of(value)}.",
                param=f"metadata.{key[:64]}",
            )


def check_choice(request: ResponseCreate, brought: tuple[Tool, ...]) -> None:
    """Raises ``InvalidField`` if a tool is chosen that nobody offers.

    Args:
        brought: tools that the conversation brought.
    """
    if not request.choice.only:
        return
    names = {tool.name for tool in (*request.callable_tools, *brought)}
    for name in request.choice.only:
        if name not in names:
            raise InvalidField(
                f"Tool choice '{name[:SHOWN]}' not found in 'tools'; offer it there or choose another.",
                param="tool_choice",
            )


def structure_append(raw: dict[str, Any]) -> ResponseAppend:
    request = structure(raw, ResponseAppend)
    if not request.input.items:
        raise InvalidField("Invalid value for 'input': expected at least one item to append.", param="input")
    return request


def echo(request: ResponseCreate, model: str) -> dict[str, Any]:
    """The effective request as every Response object shows it: the union of the live API's keys and Open Responses'."""
    text, reasoning = request.text, request.reasoning
    text_raw = dict(text.raw) if text is not None else {}
    if text_raw.get("format") is None:
        text_raw["format"] = {"type": "text"}
    if text_raw.get("verbosity") is None:
        text_raw["verbosity"] = "medium"
    return {
        "background": False,
        "frequency_penalty": request.frequency_penalty or 0,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": request.metadata or {},
        "model": model,
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "presence_penalty": request.presence_penalty or 0,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "prompt_cache_retention": request.prompt_cache_retention,
        "reasoning": {"effort": None, "summary": None, **(reasoning.raw if reasoning is not None else {})},
        "safety_identifier": request.safety_identifier,
        "store": request.stores,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "text": text_raw,
        "tool_choice": request.choice.raw,
        "tools": [echoed(tool) for tool in request.tools or ()],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "truncation": request.truncation or "disabled",
        "user": request.user,
    }
