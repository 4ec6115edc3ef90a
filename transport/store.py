"""Stored responses: what any store must do. SQLite is the default; memory is for those who want nothing on disk."""

from collections.abc import Sequence
from typing import Protocol

import orjson
from attrs import frozen

from turntape.core.seam import Record


class StoreError(Exception):
    """The store could not do it: says what failed and what to do.

    The text goes to the client, so it holds no paths. Only opening a store, where whoever runs the server
    is the reader, names the file.
    """


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
        """Return when ``record`` is durable: it survives ``kill -9``.

        Raises:
            StoreError: its id is taken, its ``previous_id`` is not stored, or it cannot be written.
        """
        ...

    async def load(self, response_id: str, owner: str) -> tuple[bytes, ...] | None:
        """Every item of the chain that ends in ``response_id``, oldest first; None if there is none."""
        ...

    async def items(self, item_ids: tuple[str, ...], owner: str) -> tuple[bytes | None, ...]:
        """The newest stored item of each id, None where there is none."""
        ...

    async def get(self, response_id: str, owner: str) -> StoredResponse | None: ...

    async def delete(self, response_id: str, owner: str) -> bool:
        """Return whether there was one. Stored descendants stay continuable, and keep its items until they go."""
        ...

    async def aclose(self) -> None: ...


def taken(response_id: str) -> StoreError:
    return StoreError(f"Response '{response_id}' is stored already, and a stored response never changes.")


def parent_gone(previous_id: str) -> StoreError:
    return StoreError(
        f"Previous response '{previous_id}' is no longer stored, so nothing can be stored as its continuation. "
        "Send the whole conversation as input, or set 'store' to false."
    )


def item_id(encoded: bytes) -> str | None:
    """The ``id`` of one encoded item, by which an ``item_reference`` can name it."""
    value = orjson.loads(encoded)
    found = value.get("id") if isinstance(value, dict) else None
    return found if isinstance(found, str) else None


def stored_response(response: bytes, items: Sequence[bytes], n_output: int) -> StoredResponse:
    """What GET shows of a response, given every item of the chain that ends in it, oldest first."""
    return StoredResponse(response, tuple(items[: len(items) - n_output]))
