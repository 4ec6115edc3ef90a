"""permessage-deflate on the server: what is agreed on, what is compressed, and what a hostile client can do with it."""

import json
import random
import tracemalloc
import zlib

import pytest
import trio
import trio.testing
import websockets.sync.client
from hypothesis import given
from hypothesis import strategies as st
from serving import Model, Server, WebSocket, create, endless, listening, masked
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory
from wsproto.connection import Connection, ConnectionType
from wsproto.events import TextMessage

from turntape.core.seam import Finish, Text
from turntape.transport.compression import LARGE_BYTES, SMALL_BYTES, Deflate, Inflate, Memories, agree
from turntape.transport.outbox import Outbox
from turntape.transport.server import ServerSettings

RSV1 = 0x40
NO_TAKEOVER = "permessage-deflate; server_no_context_takeover; client_no_context_takeover"
LONG = [[(0, ()), (0, tuple(Text(f"word {n} ") for n in range(40))), (0, (Finish(),))]]


def deflate(text: bytes, compressor: "zlib._Compress | None" = None) -> bytes:
    """The payload of a compressed message."""
    compressor = compressor or zlib.compressobj(wbits=-15)
    return (compressor.compress(text) + compressor.flush(zlib.Z_SYNC_FLUSH))[:-4]


def server(nursery, backend=None, **fields):
    return Server(nursery, backend or Model(), ServerSettings(compression="on", **fields))


async def compressing(server, offer="permessage-deflate"):
    ws = await server.websocket(sec_websocket_extensions=offer)
    ws.inflate = zlib.decompressobj(-15)
    return ws


@pytest.mark.parametrize(
    "offers, answer",
    [
        ("permessage-deflate", "permessage-deflate"),
        ("permessage-deflate; client_max_window_bits", "permessage-deflate"),  # Codex's
        ("permessage-deflate; client_max_window_bits=15", "permessage-deflate"),
        ("permessage-deflate; client_max_window_bits=8", "permessage-deflate; client_max_window_bits=8"),
        ('permessage-deflate; client_max_window_bits="10"', "permessage-deflate; client_max_window_bits=10"),
        ("permessage-deflate; server_max_window_bits=9", "permessage-deflate; server_max_window_bits=9"),
        ("PerMessage-Deflate ; Server_Max_Window_Bits = 15", "permessage-deflate; server_max_window_bits=15"),
        (NO_TAKEOVER, NO_TAKEOVER),
        ("x-other, permessage-deflate;client_no_context_takeover", "permessage-deflate; client_no_context_takeover"),
        ("permessage-deflate; server_max_window_bits=8, permessage-deflate", "permessage-deflate"),
        ("permessage-deflate; server_max_window_bits=8", None),  # zlib makes no such window
        ("permessage-deflate; server_max_window_bits", None),
        ("permessage-deflate; server_max_window_bits=16", None),
        ("permessage-deflate; server_max_window_bits=09", None),
        ("permessage-deflate; client_max_window_bits=7", None),
        ("permessage-deflate; client_max_window_bits=", None),
        ("permessage-deflate; server_no_context_takeover=1", None),
        ("permessage-deflate; server_no_context_takeover; server_no_context_takeover", None),
        ("permessage-deflate; made_up", None),
        ("permessage-deflate;", None),
        ("permessage-bzip2, deflate", None),
        ("", None),
    ],
)
def test_what_is_agreed_on(offers, answer):
    """The first offer that can be met is, to the letter; one that breaks RFC 7692 is passed over."""
    agreement = agree(offers)
    assert (agreement.header if agreement is not None else None) == answer


@pytest.mark.parametrize("setting, peer, accepted", [
    ("on", "127.0.0.1", True), ("on", "192.0.2.7", True),
    ("auto", "127.0.0.1", False), ("auto", "::1", False), ("auto", "::ffff:127.0.0.1", False), ("auto", None, False),
    ("auto", "192.0.2.7", True), ("auto", "::ffff:192.0.2.7", True),
    ("off", "192.0.2.7", False),
])  # fmt: skip
async def test_whose_offer_is_accepted(nursery, autojump_clock, monkeypatch, setting, peer, accepted):
    """By the setting, and under auto by the client's address; a client that offers nothing is promised nothing."""
    monkeypatch.setattr(Outbox, "peer", peer)
    one = Server(nursery, Model(), ServerSettings(compression=setting))
    for offer in ("permessage-deflate; client_max_window_bits", ""):
        ws = await one.websocket(sec_websocket_extensions=offer)
        assert (b"\r\nsec-websocket-extensions: permessage-deflate" in ws.head) == (accepted and offer != "")
        await ws.create()
        if not (accepted and offer):
            await ws.until("response.completed")  # which would not take a compressed frame


