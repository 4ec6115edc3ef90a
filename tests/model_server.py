"""A model server that says what a test wants to every path, on loopback, in a thread of its own."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from attrs import define, field

SAYS_OK = (
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"OK"},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}\n\n'
    b"data: [DONE]\n\n"
)
"""A streamed chat completion."""


@define(eq=False)
class ModelServer:
    """What it answers, and what it was asked.

    Attributes:
        answers: status and body by path; a dict or list is JSON, bytes are a stream of events, a string is a web page.
        asked: path, Authorization and body of each request.
        headers: of the same, by names in lower case.
    """

    answers: Mapping[str, tuple[int, Any]]
    asked: list[tuple[str, str, Any]] = field(factory=list)
    headers: list[dict[str, str]] = field(factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, str, bytes]:
        self.headers.append(headers)
        self.asked.append((path, headers.get("authorization", ""), json.loads(body) if body else None))
        status, said = self.answers.get(path, (404, {"error": {"message": "no such route"}}))
        if isinstance(said, bytes):
            return status, "text/event-stream", said
        if isinstance(said, str):
            return status, "text/html", said.encode()
        return status, "application/json", json.dumps(said).encode()


@contextmanager
def model_server(answers: Mapping[str, tuple[int, Any]]) -> Iterator[ModelServer]:
    """Serve until the block ends."""
    server = ModelServer(answers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            status, kind, said = server.answer(self.path, {k.lower(): v for k, v in self.headers.items()}, body)
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        do_POST = do_GET

        def log_message(self, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        server.port = http.server_address[1]
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()


def listing(*names: str, owner: str = "me") -> tuple[int, Any]:
    return 200, {"object": "list", "data": [{"id": name, "object": "model", "owned_by": owner} for name in names]}
