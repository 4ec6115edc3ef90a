"""What may lawfully differ between two runs of a session, as an ``open`` line says it."""

import re
from collections.abc import Collection, Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import orjson
from attrs import evolve, fields, frozen

from turntape.core.wire import ResponseCreate

from .errors import RuleInvalid
from .kinds import KINDS, placeholder
from .packing import encode
from .presets import PRESETS

VALUE = "value"
"""Name of the group of a learning pattern that captures what is learned."""

MAX_FILE_BYTES = 1 << 20
"""Of a file of rules; ours. Real ones have a few lines."""

_SHAPES = '"rule" should be "replace", "learn", or "ignore", "warn" or "exact" with an array "fields" of the names of settings'


@frozen
class Replace:
    """Every match of ``pattern``, or every value of a kind, becomes ``with_`` where the rule is for.

    Attributes:
        items: item types; empty for all items and the request's settings.
        at: path in the item, such as ``("content", "*", "text")``; empty for every string.
    """

    pattern: re.Pattern[str]
    with_: str
    items: frozenset[str] = frozenset()
    at: tuple[str, ...] = ()


@frozen
class Learn:
    """What ``pattern`` captures as ``value`` becomes ``with_``, there and wherever else it stands in the conversation."""

    pattern: re.Pattern[str]
    with_: str


@frozen
class Ruleset:
    """The rules of one recording, understood.

    Attributes:
        ignored: names of settings that are not compared; the model and the tools are settings too.
        warned: names of those that may differ, which is then said.
    """

    replace: tuple[Replace, ...] = ()
    learn: tuple[Learn, ...] = ()
    ignored: frozenset[str] = frozenset()
    warned: frozenset[str] = frozenset()

    @classmethod
    def of(cls, rules: Iterable[Any]) -> "Ruleset":
        """
        Args:
            rules: names of presets and rule objects, as an ``open`` line holds them.

        Raises:
            RuleInvalid: names the rule and what it should hold.
        """
        ruleset = cls()
        for rule in _without_presets(rules):
            match rule:
                case {"rule": "replace"}:
                    ruleset = evolve(ruleset, replace=(*ruleset.replace, _replace(rule)))
                case {"rule": "learn"}:
                    ruleset = evolve(ruleset, learn=(*ruleset.learn, _learn(rule)))
                case {"rule": "ignore" | "warn" | "exact" as policy, "fields": list(named), **rest} if not rest and all(
                    map(_is_str, named)
                ):
                    ruleset = ruleset.under(policy, rule)
                case _:
                    raise _invalid(rule, _SHAPES)
        return ruleset

    def under(self, policy: str, rule: dict[str, Any]) -> "Ruleset":
        """The last rule that names a setting says how it is compared."""
        named = frozenset(rule["fields"])
        if "input" in named:
            raise _invalid(rule, "the conversation is always compared; use replace rules for what may differ in it")
        ignored, warned = self.ignored - named, self.warned - named
        return evolve(
            self,
            ignored=ignored | named if policy == "ignore" else ignored,
            warned=warned | named if policy == "warn" else warned,
        )


