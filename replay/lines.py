"""The lines of a fixture as classes: those of sessions that this server ran, and those that a relay wrote."""

from collections.abc import Mapping
from typing import Any

from attrs import define, frozen

from turntape.core.seam import Event

Short = tuple[str, ...]


@frozen
class Blob:
    """A value that later lines refer to.

    Attributes:
        value: of an array that goes on from another, its line without the name: what the name is a hash of.
    """

    line: int
    name: str
    value: Any


@define
class Step:
    """One call of ``Session.receive``. Nobody changes one; it is not frozen since that would double the cost of making it.

    Attributes:
        line: of the file, counted from 1.
        at: seconds since the session's ``Opened``.
        packed: the event as the file holds it.
        out: the effects as the file holds them; None if there are none, or if the file was cut off before.
        sent: hash of the bytes sent, of a short line.
        checked: hash of ``packed``, of a full line.
        raised: name of the exception that ended the call.
        rules: of a session's first step: what may differ from it.
    """

    line: int
    session: int
    at: float
    event: Event
    packed: dict[str, Any] | None = None
    out: list[dict[str, Any]] | None = None
    sent: str | None = None
    checked: str | None = None
    raised: str | None = None
    rules: tuple[Any, ...] = ()


@frozen
class Turn:
    """A sample ended here: ``key`` names the conversation that it answered."""

    line: int
    session: int
    sample_id: str
    key: str


@frozen
class Relayed:
    """A client reached the upstream through a relay: one WebSocket connection, or one POST.

    Attributes:
        wall: seconds since 1970, UTC.
        transport: "websocket" or "http".
        path: as the client asked for it, with its query.
        upstream: URL that was relayed to.
        headers: of the request, as far as they may be kept; names in lower case.
        rules: what may differ when it is replayed.
    """

    line: int
    session: int
    at: float
    wall: float
    transport: str
    method: str
    path: str
    upstream: str
    headers: Mapping[str, str]
    rules: tuple[Any, ...] = ()


@frozen
class AnswerHead:
    """The upstream's answer began: 101 for a WebSocket, or the status of a refusal or an answer."""

    line: int
    session: int
    at: float
    status: int
    headers: Mapping[str, str]


@frozen
class FromClient:
    """One whole message of the client: a WebSocket message, or the decoded body of the POST.

    Attributes:
        text: to the byte; "" for a binary message.
        binary: base64 of a binary message.
    """

    line: int
    session: int
    at: float
    text: str
    binary: str | None = None


@frozen
class FromUpstream:
    """What one read of the upstream brought: one whole message, or several deltas that differ in their text only.

    Attributes:
        message: JSON value of a WebSocket message, an SSE event or a body; the text itself if it is no JSON.
        deltas: of a short line: the texts; ``message`` is then the event that they were shortened by.
        obfuscations: of a short line: padding of each delta.
        n: of a short line: number of its first delta, if the upstream numbers its events.
        binary: base64 of a binary message.
    """

    line: int
    session: int
    at: float
    message: Any
    deltas: Short | None = None
    obfuscations: Short | None = None
    n: int | None = None
    binary: str | None = None

    @property
    def messages(self) -> list[Any]:
        """Each message as the upstream sent it."""
        if self.deltas is None:
            return [self.message]
        expanded = []
        for number, delta in enumerate(self.deltas):
            message = {**self.message, "delta": delta}
            if self.n is not None:
                message["sequence_number"] = self.n + number
            if self.obfuscations is not None:
                message["obfuscation"] = self.obfuscations[number]
            expanded.append(message)
        return expanded


@frozen
class Unread:
    """From here on the relay could not read what one side sent; the bytes went on.

    Attributes:
        by: "client" or "upstream".
    """

    line: int
    session: int
    at: float
    by: str
    reason: str = ""


@frozen
class Gone:
    """One side ended it.

    Attributes:
        by: "client" or "upstream".
        code: of the close frame, if there was one.
    """

    line: int
    session: int
    at: float
    by: str
    code: int | None = None
    reason: str = ""


RelayLine = Relayed | AnswerHead | FromClient | FromUpstream | Unread | Gone
Line = Blob | Step | Turn | RelayLine
