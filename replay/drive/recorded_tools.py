"""The tools of a free run: what a call gave in the recording, as long as the model asks for what was recorded."""

from collections.abc import Sequence
from typing import Any

from attrs import define, field, frozen

from turntape.core.canonical import Item

from .course import Turn
from .judging import call_of, form
from .report import Called

FRESH = frozenset({"id", "status"})
"""Of an item, what the server gives that first says it; another one makes its own."""


def sendable(item: Item) -> dict[str, Any]:
    """An item of the recording as a client sends it to another server."""
    return {name: value for name, value in item.value.items() if name not in FRESH}


@frozen(eq=False)
class _Output:
    """What one recorded call gave.

    Attributes:
        at: the place in its stretch of the turn that brought it to the model.
    """

    call: Called
    item: Item
    at: int


@define(eq=False)
class Stretch:
    """Turns of one thread from something that a person said to the answer that calls nothing.

    The model may make the recorded calls in another order and in other groups: each is answered once. What else was
    sent with the outputs of a turn goes out when the last of these does.
    """

    turns: list[Turn] = field(factory=list)
    _left: list[_Output] = field(factory=list)
    _beside: dict[int, list[Item]] = field(factory=dict)
    _unanswered: list[Called] = field(factory=list)  # of the last turn: the recording ends with them

    @classmethod
    def of_thread(cls, thread: Sequence[Turn]) -> "list[Stretch]":
        stretches: list[Stretch] = []
        has_called = False
        for turn in thread:
            if not has_called:
                stretches.append(cls())
            stretches[-1]._add(turn)
            has_called = any(item.opens_call for item in turn.take.said())
        return stretches

    def _add(self, turn: Turn) -> None:
        at = len(self.turns)
        self.turns.append(turn)
        self._unanswered = [call_of(item.value) for item in turn.take.said() if item.opens_call]
        if not at:
            return
        calls = {item.call_id: call_of(item.value) for item in self.turns[at - 1].take.said() if item.opens_call}
        outputs = [item for item in turn.new if item.closes_call and item.call_id in calls]
        self._left += [_Output(calls[item.call_id], item, at) for item in outputs]
        others = [item for item in turn.new if item not in outputs]
        if others:
            self._beside[at] = others

    @property
    def opening(self) -> tuple[Item, ...]:
        return self.turns[0].new

    def ends_with(self, calls: Sequence[dict[str, Any]]) -> bool:
        """Whether all recorded calls have been made once these are: none, unless the recording ends with a call."""
        return not self._left and sorted(form(call_of(call)) for call in calls) == sorted(map(form, self._unanswered))

    @property
    def left(self) -> tuple[Called, ...]:
        """The recorded calls that have not been made."""
        return (*(output.call for output in self._left), *self._unanswered)

    def answer(self, calls: Sequence[dict[str, Any]]) -> list[dict[str, Any]] | None:
        """What the client sends back for ``calls``; None if the recording cannot answer one of them."""
        given: list[tuple[dict[str, Any], _Output]] = []
        left = [*self._left]
        for call in calls:
            wanted = form(call_of(call)), f"{call['type']}_output"
            found = next((output for output in left if (form(output.call), output.item.type) == wanted), None)
            if found is None:
                return None
            left.remove(found)
            given.append((call, found))
        self._left = left
        sent = [{**sendable(output.item), "call_id": call["call_id"]} for call, output in given]
        waiting = {output.at for output in left}
        for at in sorted({output.at for _, output in given} - waiting):
            sent += [sendable(item) for item in self._beside.pop(at, ())]
        return sent
