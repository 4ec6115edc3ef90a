"""How fast recordings verify: fixtures of many turns, made here, on one core.

    python tests/bench/verify.py [--fixtures 1000] [--turns 30] [--deltas 60] [--per-read 1] [--profile]

Each fixture is one agent's session: 5 KB of tools in every request, and in every turn a reasoning item, a tool call and a
text, in a short line for each read of the backend. Prints the size of a fixture, how many `turntape verify` checks in a
second of its CPU time, its start included, and how many the core's sessions alone get through: what limits it.
"""

import argparse
import cProfile
import os
import pathlib
import pstats
import subprocess
import sys
import tempfile
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))  # the tests' own helpers

from taped import Recording, output, user

from turntape.core.seam import Arguments, Increment, Reasoning, Text, ToolCall
from turntape.replay.fixture import Fixture
from turntape.replay.takes import recorded_steps
from turntape.replay.verify import verify

TOOLS = [
    {"type": "function", "name": f"tool_{n}", "description": "What it does. " * 20, "strict": False,
     "parameters": {"type": "object", "properties": {"cmd": {"type": "string", "description": "A command."}}}}
    for n in range(10)
]  # fmt: skip


def said(turn: int, n_deltas: int, per_read: int) -> list[tuple[Increment, ...]]:
    """A third of the deltas reason, a third are text, a third are arguments."""
    third = n_deltas // 3
    reasoning = [Reasoning(f"thought {n} ") for n in range(third)]
    text = [Text(f"word {n} ") for n in range(n_deltas - 2 * third)]
    arguments = [Arguments('{"cmd":"'), *(Arguments(f"arg {n} ") for n in range(third - 2)), Arguments('"}')]
    reads = [tuple(one[n : n + per_read]) for one in (reasoning, text, arguments) for n in range(0, len(one), per_read)]
    first = next(n for n, read in enumerate(reads) if isinstance(read[0], Arguments))
    return [*reads[:first], (ToolCall(f"call_{turn}", "tool_1"),), *reads[first:]]


def played(client: Any, n_turns: int, n_deltas: int, per_read: int) -> None:
    fields = {"tools": TOOLS, "instructions": "You are an agent. " * 100}
    new = user("Do what is to be done.")
    for turn in range(n_turns):
        client.turn(new, say=said(turn, n_deltas, per_read), **fields)
        new = output(f"call_{turn}", f"line of output {turn}\n" * 30)


def content(number: int, n_turns: int, n_deltas: int, per_read: int) -> bytes:
    recording = Recording()
    played(recording.client(seed=f"{number:032x}"), n_turns, n_deltas, per_read)
    return recording.content


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fixtures", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--deltas", type=int, default=60)
    parser.add_argument("--per-read", type=int, default=1, help="deltas in one read of the backend")
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
        read = [Fixture.load(path) for path in paths]
        began = time.process_time()
        for fixture in read:
            for _ in recorded_steps(fixture):
                pass
        core_s = (time.process_time() - began) / len(paths)
        if asked.profile:
            with cProfile.Profile() as profile:
                for path in paths:
                    verify(Fixture.load(path))
            pstats.Stats(profile).sort_stats("tottime").print_stats(30)
    print(f"{asked.fixtures} fixtures of {asked.turns} turns with {asked.deltas} deltas, {size / 1000:.0f} KB each")
    print(f"verified in a second of CPU time: {asked.fixtures / verified_s:.0f}; by the core alone: {1 / core_s:.0f}")


if __name__ == "__main__":
    main()
