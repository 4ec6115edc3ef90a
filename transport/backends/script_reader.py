"""Reads a script file: every key is checked, and whatever does not fit is named with its place and its cure."""

import difflib
import math
import re
import tomllib
from collections.abc import Mapping
from typing import Any, NoReturn

from attrs import define, fields

from turntape.core.seam import Usage

from .script import (
    FAILURE,
    LAST,
    STATUSES,
    Cut,
    End,
    Fail,
    Hang,
    Pause,
    Rule,
    SayCall,
    SayReasoning,
    SayRefusal,
    SaySummary,
    SayText,
    Script,
    ScriptError,
    Speed,
    Step,
    When,
)

MAX_REPEAT = 1_000_000
MAX_SECONDS = 86_400.0
SPEED_KEYS = tuple(entry.name for entry in fields(Speed))
FINISHES = ("stop", "length", "content_filter")
PHASES = ("commentary", "final_answer")

KINDS = {str: "a string", bool: "a boolean", int: "an integer", float: "a number", dict: "a table", list: "an array"}


def _kind(value: object) -> str:
    return KINDS.get(type(value), f"a {type(value).__name__}")


@define
class _Table:
    """One table of the file; every key is taken once, and none may be left over.

    Attributes:
        where: for messages: the file, and the place in it.
    """

    keys: dict[str, Any]
    where: str
    known: tuple[str, ...]

    def __attrs_post_init__(self) -> None:
        for key in self.keys:
            if key not in self.known:
                near = difflib.get_close_matches(key, self.known, 1)
                hint = f"did you mean '{near[0]}'?" if near else f"the keys here are {', '.join(self.known)}."
                self.fail(f"unknown key '{key}'; {hint}")

    def fail(self, problem: str) -> NoReturn:
        raise ScriptError(f"{self.where}: {problem}")

    def wrong(self, key: str, expected: str) -> NoReturn:
        value = self.keys[key]
        got = f"{value!r:.60}" if isinstance(value, str | int | float) else _kind(value)
        self.fail(f"'{key}' should be {expected}, but is {got}{f' ({_kind(value)})' if got != _kind(value) else ''}.")

    def text(self, key: str, *choices: str) -> str | None:
        value = self.keys.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or (choices and value not in choices):
            self.wrong(key, f"one of {', '.join(map(repr, choices))}" if choices else "a string in quotes")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """One string, or an array of them."""
        value = self.keys.get(key, [])
        value = [value] if isinstance(value, str) else value
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            self.wrong(key, "a string in quotes, or an array of strings")
        return tuple(value)

    def pattern(self, key: str) -> re.Pattern[str] | None:
        value = self.text(key)
        try:
            return None if value is None else re.compile(value)
        except re.error as exc:
            self.fail(f"'{key}' is not a regular expression: {exc}. Write it in single quotes, as in '\\bls\\b'.")

    def whole(self, key: str, low: int, high: int) -> int | None:
        value = self.keys.get(key)
        if value is None:
            return None
        if type(value) is not int or not low <= value <= high:
            self.wrong(key, f"a whole number from {low} to {high}")
        return value

    def number(self, key: str, high: float = math.inf) -> float | None:
        value = self.keys.get(key)
        if value is None:
            return None
        if type(value) not in (int, float) or not 0 <= value <= high or math.isinf(value):
            self.wrong(key, "a number, 0 or more" if math.isinf(high) else f"a number from 0 to {high:g}")
        return float(value)

    def flag(self, key: str) -> bool | None:
        value = self.keys.get(key)
        if value is not None and type(value) is not bool:
            self.wrong(key, "true or false")
        return value

    def table(self, key: str) -> dict[str, Any]:
        value = self.keys.get(key, {})
        if not isinstance(value, dict):
            self.wrong(key, "a table")
        return value

    def tables(self, key: str) -> list[Any]:
        value = self.keys.get(key)
        if not isinstance(value, list):
            self.wrong(key, "an array of tables")
        return value

    def speed(self) -> Speed:
        return Speed(
            tokens_per_s=self.number("tokens_per_s"),
            first_token_s=self.number("first_token_s", MAX_SECONDS),
            accept_s=self.number("accept_s", MAX_SECONDS),
        )


def read_script(text: str, source: str) -> Script:
    """Raises ``ScriptError``."""
    try:
        value = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise ScriptError(f"{source}: not valid TOML: {exc}.") from None
    top = _Table(value, source, ("models", "model", "seed", "rule", *SPEED_KEYS))
    if not top.keys.get("rule"):
        top.fail("there is no [[rule]] table, so nothing could ever be said; add one with a 'say' array.")
    speeds = {
        glob: _Table(_a_table(speed, f"{source}: model.{glob}"), f"{source}: model.{glob}", SPEED_KEYS).speed()
        for glob, speed in top.table("model").items()
    }
    rules = tuple(_rule(rule, f"{source}: rule {n}") for n, rule in enumerate(top.tables("rule"), 1))
    return Script(
        rules=rules,
        models=top.texts("models") or ("scripted",),
        speed=top.speed(),
        model_speeds=speeds,
        seed=top.text("seed"),
        source=source,
    )


def _a_table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ScriptError(f"{where}: should be a table, but is {_kind(value)}.")
    return value


