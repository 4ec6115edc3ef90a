"""What a renderer of token ids owes the ``tokens`` backend: a prompt for each sample, and someone who reads the answer."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from attrs import field, frozen

from turntape.core.seam import Increment, StartSample

from .base import BackendError


@frozen
class Turn:
    """Sampling goes on from here in a request of its own, since the rest is bound by a schema or had to be begun for
    the model.

    Attributes:
        ids: everything behind the prompt, as it stands now: what was sampled and is kept, and what we wrote.
        schema: JSON Schema that the rest must match, or None.
    """

    ids: tuple[int, ...] = field(repr=False)
    schema: Mapping[str, Any] | None = None


class Speech(Protocol):
    """Reads one sample.

    Attributes:
        ended: the model has ended its turn; whatever else comes is none of it.
        turn: set when this request has to be left for another; nothing is to be fed until it is taken.
        n_reasoning: tokens that were reasoning.
    """

    ended: bool
    turn: Turn | None

    @property
    def n_reasoning(self) -> int: ...

    def feed(self, ids: Sequence[int], text: str) -> list[Increment]:
        """What these ids say. ``text`` is the server's reading of them."""
        ...

    def resume(self) -> list[Increment]:
        """``turn`` has been taken: what begins with it."""
        ...

    def end(self) -> list[Increment]:
        """Nothing more comes: what was held back."""
        ...

    def keep(self) -> None:
        """The sampled ids are complete: when the conversation goes on from here, they stand for what was said."""
        ...


@frozen(eq=False)
class Prompt:
    """A context as token ids.

    Attributes:
        pieces: ids as JSON numbers, commas between; each piece but the first begins with its comma.
        marks: texts that mean something to the reader, and may be special tokens.
        first: how sampling begins if not freely.
    """

    pieces: Sequence[bytes] = field(repr=False)
    n_tokens: int
    speech: Speech = field(repr=False)
    stop_ids: Sequence[int] = ()
    first: Turn = Turn(())
    marks: Sequence[str] = ()


class TokenRenderer(Protocol):
    """One per backend and kind of model; keeps what it rendered as long as the contexts live.

    Attributes:
        name: as in the option ``renderer``.
        n_encoded: tokens that text was turned into so far: a turn must add those of its new text and no more.
        notes: what people should know of it, in sentences.
    """

    @property
    def notes(self) -> tuple[str, ...]: ...

    @property
    def name(self) -> str: ...

    @property
    def n_encoded(self) -> int: ...

    async def prompt(self, start: StartSample) -> Prompt:
        """Raises ``BackendError`` for content that the model cannot take."""
        ...


def text_of(content: Any, param: str = "input") -> str:
    """A content's text; its parts on lines of their own.

    Raises:
        BackendError: it holds an image or a file.
    """
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for part in content:
        if part["type"] in ("input_image", "input_file"):
            raise BackendError(
                f"The input holds a part of type '{part['type']}', which this model, being asked in tokens, cannot "
                "take. Send text.",
                code="invalid_prompt",
                status=400,
                param=param,
            )
        texts.append(str(part["refusal"] if part["type"] == "refusal" else part["text"]))
    return "\n".join(texts)
