"""What a backend brings to its conformance tests: a server of its own that says what a script of steps tells it.

A ``Rig`` translates steps into the dialect of its backend's server. So the cases (``cases.py``) are written once, in
terms of what a model does, and every backend answers for the same promises.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import trio
from attrs import define, field, frozen

from turntape.core.seam import Usage
from turntape.transport.backends.base import Backend

# --- steps: what the server is to do, in order ------------------------------------------------------------


@frozen
class Say:
    """Visible text, in ``n_chunks`` pieces, each in a read of its own."""

    text: str
    n_chunks: int = 1


@frozen
class Think:
    """Reasoning text."""

    text: str
    n_chunks: int = 1


@frozen
class Call:
    """A tool call.

    Attributes:
        arguments: the text of the arguments as the model writes it, valid JSON or not; a custom tool's input.
        call_id: None for whatever the server makes up.
    """

    name: str
    arguments: str
    call_id: str | None = None
    namespace: str | None = None
    custom: bool = False
    n_chunks: int = 2


@frozen
class End:
    """The sample finishes: "stop", "length" or "content_filter". A turn without any last step ends with ``End()``."""

    reason: str = "stop"
    usage: Usage | None = None


@frozen
class Wait:
    """Nothing is sent for so long. As the first step: the request is accepted, and nothing is said yet."""

    seconds: float


@frozen
class Hang:
    """Nothing more is sent, until the client is gone. As the first step: the request is accepted before."""


@frozen
class Cut:
    """The answer breaks off in the middle."""


@frozen
class Fail:
    """The server reports an error. As the first step: it refuses the request, before anything else.

    Attributes:
        status: the HTTP status of a refusal; a failure in mid-stream may not show it.
        code: a canonical code (``BackendError``); the server says what it says in such a case.
        retry_after: seconds, as a header.
    """

    status: int
    code: str
    message: str = "It is not to be."
    retry_after: str | None = None


@frozen
class Overflow:
    """The first step: the prompt is longer than the model's window."""


@frozen
class Garbage:
    """The answer goes on with something that is not the server's protocol."""


Step = Say | Think | Call | End | Wait | Hang | Cut | Fail | Overflow | Garbage
LAST = End | Hang | Cut | Fail | Overflow | Garbage
Turn = Sequence[Step]


@define(eq=False)
class Turns:
    """One turn for each request; the last one again and again."""

    turns: Sequence[Turn]
    n_taken: int = 0

    def take(self) -> Turn:
        self.n_taken += 1
        return self.turns[min(self.n_taken, len(self.turns)) - 1]


def pieces(text: str, n: int) -> list[str]:
    """``text`` in ``n`` pieces of about the same length; fewer if it has fewer characters."""
    size = max(1, -(-len(text) // n))
    return [text[at : at + size] for at in range(0, len(text), size)]


def ended(turn: Turn) -> list[Step]:
    """``turn`` with its last step written out."""
    return [*turn] if turn and isinstance(turn[-1], LAST) else [*turn, End()]


# --- what the server saw ----------------------------------------------------------------------------------


@frozen
class Asked:
    """One request as the backend's server got it, in the words of every dialect.

    Attributes:
        prompt: everything that the model gets to read, in any form that keeps the words.
        mode: "auto", "none" or "required".
        tools: names of the tools that may be called, as far as the request says; namespaces left out.
        schema: the JSON Schema that the answer is bound to.
    """

    prompt: str
    mode: str = "auto"
    tools: frozenset[str] = frozenset()
    schema: dict[str, Any] | None = None


@frozen(eq=False)
class Playing:
    """A server that plays, and the backend that asks it.

    Attributes:
        backend: under test.
        asked: what the server was asked so far. Left empty by a backend that has no server, or that honours
            ``tool_choice`` and ``text.format`` itself: its answers are looked at instead.
        gone: set when the server sees a request of ours closed before it was answered.
        gone_s: how long after that was closed at the latest.
    """

    backend: Backend
    asked: list[Asked] = field(factory=list)
    gone: trio.Event = field(factory=trio.Event)
    gone_s: float = 0.25


class Rig(Protocol):
    """One backend with a server that can be told what to say."""

    cannot: Mapping[str, str]
    """What this backend or its server cannot do, by the need's name in ``cases.py``, with the reason in words."""

    virtual_time: bool
    """Everything runs over memory streams, so that time can be a test's own. False where sockets or threads do work."""

    where: str
    """Words by which its errors name the server: its host, usually."""

    key: str
    """The key that it was given, or "" if it takes none."""

    def playing(self, *turns: Turn) -> AbstractAsyncContextManager[Playing]:
        """A server that plays one turn for each request; the last one again and again. Its model is called ``m``."""
        ...
