"""The WebSocket client: messages by reads, rest between two uses, and every way in which a server can end it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_server_stream

from turntape.transport.http_connections import Connections, HttpError
from turntape.transport.websocket_client import (
    MAX_MESSAGE_CHARS,
    Rejected,
    SocketClosed,
    WebSocketClient,
    websocket_target,
)

TARGET = websocket_target("ws://model.test/v1/responses?key=hunter2")

Serve = Callable[[trio.abc.Stream], Awaitable[None]]


@asynccontextmanager
async def connecting(serve: Serve) -> AsyncIterator[Connections]:
    """Connections of which each is served so."""
    async with trio.open_nursery() as nursery:

        async def connect(host: str, port: int) -> trio.abc.Stream:
            ours, theirs = trio.testing.memory_stream_pair()
            nursery.start_soon(serve, theirs)
            return ours

        yield Connections(connect=connect)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[WebSocketClient, WebSocketConnection, trio.abc.Stream]]:
    """A client, the server's end of it, and the stream below that."""
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        accepted: list[WebSocketConnection] = []

        async def accept() -> None:
            request = await wrap_server_stream(nursery, theirs)
            assert (request.path, dict(request.headers)[b"authorization"]) == (TARGET.path, b"Bearer k")
            accepted.append(await request.accept())

        async def connect(host: str, port: int) -> trio.abc.Stream:
            nursery.start_soon(accept)
            return ours

        client = await WebSocketClient.open(Connections(connect=connect), TARGET, [("Authorization", "Bearer k")])
        await trio.testing.wait_all_tasks_blocked()
        yield client, accepted[0], theirs
        await client.drop()
        nursery.cancel_scope.cancel()


async def raw(stream: trio.abc.Stream, answer: bytes) -> None:
    """A server that reads the handshake and answers with these bytes."""
    await stream.receive_some(65536)
    await stream.send_all(answer)


# --- in use ----------------------------------------------------------------------------------------------


async def test_messages_of_one_read_come_together() -> None:
    """Everything that one read brings is one list, in its order; text goes both ways, in every language."""
    async with connected() as (client, server, stream):
        await client.send("größer 👋")
        assert await server.get_message() == "größer 👋"
        await stream.send_all(b"\x81\x01a\x81\x01b\x01\x03hel")
        assert await client.receive() == ["a", "b"]
        await stream.send_all(b"\x80\x02lo" + b"\x81\x7e\x01\x00" + b"x" * 256)
        assert await client.receive() == ["hello", "x" * 256]


async def test_pings_are_answered_in_use_and_at_rest() -> None:
    """A server that pings sees that we live, whether an answer is being read or nobody asks."""
    async with connected() as (client, server, _):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.receive)
            await server.ping()
            await server.send_message("done")
        client.rest(1000.0)
        await server.ping()
        assert await client.wake()
        await server.send_message("again")
        assert await client.receive() == ["again"]


async def test_what_is_said_at_rest_is_dropped() -> None:
    """Words of before are not taken for the answer to what is asked next."""
    async with connected() as (client, server, _):
        client.rest(1000.0)
        await server.send_message("by the way")
        await trio.testing.wait_all_tasks_blocked()
        assert await client.wake()
        await server.send_message("the answer")
        assert await client.receive() == ["the answer"]


# --- ends ------------------------------------------------------------------------------------------------


async def test_a_close_says_its_code_after_what_came_before() -> None:
    """The messages before a close are heard; then the close is an error that says its code."""
    async with connected() as (client, _, stream):
        await stream.send_all(b"\x81\x01a\x88\x02\x03\xe9")
        assert await client.receive() == ["a"]
        with pytest.raises(SocketClosed, match="1001") as caught:
            await client.receive()
        assert caught.value.code == 1001
        with pytest.raises(SocketClosed):
            await client.send("anybody there?")


