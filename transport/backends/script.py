"""What a script consists of: rules with conditions, and the steps that a rule says. docs/scripts.md describes the file."""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from attrs import evolve, field, fields, frozen

from turntape.core.tools import Tool

from .conversation import Facts


class ScriptError(Exception):
    """A script cannot be read: names the file, the rule, the key, what it holds, and what it should hold."""


@frozen
class Speed:
    """How fast a sample comes. None: as the next wider level says.

    Attributes:
        tokens_per_s: 0 for as fast as it can be taken.
        first_token_s: seconds from acceptance to the first token.
        accept_s: seconds from the request to its acceptance.
    """

    tokens_per_s: float | None = None
    first_token_s: float | None = None
    accept_s: float | None = None

    def over(self, wider: "Speed") -> "Speed":
        own = {f.name: getattr(self, f.name) for f in fields(Speed) if getattr(self, f.name) is not None}
        return evolve(wider, **own)


@frozen
class When:
    """Conditions of a rule: all that are given must hold. Of several texts or names one is enough, except in ``tools``."""

    model: tuple[str, ...] = ()
    user_contains: tuple[str, ...] = ()
    user_matches: re.Pattern[str] | None = None
    outputs: int | None = None
    min_outputs: int | None = None
    max_outputs: int | None = None
    output_contains: tuple[str, ...] = ()
    output_matches: re.Pattern[str] | None = None
    tools: tuple[str, ...] = ()
    any_tool: tuple[str, ...] = ()
    no_tool: tuple[str, ...] = ()
    mentions: tuple[str, ...] = ()

    def holds(self, *, model: str, instructions: str, facts: Facts, tools: tuple[Tool, ...]) -> bool:
        return (
            (not self.model or any(fnmatchcase(model, glob) for glob in self.model))
            and (self.outputs is None or facts.n_outputs == self.outputs)
            and (self.min_outputs is None or facts.n_outputs >= self.min_outputs)
            and (self.max_outputs is None or facts.n_outputs <= self.max_outputs)
            and all(find_tool(name, tools) for name in self.tools)
            and (not self.any_tool or any(find_tool(name, tools) for name in self.any_tool))
            and not any(find_tool(name, tools) for name in self.no_tool)
            and _contains(facts.last_user, self.user_contains)
            and _contains(facts.last_output, self.output_contains)
            and (self.user_matches is None or self.user_matches.search(facts.last_user) is not None)
            and (self.output_matches is None or self.output_matches.search(facts.last_output) is not None)
            and (
                not self.mentions
                or any(needle in facts.mentioned or needle in instructions for needle in self.mentions)
            )
        )


def _contains(text: str, needles: tuple[str, ...]) -> bool:
    return not needles or any(needle in text for needle in needles)


def find_tool(name: str, tools: tuple[Tool, ...]) -> Tool | None:
    """The first tool of that name.

    Args:
        name: with ``*`` and ``?`` as in file names, after ``function:`` or ``custom:`` if only those count. A
            namespaced tool answers to its own name, and to ``namespace.name``.
    """
    kind, _, rest = name.rpartition(":")
    fits = partial(fnmatchcase, pat=rest) if any(sign in rest for sign in "*?[") else rest.__eq__
    for tool in tools:
        if kind and tool.custom is not (kind == "custom"):
            continue
        if fits(tool.name) or (tool.namespace and fits(f"{tool.namespace}.{tool.name}")):
            return tool
    return None


# --- steps: what a rule says, in order ------------------------------------------------------------------


@frozen
class SayText:
    """A message of its own.

    Attributes:
        is_json: what placeholders bring is escaped, so that the text stays JSON.
    """

    text: str
    phase: str | None = None
    repeat: int = 1
    is_json: bool = False


@frozen
class SayRefusal:
    text: str


@frozen
class SayReasoning:
    text: str
    repeat: int = 1


@frozen
class SaySummary:
    """Parts of a reasoning summary."""

    parts: tuple[str, ...]


@frozen
class SayCall:
    """A tool call.

    Attributes:
        tool: which tool, as ``find_tool`` reads it.
        arguments: a table becomes JSON; a text is sent as it is, valid or not; None: the least that fits the schema.
        call_id: None for a fresh one.
    """

    tool: str
    arguments: str | dict[str, Any] | None = None
    call_id: str | None = None


@frozen
class Pause:
    seconds: float


FAILURE = "The script says that this request fails."

STATUSES: Mapping[str, int] = {
    "invalid_prompt": 400,
    "context_length_exceeded": 400,
    "invalid_api_key": 401,
    "insufficient_quota": 402,
    "model_not_found": 404,
    "rate_limit_exceeded": 429,
    "server_error": 500,
    "server_is_overloaded": 503,
    "slow_down": 503,
}
"""The status that goes with a code where the script gives none; 500 for any other. As chat-completions servers' errors
are passed on."""


@frozen
class Fail:
    """The backend refuses the request, or fails if it was accepted.

    Attributes:
        started: whether the request is accepted first.
    """

    code: str
    started: bool
    message: str = FAILURE
    status: int = 500
    retry_after: str | None = None
    param: str | None = None


@frozen
class Hang:
    """Nothing more comes, until the request is cancelled."""

    started: bool = True


@frozen
class Cut:
    """The stream ends without a finish."""


@frozen
class End:
    """The sample finishes.

    Attributes:
        usage: token counts to report instead of those that were counted.
    """

    reason: str = "stop"
    usage: Mapping[str, int] = field(factory=dict)


Step = SayText | SayRefusal | SayReasoning | SaySummary | SayCall | Pause | Fail | Hang | Cut | End
LAST = Fail | Hang | Cut | End
"""Steps that nothing can follow."""


@frozen
class Rule:
    """What is said when the conditions hold.

    Attributes:
        times: how often it may be played while the server runs; None for always.
    """

    say: tuple[Step, ...]
    when: When = When()
    speed: Speed = Speed()
    name: str = ""
    times: int | None = None


@frozen
class Script:
    """Rules, tried in order: the first that holds is played.

    Attributes:
        models: names to list; requests for other names are answered too.
        model_speeds: by a glob of model names; the first that fits counts.
        seed: makes call ids the same on every run; None for random ones.
        source: where it came from, for messages.
    """

    rules: tuple[Rule, ...]
    models: tuple[str, ...] = ("scripted",)
    speed: Speed = Speed()
    model_speeds: Mapping[str, Speed] = field(factory=dict)
    seed: str | None = None
    source: str = "script"

    @classmethod
    def load(cls, path: str | Path) -> "Script":
        """Raises ``ScriptError`` for a file that cannot be read or that is no script."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as exc:
            raise ScriptError(f"{path}: the script cannot be read: {exc.strerror}.") from None
        except UnicodeDecodeError as exc:
            raise ScriptError(f"{path}: the script is not UTF-8 text ({exc.reason} at byte {exc.start}).") from None
        return cls.parse(text, source=str(path))

    @classmethod
    def parse(cls, text: str, *, source: str = "script") -> "Script":
        """Raises ``ScriptError``."""
        from .script_reader import read_script  # it builds what this file defines

        return read_script(text, source)

    @classmethod
    def default(cls) -> "Script":
        """The script that a server without configuration plays."""
        text = resources.files(__package__).joinpath("default.toml").read_text(encoding="utf-8")
        return cls.parse(text, source="the built-in script")

    def speed_of(self, rule: Rule, model: str) -> Speed:
        named = next((speed for glob, speed in self.model_speeds.items() if fnmatchcase(model, glob)), Speed())
        return rule.speed.over(named.over(self.speed))
