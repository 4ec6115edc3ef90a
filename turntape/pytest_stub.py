"""What a test holds of its stub: where it is, what an agent needs to find it, and what came of it."""

import os
from collections.abc import Sequence

from attrs import field, mutable

from . import agents
from .answering import Listening, State
from .background import BackgroundFailed, BackgroundThread, Running
from .background_process import BackgroundProcess
from .pytest_files import Planned, SetupWrong, keep

_TAKE_IN = (
    "If the agent is right as it is, record what is new: pytest --turntape-record new --turntape-upstream BACKEND"
)


@mutable(eq=False)
class Stub:
    """A server on this machine that answers from recordings, or records.

    Attributes:
        base_url: ``http://127.0.0.1:PORT/v1``, as OpenAI's libraries take it.
        ws_url: the address of its WebSocket.
        strict: a turn that is not played fails the test.
    """

    base_url: str
    strict: bool = field(kw_only=True)
    _planned: Planned = field(kw_only=True)
    _running: Running = field(kw_only=True)
    _listening: Listening = field(kw_only=True)
    _n_said: int = field(init=False, default=0)
    _unused_said: bool = field(init=False, default=False)
    _broken: bool = field(init=False, default=False)

    @classmethod
    def start(cls, planned: Planned, *, strict: bool, process: bool) -> "Stub":
        """
        Args:
            process: in a process of its own, else in a thread.

        Raises:
            SetupWrong: it cannot be started as planned.
        """
        running: Running = BackgroundProcess(planned.setup) if process else BackgroundThread(planned.setup)
        try:
            listening = running.start()
        except BackgroundFailed as exc:
            raise SetupWrong(str(exc)) from exc
        url = f"http://127.0.0.1:{listening.port}/v1"
        return cls(url, strict=strict, planned=planned, running=running, listening=listening)

    @property
    def api_key(self) -> str:
        """A stub takes any key, and clients want one. A server that is recorded gets the client's own, OPENAI_API_KEY."""
        own = os.environ.get("OPENAI_API_KEY", "") if self._listening.relayed else ""
        return own or agents.NO_KEY

    @property
    def ws_url(self) -> str:
        return f"ws{self.base_url.removeprefix('http')}/responses"

    @property
    def env(self) -> dict[str, str]:
        """What a program needs in its environment, besides its own: ``env=os.environ | stub.env``.

        Keys of what answers while a run is recorded are emptied: they are not the program's.
        """
        hidden = dict.fromkeys((name for name in self._listening.key_variables if name in os.environ), "")
        return hidden | self._launch(()).environment

    def command(self, *argv: str | os.PathLike[str]) -> list[str]:
        """``argv`` as it must be run to find the stub: Codex gets ``-c`` overrides, with the recorded model."""
        return [*self._launch([os.fspath(word) for word in argv]).argv]

    @property
    def played(self) -> int:
        """How many recorded turns were played to their end."""
        return self._running.state().played

    @property
    def misses(self) -> list[str]:
        """Each request that no recorded turn answers: the nearest one, and the difference."""
        return [*self._running.state().misses]

    @property
    def unused(self) -> list[str]:
        """Each recorded turn that was not played to its end, and each fault that did not happen."""
        return [*self._running.state().unused]

    @property
    def warnings(self) -> list[str]:
        """Each difference that a rule allows and says."""
        return [*self._running.state().warnings]

    def complaint(self, *, unused: bool) -> str:
        """What is wrong and was not said before; "" for nothing.

        Args:
            unused: turns that were not played are wrong too, if the stub is strict, and asked nothing elsewhere:
                then a new recording has others in their place.
        """
        if self._broken:
            return ""
        try:
            state = self._running.state()
        except BackgroundFailed as exc:
            self._broken = True
            return f"turntape_stub: {exc}"
        misses, self._n_said = state.misses[self._n_said :], len(state.misses)
        lines = list[str]()
        if misses:
            lines.append(f"turntape: the stub of {self._planned.names} has no answer to {_n(len(misses), 'request')}.")
            lines += misses
            if self._planned.setup.out is None:
                lines.append(_TAKE_IN)
        if unused and self.strict and state.unused and not state.recorded and not self._unused_said:
            self._unused_said = True
            lines.append(
                f"turntape: {state.played} of {_n(state.n_turns, 'turn')} of {self._planned.names} played; "
                "one that is not played fails the test unless its stub has strict=False."
            )
            lines += state.unused
        return "\n".join(lines)

    def stop(self, *, passed: bool) -> str:
        """End it, and say what was recorded, if anything was.

        Args:
            passed: the test did, so that its recording is one to keep.

        Raises:
            BackgroundFailed: it ended by itself, which ``complaint`` has not said, or does not end.
            OSError: the recording cannot be put in its place.
        """
        try:
            state: State = self._running.stop()
        except BackgroundFailed:
            if self._broken:
                return ""
            self._broken = True
            raise
        out = self._planned.setup.out
        if out is None or not out.exists():
            return ""
        if self._planned.setup.fixtures and not state.recorded:
            out.unlink()  # all was played
            return ""
        return keep(out, self._planned, passed=passed)

    def _launch(self, argv: Sequence[str]) -> agents.Launch:
        model = self._listening.model
        return agents.launch(
            argv, url=self.base_url, key=self.api_key, model=model, websocket=True, environment=os.environ
        )


def _n(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"
