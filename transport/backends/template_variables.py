"""What a chat template is told besides messages and tools: whether to think and how much, and what a user says it should."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from turntape.core.wire import ResponseCreate

Variables = Mapping[str, str | bool | int | float]

EFFORT = "reasoning_effort"
SWITCHES = ("enable_thinking", "thinking")
"""Variables of templates that are true or false: Qwen3, GLM and others; DeepSeek V3.1, Granite and Kimi."""

RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
"""Variables that are a conversation's own."""

_CODE = re.compile(r"\{[%{](.*?)[%}]\}", re.DOTALL)
_STRING = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)


def variables(template: str, request: ResponseCreate, told: Variables) -> dict[str, Any]:
    """Values by name: those that ``told`` has, and before them what the request's effort means to this template.

    Only variables that the template looks at follow the effort: "none" switches thinking off, any other switches it on.
    """
    effort = request.reasoning.effort if request.reasoning is not None else None
    found: dict[str, Any] = {}
    if effort is not None:
        found = {name: effort != "none" for name in SWITCHES if looks_at(template, name)}
        if looks_at(template, EFFORT):
            found[EFFORT] = effort
    return {**found, **told}


@lru_cache(256)
def looks_at(template: str, name: str) -> bool:
    """Whether the template's code reads a variable of this name, and not an attribute or a text of that name."""
    word = re.compile(rf"(?<![\w.]){re.escape(name)}(?![\w(]|\s*=[^=])")
    return any(word.search(_STRING.sub("''", code[1])) for code in _CODE.finditer(template))