def load_rules(path: Path) -> list[Any]:
    """The rules in a file: one JSON array of rules and names of presets, as an ``open`` line holds it.

    Raises:
        RuleInvalid: names the file, and the rule in it.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as exc:
        raise RuleInvalid(f"{path}: cannot be read: {exc.strerror}.") from None
    if len(content) > MAX_FILE_BYTES:
        raise RuleInvalid(f"{path}: is larger than {MAX_FILE_BYTES:,} bytes, which no file of rules should be.")
    try:
        rules = orjson.loads(content)
    except orjson.JSONDecodeError as exc:
        raise RuleInvalid(f"{path}: is not JSON: {exc}.") from None
    if not isinstance(rules, list):
        raise RuleInvalid(f'{path}: should be an array of rules, such as [{{"rule":"ignore","fields":["user"]}}].')
    try:
        Ruleset.of(rules)
    except RuleInvalid as exc:
        raise RuleInvalid(f"{path}: {exc}") from None
    return rules


def unknown_settings(rules: Iterable[Any], recorded: Collection[str]) -> list[str]:
    """A sentence for each setting that ``rules`` name and neither the API nor a ``recorded`` request has."""
    known = {field.name for field in fields(ResponseCreate)} - {"raw"} | {*recorded}
    named = [
        name
        for rule in _without_presets(rules)
        if isinstance(rule, dict) and rule.get("rule") in ("ignore", "warn", "exact")
        for name in rule["fields"]
    ]
    doubts = list[str]()
    for name in dict.fromkeys(named):
        if name not in known:
            near = get_close_matches(name, sorted(known), n=1, cutoff=0.7)
            cure = f"did you mean {near[0]!r}?" if near else "is it one that only new requests have?"
            doubts.append(f"the setting {name[:64]!r}, which a rule names, is in no recorded request; {cure}")
    return doubts


def _is_str(value: object) -> bool:
    return isinstance(value, str)


def _without_presets(rules: Iterable[Any]) -> Iterator[Any]:
    for rule in rules:
        if not isinstance(rule, str):
            yield rule
        elif rule in PRESETS:
            yield from PRESETS[rule]
        else:
            raise RuleInvalid(f"The preset {rule[:64]!r} is not known; there is {', '.join(map(repr, PRESETS))}.")


def _invalid(rule: Any, problem: str) -> RuleInvalid:
    shown = encode(rule).decode()
    return RuleInvalid(f"The rule {shown[:200]} cannot be used: {problem}.")


def _pattern(rule: dict[str, Any], *known: str) -> tuple[re.Pattern[str], str]:
    if unknown := rule.keys() - {"rule", "pattern", "with", *known}:
        raise _invalid(rule, f"{min(unknown)!r} is not part of it")
    pattern, with_ = rule.get("pattern"), rule.get("with")
    if not isinstance(pattern, str) or not isinstance(with_, str):
        raise _invalid(rule, '"pattern" and "with" should be strings')
    try:
        compiled = re.compile(pattern)
        compiled.sub(with_, "")
    except (re.error, IndexError, OverflowError, RecursionError) as exc:
        raise _invalid(rule, f"its regular expression is wrong ({exc})") from None
    return compiled, with_


def _replace(rule: dict[str, Any]) -> Replace:
    pattern, with_ = _kind(rule) if "kind" in rule else _pattern(rule, "items", "at")
    items, at = rule.get("items", []), rule.get("at", "")
    if not isinstance(items, list) or not all(map(_is_str, items)) or not isinstance(at, str):
        raise _invalid(rule, '"items" should be an array of item types, and "at" a path such as "content.*.text"')
    return Replace(pattern, with_, frozenset(items), tuple(at.split(".")) if at else ())


def _kind(rule: dict[str, Any]) -> tuple[re.Pattern[str], str]:
    if unknown := rule.keys() - {"rule", "kind", "with", "items", "at"}:
        why = "; a kind has a pattern of its own" if "pattern" in unknown else ""
        raise _invalid(rule, f"{min(unknown)!r} is not part of it{why}")
    kind = rule["kind"]
    if not isinstance(kind, str) or kind not in KINDS:
        raise _invalid(rule, f'"kind" should be one of {", ".join(sorted(KINDS))}')
    with_ = rule.get("with", placeholder(kind))
    if not isinstance(with_, str):
        raise _invalid(rule, '"with" should be a string')
    return KINDS[kind], with_.replace("\\", r"\\")


def _learn(rule: dict[str, Any]) -> Learn:
    pattern, with_ = _pattern(rule)
    if VALUE not in pattern.groupindex:
        raise _invalid(rule, f'"pattern" should have a group named "{VALUE}", as in <cwd>(?P<{VALUE}>[^<]+)</cwd>')
    return Learn(pattern, with_)
