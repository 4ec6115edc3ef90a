"""The streaming HTTP client: connections, time limits, and answers that are not answers."""

import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import chat_server
import pytest
import trio
import trio.testing
import trustme
from chat_server import CUT, DONE, HANG, ChatServer, Reply, sse

from turntape.transport.http_client import HttpClient
from turntape.transport.http_connections import IDLE_S, Connections, HttpError
from turntape.transport.http_target import Target

TARGET = Target.parse("http://model.test/v1/chat/completions")


@asynccontextmanager
async def serving(script: chat_server.Script) -> AsyncIterator[tuple[ChatServer, HttpClient]]:
    """A server and a client that reaches it over memory streams."""
    async with trio.open_nursery() as nursery:
        server = ChatServer(nursery, script)
        client = HttpClient(Connections(connect=server.connect), head_timeout_s=60, silence_s=30)
        yield server, client
        await client.aclose()
        nursery.cancel_scope.cancel()


async def ask(client: HttpClient, target: Target = TARGET) -> list[bytes]:
    """All events of one answer."""
    events: list[bytes] = []
    async with client.post(target, [("Content-Type", "application/json")], [b'{"a"', b":1}"]) as response:
        while (more := await response.events()) is not None:
            events += more
    return events


def answering(*steps: chat_server.Step) -> chat_server.Script:
    return lambda request: Reply(steps)


def raw(answer: bytes) -> Callable[[str, int], Awaitable[trio.abc.Stream]]:
    """A server that says exactly this to whatever it is sent, and closes."""

    async def connect(host: str, port: int) -> trio.abc.Stream:
        ours, theirs = trio.testing.memory_stream_pair()
        await theirs.send_all(answer)
        await theirs.send_eof()
        return ours

    return connect


# --- connections -----------------------------------------------------------------------------------------


async def test_a_connection_is_used_again() -> None:
    """Two requests in a row share one connection, and the body arrives in one piece."""
    async with serving(answering(sse("x"), DONE)) as (server, client):
        assert await ask(client) == [b'"x"', b"[DONE]"]
        assert await ask(client) == [b'"x"', b"[DONE]"]
        assert server.on_connection == [1, 1]
        assert server.requests == [{"a": 1}] * 2
        assert server.headers[0]["host"] == "model.test"


async def test_an_idle_connection_is_not_used_near_the_servers_limit(autojump_clock: trio.testing.MockClock) -> None:
    """After 3.5 seconds without a request a new connection is opened, before the server's 5 seconds close the old."""
    async with serving(answering(DONE)) as (server, client):
        await ask(client)
        await trio.sleep(IDLE_S + 0.1)
        await ask(client)
        assert server.on_connection == [1, 2]


async def test_the_latest_connection_is_used_first(autojump_clock: trio.testing.MockClock) -> None:
    """Of several idle connections the youngest serves, so that the others can grow old and go."""
    async with serving(answering(DONE)) as (server, client):
        async with client.post(TARGET, [], [b"1"]) as first:
            await ask(client)
            await trio.sleep(1)
            while await first.read() is not None:
                pass
        await ask(client)
        assert server.on_connection == [1, 2, 1]


async def test_an_answer_that_was_not_read_to_its_end_costs_the_connection() -> None:
    """Leaving early closes the connection: the next request cannot read the rest of this answer."""
    async with serving(answering(sse("x"), HANG)) as (server, client):
        async with client.post(TARGET, [], [b"1"]) as response:
            assert await response.events() == [b'"x"']
        await server.gone.wait()
        server.script = answering(DONE)
        assert await ask(client) == [b"[DONE]"]
        assert server.on_connection == [1, 2]


async def test_a_kept_connection_that_died_is_replaced_once() -> None:
    """A reused connection that dies before a byte of the answer is tried again on a fresh one."""
    async with serving(answering(DONE)) as (server, client):
        server.deaf_after = 1
        for _ in range(3):
            assert await ask(client) == [b"[DONE]"]
        assert server.on_connection == [1, 2, 3]


async def test_a_fresh_connection_that_dies_is_an_error() -> None:
    """There is one retry, and only for a connection that had been idle."""
    async with serving(answering(DONE)) as (server, client):
        await ask(client)
        server.deaf_after = 0
        for _ in range(2):
            with pytest.raises(HttpError, match="closed the connection without an answer"):
                await ask(client)
        assert server.n_connections == 3


