"""The ``llama`` backend: a GGUF model in this process, by llama.cpp."""

import secrets
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import trio
from attrs import define, evolve, field

from turntape.core.seam import Increment, StartSample, Text
from turntape.core.wire import ResponseCreate

from .base import BackendError, Batch
from .call_patterns import Patterns
from .call_reader import CallReader
from .chat_dialect import Dialect
from .chat_errors import Refusals
from .chat_stream import ChunkReader
from .chat_tools import ToolNames, request_fields
from .llama_engine import Engine, EngineError, EngineSettings
from .llama_file import ModelFile
from .llama_tools import OPEN, Rules, in_words, rules, without_tools
from .messages import Rendered, Renderer
from .model_families import DEFAULT, families
from .schema_bounds import is_bounded
from .template_variables import Variables, variables

DIALECT = Dialect(name="llama", reasoning_in="reasoning_content")

MAX_WAITING = 64
"""Samples that wait for a slot; ours. More are told to come back."""


def _new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


@define(eq=False)
class LlamaBackend:
    """Samples from a model file. The file is looked at when this is made, and loaded by ``load`` or by the first sample.

    Args:
        path: a GGUF file.
        settings: its window, its threads and so on. A window wider than the model's own is cut to it.
        variables: what the model's chat template is told besides, by name.
        new_call_id: makes the ids of tool calls.

    Attributes:
        model: what the file says of itself.

    Raises:
        ModelFileError: (a ``ValueError``) the file cannot be used; the text says why.
    """

    path: Path = field(converter=Path)
    settings: EngineSettings = field(factory=EngineSettings)
    variables: Variables = field(factory=dict, kw_only=True)
    new_call_id: Callable[[], str] = field(default=_new_call_id, repr=False)
    model: ModelFile = field(init=False)
    models: tuple[str, ...] = field(init=False)
    renderer: Renderer = field(factory=lambda: Renderer(DIALECT), init=False, repr=False)
    _refusals: Refusals = field(init=False, repr=False)
    _engine: Engine | None = field(default=None, init=False, repr=False)
    _loading: trio.Lock = field(factory=trio.Lock, init=False, repr=False)
    _n_samples: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.model = ModelFile.read(self.path)
        self.models = (self.model.name,)
        self._refusals = Refusals(f"llama:{self.path.name}")
        if self.model.n_ctx_train:
            self.settings = evolve(self.settings, n_ctx=min(self.settings.n_ctx, self.model.n_ctx_train))

    @classmethod
    async def open(cls, path: Path | str, settings: EngineSettings | None = None) -> "LlamaBackend":
        """One that is loaded.

        Raises:
            ModelFileError: the file is no model.
            EngineError: xllamacpp is not installed, or cannot load the file.
        """
        backend = cls(Path(path), settings or EngineSettings())
        await backend.load()
        return backend

    async def load(self) -> Engine:
        """Load the model, once. Raises ``EngineError``."""
        async with self._loading:
            if self._engine is None:
                self._engine = await Engine.load(self.path, self.settings)
            return self._engine

    @trio.as_safe_channel
    async def sample(self, start: StartSample) -> AsyncGenerator[Batch, None]:
        """See ``Backend.sample``."""
        if self._n_samples >= self.settings.n_slots + MAX_WAITING:
            raise BackendError(
                f"The model {self.model.name} has {MAX_WAITING} requests waiting for it. Come back later.",
                code="server_is_overloaded",
                status=503,
                retry_after="5",
            )
        self._n_samples += 1
        try:
            engine = await self._loaded()
            request, accepted = start.request, False
            rendered = self.renderer.render(start.context, start.context.tools + request.callable_tools)
            for attempt in self._attempts(request, rendered):
                reader = AnswerReader(attempt, rendered.offer.names, self._refusals, self.new_call_id)
                async with engine.ask(self._body(request, rendered, attempt)) as answer:
                    while not reader.is_unheld and (chunks := await answer.receive()):
                        batch = reader.feed(chunks)
                        if reader.failure is not None and not accepted and not batch:
                            raise reader.failure
                        if not accepted:
                            accepted = True
                            yield ()
                        if batch:
                            yield batch
                    if answer.failure is not None:
                        raise self._failed(answer.failure)
                if not reader.is_unheld:
                    yield reader.end()
                    return
            raise BackendError(
                f"The model {self.model.name} cannot be held to a JSON schema of this request: llama.cpp does not take "
                "it. Leave out what is unusual in it, such as look-around in patterns and references to other documents.",
                code="invalid_prompt",
                status=400,
                param="text.format" if _schema(request) is not None else "tools",
            )
        finally:
            self._n_samples -= 1

    async def aclose(self) -> None:
        """Wait for samples that still run to their next token or batch, and give the memory back."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.aclose()

    async def _loaded(self) -> Engine:
        try:
            return await self.load()
        except EngineError as exc:
            raise BackendError(str(exc), status=503) from None

    def _attempts(self, request: ResponseCreate, rendered: Rendered) -> Iterator[Rules]:
        """The rules to sample under; if llama.cpp does not take them, the next."""
        schema = _schema(request)
        begins = "{" if schema is not None and schema.get("type") == "object" else ""
        is_strict = is_bounded([tool.parameters for tool in rendered.offer.tools])
        if not is_bounded([schema]):
            return
        if self.model.takes_tools:
            if is_strict:
                yield Rules(begins="" if rendered.offer.encoded else begins)
            return
        parallel = request.parallel_tool_calls is not False
        strict = rules(rendered.offer, request.choice, schema, parallel=parallel, strict=is_strict)
        yield strict if strict.reads_calls else evolve(strict, begins=begins)
        if strict.begins == OPEN and is_strict:
            yield rules(rendered.offer, request.choice, schema, parallel=parallel, strict=False)

    def _body(self, request: ResponseCreate, rendered: Rendered, attempt: Rules) -> bytes:
        """A request for llama.cpp. ``return_progress`` gives a chunk for each batch of the prefill: a chance to stop."""
        settings: dict[str, Any] = {
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_progress": True,
            "cache_prompt": True,
        }
        if request.max_output_tokens is not None:
            settings["max_tokens"] = request.max_output_tokens
        for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty"):
            if (value := getattr(request, name)) is not None:
                settings[name] = value
        if request.reasoning is not None and request.reasoning.effort is not None:
            settings["reasoning_effort"] = request.reasoning.effort
        if told := variables(self.model.chat_template, request, self.variables):
            settings["chat_template_kwargs"] = told
        notes, tools = [], b""
        if self.model.takes_tools:
            tools = request_fields(rendered.offer, request.choice, DIALECT, request.parallel_tool_calls)
            if (schema := _schema(request)) is not None:
                settings["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
        elif rendered.offer.encoded:
            notes.append(in_words(rendered.offer))
        messages = b"[" + rendered.messages([request.instructions or ""], notes) + b"]"
        if not self.model.takes_tools:
            messages = orjson.dumps(without_tools(orjson.loads(messages)))
            if attempt.grammar:
                settings["grammar"] = attempt.grammar
        return b'{"messages":' + messages + tools + b"," + orjson.dumps(settings)[1:]

    def _failed(self, failure: Exception) -> BackendError:
        """llama.cpp threw: its template refused the messages, most often."""
        said = self._refusals.masked(str(failure))
        return BackendError(
            f"The model {self.model.name} cannot take the request: {said}",
            code="invalid_prompt",
            status=400,
            param="input",
        )


def _schema(request: ResponseCreate) -> dict[str, Any] | None:
    """The schema that the answer's text must match, or None."""
    form = request.text.format if request.text is not None else None
    if form is None or form.type == "text":
        return None
    return {"type": "object"} if form.type == "json_object" else form.schema or {}


