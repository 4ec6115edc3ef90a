"""A stub, or a server that records, which runs beside its caller: a thread with a Trio loop of its own, a free port."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Protocol, TypeVar

import click
import trio
from attrs import field, mutable

from turntape.replay.errors import ReplayError

from .answering import Answering, Listening, Setup, State, open_answering
from .specs import SpecError

T = TypeVar("T")

STOP_S = 10.0
"""How long the thread may take to end, or to answer, before that is called a failure; ours."""


class BackgroundFailed(Exception):
    """The server could not start, or ended by itself. The text says why and what to do."""


class Running(Protocol):
    """A server in the background, in a thread or a process."""

    def start(self) -> Listening:
        """Return once it listens.

        Raises:
            BackgroundFailed: it cannot be.
        """
        ...

    def state(self) -> State:
        """What came of it so far, also once it has been stopped.

        Raises:
            BackgroundFailed: it ended by itself.
        """
        ...

    def stop(self) -> State:
        """End it, and return what came of it. To stop it again changes nothing.

        Raises:
            BackgroundFailed: it ended by itself, or does not end.
        """
        ...


@mutable(eq=False)
class BackgroundThread:
    """Runs in a daemon thread. Any thread may call it, one with an event loop too: a call takes about a millisecond."""

    setup: Setup
    _started: "Future[Listening]" = field(init=False, factory=Future)
    _thread: threading.Thread = field(init=False)
    _answering: Answering = field(init=False)
    _token: trio.lowlevel.TrioToken = field(init=False)
    _shutdown: trio.Event = field(init=False, factory=trio.Event)
    _failure: Exception | None = field(init=False, default=None)

    def start(self) -> Listening:
        names = ", ".join(path.name for path in self.setup.fixtures)
        self._thread = threading.Thread(target=self._main, name=f"turntape stub {names}".strip(), daemon=True)
        self._thread.start()
        try:
            return self._started.result()
        except (ReplayError, SpecError) as exc:
            raise BackgroundFailed(str(exc)) from exc
        except click.ClickException as exc:
            raise BackgroundFailed(exc.format_message()) from exc
        except OSError as exc:
            raise BackgroundFailed(f"127.0.0.1 cannot be listened on: {exc.strerror or exc}") from exc

    def state(self) -> State:
        if not self._thread.is_alive():
            self._raise()
            return self._answering.state()
        return self._call(self._answering.state)

    def stop(self) -> State:
        if self._thread.is_alive():
            self._call(self._shutdown.set)
            self._thread.join(STOP_S)
            if self._thread.is_alive():
                raise BackgroundFailed(f"The stub did not end within {STOP_S:g} s.")
        self._raise()
        return self._answering.state()

    def _raise(self) -> None:
        if self._failure is not None:
            raise BackgroundFailed(f"The stub ended by itself: {self._failure!r}") from self._failure

    def _call(self, function: Callable[[], T]) -> T:
        """Call it in the server's loop, between two steps of its tasks."""
        answer = Future[T]()

        def answered() -> None:
            try:
                answer.set_result(function())
            except Exception as exc:  # noqa: BLE001 - whoever asked gets it
                answer.set_exception(exc)

        try:
            self._token.run_sync_soon(answered)
            return answer.result(STOP_S)
        except (trio.RunFinishedError, TimeoutError):  # it ended meanwhile: nothing else uses it now
            return function()

    def _main(self) -> None:
        try:
            trio.run(self._run)
        except Exception as exc:  # noqa: BLE001 - start() or stop() raises it
            self._failure = _single(exc)
        finally:
            if not self._started.done():
                self._started.set_exception(self._failure or BackgroundFailed("The stub ended before it listened."))

    async def _run(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with open_answering(self.setup) as answering, trio.open_nursery() as beside:
            self._answering = answering
            if answering.recording:
                beside.start_soon(answering.recording.keep_flushed)
            async with trio.open_nursery() as servers:
                port: int = await servers.start(partial(answering.serve, shutdown=self._shutdown))
                self._started.set_result(answering.listening(port))
            beside.cancel_scope.cancel()


def _single(exc: Exception) -> Exception:
    """What stands alone in groups of one, as nurseries raise them."""
    while isinstance(exc, ExceptionGroup) and len(exc.exceptions) == 1:
        exc = exc.exceptions[0]
    return exc
