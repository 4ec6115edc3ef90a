"""A relay passes bytes as they are, records what they say, and is disturbed by nothing that it cannot read."""

import gzip
import io
import json
import logging
import socket
import ssl
import struct
from functools import partial

import pytest
import trio
import trio.testing
import trustme
from backports import zstd
from relaying import COMPRESSED, HANDSHAKE, KEY, End, Rig, answer, delta, event, frames, post, sse
from wsproto.frame_protocol import CloseReason

from turntape.replay.recorder import Tape
from turntape.replay.relay.pump import HALF_CLOSED_S, HEAD_S, MAX_UNANSWERED, READ_BYTES, Pump
from turntape.replay.relay.relay import Relay
from turntape.replay.relay.server import serve
from turntape.replay.relay.upstream import Upstream
from turntape.transport.guard import Guard
from turntape.transport.http_connections import Connections

CREATE = event("response.create", model="m", input="Hi")
COMPLETED = event("response.completed", sequence_number=9, response={"id": "resp_1", "output": []})


# --- bytes -----------------------------------------------------------------------------------------

REQUESTS = [
    b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX-Odd:  a \r\n\r\n",
    b"HEAD /v1/responses HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b'POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: 12\r\n\r\n{"input":""}',
    (
        b"POST /v1/responses/compact HTTP/1.1\r\nHOST: localhost\r\nTransfer-Encoding: chunked\r\nTrailer: T\r\n\r\n"
        b"5;x=y\r\nhello\r\n0\r\nT: v\r\n\r\n"
    ),
    b"DELETE /v1/responses/resp_1?x=1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
]
ANSWERS = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 Fine\r\nContent-Length: 5000\r\n\r\n",
    (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 429 Slow\r\nRetry-After: 1\r\n"
        b"Content-Length: 2\r\n\r\n{}"
    ),
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
]


@pytest.mark.parametrize("size", [1, 7, 100_000])
async def test_bytes_pass_as_they_are(size: int, nursery: trio.Nursery, autojump_clock: object) -> None:
    """On one connection, whole or in pieces, ahead of the answers: only host and path of a head are changed."""
    rig = Rig(nursery)
    client = rig.client()
    sent, answered = b"".join(REQUESTS), b"".join(ANSWERS)
    expected = sent.replace(b"/v1/", b"/base/v1/")
    for host in (b"Host: ", b"host: ", b"HOST: "):
        expected = expected.replace(host + b"localhost", host + b"up.example")
    async with trio.open_nursery() as sending:

        async def send() -> None:
            await client.send(*(sent[at : at + size] for at in range(0, len(sent), size)))

        sending.start_soon(send)
        upstream = await rig.accept()
        assert await upstream.receive(len(expected)) == expected
        await upstream.send(*(answered[at : at + size] for at in range(0, len(answered), size)))
        await upstream.end()
        assert await client.rest() == answered
        await client.end()
        assert await upstream.rest() == b""
    assert rig.n_connections == 1
    assert sum(rig.relay.n_others.values()) == 5
    [session] = rig.named("relay")
    assert (session["method"], session["path"], session["upstream"]) == (
        "POST",
        "/v1/responses",
        "http://up.example/base/v1",
    )
    assert [line["status"] for line in rig.named("answer")] == [429]


@pytest.mark.parametrize("agreed", ["", "; server_no_context_takeover; client_no_context_takeover"])
@pytest.mark.parametrize("compressed", [False, True])
async def test_frames_pass_as_they_are_and_are_recorded(
    compressed: bool, agreed: str, nursery: trio.Nursery, autojump_clock: object
) -> None:
    """Compressed or not, fragmented, with pings between: frames pass to the byte, and the messages are written down."""
    rig = Rig(nursery)
    extensions = f"{COMPRESSED}{agreed}\r\n" if compressed else ""
    client, upstream = await rig.websocket(extensions=extensions, offer=extensions)
    named = f"permessage-deflate{agreed}" if compressed else ""
    asking, answering = frames(from_client=True, agreed=named), frames(from_client=False, agreed=named)
    asked = bytes(
        asking.send_data(CREATE[:20], fin=False) + asking.ping(b"p") + asking.send_data(CREATE[20:], fin=True)
    )
    await client.send(asked[:3], asked[3:])
    assert await upstream.receive(len(asked)) == asked
    answered = bytes(
        answering.pong(b"p")
        + answering.send_data(delta("Hel", 4), fin=True)
        + answering.send_data(delta("lo", 5), fin=True)
        + answering.send_data(COMPLETED, fin=True)
        + answering.close(CloseReason.GOING_AWAY, "bye")
    )
    await upstream.send(answered)
    assert await client.receive(len(answered)) == answered
    closing = bytes(asking.close(CloseReason.GOING_AWAY, "bye"))
    await client.send(closing)
    assert await upstream.receive(len(closing)) == closing
    await upstream.close()
    await client.close()
    await trio.testing.wait_all_tasks_blocked()
    relay, head, asked_line, first, short, completed, gone = rig.lines
    assert (relay["transport"], relay["rules"], head["status"]) == ("websocket", ["codex"], 101)
    assert json.dumps(asked_line["json"], separators=(",", ":")) == CREATE
    assert first["json"]["delta"] == "Hel"
    assert (short["u"], short["d"]) == (1, ["lo"])
    assert completed["json"]["type"] == "response.completed"
    assert (gone["by"], gone["code"], gone["reason"]) == ("upstream", 1001, "bye")


