"""What a model server looks like from here: a sample is asked for, batches of increments come out on demand."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

from turntape.core.seam import Increment, StartSample

Batch = tuple[Increment, ...]
"""Everything that one read of the backend brought. Empty: the request was accepted, and nothing is said yet."""


class BackendError(Exception):
    """The backend refused the request or failed while it answered; the client should hear why.

    Args:
        message: what happened, which backend, and what to do. Never a key, never a raw upstream body.
        code: canonical code: server_error, rate_limit_exceeded, invalid_api_key, model_not_found,
            context_length_exceeded, insufficient_quota, server_is_overloaded, invalid_prompt, fixture_miss.
        status: the HTTP status that a refusal before the first event becomes.
        retry_after: seconds, as the backend wrote them.

    Attributes:
        is_said: whoever raised it has told whoever runs the server, so the log need not.
    """

    is_said: bool = False

    def __init__(
        self,
        message: str,
        *,
        code: str = "server_error",
        status: int = 500,
        param: str | None = None,
        retry_after: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.status, self.param, self.retry_after = code, status, param, retry_after


@runtime_checkable
class Warmable(Protocol):
    """A backend that can connect before it is asked for anything."""

    async def warm(self) -> None:
        """Have a connection ready for the next sample, if that is worth it. Raises any ``Exception`` if there is none."""
        ...


class Backend(Protocol):
    """One per server; it is shared by all sessions and keeps what may be kept between samples."""

    models: tuple[str, ...]
    """Names to list under ``/v1/models``."""

    def sample(self, start: StartSample) -> AbstractAsyncContextManager[AsyncIterator[Batch]]:
        """Yield an empty batch once the request is accepted, then batches; the last holds ``Finish``.

        Write it as an async generator method under ``@trio.as_safe_channel``: nothing is produced until asked
        for (backpressure), and leaving the ``async with`` closes it (cancellation). One that never yields inside a
        nursery or a cancel scope may be given as ``contextlib.aclosing(generator)``, which costs no task. Raise
        ``BackendError`` for a refusal or a failure; anything else is a bug, fails the sample and is logged.
        """
        ...

    async def aclose(self) -> None:
        """Give back connections and threads."""
        ...
