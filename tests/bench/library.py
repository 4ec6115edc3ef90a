"""How a stub holds many fixtures: its start, its memory, a first request, a hundred sessions, and a miss, as a client sees them.

    python tests/bench/library.py [--fixtures 1000] [--turns 30] [--deltas 60] [--per-read 3] [--rules codex] [--keep FOLDER]

Each fixture is one agent's session: 5 KB of tools in every request, and in every turn a text and one tool call, whose output
is the next request. `--rules` are those that hold for every fixture; `--keep` makes the fixtures in a folder, or takes
those that are there. Start, its memory and the first request are medians of five; one more start plays a hundred sessions to
their end, and asks for what is not recorded.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from websockets.sync.client import ClientConnection, connect

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))  # the tests' own helpers

from taped import Recording, output, user

from turntape.core.seam import Arguments, Increment, Text, ToolCall

TOOLS = [
    {"type": "function", "name": f"tool_{n}", "description": "What it does. " * 20, "strict": False,
     "parameters": {"type": "object", "properties": {"cmd": {"type": "string", "description": "A command."}}}}
    for n in range(10)
]  # fmt: skip
FIELDS = {"tools": TOOLS, "instructions": "You are an agent. " * 100}


def said(turn: int, n_deltas: int, per_read: int) -> list[tuple[Increment, ...]]:
    """Half of the deltas are text, half are arguments."""
    half = n_deltas // 2
    text = [Text(f"word {n} ") for n in range(n_deltas - half)]
    arguments = [Arguments('{"cmd":"'), *(Arguments(f"arg {n} ") for n in range(half - 2)), Arguments('"}')]
    reads = [[tuple(one[n : n + per_read]) for n in range(0, len(one), per_read)] for one in (text, arguments)]
    return [*reads[0], (ToolCall(f"call_{turn}", "tool_1"),), *reads[1]]


def asked(number: int, turn: int) -> dict[str, Any]:
    """What is new in a turn."""
    if not turn:
        return user(f"Do task {number}.")
    return output(f"call_{turn - 1}", f"line {turn} of the output of task {number}\n" * 12)


def record(path: pathlib.Path, number: int, n_turns: int, n_deltas: int, per_read: int) -> None:
    recording = Recording()
    client = recording.client(seed=f"{number + 1:032x}")
    for turn in range(n_turns):
        client.turn(asked(number, turn), say=said(turn, n_deltas, per_read), **FIELDS)
    path.write_bytes(recording.content)


def fixtures(folder: pathlib.Path, asked_for: argparse.Namespace) -> list[pathlib.Path]:
    paths = [folder / f"{number}.jsonl" for number in range(asked_for.fixtures)]
    for number, path in enumerate(paths):
        if not path.exists():
            record(path, number, asked_for.turns, asked_for.deltas, asked_for.per_read)
    return paths


class Stub:
    """A stub's process, from its start."""

    def __init__(self, paths: list[pathlib.Path], rules: str) -> None:
        command = [sys.executable, "-m", "turntape", "stub", *map(str, paths), "--port", "0"]
        began = time.perf_counter()
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump([rules] if rules else [], file)
            file.flush()
            self.process = subprocess.Popen(
                [*command, "--rules", file.name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            assert self.process.stdout is not None
            line = self.process.stdout.readline()
        self.started_s = time.perf_counter() - began
        self.url = line.split()[-1].replace("http://", "ws://").rstrip("/").removesuffix("/v1") + "/v1/responses"

    @property
    def cpu_s(self) -> float:
        """CPU time of the process so far."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def rss_mb(self) -> float:
        """Resident memory of the whole process."""
        pages = int(pathlib.Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def stop(self) -> None:
        self.process.terminate()
        self.process.communicate()


@contextmanager
def running(paths: list[pathlib.Path], rules: str) -> Iterator[Stub]:
    stub = Stub(paths, rules)
    try:
        yield stub
    finally:
        stub.stop()


def turn(socket: ClientConnection, number: int, turn: int, last: str | None) -> dict[str, Any]:
    """Ask for a turn; its last event."""
    body = {"type": "response.create", "model": "m", "store": False, "input": [asked(number, turn)], **FIELDS}
    socket.send(json.dumps(body | ({"previous_response_id": last} if last else {})))
    while True:
        event: dict[str, Any] = json.loads(socket.recv())
        if event["type"] in ("response.completed", "error"):
            return event


def session(url: str, number: int, n_turns: int) -> None:
    """Play a session."""
    with connect(url, max_size=None) as socket:
        last = None
        for n in range(n_turns):
            event = turn(socket, number, n, last)
            assert event["type"] == "response.completed", event
            last = event["response"]["id"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fixtures", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--deltas", type=int, default=60)
    parser.add_argument("--per-read", type=int, default=3, help="deltas in one read of the backend")
    parser.add_argument("--rules", default="", help="name of a preset that holds for every fixture")
    parser.add_argument("--keep", type=pathlib.Path)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = wanted.keep or pathlib.Path(temporary)
        folder.mkdir(exist_ok=True, parents=True)
        paths = fixtures(folder, wanted)
        size = max(path.stat().st_size for path in paths)
        starts, cpu, memory, firsts = [], [], [], []
        for n in range(5):
            with running(paths, wanted.rules) as stub:
                starts.append(stub.started_s)
                cpu.append(stub.cpu_s)
                memory.append(stub.rss_mb)
                before = stub.cpu_s
                session(stub.url, (n * 211) % len(paths), 1)
                firsts.append(stub.cpu_s - before)
        with running(paths, wanted.rules) as stub:
            session(stub.url, 0, 1)
            others, before = range(1, len(paths), max(1, len(paths) // 100)), stub.cpu_s
            for number in others:
                session(stub.url, number, wanted.turns)
            session_s, after_mb = (stub.cpu_s - before) / len(others), stub.rss_mb
            misses = []
            for _ in range(2):
                before = stub.cpu_s
                with connect(stub.url, max_size=None, open_timeout=None, close_timeout=None) as socket:
                    assert turn(socket, -1, 0, None)["type"] == "error"
                misses.append(stub.cpu_s - before)
            all_mb = stub.rss_mb
    median = statistics.median
    print(
        f"{len(paths)} fixtures of {wanted.turns} turns with {wanted.deltas} deltas, at most {size / 1000:.0f} KB each"
    )
    print(f"rules: {wanted.rules or 'none'}")
    print(f"start: {median(starts):.2f} s, of which {median(cpu):.2f} s of CPU time; {median(memory):.0f} MB")
    print(
        f"CPU time of the first request: {median(firsts):.2f} s; of each of {len(others)} other sessions: {session_s:.3f} s"
    )
    print(f"CPU time of the first miss: {misses[0]:.1f} s; of the next: {misses[1]:.2f} s")
    print(f"memory after those sessions: {after_mb:.0f} MB; after the misses: {all_mb:.0f} MB")


if __name__ == "__main__":
    main()
