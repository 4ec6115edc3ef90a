"""The server as its users run it: ``turntape`` in a process of its own, on a free port, stopped by a signal."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import define, field

ROOT = Path(__file__).parent.parent
LAB = ROOT / "tests" / "scripts" / "lab.toml"
LISTENING = "listening on "
START_S, STOP_S = 30.0, 20.0


@define(eq=False)
class Running:
    """One ``turntape`` process that listens.

    Attributes:
        url: ends in ``/v1``.
        log: its standard error so far, a file.
        output: what it printed after it listened, once it has ended.
        code: its exit code, once it has ended.
    """

    process: subprocess.Popen[str]
    url: str
    log: Path
    output: str = field(init=False, default="")
    code: int | None = field(init=False, default=None)

    @property
    def port(self) -> int:
        return int(self.url.removesuffix("/v1").rpartition(":")[2])

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, wait for the end, and return the exit code."""
        if self.code is None:
            self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait for the end, and return the exit code."""
        if self.code is None:
            assert self.process.stdout is not None
            self.output = self.process.stdout.read()
            self.code = self.process.wait(STOP_S)
        return self.code

    def wait_for(self, text: str) -> None:
        """Wait until ``text`` is on its standard error."""
        end = time.monotonic() + START_S
        while text not in self.errors:
            assert time.monotonic() < end, self.errors
            time.sleep(0.01)

    @property
    def errors(self) -> str:
        return self.log.read_text()


@contextmanager
def turntape(*words: str | Path, folder: Path, env: dict[str, str] | None = None) -> Iterator[Running]:
    """Run ``turntape WORDS --port 0`` until the block ends.

    The first line on its standard output must be the one that says where it listens; under ``--json``, where
    standard output is for JSON only, that line is waited for on standard error.

    Args:
        folder: an empty one for its log and its home: nothing of the machine's own configuration is read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "stderr"
    command = [sys.executable, "-m", "turntape", *map(str, words), "--port", "0"]
    with log.open("w") as stderr:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment(folder, env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    try:
        url = _listening_in(process, log) if "--json" in words else _listening(process, log)
        yield Running(process, url, log)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def environment(home: Path, more: dict[str, str] | None = None) -> dict[str, str]:
    """A bare environment: no configuration, no proxy, no key, and no way out but loopback."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "HTTPS_PROXY": "http://127.0.0.1:9",  # agents also look for updates and plugins: a port where nobody is
        "NO_PROXY": "127.0.0.1,localhost",
        **(more or {}),
    }


def _listening(process: subprocess.Popen[str], log: Path) -> str:
    """Wait for the line that says where the server listens."""
    assert process.stdout is not None
    watchdog = threading.Timer(START_S, process.kill)
    watchdog.start()
    try:
        line = process.stdout.readline()
    finally:
        watchdog.cancel()
    if line.startswith(LISTENING):
        return line.removeprefix(LISTENING).strip()
    raise AssertionError(f"the server ended with {process.wait(STOP_S)}: {log.read_text()}")


def _listening_in(process: subprocess.Popen[str], log: Path) -> str:
    """Wait for that line in ``log``."""
    end = time.monotonic() + START_S
    while True:
        whole = log.read_text().rpartition("\n")[0].splitlines()
        for line in whole:
            if line.startswith(LISTENING):
                return line.removeprefix(LISTENING)
        if process.poll() is not None or time.monotonic() > end:
            raise AssertionError(f"the server does not listen: {log.read_text()}")
        time.sleep(0.01)
