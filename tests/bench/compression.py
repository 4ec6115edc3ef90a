"""What permessage-deflate saves and costs: bytes of a real Codex session, CPU per message, memory per connection.

    TURNTAPE_TEST_CACHE=DIR taskset -c 1 python tests/bench/compression.py [--turns 20] [--repeats 5] [--connections 200]

Records a Codex session of so many tool calls with a server of its own, and compresses what went over the wire again with
each choice of level, window and memory: every choice once in each round, medians of the rounds. Then starts a server with
compression off and on, and takes its memory with idle connections, and with the same after a turn of 20 KB of tools each.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

sys.path.insert(0, str(Path(__file__).parents[1]))

import codex_client
import programs
import websockets.sync.client
from codex_client import Workspace, execute
from running import Running, turntape
from serving import masked
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory
from wsproto.connection import Connection, ConnectionType
from wsproto.frame_protocol import FrameDecoder, Opcode, RsvBits

from turntape.core.seam import ClientText, Effect, Event, Send
from turntape.core.session import Session
from turntape.replay.fixture import Fixture
from turntape.replay.verify import verify
from turntape.transport import compression
from turntape.transport.compression import Deflate, Inflate, Memories
from turntape.transport.websocket import RECEIVE_BYTES

SCRIPT = """
models = ["lab-model"]

[[rule]]
when = {{ max_outputs = {last} }}
say = [{{ call = "exec_command", arguments = {{ cmd = "for i in $(seq 60); do echo \\"step {{n_outputs}} line $i of $RANDOM: the quick brown fox jumps\\"; done" }} }}]

[[rule]]
say = [{{ text = "Done.", phase = "final_answer" }}]
"""

TURN = """
[[rule]]
say = [{ text = "%s" }]
"""

CHOICES = [(level, bits, memory) for level in (1, 6) for bits in (12, 14, 15) for memory in (5, 8)]


class Spy(Session):
    """A session that writes down what its client said and what it was sent."""

    up: ClassVar[list[bytes]] = []
    down: ClassVar[list[bytes]] = []

    def receive(self, event: Event, *, now: float) -> list[Effect]:
        if isinstance(event, ClientText):
            self.up.append(event.text.encode())
        effects = super().receive(event, now=now)
        for effect in effects:
            if isinstance(effect, Send):
                self.down += effect.data
        return effects


def record(n_turns: int) -> None:
    """Fill ``Spy`` with both sides of a session of a real Codex."""
    codex_client.PATIENCE_S = 30.0 + 3.0 * n_turns
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "script.toml").write_text(SCRIPT.format(last=n_turns - 1))
        recording = folder / "seam.jsonl"
        words = ("record", "--out", recording, "--backend", f"scripted:{folder / 'script.toml'}")
        with turntape(*words, folder=folder / "1") as server:
            workspace = Workspace(folder / "work")
            workspace.point_at(server.url)
            ran = execute(programs.codex(), workspace, "Do all the steps.")
            assert (ran.code, ran.complaints) == (0, []), ran.output + ran.errors
            assert server.stop() == 0, server.errors
        verify(Fixture.load(recording), Spy)


def compress(messages: list[bytes], make: Callable[[], "zlib._Compress"], *, keeps: bool) -> list[bytes]:
    """Each message's payload, by a client that compresses everything."""
    compressor, bodies = make(), list[bytes]()
    for message in messages:
        if not keeps:
            compressor = make()
        bodies.append((compressor.compress(message) + compressor.flush(zlib.Z_SYNC_FLUSH))[:-4])
    return bodies


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    made = work()
    return time.process_time() - began, made


def deflated(*, level: int, bits: int, memory: int, keeps: bool) -> list[bytes]:
    compression.LEVEL, compression.MEMORY_LEVEL = level, memory
    sender = Deflate(bits, keeps, Memories())
    return [sender.message(message) or message for message in Spy.down]


def inflated(bodies: list[bytes], *, keeps: bool) -> int:
    inflate = Inflate(keeps_window=keeps, max_bytes=1 << 26, whole=True)
    decoder, n = FrameDecoder(client=False), 0
    for body in bodies:
        inflate.frame_inbound_header(decoder, Opcode.TEXT, RsvBits(True, False, False), len(body))
        for part in (inflate.frame_inbound_payload_data(decoder, body), inflate.frame_inbound_complete(decoder, True)):
            assert isinstance(part, bytes)
            n += len(part)
    return n


