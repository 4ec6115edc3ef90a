"""The transition table: every pair moves or is refused, and nothing in between."""

import itertools

import pytest

from turntape.core.states import BUSY, TRANSITIONS, IllegalTransition, Input, State, step


@pytest.mark.parametrize(("state", "input_"), list(itertools.product(State, Input)))
def test_every_pair_moves_or_is_refused(state, input_):
    if input_ in TRANSITIONS[state]:
        assert step(state, input_) is TRANSITIONS[state][input_]
    else:
        with pytest.raises(IllegalTransition, match=input_.name):
            step(state, input_)


def test_every_state_can_be_left_and_reached():
    reached = {after for row in TRANSITIONS.values() for after in row.values()}
    assert reached == set(State) == set(TRANSITIONS)


def test_only_places_that_work_count_as_in_flight():
    """A parked lane waits for its client, so it holds no place."""
    assert set(State) - BUSY == {State.IDLE, State.PARKED}
