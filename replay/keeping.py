"""What the sessions of a relayed recording remember of each other: ids, conversations, and items that can be named."""

from typing import Any

from attrs import define, field

from turntape.core.canonical import Item
from turntape.core.context import Context
from turntape.core.seam import Record

UNMISTAKABLE = 16
"""Characters from which on an id is replaced wherever it is a whole JSON string. A shorter one may be a word: it is
replaced where a key says that it is an id."""


@define(eq=False)
class Kept:
    """Everything that one recording holds of its upstream's store and of its connections' memories.

    Attributes:
        ids: ours for each of the upstream's, of responses and items.
        items: of the upstream, by their id, and ours that say the same.
    """

    ids: dict[str, str] = field(factory=dict)
    items: dict[str, dict[str, Any]] = field(factory=dict)
    _said: dict[str, tuple[Context, tuple[Item, ...]]] = field(
        factory=dict
    )  # by our id: what was asked, and the answer
    _records: dict[str, Record] = field(factory=dict)

    def answered(self, response_id: str, asked: Context, said: list[dict[str, Any]]) -> None:
        """A response of ours has ended. Whether it was stored does not matter: who continues it shows that it was there."""
        whole = [item for item in said if item.get("status") != "incomplete" or "call_id" not in item]
        self._said[response_id] = asked, tuple(map(Item.of, whole))

    def saved(self, record: Record) -> None:
        self._records[record.response_id] = record

    def conversation(self, response_id: str) -> tuple[bytes, ...] | None:
        """Every item up to the end of a response of ours, oldest first; None if it is not known."""
        if (known := self._said.get(response_id)) is not None:
            asked, said = known
            return tuple(item.encoded for item in (*asked.items_after(None), *said))
        links: list[tuple[bytes, ...]] = []
        link: str | None = response_id
        while link is not None:
            record = self._records.get(link)
            if record is None:
                return None
            links.append(record.items)
            link = record.previous_id
        return tuple(item for items in reversed(links) for item in items)

    def item(self, item_id: str) -> bytes | None:
        value = self.items.get(item_id)
        return None if value is None else Item.of(value).encoded

    def translated(self, value: Any, ids: dict[str, str], *, key: str = "") -> Any:
        """``value`` with our ids for the upstream's; itself if there is none in it.

        Args:
            ids: of the session, which go before those of the whole recording.
            key: under which ``value`` stands.
        """
        if isinstance(value, str):
            if len(value) < UNMISTAKABLE and not (key == "id" or key.endswith("_id")):
                return value
            return value if key == "call_id" else ids.get(value) or self.ids.get(value, value)
        if isinstance(value, dict):
            changed = {name: self.translated(inner, ids, key=name) for name, inner in value.items()}
            return changed if any(changed[name] is not inner for name, inner in value.items()) else value
        if isinstance(value, list):
            elements = [self.translated(inner, ids, key=key) for inner in value]
            return elements if any(new is not old for new, old in zip(elements, value, strict=True)) else value
        return value