async def test_a_connection_that_dies_in_its_answer_is_not_tried_again() -> None:
    """Once a byte of the answer has come the request is never sent twice."""
    async with serving(answering(DONE)) as (server, client):
        await ask(client)
        server.script = answering(sse("x"), CUT)
        with pytest.raises(HttpError, match="middle of its answer"):
            await ask(client)
        assert len(server.requests) == 2


async def test_a_real_idle_connection_that_the_server_closed_is_noticed() -> None:
    """Over TCP a closed idle connection is seen before anything is sent by it."""
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            server, client = ChatServer(nursery, answering(DONE)), HttpClient()
            target = Target.parse(f"http://127.0.0.1:{await server.listen()}/v1")
            server.deaf_after = 1
            server.script = lambda request: Reply([DONE], headers=[("content-length", str(len(DONE)))])
            await ask(client, target)
            [(_, idle)] = client.connections._idle[target.origin]
            assert isinstance(idle, trio.SocketStream)
            await idle.send_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")  # which it leaves at
            await trio.lowlevel.wait_readable(idle.socket)
            assert await ask(client, target) == [b"[DONE]"]
            assert server.on_connection == [1, 2]
            await client.aclose()
            nursery.cancel_scope.cancel()


async def test_closing_the_client_closes_idle_connections() -> None:
    """After ``aclose`` the server's side of every kept connection reads its end."""
    async with trio.open_nursery() as nursery:
        server = ChatServer(nursery, answering(DONE))
        client = HttpClient(Connections(connect=server.connect))
        await ask(client)
        await client.aclose()
        # the nursery ends only when the server's connection has


async def test_cancelling_closes_the_connection_at_once(autojump_clock: trio.testing.MockClock) -> None:
    """A request that is cancelled while it waits leaves no connection behind."""
    async with serving(answering(HANG)) as (server, client):
        start = trio.current_time()
        with trio.move_on_after(1):
            await ask(client)
        await server.gone.wait()
        assert trio.current_time() - start == pytest.approx(1)


# --- time limits -----------------------------------------------------------------------------------------


async def test_time_limits(autojump_clock: trio.testing.MockClock) -> None:
    """Connecting, the head, and silence in a body each have a limit that says what was awaited."""

    async def unreachable(host: str, port: int) -> Any:
        await trio.sleep_forever()

    async def deaf(host: str, port: int) -> trio.abc.Stream:
        return trio.testing.memory_stream_pair()[0]

    for client, message, elapsed in (
        (HttpClient(Connections(connect=unreachable)), "no connection within 10 seconds", 10),
        (HttpClient(Connections(connect=deaf), head_timeout_s=60), "did not answer within 60 seconds", 60),
    ):
        start = trio.current_time()
        with pytest.raises(HttpError, match=message) as caught:
            await ask(client)
        assert caught.value.timed_out
        assert trio.current_time() - start == pytest.approx(elapsed)
    async with serving(answering(sse("x"), 29.0, sse("y"), HANG)) as (server, client):
        with pytest.raises(HttpError, match="sent nothing for 30 seconds") as caught:
            await ask(client)
        assert caught.value.timed_out
        await server.gone.wait()


# --- answers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "events"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\ndata: 1\n\n", [b"1"]),
        (b"HTTP/1.1 200 OK\r\n\r\ndata: 1\n\ndata: 2", [b"1", b"2"]),
        (b"HTTP/1.0 200 OK\r\n\r\ndata: 1\n\n", [b"1"]),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\ndata: 1\n\n", [b"1"]),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n0\r\n\r\n", [b"1"]),
        (b"HTTP/1.1 204 No Content\r\n\r\n", []),
    ],
)
async def test_every_framing_is_read(answer: bytes, events: list[bytes]) -> None:
    """Length, chunks, until close, HTTP/1.0, and a 100 before the answer."""
    assert await ask(HttpClient(Connections(connect=raw(answer)))) == events


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "without an answer"),
        (b"HTTP/1.1 200", "without an answer"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"x" * 100_000, "not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\ndata: 1\n\n", "middle of its answer"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n", "middle of its answer"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nnonsense\r\n", "no chunk size"),
        (b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n", "compressed"),
    ],
)
async def test_what_is_no_answer_is_an_error(answer: bytes, message: str) -> None:
    """Nothing, nonsense, and an answer that stops are told apart, and each ends."""
    with pytest.raises(HttpError, match=message):
        await ask(HttpClient(Connections(connect=raw(answer))))


