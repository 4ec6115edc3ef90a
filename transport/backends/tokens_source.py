"""Where a model's chat template and its tokens come from: a llama.cpp server, which has both, or files of the model."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import orjson
from attrs import field, frozen

Ask = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]
"""POSTs an object to a path of the server; its answer."""


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
    """

    @property
    def template(self) -> str: ...

    @property
    def stop_ids(self) -> tuple[int, ...]: ...

    @property
    def notes(self) -> tuple[str, ...]: ...

    async def text(self, messages: Sequence[Any], tools: Sequence[bytes]) -> str:
        """The prompt for chat messages and for tools, each of these as JSON. Raises ``BackendError``."""
        ...

    async def tokens(self, text: str, *, is_first: bool) -> list[int]:
        """Ids of a part of a prompt.

        Args:
            is_first: it is the prompt's beginning.
        """
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

    async def text(self, messages: Sequence[Any], tools: Sequence[bytes]) -> str:
        asked: dict[str, Any] = {"messages": messages}
        if tools:
            asked["tools"] = [orjson.Fragment(each) for each in tools]
        return str((await self.ask("/apply-template", asked)).get("prompt", ""))

    async def tokens(self, text: str, *, is_first: bool) -> list[int]:
        asked = {"content": text, "add_special": is_first, "parse_special": True}
        tokens = (await self.ask("/tokenize", asked)).get("tokens")
        return [token for token in tokens if type(token) is int] if isinstance(tokens, list) else []

    def decoder(self) -> Decoder | None:
        return None
