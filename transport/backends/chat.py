"""The ``chat`` backend: any OpenAI-compatible chat-completions server (vLLM, SGLang, llama.cpp, Ollama, Cerebras, ...)."""

import re
import secrets
from collections.abc import AsyncGenerator, Callable
from typing import Any

import orjson
import trio
from attrs import define, field

from turntape.core.seam import StartSample
from turntape.core.wire import ResponseCreate

from ..http_client import HttpClient, Response
from ..http_connections import HttpError
from ..http_target import Target
from .base import BackendError, Batch
from .chat_dialect import DEFAULT, Dialect
from .chat_errors import Refusals
from .chat_stream import ChunkReader
from .chat_tools import request_fields
from .messages import Rendered, Renderer

PATH = "/chat/completions"
MAX_ERROR_BYTES = 256 * 1024
MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""Of an answer that is not streamed though a stream was asked for."""

DRAIN_S = 1.0
"""How long an answer that was given may take to end, so that its connection can be kept."""


def completions_target(url: str) -> Target:
    """Where to POST for a base URL such as http://127.0.0.1:8000/v1, or one that names the route already.

    Raises:
        ValueError: a URL that cannot be used; the text says why and does not repeat it.
    """
    base, mark, query = url.partition("?")
    base = base.rstrip("/")
    if not base.endswith(PATH):
        base += PATH
    return Target.parse(base + mark + query)


def _checked_key(key: str | None) -> str | None:
    if not key:
        return None
    if not re.fullmatch(r"[!-~]+", key):
        raise ValueError("the backend's key holds a blank, a line break or a character outside ASCII; check its source")
    return key


def _new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


@define(eq=False)
class ChatBackend:
    """Asks a chat-completions server for each sample, over warm connections.

    Args:
        url: base URL, usually ending in /v1. A user name or password in it is refused; a query is sent and never shown.
        key: sent as a bearer token; never in a message, a log or a ``repr``.
        models: names to list. The model of a request is passed on as it is, listed or not.
        client: the connections to use.
        new_call_id: makes ids for calls that come without one.

    Raises:
        ValueError: the URL or the key cannot be used; the text repeats neither.
    """

    url: str = field(repr=False)
    key: str | None = field(default=None, repr=False, converter=_checked_key)
    models: tuple[str, ...] = ()
    dialect: Dialect = field(default=DEFAULT, repr=lambda dialect: dialect.name)
    client: HttpClient = field(factory=HttpClient, repr=False)
    new_call_id: Callable[[], str] = field(default=_new_call_id, repr=False)
    target: Target = field(init=False)
    renderer: Renderer = field(init=False, repr=False)
    _refusals: Refusals = field(init=False, repr=False)
    _headers: tuple[tuple[str, str], ...] = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.target = completions_target(self.url)
        self.renderer = Renderer(self.dialect)
        self._refusals = Refusals(self.target.where, self.key)
        authorization = (("Authorization", f"Bearer {self.key}"),) if self.key else ()
        self._headers = (
            ("Content-Type", "application/json"),
            ("Accept", "text/event-stream, application/json"),
            ("User-Agent", "turntape"),
            *authorization,
        )

    @trio.as_safe_channel
    async def sample(self, start: StartSample) -> AsyncGenerator[Batch, None]:
        """See ``Backend.sample``. Whoever reads on after ``Finish``, to the end, lets the connection be kept."""
        request = start.request
        rendered = self.renderer.render(start.context, start.context.tools + request.callable_tools)
        body = encode_request(start.model, request, rendered, self.dialect)
        reader = ChunkReader(rendered.offer.names, self.dialect, self._refusals, self.new_call_id)
        try:
            async with self.client.post(self.target, self._headers, body) as response:
                if not 200 <= response.status < 300:
                    raise await self._refusal(response)
                yield ()
                batch: Batch = ()
                while not reader.ended and (events := await self._events(response, reader)) is not None:
                    batch = reader.feed(events)
                    if batch and not reader.ended:
                        yield batch
                        batch = ()
                self.renderer.reasoning_field = reader.reasoning_field or self.renderer.reasoning_field
                try:
                    last = reader.end()
                except BackendError:
                    if batch:
                        yield batch
                    raise
                yield batch + last
                await response.drain(DRAIN_S)
        except HttpError as exc:
            raise self._refusals.failed(exc) from None

    async def aclose(self) -> None:
        await self.client.aclose()

    async def _events(self, response: Response, reader: ChunkReader) -> list[bytes] | None:
        """Chunks of one read; None at the end. Raises ``HttpError`` if that comes before the answer's."""
        media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            if media_type == "application/json":
                whole = await response.body(MAX_ANSWER_BYTES)
                return [whole] if whole else None
            if media_type == "text/html":
                raise self._refusals.broken("answered with a web page; check its URL, which usually ends in /v1")
            return await response.events()
        except HttpError:
            if reader.finish_reason is None:
                raise
            return None  # the model had finished: only counts can be missing

    async def _refusal(self, response: Response) -> BackendError:
        try:
            body = await response.body(MAX_ERROR_BYTES)
        except HttpError:
            body = b""  # the status says enough
        return self._refusals.refused(response.status, response.headers, body)


def encode_request(model: str, request: ResponseCreate, rendered: Rendered, dialect: Dialect) -> tuple[bytes, ...]:
    """Pieces of the request's body: what the client set, and nothing that it did not."""
    instructions: tuple[bytes, ...] = ()
    if request.instructions:
        instructions = (orjson.dumps({"role": "system", "content": request.instructions}),)
    settings: dict[str, Any] = {"stream": True}
    if dialect.ask_usage:
        settings["stream_options"] = {"include_usage": True}
    if request.max_output_tokens is not None:
        settings[dialect.max_field] = request.max_output_tokens
    for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty"):
        if (value := getattr(request, name)) is not None:
            settings[name] = value
    if request.reasoning is not None and request.reasoning.effort is not None and dialect.effort_field is not None:
        effort = request.reasoning.effort
        settings[dialect.effort_field] = dialect.efforts.get(effort, effort)
    if response_format := _response_format(request):
        settings["response_format"] = response_format
    if request.prompt_cache_key is not None and dialect.cache_field is not None:
        settings[dialect.cache_field] = request.prompt_cache_key
    tools = request_fields(rendered.offer, request.choice, dialect, request.parallel_tool_calls)
    head = b'{"model":' + orjson.dumps(model) + b',"messages":['
    return head, rendered.messages(*instructions), b"]" + tools + b"," + orjson.dumps(settings)[1:]


def _response_format(request: ResponseCreate) -> dict[str, Any] | None:
    form = request.text.format if request.text is not None else None
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return {"type": "json_object"}
    schema = {"name": form.name, "schema": form.schema, "strict": form.strict, "description": form.description}
    return {"type": "json_schema", "json_schema": {name: value for name, value in schema.items() if value is not None}}
