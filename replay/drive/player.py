"""The client of one thread: makes each request in its design, and puts together what came on either side of the server."""

import secrets
from collections.abc import Callable
from typing import Any

import attrs
from attrs import define, field, frozen

from turntape.replay.reading import DELIVERY

from .course import Turn
from .judging import Answer
from .probe import MARK, Probe, Ticket
from .recorded_tools import sendable
from .report import Pace
from .wire import Reply, Server, Wire

Items = list[dict[str, Any]]


@frozen(eq=False)
class Outcome:
    """One turn, as the client and, if it is one of our own, the backend saw it."""

    reply: Reply
    ticket: Ticket | None

    @property
    def answer(self) -> Answer:
        """What the backend said; what went wrong on the way counts too."""
        if self.ticket is None or self.ticket.heard is None:
            return Answer(self.reply.heard.increments, self.reply.failure)
        answer = self.ticket.answer()
        return answer if answer.failure is not None else attrs.evolve(answer, failure=self.reply.failure)

    @property
    def calls(self) -> Items:
        """The calls that the client has to answer."""
        return [item for item in self.reply.output if str(item.get("type")).endswith("_call") and item.get("call_id")]

    @property
    def pace(self) -> Pace:
        heard = self.ticket.heard if self.ticket is not None else None
        return (heard or self.reply.heard).pace()

    @property
    def overhead_before_s(self) -> float | None:
        """Seconds that the server took on the way to the backend, and from its first increment to the client."""
        if self.ticket is None or (heard := self.ticket.heard) is None:
            return None
        seconds = heard.asked_at - self.reply.heard.asked_at
        if heard.first_at is not None and self.reply.output_at is not None:
            seconds += max(0.0, self.reply.output_at - heard.first_at)
        return round(seconds, 6)

    @property
    def overhead_after_s(self) -> float | None:
        if self.ticket is None or self.ticket.heard is None:
            return None
        ours, theirs = self.reply.heard.ended_at, self.ticket.heard.ended_at
        return round(max(0.0, ours - theirs), 6) if ours is not None and theirs is not None else None


@define(eq=False)
class Player:
    """One thread's client.

    Args:
        model: asked for in place of the recorded one; "" keeps that.
        forced: the conversation is the recorded one, whatever is said.
    """

    server: Server
    design: str
    model: str
    forced: bool
    probe: Probe | None = None
    wire: Wire = field(init=False)
    _mark: str = field(init=False, factory=lambda: secrets.token_hex(8))
    _history: Items = field(init=False, factory=list)  # of a free thread
    _last: Reply | None = field(init=False, default=None)
    _asked: dict[str, Any] = field(init=False, factory=dict)  # settings of the last request

    def __attrs_post_init__(self) -> None:
        self.wire = self.server.wire(self.design)

    async def play_recorded(self, turn: Turn) -> Outcome:
        """Ask what was asked in the recording, of a server that believes in the recorded answers."""
        chains = turn.before is not None and self.probe is not None  # another server has its own answers in its chain
        return await self._ask(turn, [*map(sendable, turn.new)], lambda: [*map(sendable, turn.everything)], chains)

    async def play_new(self, turn: Turn, new: Items) -> Outcome:
        """Go on from what was really said.

        Args:
            turn: whose settings are sent.
        """
        self._history += new
        outcome = await self._ask(turn, new, lambda: self._history, chains=True)
        self._history += [
            {name: value for name, value in item.items() if name != "status"} for item in outcome.reply.output
        ]
        return outcome

    async def _ask(self, turn: Turn, new: Items, whole: Callable[[], Items], chains: bool) -> Outcome:
        await self.wire.wake()
        settings = self._settings(turn)
        body: dict[str, Any] = {"type": "response.create", **settings, "input": new}
        last = self._last
        if not (chains and self.wire.remembers and last is not None and last.response_id is not None):
            body["input"] = whole()
        elif not last.open:
            body["previous_response_id"] = last.response_id
        elif settings == self._asked:
            body = {"type": "response.append", "input": new}
        else:
            body["input"] = whole()  # an open response keeps its settings, and cannot be named yet
        self._asked = settings
        ticket = Ticket(turn, self.forced) if self.probe is not None else None
        if self.probe is not None and ticket is not None:
            self.probe.tickets[self._mark] = ticket
        self._last = reply = await self.wire.ask(body)
        self.wire.rest()
        return Outcome(reply, ticket)

    def _settings(self, turn: Turn) -> dict[str, Any]:
        start = turn.take.start
        raw = start.request.raw
        settings = {name: value for name, value in raw.items() if name not in DELIVERY}
        if raw.get("store") is not None:
            settings["store"] = raw["store"]
        settings["model"] = self.model or start.model
        return settings if self.probe is None else {**settings, MARK: self._mark}

    async def leave(self) -> None:
        """Say goodbye."""
        if self.probe is not None:
            self.probe.tickets.pop(self._mark, None)
        await self.wire.aclose()
