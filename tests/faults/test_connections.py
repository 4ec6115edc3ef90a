"""What clients and networks do wrong, one connection at a time; each test says what happened without its cure.

Numbers are those of trio-websocket 0.12.2 as it comes, tried in 2026-11.
"""

from functools import partial

import pytest
import trio
import trio.lowlevel
import trio.testing
from serving import Http, Model, Server, WebSocket, create, endless, listening, masked

import turntape.transport.server as server_module
from turntape.core.seam import Finish, Text
from turntape.transport.outbox import Outbox

BIG = 8_000_000


async def connect(port):
    return await trio.open_tcp_stream("127.0.0.1", port)


async def test_cancelling_tears_no_frame():
    """Fault 1: a response cancelled while its frames leave never ends another frame early.

    Without: the library's send, cancelled, left a header that announced 8,000,000 bytes, 131 KB of them, and then
    the next frame's bytes inside. Here the client leaves a huge frame unread, the session is cut off by its age
    while that frame is on its way, and every frame that arrives is whole.
    """
    with trio.fail_after(20):
        async with listening(Model([[(0, ()), (0, (Text("A" * BIG),)), *[(0.01, (Text("b"),))] * 10_000]])) as port:
            ws = await WebSocket.open(await connect(port))
            await ws.create()
            await ws.until("response.in_progress")
            await ws.send(masked(1, create(stream_id="other").encode()))
            await trio.testing.wait_all_tasks_blocked(0.01)  # the frame is under way, and nobody reads
            await ws.send(masked(8, b"\x03\xe8"))
            while True:
                opcode, payload = await ws.frame()  # parses, or fails on a torn frame
                if opcode == 8:
                    break
                assert opcode == 1 and payload.startswith(b'{"type":"') and payload.endswith(b"}")


async def test_a_ping_after_our_close_is_harmless(nursery, autojump_clock, caplog):
    """Fault 2: a ping that arrives after we closed disturbs nobody (trio-websocket issue 184).

    Without: it raised LocalProtocolError in the library's reader, and with its own server ended the process.
    """
    server = Server(nursery, Model())
    ws, other = await server.websocket(), await server.http().post()
    server.shutdown.set()
    assert await ws.closed() == 1001
    await ws.send(masked(9, b"hi") * 3)
    await ws.send(masked(8, b"\x03\xe9"))
    assert await ws.closed() is None, "nothing follows a close frame"
    await trio.testing.wait_all_tasks_blocked()
    assert not caplog.records and other.status == 200
    assert server.service.n_open == 1  # the HTTP client's, which is only resting


async def test_waiting_messages_block_no_pong(nursery, autojump_clock):
    """Fault 3: with many requests waiting, a ping is still answered at once, and so is a departure noticed.

    Without: two unread messages kept the library's reader from reading on: no pong, no close, no end of file, and a
    client that pings every 20 s gave up with 1011.
    """
    backend = Model([endless(pause_s=1)])
    ws = await Server(nursery, backend).websocket()
    for _ in range(50):
        await ws.create()
    await ws.send(masked(9, b"still there?"))
    with trio.fail_after(0.5):
        while (frame := await ws.frame())[0] != 10:
            pass
    assert frame[1] == b"still there?"
    await trio.aclose_forcefully(ws.stream)
    await trio.testing.wait_all_tasks_blocked()
    assert backend.n_running == 0


@pytest.mark.parametrize(
    "frame, code",
    [
        (masked(1, b"\xff\xfe"), 1007),
        (masked(1, "é".encode()[:1]), 1007),
        (b"\x81\x05hello", 1002),
        (masked(3, b"x"), 1002),
        (masked(11, b"x"), 1002),
        (masked(1, b"x", rsv=0x40), 1002),
        (masked(0, b"x"), 1002),
        (masked(8, b"\x03"), 1002),
        (masked(8, b"\x03\xed"), 1002),  # 1005 may not be sent
        (masked(9, b"x" * 126), 1002),
        (masked(9, b"x", fin=False), 1002),
    ],
)
async def test_violations_are_answered(nursery, autojump_clock, frame, code):
    """Fault 4: a frame that breaks the protocol gets the close code that RFC 6455 wants, and ends that socket only.

    Without: a bare end of the TCP connection, which clients take for a network failure and repeat the request.
    """
    server = Server(nursery, Model())
    other = await server.websocket()
    ws = await server.websocket()
    await ws.send(frame)
    assert await ws.closed() == code
    with pytest.raises(EOFError):
        await ws.frame()
    await other.create()
    await other.until("response.completed")


async def test_a_violation_is_answered_on_a_socket():
    """A close frame is read whole though the client was still sending: no reset destroys it.

    Without: closing with unread bytes makes the kernel send a reset, and the client's read fails before the frame.
    """
    with trio.fail_after(10):
        async with listening(Model(), max_message_bytes=1 << 20) as port:
            for frame, code in ((masked(1, b"x" * (4 << 20)), 1009), (b"\x81\x05hello" + b"x" * (4 << 20), 1002)):
                ws = await WebSocket.open(await connect(port))
                await ws.send(frame)
                assert await ws.closed() == code


