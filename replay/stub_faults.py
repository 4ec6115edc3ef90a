"""Faults that a stub puts into chosen turns, to see whether a client gets over them. Each happens once."""

import re
from collections.abc import Callable, Iterable, Sequence

from attrs import define, field, frozen

from turntape.transport.backends.base import BackendError, Batch

from .errors import ReplayError

KINDS = {
    "drop": "the connection dies in the middle of the answer, without a close frame",
    "stall": "nothing more comes in the middle of the answer, until the client gives up",
    "429": "refused with status 429; =SECONDS is its retry-after, 1 if not given",
    "failed": "response.failed in the middle of the answer; =CODE is its code, server_error if not given",
    "not-found": "refused with previous_response_not_found",
    "limit": "refused with websocket_connection_limit_reached, and the connection is closed",
    "1009": "the connection is closed with code 1009 before the answer; over HTTP, status 413",
}

MIDWAY = ("drop", "stall", "failed")
"""Those that come when half of the answer has been sent; the others come in its place."""

ON_THE_CONNECTION = ("drop", "stall", "limit", "1009")
"""Those that the session must act on: see ``StubSession``."""

_VALUED = {"429": r"\d+(?:\.\d+)?", "failed": r"[a-z0-9_]{1,64}"}

FORM = f"[FIXTURE:]TURN:KIND[=VALUE], where KIND is {', '.join(KINDS)}, and TURN as turntape show numbers it"


@frozen
class Fault:
    """Attributes:
    fixture: name or path of the one that is meant; "" where there is only one.
    turn: as ``turntape show`` counts.
    kind: a key of ``KINDS``.
    """

    fixture: str
    turn: int
    kind: str
    value: str = ""

    @classmethod
    def parse(cls, text: str) -> "Fault":
        """Raises ``ReplayError``."""
        match = re.fullmatch(r"(?:(.+):)?(\d{1,9}):([^:=]+)(?:=(.*))?", text, re.ASCII)
        if match is None or match[3] not in KINDS:
            raise ReplayError(f"The fault {text[:64]!r} is none: write {FORM}.")
        kind, value = match[3], match[4]
        if value is not None and kind not in _VALUED:
            raise ReplayError(f"The fault {text[:64]!r}: {kind} takes no value.")
        if value is not None and not re.fullmatch(_VALUED[kind], value, re.ASCII):
            what = "seconds, as in 429=2" if kind == "429" else "a code, as in failed=server_error"
            raise ReplayError(f"The fault {text[:64]!r}: its value should be {what}.")
        return cls(match[1] or "", int(match[2]), kind, value or "")

    def __str__(self) -> str:
        place = f"{self.fixture}:" if self.fixture else ""
        return f"{place}{self.turn}:{self.kind}" + (f"={self.value}" if self.value else "")

    def error(self) -> BackendError:
        """What the sample fails with; the stub says so itself."""
        error = self._error()
        error.is_said = True
        return error

    def _error(self) -> BackendError:
        said = f"This is the fault {self} that the stub was told to make."
        match self.kind:
            case "429":
                retry_after = self.value or "1"
                return BackendError(said, code="rate_limit_exceeded", status=429, retry_after=retry_after)
            case "not-found":
                param = "previous_response_id"
                return BackendError(said, code="previous_response_not_found", status=400, param=param)
            case "limit":
                return BackendError(said, code="websocket_connection_limit_reached", status=400)
            case "1009":
                return BackendError(said, code="request_too_large", status=413)
        return BackendError(said, code=self.value or "server_error")


@define(eq=False)
class Faults:
    """Those that are still to happen, by the place of their take.

    Attributes:
        struck: what the session of a sample has to do, by sample id, until it hears that the sample has failed.
    """

    _waiting: dict[int, list[Fault]] = field(factory=dict)
    struck: dict[str, Fault] = field(factory=dict)

    @classmethod
    def at(
        cls, faults: Iterable[str | Fault], names: set[str], turns_of: Callable[[str], list[tuple[int, int]]]
    ) -> "Faults":
        """
        Args:
            names: of the fixtures that have turns to play.
            turns_of: gives, for one of them, of each take that has an end its number there and its place among all.

        Raises:
            ReplayError: a fault is none, or there is no such turn.
        """
        found = cls()
        for fault in (Fault.parse(one) if isinstance(one, str) else one for one in faults):
            meant = {
                n for n in names if not fault.fixture or fault.fixture in (n, n.replace("\\", "/").rpartition("/")[2])
            }
            if len(meant) != 1:
                shown = ", ".join(sorted(names))
                what = "no such fixture" if not meant else "which fixture is meant"
                raise ReplayError(f"The fault {fault}: {what}? Write FIXTURE:TURN:KIND with one of {shown}.")
            turns = turns_of(name := meant.pop())
            places = [place for number, place in turns if number == fault.turn]
            if not places:
                numbers = sorted(number for number, _ in turns)
                raise ReplayError(
                    f"The fault {fault}: there is no turn {fault.turn} to play in {name}; "
                    f"its turns are {numbers[0]} to {numbers[-1]}, as turntape show numbers them."
                )
            found._waiting.setdefault(places[0], []).append(fault)
        return found

    def next(self, place: int) -> Fault | None:
        """The fault for the take at this place, which is thereby spent."""
        waiting = self._waiting.get(place)
        return waiting.pop(0) if waiting else None

    @property
    def left(self) -> list[Fault]:
        """Those that never happened."""
        return [fault for waiting in self._waiting.values() for fault in waiting]


def first_half(batches: Sequence[tuple[float, Batch]]) -> list[tuple[float, Batch]]:
    """The beginning of an answer: half of its increments, and never the last of them, which ends it."""
    left = (sum(len(batch) for _, batch in batches)) // 2
    half: list[tuple[float, Batch]] = []
    for at, batch in batches:
        if left <= 0:
            break
        half.append((at, batch[:left]))
        left -= len(batch)
    return half
