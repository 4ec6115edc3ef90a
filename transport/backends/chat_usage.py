"""Token counts of a chat-completions server, whatever it calls them and wherever they stand."""

from typing import Any

from turntape.core.seam import Usage

from .chat_dialect import DEFAULT, Dialect


def read_usage(usage: dict[str, Any], timings: object = None, dialect: Dialect = DEFAULT) -> Usage:
    """Counts under the names of ``dialect``; what the server does not count is 0.

    Args:
        timings: llama.cpp's, which knows the reused tokens when its usage does not.
    """
    places = {**usage, "timings": timings}
    prompt, output = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    apart = max(0, _count(usage.get("total_tokens")) - prompt - output)  # xAI counts reasoning outside of the output
    cached = _count(*(_at(places, path) for path in dialect.cached_paths))
    reasoning = _count(*(_at(places, path) for path in dialect.reasoning_paths))
    if not apart and not dialect.reasoning_in_completion:
        apart = reasoning
    return Usage(prompt, output + apart, min(cached, prompt), min(max(apart, reasoning), output + apart))


def _at(value: object, path: str) -> object:
    for name in path.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def _count(*candidates: object) -> int:
    """The first that is a whole number and not negative; 0 if none is."""
    return next((n for n in candidates if type(n) is int and n >= 0), 0)
