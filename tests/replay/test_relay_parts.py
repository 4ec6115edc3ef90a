"""The parts of a relay that only look at bytes: heads, codings, frames, the URL."""

import gzip
import zlib

import brotli
import pytest
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st
from relaying import frames

from turntape.replay.relay.codings import Decoding, Unreadable
from turntape.replay.relay.frames import Close, FrameReader, Message, TooLarge, extensions_for
from turntape.replay.relay.heads import MAX_HEAD_BYTES, HeadError, RequestHead, split_head
from turntape.replay.relay.upstream import Upstream

CHUNKS = st.lists(st.integers(1, 40), min_size=1, max_size=30)


def cut(whole: bytes, sizes: list[int]) -> list[bytes]:
    parts, at, n = list[bytes](), 0, 0
    while at < len(whole):
        size = sizes[n % len(sizes)]
        parts.append(whole[at : at + size])
        at, n = at + size, n + 1
    return parts


# --- the URL ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "asked", "path"),
    [
        ("https://api.example/v1", "/v1/responses", "/v1/responses"),
        ("https://api.example/openai/v1/", "/v1/responses?a=b", "/openai/v1/responses?a=b"),
        ("https://api.example/openai/v1", "/v1", "/openai/v1"),
        ("https://api.example/openai/v1", "/v1beta/x", "/v1beta/x"),
        ("https://api.example/openai/v1", "/health", "/health"),
        ("https://api.example", "/v1/responses", "/v1/responses"),
        ("https://api.example/openai?api-version=1", "/v1/responses", "/openai/responses?api-version=1"),
        ("https://api.example/openai?api-version=1", "/v1/responses?a=b", "/openai/responses?a=b&api-version=1"),
        ("wss://api.example/v1", "/v1/responses", "/v1/responses"),
    ],
)
def test_paths_under_v1_go_to_the_urls_own(url: str, asked: str, path: str) -> None:
    """The URL's path stands in for /v1, its query joins the request's, and every other path passes as it is."""
    upstream = Upstream.parse(url)
    assert upstream.path(asked) == path
    assert upstream.target.scheme == "https"
    assert "?" not in upstream.url


@pytest.mark.parametrize(
    "url", ["api.example/v1", "ftp://api.example", "http://u:secret@h/v1", "http://h/v1#f", "http://"]
)
def test_a_url_that_leads_nowhere_is_refused_without_being_repeated(url: str) -> None:
    """What is wrong with the URL is said in words that hold no password."""
    with pytest.raises(ValueError, match="the URL") as caught:
        Upstream.parse(url)
    assert "secret" not in str(caught.value)


# --- heads -----------------------------------------------------------------------------------------


def test_a_head_changes_in_host_and_path_only() -> None:
    """Order, case, blanks and doubled fields of a head pass as they are."""
    raw = (
        b"POST /v1/responses?x=%20y HTTP/1.1\r\nX-First:  two  blanks \r\nhOsT:127.0.0.1:8765\r\n"
        b"Set: a\r\nSet: b\r\nX-Host: host: 127.0.0.1\r\nContent-Length: 0\r\n\r\n"
    )
    sent = RequestHead.parse(raw).sent_to(host="up.example:99", target="/base/responses?x=%20y")
    assert sent == raw.replace(b"/v1/responses", b"/base/responses").replace(
        b"hOsT:127.0.0.1:8765", b"hOsT:up.example:99"
    )


@given(CHUNKS)
def test_a_head_is_found_wherever_it_is_cut(sizes: list[int]) -> None:
    """A head that comes in pieces is the same head, and nothing behind it is part of it."""
    head, rest = b"\r\nGET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n", b"GET /next"
    received = b""
    for part in cut(head + rest, sizes):
        received += part
        if (found := split_head(received)) is not None:
            assert found[0] == head
            assert rest.startswith(found[1])
            return
    raise AssertionError("not found")


