"""What may lawfully differ between two runs of a session, as an ``open`` line says it."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from attrs import evolve, frozen

from .errors import RuleInvalid
from .packing import encode
from .presets import PRESETS

VALUE = "value"
"""Name of the group of a learning pattern that captures what is learned."""


@frozen
class Replace:
    """Every match of ``pattern`` becomes ``with_``, in the items and at the place that the rule is for.

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
        ignored: names of settings that are not compared.
    """

    replace: tuple[Replace, ...] = ()
    learn: tuple[Learn, ...] = ()
    ignored: frozenset[str] = frozenset()

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
                case {"rule": "ignore", "fields": list(fields), **rest} if not rest and all(_is_str(f) for f in fields):
                    ruleset = evolve(ruleset, ignored=ruleset.ignored | {*fields})
                case _:
                    raise _invalid(rule, '"rule" should be "replace", "learn", or "ignore" with an array "fields"')
        return ruleset


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
    except (re.error, IndexError) as exc:
        raise _invalid(rule, f"its regular expression is wrong ({exc})") from None
    return compiled, with_


def _replace(rule: dict[str, Any]) -> Replace:
    pattern, with_ = _pattern(rule, "items", "at")
    items, at = rule.get("items", []), rule.get("at", "")
    if not isinstance(items, list) or not all(map(_is_str, items)) or not isinstance(at, str):
        raise _invalid(rule, '"items" should be an array of item types, and "at" a path such as "content.*.text"')
    return Replace(pattern, with_, frozenset(items), tuple(at.split(".")) if at else ())


def _learn(rule: dict[str, Any]) -> Learn:
    pattern, with_ = _pattern(rule)
    if VALUE not in pattern.groupindex:
        raise _invalid(rule, f'"pattern" should have a group named "{VALUE}", as in <cwd>(?P<{VALUE}>[^<]+)</cwd>')
    return Learn(pattern, with_)
