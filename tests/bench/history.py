"""What a turn costs a server at 1k and at 100k tokens of history, over WebSocket, with its tools sent again each time.

taskset -c 1 python tests/bench/history.py [--backends scripted,chat,tokens] [--rounds N] [--profile DIR]
taskset -c 1 python tests/bench/history.py --caches

The server runs on CPU 0 in a process of its own, the client and a model server without prefill elsewhere. A round asks
one turn of each connection in turn; every measured turn continues the same response, so that histories stay as long as
they are. Reported are medians: time from request to first delta and to the end, and the server's own CPU time.

With --caches the rounds are between two servers on ``tokens``, one of which renders all of a conversation and its tools
anew for each request.
"""

import argparse
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import trio
from attrs import define, field
from websockets.sync.client import ClientConnection, connect

sys.path.insert(0, str(Path(__file__).parent.parent))

SERVER_CPU = 0
BYTES_PER_TOKEN = 4
N_SHORT, N_LONG = 1_000, 100_000
OUTPUT_BYTES = 1000
"""Of each tool output in the history: some 400 turns are 100k tokens."""

PARAMETERS = {
    "type": "object",
    "properties": {f"field_{n}": {"type": "string", "description": "What it is. " * 12} for n in range(5)},
}
TOOLS = [
    {"type": "function", "name": f"tool_{n}", "description": "d" * 100, "parameters": PARAMETERS} for n in range(20)
]
INSTRUCTIONS = "You are a careful agent. " * 600
SCRIPT = '[[rule]]\nsay = [{ text = "On it." }, { call = "tool_1", arguments = { field_0 = "a" } }]\n'


# --- a model server that answers at once ----------------------------------------------------------------------


def answers() -> dict[str, bytes]:
    """The body of each route's answer: a call of a tool."""
    from chat_server import DONE, call, chunk, sse
    from token_server import Voice, calling, marked

    ids = marked(calling("tool_1", '{"field_0":"a"}'))
    voice = Voice("vllm", 1)
    said = sse(chunk(content="On it."), chunk(tool_calls=[call(0, "call_1", "tool_1", '{"field_0":"a"}')]))
    return {
        "/v1/chat/completions": said + sse(chunk("tool_calls")) + DONE,
        "/v1/completions": voice.chunk(ids) + voice.end(),
        "/v1/models": orjson.dumps({"data": [{"id": "m", "root": "openai/gpt-oss-20b"}]}),
        "/version": orjson.dumps({"version": "0.33.0"}),
    }


def serve_model() -> None:
    """Reads each request to its end and looks at nothing but its path."""
    known = answers()

    def converse(client: socket.socket) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        received = b""
        while True:
            while b"\r\n\r\n" not in received:
                if not (more := client.recv(1 << 16)):
                    return
                received += more
            head, _, rest = received.partition(b"\r\n\r\n")
            path = head.split(b" ", 2)[1].decode()
            length = re.search(rb"(?i)content-length: *(\d+)", head)
            missing = (int(length[1]) if length else 0) - len(rest)
            while missing > 0:
                missing -= len(client.recv(min(missing, 1 << 20)))
            received = b""
            status, body = (b"200 OK", known[path]) if path in known else (b"404 Not Found", b"{}")
            kind = b"text/event-stream" if "completions" in path else b"application/json"
            fields = b"content-type: %b\r\ncontent-length: %d" % (kind, len(body))
            client.sendall(b"HTTP/1.1 %b\r\n%b\r\n\r\n%b" % (status, fields, body))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            threading.Thread(target=converse, args=(listener.accept()[0],), daemon=True).start()


# --- the server under test ------------------------------------------------------------------------------------


@contextmanager
def process(*command: str, cpu: int | None = None, **environ: str) -> Iterator[tuple[int, str]]:
    """Its id and the first line that it says."""
    pinned = ["taskset", "-c", str(cpu), *command] if cpu is not None else [*command]
    streams: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(pinned, env={**os.environ, **environ}, **streams) as running:
        try:
            assert running.stdout is not None
            yield running.pid, running.stdout.readline()
        finally:
            running.send_signal(signal.SIGTERM)