async def test_the_address_of_a_real_client():
    """A socket on loopback is known as one: nothing is compressed under auto."""
    with trio.fail_after(10):
        async with listening(Model()) as port:
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            ws = await WebSocket.open(stream, sec_websocket_extensions="permessage-deflate")
            assert b"sec-websocket-extensions" not in ws.head


@pytest.mark.parametrize("server_keeps", [True, False])
@pytest.mark.parametrize("client_keeps", [True, False])
@pytest.mark.parametrize("server_bits", [None, 9, 15])
@pytest.mark.parametrize("client_bits", [None, True, 9, 15])
async def test_the_websockets_library(server_keeps, client_keeps, server_bits, client_bits):
    """A client of another make works with every combination of parameters, over several turns on one socket."""

    def work(port):
        factory = ClientPerMessageDeflateFactory(
            server_no_context_takeover=not server_keeps,
            client_no_context_takeover=not client_keeps,
            server_max_window_bits=server_bits,
            client_max_window_bits=client_bits,
        )
        url = f"ws://127.0.0.1:{port}/v1/responses"
        with websockets.sync.client.connect(url, extensions=[factory], compression=None, proxy=None) as ws:
            assert len(ws.protocol.extensions) == 1
            for turn in range(3):
                ws.send(create(f"turn {turn} " + "the quick brown fox " * 500))
                texts = []
                while not texts or texts[-1]["type"] != "response.completed":
                    texts.append(json.loads(ws.recv(timeout=10)))
                assert texts[-1]["response"]["output"][0]["content"][0]["text"] == "".join(
                    f"word {n} " for n in range(40)
                )

    with trio.fail_after(30):
        async with listening(Model(LONG), compression="on") as port:
            await trio.to_thread.run_sync(work, port)


async def test_a_batch_is_frames_of_their_own_in_one_write(nursery, autojump_clock):
    """Each event is one compressed message, and all events of a batch still come in one write."""
    ws = await compressing(server(nursery, Model([[(0, ()), *LONG[0][1:2], (1, (Finish(),))]])))
    await ws.create()
    await ws.until("response.in_progress")
    await ws.until("response.output_text.delta")
    n_bytes, n_compressed = ws.n_bytes, ws.n_compressed
    for n in range(1, 40):
        assert (await ws.event())["delta"] == f"word {n} "
        assert not ws.received or ws.received[0] in (0xC1, 0x81)
    assert ws.n_compressed - n_compressed == 39
    assert ws.n_bytes - n_bytes < 39 * 80, "less than half of their JSON"


@pytest.mark.parametrize("offer", ["permessage-deflate", NO_TAKEOVER])
async def test_takeover(nursery, autojump_clock, offer):
    """With takeover a turn like the last one costs a fraction of it, both ways; without, the same again."""
    ws = await compressing(server(nursery), offer)
    keeps = offer != NO_TAKEOVER
    ours = zlib.compressobj(wbits=-15)
    instructions = random.Random(7).randbytes(3000).hex()
    received, sent = [], []
    for turn in range(2):
        payload = deflate(create(f"turn {turn}", instructions=instructions).encode(), ours if keeps else None)
        before = ws.n_bytes
        await ws.send(masked(1, payload, rsv=RSV1))
        events = await ws.until("response.completed")
        assert events[0]["response"]["instructions"] == instructions
        received.append(ws.n_bytes - before)
        sent.append(len(payload))
    if keeps:
        assert received[1] < received[0] * 0.6 and sent[1] < sent[0] * 0.1
    else:
        assert received[1] > received[0] * 0.9 and sent[1] > sent[0] * 0.9


