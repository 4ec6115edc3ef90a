"""What each design costs a server: a long recorded session, driven on a script without tool time.

python tests/bench/designs.py [--turns N]
"""

import argparse
import sys
from pathlib import Path
from statistics import median
from typing import Any

import trio

sys.path.insert(0, str(Path(__file__).parent.parent))

from taped import TOOLS, Recording, output, user

from turntape.core.seam import Arguments, Text, ToolCall
from turntape.replay.drive.course import Course, ToolTime
from turntape.replay.drive.driving import drive_backend
from turntape.replay.drive.report import Setup, TurnVerdict
from turntape.replay.drive.run import Run, Settings
from turntape.transport.backends.script import Script
from turntape.transport.backends.scripted import ScriptedBackend

SCRIPT = 'first_token_s = 0\n[[rule]]\nsay = [{ text = "One two three four five six seven eight nine ten." }]\n'
AT_THE_ENDS = 20


def session(n_turns: int) -> Recording:
    """A call and 2 KB of its output in each turn, 60 deltas, and 20 KB of tools in each request."""
    parameters = {"type": "object", "properties": {"x": {"type": "string", "description": "y" * 900}}}
    tools: list[Any] = [{"type": "function", "name": f"tool_{n}", "parameters": parameters} for n in range(20)]
    recording = Recording()
    client = recording.client()
    for n in range(n_turns):
        new = output(f"call_{n - 1}", "x" * 2000) if n else user("Begin.")
        call = (ToolCall(f"call_{n}", "sh"), Arguments(f'{{"cmd":"ls {n}"}}'))
        client.turn(new, say=(*((Text("word "),) for _ in range(60)), call), tools=[*tools, *TOOLS])
    return recording


class Quiet:
    def turn(self, run: Run, verdict: TurnVerdict) -> None: ...

    def run(self, run: Run) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=200)
    n_turns = parser.parse_args().turns
    course = Course.of(session(n_turns).fixture)
    for design in ("create", "append", "http"):
        settings = Settings(design=design, tool_time=ToolTime(0.0))
        backend = ScriptedBackend(Script.parse(SCRIPT))
        report = trio.run(drive_backend, [course], settings, Setup(turntape="", target="script"), backend, Quiet())
        [run] = report.timings.runs
        before = [1000 * (turn.overhead_before_s or 0.0) for turn in run.turns]
        first, last = median(before[:AT_THE_ENDS]), median(before[-AT_THE_ENDS:])
        print(
            f"{design:<7} overhead before the first token: {first:5.1f} ms, later {last:5.1f} ms; in all {run.wall_s:.2f} s"
        )


if __name__ == "__main__":
    main()
