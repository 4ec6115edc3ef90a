"""The recorded samples of a fixture: what each was asked, and what it answered, with its times."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from attrs import define, field

from turntape.core.canonical import Item
from turntape.core.response import without_surrogates
from turntape.core.seam import (
    Arguments,
    Effect,
    Encrypted,
    Finish,
    Increment,
    Message,
    Opened,
    Reasoning,
    Refusal,
    Sampled,
    SampleFailed,
    Started,
    StartSample,
    Summary,
    Text,
    ToolCall,
)
from turntape.core.session import Session
from turntape.transport.driver import SessionLike

from .errors import Divergence
from .fixture import Fixture
from .lines import Relayed, Step
from .reconstruction import Reconstruction
from .requests import NotReplayable, Unheard

NewSession = Callable[[], SessionLike]


@define(eq=False)
class Take:
    """One recorded sample.

    Attributes:
        line: of the file, where it was started.
        began: seconds since its session's ``Opened``.
        opened_at: when that was, in seconds since 1970.
        events: what its backend did, each with its seconds since ``began``.
        whole: it ended, well or not; a sample that was cancelled or cut off is no answer to anything.
        unheard: its answer could not be read, so it is never whole; ``not_replayable`` names it.
    """

    fixture: Fixture
    line: int
    session: int
    began: float
    start: StartSample
    rules: tuple[object, ...]
    events: list[tuple[float, Started | Sampled | SampleFailed]] = field(factory=list)
    whole: bool = False
    opened_at: float = 0.0
    unheard: bool = False

    @property
    def where(self) -> str:
        return f"{self.fixture.name}:{self.line}"

    @property
    def failure(self) -> SampleFailed | None:
        last = self.events[-1][1] if self.events else None
        return last if isinstance(last, SampleFailed) else None

    @property
    def finish(self) -> Finish | None:
        last = self.events[-1][1] if self.events else None
        return next((i for i in last.batch if isinstance(i, Finish)), None) if isinstance(last, Sampled) else None

    @property
    def first_token_s(self) -> float:
        """Seconds until the first increment; infinite if there was none."""
        return next((at for at, event in self.events if isinstance(event, Sampled) and event.batch), math.inf)

    @property
    def duration_s(self) -> float:
        return self.events[-1][0] if self.events else 0.0

    def said(self) -> list[Item]:
        """The items that its increments make, without ids, as far as it came."""
        items: list[dict[str, Any]] = []
        summary_part = 0
        for increment in self.increments():
            match increment:
                case Message(phase):
                    items.append(_message() if phase is None else {**_message(), "phase": phase})
                case ToolCall(call_id, name, namespace, custom):
                    kind, payload = ("custom_tool_call", "input") if custom else ("function_call", "arguments")
                    own = {} if namespace is None else {"namespace": namespace}
                    named = {"call_id": without_surrogates(call_id), "name": without_surrogates(name)}
                    items.append({"type": kind, **named, payload: "", **own})
                case Text("") | Refusal("") | Reasoning("") | Summary(""):
                    pass  # says nothing, and begins nothing
                case Encrypted(content):
                    _last(items, "reasoning")["encrypted_content"] = content
                case Arguments(text) if items:
                    payload = "input" if items[-1]["type"] == "custom_tool_call" else "arguments"
                    items[-1][payload] += without_surrogates(text)
                case Text(text):
                    _grow(_last(items, "message"), "content", "output_text", "text", text)
                case Refusal(text):
                    _grow(_last(items, "message"), "content", "refusal", "refusal", text)
                case Reasoning(text):
                    _grow(_last(items, "reasoning"), "content", "reasoning_text", "text", text)
                case Summary(text, part):
                    summary = _last(items, "reasoning")
                    if part > summary_part or not summary["summary"]:
                        summary["summary"].append({"type": "summary_text", "text": ""})
                    summary_part = part
                    _grow(summary, "summary", "summary_text", "text", text)
        return [Item.of(item) for item in items]

    def increments(self) -> Iterator[Increment]:
        for _, event in self.events:
            if isinstance(event, Sampled):
                yield from event.batch


def _message() -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": []}


def _last(items: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The open item, if it is one of ``kind``; else a new one."""
    if not items or items[-1]["type"] != kind or "encrypted_content" in items[-1]:
        items.append(_message() if kind == "message" else {"type": kind, "summary": [], "content": []})
    return items[-1]


