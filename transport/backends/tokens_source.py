"""Where a model's chat template and its tokens come from: a llama.cpp server, which has both, or files of the model."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import orjson
from attrs import field, frozen

from .template_variables import Variables

Ask = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]
"""POSTs an object to a path of the server; its answer."""


@frozen
class Shape:
    """How a template takes the calls of the history: their arguments as JSON text or as an object, and a content that is
    none, rather than empty, where an assistant only calls."""

    text_arguments: bool = False
    null_content: bool = False


@frozen
class Told:
    """What a template is told besides messages and tools."""

    variables: Variables = field(factory=dict)
    shape: Shape = Shape()


class Decoder(Protocol):
    """Reads the ids of one sample, in place of the server."""

    def feed(self, ids: Sequence[int]) -> str:
        """What these ids add to the text; a character whose ids are not all there yet is held back."""
        ...

    def says(self, ids: Sequence[int], text: str) -> bool:
        """Whether ``ids`` are ``text`` and nothing else."""
        ...


class Source(Protocol):
    """A chat template, and the tokenizer that belongs to it.

    Attributes:
        template: the template itself, to see what it knows.
        stop_ids: tokens that end the model's turn; empty where the server knows them and shows no text for them.
        notes: what people should know of it, in sentences.
        adapts: it gives messages the shape that the template takes.
    """

    @property
    def adapts(self) -> bool: ...

    @property
    def template(self) -> str: ...

    @property
    def stop_ids(self) -> tuple[int, ...]: ...

    @property
    def notes(self) -> tuple[str, ...]: ...

    async def text(self, messages: Sequence[Any], tools: Sequence[bytes], told: Told) -> str:
        """The prompt for chat messages and for tools, each of these as JSON. Raises ``BackendError``."""
        ...

    async def tokens(self, text: str, *, is_first: bool) -> list[int]:
        """Ids of a part of a prompt.

        Args:
            is_first: it is the prompt's beginning.
        """
        ...

    def token(self, text: str) -> int | None:
        """The id of a token that is written so; None if there is none, or nobody needs to know."""
        ...

    def decoder(self) -> Decoder | None:
        """A fresh one; None where the server's own text is good."""
        ...


@frozen
class LlamaCppSource:
    """The routes of a llama.cpp server."""

    ask: Ask = field(repr=False)
    template: str = field(repr=False)
    stop_ids: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    adapts: bool = True

    async def text(self, messages: Sequence[Any], tools: Sequence[bytes], told: Told) -> str:
        asked: dict[str, Any] = {"messages": messages}
        if told.variables:
            asked["chat_template_kwargs"] = told.variables
        if tools:
            asked["tools"] = [orjson.Fragment(each) for each in tools]
        return str((await self.ask("/apply-template", asked)).get("prompt", ""))

    async def tokens(self, text: str, *, is_first: bool) -> list[int]:
        asked = {"content": text, "add_special": is_first, "parse_special": True}
        tokens = (await self.ask("/tokenize", asked)).get("tokens")
        return [token for token in tokens if type(token) is int] if isinstance(tokens, list) else []

    def token(self, text: str) -> int | None:
        return None

    def decoder(self) -> Decoder | None:
        return None
