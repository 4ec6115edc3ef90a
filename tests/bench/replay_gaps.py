"""How exactly a stub repeats the recorded pauses: the error of every gap between two deltas, through real sockets.

    python tests/bench/replay_gaps.py [--turns 10] [--deltas 200] [--speed recorded] [--seed 1]

A recording is made with gaps drawn from 1 to 60 ms, and played by ``turntape stub`` to a client that notes when each
delta has come. The error of a gap is how much longer or shorter it was than the recorded one, divided by the speed.
Prints the median, the 95th and 99th percentile and the largest, in ms, and how far the last delta of a turn had drifted.
"""

import argparse
import itertools
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from turntape.core.seam import ClientText, Finish, Opened, Sampled, Started, StartSample, Text
from turntape.core.session import Session
from turntape.replay.recorder import Recorder, Tape

DELTA = b"response.output_text.delta"


def body(n: int) -> dict[str, object]:
    return {"model": "bench", "input": f"turn {n}", "store": False, "stream": True}


def record(path: pathlib.Path, n_turns: int, n_deltas: int, seed: int) -> list[list[float]]:
    """Write a recording of POSTs; return the gaps of each turn, in seconds."""
    draw = random.Random(seed)
    tape = Tape.create(path)
    gaps = [[round(draw.uniform(0.001, 0.06), 6) for _ in range(n_deltas - 1)] for _ in range(n_turns)]
    for n, own in enumerate(gaps):
        session = Recorder(Session(), tape)
        session.receive(Opened(seed=f"{n:032x}", wall=1_800_000_000.0, transport="sse"), now=0.0)
        effects = session.receive(ClientText(json.dumps(body(n))), now=0.0)
        [sample_id] = [effect.sample_id for effect in effects if isinstance(effect, StartSample)]
        now = 0.05
        session.receive(Started(sample_id), now=now)
        session.receive(Sampled(sample_id, (Text("word "),)), now=now)
        for gap in own:
            now = round(now + gap, 6)
            session.receive(Sampled(sample_id, (Text("word "),)), now=now)
        session.receive(Sampled(sample_id, (Finish(),)), now=now)
    tape.close()
    return gaps


def arrivals(url: str, n: int) -> list[float]:
    """When each delta of one turn came, in seconds."""
    head = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/responses", json.dumps(body(n)).encode(), head)
    times: list[float] = []
    with urllib.request.urlopen(request) as answer:
        while line := answer.readline():
            if line.startswith(b"event: " + DELTA + b"\n"):
                times.append(time.perf_counter())
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--deltas", type=int, default=200)
    parser.add_argument("--speed", default="recorded", help="recorded, or xN")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    factor = float(options.speed.removeprefix("x")) if options.speed.startswith("x") else 1.0
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "gaps.jsonl")
        gaps = record(path, options.turns, options.deltas, options.seed)
        command = [sys.executable, "-m", "turntape", "stub", str(path), "--port", "0", "--speed", options.speed]
        stub = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert stub.stdout is not None
            url = stub.stdout.readline().removeprefix("listening on ").strip()
            errors_ms: list[float] = []
            drifts_ms: list[float] = []
            for n, own in enumerate(gaps):
                times = arrivals(url, n)
                assert len(times) == options.deltas, f"{len(times)} deltas came"
                got = [after - before for before, after in itertools.pairwise(times)]
                errors_ms += [abs(was - is_ / factor) * 1e3 for was, is_ in zip(got, own, strict=True)]
                drifts_ms.append(abs(times[-1] - times[0] - sum(own) / factor) * 1e3)
        finally:
            stub.terminate()
            stub.wait()
    cuts = statistics.quantiles(errors_ms, n=100)
    print(
        f"{len(errors_ms)} gaps at {options.speed}: error p50 {cuts[49]:.2f} ms, p95 {cuts[94]:.2f} ms, "
        f"p99 {cuts[98]:.2f} ms, max {max(errors_ms):.2f} ms; drift over a turn at most {max(drifts_ms):.2f} ms"
    )


if __name__ == "__main__":
    main()