@define(eq=False)
class AnswerReader:
    """Reads the chunks of one answer.

    Attributes:
        is_unheld: the answer does not begin as its grammar says, since llama.cpp samples freely where it cannot take a
            schema. Nothing of it was told.
    """

    rules: Rules
    names: ToolNames
    refusals: Refusals
    new_call_id: Callable[[], str]
    is_unheld: bool = False
    _begun: str = ""
    _chunks: ChunkReader = field(init=False)
    _calls: CallReader | None = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._chunks = ChunkReader(self.names, DIALECT, self.refusals, self.new_call_id)
        hermes = Patterns.of(families()[DEFAULT])
        self._calls = CallReader(self.names, self.new_call_id, hermes) if self.rules.reads_calls else None

    @property
    def failure(self) -> BackendError | None:
        """What llama.cpp said instead of going on."""
        return self._chunks.failure

    def feed(self, chunks: list[bytes]) -> Batch:
        return self._read(self._chunks.feed(chunks))

    def end(self) -> Batch:
        """The last batch. Raises ``BackendError`` for an answer that is not whole."""
        *said, finish = self._chunks.end()
        rest = self._calls.end() if self._calls is not None else ()
        return *self._read(tuple(said)), *rest, finish

    def _read(self, increments: Batch) -> Batch:
        out: list[Increment] = []
        for increment in increments:
            if not isinstance(increment, Text):
                out.append(increment)
                continue
            if len(self._begun) < len(self.rules.begins):
                self._begun = (self._begun + increment.text)[: len(self.rules.begins)]
                if not self.rules.begins.startswith(self._begun):
                    self.is_unheld = True
                    return ()
            out += (increment,) if self._calls is None else self._calls.feed(increment.text)
        return tuple(out)
