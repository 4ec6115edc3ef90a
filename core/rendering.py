"""What a renderer of token ids is built from: a vocabulary, and segments of ids that are made once and only appended."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from attrs import field, frozen


class Tokenizer(Protocol):
    """A vocabulary. Synchronous and without I/O: it is loaded before it comes here."""

    def encode(self, text: str) -> Sequence[int]:
        """Ids of ordinary text. No special token can come out, whatever the text says."""
        ...

    def decode(self, ids: Sequence[int]) -> bytes:
        """The bytes of ordinary ids. A character may be split over several ids."""
        ...


@frozen(eq=False)
class Segment:
    """One whole message as token ids, in the form in which a request carries them.

    Attributes:
        encoded: the ids as JSON numbers, commas between.
        n_tokens: how many they are.
        kind: "analysis" for reasoning, which may be left out later; "final" for what ends a turn; "" for the rest.
    """

    encoded: bytes = field(repr=False)
    n_tokens: int
    kind: str = ""

    @classmethod
    def of(cls, ids: Iterable[int], kind: str = "") -> "Segment":
        texts = [b"%d" % token for token in ids]
        return cls(b",".join(texts), len(texts), kind)
