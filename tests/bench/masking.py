"""What masking costs a recording: CPU time for pieces of text, for a request, and for the copy of a session.

    PYTHONPATH=tests python tests/bench/masking.py

Nothing in these is a secret: that is the usual case, and the one that must be cheap. Then medians for a megabyte of texts,
ordinary and such as are made to be slow, and how long a relay looks at a large request before others have their turn.
"""

import json
import statistics
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import orjson
import trio
from taped import Client, user

from turntape.core.seam import ClientText, Sampled, Text
from turntape.core.session import Session
from turntape.replay.masking import EventMasker
from turntape.replay.recorder import Tape
from turntape.replay.relay.intake import Intake
from turntape.replay.relay.masking import Screen
from turntape.replay.relay.tap import TapSession
from turntape.replay.secrets import DEFAULT
from turntape.replay.shadow import copied

WORDS = [" the", " quick", " brown", " fox", " jumps", " over", " it", ","]
TOOLS = [
    {"type": "function", "name": f"t{n}", "description": "does it " * 50, "parameters": {}, "strict": False}
    for n in range(40)
]


ROOT = Path(__file__).parents[2]
ORDINARY = {"prose": "docs/*.md", "code": "replay/*.py", "recordings": "fixtures/*.jsonl"}
HOSTILE = ["a", "=", '"', "sk-", "sk-a1-", "eyJ", "eyJa.", "-----BEGIN ", "://a:", "Bearer a", "api_key=", 'API_KEY="']
MB = 1_000_000


def microseconds(call: Callable[[], object], n: int) -> float:
    start = time.process_time()
    for _ in range(n):
        call()
    return (time.process_time() - start) / n * 1e6


def per_megabyte(text: str) -> float:
    """Median milliseconds."""
    text = (text * (MB // len(text) + 1))[:MB]
    return statistics.median(microseconds(lambda: DEFAULT.text(text), 1) for _ in range(5)) / 1e3


class Steps(trio.abc.Instrument):
    """Measures how long a task holds the loop."""

    longest = _began = 0.0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.longest = max(self.longest, time.thread_time() - self._began)


def relayed(n_chars: int) -> tuple[float, float]:
    """Milliseconds, medians of five, for a request of 8 KB messages that no relay has seen.

    Returns:
        The longest step while it is looked at, and the one in which it is written down.
    """
    text = "".join(path.read_text() for path in sorted(ROOT.glob(ORDINARY["code"])))
    items = [user(f"{n} {text[n * 997 % 200_000 :][:8000]}") for n in range(n_chars // 8000)]
    request = orjson.dumps({"type": "response.create", "input": items}).decode()
    looking, writing = [], []
    for _ in range(5):
        intake = Intake(TapSession(Tape(BytesIO()), Screen(DEFAULT)))
        intake.client(request, at=0.0)
        trio.run(intake.look, instruments=[steps := Steps()])
        looking.append(steps.longest * 1e3)
        writing.append(microseconds(intake.go_on, 1) / 1e3)
    return statistics.median(looking), statistics.median(writing)


def main() -> None:
    masker = EventMasker(DEFAULT)
    one, eight = Sampled("s", (Text(" the"),)), Sampled("s", tuple(map(Text, WORDS)))
    masker.masked(one)
    print(f"a batch of one piece of text: {microseconds(lambda: masker.masked(one), 20_000):.1f} us")
    print(f"a batch of eight:             {microseconds(lambda: masker.masked(eight), 20_000):.1f} us")
    body = {"type": "response.create", "input": [user("hello world, " * 700)], "tools": TOOLS, "model": "m"}
    text = ClientText(json.dumps(body))
    print(f"a request of {len(text.text):,} bytes:   {microseconds(lambda: masker.masked(text), 100):.0f} us")
    client = Client(Session())
    for _ in range(200):
        client.turn(user("hello " * 200), say=((Text("x " * 500),),), tools=TOOLS)
    client.ask(user("more"), tools=TOOLS)
    print(f"a copy of a session in its turn 201: {microseconds(lambda: copied(client.session), 50):.0f} us")

    for name, pattern in ORDINARY.items():
        text_of = "".join(path.read_text() for path in sorted(ROOT.glob(pattern)))
        print(f"a megabyte of {name}: {per_megabyte(text_of):.1f} ms")
    for unit in HOSTILE:
        print(f"a megabyte of {unit!r}: {per_megabyte(unit):.1f} ms")
    for n_mb in (1, 4):
        looking, writing = relayed(n_mb * MB)
        print(
            f"a relayed request of {n_mb} MB: {looking:.1f} ms in the longest step, {writing:.1f} ms to write it down"
        )


if __name__ == "__main__":
    main()