async def test_what_goes_as_it_is(nursery, autojump_clock):
    """Pongs, closes, and messages that are too small to gain or too large to wait for, are not compressed."""
    ws = await compressing(server(nursery))
    ws.inflate = None  # frames that are compressed are now refused by the reader
    await ws.send(masked(9, b"p" * 100))
    assert await ws.frame() == (10, b"p" * 100)
    await ws.send(masked(8, b"\x03\xe8"))
    assert await ws.closed() == 1000
    for size in (0, SMALL_BYTES - 1):
        assert Deflate(15, True, Memories()).message(b"x" * size) is None
    for size in (SMALL_BYTES, LARGE_BYTES):
        assert Deflate(15, True, Memories()).message(b"x" * size) is not None
    assert Deflate(15, True, Memories()).message(b"x" * (LARGE_BYTES + 1)) is None


async def test_compressed_and_plain_messages_in_pieces_with_pings_between(nursery, autojump_clock):
    """A client may compress each message or not, and cut it anywhere; pings between belong to none."""
    ws = await compressing(server(nursery))
    ours = zlib.compressobj(wbits=-15)
    for compressed in (True, False, True):
        text = create("é" * 3000 if compressed else "plain").encode()
        payload = deflate(text, ours) if compressed else text
        cuts = [payload[:1], payload[1:7], b"", payload[7:]]
        for n, part in enumerate(cuts):
            rsv = RSV1 if compressed and not n else 0
            await ws.send(masked(0 if n else 1, part, fin=n == len(cuts) - 1, rsv=rsv))
            if n < len(cuts) - 1:
                await ws.send(masked(9, b"%d" % n))
                assert await ws.frame() == (10, b"%d" % n)
        await ws.until("response.completed")


async def test_a_stream_that_its_sender_ended_is_begun_anew(nursery, autojump_clock):
    """A sender may end its stream for good with a message (section 7.2.3.4), a few times in one read."""
    ws = await compressing(server(nursery))
    for _ in range(2):
        compressor = zlib.compressobj(wbits=-15)
        payload = compressor.compress(create().encode()) + compressor.flush() + b"\0"
        await ws.send(masked(1, payload, rsv=RSV1))
        await ws.until("response.completed")
    await ws.send(masked(1, b"\x03\x00" * 5000, rsv=RSV1))  # each an ended stream of nothing
    assert await ws.closed() == 1007


def bomb(n_mebibytes: int) -> bytes:
    """A compressed message of so many MiB, a thousandth as long; without its last byte it can be gone on with."""
    compressor = zlib.compressobj(9, wbits=-15)
    head = compressor.compress(b" " * (1 << 20)) + compressor.flush(zlib.Z_FULL_FLUSH)
    return head * n_mebibytes + b"\x00"


@pytest.mark.parametrize(
    "parts",
    [
        [bomb(1024)],
        [bomb(1024)[n : n + 5000] for n in range(0, len(bomb(1024)), 5000)],
        [bomb(1)[:-1]] * 20,  # each within the bound
    ],
    ids=["one frame", "fragments", "fragments within the bound"],
)
async def test_a_bomb_is_refused_while_it_is_inflated(nursery, autojump_clock, parts):
    """1 MB that would become 1 GB ends its connection with 1009 before a few times the bound was ever in memory."""
    limit = 1 << 21
    one = server(nursery, max_message_bytes=limit)
    other, ws = await compressing(one), await compressing(one)
    last = len(parts) - 1
    frames = [masked(0 if n else 1, part, fin=n == last, rsv=0 if n else RSV1) for n, part in enumerate(parts)]
    tracemalloc.start()
    try:
        await ws.send(b"".join(frames))
        assert await ws.closed() == 1009
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6 * limit
    await other.create()
    await other.until("response.completed")


