"""What a relay adds to a message: a small frame to the upstream and its answer back, through the relay and without it.

    python tests/bench/relay.py [--rounds 4000] [--bytes 300]

The upstream answers each WebSocket message with a delta of its own. Direct and relayed rounds take turns in one run, one at
a time, each on a connection that is warm, so that both see the same machine. Prints the median and the 99th percentile
of a round trip, and what the relay adds.
"""

import argparse
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HANDSHAKE = (
    b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
SWITCHED = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: ICX+Yqv66kxgM0FcWaLWlFLwTAI=\r\n\r\n"
)


def frame(payload: bytes, *, masked: bool) -> bytes:
    n = len(payload)
    assert 126 <= n < 1 << 16
    return (
        b"\x81" + bytes(((0x80 if masked else 0) | 126,)) + n.to_bytes(2) + (b"\0\0\0\0" if masked else b"") + payload
    )


def until(connection: socket.socket, n: int) -> bytes:
    received = b""
    while len(received) < n:
        some = connection.recv(65536)
        assert some, "the connection ended"
        received += some
    return received


def upstream(listener: socket.socket, n_asked: int) -> None:
    """Answer on every connection, each message with the next delta."""

    def serve(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = b""
        while b"\r\n\r\n" not in head:
            head += connection.recv(65536)
        connection.sendall(SWITCHED)
        number = 0
        try:
            while True:
                until(connection, n_asked)
                event = (
                    f'{{"type":"response.output_text.delta","sequence_number":{number},"item_id":"msg_0123456789abcdef",'
                    '"output_index":0,"content_index":0,"delta":" word","logprobs":[]}'
                )
                connection.sendall(frame(event.encode(), masked=False))
                number += 1
        except (AssertionError, OSError):
            return

    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


class Client:
    def __init__(self, port: int, asked: bytes) -> None:
        self.asked = asked
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(HANDSHAKE)
        head = b""
        while b"\r\n\r\n" not in head:
            head += self.socket.recv(65536)

    def round(self) -> float:
        """Seconds of one round trip."""
        began = time.perf_counter()
        self.socket.sendall(self.asked)
        head = until(self.socket, 4)
        until_all = 4 + int.from_bytes(head[2:4])
        if len(head) < until_all:
            until(self.socket, until_all - len(head))
        return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4000)
    parser.add_argument("--bytes", type=int, default=300, help="of a message of the client's")
    arguments = parser.parse_args()
    text = b'{"type":"response.create","model":"m","input":"%b"}'
    asked = frame(text % (b"x" * max(100, arguments.bytes - len(text))), masked=True)
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=upstream, args=(listener, len(asked)), daemon=True).start()
    port = listener.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.jsonl")
        command = [sys.executable, "-m", "turntape", "record", "--upstream", f"http://127.0.0.1:{port}/v1"]
        relay = subprocess.Popen(
            [*command, "--out", str(out), "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            assert relay.stdout is not None
            relayed = Client(int(relay.stdout.readline().rsplit(":", 1)[1].split("/")[0]), asked)
            direct = Client(port, asked)
            took: dict[str, list[float]] = {"direct": [], "relayed": []}
            for n in range(arguments.rounds):
                for name, client in (("direct", direct), ("relayed", relayed)):
                    seconds = client.round()
                    if n >= arguments.rounds // 10:  # warm
                        took[name].append(1000 * seconds)
        finally:
            relay.terminate()
            relay.wait()
        n_bytes = out.stat().st_size
    quantiles = {}
    for name, times in took.items():
        quantiles[name] = statistics.median(times), statistics.quantiles(times, n=100)[98]
        print(f"{name:>8}: median {quantiles[name][0]:.3f} ms, p99 {quantiles[name][1]:.3f} ms")
    added = [relayed - direct for relayed, direct in zip(quantiles["relayed"], quantiles["direct"], strict=True)]
    print(
        f"   added: median {added[0]:.3f} ms, p99 {added[1]:.3f} ms ({len(took['direct'])} rounds, {n_bytes} bytes written)"
    )


if __name__ == "__main__":
    main()
