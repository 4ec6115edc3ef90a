"""One WebSocket client, over memory streams, frame by frame."""

import base64
import hashlib

import pytest
import trio
import trio.testing
import wsproto.events
from serving import HELLO, KEY, Model, Server, WebSocket, create, endless, masked

from turntape.core.seam import ClientGone, ClientText, Finish, Limits, Text
from turntape.transport.server import ServerSettings
from turntape.transport.websocket import Frames, close_frame, dialect_of, text_frame

SECRET = "sk-secret-of-the-test"


async def test_a_turn(nursery, autojump_clock):
    """A create is answered with the ladder of one response, and the socket takes the next one."""
    ws = await Server(nursery, Model()).websocket()
    for _ in range(2):
        await ws.create()
        events = await ws.until("response.completed")
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[-1]["response"]["output"][0]["content"][0]["text"] == "hello"
    await ws.send(masked(8, b"\x03\xe8"))
    assert await ws.closed() == 1000


async def test_the_handshake(nursery, autojump_clock):
    """The answer proves that the key was read, has a request id, names no model, and accepts no compression on loopback."""
    ws = await Server(nursery, Model()).websocket(sec_websocket_extensions="permessage-deflate; client_max_window_bits")
    accept = base64.b64encode(hashlib.sha1(KEY.encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    assert b"sec-websocket-accept: " + accept.lower() in ws.head
    assert b"x-request-id: req_" in ws.head
    assert b"openai-model" not in ws.head and b"extensions" not in ws.head and b"max-message-bytes" not in ws.head


@pytest.mark.parametrize(
    "headers, dialect",
    [
        ({}, "current"),
        ({"openai-beta": "responses_websockets=2026-02-06", "user-agent": "codex_exec/0.171.0"}, "current"),
        ({"openai-beta": "a=b, responses_websockets=2026-02-04"}, "append"),
        ({"openai-beta": "responses_websockets=2026-02-04x"}, "current"),
        ({"x-codex-turn-metadata": "{}"}, "legacy"),
        ({"x-oai-web-search-eligible": "true", "session_id": "s"}, "legacy"),
        ({"x-oai-web-search-eligible": "true", "openai-beta": "responses_websockets=2026-02-06"}, "current"),
        ({"user-agent": "python codex"}, "current"),
    ],
)
def test_dialects(headers, dialect):
    """The design is told by the beta header's list, or by an agent that sends none."""
    assert dialect_of(headers) == dialect


async def test_what_a_session_knows_of_its_connection(nursery, autojump_clock):
    """Owner label, agent, dialect, limits and default model cross the seam; the key does not."""
    settings = ServerSettings(keys=frozenset({SECRET}), default_model="dm", limits=Limits(n_lanes=7))
    opened = []

    class Spy:
        closed, deadline = False, float("inf")

        def receive(self, event, *, now):
            opened.append(event)
            return []

    server = Server(nursery, Model(), settings, new_session=Spy)
    await server.websocket(
        authorization=f"Bearer {SECRET}", user_agent="a" * 300, openai_beta="responses_websockets=2026-02-04"
    )
    await trio.testing.wait_all_tasks_blocked()
    [event] = opened
    assert (event.transport, event.dialect, event.default_model, event.limits.n_lanes) == (
        "websocket",
        "append",
        "dm",
        7,
    )
    assert event.agent == "a" * 256 and len(bytes.fromhex(event.seed)) == 16 and SECRET not in repr(event)


async def test_c10_pings_are_answered_during_generation(nursery, autojump_clock):
    """C10: a pong comes at once while a response is being sampled, and the events go on."""
    ws = await Server(nursery, Model([[(0, ()), (60, (Text("late"), Finish()))]])).websocket()
    await ws.create()
    await ws.until("response.in_progress")
    await ws.send(masked(9, b"are you there"))
    with trio.fail_after(1):
        assert await ws.frame() == (10, b"are you there")
    await ws.until("response.completed")


async def test_binary_frames_are_refused_by_name(nursery, autojump_clock):
    """A binary frame gets a nested error with a status, and the socket stays usable."""
    ws = await Server(nursery, Model()).websocket()
    await ws.send(masked(2, create().encode()))
    event = await ws.event()
    assert (event["type"], event["status"], event["error"]["code"]) == ("error", 400, "invalid_json")
    assert "binary" in event["error"]["message"]
    await ws.create()
    await ws.until("response.completed")


async def test_fragments_make_one_message(nursery, autojump_clock):
    """A text in pieces, with a ping between and a character torn by the cut, is one event."""
    ws = await Server(nursery, Model()).websocket()
    text = create("é").replace("\\u00e9", "é").encode()
    cut = text.index("é".encode()) + 1
    await ws.send(masked(1, text[:cut], fin=False) + masked(9, b"p") + masked(0, text[cut:]))
    assert await ws.frame() == (10, b"p")
    await ws.until("response.completed")


async def test_what_comes_with_the_handshake_is_not_lost(nursery, autojump_clock):
    """A first frame glued to the upgrade request is answered (trio-websocket alone would drop it)."""
    ws = await WebSocket.open(Server(nursery, Model()).connect(), early=masked(1, create().encode()))
    await ws.until("response.completed")


async def test_a_low_bound_is_announced(nursery, autojump_clock):
    """Codex sends over HTTP what is larger than the announced bound; what is sent anyway is closed with 1009."""
    ws = await Server(nursery, Model(), ServerSettings(max_message_bytes=1000)).websocket()
    assert b"x-codex-websocket-max-message-bytes: 1000" in ws.head
    await ws.send(masked(1, b"x" * 1001))
    assert await ws.closed() == 1009


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (masked(8, b"\x03\xe9"), 1001),
        (masked(8, b"\x03\xf1"), 1009),
        (masked(8, b""), 1005),
        (masked(1, b"x" * 1001), None),
        (b"\x81\x05hello", None),
    ],
    ids=["1001", "1009", "no code", "too large", "violation"],
)
async def test_the_code_that_a_session_hears_is_the_clients(nursery, autojump_clock, frame, code):
    """``ClientGone`` has the code of the client's close frame, and none where it is the server that has closed."""
    heard = []

    class Spy:
        closed, deadline = False, float("inf")

        def receive(self, event, *, now):
            heard.append(event)
            self.closed = isinstance(event, ClientGone)
            return []

    ws = await Server(nursery, Model(), ServerSettings(max_message_bytes=1000), new_session=Spy).websocket()
    await ws.send(frame)
    await ws.closed()
    await trio.testing.wait_all_tasks_blocked()
    assert heard[-1] == ClientGone(code)


