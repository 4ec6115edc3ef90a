"""Relayed sessions as events of the seam: what a session of ours would have seen in the upstream's place.

The client's messages are fed with our ids for the upstream's; the upstream's events become increments by the mapping
that the ``responses`` backend has; what a session asks of a store is answered from the file.
"""

from collections.abc import Callable, Iterator

from attrs import define, field

from turntape.core.session import Session
from turntape.transport.driver import SessionLike

from .fixture import Fixture
from .keeping import Kept
from .lines import AnswerHead, FromClient, FromUpstream, Gone, Line, Relayed, Unread
from .messages import json_object
from .own_session import Answer
from .relayed import Ahead, RelayedSession
from .requests import Findings, NotReplayable


@define(eq=False)
class Reconstruction:
    """All relayed sessions of one recording, which go on line by line in the file's order.

    Attributes:
        findings: as far as the lines have come.
    """

    fixture: Fixture
    new_session: Callable[[], SessionLike] = Session
    findings: Findings = field(factory=Findings)
    _kept: Kept = field(factory=Kept)
    _sessions: dict[int, RelayedSession] = field(factory=dict)
    _ahead: dict[int, Ahead] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        for line in self.fixture.lines:
            match line:
                case Relayed(session=session):
                    self._ahead[session] = Ahead()
                case FromClient(session=session):
                    value = json_object(line.text) or {}
                    ahead = self._ahead[session]
                    ahead.streams |= value.get("stream") is True
                    ahead.appends |= value.get("type") == "response.append"
                case FromUpstream(session=session, deltas=None, message={"type": "response.done"}):
                    self._ahead[session].parks = True

    def feed(self, line: Line) -> Iterator[Answer]:
        """What one line is to its session: each step that it takes, with its effects. Other lines are none."""
        if isinstance(line, Relayed):
            session = RelayedSession(line, self.new_session(), self._kept, self._ahead[line.session], self.findings)
            self._sessions[line.session] = session
            yield from session.begin()
        elif isinstance(line, AnswerHead | FromClient | FromUpstream | Unread | Gone):
            yield from self._sessions[line.session].feed(line)


def not_replayable(fixture: Fixture) -> list[NotReplayable]:
    """What a relayed recording holds that no take can say, oldest first; empty for what this server recorded itself."""
    if not fixture.is_relayed:
        return []
    reconstruction = Reconstruction(fixture)
    for line in fixture.lines:
        for _ in reconstruction.feed(line):
            pass
    return reconstruction.findings.lost
