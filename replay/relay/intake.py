"""What a tap is told, in order: a large message is looked at in parts, and what is told after it waits."""

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

from attrs import define, field

from .masking import Looked
from .tap import Side, TapSession

LARGE = 1 << 18
"""Characters of a message that is looked at in parts, between which others have their turn; ours."""


@define(eq=False)
class _PutOff:
    """
    Attributes:
        large: a message that is still to be looked at.
    """

    call: Callable[..., None]
    large: str = ""
    looked: Looked | None = None


@define(eq=False)
class Intake:
    """Tells ``tap`` what it is told itself: at once, or, from a large message on, when somebody calls ``go_on``."""

    tap: TapSession
    _put_off: deque[_PutOff] = field(init=False, factory=deque)

    @property
    def waits(self) -> bool:
        """Whether anything was put off."""
        return bool(self._put_off)

    @property
    def busy(self) -> bool:
        """Whether a request waits for the end of its answer, as far as can be known by now."""
        return self.tap.n_open > 0 or self.waits

    async def look(self) -> None:
        """Find out what the message says that is put off first, if it is one; others have their turn."""
        first = self._put_off[0]
        if first.large and first.looked is None:
            first.looked = await self.tap.screen.look(first.large)

    def go_on(self) -> None:
        """Tell what was put off first."""
        first = self._put_off.popleft()
        if first.looked is not None:
            first.call(looked=first.looked)
        else:
            first.call()

    def client(self, content: str | bytes, *, at: float) -> None:
        self._tell(partial(self.tap.client, content, at=at), content)

    def up(self, content: str | bytes, *, at: float) -> None:
        self._tell(partial(self.tap.up, content, at=at), content)

    def answer(self, status: int, headers: Mapping[str, str], *, at: float) -> None:
        self._tell(partial(self.tap.answer, status, headers, at=at))

    def read(self) -> None:
        self._tell(self.tap.read)

    def unread(self, by: Side, reason: str, *, at: float) -> None:
        self._tell(partial(self.tap.unread, by, reason, at=at))

    def gone(self, by: Side, *, at: float, code: int | None = None, reason: str = "") -> None:
        self._tell(partial(self.tap.gone, by, at=at, code=code, reason=reason))

    def release(self) -> None:
        self._tell(self.tap.release)

    def _tell(self, call: Callable[..., None], content: str | bytes = b"") -> None:
        large = content if isinstance(content, str) and len(content) >= LARGE else ""
        if large or self._put_off:
            self._put_off.append(_PutOff(call, large))
        else:
            call()