async def test_a_request_after_a_refused_upgrade_is_led_there_too(
    nursery: trio.Nursery, autojump_clock: object
) -> None:
    """The connection goes on as HTTP: what a client sends ahead is held until it is known to be no frame."""
    rig = Rig(nursery)
    client = rig.client()
    await client.send(f"{HANDSHAKE}\r\n".encode() + post(b'{"input":"Hi"}'))
    upstream = await rig.accept()
    assert (await upstream.head()).startswith("GET /base/v1/responses ")
    await trio.testing.wait_all_tasks_blocked()
    assert not upstream.received
    body = b'{"error":{"message":"no socket"}}'
    refusal = answer(body, status="426 Upgrade Required", more="Upgrade: websocket\r\n")
    await upstream.send(refusal)
    assert await client.receive(len(refusal)) == refusal
    assert (await upstream.head()).startswith("POST /base/v1/responses ")
    assert await upstream.receive(14) == b'{"input":"Hi"}'
    await upstream.send(answer(b'{"object":"response","output":[]}'))
    await upstream.end()
    await client.rest()
    refused, asked = (line["transport"] for line in rig.named("relay"))
    assert (refused, asked) == ("websocket", "http")
    assert [line["status"] for line in rig.named("answer")] == [426, 200]
    assert rig.named("up")[0]["json"] == json.loads(body)


@pytest.mark.parametrize("status", ["401 Unauthorized", "404 Not Found", "429 Too Many Requests", "503 Unavailable"])
async def test_refused_handshakes_pass_with_body_and_headers(
    status: str, nursery: trio.Nursery, autojump_clock: object
) -> None:
    """What the upstream says to a handshake that it refuses is what the client gets, and what is recorded."""
    rig = Rig(nursery)
    client = rig.client()
    await client.send(f"{HANDSHAKE}\r\n".encode())
    upstream = await rig.accept()
    await upstream.head()
    refusal = answer(b'{"error":{"code":"c"}}', status=status, more="retry-after: 7\r\nx-odd: 1\r\n")
    await upstream.send(refusal)
    await upstream.end()
    assert await client.rest() == refusal
    [head], [body] = rig.named("answer"), rig.named("up")
    assert (head["status"], head["headers"]["retry-after"]) == (int(status[:3]), "7")
    assert "x-odd" not in head["headers"]
    assert body["json"] == {"error": {"code": "c"}}


async def test_a_client_that_ends_while_its_upgrade_is_unanswered_is_seen(
    nursery: trio.Nursery, autojump_clock: object
) -> None:
    """The upstream learns at once that nobody waits for the handshake any more."""
    rig = Rig(nursery)
    client = rig.client()
    await client.send(f"{HANDSHAKE}\r\n".encode())
    upstream = await rig.accept()
    await upstream.head()
    await client.end()
    with trio.fail_after(1):
        assert await upstream.rest() == b""


async def test_half_closed_connections_pass_the_rest(nursery: trio.Nursery, autojump_clock: object) -> None:
    """A client that has said all it will still gets its answer."""
    rig = Rig(nursery)
    client = rig.client()
    await client.send(post(b'{"input":"Hi"}'))
    await client.end()
    upstream = await rig.accept()
    await upstream.rest()
    await upstream.send(answer(b"{}"))
    await upstream.end()
    assert (await client.rest()).endswith(b"{}")


