"""Token counts of a chat-completions server, whatever it calls them and wherever they stand."""

from typing import Any, TypeGuard

from turntape.core.seam import Usage

from .chat_dialect import DEFAULT, Dialect

MAX_COUNT = 1 << 53
"""A number above it counts no tokens; sums of some that are below still fit into the 64 bits of our own JSON."""


def read_usage(usage: dict[str, Any], timings: object = None, dialect: Dialect = DEFAULT) -> Usage:
    """Counts under the names of ``dialect``; what the server does not count is 0.

    Args:
        timings: llama.cpp's, which knows the reused tokens when its usage does not.
    """
    places = {**usage, "timings": timings}
    prompt, output = count(usage.get("prompt_tokens")), count(usage.get("completion_tokens"))
    apart = max(0, count(usage.get("total_tokens")) - prompt - output)  # xAI counts reasoning outside of the output
    cached = count(*(_at(places, path) for path in dialect.cached_paths))
    reasoning = count(*(_at(places, path) for path in dialect.reasoning_paths))
    if not apart and not dialect.reasoning_in_completion:
        apart = reasoning
    return Usage(prompt, output + apart, min(cached, prompt), min(max(apart, reasoning), output + apart))


def _at(value: object, path: str) -> object:
    for name in path.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def is_count(value: object) -> TypeGuard[int]:
    """Whether it can be a number of tokens."""
    return type(value) is int and 0 <= value <= MAX_COUNT


def count(*candidates: object) -> int:
    """The first that can be a number of tokens; 0 if none can."""
    return next((n for n in candidates if is_count(n)), 0)