def test_empty_pieces_of_a_message_are_not_kept():
    """A client that sends empty pieces without end takes no memory: they go no further than the frames' reader."""
    frames = Frames(wsproto.ConnectionType.SERVER)
    frames.receive_data(masked(1, b"", fin=False) + masked(0, b"", fin=False) * 100 + masked(9, b"p") + masked(0, b""))
    ping, message = frames.events()
    assert ping == wsproto.events.Ping(payload=b"p")
    assert isinstance(message, wsproto.events.TextMessage) and message.message_finished


async def test_a_message_of_the_very_bound_is_taken(nursery, autojump_clock):
    """The bound itself is allowed."""
    ws = await Server(nursery, Model(), ServerSettings(max_message_bytes=1000)).websocket()
    await ws.send(masked(1, create().encode().ljust(1000)))
    await ws.until("response.completed")


async def test_a_crash_of_the_session_closes_with_1011(nursery, autojump_clock, caplog):
    """Our own bug ends one connection with 1011, is logged, and leaves the others alone."""

    class Crashing:
        closed, deadline = False, float("inf")

        def receive(self, event, *, now):
            if isinstance(event, ClientText):
                raise ZeroDivisionError
            return []

    server = Server(nursery, Model(), new_session=Crashing)
    ws, other = await server.websocket(), await server.websocket()
    await ws.create()
    assert await ws.closed() == 1011
    assert "ZeroDivisionError" in caplog.text
    await other.send(masked(9, b"ok"))
    assert await other.frame() == (10, b"ok")


async def test_the_age_limit_closes(nursery, autojump_clock):
    """C40: at its age limit a connection says so and is closed by the server."""
    ws = await Server(nursery, Model(), ServerSettings(limits=Limits(max_age_s=2))).websocket()
    event = await ws.event()
    assert (event["status"], event["error"]["code"]) == (400, "websocket_connection_limit_reached")
    assert await ws.closed() == 1001
    assert 2 <= trio.current_time() < 4


async def test_c46_leaving_frees_the_sample(nursery, autojump_clock):
    """C46: a client that drops its connection mid-generation frees the backend without time passing."""
    backend = Model([endless(pause_s=1)])
    ws = await Server(nursery, backend).websocket()
    await ws.create()
    await ws.until("response.output_text.delta")
    assert backend.n_running == 1
    now = trio.current_time()
    await trio.aclose_forcefully(ws.stream)
    await trio.testing.wait_all_tasks_blocked()
    assert backend.n_running == 0 and trio.current_time() == now


async def test_a_batch_is_one_write(nursery, autojump_clock):
    """All events of one batch arrive in one read of the client, before any other time passes."""
    server = Server(nursery, Model([[(0, ()), (1, tuple(Text(f"{n}") for n in range(50))), (1, (Finish(),))]]))
    ws = await server.websocket()
    await ws.create()
    await ws.until("response.in_progress")
    ws.received.clear()
    received = await ws.stream.receive_some(1 << 20)
    assert received.count(b'"type":"response.output_text.delta"') == 50


@pytest.mark.parametrize("n", [0, 125, 126, 65535, 65536])
def test_frames(n):
    """Text frames of every length class read back."""
    head = text_frame(b"x" * n)[: -n or None]
    assert head == b"\x81" + {0: b"\0", 125: b"\x7d", 126: b"\x7e\0\x7e", 65535: b"\x7e\xff\xff"}.get(
        n, b"\x7f" + (65536).to_bytes(8, "big")
    )


def test_a_close_reason_fits_its_frame():
    """A long reason is cut between characters to what a control frame holds."""
    frame = close_frame(1002, "é" * 100)
    assert len(frame) <= 127 and frame[1] == len(frame) - 2
    assert frame[4:].decode() == "é" * 61


async def test_hello_is_what_the_model_said(nursery, autojump_clock):
    """The model sees the conversation and the settings of the request."""
    backend = Model([HELLO])
    ws = await Server(nursery, backend).websocket()
    await ws.create("hello?", instructions="be brief")
    await ws.until("response.completed")
    [start] = backend.starts
    assert start.request.instructions == "be brief" and start.context.n_items == 1
