"""The conversation so far, as an immutable prefix-sharing chain: continuing or forking copies nothing.

A derived form of a conversation (a chat server's messages, token ids, a script's counters) is kept
by whoever needs it, keyed on the ``Context`` and built from the parent's: contexts are hashable by
identity and can be referenced weakly.
"""

from collections.abc import Iterable, Iterator

from attrs import frozen

from .canonical import Fold, Item
from .structuring import structure
from .tools import Tool, ToolDefinition, callable_tools

BYTES_PER_TOKEN = 4
"""An estimate, for want of a vocabulary. English prose and code are near it with current tokenizers."""


def estimate_tokens(n_bytes: int) -> int:
    return -(-n_bytes // BYTES_PER_TOKEN)


@frozen(eq=False, repr=False)
class Context:
    """A parent plus the items that one turn added.

    Equality is identity and ``repr`` is short: a chain of a thousand parents must not be compared or
    printed recursively.

    Attributes:
        items: what this link adds, oldest first.
        tools: what ``additional_tools`` items brought, in the whole conversation.
        n_tokens: estimated tokens of the whole conversation.
        n_items: items of the whole conversation.
        fold: names the whole conversation.
    """

    parent: "Context | None" = None
    items: tuple[Item, ...] = ()
    tools: tuple[Tool, ...] = ()
    n_tokens: int = 0
    n_items: int = 0
    fold: Fold = Fold()  # noqa: RUF009 - immutable

    def __repr__(self) -> str:
        return f"<Context {self.n_items} items, key {self.fold.key[:8] or 'empty'}>"

    def extend(self, items: Iterable[Item]) -> "Context":
        items, brought, n_tokens, fold = tuple(items), list[Tool](), self.n_tokens, self.fold
        for item in items:
            n_tokens += estimate_tokens(len(item.encoded))
            fold = fold.add(item)
            if item.type == "additional_tools":
                brought += callable_tools(structure(item.value["tools"], tuple[ToolDefinition, ...]))
        tools = self.tools + tuple(brought) if brought else self.tools
        return Context(self, items, tools, n_tokens, self.n_items + len(items), fold)

    def links(self) -> Iterator["Context"]:
        """This context and its ancestors, newest first."""
        context: Context | None = self
        while context is not None:
            yield context
            context = context.parent

    def items_after(self, ancestor: "Context | None") -> tuple[Item, ...]:
        """Items that ``ancestor`` does not have, oldest first. O(result); ``None`` gives all."""
        new: list[Context] = []
        for link in self.links():
            if link is ancestor:
                break
            new.append(link)
        return tuple(item for link in reversed(new) for item in link.items)