async def test_the_bound_is_of_each_message(nursery, autojump_clock):
    """A message that inflates to the very bound is taken, again and again; one byte more is not, in any number of pieces."""
    ws = await compressing(server(nursery, max_message_bytes=5000))
    ours = zlib.compressobj(wbits=-15)
    for _ in range(3):
        await ws.send(masked(1, deflate(create().encode().ljust(5000), ours), rsv=RSV1))
        await ws.until("response.completed")
    await ws.send(masked(1, deflate(create().encode().ljust(5001), ours), rsv=RSV1))
    assert await ws.closed() == 1009
    ws = await compressing(server(nursery, max_message_bytes=5000))
    letters = "".join(random.Random(7).choices("àáâãäåæçèéêëìíîï", k=2501)).encode()  # 2 bytes each
    payload = deflate(letters)
    await ws.send(masked(1, payload[:800], fin=False, rsv=RSV1) + masked(0, payload[800:]))
    assert await ws.closed() == 1009


@pytest.mark.parametrize(
    "frames, code",
    [
        (masked(1, b"\xff\xff\xff\xff", rsv=RSV1), 1007),
        (masked(1, deflate(b"x" * 300)[:-3] + b"\xff\xff\xff", rsv=RSV1), 1007),
        (masked(1, deflate(b"\xff\xfe"), rsv=RSV1), 1007),  # inflates, and is no UTF-8
        (masked(9, b"x", rsv=RSV1), 1002),
        (masked(1, b"x", fin=False) + masked(0, b"x", rsv=RSV1), 1002),
        (masked(1, b"x", rsv=0x20), 1002),
        (masked(1, b"x", rsv=0x10), 1002),
    ],
)
async def test_what_cannot_be_inflated_ends_one_connection(nursery, autojump_clock, frames, code):
    """A corrupt stream and misplaced bits get the code that the standards want, and disturb nobody else."""
    one = server(nursery)
    other, ws = await compressing(one), await compressing(one)
    await ws.send(frames)
    assert await ws.closed() == code
    await other.create()
    await other.until("response.completed")


async def test_leaving_within_a_compressed_frame(nursery, autojump_clock, caplog):
    """A client that breaks off inside a compressed frame frees its sample, and nothing is logged."""
    backend = Model([endless(pause_s=1)])
    one = server(nursery, backend)
    ws = await compressing(one)
    await ws.create()
    await ws.until("response.output_text.delta")
    await ws.send(masked(1, deflate(create("x" * 10_000).encode()), rsv=RSV1)[:-5])
    await trio.aclose_forcefully(ws.stream)
    await trio.testing.wait_all_tasks_blocked()
    assert (backend.n_running, one.service.n_open, caplog.records) == (0, 0, [])


def test_memory_is_taken_with_the_first_compressed_message():
    """A connection that has only agreed has no zlib state yet, which is most of what a compressing one holds."""
    inflate = Inflate(keeps_window=True, max_bytes=100, whole=True)
    assert Deflate(15, True, Memories())._compressor is None and inflate._inflate is None


async def test_the_memory_of_compressors_is_bounded(nursery, autojump_clock):
    """Beyond the bound the one used longest ago begins anew, which its client cannot see; a client that left counts no more."""
    one = server(nursery)
    one.service.memories.max_live = 2
    clients = [await compressing(one) for _ in range(3)]
    for _ in range(2):
        for ws in clients:
            await ws.create(instructions="the same " * 100)
            await ws.until("response.completed")
            assert len(one.service.memories._used) <= 2
    for ws in clients:
        await trio.aclose_forcefully(ws.stream)
    await trio.testing.wait_all_tasks_blocked()
    assert not one.service.memories._used


@given(
    texts=st.lists(st.text(max_size=400), max_size=12),
    bits=st.integers(9, 15),
    keeps=st.booleans(),
    cut=st.integers(1, 600),
)
def test_any_messages_come_through(texts, bits, keeps, cut):
    """What one half compresses the other reads, whatever the window and wherever the reads are cut."""
    sender = Deflate(bits, keeps, Memories())
    inflate = Inflate(keeps_window=keeps, max_bytes=10_000, whole=True, bits=bits)
    receiver = Connection(ConnectionType.SERVER, [inflate])
    frames = b""
    for text in texts:
        body = sender.message(text.encode())
        frames += masked(1, text.encode()) if body is None else masked(1, body, rsv=RSV1)
    read = [""]
    for n in range(0, len(frames), cut):
        receiver.receive_data(frames[n : n + cut])
        for event in receiver.events():
            assert isinstance(event, TextMessage)
            read[-1] += event.data
            if event.message_finished:
                read.append("")
    assert read[:-1] == texts