async def test_a_side_that_never_ends_is_let_go(nursery: trio.Nursery, autojump_clock: object) -> None:
    """One that has been left and says nothing holds its connection for a minute, and not for ever."""
    rig = Rig(nursery)
    client = rig.client()
    await client.send(post(b'{"input":"Hi"}'))
    upstream = await rig.accept()
    before = trio.current_time()
    await client.end()
    await upstream.rest()
    assert await client.rest() == b""
    assert trio.current_time() - before == HALF_CLOSED_S
    assert rig.named("gone")[0]["by"] == "client"


async def test_a_slow_reader_holds_up_the_upstream(nursery: trio.Nursery, autojump_clock: object) -> None:
    """Of what an upstream sends no more is read than one read, until its client has taken that."""
    rig = Rig(nursery)
    slow, ours = trio.testing.lockstep_stream_pair()
    rig.nursery.start_soon(Pump(rig.relay, ours).run)
    client = End(slow)
    await client.send(post(b'{"input":"Hi"}'))
    upstream = await rig.accept()
    await upstream.head()
    sent = answer(bytes(1 << 20))
    await upstream.send(sent)
    await trio.testing.wait_all_tasks_blocked()
    assert rig.n_read <= READ_BYTES
    assert await client.receive(len(sent)) == sent


async def test_requests_that_nobody_answers_hold_up_their_client(nursery: trio.Nursery, autojump_clock: object) -> None:
    """So many may wait for answers on one connection; the next is sent on when one of those is answered."""
    rig = Rig(nursery)
    client = rig.client()
    await client.send(b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1:8765\r\n\r\n" * (MAX_UNANSWERED + 10))
    upstream = await rig.accept()
    for _ in range(MAX_UNANSWERED):
        await upstream.head()
    with trio.move_on_after(5) as waiting:
        await upstream.head()
    assert waiting.cancelled_caught
    await upstream.send(answer(b"{}"))
    await upstream.head()


# --- what is recorded ------------------------------------------------------------------------------


async def ask(rig: Rig, body: bytes = b'{"input":"Hi","stream":true}', more: str = "") -> tuple[End, End]:
    client = rig.client()
    await client.send(post(body, more=f"Authorization: Bearer {KEY}\r\nConnection: keep-alive\r\n{more}"))
    upstream = await rig.accept()
    await upstream.head()
    await upstream.receive(len(body))
    return client, upstream


async def test_an_event_stream_is_recorded_read_by_read(nursery: trio.Nursery, autojump_clock: object) -> None:
    """Each event is a line, deltas of one read share a short one, and times are those of the reads."""
    rig = Rig(nursery)
    client, upstream = await ask(rig)
    await upstream.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
    await client.head()
    for at, said in (
        (0.5, sse(delta("a", 4), delta("b", 5), delta("c", 6))),
        (1.0, sse(delta("d", 7)) + b": ping\n\n"),
    ):
        await trio.sleep(0.5)
        await upstream.send(said)
        await client.receive(len(said))
        assert rig.lines[-1]["t"] == at
    await upstream.send(sse(delta("x", 99), COMPLETED))
    await upstream.end()
    await client.rest()
    assert [line["d"] for line in rig.named("u")] == [["b", "c"], ["d"]]
    assert [line["json"].get("delta") for line in rig.named("up")] == ["a", "x", None]  # 99 does not follow 7
    assert rig.named("gone") == [{"gone": 1, "t": 1.0, "by": "upstream", "code": None, "reason": ""}]
    assert rig.relay.tape.n_turns == 1


async def test_obfuscation_is_kept_beside_its_deltas(nursery: trio.Nursery, autojump_clock: object) -> None:
    """Padding that the upstream sends with each delta is recorded with it."""
    rig = Rig(nursery)
    client, upstream = await ask(rig)
    await upstream.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
    await upstream.send(sse(delta("a", 4, obfuscation="q"), delta("b", 5, obfuscation="ww"), delta("c", 6)))
    await upstream.end()
    await client.rest()
    [short] = rig.named("u")
    assert (short["d"], short["o"]) == (["b"], ["ww"])
    messages = [m for line in rig.fixture.lines if hasattr(line, "messages") for m in line.messages]
    assert [m.get("obfuscation") for m in messages] == ["q", "ww", None]


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
async def test_compressed_bodies_are_recorded_as_what_they_say(
    coding: str, nursery: trio.Nursery, autojump_clock: object
) -> None:
    """A compressed request and a compressed event stream pass compressed and are recorded in clear."""
    rig = Rig(nursery)
    compress = {"gzip": gzip.compress, "zstd": zstd.compress}[coding]
    coded = f"Content-Encoding: {coding}\r\n"
    client, upstream = await ask(rig, compress(b'{"input":"Hi"}'), coded)
    stream = compress(sse(delta("a", 4), delta("b", 5), COMPLETED))
    sent = answer(stream, type_="text/event-stream; charset=utf-8", more=coded)
    await upstream.send(sent[:-20], sent[-20:])
    assert await client.receive(len(sent)) == sent
    assert rig.named("client")[0]["json"] == {"input": "Hi"}
    assert [line["json"]["type"] for line in rig.named("up")] == ["response.output_text.delta", "response.completed"]
    assert [line["d"] for line in rig.named("u")] == [["b"]]


async def test_answers_that_were_cut_off_end_by_who_cut_them(nursery: trio.Nursery, autojump_clock: object) -> None:
    """An answer that its upstream broke off, and one that its client left, are told apart."""
    rig = Rig(nursery)
    client, upstream = await ask(rig)
    await upstream.send(answer(b"0123456789", type_="text/event-stream")[:-5])
    await upstream.end()
    await client.rest()
    await client.end()
    await trio.testing.wait_all_tasks_blocked()
    client, upstream = await ask(rig)
    await upstream.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + sse(delta("a", 4)))
    await client.head()
    await client.end()
    await upstream.rest()
    await upstream.end()
    await trio.testing.wait_all_tasks_blocked()
    assert [line["by"] for line in rig.named("gone")] == ["upstream", "client"]


