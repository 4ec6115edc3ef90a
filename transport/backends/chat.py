"""The ``chat`` backend: any OpenAI-compatible chat-completions server (vLLM, SGLang, llama.cpp, Ollama, Cerebras, ...)."""

import gzip
import logging
import random
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio
from attrs import define, evolve, field

from turntape.core.seam import StartSample, Usage

from ..http_client import HttpClient, Response
from ..http_connections import HttpError
from ..http_target import Target
from .answer_events import AnswerEvents
from .base import BackendError, Batch
from .chat_dialect import Dialect
from .chat_errors import Refusals, Refused
from .chat_request import cache_headers, encode_request, optional_fields
from .chat_stream import ChunkReader
from .dialects import dialect_for, preset_for
from .messages import Rendered, Renderer
from .required_call import REMINDER, RequiredCall, with_spent

logger = logging.getLogger(__name__)

PATH = "/chat/completions"
MAX_ERROR_BYTES = 256 * 1024
DRAIN_S = 1.0
"""How long an answer that was given may take to end, so that its connection can be kept."""

MIN_GZIP_BYTES = 1024
SLOW_GZIP_BYTES = 64 * 1024
"""A body as long as this is compressed in a thread: at the fastest level it takes about a millisecond."""

RETRY_S = (0.1, 0.5)
"""Bounds of the wait before a request is made again because the model wrote a call that its server could not read."""

TRUNCATED = 2.0
MIN_TRUNCATED_TOKENS = 1024
"""A prompt was cut if we count this many times as much as the server, and it this many tokens at least. Ours: four bytes
are a token in English and code, hardly ever eight; windows are not smaller, and a count of the new part alone is."""


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
class _Way:
    """How models of one dialect are asked here: the row, less what this server refused, and its renderings."""

    dialect: Dialect
    renderer: Renderer
    refusals: Refusals

    def without(self, name: str) -> bool:
        """Leave the field out from now on; False if another sample has seen to that."""
        if name in self.dialect.drop_params:
            return False
        self.dialect = evolve(self.dialect, drop_params=(*self.dialect.drop_params, name))
        return True


