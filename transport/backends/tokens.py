"""The ``tokens`` backend: servers that take token ids (vLLM, SGLang, llama.cpp), so that a prompt is only ever appended."""

import secrets
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
import trio
from attrs import define, field, frozen

from turntape.core.rendering import Tokenizer
from turntape.core.seam import StartSample

from ..http_client import HttpClient, Response
from ..http_connections import HttpError
from ..http_target import Target
from ..tokenizers import NoVocabulary, load_harmony
from .answer_events import MAX_ANSWER_BYTES, AnswerEvents
from .base import BackendError, Batch
from .chat import DRAIN_S, MAX_ERROR_BYTES
from .chat_errors import Refusals
from .model_families import families
from .template_variables import Variables
from .tokens_base import Prompt, TokenRenderer, Turn
from .tokens_files import FilesSource, ModelFilesError, check_folder
from .tokens_harmony import HarmonyRenderer
from .tokens_probe import Found, find
from .tokens_sampling import Sampling
from .tokens_servers import SERVERS, Ask, Server
from .tokens_source import LlamaCppSource, Source
from .tokens_template import TemplateRenderer

SETTINGS = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
RENDERERS = ("auto", "harmony", "template")
N_TURNS = 4
"""Requests that one sample may take; ours: obeying a request needs three at most."""


def _new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


@frozen
class Probe:
    """What a look at the server says, for people.

    Attributes:
        server: its kind.
        renderer: how prompts are made.
        notes: what should be known about it, in sentences.
    """

    server: str
    renderer: str
    notes: tuple[str, ...] = ()


