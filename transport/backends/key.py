"""A backend's key, checked before it becomes a header."""

import re


def checked_key(key: str | None) -> str | None:
    """``key``, or None for an empty one. Raises ``ValueError``, whose text does not repeat it."""
    if not key:
        return None
    if not re.fullmatch(r"[!-~]+", key):
        raise ValueError("the backend's key holds a blank, a line break or a character outside ASCII; check its source")
    return key
