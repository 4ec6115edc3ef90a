"""The lane state machine: one table, one function.

Rule 1: every legal move is a row here; a pair not in the table is illegal.
Rule 2: nothing here reads a payload. ``Session`` classifies an event into an ``Input`` first
(so "sample ended, tool outputs wanted" is PARK, not a flag beside FINISH).

    IDLE --LOAD--> LOADING --CREATE--> SAMPLING --FINISH--> IDLE
    IDLE --CREATE--------------------> SAMPLING --SAVE----> SAVING --SAVED--> IDLE
                                       SAMPLING --PARK----> PARKED --APPEND--> SAMPLING

A lane that is IDLE or PARKED takes the next client event of its FIFO; on any other state the event
waits. A create on PARKED does what it does on IDLE, and the parked response is abandoned.
"""

import enum
from collections.abc import Mapping


class State(enum.Enum):
    __hash__ = object.__hash__  # in C: each delta looks its row up

    IDLE = "idle"  # no response open
    LOADING = "loading"  # the store looks for the parent of the next response, or for items it refers to
    SAMPLING = "sampling"  # a backend is producing increments for the open response
    PARKED = "parked"  # the open response waits for response.append
    SAVING = "saving"  # the open response has ended; its terminal event waits for the store


BUSY = frozenset({State.LOADING, State.SAMPLING, State.SAVING})
"""States that hold one of the connection's places in flight, and in which client events wait."""


class Input(enum.Enum):
    __hash__ = object.__hash__

    CREATE = "response.create"
    WARMUP = "response.create, generate=false"
    LOAD = "client event, something it names is not in memory"
    REFUSE = "response.create, refused before its response was announced"
    APPEND = "response.append, every output there"
    HOLD = "response.append, outputs still missing"
    STARTED = "backend accepted"
    DELTA = "increments"
    FINISH = "sample finished"
    PARK = "sample finished, tool outputs wanted"
    SAVE = "response ended, to be stored"
    SAVED = "response stored"
    FAIL = "response failed"


_CREATE = {
    Input.CREATE: State.SAMPLING,
    Input.WARMUP: State.IDLE,
    Input.SAVE: State.SAVING,  # a stored warm-up
    Input.REFUSE: State.IDLE,
}
_APPEND = {Input.APPEND: State.SAMPLING, Input.HOLD: State.PARKED, Input.FAIL: State.IDLE}

TRANSITIONS: Mapping[State, Mapping[Input, State]] = {
    State.IDLE: {**_CREATE, Input.LOAD: State.LOADING},
    State.LOADING: {**_CREATE, **_APPEND},
    State.SAMPLING: {
        Input.STARTED: State.SAMPLING,
        Input.DELTA: State.SAMPLING,
        Input.FINISH: State.IDLE,
        Input.PARK: State.PARKED,
        Input.SAVE: State.SAVING,
        Input.REFUSE: State.IDLE,
        Input.FAIL: State.IDLE,
    },
    State.PARKED: {**_CREATE, **_APPEND, Input.LOAD: State.LOADING},
    State.SAVING: {Input.SAVED: State.IDLE, Input.FAIL: State.IDLE},
}


class IllegalTransition(AssertionError):
    """``Session`` classified an event wrongly: a bug of ours, never a client's fault."""


def step(state: State, input_: Input) -> State:
    """Return the state after ``input_``; raise ``IllegalTransition`` for a pair not in the table."""
    try:
        return TRANSITIONS[state][input_]
    except KeyError:
        raise IllegalTransition(f"{input_.name} while {state.name}") from None
