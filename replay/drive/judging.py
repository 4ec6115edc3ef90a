"""One answer beside the recorded one: same calls, same text, valid, ended alike. Nothing here depends on time."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from attrs import frozen

from turntape.core.canonical import Item
from turntape.core.response import without_surrogates
from turntape.core.seam import Finish, Increment, Sampled
from turntape.replay.differences import common_start
from turntape.replay.takes import Take

from .course import Turn
from .report import (
    QUOTED,
    QUOTED_BEFORE,
    Called,
    CallVerdict,
    Failure,
    StructuredVerdict,
    TextVerdict,
    TurnVerdict,
)


@frozen(eq=False)
class Answer:
    """What a backend said in one turn, whenever it said it.

    Attributes:
        capped: it was cut off, since it said far more than was recorded.
    """

    increments: tuple[Increment, ...] = ()
    failure: Failure | None = None
    capped: bool = False

    @property
    def finish(self) -> Finish | None:
        return next((i for i in reversed(self.increments) if isinstance(i, Finish)), None)


def said_in(like: Take, increments: tuple[Increment, ...]) -> list[Item]:
    """The items that ``increments`` make, as those of a take are made."""
    take = Take(like.fixture, like.line, like.session, like.began, like.start, like.rules)
    take.events.append((0.0, Sampled(like.start.sample_id, increments)))
    return take.said()


def judge(turn: Turn, answer: Answer) -> TurnVerdict:
    """The verdict on what came in the place of ``turn``'s recorded answer."""
    recorded, got = turn.take.said(), said_in(turn.take, answer.increments)
    finish = turn.take.finish
    return _verdict(
        turn=turn.number,
        where=turn.where,
        thread=turn.thread,
        calls=pair(called(recorded), called(got)),
        text=compare_texts(text_of(recorded), text_of(got)),
        structured=structured(turn.take, text_of(got)),
        recorded=finish.reason if finish is not None else None,
        answer=answer,
    )


def judge_extra(last: Turn, number: int, answer: Answer) -> TurnVerdict:
    """The same for a turn in whose place nothing was recorded.

    Args:
        last: the last recorded turn of its thread.
        number: of the turn that is judged.
    """
    got = said_in(last.take, answer.increments)
    return _verdict(
        turn=number,
        where="",
        thread=last.thread,
        calls=pair((), called(got)),
        text=compare_texts("", text_of(got)),
        structured=structured(last.take, text_of(got)),
        recorded=None,
        answer=answer,
    )


def _verdict(
    *,
    turn: int,
    where: str,
    thread: int,
    calls: tuple[CallVerdict, ...],
    text: TextVerdict,
    structured: StructuredVerdict | None,
    recorded: str | None,
    answer: Answer,
) -> TurnVerdict:
    got = answer.finish.reason if answer.finish is not None else None
    found = {
        "failed": answer.failure is not None,
        "capped": answer.capped,
        "calls": any(call.verdict not in ("equal", "arguments") for call in calls),
        "arguments": any(call.verdict == "arguments" for call in calls),
        "invalid": structured is not None and not structured.valid,
        "finish": recorded != got,
        "text": not text.equal,
    }
    return TurnVerdict(
        turn=turn,
        where=where,
        thread=thread,
        verdict=next((verdict for verdict, holds in found.items() if holds), "equal"),
        text=text,
        calls=calls,
        structured=structured,
        finish_recorded=recorded,
        finish_got=got,
        failure=answer.failure,
    )


def text_of(items: Iterable[Item]) -> str:
    """All that the messages among ``items`` say; reasoning is not compared: no two backends agree on it."""
    parts = (part for item in items if item.type == "message" for part in item.value["content"])
    return "".join(part.get("text", part.get("refusal", "")) for part in parts)


def called(items: Iterable[Item]) -> tuple[Called, ...]:
    """The calls among ``items``."""
    return tuple(call_of(item.value) for item in items if item.opens_call)


def call_of(value: dict[str, Any]) -> Called:
    namespace, name = value.get("namespace"), value.get("name")
    own = f"{namespace}.{name}" if namespace else str(name)
    return Called(name=own, arguments=str(value.get("arguments", value.get("input", ""))))


def form(call: Called) -> tuple[str, str]:
    """What is equal for calls that ask the same: arguments that are JSON count by what they say."""
    try:
        value = json.loads(call.arguments)
        return call.name, json.dumps(value, sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return call.name, call.arguments


def pair(recorded: Sequence[Called], got: Sequence[Called]) -> tuple[CallVerdict, ...]:
    """Each recorded call with the one that came for it: an equal one, else one of the same tool, else the next."""
    left, partners = [*got], dict[int, tuple[str, Called]]()
    for verdict in ("equal", "arguments", "different"):
        for n, call in enumerate(recorded):
            if n in partners:
                continue
            at = next((k for k, other in enumerate(left) if _matches(verdict, call, other)), None)
            if at is not None:
                partners[n] = verdict, left.pop(at)
    verdicts = [
        CallVerdict(verdict=partners[n][0], recorded=call, got=partners[n][1])
        if n in partners
        else CallVerdict(verdict="missing", recorded=call)
        for n, call in enumerate(recorded)
    ]
    return (*verdicts, *(CallVerdict(verdict="extra", got=call) for call in left))


def _matches(verdict: str, recorded: Called, got: Called) -> bool:
    if verdict == "equal":
        return form(recorded) == form(got)
    return verdict == "different" or recorded.name == got.name


def compare_texts(recorded: str, got: str) -> TextVerdict:
    if recorded == got:
        return TextVerdict(equal=True, n_recorded=len(recorded), n_got=len(got))
    at = common_start(recorded, got)
    first = max(0, at - QUOTED_BEFORE)
    return TextVerdict(
        equal=False,
        n_recorded=len(recorded),
        n_got=len(got),
        at=at,
        quoted_from=first,
        recorded=recorded[first : first + QUOTED],
        got=got[first : first + QUOTED],
    )


def structured(take: Take, text: str) -> StructuredVerdict | None:
    """Whether ``text`` is what the request's JSON schema asks for; None without a schema, or without a text."""
    settings = take.start.request.text
    if settings is None or settings.format is None or settings.format.schema is None or not text:
        return None
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as exc:
        return StructuredVerdict(valid=False, problem=f"it is not JSON: {exc}")
    schema = settings.format.schema
    try:
        kind = validator_for(schema)
        kind.check_schema(schema)
        errors = kind(schema, registry=Registry()).iter_errors(value)  # this registry fetches nothing
        first = min(errors, key=lambda error: [*map(str, error.absolute_path)], default=None)
    except (SchemaError, Unresolvable, RecursionError) as exc:
        return StructuredVerdict(valid=False, problem=f"the schema cannot be used: {str(exc).splitlines()[0][:200]}")
    if first is None:
        return StructuredVerdict(valid=True)
    return StructuredVerdict(valid=False, problem=without_surrogates(f"{first.json_path}: {first.message[:200]}"))
