"""Asks one backend what it is and which models it has, and says what is wrong with it and what to do."""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson
import trio
from attrs import define, field, frozen

from turntape.core.context import Context
from turntape.core.seam import Finish, StartSample
from turntape.core.wire import structure_create
from turntape.transport.backends.base import Backend, BackendError
from turntape.transport.backends.chat import ChatBackend
from turntape.transport.backends.chat_errors import Refusals
from turntape.transport.backends.dialects import preset_for
from turntape.transport.backends.responses import ResponsesBackend
from turntape.transport.health import find_backend_error
from turntape.transport.http_connections import HttpError
from turntape.transport.http_target import Target

from .keys import BackendKey
from .plan import PlannedBackend
from .speaking import NotSpoken, Speaking, base_url
from .upstreams import http_client

LIST_S = 20.0
"""How long a server may take to list its models."""

SAMPLE_S = 120.0
"""How long a tiny completion may take: a server at home may load the model first."""

MAX_LIST_BYTES = 4 * 1024 * 1024  # OpenRouter's list has about one
SHOWN = 8
"""Names that a message lists at most."""

_LENIENT = {"llamacpp", "sglang"}
"""Who owns the models of servers that serve the model they have under any name."""

_CURES = (
    (
        re.compile(r"(?i)enable-auto-tool-choice|tool-call-parser"),
        "Start vLLM with --enable-auto-tool-choice and the --tool-call-parser of the model.",
    ),
    (re.compile(r"(?i)--jinja|requires.{0,20}jinja"), "Start llama.cpp with --jinja."),
    (re.compile(r"(?i)does not support tools"), "Agents need tools: use another model."),
)
"""What to do about servers that were started without tools, by what they say."""

TOOL = {
    "type": "function",
    "name": "noop",
    "description": "Does nothing.",
    "parameters": {"type": "object", "properties": {}},
}


class ProbeFailed(Exception):
    """The backend cannot be used; says why and what to do. Holds no key."""


@frozen
class Listing:
    """What a server says of its models.

    Attributes:
        names: None if it does not say.
        is_lenient: it serves what it has under any name.
        refused: what it said instead of a list, where that alone is no fault.
    """

    where: str
    names: tuple[str, ...] | None = None
    is_lenient: bool = False
    refused: str = ""

    def said_of(self, model: str) -> str:
        """What the list says of ``model``, in words. Raises ``ProbeFailed`` if it is not there and would have to be."""
        if self.names is None:
            return f"{self.where} answers, and does not list its models"
        if not self.names:
            raise ProbeFailed(f"The backend at {self.where} serves no model. Load one there, or pull it.")
        listed = f"{len(self.names)} model{'' if len(self.names) == 1 else 's'}"
        if not model:
            return f"{self.where} lists {listed}: {_few(self.names)}"
        if model in self.names or any(name.removesuffix(":latest") == model for name in self.names):
            return f"{self.where} lists {listed}, this one among them"
        if self.is_lenient:
            return f"{self.where} serves {_few(self.names)}, under any name"
        raise ProbeFailed(
            f"The backend at {self.where} does not list the model {model[:128]!r}. It lists {_few(self.names)}."
        )


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(name[:100] for name in names[:SHOWN])
    return f"{shown}, …" if len(names) > SHOWN else shown


