"""Our server with the model of the rollouts, in a process of its own, whose CPU time and memory can be read.

``python -m turntape.replay.bench.serving TOKENS_PER_S`` listens on loopback, prints its port, and ends with its input.
"""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio
from attrs import frozen

from turntape.core.seam import Limits
from turntape.core.session import Session
from turntape.replay.errors import ReplayError
from turntape.transport.memory_store import MemoryStore
from turntape.transport.server import ServerSettings, serve

from .model import RolloutModel

START_S = 20.0
"""How long a server may take to start; ours."""

END_S = 5.0
WEEK_S = 7 * 86400.0
MAX_CONNECTIONS = 1 << 14


class NotStarted(ReplayError):
    """The server's process did not come up."""


@frozen
class Served:
    """A server that runs.

    Args:
        pid: of its process.
    """

    base_url: str
    pid: int

    def cpu_s(self) -> float | None:
        """Seconds of CPU that it has taken; None where the system does not say."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_bytes(self) -> int | None:
        """What it holds in memory; None where the system does not say."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        except OSError:
            return None
        return pages * os.sysconf("SC_PAGE_SIZE")


@asynccontextmanager
async def served(tokens_per_s: float, *, core: int | None = None) -> AsyncIterator[Served]:
    """A server at this speed, as long as the block.

    Args:
        core: the only one that it may use, where the system can be told so.

    Raises:
        NotStarted: it did not come up in time.
    """
    command = [sys.executable, "-m", "turntape.replay.bench.serving", repr(tokens_per_s)]
    process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    try:
        if core is not None and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(process.pid, {core})
        said = bytearray()
        with trio.move_on_after(START_S):
            while not said.endswith(b"\n") and (part := await process.stdout.receive_some()):
                said += part
        if not said.endswith(b"\n"):
            raise NotStarted(f"The server's process did not start within {START_S:g} seconds.")
        yield Served(f"http://127.0.0.1:{int(said)}/v1", process.pid)
    finally:
        with trio.move_on_after(END_S, shield=True):
            await process.stdin.aclose()
            await process.wait()
        if process.returncode is None:
            process.kill()


async def main(tokens_per_s: float, started: Callable[[int], None], until: Callable[[], object]) -> None:
    """Serve until ``until`` returns, which runs in a thread."""
    settings = ServerSettings(limits=Limits(max_age_s=WEEK_S), grace_s=1.0, max_connections=MAX_CONNECTIONS)
    shutdown = trio.Event()
    async with trio.open_nursery() as nursery:
        model, store = RolloutModel(tokens_per_s), MemoryStore()
        started(
            await nursery.start(
                partial(serve, settings, new_session=Session, backend=model, store=store, shutdown=shutdown)
            )
        )
        await trio.to_thread.run_sync(until, abandon_on_cancel=True)
        shutdown.set()


if __name__ == "__main__":
    trio.run(main, float(sys.argv[1]), partial(print, flush=True), sys.stdin.read)