async def test_a_close_at_rest_is_seen_on_waking() -> None:
    """A connection that the server closed meanwhile, with or without a goodbye, is not fit for use."""
    for goodbye in (True, False):
        async with connected() as (client, server, stream):
            client.rest(1000.0)
            if goodbye:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(server.aclose, 1001, "going away")
                    await trio.testing.wait_all_tasks_blocked()
                    assert not await client.wake()
                    nursery.cancel_scope.cancel()
            else:
                await stream.aclose()
                await trio.testing.wait_all_tasks_blocked()
                assert not await client.wake()


async def test_nobody_rests_for_ever(autojump_clock: trio.testing.MockClock) -> None:
    """A connection that is not used for so long is closed with a goodbye."""
    async with connected() as (client, server, _):
        client.rest(30.0)
        with pytest.raises(ConnectionClosed) as caught:
            await server.get_message()
        assert caught.value.reason.code == 1000
        assert trio.current_time() >= 30.0
        assert not await client.wake()


async def test_silence_has_an_end(autojump_clock: trio.testing.MockClock) -> None:
    """A server that says nothing for too long has failed, and says so as a time-out."""
    async with connected() as (client, _, _):
        with pytest.raises(HttpError, match="600 seconds") as caught:
            await client.receive()
        assert caught.value.timed_out
        assert not client.alive


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        (b"\x82\x01a", "binary"),
        (b"\x81\x7f" + (MAX_MESSAGE_CHARS + 1).to_bytes(8, "big") + b"x" * (MAX_MESSAGE_CHARS + 1), "more than"),
        (b"\xff\xff\xff", "protocol error"),
        (b"", "closed the connection"),
    ],
    ids=["binary", "too long", "nonsense", "end"],
)
async def test_nonsense_is_an_error(frames: bytes, words: str) -> None:
    """What is no text, too much, or no WebSocket at all ends the connection with a reason."""
    async with connected() as (client, _, stream):

        async def speak() -> None:
            await stream.send_all(frames) if frames else await stream.aclose()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(speak)
            with pytest.raises(HttpError, match=words):
                await client.receive()
            nursery.cancel_scope.cancel()
        assert not client.alive


# --- the handshake ---------------------------------------------------------------------------------------


async def test_a_refused_handshake_is_told_in_full() -> None:
    """A status other than 101 comes with its headers and its body."""
    answer = b'HTTP/1.1 429 Too Many\r\nRetry-After: 7\r\nContent-Length: 14\r\n\r\n{"error":"no"}'

    async def serve(stream: trio.abc.Stream) -> None:
        await raw(stream, answer)

    async with connecting(serve) as connections:
        with pytest.raises(Rejected) as caught:
            await WebSocketClient.open(connections, TARGET)
        assert (caught.value.status, caught.value.headers["retry-after"]) == (429, "7")
        assert caught.value.body == b'{"error":"no"}'


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.2\r\n", b"\x16\x03\x01\x02\x00", b""])
async def test_a_server_that_is_none(answer: bytes) -> None:
    """An answer that is no handshake is an error, and never a hang."""

    async def serve(stream: trio.abc.Stream) -> None:
        await raw(stream, answer)
        await stream.aclose()

    async with connecting(serve) as connections:
        with pytest.raises(HttpError):
            await WebSocketClient.open(connections, TARGET)


async def test_a_handshake_has_a_time_limit(autojump_clock: trio.testing.MockClock) -> None:
    """A server that accepts the connection and says nothing is given up."""

    async def serve(stream: trio.abc.Stream) -> None:
        await trio.sleep_forever()

    async with connecting(serve) as connections:
        with pytest.raises(HttpError, match="handshake") as caught:
            await WebSocketClient.open(connections, TARGET)
        assert caught.value.timed_out


def test_urls() -> None:
    """ws and wss are known by their port, others are refused, and no reason repeats a secret."""
    assert (websocket_target("ws://h/v1").port, websocket_target("wss://h/v1").port) == (80, 443)
    assert websocket_target("wss://h/v1").scheme == "https"
    for url in ("http://h/hunter2", "hunter2", "ws://u:hunter2@h/v1"):
        with pytest.raises(ValueError) as caught:
            websocket_target(url)
        assert "hunter2" not in str(caught.value)
