"""Stored responses that live and die with the process: for those who want nothing on disk."""

from collections import OrderedDict

import trio
from attrs import define, field

from turntape.core.seam import Record

from .store import StoredResponse, StoreError, item_id, parent_gone, stored_response, taken

MAX_BYTES = 256 * 2**20
"""Ours: thousands of agent turns, and far from what a laptop has."""

Key = tuple[str, str]
"""An owner and a response id."""


@define
class _Entry:
    record: Record
    n_bytes: int
    n_children: int = 0
    deleted: bool = False


@define
class MemoryStore:
    """A ``Store`` in memory, bounded: beyond ``max_bytes`` the conversations that rested longest lose their last turns.

    A record is dropped only when nothing continues it, so no chain ever has a hole.
    """

    max_bytes: int = MAX_BYTES
    _entries: dict[Key, _Entry] = field(factory=dict, init=False)
    _leaves: OrderedDict[Key, None] = field(factory=OrderedDict, init=False)  # continued by none; stalest first
    _by_item: dict[Key, dict[str, bytes]] = field(factory=dict, init=False)  # (owner, item id): response id, item
    _n_bytes: int = field(default=0, init=False)

    async def save(self, record: Record) -> None:
        await trio.lowlevel.checkpoint()
        key, parent = (record.owner, record.response_id), self._parent(record)
        if key in self._entries:
            raise taken(record.response_id)
        n_bytes = len(record.response) + sum(map(len, record.items))
        self._make_room(n_bytes, parent)
        if parent is not None:
            self._entries[parent].n_children += 1
            self._leaves.pop(parent, None)
        self._entries[key] = _Entry(record, n_bytes)
        self._leaves[key] = None
        self._n_bytes += n_bytes
        for item in record.items:
            name = item_id(item)
            if name is not None:
                self._by_item.setdefault((record.owner, name), {})[record.response_id] = item

    async def load(self, response_id: str, owner: str) -> tuple[bytes, ...] | None:
        await trio.lowlevel.checkpoint()
        entry = self._visible(response_id, owner)
        return None if entry is None else self._chain(entry.record)

    async def items(self, item_ids: tuple[str, ...], owner: str) -> tuple[bytes | None, ...]:
        await trio.lowlevel.checkpoint()
        return tuple(self._item(name, owner) for name in item_ids)

    async def get(self, response_id: str, owner: str) -> StoredResponse | None:
        await trio.lowlevel.checkpoint()
        entry = self._visible(response_id, owner)
        if entry is None:
            return None
        return stored_response(entry.record.response, self._chain(entry.record), entry.record.n_output)

    async def delete(self, response_id: str, owner: str) -> bool:
        await trio.lowlevel.checkpoint()
        entry = self._visible(response_id, owner)
        if entry is None:
            return False
        entry.deleted = True
        if not entry.n_children:
            self._drop((owner, response_id))
        return True

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    def _visible(self, response_id: str, owner: str) -> _Entry | None:
        entry = self._entries.get((owner, response_id))
        return None if entry is None or entry.deleted else entry

    def _item(self, name: str, owner: str) -> bytes | None:
        for response_id, item in reversed(self._by_item.get((owner, name), {}).items()):
            if not self._entries[owner, response_id].deleted:
                return item
        return None

    def _parent(self, record: Record) -> Key | None:
        if record.previous_id is None:
            return None
        key = record.owner, record.previous_id
        if key not in self._entries:
            raise parent_gone(record.previous_id)
        return key

    def _chain(self, record: Record) -> tuple[bytes, ...]:
        links = [record]
        while links[-1].previous_id is not None:
            links.append(self._entries[record.owner, links[-1].previous_id].record)
        return tuple(item for link in reversed(links) for item in link.items)

    def _make_room(self, n_bytes: int, parent: Key | None) -> None:
        """Drop what rested longest, until there is room for a continuation of ``parent``."""
        if self._n_bytes + n_bytes <= self.max_bytes:
            return
        needed = set[Key]()
        key = parent
        while key is not None:
            needed.add(key)
            previous_id = self._entries[key].record.previous_id
            key = None if previous_id is None else (key[0], previous_id)
        if sum(self._entries[key].n_bytes for key in needed) + n_bytes > self.max_bytes:
            raise StoreError(
                f"This conversation is larger than the memory store ({self.max_bytes:,} bytes). "
                "Set 'store' to false, or run the server with a store on disk."
            )
        if parent is not None:
            self._entries[parent].n_children += 1  # a hidden one must not go with its last child
        while self._n_bytes + n_bytes > self.max_bytes:
            self._drop(next(key for key in self._leaves if key not in needed))
        if parent is not None:
            self._entries[parent].n_children -= 1

    def _drop(self, key: Key | None) -> None:
        """Forget a leaf, then every deleted ancestor that nothing needs any more."""
        while key is not None:
            entry = self._entries.pop(key)
            owner, response_id = key
            self._leaves.pop(key, None)
            self._n_bytes -= entry.n_bytes
            for item in entry.record.items:
                name = item_id(item)
                if name is not None and (holders := self._by_item.get((owner, name))) is not None:
                    holders.pop(response_id, None)
                    if not holders:
                        del self._by_item[owner, name]
            if entry.record.previous_id is None:
                return
            key = owner, entry.record.previous_id
            parent = self._entries[key]
            parent.n_children -= 1
            if parent.n_children:
                return
            if not parent.deleted:
                self._leaves[key] = None
                self._leaves.move_to_end(key, last=False)  # as stale as the child it lost
                return
