"""How fast recordings verify: fixtures of many turns, made here, on one core.

    python tests/bench/verify.py [--fixtures 1000] [--turns 30] [--deltas 60] [--per-read 4] [--profile]

Each fixture is one agent's session: 5 KB of tools in every request, a tool call in every turn but the last, and before
every fourth call a text. A short line holds what one read of the backend brought: several deltas, as a model's server
that decodes faster than it is read sends them, or one. Prints the size of a fixture, how many `turntape verify` checks in
a second of its CPU time, its start included, and how many the core's sessions alone get through: what limits it.
"""

import argparse
import collections
import cProfile
import gc
import os
import pathlib
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))  # the tests' own helpers

from taped import Recording, output, user

from turntape.core.seam import Arguments, Increment, Text, ToolCall
from turntape.replay.fixture import Fixture
from turntape.replay.takes import recorded_steps
from turntape.replay.verify import verify

TOOLS = [
    {"type": "function", "name": f"tool_{n}", "description": "What it does. " * 20, "strict": False,
     "parameters": {"type": "object", "properties": {"cmd": {"type": "string", "description": "A command."}}}}
    for n in range(10)
]  # fmt: skip


def said(turn: int, n_turns: int, n_deltas: int, per_read: int) -> list[tuple[Increment, ...]]:
    """A tool call; every fourth time a text of a third of the deltas before it; at the end a text alone."""
    last = turn == n_turns - 1
    n_text = n_deltas if last else n_deltas // 3 if turn % 4 == 0 else 0
    text = [Text(f" w{n}") for n in range(n_text)]
    reads = [tuple(text[n : n + per_read]) for n in range(0, n_text, per_read)]
    if last:
        return reads
    arguments = [Arguments('{"cmd":"'), *(Arguments(f" a{n}") for n in range(n_deltas - n_text - 2)), Arguments('"}')]
    calls = [tuple(arguments[n : n + per_read]) for n in range(0, len(arguments), per_read)]
    return [*reads, (ToolCall(f"call_{turn}", "tool_1"),), *calls]


def played(client: Any, n_turns: int, n_deltas: int, per_read: int) -> None:
    fields = {"tools": TOOLS, "instructions": "You are an agent. " * 100}
    new = user("Do what is to be done.")
    for turn in range(n_turns):
        client.turn(new, say=said(turn, n_turns, n_deltas, per_read), **fields)
        new = output(f"call_{turn}", f"line of output {turn}\n" * 15)


def content(number: int, n_turns: int, n_deltas: int, per_read: int) -> bytes:
    recording = Recording()
    played(recording.client(seed=f"{number:032x}"), n_turns, n_deltas, per_read)
    return recording.content


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fixtures", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--deltas", type=int, default=60)
    parser.add_argument("--per-read", type=int, default=4, help="deltas in one read of the backend")
    parser.add_argument("--profile", action="store_true", help="where the time of verify goes")
    asked = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        paths = [pathlib.Path(folder, f"{n}.jsonl") for n in range(min(asked.fixtures, 50))]
        for number, path in enumerate(paths):
            path.write_bytes(content(number + 1, asked.turns, asked.deltas, asked.per_read))
        size = sum(path.stat().st_size for path in paths) / len(paths)
        each = [paths[n % len(paths)] for n in range(asked.fixtures)]
        before = os.times()
        command = [sys.executable, "-m", "turntape", "verify", "--json", *each]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        after = os.times()
        verified_s = after.children_user + after.children_system - before.children_user - before.children_system
        gc.set_threshold(100_000)  # as the command does
        verify_s, core_s = [], []
        for path in paths:
            began = time.process_time()
            fixture = Fixture.load(path)
            verify(fixture)
            checked = time.process_time()
            collections.deque(recorded_steps(fixture), maxlen=0)
            verify_s.append(checked - began)
            core_s.append(time.process_time() - checked)
        if asked.profile:
            with cProfile.Profile() as profile:
                for path in paths:
                    verify(Fixture.load(path))
            pstats.Stats(profile).sort_stats("tottime").print_stats(30)
    print(f"{asked.fixtures} fixtures of {asked.turns} turns with {asked.deltas} deltas, {size / 1000:.0f} KB each")
    medians = [1 / statistics.median(times) for times in (verify_s, core_s)]
    print(f"verified in a second of CPU time: {asked.fixtures / verified_s:.0f} by the command, its start included;")
    print(f"by the median of {len(paths)} fixtures {medians[0]:.0f}, and by the core alone {medians[1]:.0f}")


if __name__ == "__main__":
    main()
