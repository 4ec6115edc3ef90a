"""Agent rollouts in four designs: how long they take, and what of it is not the model.

python tests/bench/rollouts.py [--shape NAME]... [--speed TOKENS_PER_S]... [--rtt MS] [--uplink MBIT] [--slow-start] [--kept]
    [--sessions N] [--repeat N] [--json FILE] [--baseline FILE --max-ratio R]
"""

import argparse
import math
import os
import sys
from pathlib import Path

import trio

import turntape
from turntape.replay.bench.client import DESIGNS
from turntape.replay.bench.measuring import Cell, measure
from turntape.replay.bench.network import Network
from turntape.replay.bench.playing import Playing
from turntape.replay.bench.report import Report, Setup
from turntape.replay.bench.serving import served
from turntape.replay.bench.shapes import SHAPES
from turntape.replay.bench.table import report_table

MBIT = 1e6 / 8


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", choices=[*SHAPES], help="default: codex-typical")
    parser.add_argument(
        "--speed", action="append", type=float, help="tokens/s of the model, 0 is unbounded; default: 0"
    )
    parser.add_argument("--design", action="append", choices=DESIGNS, help="default: all")
    parser.add_argument("--rtt", type=float, default=0.0, help="round trip, in ms")
    parser.add_argument("--uplink", type=float, default=0.0, help="Mbit/s; 0 is without a limit")
    parser.add_argument("--downlink", type=float, default=0.0, help="Mbit/s; 0 is without a limit")
    parser.add_argument("--tls", action="store_true", help="a connection costs another round trip")
    parser.add_argument("--slow-start", action="store_true", help="windows of TCP grow as they do on a long way")
    parser.add_argument("--kept", action="store_true", help="keep the connections of POSTs")
    parser.add_argument("--gap-cap", type=float, default=0.0, help="longest wait for tools and people, in s")
    parser.add_argument("--sessions", type=int, default=1, help="side by side")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--baseline", type=Path)
    parser.add_argument("--max-ratio", type=float, default=1.25)
    return parser.parse_args()


async def bench(asked: argparse.Namespace) -> Report:
    """Server and client on a core each, where there are two."""
    rates = {"up": asked.uplink * MBIT or math.inf, "down": asked.downlink * MBIT or math.inf}
    network = Network(rtt_s=asked.rtt / 1000, tls=asked.tls, slow_start=asked.slow_start, **rates)
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) > 1:
        os.sched_setaffinity(0, {cores[0]})
    found = []
    for speed in asked.speed or [0.0]:
        async with served(speed, core=cores[1] if len(cores) > 1 else None) as server:
            cells = [
                Cell(
                    shape=shape,
                    seed=asked.seed,
                    tokens_per_s=speed,
                    sessions=asked.sessions,
                    playing=Playing(design=design, network=network, cold=not asked.kept, gap_cap_s=asked.gap_cap),
                )
                for shape in asked.shape or ["codex-typical"]
                for design in asked.design or DESIGNS
            ]
            found += await measure(cells, asked.repeat, server, note)
    setup = Setup(
        turntape=turntape.__version__,
        seed=asked.seed,
        repeat=asked.repeat,
        rtt_s=asked.rtt / 1000,
        up_mbit_s=asked.uplink,
        down_mbit_s=asked.downlink,
        tls=asked.tls,
        slow_start=asked.slow_start,
        cold=not asked.kept,
        gap_cap_s=asked.gap_cap,
    )
    return Report(setup=setup, figures=tuple(found))


def note(cell: Cell, n: int) -> None:
    speed = f"{cell.tokens_per_s:g} tokens/s" if cell.tokens_per_s else "unbounded"
    print(f"round {n}: {cell.shape}, {cell.playing.design}, {speed}", file=sys.stderr)


def main() -> int:
    asked = arguments()
    report = trio.run(bench, asked)
    print(report_table(report))
    if asked.json is not None:
        asked.json.write_bytes(report.encode())
    if asked.baseline is None:
        return 0
    worse = report.worse(Report.load(asked.baseline), asked.max_ratio)
    for one in worse:
        print(f"worse: {' '.join(map(str, one.key))}: {one.name} {one.before:g} before, {one.now:g} now")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
