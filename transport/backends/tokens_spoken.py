"""What was sampled, item by item, with its ids: when an item comes back in the conversation, its ids stand for it."""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from attrs import define, field, frozen

from turntape.core.canonical import Item
from turntape.core.context import Context
from turntape.core.harmony import FINAL
from turntape.core.reasoning import reasoning_text
from turntape.core.rendering import Segment

N_TAKES = 4
"""Samples of one context that are remembered: a client that asks again, or forks, goes on from one of them."""


MAX_RECENT_BYTES = 64 * 1024 * 1024
"""Of all that was said lately, for clients that send their history with each request; ours."""

Key = tuple[str, str, str]
"""Kind, call id and text: what an item says, whatever a client does to the rest of it."""


@define(eq=False)
class Spoken:
    """One item as it was said.

    Attributes:
        kind: "reasoning", "message" or "call".
        text: what it says: text, arguments, or a custom tool's input.
        ids: as sampled, in the form in which they stand in the history.
        mark: kind of its segment.
    """

    kind: str
    ids: list[int] = field(factory=list, repr=False)
    texts: list[str] = field(factory=list)
    call_id: str = ""
    mark: str = ""

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def key(self) -> Key:
        return self.kind, self.call_id, self.text


def key_of_item(item: Item) -> Key | None:
    """What ``item`` says; None if a model cannot have said it."""
    value = item.value
    match item.type:
        case "reasoning":
            return "reasoning", "", reasoning_text(item)
        case "message" if value.get("role") == "assistant":
            return "message", "", _text(value)
        case "function_call":
            return "call", value["call_id"], value["arguments"]
        case "custom_tool_call":
            return "call", value["call_id"], value["input"]
    return None


def _text(message: dict[str, object]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "".join(text for text in texts if isinstance(text, str))


@frozen(eq=False)
class Take:
    """One sample of a context: its items, oldest first, and what each becomes in the history."""

    spoken: tuple[Spoken, ...]
    segments: tuple[Segment, ...]

    def matched(self, items: Sequence[Item]) -> list[Segment]:
        """Segments for the items at the beginning of ``items`` that this take said, one each.

        Reasoning that a client left out is passed over.
        """
        found: list[Segment] = []
        at = 0
        for item in items:
            key = key_of_item(item)
            while at < len(self.spoken) and self.spoken[at].key != key:
                if self.spoken[at].kind != "reasoning":
                    return found
                at += 1
            if at == len(self.spoken):
                return found
            found.append(self.segments[at])
            at += 1
        return found


@define(eq=False)
class Takes:
    """What was said to each context that is alive, and what was said lately to any."""

    _takes: WeakKeyDictionary[Context, list[Take]] = field(factory=WeakKeyDictionary, repr=False)
    _recent: dict[Key, Segment] = field(factory=dict, repr=False)  # the oldest first
    _n_recent_bytes: int = 0

    def keep(self, context: Context, spoken: Sequence[Spoken]) -> None:
        take = Take(tuple(spoken), tuple(Segment.of(each.ids, each.mark) for each in spoken))
        for each, segment in zip(take.spoken, take.segments, strict=True):
            each.ids = []  # the segment has them, in a quarter of the space
            self._remember(each.key, segment)
        self._takes[context] = [*self._takes.get(context, []), take][-N_TAKES:]

    def matched(self, context: Context, items: Sequence[Item]) -> list[Segment]:
        """Segments for the items at the beginning of ``items`` that were said to ``context``."""
        return max((take.matched(items) for take in self._takes.get(context, ())), key=len, default=[])

    def recalled(self, item: Item) -> Segment | None:
        """The segment of something that was said lately, in whatever conversation, and said so."""
        key = key_of_item(item)
        segment = self._recent.get(key) if key is not None else None
        if segment is not None and item.type == "message":
            is_final = item.value.get("phase") != "commentary"
            return segment if (segment.kind == FINAL) == is_final else None
        return segment

    def _remember(self, key: Key, segment: Segment) -> None:
        if (before := self._recent.pop(key, None)) is not None:
            self._n_recent_bytes -= _size(key, before)
        self._recent[key] = segment
        self._n_recent_bytes += _size(key, segment)
        while self._n_recent_bytes > MAX_RECENT_BYTES:
            oldest = next(iter(self._recent))
            self._n_recent_bytes -= _size(oldest, self._recent.pop(oldest))


def _size(key: Key, segment: Segment) -> int:
    """Bytes in memory, nearly."""
    return len(segment.encoded) + sum(map(len, key)) + 500
