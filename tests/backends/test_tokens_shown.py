"""What gpt-oss is shown of a conversation: all but the reasoning of turns that have ended."""

from hypothesis import given
from hypothesis import strategies as st

from turntape.core.harmony import ANALYSIS, FINAL
from turntape.core.rendering import Segment
from turntape.transport.backends.tokens_shown import Shown

SEGMENTS = st.builds(
    Segment.of, st.lists(st.integers(0, 200_000), max_size=4), st.sampled_from(["", "", ANALYSIS, FINAL])
)


def plainly(segments: list[Segment]) -> tuple[list[bytes], int]:
    """Ids that are shown and how many are not, by a look at everything."""
    ends = [n for n, segment in enumerate(segments) if segment.kind == FINAL and segment.n_tokens]
    last = ends[-1] if ends else -1
    hidden = [n for n, segment in enumerate(segments) if segment.kind == ANALYSIS and n < last]
    shown = [segment.encoded for n, segment in enumerate(segments) if n not in hidden and segment.n_tokens]
    return shown, sum(segments[n].n_tokens for n in hidden)


@given(st.lists(st.tuples(st.integers(0), SEGMENTS), max_size=200))
def test_reasoning_goes_once_its_turn_has_ended_and_forks_do_not_see_each_other(steps):
    """Segments are added to any earlier state, in any order; each state shows what a look at all its segments says."""
    states: list[tuple[Shown, list[Segment]]] = [(Shown(), [])]
    for at, segment in steps:
        shown, segments = states[at % len(states)]
        states.append((shown.plus(segment), [*segments, segment]))
    for shown, segments in states:
        expected, n_left_out = plainly(segments)
        assert b"".join(shown.ids.pieces()) == b"".join(b"," + encoded for encoded in expected)
        assert shown.n_left_out == n_left_out
        assert shown.n_tokens == sum(segment.n_tokens for segment in segments) - n_left_out