@define(eq=False)
class TokensBackend:
    """Renders each conversation to token ids itself, sends them, and reads the ids that come back.

    Args:
        url: the server's base URL, with or without /v1.
        key: sent as a bearer token; never in a message, a log or a ``repr``.
        server: "vllm", "sglang", "llamacpp", or "auto" to ask it.
        renderer: "harmony" for gpt-oss, "template" for the model's own chat template, or "auto".
        models: names to list. The model of a request is passed on as it is.
        client: the connections to use.
        tokenizer: the vocabulary of gpt-oss; None to load it when it is first needed.
        tokenizer_path: folder with tokenizer.json and the chat template of any other model. None behind llama.cpp, which
            has both itself.
        family: how a model with a chat template writes its calls: a name of ``families()``; "" to see it in the template.
        variables: what the chat template is told besides, by name.
        keeps: see ``HarmonyRenderer``; for measuring only.

    Raises:
        ValueError: an argument cannot be used; the text repeats neither URL nor key.
    """

    url: str = field(repr=False)
    key: str | None = field(default=None, repr=False, kw_only=True)
    server: str = field(default="auto", kw_only=True)
    renderer: str = field(default="auto", kw_only=True)
    models: tuple[str, ...] = field(default=(), kw_only=True)
    client: HttpClient = field(factory=HttpClient, repr=False, kw_only=True)
    tokenizer: Tokenizer | None = field(default=None, repr=False, kw_only=True)
    tokenizer_path: Path | None = field(default=None, kw_only=True)
    family: str = field(default="", kw_only=True)
    variables: Variables = field(factory=dict, kw_only=True)
    keeps: bool = field(default=True, kw_only=True)
    new_call_id: Callable[[], str] = field(default=_new_call_id, repr=False, kw_only=True)
    _base: str = field(init=False, repr=False)
    _where: str = field(init=False)
    _refusals: Refusals = field(init=False, repr=False)
    _headers: tuple[tuple[str, str], ...] = field(init=False, repr=False)
    _found: Found | None = field(default=None, init=False, repr=False)
    _renderers: dict[str, TokenRenderer] = field(factory=dict, init=False, repr=False)
    _looking: trio.Lock = field(factory=trio.Lock, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.server != "auto" and self.server not in SERVERS:
            raise ValueError(f"the kind of server must be auto, {', '.join(SERVERS)}, not {self.server[:64]!r}")
        if self.renderer not in RENDERERS:
            raise ValueError(f"the renderer must be {', '.join(RENDERERS)}, not {self.renderer[:64]!r}")
        if self.family and self.family not in families():
            raise ValueError(f"the family must be one of {', '.join(families())}, not {self.family[:64]!r}")
        if self.tokenizer_path is not None:
            check_folder(self.tokenizer_path)
        if "?" in self.url:
            raise ValueError("the URL holds a query (?...); give the server's base URL alone")
        self._base = self.url.rstrip("/").removesuffix("/v1")
        self._where = Target.parse(self._base).where
        if self.key is not None and (not self.key.isascii() or not self.key.isprintable() or " " in self.key):
            raise ValueError(
                "the backend's key holds a blank, a line break or a character outside ASCII; check its source"
            )
        self._refusals = Refusals(self._where, self.key)
        self._headers = (
            ("Content-Type", "application/json"),
            ("Accept", "text/event-stream, application/json"),
            ("User-Agent", "turntape"),
            *((("Authorization", f"Bearer {self.key}"),) if self.key else ()),
        )

    @trio.as_safe_channel
    async def sample(self, start: StartSample) -> AsyncGenerator[Batch, None]:
        """See ``Backend.sample``."""
        try:
            server, renderer = await self._ready(start.model)
            prompt = await renderer.prompt(start)
            sampling = Sampling(prompt.speech, self._refusals, prompt.n_tokens)
            turn = prompt.first
            for n in range(N_TURNS):
                body = server.body(_ask(start, prompt, turn, sampling.n_ids))
                async with self.client.post(self._target(server.path), self._headers, body) as response:
                    if not 200 <= response.status < 300:
                        raise await self._refusal(response)
                    if n == 0:
                        yield ()
                    answer = AnswerEvents(response, self._refusals, "")
                    batch = sampling.begin(server, resumes=n > 0 or bool(turn.ids))
                    while not sampling.is_over and (events := await _events(answer, sampling)) is not None:
                        batch += sampling.feed(events)
                        if batch and not sampling.is_over:
                            yield tuple(batch)
                            batch = []
                    if prompt.speech.turn is None:
                        try:
                            last = sampling.end()
                        except BackendError:
                            if batch:
                                yield tuple(batch)
                            raise
                        yield (*batch, *last)
                        await response.drain(DRAIN_S)
                        return
                    turn = prompt.speech.turn
                    if batch:
                        yield tuple(batch)
            raise self._refusals.broken("did not do what the request demands, even when its answer was begun for it")
        except HttpError as exc:
            self._forget()
            raise self._refusals.failed(exc) from None

    async def probe(self, model: str = "") -> Probe:
        """Look at the server, without sampling. Raises ``BackendError``."""
        try:
            server, renderer = await self._ready(model)
        except HttpError as exc:
            raise self._refusals.failed(exc) from None
        return Probe(server.name, renderer.name, renderer.notes)

    async def warm(self) -> None:
        """See ``Warmable``."""
        await self.client.connections.warm(self._target("/"))

    async def aclose(self) -> None:
        await self.client.aclose()

    @property
    def n_encoded(self) -> int:
        """Tokens that text was turned into so far, by this process or by the server for it."""
        return sum(renderer.n_encoded for renderer in self._renderers.values())

    # --- the server and its model -----------------------------------------------------------------------

    async def _ready(self, model: str) -> tuple[Server, TokenRenderer]:
        """The kind of server, and what renders for ``model``; both are found out once."""
        async with self._looking:
            if self._found is None:
                self._found = await find(self.server, self._get, self._where)
            found = self._found
            name = self.renderer
            if name == "auto":
                name = "harmony" if found.is_harmony or "gpt-oss" in model.lower() else "template"
            if name not in self._renderers:
                self._renderers[name] = await self._new_renderer(name, found)
            return found.server, self._renderers[name]

    def _forget(self) -> None:
        """Look again next time: what failed may come back as another server, with another model."""
        self._found = None
        if self.tokenizer_path is None:
            self._renderers.pop("template", None)

    async def _new_renderer(self, name: str, found: Found) -> TokenRenderer:
        if name == "harmony":
            try:
                tokenizer = self.tokenizer or await load_harmony()
                return HarmonyRenderer(tokenizer, self.new_call_id, keeps=self.keeps)
            except NoVocabulary as exc:
                raise BackendError(f"The backend at {self._where} needs a vocabulary. {exc}", status=500) from None
        renderer = TemplateRenderer(
            await self._source(found), self.new_call_id, told_family=self.family, told_variables=self.variables
        )
        await renderer.check()
        return renderer

    async def _source(self, found: Found) -> Source:
        if self.tokenizer_path is not None:
            try:
                return await FilesSource.load(self.tokenizer_path)
            except ModelFilesError as exc:
                raise BackendError(
                    f"The backend at {self._where} cannot be asked in tokens: {exc}.", status=500
                ) from None
        if found.server.name == "llamacpp":
            return LlamaCppSource(self._post, found.template)
        raise BackendError(
            f"The backend at {self._where} runs a model that is no gpt-oss, whose template and tokenizer have to be here to "
            'ask it in tokens: write tokenizer = "FOLDER" into its [backends] table, the folder with the model\'s '
            "tokenizer.json. Or use chat+URL, or set its renderer to harmony if it is a gpt-oss.",
            code="invalid_prompt",
            status=400,
        )

    def _target(self, path: str) -> Target:
        return Target.parse(self._base + path)

    async def _get(self, path: str) -> dict[str, Any] | None:
        """The JSON object there; None if the server knows no such path."""
        async with self.client.get(self._target(path), self._headers) as response:
            if response.status in (404, 405):
                await response.drain(DRAIN_S)
                return None
            if not 200 <= response.status < 300:
                raise await self._refusal(response)
            return self._object(await response.body(MAX_ERROR_BYTES))

    async def _post(self, path: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON object that answers."""
        async with self.client.post(self._target(path), self._headers, (orjson.dumps(asked),)) as response:
            if not 200 <= response.status < 300:
                raise await self._refusal(response)
            return self._object(await response.body(MAX_ANSWER_BYTES))

    def _object(self, encoded: bytes) -> dict[str, Any]:
        try:
            value = orjson.loads(encoded)
        except orjson.JSONDecodeError:
            value = None
        if not isinstance(value, dict):
            raise self._refusals.broken("answered with something that is not a JSON object")
        return value

    async def _refusal(self, response: Response) -> BackendError:
        try:
            body = await response.body(MAX_ERROR_BYTES)
        except HttpError:
            body = b""  # the status says enough
        return self._refusals.refused(response.status, response.headers, body)


async def _events(answer: AnswerEvents, sampling: Sampling) -> list[bytes] | None:
    """Events of one read; None at the end. Raises ``HttpError`` if that comes before the answer's."""
    try:
        return await answer.read()
    except HttpError:
        if sampling.reason is None:
            raise
        return None  # the model had finished: only counts can be missing


def _ask(start: StartSample, prompt: Prompt, turn: Turn, n_sampled: int) -> Ask:
    request = start.request
    bound = request.max_output_tokens
    set_by_client = {name: getattr(request, name) for name in SETTINGS}
    return Ask(
        start.model,
        (*prompt.pieces, *(b",%d" % token for token in turn.ids)),
        None if bound is None else max(1, bound - n_sampled),
        {name: value for name, value in set_by_client.items() if value is not None},
        prompt.stop_ids,
        turn.schema,
        prompt.marks,
    )
