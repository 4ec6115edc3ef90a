"""``encrypted_content`` of reasoning items: a self-describing text that carries the reasoning through a client.

It is an encoding, not encryption: clients that keep no state send it back, and the server that gets
it needs neither a key nor memory. One that we did not make is kept with its item and passed over.
"""

import base64
import binascii
from typing import Any

import orjson

from .canonical import Item

PREFIX = "turntape-reasoning-1."


def seal(content: list[dict[str, Any]]) -> str:
    """The text for a reasoning item with these parts of raw reasoning; its summary travels beside it anyway."""
    plain = orjson.dumps({"content": content})
    return PREFIX + base64.urlsafe_b64encode(plain).decode()


def _unseal(sealed: object) -> dict[str, Any]:
    if not isinstance(sealed, str) or not sealed.startswith(PREFIX):
        return {}
    try:
        parts = orjson.loads(base64.urlsafe_b64decode(sealed[len(PREFIX) :]))
    except (binascii.Error, ValueError):
        return {}
    return parts if isinstance(parts, dict) else {}


def reasoning_text(item: Item) -> str:
    """Raw reasoning of a reasoning item, from its content or else from our ``encrypted_content``; "" if there is none."""
    parts = item.value.get("content") or _unseal(item.value.get("encrypted_content")).get("content")
    if not isinstance(parts, list):
        return ""
    return "".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))
