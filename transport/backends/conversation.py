"""What a script's conditions need to know of a conversation, folded once per item."""

from collections.abc import Iterable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

from attrs import evolve, field, frozen

from turntape.core.canonical import Item
from turntape.core.context import Context


@frozen
class Facts:
    """A conversation, as far as a script can ask about it.

    Attributes:
        last_user: text of the last user message; its text parts on lines of their own.
        last_output: text of the last tool output since then.
        n_outputs: tool outputs since the last user message.
        mentioned: the script's ``mentions`` that occur in any text so far.
    """

    last_user: str = ""
    last_output: str = ""
    n_outputs: int = 0
    mentioned: frozenset[str] = frozenset()


@frozen(eq=False)
class Conversations:
    """The facts of each context that is alive: a turn costs what its new items cost, and a fork costs nothing.

    Attributes:
        needles: every ``mentions`` text of the script.
    """

    needles: frozenset[str]
    _known: WeakKeyDictionary[Context, Facts] = field(factory=WeakKeyDictionary, init=False)

    def facts(self, context: Context) -> Facts:
        facts, new = Facts(), list[Context]()
        for link in context.links():
            if (known := self._known.get(link)) is not None:
                facts = known
                break
            new.append(link)
        for link in reversed(new):
            for item in link.items:
                facts = self._after(facts, item)
            self._known[link] = facts
        return facts

    def _after(self, facts: Facts, item: Item) -> Facts:
        sought = self.needles - facts.mentioned
        if sought:
            found = {needle for needle in sought for text in _texts(item.value) if needle in text}
            if found:
                facts = evolve(facts, mentioned=facts.mentioned | found)
        if item.type == "message" and item.value.get("role") == "user":
            return Facts("\n".join(_content(item.value.get("content"))), mentioned=facts.mentioned)
        if item.closes_call:
            output = "\n".join(_content(item.value.get("output")))
            return evolve(facts, last_output=output, n_outputs=facts.n_outputs + 1)
        return facts


def _content(value: Any) -> Iterator[str]:
    """The texts of a string, or of the parts of an array."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for part in value:
            text = (part.get("text") or part.get("refusal")) if isinstance(part, dict) else None
            if isinstance(text, str):
                yield text


def _texts(item: dict[str, Any]) -> Iterable[str]:
    """Everything in an item that somebody wrote."""
    for key in ("content", "output", "summary", "arguments", "input"):
        yield from _content(item.get(key))
