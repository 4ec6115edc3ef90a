"""Imported conversations to a recording: a real session is fed with them, so that the file holds what it sends."""

import hashlib
from typing import Any

import orjson
from attrs import define, evolve, field

from turntape.core.seam import (
    ClientGone,
    ClientText,
    Effect,
    Event,
    Limits,
    Load,
    Loaded,
    Opened,
    Sampled,
    Save,
    Saved,
    Send,
    Started,
    StartSample,
    event_type,
)
from turntape.core.session import Session
from turntape.replay.packing import encode
from turntape.replay.recorder import Recorder, Tape
from turntape.replay.secrets import DEFAULT, Masker

from .conversations import Conversation, Imported, ImportedTurn

ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})

UNBOUNDED = Limits(n_kept=1_000_000)
"""An imported conversation may continue any of its responses, wherever they were kept."""

NAMED = 50
"""Left out things that the header names one by one."""

LONGEST = 300
"""Characters of each."""


def header(imported: Imported, sources: list[str]) -> dict[str, Any]:
    """What the first line says of the file."""
    skipped = [text.encode("utf-8", "replace").decode()[:LONGEST] for text in imported.skipped[:NAMED]]
    if len(imported.skipped) > NAMED:
        skipped.append(f"and {len(imported.skipped) - NAMED} more")
    about = {"from": imported.kind, "sources": sources, "skipped": skipped}
    return {"note": " ".join(imported.notes), "imported": about}


def write(imported: Imported, tape: Tape, masker: Masker = DEFAULT) -> list[str]:
    """Feed each conversation to a session that is recorded; return what the session refused, with its place."""
    refused = list[str]()
    for number, conversation in enumerate(imported.conversations):
        refused += _Writing(conversation, tape, number, masker).run()
    return refused


@define
class _Writing:
    """One conversation and the session that answers it."""

    conversation: Conversation
    tape: Tape
    number: int
    masker: Masker
    _recorder: Recorder = field(init=False)
    _wall: float = field(init=False)
    _now: float = field(init=False, default=0.0)
    _ids: dict[str, str] = field(init=False, factory=dict)  # of our responses, by the names of their turns

    def __attrs_post_init__(self) -> None:
        self._recorder = Recorder(Session(), self.tape, self.conversation.rules, self.masker)
        self._wall = self.conversation.turns[0].asked_at if self.conversation.turns else 0.0

    def run(self) -> list[str]:
        if not self.conversation.turns:
            return []
        self._feed(Opened(self._seed(), self._wall, agent=self.conversation.agent, limits=UNBOUNDED), self._wall)
        refused = [f"{turn.where}: {why}" for turn in self.conversation.turns if (why := self._turn(turn))]
        self._feed(ClientGone(1000), self._wall)
        return refused

    def _seed(self) -> str:
        """The same sources give the same file."""
        content = repr([(turn.asked_at, turn.body, turn.input, turn.batches) for turn in self.conversation.turns])
        return hashlib.blake2b(f"{self.number} {content}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def _turn(self, turn: ImportedTurn) -> str:
        """Ask, and answer as it was answered; return why the session would not have it, or ""."""
        body = {"type": "response.create", **turn.body, "input": turn.input}
        if turn.follows in self._ids:
            body["previous_response_id"] = self._ids[turn.follows]
        elif turn.history is not None:
            body["input"] = [*turn.history, *turn.input]
        elif turn.follows is not None:
            return f"continues {turn.follows}, which is not in the source"
        effects = self._feed(ClientText(encode(body).decode()), turn.asked_at)
        for load in [effect for effect in effects if isinstance(effect, Load)]:
            loaded = Loaded(load.stream_id, None, tuple(None for _ in load.item_ids))
            effects += self._feed(loaded, turn.asked_at)
        start = next((effect for effect in effects if isinstance(effect, StartSample)), None)
        if start is None:
            return _refusal(effects)
        self._feed(Started(start.sample_id), turn.asked_at)
        ended = list[Effect]()
        for at, batch in turn.batches:
            ended = self._feed(Sampled(start.sample_id, batch), at)
        if turn.failure is not None:
            at = turn.batches[-1][0] if turn.batches else turn.asked_at
            ended = self._feed(evolve(turn.failure, sample_id=start.sample_id), at)
        for save in [effect for effect in ended if isinstance(effect, Save)]:
            ended += self._feed(Saved(save.stream_id), self._wall)
        response_id = _response_id(ended)
        if turn.name is not None and response_id is not None:
            self._ids[turn.name] = response_id
        return ""

    def _feed(self, event: Event, at: float) -> list[Effect]:
        self._now = max(self._now, round(at - self._wall, 6))
        return self._recorder.receive(event, now=self._now)


def _events(effects: list[Effect]) -> list[bytes]:
    return [entry for effect in effects if isinstance(effect, Send) for entry in effect.data]


def _refusal(effects: list[Effect]) -> str:
    for entry in _events(effects):
        if event_type(entry) == "error":
            return f"is refused: {orjson.loads(entry)['error']['message']}"
    return "asks for no answer"


def _response_id(effects: list[Effect]) -> str | None:
    for entry in _events(effects):
        if event_type(entry) in ENDS:
            return str(orjson.loads(entry)["response"]["id"])
    return None