async def test_binary_messages_and_odd_texts_are_recorded(nursery: trio.Nursery, autojump_clock: object) -> None:
    """Bytes are kept as base64, text that is no JSON as text, and JSON that is written in odd ways to the byte."""
    rig = Rig(nursery)
    client, upstream = await rig.websocket()
    sender = frames(from_client=True)
    texts = ["no json", '{"a" :1}', '{"type": "x.delta", "delta": 1}', '{"type":"response.create","input":"\\ud800"}']
    for content in (b"\x00\xffhi", *texts):
        await client.send(bytes(sender.send_data(content, fin=True)))
    await client.end()
    await upstream.rest()
    await upstream.end()
    await trio.testing.wait_all_tasks_blocked()
    first, *others = rig.fixture.lines[2:-1]
    assert getattr(first, "binary", None) == "AP9oaQ=="
    assert [line.text for line in others if hasattr(line, "text")] == texts


async def test_two_hundred_turns_with_their_tools_stay_small(nursery: trio.Nursery, autojump_clock: object) -> None:
    """200 turns that send 20 KB of tools each, and get them echoed three times, are under 5 MB, one line a message."""
    rig = Rig(nursery)
    tools = [{"type": "function", "name": f"tool_{n}", "description": "words " * 300} for n in range(11)]
    client, upstream = await rig.websocket()
    asking, answering = frames(from_client=True), frames(from_client=False)
    sent = 0
    for turn in range(200):
        item = {"type": "function_call_output", "call_id": f"call_{turn}", "output": f"line {turn}\n" * 100}
        asked = event("response.create", model="m", input=[item], tools=tools)
        response = {"id": f"resp_{turn}", "tools": tools, "instructions": "be good " * 1000, "output": []}
        events = [event("response.created", sequence_number=0, response=response)]
        events += [delta(f"word {n} ", 4 + n, item_id=f"msg_{turn}") for n in range(60)]
        events += [event("response.completed", sequence_number=99, response=response)]
        await client.send(bytes(asking.send_data(asked, fin=True)))
        await upstream.stream.receive_some()
        for said in events:
            await upstream.send(bytes(answering.send_data(said, fin=True)))
        sent += len(asked) + sum(map(len, events))
    await client.end()
    async with trio.open_nursery() as sending:
        sending.start_soon(client.rest)
        await upstream.rest()
        await upstream.end()
    await trio.testing.wait_all_tasks_blocked()
    assert sent > 12_000_000
    assert len(rig.out.getvalue()) < 5_000_000
    assert max(map(len, rig.out.getvalue().splitlines())) < 30_000
    assert len(rig.named("client")) == 200


