"""What a conversation costs a context window, and a shorter one for requests that allow it (``truncation: "auto"``)."""

from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import orjson
from attrs import define, evolve, field

from turntape.core.canonical import Item
from turntape.core.context import Context, estimate_tokens
from turntape.core.seam import StartSample

from .backends.base import BackendError

CERTAIN_BYTES = 16
"""Bytes of text that a token never stands for on average: prose and code have 3 to 5, so nothing that might fit is refused."""

BLOB_TOKENS = 1000
"""Of an image or a file: its bytes say nothing about its tokens; ours, near what vision models take."""

RESERVE = 4096
"""Tokens that are left for the answer where the request sets no bound; at most a quarter of the window."""

N_CUTS = 3
"""How often a conversation that the backend still finds too long is halved."""

_BLOBS = ("image_url", "file_data", "file_url", "data")


@define(eq=False)
class Truncator:
    """Measures and shortens conversations; both are kept for each context, so a turn costs what is new in it."""

    _measured: WeakKeyDictionary[Context, int] = field(factory=WeakKeyDictionary, init=False)
    _shorter: WeakKeyDictionary[Context, dict[int | None, Context | None]] = field(
        factory=WeakKeyDictionary, init=False
    )

    def tokens(self, context: Context) -> int:
        """An estimate for the whole conversation, images and files at ``BLOB_TOKENS`` each."""
        n_tokens, new = 0, list[Context]()
        for link in context.links():
            if (known := self._measured.get(link)) is not None:
                n_tokens = known
                break
            new.append(link)
        for link in reversed(new):
            n_tokens += sum(map(item_tokens, link.items))
            self._measured[link] = n_tokens
        return n_tokens

    def check(self, start: StartSample, window: int | None) -> None:
        """Raises ``BackendError`` for a conversation that cannot fit into ``window`` tokens, however they are counted."""
        if window is None:
            return
        n_bytes = 4 * self.tokens(start.context) + len((start.request.instructions or "").encode())
        if n_bytes > CERTAIN_BYTES * window:
            raise BackendError(
                f"The conversation is too long for the model {start.model[:128]!r}: about {n_bytes // 4} tokens, and its "
                f"context window has {window}. Shorten it, or send 'truncation': 'auto'.",
                code="context_length_exceeded",
                status=400,
                param="input",
            )

    def attempts(self, start: StartSample, window: int | None) -> Iterator[StartSample]:
        """``start`` as it may be sent: once as it is, or under "auto" shortened to fit and then, if asked, further."""
        if start.request.truncation != "auto":
            yield start
            return
        context = self._fit(start, window)
        yield evolve(start, context=context)
        for _ in range(N_CUTS):
            shorter = shortened(context, self.tokens(context) // 2)
            if shorter is context:
                return
            context = shorter
            self._keep(start.context, window, context)  # the next turn goes on from here
            yield evolve(start, context=context)

    def _fit(self, start: StartSample, window: int | None) -> Context:
        """The conversation as it was shortened in earlier turns, with what is new, and shortened again if need be.

        It is cut to half of the room, so that the prefix which the backend has cached changes seldom.
        """
        new, shorter = list[Context](), None
        for link in start.context.links():
            known = self._shorter.get(link)
            if known is not None and window in known:
                shorter = known[window]
                break
            new.append(link)
        if shorter is not None:
            for link in reversed(new):
                shorter = shorter.extend(link.items)
        fitted = shorter or start.context
        if window is not None and self.tokens(fitted) > (room := _room(start, window)):
            fitted = shortened(fitted, room // 2)
        self._keep(start.context, window, fitted)
        return fitted

    def _keep(self, context: Context, window: int | None, fitted: Context) -> None:
        """Remember ``fitted`` for the next turn; None for ``context`` itself, which would else keep itself alive."""
        self._shorter.setdefault(context, {})[window] = None if fitted is context else fitted


def item_tokens(item: Item) -> int:
    """Estimated tokens of one item. Reasoning counts nothing: most backends are not sent it again."""
    if item.type == "reasoning":
        return 0
    n_bytes, n_blobs = len(item.encoded), 0
    for key in ("content", "output"):
        parts = item.value.get(key)
        for part in parts if isinstance(parts, list) else ():
            for blob in _blobs(part):
                n_bytes -= len(blob)
                n_blobs += 1
    return estimate_tokens(max(0, n_bytes)) + BLOB_TOKENS * n_blobs


def _blobs(part: Any) -> list[str]:
    if not isinstance(part, dict):
        return []
    return [blob for key in _BLOBS if isinstance(blob := part.get(key), str)]


def _room(start: StartSample, window: int) -> int:
    """Tokens that the conversation may take: the window without the answer, the instructions and the tools."""
    request = start.request
    answer = request.max_output_tokens or min(RESERVE, window // 4)
    others = estimate_tokens(len((request.instructions or "").encode()))
    others += estimate_tokens(len(orjson.dumps(request.raw.get("tools")))) if request.tools else 0
    return max(0, window - answer - others)


def shortened(context: Context, n_tokens: int) -> Context:
    """``context`` without its oldest turns, of about ``n_tokens``; itself if nothing can go.

    Instructions (system and developer messages) and tools that the conversation brought stay, and so do the
    latest turn and the last user message. A call and its outputs go together.
    """
    items = context.items_after(None)
    turns = list(split(items))
    asked = next((item for item in reversed(items) if _is_user(item)), None)
    excess = sum(map(item_tokens, items)) - n_tokens
    kept = list[Item]()
    for turn in turns:
        stays = turn is turns[-1] or excess <= 0
        for item in turn:
            if stays or item is asked or _is_instruction(item):
                kept.append(item)
            else:
                excess -= item_tokens(item)
    return Context().extend(kept) if len(kept) < len(items) else context


def split(items: Sequence[Item]) -> Iterator[list[Item]]:
    """The turns of a conversation: each begins at a user message, or at what the model said after a tool's output."""
    turn, n_open, after_output = list[Item](), 0, False
    for item in items:
        if turn and not n_open and not item.closes_call and (_is_user(item) or after_output):
            yield turn
            turn = []
        turn.append(item)
        n_open += item.opens_call - item.closes_call
        after_output = item.closes_call
    if turn:
        yield turn


def _is_user(item: Item) -> bool:
    return item.type == "message" and item.value.get("role") == "user"


def _is_instruction(item: Item) -> bool:
    return item.type == "additional_tools" or (
        item.type == "message" and item.value.get("role") in ("system", "developer")
    )
