"""The backend that is driven, wrapped: each sample is measured, and in forced mode its answer is replaced by the recorded one."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any
from weakref import WeakKeyDictionary

import trio
from attrs import define, evolve, field

from turntape.core.context import Context
from turntape.core.response import without_surrogates
from turntape.core.seam import Increment, Sampled, StartSample
from turntape.transport.backends.base import Backend, BackendError, Batch
from turntape.transport.health import find_backend_error

from .course import Turn
from .judging import Answer, said_in
from .pace import Heard, n_bytes, says
from .report import Failure

MARK = "turntape_drive"
"""Field of a request that says which thread of which run it is for. No backend sees it."""

CAP, LEAST_CAPPED_BYTES = 4, 1024
"""Forced: an answer is cut off at so many times the recorded, but never before so many bytes; ours."""


@define(eq=False)
class Ticket:
    """One turn that is under way.

    Attributes:
        forced: the client is to hear the recorded answer.
        heard: what the backend says; None before it was asked.
    """

    turn: Turn
    forced: bool
    heard: Heard | None = None
    failure: Failure | None = None
    capped: bool = False

    def answer(self) -> Answer:
        return Answer(self.heard.increments if self.heard is not None else (), self.failure, self.capped)


@define(eq=False)
class Probe:
    """A ``Backend`` around the true one.

    Attributes:
        tickets: the turn that each thread waits for, by its mark.
    """

    backend: Backend
    models: tuple[str, ...] = ()
    tickets: dict[str, Ticket] = field(factory=dict)
    _histories: "Histories" = field(factory=lambda: Histories(), init=False)

    @trio.as_safe_channel
    async def sample(self, start: StartSample) -> AsyncGenerator[Batch, None]:
        raw = dict(start.request.raw)
        ticket = self.tickets.get(str(raw.pop(MARK, "")))
        if ticket is None:
            raise BackendError(
                "This server answers only the drive that it was started for.", code="invalid_prompt", status=400
            )
        context = self._histories.of(start.context)
        asked = evolve(start, request=evolve(start.request, raw=raw), context=context)
        ticket.heard = heard = Heard(trio.current_time())
        answering = self._forced(ticket, asked, heard) if ticket.forced else self._free(ticket, asked, heard)
        try:
            async with aclosing(answering):
                async for batch in answering:
                    yield batch
        finally:
            if heard.ended_at is None:
                heard.ended_at = trio.current_time()
        if ticket.forced and not _same(ticket):
            self._histories.renew(start.context)

    async def aclose(self) -> None:
        """The backend is its owner's."""

    async def _free(self, ticket: Ticket, start: StartSample, heard: Heard) -> AsyncGenerator[Batch, None]:
        try:
            async with self.backend.sample(start) as batches:
                async for batch in batches:
                    heard.hear(batch, trio.current_time())
                    if heard.finish is not None and heard.ended_at is None:
                        heard.ended_at = trio.current_time()
                    yield batch
        except Exception as exc:
            ticket.failure = failure_of(exc)
            raise

    async def _forced(self, ticket: Ticket, start: StartSample, heard: Heard) -> AsyncGenerator[Batch, None]:
        """The recorded increments, handed out at the pace of those that come."""
        script = _Script.of(ticket.turn)
        accepted = False
        try:
            async with self.backend.sample(start) as batches:
                async for batch in batches:
                    if heard.finish is not None:
                        continue  # whoever reads to the end lets the connection be kept
                    batch = _within(ticket, batch, heard, script.cap)
                    heard.hear(batch, trio.current_time())
                    if ticket.capped:
                        break
                    if heard.finish is not None:
                        heard.ended_at = trio.current_time()
                        yield script.rest()
                        continue
                    due = script.next(sum(map(says, batch)))
                    if due or not accepted:
                        accepted = True
                        yield due
        except Exception as exc:  # noqa: BLE001 - whatever it is, it is the verdict, and the recording goes on
            ticket.failure = failure_of(exc)
        if heard.finish is None:
            heard.ended_at = trio.current_time()
            yield script.rest()


@define(eq=False)
class _Script:
    """The recorded answer, given out in pieces.

    Attributes:
        cap: bytes of text that the backend may say.
    """

    increments: list[Increment]
    cap: int

    @classmethod
    def of(cls, turn: Turn) -> "_Script":
        events = [event for _, event in turn.take.events]
        increments = [i for event in events if isinstance(event, Sampled) for i in event.batch]
        return cls(increments, CAP * max(n_bytes(increments), LEAST_CAPPED_BYTES // CAP))

    def next(self, n: int) -> Batch:
        """The next ``n``; never the ``Finish``, which stands last."""
        n = min(n, len(self.increments) - 1)
        due, self.increments = self.increments[:n], self.increments[n:]
        return tuple(due)

    def rest(self) -> Batch:
        due, self.increments = self.increments, []
        return tuple(due)


def _within(ticket: Ticket, batch: Batch, heard: Heard, cap: int) -> Batch:
    """``batch`` up to the cap, wherever the backend's reads happen to end; notes that it was reached."""
    if heard.n_bytes + n_bytes(batch) <= cap:
        return batch
    ticket.capped = True
    kept, room = list[Increment](), cap - heard.n_bytes
    for increment in batch:
        size = n_bytes((increment,))
        if size > room:
            cut: Any = increment
            text = cut.text.encode("utf-8", "replace")[:room].decode("utf-8", "ignore")
            kept.append(evolve(cut, text=text))
            break
        kept.append(increment)
        room -= size
    return tuple(kept)


def failure_of(exc: BaseException) -> Failure:
    error = find_backend_error(exc)
    if error is None:
        return Failure(code="server_error", message=f"The backend crashed with {type(exc).__name__}.")
    return Failure(code=error.code, message=without_surrogates(str(error)), status=error.status)


def _same(ticket: Ticket) -> bool:
    """Whether the backend said what was recorded, so that what it remembers of it is true."""
    if ticket.failure is not None or ticket.capped or ticket.heard is None:
        return False
    take = ticket.turn.take
    recorded, got = take.said(), said_in(take, ticket.heard.increments)
    return [item.value for item in recorded] == [item.value for item in got]


@define(eq=False)
class Histories:
    """Recorded conversations as the backend knows them.

    A backend remembers by ``Context`` what it said, and may go on from that: an upstream of the Responses API by the
    id of its own answer. Where it said something else than was recorded, that must be forgotten, and so the context
    that it answered is replaced by a twin, from which later ones descend. All before it is remembered still.
    """

    _twins: WeakKeyDictionary[Context, Context] = field(factory=WeakKeyDictionary)

    def of(self, context: Context) -> Context:
        """``context``, or its twin if anything in it was renewed. O(what is new) in a chain without one."""
        return self._twins.get(context) or self._grown(context)

    def renew(self, context: Context) -> None:
        """Let nothing that was said to ``context`` be remembered when it is continued."""
        old = self.of(context)
        self._twins[context] = _twin(old, old.parent)

    def _grown(self, context: Context) -> Context:
        links = list[Context]()
        known: Context | None = None
        for link in context.links():
            known = self._twins.get(link)
            if known is not None:
                break
            links.append(link)
        if known is None:
            return context
        for link in reversed(links):
            known = self._twins[link] = _twin(link, known)
        return known


def _twin(context: Context, parent: Context | None) -> Context:
    return Context(parent, context.items, context.tools, context.n_tokens, context.n_items, context.fold)