# --- secrets ---------------------------------------------------------------------------------------


async def test_a_key_is_nowhere_in_the_recording(nursery: trio.Nursery, autojump_clock: object) -> None:
    """The client's key reaches the upstream, and no line: not from a header, a query, a prompt, or deltas that split it."""
    rig = Rig(nursery)
    client = rig.client()
    body = json.dumps({"input": f"my key is {KEY}", "stream": True}).encode()
    await client.send(post(body, path=f"/v1/responses?key={KEY}", more=f"Authorization: Bearer {KEY}\r\n"))
    upstream = await rig.accept()
    head = await upstream.head()
    assert head.count(KEY) == 2
    assert await upstream.receive(len(body)) == body
    await upstream.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
    pieces = ["So it is ", KEY[:5], KEY[5:20], KEY[20:], " then", "."]
    said = [delta(piece, 4 + n, logprobs=[{"token": piece}]) for n, piece in enumerate(pieces)]
    done = event("response.output_text.done", sequence_number=10, item_id="msg_1", output_index=0, content_index=0,
                 text="".join(pieces), logprobs=[{"token": piece} for piece in pieces])  # fmt: skip
    await upstream.send(*(sse(each) for each in said), sse(done, COMPLETED))
    await upstream.end()
    await client.rest()
    written = rig.out.getvalue().decode()
    assert KEY not in written
    assert KEY[5:20] not in written
    assert KEY[20:] not in written
    messages = [m for line in rig.fixture.lines if hasattr(line, "messages") for m in line.messages]
    told = "".join(message["delta"] for message in messages if "delta" in message)
    [text] = [message["text"] for message in messages if "text" in message]
    assert told == text
    assert text.startswith("So it is ")
    assert text.endswith(" then.")


async def test_a_delta_that_looked_like_a_key_is_itself_again(nursery: trio.Nursery, autojump_clock: object) -> None:
    """What was held for a moment, and was no key, is recorded in the pieces and at the times at which it came."""
    rig = Rig(nursery)
    client, upstream = await ask(rig)
    await upstream.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
    await client.head()
    pieces = ["ask", " sk", "-", "et", "ch", "es", " gh", "p_"]
    for n, piece in enumerate(pieces):
        await trio.sleep(0.25)
        await upstream.send(sse(delta(piece, 4 + n, item_id="msg_1")))
    await upstream.send(sse(COMPLETED))
    await upstream.end()
    await client.rest()
    told = [
        m["delta"] for line in rig.fixture.lines if hasattr(line, "messages") for m in line.messages if "delta" in m
    ]
    assert told == pieces
    assert [line["t"] for line in rig.named("u")] == [0.25 * n for n in range(2, 9)]


# --- what cannot be read ---------------------------------------------------------------------------