def resident_kb(pid: int | str = "self") -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def state_kb(level: int, bits: int, memory: int) -> float:
    """Memory of one compressor that has been used, in a process of its own."""
    code = (
        f"import sys, zlib; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "rss = lambda: int(open('/proc/self/status').read().partition('VmRSS:')[2].split()[0])\n"
        "import random; body = random.Random(7).randbytes(30000).hex().encode(); kept = []; began = rss()\n"
        f"for _ in range(400):\n    kept.append(zlib.compressobj({level}, zlib.DEFLATED, -{bits}, {memory}))\n"
        "    kept[-1].compress(body); kept[-1].flush(zlib.Z_SYNC_FLUSH)\n"
        "print((rss() - began) / 400)"
    )
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def choices(n_repeats: int) -> None:
    n_up, n_down = sum(map(len, Spy.up)), sum(map(len, Spy.down))
    print(f"Codex: {len(Spy.up)} messages up, {n_up:,} bytes; {len(Spy.down)} down, {n_down:,} bytes")
    for keeps in (True, False):
        bodies = compress(Spy.up, lambda: zlib.compressobj(6, zlib.DEFLATED, -15), keeps=keeps)
        took = statistics.median(timed(lambda b=bodies, k=keeps: inflated(b, keeps=k))[0] for _ in range(n_repeats))
        assert inflated(bodies, keeps=keeps) == n_up
        what = "with" if keeps else "without"
        print(
            f"  up, {what} takeover: {sum(map(len, bodies)):,} bytes; {took / len(bodies) * 1e6:.0f} us a message to inflate"
        )
    print("  down: level, window bits, memory level: bytes with takeover, without; us a message; KB of memory")
    times: dict[Any, list[float]] = {choice: [] for choice in CHOICES}
    sizes: dict[Any, tuple[int, int]] = {}
    for _ in range(n_repeats):
        for choice in CHOICES:
            level, bits, memory = choice
            took, bodies = timed(lambda c=choice: deflated(level=c[0], bits=c[1], memory=c[2], keeps=True))
            times[choice].append(took)
            if choice not in sizes:
                alone = deflated(level=level, bits=bits, memory=memory, keeps=False)
                sizes[choice] = sum(map(len, bodies)), sum(map(len, alone))
    for choice in CHOICES:
        per_message = statistics.median(times[choice]) / len(Spy.down) * 1e6
        kept, alone = sizes[choice]
        print(f"  {choice}: {kept:,} {alone:,}; {per_message:.1f} us; {state_kb(*choice):.0f} KB")


def forgetting() -> None:
    """The choice of the server, were it to hold no memory between two responses."""
    sender, n = Deflate(compression.MAX_BITS, True, Memories()), 0
    for message in Spy.down:
        n += len(sender.message(message) or message)
        if message.startswith(b'{"type":"response.completed"'):
            sender.forget()
    print(f"  down, forgetting at the end of each response: {n:,} bytes")


def longest_step(n_repeats: int) -> None:
    """How long one read of a bomb takes."""
    compressor = zlib.compressobj(9, wbits=-15)
    head = compressor.compress(b" " * (1 << 20)) + compressor.flush(zlib.Z_FULL_FLUSH)
    frame = masked(1, head * 100, rsv=0x40)[:RECEIVE_BYTES]
    times, n = [], 0
    for _ in range(n_repeats):
        inflate = Inflate(keeps_window=True, max_bytes=1 << 26, whole=True)
        protocol = Connection(ConnectionType.SERVER, [inflate])
        protocol.receive_data(frame)
        took, n = timed(lambda p=protocol: sum(len(event.data) for event in p.events()))
        times.append(took)
    print(f"one read of {len(frame):,} bytes that becomes {n:,}: {statistics.median(times) * 1e3:.0f} ms")


def per_connection(n_connections: int) -> None:
    tools = [
        {
            "type": "function",
            "name": f"tool_{n}",
            "description": f"Does thing {n}. " * 60,
            "parameters": {"type": "object"},
        }
        for n in range(20)
    ]
    request = json.dumps({"type": "response.create", "model": "m", "store": False, "input": "Hi", "tools": tools})
    for setting in ("off", "on"):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "script.toml").write_text(TURN % ("word " * 200))
            words = ("serve", "--backend", f"scripted:{folder / 'script.toml'}", "--store", "memory")
            with turntape(*words, "--compression", setting, folder=folder / "1") as server:
                steps = memory_and_cpu(server, request, n_connections)
                idle, used = ((b - a) / n_connections for a, b in pairwise(steps[:3]))
                print(
                    f"compression {setting}: {idle:.1f} KB for a connection, {used:.1f} KB more after a turn of "
                    f"{len(request):,} bytes; {steps[3] * 1e3:.2f} ms of CPU for a turn"
                )


def memory_and_cpu(server: Running, request: str, n_connections: int) -> list[float]:
    """Resident memory with no connection, with all, and after a turn on each, in KB; then CPU seconds of a turn."""
    url = f"{server.url.replace('http', 'ws', 1)}/responses"
    pid = server.process.pid

    def cpu() -> float:
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(ticks[11]) + int(ticks[12])) / 100

    def connect() -> websockets.sync.client.ClientConnection:
        offer = [ClientPerMessageDeflateFactory(client_max_window_bits=True)]  # Codex's
        return websockets.sync.client.connect(url, proxy=None, max_size=None, compression=None, extensions=offer)

    def turn(socket: websockets.sync.client.ClientConnection) -> None:
        socket.send(request)
        while '"type":"response.completed"' not in str(socket.recv()):
            pass

    warnings.simplefilter("ignore", DeprecationWarning)  # the library would have each client closed by a block
    with connect() as first:
        turn(first)  # what is loaded once
        steps: list[float] = [resident_kb(pid)]
        sockets = [connect() for _ in range(n_connections)]
        steps.append(resident_kb(pid))
        began = cpu()
        for socket in sockets:
            turn(socket)
        took = (cpu() - began) / n_connections
        steps += [resident_kb(pid), took]
        for socket in sockets:
            socket.close()
    return steps


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--connections", type=int, default=200)
    options = parser.parse_args()
    record(options.turns)
    level, memory = compression.LEVEL, compression.MEMORY_LEVEL
    choices(options.repeats)
    compression.LEVEL, compression.MEMORY_LEVEL = level, memory
    forgetting()
    per_connection(options.connections)
    longest_step(options.repeats)


if __name__ == "__main__":
    main()