@define(eq=False)
class Probe:
    """One backend under test.

    Args:
        backend: the same, as it would serve.
    """

    planned: PlannedBackend
    key: BackendKey
    backend: Backend
    _listing: Listing | None = field(default=None, init=False)
    _is_spoken: bool | None = field(default=None, init=False)

    async def look(self, model: str) -> tuple[str, ...]:
        """What can be said of ``model`` there without sampling: sentences, the first of which says that it is well.

        Raises:
            ProbeFailed: it is not.
        """
        if self.key.missing:
            raise ProbeFailed(f"The backend {self.planned.name} {self.key.missing}.")
        match self.planned.table.spec.kind:
            case "scripted":
                return (f"the script can be read; models {', '.join(self.backend.models)}",)
            case "llama":
                return await self._look_at_file()
        if self._listing is None:
            self._listing = await self._list()
        said = self._listing.said_of(model)
        if self.planned.table.spec.kind == "tokens":
            return said, *await self._look_at_tokens(model)
        await self._look_at_route(model)
        return (said,)

    async def sample(self, model: str) -> str:
        """Ask for a few tokens, with a tool on offer as agents do; say what came. Raises ``ProbeFailed``."""
        body = {"model": model, "input": "Say OK.", "tools": [TOOL], "max_output_tokens": 32}
        request = structure_create(body)
        start = StartSample("smp_doctor", model, request, Context().extend(request.input.items), 0)
        n_batches, began = 0, trio.current_time()
        finish: Finish | None = None
        with trio.move_on_after(SAMPLE_S) as scope:
            try:
                async with self.backend.sample(start) as batches:
                    async for batch in batches:
                        n_batches += bool(batch)
                        finish = next((each for each in batch if isinstance(each, Finish)), finish)
            except (BackendError, BaseExceptionGroup) as exc:
                if (error := find_backend_error(exc)) is None:
                    raise
                raise ProbeFailed(_with_cure(str(error))) from None
        if scope.cancelled_caught:
            raise ProbeFailed(f"The backend {self.planned.name} gave no answer within {SAMPLE_S:g} s.")
        if finish is None:
            raise ProbeFailed(f"The backend {self.planned.name} stopped before its answer was finished.")
        took = f"{trio.current_time() - began:.1f} s"
        return f"sampled {finish.usage.output_tokens} tokens in {took}" if finish.usage else f"sampled in {took}"

    # --- what can be asked ------------------------------------------------------------------------------

    async def _look_at_file(self) -> tuple[str, ...]:
        from importlib.util import find_spec

        if find_spec("xllamacpp") is None:
            raise ProbeFailed("llama.cpp is not installed: pip install 'turntape[llama]'")
        return (f"the model file can be read: {', '.join(self.backend.models)}",)

    async def _look_at_tokens(self, model: str) -> tuple[str, ...]:
        from turntape.transport.backends.tokens import TokensBackend

        assert isinstance(self.backend, TokensBackend)
        try:
            found = await self.backend.probe(model)
        except BackendError as exc:
            async with self._speaking() as speaking:
                cure = await speaking.cure() if exc.status == 502 else ""
            raise ProbeFailed(" ".join(filter(None, (str(exc), cure)))) from None
        return f"{found.server} takes token ids, rendered by {found.renderer}", *found.notes

    async def _look_at_route(self, model: str) -> None:
        """Raise ``ProbeFailed`` if the route that requests take is not there."""
        if self._is_spoken is None:
            assert isinstance(self.backend, ChatBackend | ResponsesBackend)
            async with self._speaking() as speaking:
                try:
                    self._is_spoken = await speaking.check(self.backend, model)
                except NotSpoken as exc:
                    raise ProbeFailed(str(exc)) from None
        assert self._listing is not None
        if self._listing.refused and not self._is_spoken:
            raise ProbeFailed(self._listing.refused)

    @asynccontextmanager
    async def _speaking(self) -> AsyncIterator[Speaking]:
        client = http_client(self.planned)
        refusals = Refusals(models_target(self.planned.url).where, self.key.value)
        try:
            yield Speaking(self.planned, client, self._headers(), refusals)
        finally:
            await client.aclose()

    async def _list(self) -> Listing:
        """The models that the server lists. Raises ``ProbeFailed``."""
        try:
            target = models_target(self.planned.url, is_root=self.planned.table.spec.kind == "tokens")
        except ValueError as exc:
            raise ProbeFailed(f"The backend {self.planned.name} has a URL that cannot be used: {exc}.") from None
        refusals = Refusals(target.where, self.key.value)
        client = http_client(self.planned)
        try:
            with trio.fail_after(LIST_S):
                async with client.get(target, self._headers()) as response:
                    body = await response.body(MAX_LIST_BYTES)
        except HttpError as exc:
            raise ProbeFailed(str(refusals.failed(exc))) from None
        except trio.TooSlowError:
            raise ProbeFailed(f"The backend at {target.where} did not list its models within {LIST_S:g} s.") from None
        finally:
            await client.aclose()
        if response.status in (404, 405, 501):  # the routes that are used are looked at apart
            refused = refusals.refused(response.status, response.headers, body)
            return Listing(target.where, refused=str(refused))
        if not 200 <= response.status < 300:
            raise ProbeFailed(str(refusals.refused(response.status, response.headers, body)))
        return _read(target.where, body)

    def _headers(self) -> list[tuple[str, str]]:
        headers = [("Accept", "application/json"), ("User-Agent", "turntape")]
        if self.key.value:
            preset = preset_for(self.planned.table.spec.name or self.planned.url)
            by_header = preset is not None and preset.auth == "api-key"
            headers.append(("api-key", self.key.value) if by_header else ("Authorization", f"Bearer {self.key.value}"))
        return headers


def models_target(url: str, *, is_root: bool = False) -> Target:
    """Where a server lists its models, for its base URL or one of its routes.

    Args:
        is_root: the URL may be that of the server, without /v1.

    Raises:
        ValueError: the URL cannot be used; the text does not repeat it.
    """
    base, query = base_url(url)
    if is_root and not base.endswith("/v1"):
        base += "/v1"
    return Target.parse(f"{base}/models{query}")


def _read(where: str, body: bytes) -> Listing:
    try:
        value: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise ProbeFailed(
            f"The backend at {where} answers with something that is no list of models. Check its URL: it usually ends "
            "in /v1."
        ) from None
    entries = value.get("data") if isinstance(value, dict) else value  # Together gives the bare list
    if not isinstance(entries, list):
        return Listing(where)
    models = [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)]
    owners = {str(entry.get("owned_by")) for entry in models}
    return Listing(where, tuple(entry["id"] for entry in models), bool(owners & _LENIENT))


def _with_cure(message: str) -> str:
    for pattern, cure in _CURES:
        if pattern.search(message):
            return f"{message} {cure}"
    return message
