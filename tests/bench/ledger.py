"""What the ledger costs a turn and a batch, what a record takes on disk, and how many saves share a commit.

python tests/bench/ledger.py
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import trio
from attrs import evolve

sys.path.insert(0, str(Path(__file__).parent.parent))

from serving import Model, Server
from used import ONE

from turntape.core.seam import Finish, Record, Text, Usage
from turntape.transport.ledger.json_lines import JsonLinesSink
from turntape.transport.ledger.ledger import Ledger
from turntape.transport.ledger.meter import Meter
from turntape.transport.ledger.sqlite import SqliteSink
from turntape.transport.sqlite_store import SqliteStore

TOOLS = [{"type": "function", "name": f"f{n}", "description": "x" * 1000, "parameters": {}} for n in range(20)]
N_RECORDS, N_SAVES = 20_000, 20


async def follow(folder: Path, n_turns: int, n_batches: int, usage: Usage | None) -> tuple[float, float]:
    """Seconds that following takes, of a turn and of a call, with one call for each batch."""
    spent, calls = 0.0, 0
    original = Meter.follow

    def timed(self: Meter, *news: Any) -> None:
        nonlocal spent, calls
        began = time.perf_counter()
        original(self, *news)
        spent += time.perf_counter() - began
        calls += 1

    batches = [(0.0, (Text("tok "),) * 4)] * n_batches
    async with trio.open_nursery() as nursery:
        server = Server(nursery, Model([[(0, ()), *batches, (0, (Finish(usage=usage),))]]))
        server.service.ledger = ledger = Ledger(SqliteSink(folder / "followed"))
        nursery.start_soon(ledger.run)
        Meter.follow = timed  # type: ignore[method-assign]
        ws = await server.websocket()
        for _ in range(n_turns):
            await ws.create(tools=TOOLS)
            await ws.until("response.completed")
        Meter.follow = original  # type: ignore[method-assign]
        nursery.cancel_scope.cancel()
    await ledger.aclose()
    return spent / n_turns, spent / calls


async def save(folder: Path, n_sessions: int) -> tuple[int, float]:
    """Commits, and seconds a save, of sessions that save one response after the other."""
    store = await SqliteStore.open(folder / f"store{n_sessions}")
    n_commits, original = 0, store._commit

    def counted(batch: Any) -> None:
        nonlocal n_commits
        n_commits += 1
        original(batch)

    store._commit = counted  # type: ignore[method-assign]
    item = b'{"type":"message","role":"user","content":"%b"}' % (b"x" * 500)

    async def session(name: int) -> None:
        for n in range(N_SAVES):
            previous = f"r{name}_{n - 1}" if n else None
            await store.save(Record(f"r{name}_{n}", previous, "o", int(time.time()), b"{}", (item, item), 1))

    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for name in range(n_sessions):
            nursery.start_soon(session, name)
    spent = time.perf_counter() - began
    await store.aclose()
    return n_commits, spent / (n_sessions * N_SAVES)


def main() -> None:
    record = evolve(ONE, owner="a" * 32, agent="agent/1.0 (Linux; x86_64)", response_id="resp_" + "b" * 32)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for what, usage in (("counted", Usage(10, 10)), ("estimated", None)):
            turn_s, _ = trio.run(follow, folder, 300, 1, usage)
            print(f"follow a turn of one batch, {what}: {turn_s * 1e6:.0f} µs, after its write")
        print(f"follow a batch: {trio.run(follow, folder, 4, 2000, Usage(10, 10))[1] * 1e6:.1f} µs")
        for make in (SqliteSink, JsonLinesSink):
            path = folder / make.__name__
            sink = make(path)
            for _ in range(0, N_RECORDS, 1000):
                sink.write([record] * 1000)
            sink.close()
            print(f"{make.__name__}: {path.stat().st_size / N_RECORDS:.0f} bytes a record")
        for n_sessions in (1, 50):
            n_commits, save_s = trio.run(save, folder, n_sessions)
            print(
                f"{n_sessions} sessions: {n_sessions * N_SAVES} saves in {n_commits} commits, {save_s * 1e3:.2f} ms a save"
            )


if __name__ == "__main__":
    main()