@pytest.mark.parametrize(
    ("location", "shown"),
    [("https://other.test/secret?k=1", "redirects to other.test"), ("/secret", "redirects to another path")],
)
async def test_a_redirect_is_refused(location: str, shown: str) -> None:
    """A request that carries a key is not sent on; the error names the host and no more of the address."""
    async with serving(lambda request: Reply([], 307, [("location", location)])) as (server, client):
        with pytest.raises(HttpError, match=shown) as caught:
            await ask(client)
        assert "secret" not in str(caught.value)
        assert len(server.requests) == 1


async def test_a_body_beyond_the_bound_is_an_error() -> None:
    """A body that is wanted whole has a limit."""
    client = HttpClient(Connections(connect=raw(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 2000)))
    with pytest.raises(HttpError, match="more than 1000 bytes"):
        async with client.post(TARGET, [], [b"1"]) as response:
            await response.body(1000)


# --- reaching a server -----------------------------------------------------------------------------------


async def test_nothing_listening_is_said() -> None:
    """A refused connection names its reason and what to check."""
    with trio.fail_after(10), trio.socket.socket() as unused:
        await unused.bind(("127.0.0.1", 0))  # bound and not listening: refuses
        target = Target.parse(f"http://127.0.0.1:{unused.getsockname()[1]}/v1")
        with pytest.raises(HttpError, match="nothing listens there") as caught:
            await ask(HttpClient(), target)
        assert "Check that it runs" in caught.value.cure


async def test_tls() -> None:
    """A server with a certificate of a trusted authority is reached and its connection is used again."""
    authority = trustme.CA()
    theirs, ours = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(theirs)
    authority.configure_trust(ours)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            server = ChatServer(nursery, answering(DONE))
            target = Target.parse(f"https://127.0.0.1:{await server.listen(ssl_context=theirs)}/v1")
            client = HttpClient(Connections(ours))
            for _ in range(2):
                assert await ask(client, target) == [b"[DONE]"]
            assert server.on_connection == [1, 1]
            with pytest.raises(HttpError, match="certificate that is not trusted"):
                await ask(HttpClient(), target)
            await client.aclose()
            nursery.cancel_scope.cancel()


async def test_a_connection_that_was_opened_ahead_is_used(autojump_clock: trio.testing.MockClock) -> None:
    """The first request finds one, if it comes in time; a second is not opened beside it."""
    async with serving(answering(DONE)) as (server, client):
        client.connections.idle_s = 50.0
        await client.connections.warm(TARGET)
        await client.connections.warm(TARGET)
        await trio.testing.wait_all_tasks_blocked()
        assert server.n_connections == 1
        assert await ask(client) == [b"[DONE]"]
        assert server.on_connection == [1]


@pytest.mark.parametrize("limits", [{"idle_s": IDLE_S}, {"idle_s": 50.0, "n_idle": 0}])
async def test_no_connection_is_opened_ahead_that_would_not_be_kept(limits: dict[str, float]) -> None:
    """Neither for the few seconds after which servers at home close it, nor where none is kept."""
    async with serving(answering(DONE)) as (server, client):
        for name, value in limits.items():
            setattr(client.connections, name, value)
        await client.connections.warm(TARGET)
        await trio.testing.wait_all_tasks_blocked()
        assert server.n_connections == 0


