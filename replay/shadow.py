"""A copy of a session that goes its own way from here: what a masked recording shows.

The effects of a recording are those of a session that was fed the masked events. Until the first mask the two
sessions are one; then the state is copied, once. All that never changes is shared by both: contexts and items,
which are nearly all of a session, are not copied.
"""

import io
import pickle
from typing import Any

from turntape.core.canonical import Fold, Item
from turntape.core.context import Context
from turntape.core.lane import Kept, Loading, Waiting
from turntape.core.seam import Opened
from turntape.core.wire import ResponseAppend, ResponseCreate
from turntape.transport.driver import SessionLike

IMMUTABLE = (bytes, Context, Fold, Item, Kept, Loading, Opened, ResponseAppend, ResponseCreate, Waiting)


def copied(session: SessionLike) -> SessionLike:
    """A session in the same state; what one is fed, the other does not know."""
    out, shared = io.BytesIO(), list[Any]()
    _Pickler(out, shared).dump(session)
    out.seek(0)
    copy: SessionLike = _Unpickler(out, shared).load()
    return copy


class _Pickler(pickle.Pickler):
    """Names what is shared by its place in a list, which also keeps it alive."""

    def __init__(self, out: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(out, protocol=pickle.HIGHEST_PROTOCOL)
        self._shared = shared

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, IMMUTABLE):
            return None
        self._shared.append(obj)
        return len(self._shared) - 1


class _Unpickler(pickle.Unpickler):
    """Reads only what a ``_Pickler`` of this process has just written."""

    def __init__(self, file: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, pid: int) -> Any:
        return self._shared[pid]