@define(eq=False)
class ChatBackend:
    """Asks a chat-completions server for each sample, over warm connections.

    Args:
        url: base URL, usually ending in /v1. A user name or password in it is refused; a query is sent and never shown.
        key: sent as the server wants it, a bearer token mostly; never in a message, a log or a ``repr``.
        models: names to list. The model of a request is passed on as it is, listed or not.
        preset: name of the server's kind, which chooses its dialects; "" to go by the URL's host.
        dialect: one for all models, in place of those of the table.
        headers: to send beside our own.
        client: the connections to use.
        new_call_id: makes ids for calls that come without one.

    Raises:
        ValueError: the URL, the key or the preset cannot be used; the text repeats neither URL nor key.
    """

    url: str = field(repr=False)
    key: str | None = field(default=None, repr=False, converter=_checked_key)
    models: tuple[str, ...] = ()
    preset: str = ""
    dialect: Dialect | None = field(default=None, repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    client: HttpClient = field(factory=HttpClient, repr=False)
    new_call_id: Callable[[], str] = field(default=_new_call_id, repr=False)
    target: Target = field(init=False)
    _ways: dict[str, _Way] = field(factory=dict, init=False, repr=False)  # by a dialect's name: bounded by the table
    _headers: tuple[tuple[str, str], ...] = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.target = completions_target(self.url)
        preset = preset_for(self.preset or self.url)
        authorization: tuple[tuple[str, str], ...] = ()
        if self.key:
            by_header = preset is not None and preset.auth == "api-key"
            authorization = (("api-key", self.key) if by_header else ("Authorization", f"Bearer {self.key}"),)
        self._headers = (
            ("Content-Type", "application/json"),
            ("Accept", "text/event-stream, application/json"),
            ("User-Agent", "turntape"),
            *authorization,
            *(preset.headers.items() if preset is not None else ()),
            *self.headers,
        )

    @classmethod
    def of_preset(cls, name: str, key: str | None = None, *, models: tuple[str, ...] = ()) -> "ChatBackend":
        """The server that ``name`` stands for.

        Raises:
            ValueError: there is no such preset, it has no base URL of its own, or the key cannot be used.
        """
        preset = preset_for(name)
        if preset is None or not preset.base_url:
            raise ValueError(f"the backend {name!r} is at another URL for each user; give that URL")
        return cls(preset.base_url, key, models, preset=name)

    @trio.as_safe_channel
    async def sample(self, start: StartSample) -> AsyncGenerator[Batch, None]:
        """See ``Backend.sample``. Whoever reads on after ``Finish``, to the end, lets the connection be kept."""
        way, request = self._way(start.model), start.request
        rendered = way.renderer.render(start.context, start.context.tools + request.callable_tools)
        call = RequiredCall(bool(rendered.offer.encoded) and request.choice.mode == "required")
        spent: Usage | None = None
        try:
            for reminder in ("", REMINDER):
                reader = ChunkReader(rendered.offer.names, way.dialect, way.refusals, self.new_call_id)
                async with self._accepted(start, way, rendered, reminder) as (response, n_tokens):
                    if not reminder:
                        yield ()
                    batch: Batch = ()
                    answer = AnswerEvents(response, way.refusals, "choices")
                    while not reader.ended and (events := await _events(answer, reader)) is not None:
                        batch = call.passed(reader.feed(events))
                        if batch and not reader.ended:
                            yield batch
                            batch = ()
                    way.renderer.reasoning_field = reader.reasoning_field or way.renderer.reasoning_field
                    try:
                        batch += call.passed(reader.end())
                        _check_prompt(reader, n_tokens, way)
                    except BackendError:
                        if batch := call.released() + batch:
                            yield batch
                        raise
                    if not reminder and call.is_missing(batch[-1]):
                        logger.info("the backend at %s made no call though one was required", self.target.where)
                        if batch := batch[:-1]:
                            yield batch
                        call, spent = RequiredCall(False), reader.usage
                    else:
                        yield with_spent(call.released() + batch, spent)
                        await response.drain(DRAIN_S)
                        return
                    await response.drain(DRAIN_S)
        except HttpError as exc:
            raise way.refusals.failed(exc) from None

    async def warm(self) -> None:
        """See ``Warmable``."""
        await self.client.connections.warm(self.target)

    async def aclose(self) -> None:
        await self.client.aclose()

    def _way(self, model: str) -> _Way:
        dialect = self.dialect or dialect_for(self.preset or self.url, model)
        if dialect.name not in self._ways:
            refusals = Refusals(self.target.where, self.key, dialect.errors)
            self._ways[dialect.name] = _Way(dialect, Renderer(dialect), refusals)
        return self._ways[dialect.name]

    # --- one request --------------------------------------------------------------------------------

    @asynccontextmanager
    async def _accepted(
        self, start: StartSample, way: _Way, rendered: Rendered, reminder: str
    ) -> AsyncIterator[tuple[Response, int]]:
        """The answer to the request once it is one, and our estimate of the prompt's tokens; 0 for none.

        Asks again, before anything was said, without a field that the server refused by name, and once if
        the model wrote a call that its server could not read.

        Args:
            reminder: a user's word at the end of the conversation; "" for none.

        Raises:
            BackendError: it was refused.
            HttpError: the exchange failed.
        """
        has_retried = False
        while True:
            dialect = way.dialect
            body = encode_request(start.model, start.request, rendered, dialect, reminder)
            headers, sent = await self._packed(start, way, body)
            async with self.client.post(self.target, headers, sent) as response:
                if 200 <= response.status < 300:
                    is_text = dialect.truncates and not any(b'"image_url"' in piece for piece in body[1:-1])
                    yield response, sum(map(len, body)) // 4 if is_text else 0
                    return
                error = await self._refusal(response, way, optional_fields(body, dialect))
            if error.unknown_field is not None and error.unknown_field not in dialect.drop_params:
                if way.without(error.unknown_field):
                    logger.warning(
                        "the backend at %s does not take %r; it is left out from now on",
                        self.target.where,
                        error.unknown_field,
                    )
            elif error.malformed_call and not has_retried:
                has_retried = True
                await trio.sleep(random.uniform(*RETRY_S))
            else:
                raise error

    async def _packed(
        self, start: StartSample, way: _Way, body: tuple[bytes, ...]
    ) -> tuple[tuple[tuple[str, str], ...], tuple[bytes, ...]]:
        """Headers, and the body as it is sent: compressed where the row says so."""
        headers = self._headers + cache_headers(start.request, way.dialect)
        n_bytes = sum(map(len, body))
        if not way.dialect.gzip or n_bytes < MIN_GZIP_BYTES:
            return headers, body
        whole = b"".join(body)
        if n_bytes < SLOW_GZIP_BYTES:
            packed = gzip.compress(whole, 1, mtime=0)
        else:
            packed = await trio.to_thread.run_sync(lambda: gzip.compress(whole, 1, mtime=0))
        return (*headers, ("Content-Encoding", "gzip")), (packed,)

    async def _refusal(self, response: Response, way: _Way, optional: tuple[str, ...]) -> Refused:
        try:
            body = await response.body(MAX_ERROR_BYTES)
        except HttpError:
            body = b""  # the status says enough
        return way.refusals.refused(response.status, response.headers, body, optional)


async def _events(answer: AnswerEvents, reader: ChunkReader) -> list[bytes] | None:
    """Chunks of one read; None at the end. Raises ``HttpError`` if that comes before the answer's."""
    try:
        return await answer.read()
    except HttpError:
        if reader.finish_reason is None:
            raise
        return None  # the model had finished: only counts can be missing


def _check_prompt(reader: ChunkReader, n_tokens: int, way: _Way) -> None:
    """Raise ``BackendError`` if the server read a small part of the prompt only.

    Args:
        n_tokens: our own estimate of the prompt; 0 for none.
    """
    n_read = reader.usage.input_tokens if reader.usage is not None else 0
    if n_read >= MIN_TRUNCATED_TOKENS and n_tokens > TRUNCATED * n_read:
        raise way.refusals.too_long(
            f"read only {n_read} tokens of a prompt of about {n_tokens}: it cut it without a word. Give it a larger "
            "window (Ollama: OLLAMA_CONTEXT_LENGTH, or num_ctx in a Modelfile), or ask for less"
        )
