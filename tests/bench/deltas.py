"""What one delta costs: the scripted backend flat out, through a real server and real sockets.

    python tests/bench/deltas.py [--sessions 1,50] [--tokens 20000] [--repeats 5]

The server runs on core 0 and the clients on core 1, which only count bytes until each terminal event.
Prints the median of the repeats: deltas a second over all sessions, and server CPU time for a delta.
"""

import argparse
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

SCRIPT = """models = ["bench"]

[[rule]]
say = [{{ text = "{text}" }}]
"""
HANDSHAKE = (
    b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
CREATE = b'{"type":"response.create","model":"bench","store":false,"input":"go"}'
TERMINAL = b'{"type":"response.completed"'


def pin(core: int, pid: int = 0) -> None:
    if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > core:
        os.sched_setaffinity(pid, {core})


def start_server(folder: str, n_tokens: int, *options: str) -> tuple[subprocess.Popen[str], int]:
    path = pathlib.Path(folder, "bench.toml")
    path.write_text(SCRIPT.format(text="word " * n_tokens))
    server = subprocess.Popen(
        [sys.executable, "-m", "turntape", "serve", "--port", "0", "--store", "memory",
         "--backend", f"scripted:{path}", *options],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    pin(0, server.pid)
    assert server.stdout is not None
    for line in server.stdout:
        if line.startswith("listening on "):
            return server, int(line.rsplit(":", 1)[1].split("/")[0])
    raise RuntimeError("the server did not start")


def cpu_s(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Client:
    """One socket that asks once for every repeat and reads to the terminal event."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.sendall(HANDSHAKE)
        received = b""
        while b"\r\n\r\n" not in received:
            received += self.socket.recv(4096)

    def turn(self) -> int:
        """Deltas of one response."""
        self.socket.sendall(b"\x81" + bytes((0x80 | len(CREATE),)) + b"\0\0\0\0" + CREATE)
        n, tail = 0, b""
        while True:
            received = self.socket.recv(1 << 18)
            window = tail + received
            n += window.count(b"output_text.delta") - tail.count(b"output_text.delta")
            tail = window[-32:]
            if TERMINAL in window:
                while not window.endswith(b"}}"):
                    window = self.socket.recv(1 << 18)
                return n


def measure(port: int, pid: int, n_sessions: int) -> tuple[float, float]:
    """Deltas a second, and server CPU microseconds for a delta."""
    clients = [Client(port) for _ in range(n_sessions)]
    counts: list[int] = []
    threads = [threading.Thread(target=lambda client=client: counts.append(client.turn())) for client in clients]
    began, began_cpu = time.perf_counter(), cpu_s(pid)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds, cpu = time.perf_counter() - began, cpu_s(pid) - began_cpu
    for client in clients:
        client.socket.close()
    return sum(counts) / seconds, cpu / sum(counts) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", default="1,50")
    parser.add_argument("--tokens", type=int, default=20_000, help="tokens of one response, divided by the sessions")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--record", action="store_true", help="with the recorder on")
    arguments = parser.parse_args()
    pin(1)
    for n_sessions in map(int, arguments.sessions.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            n_tokens = max(2000, arguments.tokens // n_sessions)
            options = ["--record", f"{folder}/taped"] if arguments.record else []
            server, port = start_server(folder, n_tokens, *options)
            try:
                measure(port, server.pid, 1)  # warm
                runs = [measure(port, server.pid, n_sessions) for _ in range(arguments.repeats)]
            finally:
                server.terminate()
                server.wait()
        rates, costs = zip(*runs, strict=True)
        print(
            f"{n_sessions:3d} sessions: {statistics.median(rates):9,.0f} deltas/s "
            f"({min(rates):,.0f} to {max(rates):,.0f}), {statistics.median(costs):.2f} us of server CPU for a delta"
        )


if __name__ == "__main__":
    main()