async def test_a_close_frame_is_answered(nursery, autojump_clock):
    """A client's close is answered with its code, or with none if it gave none, even while it is sent events."""
    backend = Model([endless(pause_s=1)])
    for payload, code in ((b"\x03\xe8", 1000), (b"\x0b\xb9bye", 3001), (b"", 0)):
        ws = await Server(nursery, backend).websocket()
        await ws.create()
        await ws.until("response.output_text.delta")
        await ws.send(masked(8, payload) + masked(1, b"after the close"))
        assert await ws.closed() == code
        await trio.testing.wait_all_tasks_blocked()
        assert backend.n_running == 0


async def test_a_connection_that_breaks_inside_a_frame(nursery, autojump_clock, caplog):
    """Fault 5: half a frame, half a head, or half a body and then nothing end their own connection, without noise."""
    server = Server(nursery, Model())
    ws, body, head = await server.websocket(), server.connect(), server.connect()
    await ws.send(masked(1, b"x" * 200)[:50])
    await body.send_all(b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n{")
    await head.send_all(b"GET /healt")
    for stream in (ws.stream, body, head):
        await trio.aclose_forcefully(stream)
    await trio.testing.wait_all_tasks_blocked()
    assert server.service.n_open == 0 and not caplog.records


async def test_large_messages():
    """A message of 20 MB is taken whole, and one above the bound is closed with 1009 and nothing else.

    Without: the library's bound is 1 MiB, less than one long history.
    """
    with trio.fail_after(60):
        async with listening(Model(), max_message_bytes=21_000_000) as port:
            ws = await WebSocket.open(await connect(port))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ws.create, "x" * 20_000_000)
                await ws.until("response.completed")
            ws = await WebSocket.open(await connect(port))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ws.create, "x" * 21_000_000)
                assert await ws.closed() == 1009


async def test_a_client_that_does_not_read_is_dropped_and_others_go_on(caplog):
    """A client that lets answers pile up is dropped with a reason in the log, its samples end, and others are served.

    Without: the queue of what it does not read grows without bound.
    """
    with trio.fail_after(30):
        backend = Model([[(0, ()), (0, (Text("x" * 30_000_000),)), (0, (Finish(),))]])
        async with listening(backend) as port:
            deaf = await WebSocket.open(await connect(port))
            await deaf.create()
            await deaf.create(stream_id="b")
            while "does not read" not in caplog.text:
                await trio.sleep(0.01)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert backend.n_running == 0
            assert (await Http(await connect(port)).ask("GET", "/healthz")).status == 200


async def test_a_slow_client_holds_up_only_its_own_samples():
    """A client that stops reading stops its samplers; another on the same server is answered meanwhile."""
    with trio.fail_after(30):
        backend = Model([endless(size=100_000)])
        async with listening(backend) as port:
            slow = await WebSocket.open(await connect(port))
            await slow.create()
            n = -1
            while n != backend.n_batches:
                n = backend.n_batches
                await trio.testing.wait_all_tasks_blocked(0.05)
            assert backend.n_running == 1
            other = await WebSocket.open(await connect(port))
            backend.turns = [[(0, (Text("quick"), Finish()))]]
            await other.create()
            await other.until("response.completed")
            await trio.aclose_forcefully(slow.stream)
            while backend.n_running:
                await trio.testing.wait_all_tasks_blocked()


async def test_a_client_killed_mid_generation():
    """C46 on a socket: the sample of a client that vanishes ends, and a reset in the middle is no noise."""
    with trio.fail_after(10):
        backend = Model([endless(pause_s=0.001)])
        async with listening(backend) as port:
            ws, http = await WebSocket.open(await connect(port)), Http(await connect(port))
            await ws.create()
            await http.send("POST", "/v1/responses", b'{"model":"m","input":"hi","stream":true}')
            await ws.until("response.output_text.delta")
            while backend.n_running < 2:
                await trio.lowlevel.checkpoint()
            for stream in (ws.stream, http.stream):
                await trio.aclose_forcefully(stream)
            while backend.n_running:
                await trio.lowlevel.checkpoint()


async def test_pings_without_end_are_bounded(nursery, autojump_clock, caplog, monkeypatch):
    """A client that pings and never reads is dropped like any other that does not read."""
    monkeypatch.setattr(server_module, "Outbox", partial(Outbox, hard_limit=10_000))
    ours, theirs = trio.testing.lockstep_stream_pair()  # holds nothing: what the client does not read stays queued
    service = Server(nursery, Model()).service
    nursery.start_soon(server_module.serve_connection, service, theirs)
    ws = await WebSocket.open(ours)
    with pytest.raises(trio.BrokenResourceError):
        for _ in range(1000):
            await ws.send(masked(9, b"x" * 125))
    await trio.testing.wait_all_tasks_blocked()
    assert service.n_open == 0 and "does not read" in caplog.text
