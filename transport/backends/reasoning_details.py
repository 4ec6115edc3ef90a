"""Reasoning that a server wants back unchanged, signatures and all (OpenRouter's ``reasoning_details``), carried by clients.

It travels as the ``encrypted_content`` of the reasoning item: an encoding that says what it is by its prefix.
"""

import base64
import binascii
from typing import Any

import orjson
from attrs import define, field

from turntape.core.canonical import Item
from turntape.core.seam import Encrypted

FIELD = "reasoning_details"
PREFIX = "turntape-details-1."
_GROWING = ("text", "summary", "data")
"""Fields whose pieces are joined; of the others the last value that is not null counts."""


@define(eq=False)
class DetailCollector:
    """Puts the details of a stream together: pieces of one detail have one ``index`` and type."""

    details: list[dict[str, Any]] = field(factory=list)

    def feed(self, pieces: object) -> None:
        for piece in pieces if isinstance(pieces, list) else ():
            if not isinstance(piece, dict):
                continue
            last = self.details[-1] if self.details else None
            if last is None or any(last.get(name) != piece.get(name) for name in ("type", "index")):
                self.details.append(dict(piece))
                continue
            for name, value in piece.items():
                if name in _GROWING and isinstance(value, str) and isinstance(last.get(name), str):
                    last[name] += value
                elif value is not None:
                    last[name] = value

    def take(self) -> list[Encrypted]:
        """The details so far, ready to travel; empty if there are none."""
        details, self.details = self.details, []
        if not details:
            return []
        return [Encrypted(PREFIX + base64.urlsafe_b64encode(orjson.dumps(details)).decode())]


def details_of(item: Item) -> list[dict[str, Any]]:
    """The details that a reasoning item carries; empty if it carries none that we made."""
    sealed = item.value.get("encrypted_content")
    if not isinstance(sealed, str) or not sealed.startswith(PREFIX):
        return []
    try:
        details = orjson.loads(base64.urlsafe_b64decode(sealed[len(PREFIX) :]))
    except (binascii.Error, ValueError):
        return []
    return [each for each in details if isinstance(each, dict)] if isinstance(details, list) else []
