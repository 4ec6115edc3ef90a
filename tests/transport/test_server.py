"""One port, many connections, and the end: on real sockets where the socket is the point."""

import contextlib
import errno
from functools import partial

import pytest
import trio
import trio.testing
from serving import Http, Model, Server, WebSocket, endless, listening, masked

from turntape.core.seam import Finish, Text
from turntape.core.session import Session
from turntape.transport.memory_store import MemoryStore
from turntape.transport.server import ServerSettings, UnsafeHost, serve, serve_connection


def serving(settings, shutdown, backend):
    return partial(serve, settings, new_session=Session, backend=backend, store=MemoryStore(), shutdown=shutdown)


async def connect(port):
    return await trio.open_tcp_stream("127.0.0.1", port)


async def test_both_protocols_on_one_port():
    """HTTP and WebSocket clients are served on the same port, one after the other and side by side."""
    with trio.fail_after(10):
        async with listening(Model()) as port:
            http, ws = Http(await connect(port)), await WebSocket.open(await connect(port))
            await ws.create()
            assert (await http.post(stream=True)).events[-1]["type"] == "response.completed"
            await ws.until("response.completed")
            # a connection that has spoken HTTP may still upgrade
            upgraded = await WebSocket.open(http.stream)
            await upgraded.create()
            await upgraded.until("response.completed")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "example.com"])
async def test_no_key_no_network(host):
    """A host that others can reach is refused without keys, before anything is opened, and says what to do."""
    with pytest.raises(UnsafeHost, match="configure one, or listen on"):
        await serving(ServerSettings(host=host), trio.Event(), Model())()


async def test_a_key_opens_the_network():
    """With a key the server listens wherever it is told."""
    with trio.fail_after(10):
        async with listening(Model(), host="0.0.0.0", keys=frozenset({"k"})) as port:
            reply = await Http(await connect(port)).ask("GET", "/v1/models", authorization="Bearer k")
            assert reply.status == 200


async def test_a_taken_port_is_an_error():
    """A port that another has is an error to whoever starts the server."""
    with trio.fail_after(10):
        async with listening(Model()) as port:
            with pytest.raises(OSError) as caught:
                await serving(ServerSettings(port=port), trio.Event(), Model())()
            assert caught.value.errno == errno.EADDRINUSE


async def test_connections_are_bounded(nursery, autojump_clock):
    """Past the bound a client gets 503 and when to come back, upgrades too; one that leaves makes room."""
    server = Server(nursery, Model(), ServerSettings(max_connections=2))
    one, _two = server.http(), await server.websocket()
    for stream in (server.connect(), server.connect()):
        await stream.send_all(WebSocket.request())
        answer = await stream.receive_some()
        assert answer.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1" in answer and b"slow_down" in answer
        await stream.aclose()
    await one.stream.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert (await server.http().post()).status == 200


async def test_running_out_of_descriptors_is_survived(monkeypatch):
    """A failing accept is waited out: clients that come later are served."""
    accept, failures = trio.SocketListener.accept, [OSError(errno.EMFILE, "too many open files")] * 3

    async def failing(self):
        if failures:
            raise failures.pop()
        return await accept(self)

    monkeypatch.setattr(trio.SocketListener, "accept", failing)
    with trio.fail_after(10):
        async with listening(Model()) as port:
            assert (await Http(await connect(port)).post()).status == 200
    assert not failures


async def test_nothing_leaves_a_connection(nursery, autojump_clock, caplog):
    """A crash below the session ends its own connection and is logged."""

    class Crashing(trio.abc.Stream):
        async def receive_some(self, max_bytes=None):
            raise ZeroDivisionError

        async def send_all(self, data): ...
        async def wait_send_all_might_not_block(self): ...
        async def aclose(self): ...

    await serve_connection(Server(nursery, Model()).service, Crashing())
    assert "connection crashed" in caplog.text


# --- shutdown -------------------------------------------------------------------------------------------------


async def test_shutdown_lets_turns_end():
    """On shutdown a turn in flight ends on either transport, its socket closes with 1001, and ``serve`` returns."""
    with trio.fail_after(10):
        shutdown, going_on = trio.Event(), trio.Event()

        class Held(Model):
            @trio.as_safe_channel
            async def sample(self, start):
                yield ()
                yield (Text("he"),)
                await going_on.wait()
                yield (Text("y"), Finish())

        async with trio.open_nursery() as nursery:
            port = await nursery.start(serving(ServerSettings(), shutdown, Held()))
            busy, idle = await WebSocket.open(await connect(port)), await WebSocket.open(await connect(port))
            http, kept = Http(await connect(port)), Http(await connect(port))
            await kept.ask("GET", "/healthz")
            await http.send("POST", "/v1/responses", b'{"model":"m","input":"hi","stream":true}')
            await busy.create()
            await busy.until("response.output_text.delta")
            while b"delta" not in await http.stream.receive_some():
                pass
            shutdown.set()
            assert await idle.closed() == 1001
            await busy.create()
            refused = await busy.until("error")
            assert (refused[-1]["status"], refused[-1]["error"]["code"]) == (503, "slow_down")
            reply = await kept.ask("GET", "/v1/models")
            assert (reply.status, reply.error["code"], reply.headers["retry-after"]) == (503, "slow_down", "1")
            with pytest.raises(OSError):
                await connect(port)
            going_on.set()
            await busy.until("response.completed")
            assert await busy.closed() == 1001
            received = b""
            while more := await http.stream.receive_some():
                received += more
            assert b"response.completed" in received and received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        # the nursery has ended: the server is down, with nothing left running


async def test_shutdown_does_not_wait_for_idle_clients():
    """Connections that only rest are closed at once, whatever the grace."""
    with trio.fail_after(10):
        shutdown = trio.Event()
        async with trio.open_nursery() as nursery:
            port = await nursery.start(serving(ServerSettings(grace_s=3600), shutdown, Model()))
            http, mute = Http(await connect(port)), await connect(port)
            await http.ask("GET", "/healthz")
            shutdown.set()
            assert await http.stream.receive_some() == b"" and await mute.receive_some() == b""


async def test_what_outlasts_the_grace_is_cut_off():
    """After the grace a turn is ended with its backend, its client is told 1001, and ``serve`` returns."""
    with trio.fail_after(10):
        shutdown, backend = trio.Event(), Model([endless(pause_s=0.01)])
        async with trio.open_nursery() as nursery:
            port = await nursery.start(serving(ServerSettings(grace_s=0.1), shutdown, backend))
            ws = await WebSocket.open(await connect(port))
            await ws.create()
            await ws.until("response.output_text.delta")
            shutdown.set()
            assert await ws.closed() == 1001
        assert backend.n_running == 0


async def test_five_hundred_idle_connections():
    """Hundreds of idle sockets cost nobody anything: one among them is served as before."""
    with trio.fail_after(60):
        async with listening(Model()) as port, contextlib.AsyncExitStack() as stack:
            for _ in range(500):
                stream = await stack.enter_async_context(await connect(port))
                await WebSocket.open(stream)
            ws = await WebSocket.open(await stack.enter_async_context(await connect(port)))
            await ws.create()
            await ws.until("response.completed")
            await ws.send(masked(8, b"\x03\xe8"))
            assert await ws.closed() == 1000