def _grow(item: dict[str, Any], where: str, kind: str, key: str, text: str) -> None:
    parts = item[where]
    if not parts or parts[-1]["type"] != kind:
        parts.append({"type": kind, key: ""})
    parts[-1][key] += without_surrogates(text)  # as the session that recorded it told its client


def recorded_steps(
    fixture: Fixture, new_session: NewSession = Session
) -> Iterator[tuple[Step, Sequence[Effect], str | None]]:
    """Feed what this server recorded to fresh sessions; yield each step, what a session of today answers, and what it raised."""
    receives: dict[int, Callable[..., list[Effect]]] = {}
    for step in fixture.steps:
        receive = receives.get(step.session)
        if receive is None:
            receive = receives[step.session] = new_session().receive
        try:
            effects = receive(step.event, now=step.at)
        except Exception as exc:  # noqa: BLE001 - whatever it is, it is the answer
            yield step, (), type(exc).__name__
        else:
            yield step, effects, None


def refeed(
    fixture: Fixture, new_session: NewSession = Session, reconstruction: Reconstruction | None = None
) -> Iterator[tuple[Step, Sequence[Effect], str | None]]:
    """The same of every session of the file: those that a relay wrote are reconstructed.

    Args:
        reconstruction: a new one, whose findings are of use to the caller.
    """
    recorded = recorded_steps(fixture, new_session)
    reconstruction = reconstruction or Reconstruction(fixture, new_session)
    for line in fixture.lines:
        if isinstance(line, Step):
            yield next(recorded)
        else:
            yield from reconstruction.feed(line)


def openings(fixture: Fixture) -> dict[int, Opened]:
    """How each session of the file began, by its number."""
    reconstruction = Reconstruction(fixture)
    found: dict[int, Opened] = {}
    for line in fixture.lines:
        steps = [line] if isinstance(line, Step) else []
        if isinstance(line, Relayed):
            steps = [step for step, _, _ in reconstruction.feed(line)]
        found |= {step.session: step.event for step in steps if isinstance(step.event, Opened)}
    return found


def takes(fixture: Fixture, new_session: NewSession = Session, lost: list[NotReplayable] | None = None) -> list[Take]:
    """Every sample that the recording started, oldest first. Conversations are rebuilt by today's core.

    Args:
        lost: gets what of relayed sessions is no take, or not in full, as ``not_replayable`` gives it.

    Raises:
        Divergence: today's core does not start the samples that were recorded.
    """
    found: dict[tuple[int, str], Take] = {}
    rules: dict[int, tuple[object, ...]] = {}
    opened_at: dict[int, float] = {}
    reconstruction = Reconstruction(fixture, new_session)
    for step, effects, raised in refeed(fixture, new_session, reconstruction):
        if step.session not in rules:
            rules[step.session] = fixture.rules + step.rules
        if raised is not None and raised != step.raised:
            raise Divergence(
                fixture.name, step.line, f"today's session raises {raised} here; `turntape verify` says more"
            )
        event = step.event
        if isinstance(event, Opened):
            opened_at[step.session] = event.wall
        if isinstance(event, Started | Sampled | SampleFailed):
            take = found.get((step.session, event.sample_id))
            if take is not None and isinstance(event, Unheard):
                take.unheard = True
            elif take is not None and not take.whole:
                take.events.append((round(step.at - take.began, 6), event))
                take.whole = isinstance(event, SampleFailed) or take.finish is not None
        for effect in effects:
            if isinstance(effect, StartSample):
                take = Take(fixture, step.line, step.session, step.at, effect, rules[step.session])
                take.opened_at = opened_at.get(step.session, 0.0)
                found[step.session, effect.sample_id] = take
        _check_started(fixture, step, effects)
    if lost is not None:
        lost += reconstruction.findings.lost
    return [*found.values()]


def _check_started(fixture: Fixture, step: Step, effects: Sequence[Effect]) -> None:
    if step.out is None:
        return
    recorded = [effect.get("sample_id") for effect in step.out if effect.get("type") == "StartSample"]
    today = [effect.sample_id for effect in effects if isinstance(effect, StartSample)]
    if recorded != today:
        raise Divergence(
            fixture.name,
            step.line,
            "this version of Turntape starts other samples here than the one that recorded; `turntape verify` says more",
            str(recorded),
            str(today),
        )