def _rule(value: Any, where: str) -> Rule:
    name = value.get("name") if isinstance(value, dict) else None
    if isinstance(name, str):
        where += f" ({name})"
    table = _Table(_a_table(value, where), where, ("name", "when", "say", "times", *SPEED_KEYS))
    if "say" not in table.keys:
        table.fail("'say' is missing: an array of what to say, such as say = [{ text = \"Hello.\" }].")
    if table.keys["say"] == []:
        table.fail("'say' is empty, and a model always says something; give it a step, such as { text = \"Hello.\" }.")
    steps = list[Step]()
    for n, step in enumerate(table.tables("say"), 1):
        place = f"{where}: say {n}"
        if steps and isinstance(steps[-1], LAST):
            raise ScriptError(f"{place}: nothing can follow the step before it, which ends the sample; remove one.")
        steps.append(_step(_a_table(step, place), place, first=not steps))
    return Rule(
        say=tuple(steps),
        when=_when(table.table("when"), f"{where}: when"),
        speed=table.speed(),
        name=table.text("name") or "",
        times=table.whole("times", 1, MAX_REPEAT),
    )


def _when(value: dict[str, Any], where: str) -> When:
    table = _Table(value, where, tuple(entry.name for entry in fields(When)))
    counts = {key: table.whole(key, 0, MAX_REPEAT) for key in ("outputs", "min_outputs", "max_outputs")}
    texts = {
        key: table.texts(key)
        for key in ("model", "user_contains", "output_contains", "tools", "any_tool", "no_tool", "mentions")
    }
    for key in ("tools", "any_tool", "no_tool"):
        for name in texts[key]:
            _check_tool(table, key, name)
    patterns = {key: table.pattern(key) for key in ("user_matches", "output_matches")}
    return When(**counts, **texts, **patterns)  # type: ignore[arg-type]


def _check_tool(table: _Table, key: str, name: str) -> None:
    kind = name.rpartition(":")[0]
    if not name or kind not in ("", "function", "custom"):
        table.fail(f"'{key}': {name!r} is no tool: write its name, or 'function:NAME' or 'custom:NAME'.")


STEPS: Mapping[str, tuple[str, ...]] = {
    "text": ("phase", "repeat"),
    "refusal": (),
    "reasoning": ("repeat",),
    "summary": (),
    "call": ("arguments", "call_id"),
    "pause": (),
    "fail": ("message", "status", "retry_after", "param", "started"),
    "hang": ("started",),
    "cut": (),
    "finish": ("usage",),
}
"""Each kind of step, and the keys that may stand beside it."""


def _step(value: dict[str, Any], where: str, *, first: bool) -> Step:
    kinds = [key for key in value if key in STEPS]
    if len(kinds) != 1:
        beside = {key for keys in STEPS.values() for key in keys}
        for key in value if not kinds else ():
            if key not in beside and (near := difflib.get_close_matches(key, STEPS, 1)):
                raise ScriptError(f"{where}: unknown key '{key}'; did you mean '{near[0]}'?")
        found = "none" if not kinds else " and ".join(kinds)
        raise ScriptError(f"{where}: a step has exactly one of {', '.join(STEPS)}; here is {found}.")
    [kind] = kinds
    table = _Table(value, where, (kind, *STEPS[kind]))
    match kind:
        case "text":
            phase, repeat = table.text("phase", *PHASES), table.whole("repeat", 1, MAX_REPEAT)
            return SayText(_required(table, kind), phase, repeat or 1)
        case "refusal":
            return SayRefusal(_required(table, kind))
        case "reasoning":
            return SayReasoning(_required(table, kind), table.whole("repeat", 1, MAX_REPEAT) or 1)
        case "summary":
            return SaySummary(table.texts(kind))
        case "call":
            return _call(table)
        case "pause":
            return Pause(table.number(kind, MAX_SECONDS) or 0.0)
        case "fail":
            return _fail(table, first)
        case "hang":
            _must_be_true(table, kind)
            return Hang(_started(table, first, default=True))
        case "cut":
            _must_be_true(table, kind)
            return Cut()
    return _finish(table)


def _required(table: _Table, key: str) -> str:
    return table.text(key) or ""


def _must_be_true(table: _Table, key: str) -> None:
    if table.flag(key) is not True:
        table.wrong(key, "true")


def _call(table: _Table) -> SayCall:
    tool, arguments = _required(table, "call"), table.keys.get("arguments")
    _check_tool(table, "call", tool)
    if arguments is not None and not isinstance(arguments, str | dict):
        table.wrong("arguments", "a table, or a string that is sent as it is")
    return SayCall(tool, arguments, table.text("call_id"))


def _fail(table: _Table, first: bool) -> Fail:
    retry_after = table.number("retry_after", MAX_SECONDS)
    code = _required(table, "fail")
    return Fail(
        code=code,
        started=_started(table, first, default=not first),
        message=table.text("message") or FAILURE,
        status=table.whole("status", 400, 599) or STATUSES.get(code, 500),
        retry_after=None if retry_after is None else f"{retry_after:g}",
        param=table.text("param"),
    )


def _started(table: _Table, first: bool, *, default: bool) -> bool:
    started = table.flag("started")
    if started is False and not first:
        table.fail("'started = false' is for the first step of a rule: by now the request has been accepted.")
    return default if started is None else started


def _finish(table: _Table) -> End:
    counts = tuple(entry.name for entry in fields(Usage))
    usage = _Table(table.table("usage"), f"{table.where}: usage", counts)
    given = {key: usage.whole(key, 0, 2**53) for key in counts if key in usage.keys}
    return End(table.text("finish", *FINISHES) or "stop", {key: n for key, n in given.items() if n is not None})
