"""Samples of gpt-oss are read whatever the model wrote and wherever the batches are cut."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_server import MARKS, marked, vocabulary

from turntape.core.harmony import CHANNEL, Harmony
from turntape.core.harmony_parser import Closed, Content, HarmonyParser, Header, Opened, ParserEvent


def parse(ids: Sequence[int], n_batch: int = 1000) -> list[ParserEvent]:
    parser = HarmonyParser(vocabulary())
    events: list[ParserEvent] = []
    for at in range(0, len(ids), n_batch):
        events += parser.feed(ids[at : at + n_batch])
    return events + parser.end()


def messages(text: str) -> list[tuple[str, str | None, str]]:
    """Channel, function and text of each message in a sample."""
    found: list[tuple[str, str | None, str]] = []
    for event in parse(marked(text)):
        if isinstance(event, Opened):
            found.append((event.header.channel, event.header.function, ""))
        elif isinstance(event, Content):
            channel, function, so_far = found[-1]
            found[-1] = (channel, function, so_far + event.text)
    return found


WHOLE = (
    "<|channel|>analysis<|message|>Lätta 👩‍👩‍👧 see.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
    '<|start|>assistant to=functions.lookup<|channel|>commentary <|constrain|>json<|message|>{"key":"é"}<|call|>'
)


def test_reasoning_preamble_and_call() -> None:
    """A turn's messages come apart: reasoning, what the user may read, the call."""
    assert messages(WHOLE) == [
        ("analysis", None, "Lätta 👩‍👩‍👧 see."),
        ("commentary", None, "I look."),
        ("commentary", "lookup", '{"key":"é"}'),
    ]


@pytest.mark.parametrize("n_batch", [1, 2, 3, 7])
def test_batches_may_be_cut_anywhere(n_batch: int) -> None:
    """The same messages whatever a read brings, characters that are split over ids included."""

    def joined(events: list[ParserEvent]) -> list[ParserEvent]:
        out: list[ParserEvent] = []
        for event in events:
            if isinstance(event, Content) and out and isinstance(out[-1], Content):
                out[-1] = Content(out[-1].text + event.text)
            else:
                out.append(event)
        return out

    ids = marked(WHOLE)
    assert joined(parse(ids, n_batch)) == joined(parse(ids))
    assert not any("\ufffd" in event.text for event in parse(ids, n_batch) if isinstance(event, Content))


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("<|channel|>commentary to=functions.lookup <|constrain|>json", ("commentary", "lookup")),
        (" to=functions.lookup<|channel|>commentary json", ("commentary", "lookup")),
        (" to=functions.lookup<|channel|>commentary to=functions.other <|constrain|>json", ("commentary", "lookup")),
        ("<|channel|>commentary to=functions.lookup<|constrain|>json", ("commentary", "lookup")),
        ("<|channel|>commentary <|constrain|>json to=functions.lookup", ("commentary", "lookup")),
        ("<|channel|>commentaryto=functions.lookup", ("commentary", "lookup")),
        ("<|channel|>commentary functions.lookup <|constrain|>json", ("commentary", "lookup")),
        ("<|channel|>analysis to=functions.lookup code", ("analysis", "lookup")),
        (" to=lookup<|channel|>commentary", ("commentary", "lookup")),
        (" to=functions.lookup", ("", "lookup")),
        ("<|channel|>commentary to=assistant", ("commentary", None)),
        ("<|channel|>final <|constrain|>json", ("final", None)),
        ("<|channel|>final<|channel|>final", ("final", None)),
        ("<|constrain|>final", ("", None)),
        ("<|channel|>", ("", None)),
        ("<|channel|>odd words here", ("odd", None)),
        ("", ("", None)),
    ],
)
def test_malformed_headers(header: str, expected: tuple[str, str | None]) -> None:
    """Every header that models have been seen to write finds its function, or is read as text."""
    assert messages(f"{header}<|message|>body<|call|>") == [(*expected, "body")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello there.<|return|>", "Hello there."),
        ("Hello there.", "Hello there."),
        ("<|channel|>final<|message|>Hello there.", "Hello there."),
        ("word " * 200 + "<|return|>", "word " * 200),
    ],
)
def test_text_without_a_header_or_end_is_not_lost(text: str, expected: str) -> None:
    """What stands in no message is said all the same."""
    assert "".join(said for _, _, said in messages(text)) == expected


def test_a_missing_end_ends_with_the_next_message() -> None:
    """A new header closes the message before."""
    text = (
        "<|channel|>analysis<|message|>Hm.<|channel|>final<|message|>Yes.<|start|>assistant<|channel|>final<|message|>!"
    )
    assert messages(text) == [("analysis", None, "Hm."), ("final", None, "Yes."), ("final", None, "!")]


@given(
    st.lists(st.one_of(st.integers(0, 201088), st.sampled_from(list(MARKS.values()))), max_size=40), st.integers(1, 9)
)
def test_nothing_is_an_error_and_no_id_is_lost(ids: list[int], n_batch: int) -> None:
    """Any ids can be read, and what is kept for the history is exactly what was sampled, from the first message on."""
    ids = [token for token in ids if token < 199998 or token in MARKS.values()]
    kept = [token for event in parse(ids, n_batch) if isinstance(event, Closed) for token in event.ids]
    assert kept == ids[: len(kept)]


def test_what_was_rendered_is_read_back() -> None:
    """Parser and renderer are inverse."""
    harmony = Harmony(vocabulary())
    ids = harmony.call("f-1", '{"a": 1}')[len(harmony.prompt()) :]
    opened, content, closed = parse([*ids[:0], *marked(" to=functions.f-1"), *ids[ids.index(CHANNEL) :]])
    assert opened == Opened(Header("commentary", "f-1"))
    assert content == Content('{"a": 1}')
    assert isinstance(closed, Closed)
