"""The body of a chat-completions request: what the client set, in the server's words, and nothing that it refuses."""

import re
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import orjson

from turntape.core.wire import ResponseCreate, TextFormat

from .base import BackendError
from .chat_dialect import Dialect
from .chat_tools import request_fields
from .messages import Rendered

MAX_CACHE_KEY = 64  # OpenAI
JSON_NOTE = "Your final answer must be one valid JSON value and nothing else: no text around it, no code fence."


def encode_request(
    model: str, request: ResponseCreate, rendered: Rendered, dialect: Dialect, reminder: str = ""
) -> tuple[bytes, ...]:
    """Pieces of the request's body.

    Args:
        reminder: a user's word at the end of the conversation; "" for none.

    Raises:
        BackendError: the model cannot do what is asked over this API, or there are too many tools.
    """
    tools = request_fields(rendered.offer, request.choice, dialect, request.parallel_tool_calls)
    if tools:
        _check_tools_with_reasoning(model, request, dialect)
    settings: dict[str, Any] = {"stream": True}
    if dialect.ask_usage:
        settings["stream_options"] = {"include_usage": True}
    if request.max_output_tokens is not None:
        settings[dialect.max_field] = request.max_output_tokens
    for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty"):
        if (value := getattr(request, name)) is not None:
            settings[name] = value
    settings |= _effort(request, dialect)
    response_format, note = _format(request, dialect, has_tools=bool(tools))
    if response_format:
        settings["response_format"] = response_format
    if dialect.cache_field and (key := _cache_key(request)):
        settings[dialect.cache_field] = key
    settings |= dialect.extra_body
    for name in dialect.drop_params:
        settings.pop(name, None)
    messages = rendered.pieces([request.instructions or ""], [note], reminder)
    return b'{"model":' + orjson.dumps(model) + b',"messages":[', *messages, b"]" + tools + _fields(settings) + b"}"


def cache_headers(request: ResponseCreate, dialect: Dialect) -> tuple[tuple[str, str], ...]:
    """The conversation's name, for routers that keep it in one place; nothing if the client gave none."""
    key = _cache_key(request)
    return ((dialect.cache_header, key),) if dialect.cache_header and key else ()


def optional_fields(body: tuple[bytes, ...], dialect: Dialect) -> tuple[str, ...]:
    """Those of the dialect's hints that the request in ``body`` has."""
    sent = orjson.loads(b'{"_":0' + body[-1][1:])
    return tuple(name for name in dialect.hints if name in sent)


def _fields(settings: dict[str, Any]) -> bytes:
    return b"," + orjson.dumps(settings)[1:-1] if settings else b""


def _cache_key(request: ResponseCreate) -> str | None:
    key = request.prompt_cache_key
    if not key or re.fullmatch(rf"[!-~]{{1,{MAX_CACHE_KEY}}}", key):
        return key or None
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _effort(request: ResponseCreate, dialect: Dialect) -> dict[str, Any]:
    """The reasoning effort in the server's words; empty if it is not asked for, or has none."""
    effort = request.reasoning.effort if request.reasoning is not None else None
    if effort is None:
        return {}
    value = dialect.efforts.get(effort, effort)
    if isinstance(value, dict):
        return value
    if not value or not dialect.effort_field:
        return {}
    for name in reversed(dialect.effort_field.split(".")):
        value = {name: value}
    return dict(value)


def _check_tools_with_reasoning(model: str, request: ResponseCreate, dialect: Dialect) -> None:
    effort = request.reasoning.effort if request.reasoning is not None else None
    allowed = {"ok": True, "if_not_asked": effort in (None, "none"), "never": effort == "none"}
    if not allowed[dialect.tools_with_reasoning]:
        raise BackendError(
            f"The model {model[:64]!r} takes tools together with reasoning over the Responses API only, not over chat "
            "completions. Reach it by a backend of the form responses+URL, or set 'reasoning.effort' to 'none'.",
            code="invalid_prompt",
            status=400,
            param="reasoning.effort",
        )


def _format(request: ResponseCreate, dialect: Dialect, *, has_tools: bool) -> tuple[dict[str, Any] | None, str]:
    """``response_format``, and what has to be said in words since the server does not take it as a field."""
    form = request.text.format if request.text is not None else None
    if form is None or form.type == "text":
        return None, ""
    if has_tools and not dialect.tools_with_format:
        return None, " ".join(_in_words(form))
    if form.type in dialect.formats:
        return _response_format(form), ""
    if "json_object" in dialect.formats:
        return {"type": "json_object"}, " ".join(_in_words(form))
    return None, " ".join(_in_words(form))


def _in_words(form: TextFormat) -> Iterator[str]:
    yield JSON_NOTE
    if form.description:
        yield form.description
    if form.schema is not None:
        yield f"It must match this JSON schema: {orjson.dumps(form.schema).decode()}"


def _response_format(form: TextFormat) -> dict[str, Any]:
    if form.type == "json_object":
        return {"type": "json_object"}
    schema = {"name": form.name, "schema": form.schema, "strict": form.strict, "description": form.description}
    return {"type": "json_schema", "json_schema": {name: value for name, value in schema.items() if value is not None}}
