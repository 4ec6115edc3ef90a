"""A server in the background as a process of its own: lines of JSON over its standard input and output."""

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
from attrs import asdict, field, mutable

from .answering import Listening, Setup, State
from .background import STOP_S, BackgroundFailed, BackgroundThread


@mutable(eq=False)
class BackgroundProcess:
    """Same as ``BackgroundThread``, but nothing that its caller computes delays it. It ends with its caller, however that ends."""

    setup: Setup
    _process: "subprocess.Popen[bytes]" = field(init=False)
    _last: State = field(init=False, factory=State)
    _stopped: bool = field(init=False, default=False)

    def start(self) -> Listening:
        # a fresh interpreter, and none that imports the caller's main module as multiprocessing would
        self._process = subprocess.Popen(
            [sys.executable, "-m", "turntape.background_process"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        setup = asdict(
            self.setup, value_serializer=lambda _, __, value: str(value) if isinstance(value, Path) else value
        )
        try:
            listening = self._ask(setup)
        except BaseException:
            self._end()
            raise
        return Listening(**listening | {"key_variables": tuple(listening["key_variables"])})

    def state(self) -> State:
        if not self._stopped:
            self._last = _state(self._ask("state"))
        return self._last

    def stop(self) -> State:
        if not self._stopped:
            self._stopped = True
            try:
                self._last = _state(self._ask("stop"))
            finally:
                self._end()
        return self._last

    def _ask(self, question: object) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        try:
            stdin.write(orjson.dumps(question) + b"\n")
            stdin.flush()
            line = stdout.readline()
        except TypeError as exc:
            raise BackgroundFailed(f"Options of a stub in a process of its own should be JSON values: {exc}.") from exc
        except BrokenPipeError:
            line = b""
        if not line:
            raise BackgroundFailed(f"The stub's process ended by itself, with {self._process.wait(STOP_S)}.")
        answer: dict[str, Any] = orjson.loads(line)
        if "failed" in answer:
            raise BackgroundFailed(answer["failed"])
        return answer

    def _end(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):  # what it was not alive to read
            self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def _state(answer: dict[str, Any]) -> State:
    return State(**answer | {name: tuple(answer[name]) for name in ("misses", "unused", "warnings")})


def main() -> None:
    """Answer each line: the first is the setup, then ``"state"`` and ``"stop"``. Ends with its standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the caller too, who then stops this
    setup = orjson.loads(sys.stdin.buffer.readline() or b"null")
    if setup is None:
        return

    def say(answer: object) -> None:
        sys.stdout.buffer.write(orjson.dumps(answer) + b"\n")
        sys.stdout.buffer.flush()

    setup |= {"fixtures": tuple(map(Path, setup["fixtures"])), "secret_env": tuple(setup["secret_env"])}
    for name in ("out", "replaces", "tables"):
        setup[name] = Path(setup[name]) if setup[name] else None
    server = BackgroundThread(Setup(**setup))
    try:
        say(asdict(server.start()))
    except BackgroundFailed as exc:
        say({"failed": str(exc)})
        return
    for line in sys.stdin.buffer:
        try:
            say(asdict(server.stop() if orjson.loads(line) == "stop" else server.state()))
        except BackgroundFailed as exc:
            say({"failed": str(exc)})
    server.stop()


if __name__ == "__main__":
    main()
