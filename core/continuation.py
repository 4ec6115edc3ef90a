"""A conversation and what a turn adds to it: every tool output must have its call, and every call its output."""

from collections.abc import Sequence

from .canonical import Item
from .context import Context
from .errors import SHOWN, ToolOutputMismatch

MAX_OPEN_CALLS = 1024
"""Calls of one request that may wait for an output at once. Ours: models make some ten, and each new one copies the map
of those that wait."""


def continued(parent: Context, new: Sequence[Item], *, fill: bool, lenient: bool) -> Context:
    """``parent`` plus ``new``. O(new).

    Args:
        fill: answer calls without an output with "aborted" instead of refusing them.
        lenient: leave calls open, for a warm-up or half an append.

    Raises:
        ToolOutputMismatch: names the call id.
    """
    waiting = dict.fromkeys(parent.fold.open_calls)
    for item in new:
        if item.opens_call:
            waiting[item.call_id or ""] = None
            if len(waiting) > MAX_OPEN_CALLS:
                message = f"More than {MAX_OPEN_CALLS} tool calls wait for an output; send each output behind its call."
                raise ToolOutputMismatch(message, param="input")
        elif item.closes_call:
            if item.call_id not in waiting:
                raise ToolOutputMismatch(
                    f"No tool call found for {item.type.replace('_', ' ')} with call_id '{str(item.call_id)[:SHOWN]}'.",
                    param="input",
                )
            del waiting[item.call_id]
    if not waiting or lenient:
        return parent.extend(new)
    if fill:
        return parent.extend(_filled(parent, new, set(waiting)))
    raise ToolOutputMismatch(
        f"No tool output found for call_id '{next(iter(waiting))[:SHOWN]}'; send one for every call.", param="input"
    )


def _filled(parent: Context, new: Sequence[Item], missing: set[str]) -> list[Item]:
    """``new`` with an "aborted" output for each of ``missing``: where the parent's calls end, or after its own call."""
    filled: list[Item] = []
    for link in parent.links():
        if not missing & set(parent.fold.open_calls):
            break
        for item in link.items:
            if item.opens_call and item.call_id in missing:
                missing.discard(item.call_id)
                filled.append(_aborted(item))
    for item in new:
        filled.append(item)
        if item.opens_call and item.call_id in missing:
            filled.append(_aborted(item))
    return filled


def _aborted(call: Item) -> Item:
    return Item.of({"type": f"{call.type}_output", "call_id": call.call_id, "output": "aborted"})
