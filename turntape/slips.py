"""What in the configuration can be used and is probably a slip: warned about, and not refused."""

import difflib

from .tables import Tables, model_key

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra")
"""Efforts that some provider knows. Others are passed on all the same: providers invent new ones."""


def doubts(tables: Tables) -> list[str]:
    """What in ``tables`` can be used and is probably a slip, each with where it stands and what was probably meant."""
    found = list[str]()
    for name, table in tables.models.items():
        effort = table.reasoning_effort
        if effort is not None and effort not in EFFORTS:
            near = difflib.get_close_matches(effort.lower(), EFFORTS, n=1, cutoff=0.6)
            cure = f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(EFFORTS)}"
            found.append(
                f'{tables.path}: {model_key(name)}: "reasoning-effort": {effort[:64]!r} is no effort that is known, and is '
                f"sent as it is; {cure}"
            )
    return found
