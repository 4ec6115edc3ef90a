"""One form for items that mean the same, and the fold of those forms that names a conversation.

Echo removal, matching in replay, and tests of clients all compare this form and no other.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from attrs import field, frozen

DROPPED = frozenset({"id", "status", "client_metadata", "internal_chat_message_metadata_passthrough"})
"""Keys that differ between equal items; the last is Codex's own bookkeeping."""


@frozen(eq=False)
class Item:
    """One unit of context: the client's or the model's own JSON object, encoded once in its life."""

    value: dict[str, Any]
    encoded: bytes = field(repr=False)

    @classmethod
    def of(cls, value: dict[str, Any]) -> "Item":
        """Raises ``orjson.JSONEncodeError`` for nesting deeper than orjson writes (254)."""
        return cls(value, orjson.dumps(value))

    @classmethod
    def decode(cls, encoded: bytes) -> "Item":
        return cls(orjson.loads(encoded), encoded)

    @property
    def type(self) -> str:
        kind = self.value.get("type")
        return kind if isinstance(kind, str) else "message"

    @property
    def call_id(self) -> str | None:
        call_id = self.value.get("call_id")
        return call_id if isinstance(call_id, str) else None

    @property
    def opens_call(self) -> bool:
        """A tool call that waits for an output by the client."""
        return self.call_id is not None and self.type.endswith("_call")

    @property
    def closes_call(self) -> bool:
        return self.call_id is not None and self.type.endswith("_output")


def canonical(item: Item, calls: Mapping[str, int]) -> bytes:
    """``item`` without what may differ between equals: ids, status, nulls, empty lists, client metadata.

    A string content is read as one text part, and an assistant's parts count the same whether the client
    calls them ``input_text`` or ``output_text``.

    Args:
        calls: the number of each call id that may occur. Ids are the model's; only their order means anything.
    """
    value = {
        k: v if type(v) is str else _dense(v)
        for k, v in item.value.items()
        if k not in DROPPED and v is not None and v != []
    }
    value["type"] = kind = item.type
    if kind == "message" and "content" in value:
        value["content"] = _parts(value["content"])
    if (call_id := item.call_id) is not None:
        value["call_id"] = calls.get(call_id, call_id)
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def _dense(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _dense(v) for k, v in value.items() if v is not None and v != []}
    return [_dense(v) for v in value] if isinstance(value, list) else value


def _parts(content: Any) -> Any:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        return content
    return [
        {**part, "type": "text"}
        if isinstance(part, dict) and part.get("type") in ("input_text", "output_text")
        else part
        for part in content
    ]


@frozen
class Fold:
    """A conversation in a few bytes. ``add`` costs O(item), never O(history).

    Only calls that still wait for an output are remembered: an output names one of them or is
    refused, so no other call id can occur again and the map stays as small as one turn.

    Attributes:
        key: hex digest over the canonical forms so far, reasoning left out.
        open_calls: number of each call without an output yet, in order of appearance.
    """

    key: str = ""
    open_calls: Mapping[str, int] = field(factory=dict)
    n_calls: int = 0

    def add(self, item: Item) -> "Fold":
        kind = item.type
        if kind == "reasoning":
            return self  # a client may drop it, and no two backends agree on it
        calls, n_calls, call_id = self.open_calls, self.n_calls, item.call_id
        if call_id is not None and kind.endswith("_call"):
            n_calls += 1
            calls = {**calls, call_id: n_calls}
        form = canonical(item, calls)
        if call_id is not None and kind.endswith("_output"):
            calls = {k: n for k, n in calls.items() if k != call_id}
        key = hashlib.blake2b(self.key.encode() + form, digest_size=16).hexdigest()
        return Fold(key, calls, n_calls)


def without_echo(said: Sequence[Item], sent: Sequence[Item]) -> Sequence[Item]:
    """``sent`` without the leading items that repeat ``said``: equal form at equal position.

    Reasoning is passed over on both sides, since clients drop or rewrite it; in ``sent`` it goes with
    the echo only if an echo follows it.
    """
    mine = theirs = Fold()
    expected = [item for item in said if item.type != "reasoning"]
    n_matched = n_dropped = 0
    for n, item in enumerate(sent):
        if item.type == "reasoning":
            continue
        if n_matched == len(expected):
            break
        mine, theirs = mine.add(expected[n_matched]), theirs.add(item)
        if mine.key != theirs.key:
            break
        n_matched += 1
        n_dropped = n + 1
    return sent[n_dropped:]
