"""What went over the wire, read back from a recording: each connection's requests and what each was answered."""

import json
from pathlib import Path
from typing import Any

from attrs import define, field

from turntape.core.seam import ClientGone, ClientText, Opened, Send
from turntape.core.session import Session
from turntape.replay.fixture import Fixture
from turntape.replay.takes import refeed

Json = dict[str, Any]


@define
class Request:
    """One frame or POST body of the client, and every event until the next one."""

    body: Json
    events: list[Json] = field(factory=list)

    @property
    def types(self) -> list[str]:
        return [event["type"] for event in self.events]

    @property
    def response_id(self) -> str:
        """The id of the response that answered, from its terminal event."""
        return str(self.events[-1]["response"]["id"])

    @property
    def input_types(self) -> list[str]:
        """What the request's input consists of: item types, with the role for messages."""
        return [item.get("role") or item["type"] for item in self.body["input"]]


@define
class Connection:
    """One WebSocket, or one POST.

    Attributes:
        left: the client's close code; None if it left without one, "open" if it did not leave.
    """

    opened: Opened
    requests: list[Request] = field(factory=list)
    left: int | str | None = "open"


def connections(path: Path) -> list[Connection]:
    """Every connection in a recording, in the order they were opened."""
    found: dict[int, Connection] = {}
    for step, effects, _raised in refeed(Fixture.load(path), Session):
        match step.event:
            case Opened():
                found[step.session] = Connection(step.event)
            case ClientText(text):
                found[step.session].requests.append(Request(json.loads(text)))
            case ClientGone(code):
                found[step.session].left = code
        for effect in effects:
            if isinstance(effect, Send):
                found[step.session].requests[-1].events += map(json.loads, effect.data)
    return list(found.values())


def check_numbering(connection: Connection) -> None:
    """Every response's events are numbered from 0 without gaps, from created to one terminal event."""
    for request in connection.requests:
        assert [event["sequence_number"] for event in request.events] == list(range(len(request.events)))
        assert request.types[0] == "response.created"
        assert request.types.count("response.completed") == 1
        assert request.types[-1] == "response.completed"


def check_chain(connection: Connection) -> None:
    """Each request continues the response before it, and the first continues nothing."""
    previous = None
    for request in connection.requests:
        assert request.body.get("previous_response_id") == previous
        previous = request.response_id
