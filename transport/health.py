"""Whether a backend is asked at all: one that keeps failing is left alone for a growing while, then tried once."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio
from attrs import define, field

from .backends.base import BackendError

N_FAILURES = 5
"""Failures in a row after which a backend is left alone; ours."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
"""How long for; doubled each time the trial afterwards fails. Short, since a server under one's own hands restarts."""


def find_backend_error(exc: BaseException) -> BackendError | None:
    """The ``BackendError`` in ``exc``, which may be a group; None if it holds anything else."""
    while isinstance(exc, BaseExceptionGroup) and len(exc.exceptions) == 1:
        exc = exc.exceptions[0]
    return exc if isinstance(exc, BackendError) else None


def is_failure(error: BackendError) -> bool:
    """Whether ``error`` says that the backend is down or broken, as against full, or right to refuse."""
    return error.status >= 500 and error.code != "server_is_overloaded"


@define(eq=False)
class Health:
    """What became of the latest requests to one backend.

    Args:
        name: of the backend, for messages.
        now: seconds on any clock.
        patience: failures in a row after which it is left alone; infinite for never.
    """

    name: str
    now: Callable[[], float] = field(default=trio.current_time, repr=False)
    patience: float = N_FAILURES
    _n_failures: int = field(default=0, init=False)
    _pause_s: float = field(default=0.0, init=False)
    _paused_until: float = field(default=-math.inf, init=False)
    _trial_until: float = field(default=-math.inf, init=False)
    _last: str = field(default="", init=False, repr=False)

    @property
    def tripped(self) -> bool:
        """The backend is left alone, or is being tried after that."""
        return self._n_failures >= self.patience

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Around one request: notes whether it failed. Given up by its client, it says nothing either way.

        Whoever sees that an answer begins says so with ``answers``: a trial need not be over for that.

        Raises:
            BackendError: at once, while the backend is left alone.
        """
        trial = self._admit()
        try:
            yield
        except BaseException as exc:
            error = find_backend_error(exc)
            if error is not None and is_failure(error):
                self._failed(str(error), trial=trial)
            elif error is not None:
                self.answers()  # it is there, whatever it says
            raise
        else:
            self.answers()
        finally:
            if trial:
                self._trial_until = -math.inf

    def _admit(self) -> bool:
        """Let one request through; True if it is the trial of a backend that was left alone."""
        if not self.tripped:
            return False
        wait_s = self._paused_until - self.now()
        if wait_s > 0 or self._trial_until > self.now():
            seconds = max(1, math.ceil(wait_s))
            raise BackendError(
                f"The backend {self.name} failed {self._n_failures} times in a row and is left alone for now; it is "
                f"tried again in {seconds} s. Its last failure: {self._last}",
                code="server_is_overloaded",
                status=503,
                retry_after=str(seconds),
            )
        self._trial_until = self.now() + LONGEST_PAUSE_S  # one that hangs does not keep the others out for longer
        return True

    def _failed(self, message: str, *, trial: bool) -> None:
        self._n_failures += 1
        self._last = message
        if trial or self._n_failures == self.patience:
            self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s or FIRST_PAUSE_S)
            self._paused_until = self.now() + self._pause_s

    def answers(self) -> None:
        """The backend is well."""
        self._n_failures, self._pause_s = 0, 0.0
