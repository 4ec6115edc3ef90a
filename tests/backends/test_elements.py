"""Elements of an array that only grows: what a request costs does not follow the number of turns."""

from hypothesis import given
from hypothesis import strategies as st

from turntape.transport.backends.elements import MERGED, Elements

STEPS = st.lists(st.tuples(st.integers(0), st.lists(st.binary(min_size=1, max_size=4), max_size=3)), max_size=300)


@given(STEPS)
def test_whoever_goes_on_from_where_everybody_finds_what_was_there(steps):
    """Elements are appended to any earlier state, in any order; each state says the same as a plain list would."""
    states: list[tuple[Elements, list[bytes]]] = [(Elements(), [])]
    for at, new in steps:
        elements, plain = states[at % len(states)]
        states.append((elements.plus(new), [*plain, *new]))
    for elements, plain in states:
        assert b"".join(elements.pieces()) == b"".join(b"," + element for element in plain)


def test_a_thousand_turns_are_a_few_strings_and_every_fork_shares_them():
    """A fork holds the same objects as what it goes on from, but for those that are short."""
    elements = Elements()
    for n in range(1000):
        elements = elements.plus([b"%d" % n])
    one, other = elements.plus([b"one"]), elements.plus([b"other"])
    assert len(one.pieces()) <= 1000 // MERGED + MERGED
    assert all(a is b for a, b in zip(one.pieces()[:-1], other.pieces()[:-1], strict=True))
    assert one.pieces()[-1] == b",one" and other.pieces()[-1] == b",other"


def test_states_that_are_forked_each_turn_stay_few_strings():
    """A turn that is asked again is a fork; a chain of forks merges as a chain does."""
    elements = Elements()
    for n in range(1000):
        elements.plus([b"first try"])
        elements = elements.plus([b"%d" % n])
    assert len(elements.pieces()) <= 1000 // MERGED + MERGED
