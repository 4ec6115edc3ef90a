"""Stored responses: what any store must do. SQLite is the default; memory is for those who want nothing on disk."""

from typing import Protocol

from attrs import frozen

from turntape.core.seam import Record


class StoreError(Exception):
    """The store could not do it. Its text goes to the client: say what failed and what to do, no paths."""


@frozen
class StoredResponse:
    """One response as GET shows it.

    Attributes:
        response: the whole Response object, output included, as one JSON object.
        input_items: its effective input, oldest first: the chain before it and its own new items.
    """

    response: bytes
    input_items: tuple[bytes, ...]


class Store(Protocol):
    """Every read names the owner whose records may be read: another's id is not found."""

    async def save(self, record: Record) -> None:
        """Return when ``record`` is durable: it survives ``kill -9``. Raises ``StoreError``."""
        ...

    async def load(self, response_id: str, owner: str) -> tuple[bytes, ...] | None:
        """Every item of the chain that ends in ``response_id``, oldest first; None if there is none."""
        ...

    async def items(self, item_ids: tuple[str, ...], owner: str) -> tuple[bytes | None, ...]:
        """The item of each id, None where there is none."""
        ...

    async def get(self, response_id: str, owner: str) -> StoredResponse | None: ...

    async def delete(self, response_id: str, owner: str) -> bool:
        """Return whether there was one. Stored descendants stay continuable."""
        ...

    async def aclose(self) -> None: ...
