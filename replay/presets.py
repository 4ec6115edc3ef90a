"""Rules that a known client needs, found by comparing real runs of it. docs/fixture.md says what each allows."""

import re
from collections.abc import Mapping
from typing import Any

from turntape.core.seam import Opened

_OUTPUTS = ["function_call_output", "custom_tool_call_output", "local_shell_call_output"]
_LINE = r'(?:(?<=\\n)|(?<=")|(?m:^))'
"""Where a line begins, also in a listing that is JSON inside a JSON text."""

_LISTED_WHEN = r"(?:[A-Z][a-z]{2} [ \d]\d  ?\d?\d:?\d\d|\d\d? [A-Z][a-z]{2}  ?\d?\d:?\d\d|\d{4}-\d\d-\d\d \d\d:\d\d)"
_MODE = r"[bcdlps-][rwxsStT-]{9}[.+@]?"

CODEX: tuple[dict[str, Any], ...] = (
    {"rule": "learn", "pattern": r"<cwd>(?P<value>[^<]+)</cwd>", "with": "<cwd>"},
    {"rule": "learn", "pattern": r"<root>(?P<value>[^<]+)</root>", "with": "<root>"},
    {"rule": "learn", "pattern": r"`r\d+` = `(?P<value>[^`\n]+?)/skills/\.system`", "with": "<codex-home>"},
    {"rule": "learn", "pattern": r"\(file: (?P<value>[^)\n]+?)/skills/\.system/", "with": "<codex-home>"},
    {"rule": "learn", "pattern": r"`r\d+` = `(?P<value>/[^`\n]+)`", "with": "<skills>"},
    {"rule": "learn", "pattern": r'"agent_id\\*":\\*"(?P<value>[0-9a-f-]{36})', "with": "<agent>"},
    {"rule": "replace", "items": _OUTPUTS, "pattern": r'"nickname(\\*)":\1"[^"\\]*', "with": r'"nickname\1":\1"…'},
    {"rule": "replace", "pattern": r"<current_date>[^<]*</current_date>", "with": "<current_date/>"},
    {"rule": "replace", "pattern": r"<timezone>[^<]*</timezone>", "with": "<timezone/>"},
    {"rule": "replace", "items": _OUTPUTS, "pattern": r"(?m)^Chunk ID: \w+$", "with": "Chunk ID: …"},
    {"rule": "replace", "items": _OUTPUTS, "pattern": r"(?m)^Wall time:? [\d.eE+-]+ seconds$", "with": "Wall time: …"},
    {
        "rule": "replace",
        "items": _OUTPUTS,
        "pattern": r"(?m)^Original token count: \d+$",
        "with": "Original token count: …",
    },
    {"rule": "replace", "items": _OUTPUTS, "pattern": r'"chunk_id":"\w+"', "with": '"chunk_id":"…"'},
    {
        "rule": "replace",
        "items": _OUTPUTS,
        "pattern": r'"(wall_time_seconds|duration_seconds|original_token_count)":[\d.eE+-]+',
        "with": r'"\1":…',
    },
    {"rule": "replace", "items": _OUTPUTS, "pattern": r"session ID \d+", "with": "session ID …"},
    {"rule": "replace", "items": _OUTPUTS, "pattern": _LINE + r"total \d+(?=\n|\\n|$)", "with": "total …"},
    {  # a listed file keeps its mode, size and name; anything else that is listed, its mode and name
        "rule": "replace",
        "items": _OUTPUTS,
        "pattern": _LINE + rf"(?=-)({_MODE}) +\d+ +\S+ +\S+ +(\d+) +{_LISTED_WHEN} ",
        "with": r"\1 \2 … ",
    },
    {
        "rule": "replace",
        "items": _OUTPUTS,
        "pattern": _LINE + rf"(?!-)({_MODE}) +\d+ +\S+ +\S+ +\d+(?:, +\d+)? +{_LISTED_WHEN} ",
        "with": r"\1 … ",
    },
    {"rule": "replace", "items": _OUTPUTS, "pattern": r"\bin \d+(?:\.\d+)? ?(?:ms|s|seconds)\b", "with": "in …"},
    {"rule": "ignore", "fields": ["client_metadata", "prompt_cache_key"]},
)

PRESETS: Mapping[str, tuple[dict[str, Any], ...]] = {"codex": CODEX}


_CODEX_AGENT = re.compile(r"codex[\w-]*/.*|(?P<name>[^/()]+)/\S+ \([^()]*; [^()]*\) .*\((?P=name); [^()]*\)", re.DOTALL)
"""Codex's own programs, and those that use its app-server, which presents their name: ``NAME/0.171.0 (Debian 12.0.0;
x86_64) dumb (NAME; 1)``. Observed 2026-11."""


def preset_for(opened: Opened) -> tuple[str, ...]:
    """Names of the presets for a client: known by its User-Agent, or by the append design, which only old Codex speaks."""
    return ("codex",) if _CODEX_AGENT.fullmatch(opened.agent) or opened.dialect != "current" else ()
