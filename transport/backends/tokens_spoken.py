"""What was sampled, item by item, with its ids: when an item comes back in the conversation, its ids stand for it."""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from attrs import define, field, frozen

from turntape.core.canonical import Item
from turntape.core.context import Context
from turntape.core.reasoning import reasoning_text
from turntape.core.rendering import Segment

N_TAKES = 4
"""Samples of one context that are remembered: a client that asks again, or forks, goes on from one of them."""


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

    def became(self, item: Item) -> bool:
        value = item.value
        match item.type:
            case "reasoning":
                return self.kind == "reasoning" and reasoning_text(item) == self.text
            case "message":
                return self.kind == "message" and value.get("role") == "assistant" and _text(value) == self.text
            case "function_call":
                return self.kind == "call" and value["call_id"] == self.call_id and value["arguments"] == self.text
            case "custom_tool_call":
                return self.kind == "call" and value["call_id"] == self.call_id and value["input"] == self.text
        return False


def _text(message: dict[str, object]) -> str | None:
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
            while at < len(self.spoken) and not self.spoken[at].became(item):
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
    """What was said to each context that is alive."""

    _takes: WeakKeyDictionary[Context, list[Take]] = field(factory=WeakKeyDictionary, repr=False)

    def keep(self, context: Context, spoken: Sequence[Spoken]) -> None:
        take = Take(tuple(spoken), tuple(Segment.of(each.ids, each.mark) for each in spoken))
        for each in spoken:
            each.ids = []  # the segment has them, in a quarter of the space
        self._takes[context] = [*self._takes.get(context, []), take][-N_TAKES:]

    def matched(self, context: Context, items: Sequence[Item]) -> list[Segment]:
        """Segments for the items at the beginning of ``items`` that were said to ``context``."""
        return max((take.matched(items) for take in self._takes.get(context, ())), key=len, default=[])