def cpu_s(pid: int) -> float:
    """Seconds of CPU that all threads of the process have had."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


@contextmanager
def server(backend: str, folder: Path, profile: Path | None, environ: dict[str, str]) -> Iterator[tuple[int, str]]:
    """Its process id and WebSocket URL."""
    script = folder / "script.toml"
    script.write_text(SCRIPT)
    with process(sys.executable, __file__, "--serve-model") as (_, port):
        name = {
            "scripted": f"scripted:{script}",
            "chat": f"chat+http://127.0.0.1:{port.strip()}/v1",
            "tokens": f"tokens+http://127.0.0.1:{port.strip()}/v1",
        }[backend]
        profiled = ["-m", "cProfile", "-o", str(profile / f"{backend}.prof")] if profile is not None else []
        command = [sys.executable, *profiled, "-m", "turntape", "serve", "--port", "0", "--store", "memory"]
        with process(*command, "--backend", name, cpu=SERVER_CPU, **environ) as (pid, said):
            yield pid, said.split()[-1].replace("http:", "ws:") + "/responses"


async def serve_tokens(url: str, *, keeps: bool) -> None:
    from serving import listening

    from turntape.transport.backends.tokens import TokensBackend

    async with listening(TokensBackend(url, keeps=keeps)) as port:
        print(f"http://127.0.0.1:{port}/v1", flush=True)
        await trio.sleep_forever()


@contextmanager
def token_servers() -> Iterator[list[tuple[int, str]]]:
    """Process id and WebSocket URL of a server that keeps what it rendered, and of one that does not."""
    with process(sys.executable, __file__, "--serve-model") as (_, port):
        ours = (sys.executable, __file__, "--serve-tokens", f"http://127.0.0.1:{port.strip()}/v1")
        with process(*ours, cpu=SERVER_CPU) as keeps, process(*ours, "--forgets", cpu=SERVER_CPU) as forgets:
            yield [(pid, said.strip().replace("http:", "ws:") + "/responses") for pid, said in (keeps, forgets)]


# --- a client -------------------------------------------------------------------------------------------------


@define(eq=False)
class Agent:
    """A connection whose conversation has some length."""

    ws: ClientConnection
    base: str = ""
    call_id: str = ""
    n_tokens: int = 0
    firsts: list[float] = field(factory=list)
    wholes: list[float] = field(factory=list)
    cpus: list[float] = field(factory=list)

    def grow(self, n_tokens: int) -> None:
        words = random.Random(n_tokens)
        while not self.base or self.n_tokens < n_tokens:
            text = " ".join(f"word{words.randrange(10_000)}" for _ in range(OUTPUT_BYTES // 9))
            ended = self._turn(self._output(text) if self.base else "Begin.", None)[2]["response"]
            self.base, self.call_id = ended["id"], ended["output"][-1]["call_id"]
            self.n_tokens += (len(text) + len(orjson.dumps(ended["output"]))) // BYTES_PER_TOKEN

    def fill(self, n_tokens: int) -> None:
        """The same in one request, for a server to which history is dear."""
        words, items = random.Random(n_tokens), list[dict[str, Any]]()
        while self.n_tokens < n_tokens:
            text = " ".join(f"word{words.randrange(10_000)}" for _ in range(OUTPUT_BYTES // 9))
            call = {"type": "function_call", "call_id": f"call_{len(items)}", "name": "tool_1", "arguments": "{}"}
            items += [call, {"type": "function_call_output", "call_id": call["call_id"], "output": text}]
            self.n_tokens += len(orjson.dumps(items[-2:])) // BYTES_PER_TOKEN
        ended = self._turn(items, None)[2]["response"]
        self.base, self.call_id = ended["id"], ended["output"][-1]["call_id"]

    def measure(self, pid: int) -> None:
        before = cpu_s(pid)
        first, whole, _ = self._turn(self._output("done"), "measured")
        time.sleep(0.002)  # what follows the last event is the turn's too
        self.firsts.append(first)
        self.wholes.append(whole)
        self.cpus.append(cpu_s(pid) - before)

    def _output(self, text: str) -> list[dict[str, Any]]:
        return [{"type": "function_call_output", "call_id": self.call_id, "output": text}]

    def _turn(self, new: str | list[dict[str, Any]], stream_id: str | None) -> tuple[float, float, dict[str, Any]]:
        request = {
            "type": "response.create",
            "model": "m",
            "instructions": INSTRUCTIONS,
            "input": new,
            "tools": TOOLS,
            "previous_response_id": self.base or None,
            "store": False,
            "stream_id": stream_id,
        }
        encoded = orjson.dumps(request).decode()
        begun, first = time.perf_counter(), None
        self.ws.send(encoded)
        while True:
            event = self.ws.recv()
            if first is None and '.delta"' in event[:80]:
                first = time.perf_counter() - begun
            if event.startswith('{"type":"response.completed"'):
                return first or 0.0, time.perf_counter() - begun, orjson.loads(event)
            assert '"type":"error"' not in event[:40] and "response.failed" not in event[:40], event[:500]


def measured(pid: int, url: str, n_rounds: int) -> tuple[Agent, Agent]:
    with connect(url, compression=None, max_size=None) as one, connect(url, compression=None, max_size=None) as other:
        short, long = Agent(one), Agent(other)
        short.grow(N_SHORT)
        long.grow(N_LONG)
        for n in range(n_rounds + 2):
            for agent in (short, long) if n % 2 else (long, short):
                agent.measure(pid)
        return short, long


def compare_caches(n_rounds: int) -> None:
    with token_servers() as servers, ExitStack() as stack:
        agents = [Agent(stack.enter_context(connect(url, compression=None, max_size=None))) for _, url in servers]
        for agent in agents:
            agent.fill(N_LONG)
        for _ in range(n_rounds + 2):
            for agent, (pid, _) in zip(agents, servers, strict=True):
                agent.measure(pid)
        kept, anew = (1000 * statistics.median(agent.firsts[2:]) for agent in agents)
        print(f"first delta at 100k: {kept:.2f} ms, {anew:.2f} ms without caches: {1 - kept / anew:.0%} less")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", default="scripted,chat,tokens")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--profile", type=Path, help="write the server's cProfile there; timings then mean nothing")
    parser.add_argument("--caches", action="store_true", help="compare servers with and without caches")
    parser.add_argument("--serve-model", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--serve-tokens", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--forgets", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_model:
        serve_model()
    if options.serve_tokens:
        trio.run(partial(serve_tokens, options.serve_tokens, keeps=not options.forgets))
    if options.caches:
        compare_caches(options.rounds)
        return
    for backend in options.backends.split(","):
        with (
            tempfile.TemporaryDirectory() as folder,
            server(backend, Path(folder), options.profile, {}) as (pid, url),
        ):
            short, long = measured(pid, url, options.rounds)
            for name in ("firsts", "wholes", "cpus"):
                a, b = (1000 * statistics.median(getattr(agent, name)[2:]) for agent in (short, long))
                what = {"firsts": "first delta", "wholes": "whole turn", "cpus": "server CPU"}[name]
                print(f"{backend:<8} {what:<11} {a:6.2f} ms at 1k, {b:6.2f} ms at 100k: {b / a:.2f} times", flush=True)


if __name__ == "__main__":
    main()
