"""Body framing and event splitting: the same result however the bytes are cut."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turntape.transport.sse import BodyError, Chunked, EventSplitter, Framing, Sized, UntilClose


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def decoded(framing: Framing, parts: list[bytes]) -> bytes:
    return b"".join(framing.feed(part) for part in parts)


def split(parts: list[bytes], max_bytes: int = 1000) -> list[bytes]:
    splitter = EventSplitter(max_bytes)
    return [event for part in parts for event in splitter.feed(part)] + splitter.end()


CUTS = st.lists(st.integers(0, 10_000), max_size=12)


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.sampled_from([b"", b";x=1", b" "]), CUTS)
def test_chunks_are_joined_wherever_reads_cut_them(chunks: list[bytes], extension: bytes, cuts: list[int]) -> None:
    """A chunked body comes out whole, and its end is found, for every way of cutting it."""
    framing = Chunked()
    body = b"".join(b"%X%b\r\n%b\r\n" % (len(chunk), extension, chunk) for chunk in chunks)
    sent = pieces(body + b"0\r\nTrailer: x\r\n\r\n", cuts)
    assert decoded(framing, sent) == b"".join(chunks)
    assert framing.done and framing.end() and not framing.excess


def test_a_chunk_is_passed_on_before_it_is_whole() -> None:
    """The first part of a large chunk does not wait for the rest."""
    framing = Chunked()
    assert framing.feed(b"10\r\nabc") == b"abc"
    assert not framing.done and not framing.end()


@pytest.mark.parametrize("junk", [b"xyz\r\n", b"\r\n", b"-5\r\nabc", b"0x5\r\nabcde", b"5_0\r\n", b"f" * 20 + b"\r\n"])
def test_junk_for_a_chunk_size_is_an_error(junk: bytes) -> None:
    """Only hex digits are a chunk size."""
    with pytest.raises(BodyError, match="no chunk size"):
        Chunked().feed(junk)


def test_a_chunk_that_goes_on_after_its_end_is_an_error() -> None:
    """A wrong size is noticed, and does not shift the rest of the stream."""
    with pytest.raises(BodyError, match="longer than it said"):
        Chunked().feed(b"3\r\nabcdef\r\n")


def test_an_endless_size_line_is_an_error() -> None:
    """A line without an end is refused before it fills the memory."""
    framing = Chunked()
    with pytest.raises(BodyError, match="endless line"):
        for _ in range(10):
            framing.feed(b"0" * 4096)


@pytest.mark.parametrize("framing", [Sized(3), Chunked()])
def test_bytes_after_the_end_are_noticed(framing: Framing) -> None:
    """A connection with more to read than its answer is marked, so that nobody uses it again."""
    framing.feed(b"abc" if isinstance(framing, Sized) else b"3\r\nabc\r\n0\r\n\r\n")
    assert framing.done and not framing.excess
    framing.feed(b"more")
    assert framing.excess


def test_a_sized_body_that_is_cut_short_is_not_whole() -> None:
    """Fewer bytes than promised are no answer; a body without a length ends with its connection."""
    sized = Sized(10)
    sized.feed(b"abc")
    assert not sized.end()
    assert UntilClose().end()


STREAM = (
    b"\xef\xbb\xbfdata: 1\n\n: comment\n\ndata:two\r\n\r\nevent: x\ndata: 3\nid: 9\n\n"
    b"\n\n\ndata: a\ndata: b\n\nretry: 5\n\ndata: cr\r\rdata: last"
)
EVENTS = [b"1", b"two", b"3", b"a\nb", b"cr", b"last"]


@given(CUTS)
def test_events_are_found_wherever_reads_cut_them(cuts: list[int]) -> None:
    """Comments, blank lines, other fields and every kind of line end, in every way of cutting."""
    assert split(pieces(STREAM, cuts)) == EVENTS


def test_all_events_of_one_read_come_together() -> None:
    """One feed gives one list, and an event that is not whole waits for the next."""
    splitter = EventSplitter()
    assert splitter.feed(b"data: 1\n\ndata: 2\n\ndata: 3") == [b"1", b"2"]
    assert splitter.feed(b"\n\n") == [b"3"]


def test_an_event_that_ends_in_a_bare_cr_does_not_wait() -> None:
    """A line end counts when its first character has come."""
    splitter = EventSplitter()
    assert splitter.feed(b"data: 1\r\n\r") == [b"1"]
    assert splitter.feed(b"\ndata: 2\r\n\r\n") == [b"2"]


@pytest.mark.parametrize("parts", [[b"data: " + b"x" * 200], [b"data: " + b"x" * 200 + b"\n\n"], [b"x" * 30] * 9])
def test_an_event_beyond_the_bound_is_an_error(parts: list[bytes]) -> None:
    """Whole or not, in one read or many, an event never takes more memory than the bound."""
    with pytest.raises(BodyError, match="more than 100 bytes"):
        split(parts, max_bytes=100)