async def test_what_cannot_be_read_passes_and_is_noted(
    nursery: trio.Nursery, autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    """An upstream that breaks the rules reaches its client to the byte; the recording says that something is missing."""
    rig = Rig(nursery)
    client, upstream = await ask(rig)
    nonsense = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nwhatever"
    await upstream.send(nonsense, b"and more")
    await upstream.end()
    assert await client.rest() == nonsense + b"and more"
    await client.end()
    [unread] = rig.named("unread")
    assert (unread["unread"], unread["by"]) == (1, "upstream")
    assert "not recorded" in caplog.text


@pytest.mark.parametrize("side", ["client", "upstream"])
async def test_frames_that_break_the_rules_pass_and_are_noted(
    side: str, nursery: trio.Nursery, autojump_clock: object
) -> None:
    """A frame that no reader takes goes on as it is, in either direction."""
    rig = Rig(nursery)
    client, upstream = await rig.websocket()
    sender, receiver = (client, upstream) if side == "client" else (upstream, client)
    await sender.send(b"\x83\x05hello", b"more")
    assert await receiver.receive(11) == b"\x83\x05hellomore"
    assert [line["by"] for line in rig.named("unread")] == [side]


async def test_a_client_body_that_breaks_the_rules_passes(nursery: trio.Nursery, autojump_clock: object) -> None:
    """A chunk that is none is the upstream's to refuse."""
    rig = Rig(nursery)
    client = rig.client()
    body = b"xyz\r\nhello"
    await client.send(b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
    upstream = await rig.accept()
    await upstream.head()
    assert await upstream.receive(len(body)) == body
    assert [line["by"] for line in rig.named("unread")] == ["client"]


async def test_a_reader_that_fails_stops_nobody(
    nursery: trio.Nursery, autojump_clock: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug of the reader's is logged and marked, and the bytes go on."""
    rig = Rig(nursery)
    client, upstream = await rig.websocket()

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("turntape.replay.relay.tap.TapSession.client", fail)
    sent = bytes(frames(from_client=True).send_data(CREATE, fin=True))
    await client.send(sent, sent)
    assert await upstream.receive(2 * len(sent)) == 2 * sent
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.WARNING]
    assert len(rig.named("unread")) == 1


# --- who may come in -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ("Host: 127.0.0.1:8765\r\nOrigin: https://evil.example", "403", "origin_not_allowed"),
        ("Host: evil.example", "403", "host_not_allowed"),
        ("Host: 127.0.0.1\r\nOrigin: null", "403", "origin_not_allowed"),
        ("no field at all", "400", "invalid_request"),
    ],
)
async def test_a_web_page_reaches_no_upstream(
    fields: str, status: str, code: str, nursery: trio.Nursery, autojump_clock: object
) -> None:
    """A page of another origin, or one that had its name pointed here, gets a refusal, and nothing is connected to."""
    rig = Rig(nursery)
    client = rig.client()
    await client.send(f"GET /v1/models HTTP/1.1\r\n{fields}\r\n\r\n".encode())
    await client.end()
    head, _, body = (await client.rest()).partition(b"\r\n\r\n")
    assert head.decode().split()[1] == status
    error = json.loads(body)["error"]
    assert (error["code"], set(error)) == (code, {"message", "type", "param", "code"})
    assert rig.n_connections == 0


