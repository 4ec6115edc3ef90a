"""What stands in one chunk of a stream: JSON that not every parser reads, and content in typed parts."""

import json
from collections.abc import Iterator
from typing import Any

import orjson

from turntape.core.seam import Increment, Reasoning, Text


def load_chunk(event: bytes) -> Any:
    """The JSON in ``event``, or None. What orjson refuses for a lone surrogate, the standard library reads."""
    try:
        return orjson.loads(event)
    except orjson.JSONDecodeError:
        try:
            return json.loads(event)
        except (ValueError, RecursionError):
            return None


def content_parts(content: list[Any]) -> Iterator[Increment]:
    """Content as a list of parts: text, and thinking that holds text parts (Mistral)."""
    for part in content:
        if not isinstance(part, dict):
            continue
        thinking = part.get("thinking")
        if isinstance(thinking, list):
            thinking = "".join(str(inner.get("text") or "") for inner in thinking if isinstance(inner, dict))
        if isinstance(thinking, str) and thinking:
            yield Reasoning(thinking)
        elif isinstance(text := part.get("text"), str) and text:
            yield Text(text)
