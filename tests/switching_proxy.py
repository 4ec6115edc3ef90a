"""A TCP proxy that moves a client to a fresh server connection behind its back, so that its chain is gone."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from attrs import define, field

COMPLETED = b'"type":"response.completed"'


@define(eq=False)
class SwitchingProxy:
    """Passes bytes on unchanged. The first client is moved once, when it speaks after ``n_completed`` responses.

    Its handshake is repeated to the server, and the server's answer to that dropped: the client notices nothing,
    and the server knows nothing of the responses before. Later clients are left alone.
    """

    server_port: int
    n_completed: int
    switched: threading.Event = field(init=False, factory=threading.Event)
    _listener: socket.socket = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        first = True
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client, first), daemon=True).start()
                first = False

    def _serve(self, client: socket.socket, may_switch: bool) -> None:
        head, rest = _read_head(client)
        server = self._connect()
        server.sendall(head + rest)
        seen = [b""]
        _pump_in_background(server, client, seen)
        with contextlib.suppress(OSError):
            while chunk := client.recv(65536):
                if may_switch and seen[0].count(COMPLETED) == self.n_completed and not self.switched.is_set():
                    self.switched.set()
                    server.shutdown(socket.SHUT_RD)  # ends the pump without a word to the client
                    server.close()
                    server = self._connect()
                    server.sendall(head)
                    assert _read_head(server)[0].startswith(b"HTTP/1.1 101 ")
                    _pump_in_background(server, client, seen)
                server.sendall(chunk)
        for end in (client, server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.server_port))


def _read_head(end: socket.socket) -> tuple[bytes, bytes]:
    """An HTTP head, and what came after it in the same read."""
    head = b""
    while b"\r\n\r\n" not in head and (chunk := end.recv(65536)):
        head += chunk
    before, mark, after = head.partition(b"\r\n\r\n")
    return before + mark, after


def _pump_in_background(source: socket.socket, target: socket.socket, seen: list[bytes]) -> None:
    """Pass on everything from ``source`` to ``target``, and keep it all in ``seen``."""

    def pump() -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(65536):
                seen[0] += chunk
                target.sendall(chunk)

    threading.Thread(target=pump, daemon=True).start()


@contextmanager
def switching_proxy(server_port: int, *, n_completed: int) -> Iterator[SwitchingProxy]:
    """A proxy in front of the server on this machine's ``server_port``, until the block ends."""
    proxy = SwitchingProxy(server_port, n_completed)
    try:
        yield proxy
    finally:
        proxy.close()