async def test_each_request_of_a_connection_is_looked_at(nursery: trio.Nursery, autojump_clock: object) -> None:
    """A page cannot borrow the connection of somebody who was let in."""
    rig = Rig(nursery)
    client = rig.client()
    await client.send(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
    upstream = await rig.accept()
    await upstream.head()
    await upstream.send(ANSWERS[0])
    await client.receive(len(ANSWERS[0]))
    await client.send(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example\r\n\r\n")
    await client.end()
    assert b"403" in await client.rest()
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(trio.BrokenResourceError):
        await upstream.send(b"x")
    assert not upstream.received


async def test_keys_are_asked_for_where_they_are_configured(nursery: trio.Nursery, autojump_clock: object) -> None:
    """On an open port only a client with one of the keys reaches the upstream, and its key goes there."""
    rig = Rig(nursery, options={"guard": Guard(frozenset({KEY}), host="0.0.0.0")})
    client = rig.client()
    await client.send(b"GET /v1/models HTTP/1.1\r\nHost: box.example\r\nAuthorization: Bearer wrong\r\n\r\n")
    await client.end()
    assert b" 401 " in await client.rest()
    assert rig.n_connections == 0
    client = rig.client()
    await client.send(f"GET /v1/models HTTP/1.1\r\nHost: box.example\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode())
    assert KEY in await (await rig.accept()).head()


async def test_without_a_websocket_an_upgrade_is_refused_here(nursery: trio.Nursery, autojump_clock: object) -> None:
    """An agent that is to be recorded over HTTP gets 426, and goes on over HTTP."""
    rig = Rig(nursery, options={"websocket": False})
    client = rig.client()
    await client.send(f"{HANDSHAKE}\r\n".encode())
    await client.end()
    assert (await client.rest()).startswith(b"HTTP/1.1 426 ")
    assert rig.n_connections == 0


async def test_an_upstream_that_is_not_there_is_said(nursery: trio.Nursery, autojump_clock: object) -> None:
    """The client gets 502 with a reason and a cure, the terminal too, and nothing is recorded."""

    async def nobody(host: str, port: int) -> trio.abc.Stream:
        raise ConnectionRefusedError(111, "refused")

    said: list[str] = []
    rig = Rig(nursery, options={"connections": Connections(connect=nobody), "on_unreachable": said.append})
    client = rig.client()
    await client.send(post(b"{}"))
    await client.end()
    head, _, body = (await client.rest()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 502 ")
    error = json.loads(body)["error"]
    assert error["code"] == "upstream_unreachable"
    assert "up.example cannot be reached: nothing listens there" in error["message"]
    assert said == [error["message"]]
    assert not rig.lines


async def test_a_head_that_never_ends_is_not_waited_for(nursery: trio.Nursery, autojump_clock: object) -> None:
    """A client that opens a connection and says nothing whole is answered 408 after a while."""
    rig = Rig(nursery)
    client = rig.client()
    await client.send(b"GET /v1/mod")
    before = trio.current_time()
    head = await client.head()
    assert head.startswith("HTTP/1.1 408 ")
    assert trio.current_time() - before == HEAD_S


async def test_tls_upstreams_are_asked_by_their_name(nursery: trio.Nursery, autojump_clock: object) -> None:
    """An https upstream is connected to with TLS, by its name, and learns of its client's end like any other."""
    authority, names = trustme.CA(), list[str | None]()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("up.example").configure_cert(server)
    server.sni_callback = lambda _, name, __: names.append(name)
    rig = Rig(nursery, url="https://up.example/v1")
    rig.relay.connections.ssl_context = ssl.create_default_context()
    authority.configure_trust(rig.relay.connections.ssl_context)
    client = rig.client()
    await client.send(post(b'{"input":"Hi"}'))
    below = await rig.accept()
    upstream = End(trio.SSLStream(below.stream, server, server_side=True, https_compatible=True))
    assert "Host: up.example\r\n" in await upstream.head()
    await upstream.receive(14)
    said = answer(b'{"object":"response","output":[]}')
    await upstream.send(said)
    assert await client.receive(len(said)) == said
    await client.end()
    assert await upstream.rest() == b""
    assert names == ["up.example"]
    assert [line["status"] for line in rig.named("answer")] == [200]


async def test_what_was_asked_is_written_before_its_answer(nursery: trio.Nursery, autojump_clock: object) -> None:
    """An upstream that answers before the relay's own send has returned does not come first in the recording."""
    rig = Rig(nursery)
    client, upstream = await rig.websocket()
    pump_sends = trio.Event()
    inner = rig.upstreams[0]

    async def answer_at_once() -> None:
        await upstream.send(bytes(frames(from_client=False).send_data(COMPLETED, fin=True)))
        await client.stream.receive_some()  # it has passed
        pump_sends.set()

    inner.after_send = answer_at_once
    await client.send(bytes(frames(from_client=True).send_data(CREATE, fin=True)))
    await pump_sends.wait()
    await trio.testing.wait_all_tasks_blocked()
    assert [next(iter(line)) for line in rig.lines] == ["relay", "answer", "client", "up"]


async def test_a_text_that_ends_is_waited_for_no_longer(nursery: trio.Nursery, autojump_clock: object) -> None:
    """What was held of a text is written when that text is done, though its answer goes on."""
    rig = Rig(nursery)
    client, upstream = await ask(rig)
    await upstream.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
    await client.head()
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    await upstream.send(sse(delta("s", 4)), sse(event("response.output_text.done", **place, text="s")))
    await trio.testing.wait_all_tasks_blocked()
    assert [line["json"]["type"].rpartition(".")[2] for line in rig.named("up")] == ["delta", "done"]


@pytest.mark.parametrize("by", ["client", "upstream"])
async def test_a_reset_passes_as_a_reset(by: str) -> None:
    """Who is broken off sees that, and no orderly end."""
    out = io.BytesIO()
    with trio.fail_after(20), socket.create_server(("127.0.0.1", 0)) as listener:
        async with trio.open_nursery() as nursery:
            relay = Relay(Upstream.parse(f"http://127.0.0.1:{listener.getsockname()[1]}/v1"), Tape(out), Guard())
            port = await nursery.start(partial(serve, relay, shutdown=trio.Event()))
            client = await trio.open_tcp_stream("127.0.0.1", port)
            await client.send_all(post(b'{"input":"Hi"}'))
            accepted, _ = await trio.to_thread.run_sync(listener.accept)
            upstream = trio.SocketStream(trio.socket.from_stdlib_socket(accepted))
            await upstream.receive_some()
            leaving, left = (client, upstream) if by == "client" else (upstream, client)
            leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await leaving.aclose()
            with pytest.raises(trio.BrokenResourceError):
                while await left.receive_some():
                    pass
                raise AssertionError("an orderly end")
            await left.aclose()
            nursery.cancel_scope.cancel()
    [gone] = [json.loads(line) for line in out.getvalue().splitlines() if b'"gone"' in line]
    assert gone["by"] == by
