"""``Lane``: one FIFO of a connection, its state, its open response, and the responses it remembers."""

import collections
from collections.abc import Mapping
from typing import Any

from attrs import define, field, frozen

from .canonical import Item
from .context import Context
from .response import OpenResponse
from .states import Input, State, step
from .wire import ResponseAppend, ResponseCreate


@frozen(eq=False, repr=False)
class Kept:
    """A finished response that a request may continue.

    Attributes:
        asked: the conversation that its last sample answered.
        context: the same, and what was said since.
        saved: nearest stored ancestor, maybe itself: id and context.
        request: its create, whose settings a later append takes over.
    """

    response_id: str
    asked: Context
    context: Context
    saved: tuple[str, Context] | None
    request: ResponseCreate | None
    n_cached: int

    @property
    def said(self) -> tuple[Item, ...]:
        return self.context.items_after(self.asked)


ROOT = Kept("", Context(), Context(), None, None, 0)
"""What a request without ``previous_response_id`` continues."""


@frozen
class Waiting:
    """A client event in a lane's FIFO: nothing in it is checked but its type and lane."""

    type: str
    raw: dict[str, Any]
    n_bytes: int


@frozen(eq=False)
class Loading:
    """A client event that waits for the store.

    Attributes:
        parent: what it continues, or None if the store is asked for that.
        item_ids: what else the store is asked for.
        known: items it refers to that were at hand when its turn came.
    """

    request: ResponseCreate | ResponseAppend
    parent: Kept | None
    item_ids: tuple[str, ...]
    known: Mapping[str, Item]


@define(eq=False)
class Lane:
    stream_id: str | None
    n_kept: int = 1
    state: State = State.IDLE
    queued: bool = False
    waiting: collections.deque[Waiting] = field(factory=collections.deque)  # bounded by Session over all lanes
    loading: Loading | None = None
    open: OpenResponse | None = None
    sample_id: str | None = None
    quiet_since: float = 0.0  # when this lane last sent anything, or its sample began
    kept: list[Kept] = field(factory=list)  # newest last

    def move(self, input_: Input) -> None:
        self.state = step(self.state, input_)

    def keep(self, response: Kept) -> None:
        self.kept.append(response)
        del self.kept[: -self.n_kept]

    def find(self, response_id: str) -> Kept | None:
        return next((kept for kept in self.kept if kept.response_id == response_id), None)

    def evict(self, response_id: object) -> None:
        """After a failed continuation. Only a lane's own response: a failed fork leaves the other lane's alone."""
        self.kept = [kept for kept in self.kept if kept.response_id != response_id]

    @property
    def response(self) -> OpenResponse:
        assert self.open is not None, "the table let a response event through while none is open"
        return self.open