async def test_a_connection_opened_ahead_takes_its_tickets() -> None:
    """OpenSSL's servers send tickets behind the handshake, which are no sign that the connection has ended."""
    authority = trustme.CA()
    theirs, ours = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(theirs)
    authority.configure_trust(ours)
    n_accepted = 0
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            nonlocal n_accepted
            while True:
                try:
                    accepted = listening.accept()[0]
                except OSError:
                    return
                n_accepted += 1
                with theirs.wrap_socket(accepted, server_side=True) as stream:
                    if stream.recv(65536):
                        stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        threading.Thread(target=serve, daemon=True).start()
        target = Target.parse(f"https://127.0.0.1:{listening.getsockname()[1]}/v1")
        client = HttpClient(Connections(ours, idle_s=50.0))
        with trio.fail_after(10):
            await client.connections.warm(target)
            assert await ask(client, target) == []
            assert n_accepted == 1
            await client.aclose()


async def test_https_to_a_server_without_tls_is_said() -> None:
    """The wrong scheme is recognised."""
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            port = await ChatServer(nursery).listen()
            with pytest.raises(HttpError, match="was connected to, but did not answer with TLS") as caught:
                await ask(HttpClient(Connections(connect_timeout_s=5)), Target.parse(f"https://127.0.0.1:{port}/v1"))
            assert caught.value.cure == "Is its URL http://?"
            nursery.cancel_scope.cancel()


async def test_https_to_a_server_that_waits_for_http_is_said(autojump_clock: trio.testing.MockClock) -> None:
    """llama.cpp's takes the connection and says nothing to what is no HTTP."""

    async def connect(host: str, port: int) -> trio.abc.Stream:
        return trio.testing.memory_stream_pair()[0]

    with pytest.raises(HttpError, match="was connected to, but did not answer with TLS within 10 seconds") as caught:
        await ask(HttpClient(Connections(connect=connect)), Target.parse("https://model.test/v1"))
    assert (caught.value.timed_out, caught.value.cure) == (True, "Is its URL http://?")


@pytest.mark.parametrize(
    ("answer", "says"), [(b"\x15\x03\x01\x00\x02\x02\x46", "answers with TLS only"), (b"", "without an answer")]
)
async def test_plain_http_to_a_server_with_tls_is_said(answer: bytes, says: str) -> None:
    """Whether it sends an alert or hangs up, as Python's do, the other scheme is asked about."""
    with pytest.raises(HttpError, match=says) as caught:
        await ask(HttpClient(Connections(connect=raw(answer))))
    assert caught.value.cure.endswith("s its URL https://?")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://h/hunter2", "must begin with http"),
        ("http://user:hunter2@h/v1", "user name or password"),
        ("http:///hunter2", "no host"),
        ("http://h/v1#hunter2", "fragment"),
        ("http://h:99999/hunter2", "cannot be read"),
        ("http://h:0/hunter2", "port 0"),
        ("http://h/hunter2 x", "a space"),
        ("http://[::1/hunter2", "cannot be read"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused(url: str, message: str) -> None:
    """The reason is given, and the URL, which may hold a secret, is not repeated."""
    with pytest.raises(ValueError, match=message) as caught:
        Target.parse(url)
    assert "hunter2" not in str(caught.value)


def test_only_host_and_port_of_a_url_are_shown() -> None:
    """Path and query stay out of messages and out of ``repr``."""
    target = Target.parse("https://[::1]:8443/v1?key=hunter2")
    assert target.where == "[::1]:8443"
    assert target.path == "/v1?key=hunter2"
    assert "hunter2" not in repr(target)
    assert Target.parse("https://h/v1").where == "h"


async def test_a_get_asks_without_a_body() -> None:
    """The route and our headers, no body and no length of one; the answer is read like any other."""
    heard = b""

    async def connect(host: str, port: int) -> trio.abc.Stream:
        ours, theirs = trio.testing.memory_stream_pair()
        nursery.start_soon(answer, theirs)
        return ours

    async def answer(stream: trio.abc.Stream) -> None:
        nonlocal heard
        while not heard.endswith(b"\r\n\r\n"):
            heard += await stream.receive_some(65536)
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    async with trio.open_nursery() as nursery:
        client = HttpClient(Connections(connect=connect))
        async with client.get(Target.parse("http://model.test/v1/models"), [("X-Mine", "1")]) as response:
            assert (response.status, await response.body(10)) == (200, b"{}")
        await client.aclose()
    assert heard.startswith(b"GET /v1/models HTTP/1.1\r\n")
    assert b"X-Mine: 1\r\n" in heard
    assert b"length" not in heard.lower()
