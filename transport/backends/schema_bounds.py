"""How much JSON Schemas ask of a grammar engine, which writes out the items that an array may have one by one."""

from collections.abc import Iterable
from typing import Any

MAX_ITEMS = 100_000
"""Items that the arrays of one request's schemas may count up to, together; ours. LLGuidance takes 200 MB for so many, and
for 10^9 all the memory there is, and the process with it."""


def is_bounded(schemas: Iterable[Any]) -> bool:
    """Whether ``minItems`` and ``maxItems`` of all ``schemas`` together stay within ``MAX_ITEMS``."""
    n_items = 0.0
    left = list(schemas)
    while left:
        value = left.pop()
        if isinstance(value, dict):
            counts = (value.get(key) for key in ("minItems", "maxItems"))
            n_items += sum(count for count in counts if isinstance(count, int | float) and count > 0)
            left += value.values()
        elif isinstance(value, list):
            left += value
    return n_items <= MAX_ITEMS
