"""Instant replay beside aimock's: turns a second of both, with one client, one conversation, on one socket and on fifty.

    python tests/bench/stub_aimock.py [--turns 40] [--deltas 60] [--repeat 5]

In every turn the client sends the output of a tool call and is told of the next call; its arguments come in one delta, or in
as many as `--deltas` says. Both servers are started for each measurement, one after the other, on one CPU, and the
client is on another. aimock answers by the model's name alone; the stub compares each conversation as always. Prints
medians, the ratio, and the CPU time that a turn takes each server, first the stub's. aimock is the version that the tests install.
"""

import argparse
import asyncio
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from websockets.asyncio.client import connect

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))  # the tests' own helpers

import programs
from taped import Recording, output, user

from turntape.core.seam import Arguments, Increment, ToolCall

PIECE = "word "
OUTPUT = "a line of output\n" * 20


def pieces(n_deltas: int) -> list[str]:
    """Arguments in deltas of five characters, the first of which may be the whole."""
    return ['{"a":', *['"    '] * (n_deltas > 1), *[PIECE] * (n_deltas - 3), '   "}'] if n_deltas > 2 else ['{"a":"b"}']


def record(path: pathlib.Path, n_turns: int, n_deltas: int) -> None:
    recording = Recording()
    client = recording.client()
    for turn in range(n_turns):
        arguments: list[tuple[Increment, ...]] = [(Arguments(text),) for text in pieces(n_deltas)]
        new = output(f"call_{turn - 1}", OUTPUT) if turn else user("Begin.")
        client.turn(new, say=((ToolCall(f"call_{turn}", "read"),), *arguments), tools=[])
    path.write_bytes(recording.content)


def for_aimock(path: pathlib.Path, n_deltas: int) -> None:
    texts = pieces(n_deltas)
    response = {"toolCalls": [{"name": "read", "arguments": "".join(texts)}]}
    fixture = {"match": {"model": "m"}, "response": response, "chunkSize": max(map(len, texts))}
    path.write_text(json.dumps({"fixtures": [fixture]}))


@contextmanager
def serving(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    pinned = ["taskset", "-c", "0"] if shutil.which("taskset") else []
    process = subprocess.Popen([*pinned, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


@contextmanager
def stub(folder: pathlib.Path, n_turns: int, n_deltas: int) -> Iterator[tuple[str, int]]:
    record(folder / "fix.jsonl", n_turns, n_deltas)
    options = ["--runs", "any", "--port", "0"]
    with serving([sys.executable, "-m", "turntape", "stub", str(folder / "fix.jsonl"), *options]) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1].partition("://")[2].partition("/")[0], process.pid


@contextmanager
def aimock(folder: pathlib.Path, n_turns: int, n_deltas: int) -> Iterator[tuple[str, int]]:
    program = programs.npm_program("@copilotkit/aimock", programs.AIMOCK, "llmock")
    fixtures = folder / "aimock"
    fixtures.mkdir()
    for_aimock(fixtures / "f.json", n_deltas)
    port = 20_000 + os.getpid() % 20_000
    with serving([str(program), "-p", str(port), "-f", str(fixtures), "--log-level", "silent"]) as process:
        address = f"127.0.0.1:{port}"
        for _ in range(100):
            try:
                urllib.request.urlopen(f"http://{address}/health", timeout=5).close()
                break
            except urllib.error.HTTPError:
                break
            except OSError:
                time.sleep(0.1)
        yield address, process.pid


def cpu_s(pid: int) -> float:
    """CPU time of a process so far."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def session(url: str, n_turns: int, times: list[float], n_events: list[int]) -> None:
    headers = {"Authorization": "Bearer x"}
    async with connect(url, max_size=None, additional_headers=headers) as socket:
        last: dict[str, Any] | None = None
        for _ in range(n_turns):
            new = user("Begin.") if last is None else output(last["output"][-1]["call_id"], OUTPUT)
            body = {"type": "response.create", "model": "m", "store": False, "tools": [], "input": [new]}
            began = time.perf_counter()
            await socket.send(json.dumps(body | ({"previous_response_id": last["id"]} if last else {})))
            while True:
                text = await socket.recv(decode=False)
                n_events[0] += 1
                if b'"response.completed"' in text[:400]:
                    break
                assert b'"error"' not in text[:40], text
            times.append(time.perf_counter() - began)
            last = json.loads(text)["response"]


async def load(address: str, pid: int, n_sockets: int, n_turns: int) -> tuple[float, float, int]:
    """Turns a second, CPU seconds of the server for a turn, and events of a turn."""
    url, times, n_events = f"ws://{address}/v1/responses", list[float](), [0]
    await session(url, n_turns, [], [0])  # whatever is slow once
    began, cpu = time.perf_counter(), cpu_s(pid)
    for _ in range(max(1, 20 // n_sockets)):
        await asyncio.gather(*(session(url, n_turns, times, n_events) for _ in range(n_sockets)))
    return len(times) / (time.perf_counter() - began), (cpu_s(pid) - cpu) / len(times), n_events[0] // len(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--deltas", type=int, default=60)
    parser.add_argument("--repeat", type=int, default=5)
    wanted = parser.parse_args()
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cpus)})
    print("deltas sockets     turntape       aimock   ratio  CPU ms a turn  events")
    for n_deltas in (1, wanted.deltas):
        for n_sockets in (1, 50):
            found: dict[str, list[tuple[float, float, int]]] = {"stub": [], "aimock": []}
            for _ in range(wanted.repeat):
                for name, server in (("stub", stub), ("aimock", aimock)):
                    with (
                        tempfile.TemporaryDirectory() as folder,
                        server(pathlib.Path(folder), wanted.turns, n_deltas) as (address, pid),
                    ):
                        found[name].append(asyncio.run(load(address, pid, n_sockets, wanted.turns)))
            (ours, took, n), (theirs, took_theirs, n_theirs) = (
                [statistics.median(column) for column in zip(*found[name], strict=True)] for name in ("stub", "aimock")
            )
            rates = f"{ours:8.0f} /s  {theirs:8.0f} /s  {ours / theirs:6.2f}"
            print(
                f"{n_deltas:6} {n_sockets:7} {rates}  {took * 1e3:5.2f} {took_theirs * 1e3:5.2f}  {n:.0f} {n_theirs:.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
