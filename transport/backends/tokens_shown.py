"""A conversation's ids as gpt-oss is shown them: only appended to, but for reasoning, which goes once its turn has ended."""

from attrs import field, frozen

from turntape.core.harmony import ANALYSIS, FINAL
from turntape.core.rendering import Segment

from .elements import Elements


@frozen(eq=False, repr=False)
class _Said:
    """A segment of the turn that has not ended: how much it is, for its ids are in ``Shown.ids``."""

    before: "_Said | None"
    reasons: bool
    n_bytes: int
    n_tokens: int


@frozen(eq=False)
class Shown:
    """Ids of a conversation. Going on from it costs what is new; what ends a turn costs that turn.

    Attributes:
        ids: as JSON numbers.
        n_tokens: how many they are.
        n_left_out: tokens of reasoning that are not among them, since its turn has ended. The model was trained so, and
            vLLM does the same.
    """

    ids: Elements = field(factory=Elements, repr=False)
    n_tokens: int = 0
    n_left_out: int = 0
    _ended: Elements = field(factory=Elements, repr=False)  # the part of ``ids`` whose turns have ended
    _turn: _Said | None = field(default=None, repr=False)  # what stands behind it, newest first

    def plus(self, segment: Segment) -> "Shown":
        if not segment.n_tokens:
            return self
        ids, n_tokens = self.ids.plus([segment.encoded]), self.n_tokens + segment.n_tokens
        said = _Said(self._turn, segment.kind == ANALYSIS, ids.n_bytes - self.ids.n_bytes, segment.n_tokens)
        shown = Shown(ids, n_tokens, self.n_left_out, self._ended, said)
        return shown._after_turn() if segment.kind == FINAL else shown

    def _after_turn(self) -> "Shown":
        turn: list[_Said] = []
        said = self._turn
        while said is not None:
            turn.append(said)
            said = said.before
        n_reasoned = sum(said.n_tokens for said in turn if said.reasons)
        if not n_reasoned:
            return Shown(self.ids, self.n_tokens, self.n_left_out, self.ids)
        whole, begin, spoken = b"".join(self.ids.pieces()), self._ended.n_bytes, list[bytes]()
        for said in reversed(turn):
            if not said.reasons:
                spoken.append(whole[begin + 1 : begin + said.n_bytes])  # without its comma
            begin += said.n_bytes
        ids = self._ended.plus(spoken)
        return Shown(ids, self.n_tokens - n_reasoned, self.n_left_out + n_reasoned, ids)