@pytest.mark.parametrize(
    "raw",
    [
        b"nonsense\r\n\r\n",
        b"CONNECT up.example:443 HTTP/1.1\r\nHost: up.example\r\n\r\n",
        b"GET http://up.example/v1 HTTP/1.1\r\nHost: up.example\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    ],
)
def test_a_head_that_cannot_be_sent_on_is_refused(raw: bytes) -> None:
    """Nonsense, a request for another host, and a body of two lengths do not reach the upstream."""
    with pytest.raises(HeadError):
        RequestHead.parse(raw)


def test_an_endless_head_is_refused() -> None:
    """A head has a bound, also before its end is seen."""
    with pytest.raises(HeadError) as caught:
        split_head(b"GET / HTTP/1.1\r\nX: " + b"x" * MAX_HEAD_BYTES)
    assert caught.value.status == 431


# --- codings ---------------------------------------------------------------------------------------

TEXT = b"".join(b"data: %d\n\n" % n for n in range(500))


def deflated(body: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(body) + compressor.flush()


CODED = {
    "": TEXT,
    "identity": TEXT,
    "gzip": gzip.compress(TEXT),
    "x-gzip": gzip.compress(TEXT[:100]) + gzip.compress(TEXT[100:]),
    "deflate": zlib.compress(TEXT),
    "Deflate ": deflated(TEXT),
    "zstd": zstd.compress(TEXT[:1000]) + zstd.compress(TEXT[1000:]),
    "br": brotli.compress(TEXT),
    "gzip, br": brotli.compress(gzip.compress(TEXT)),
}


@pytest.mark.parametrize("coding", CODED)
@given(sizes=CHUNKS)
@settings(max_examples=20)
def test_codings_are_undone_wherever_they_are_cut(coding: str, sizes: list[int]) -> None:
    """A body that was compressed in any of the ways that clients offer is read as it was."""
    decoding = Decoding(coding, 1 << 20)
    assert b"".join(map(decoding.feed, cut(CODED[coding], sizes))) == TEXT


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd", "br"])
def test_a_bomb_is_not_unpacked(coding: str) -> None:
    """What would be larger than its bound is refused after a little more than that."""
    zeros = bytes(1 << 24)
    bomb = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstd.compress, "br": brotli.compress}[coding](
        zeros
    )
    with pytest.raises(Unreadable, match="more than 100,000 bytes"):
        Decoding(coding, 100_000).feed(bomb)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd", "br"])
def test_what_is_not_compressed_as_it_says_is_named(coding: str) -> None:
    """A wrong coding is said in words, and no exception of a library."""
    with pytest.raises(Unreadable, match="cannot be decompressed"):
        Decoding(coding, 1000).feed(b"\x01plain text, long enough to be none of these" * 3)


def test_an_unknown_coding_is_named() -> None:
    """A coding that nobody here knows is said by its name."""
    with pytest.raises(Unreadable, match="'compress'"):
        Decoding("compress", 1000)


# --- frames ----------------------------------------------------------------------------------------

SAID = ["hello", "", "grüße " * 400, '{"type":"response.create"}', "x" * 70_000, "hello"]
AGREED = [
    "",
    "permessage-deflate",
    "permessage-deflate; server_no_context_takeover; client_no_context_takeover",
    "permessage-deflate; client_max_window_bits=10; server_max_window_bits=9",
]


@pytest.mark.parametrize("agreed", AGREED)
@pytest.mark.parametrize("from_client", [True, False])
@given(sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=8))
@settings(max_examples=15, deadline=None)
def test_messages_are_read_wherever_they_are_cut(agreed: str, from_client: bool, sizes: list[int]) -> None:
    """Compressed or not, in fragments with pings between them, masked or not: the messages come out whole."""
    sender = frames(from_client=from_client, agreed=agreed)
    sent = b""
    for text in SAID:
        half = len(text) // 2
        sent += sender.send_data(text[:half], fin=False)
        sent += sender.ping(b"are you there")
        sent += sender.send_data(text[half:], fin=True)
        sent += sender.pong(b"")
    sent += sender.send_data(b"\x00\xff", fin=True) + sender.close(1011, "grün")
    extensions = extensions_for(agreed, from_client=from_client, max_bytes=1 << 20)
    reader = FrameReader(from_client, 1 << 20, extensions)
    read = [each for part in cut(sent, sizes) for each in reader.feed(part)]
    assert read == [*map(Message, SAID), Message(b"\x00\xff"), Close(1011, "grün")]


@pytest.mark.parametrize("agreed", AGREED[:2])
def test_a_message_that_is_too_large_is_passed_over(agreed: str) -> None:
    """The messages behind one that is too large can still be read."""
    sender = frames(from_client=True, agreed=agreed)
    reader = FrameReader(True, 1000, extensions_for(agreed, from_client=True, max_bytes=1 << 20))
    sent = sender.send_data("x" * 5000, fin=True) + sender.send_data("after", fin=True)
    assert [*reader.feed(bytes(sent))] == [TooLarge(1000), Message("after")]


def test_a_bomb_in_a_frame_is_not_unpacked() -> None:
    """A frame that unpacks to more than any message ends the reading, with a reason."""
    sender = frames(from_client=True, agreed="permessage-deflate")
    reader = FrameReader(True, 1000, extensions_for("permessage-deflate", from_client=True, max_bytes=1000))
    with pytest.raises(Unreadable):
        [*reader.feed(bytes(sender.send_data(b"\0" * 100_000, fin=True)))]


@pytest.mark.parametrize(
    "sent", [b"\x83\x80abcd", b"\x81\x05hello", b"\x81\x85\0\0\0\0\xff\xff\xff\xff\xff", b"\xc1\x85\0\0\0\0hello"]
)
def test_what_is_no_websocket_is_named(sent: bytes) -> None:
    """An opcode that is none, a frame without a mask, text that is none, a bit that was not agreed on."""
    with pytest.raises(Unreadable, match="WebSocket"):
        [*FrameReader(True, 1000, []).feed(sent)]


def test_a_close_frame_without_a_code_has_none() -> None:
    """An empty close frame is one, and nothing behind it is read."""
    reader = FrameReader(True, 1000, [])
    assert [*reader.feed(b"\x88\x80abcd"), *reader.feed(b"whatever")] == [Close(None, "")]


def test_an_unknown_extension_is_named() -> None:
    """An extension that changes frames in a way that nobody here knows cannot be read."""
    with pytest.raises(Unreadable, match="x-webkit"):
        extensions_for("x-webkit-deflate-frame", from_client=True, max_bytes=1000)
