"""The requests of a relayed session that wait for the end of their answer, and what is found out about them."""

from collections.abc import Mapping
from typing import Any

from attrs import define, field, frozen

from turntape.core.context import Context
from turntape.core.seam import SampleFailed
from turntape.transport.backends.responses_stream import EventReader


@frozen
class Unheard(SampleFailed):
    """The upstream answered, but what it said was not understood: our session has to end the sample somehow.

    Nothing like it was told to the client, so it is no answer to be played.
    """


@frozen
class NotReplayable:
    """Something of a relayed session that no take says, or not in full.

    Attributes:
        line: of the file: the client's request, or else where it shows.
        problem: what is lost and why, as a clause.
    """

    line: int
    session: int
    problem: str

    def __str__(self) -> str:
        return f"line {self.line}, session {self.session}: {self.problem}"


@frozen
class Unlike:
    """An answer of which a session of ours says something else than the upstream did.

    Attributes:
        line: where the answer ended.
    """

    line: int
    heard: str
    said: str


@define(eq=False)
class Findings:
    """What came out of a reconstruction beside its steps."""

    lost: list[NotReplayable] = field(factory=list)
    unlike: list[Unlike] = field(factory=list)


@define(eq=False)
class Request:
    """A message that wants an answer.

    Attributes:
        sample_id: of our session, once it has started a sample for it; a warm-up never has one.
        own_id: of our response.
        refused: why our session refuses it.
        heard: output items as the upstream ended them; ``said`` are ours.
        started: the upstream has accepted it.
        is_over: our session has ended its answer.
        is_heard: the upstream has.
        is_lost: it was said that it cannot be replayed.
    """

    line: int
    lane: str | None
    sample_id: str | None = None
    asked: Context | None = None
    own_id: str | None = None
    refused: str | None = None
    refused_code: str = ""
    reader: EventReader | None = None
    heard: list[dict[str, Any]] = field(factory=list)
    said: list[dict[str, Any]] = field(factory=list)
    started: bool = False
    is_over: bool = False
    is_heard: bool = False
    is_lost: bool = False

    def refuse(self, error: Mapping[str, Any]) -> None:
        """Our session answers with an error; to a sample that failed, that is its end."""
        if self.sample_id is None:
            self.refused, self.refused_code = str(error["message"]), str(error["code"] or "")
        self.is_over = True


@define(eq=False)
class Requests:
    """Those of all lanes, each lane's oldest first."""

    _lanes: dict[str | None, list[Request]] = field(factory=dict)

    def add(self, request: Request) -> None:
        lane = self._lanes.setdefault(request.lane, [])
        lane[:] = [one for one in lane if not (one.is_over and one.is_heard)]
        lane.append(request)

    def open(self, lane: str | None) -> list[Request]:
        """Those of a lane whose answer our session has not ended."""
        return [one for one in self._lanes.get(lane, ()) if not one.is_over]

    def answered_by(self, lane: object) -> Request | None:
        """The one that an event of ``lane`` answers: the oldest of its lane, or the only one there is."""
        waiting = {
            name: first
            for name, requests in self._lanes.items()
            if (first := next((one for one in requests if not one.is_heard), None)) is not None
        }
        for name, request in waiting.items():
            if name == lane:
                return request
        return next(iter(waiting.values())) if len(waiting) == 1 and lane is None else None

    def unanswered(self) -> Request | None:
        """One whose sample nobody will end."""
        return next(
            (
                one
                for requests in self._lanes.values()
                for one in requests
                if one.sample_id is not None and not one.is_over and not one.is_heard
            ),
            None,
        )
