"""The transcript of a recording, for a person."""

import re

from taped import CODEX, Recording, output, user

from turntape.core.seam import (
    Arguments,
    ClientGone,
    Finish,
    Reasoning,
    Sampled,
    SampleFailed,
    Started,
    Text,
    ToolCall,
    Usage,
)
from turntape.replay.fixture import Fixture
from turntape.replay.show import transcript

GOLDEN = """\
a.jsonl: 2 sessions, 5 turns, 1 tool call, 15 KB; 1 turn not finished

session 1  2027-01-15 08:00:00 UTC  WebSocket  codex_exec/0.171.0 (Debian 12.0.0; x86_64) dumb

turn 1  m  +0.100 s  line 3
  user       List the files.
  reasoning  Let me look.
  call       sh {"cmd":"ls"}
  1,200 tokens in (1,000 cached), 34 out (5 reasoning) · first token 0.200 s · 0.400 s in all

turn 2  m  lane side  +0.600 s  line 9
  user       Hello?
  not finished: cancelled, or the recording ends here · first token 0.100 s · 0.100 s in all

turn 3  m  +0.800 s  line 11
  … 3 items as before
  output     1
             2
             3
             4
             5
             … 3 more lines …
             9
             \\x1b[31mred
  assistant  One
  ended by length · first token 0.100 s · 0.200 s in all

turn 4  m  +1.100 s  line 15
  … 5 items as before
  user       Go on.
  failed: 429 rate_limit_exceeded: Slow down. · 0.100 s in all

session 2  2027-01-15 08:00:00 UTC  POST answered by an event stream

turn 5  m  +0.100 s  line 20
  … 1 item as before
  user       Quick.
  assistant  Yes.
  first token 0.100 s · 0.100 s in all
"""


def test_a_transcript_says_what_happened() -> None:
    """Sessions, turns, lanes, what is new in each prompt, what was said, tokens and times; long texts are cut."""
    recording = Recording()
    one = recording.client(agent=CODEX)
    start = one.ask(user("List the files."))
    assert start is not None
    one.feed(Started(start.sample_id))
    one.feed(Sampled(start.sample_id, (Reasoning("Let me "),)))
    one.feed(Sampled(start.sample_id, (Reasoning("look."), ToolCall("c", "sh"), Arguments('{"cmd":'))))
    one.feed(Sampled(start.sample_id, (Arguments('"ls"}'), Finish(usage=Usage(1200, 34, 1000, 5)))))
    side = one.ask(user("Hello?"), follow=False, stream_id="side")
    assert side is not None
    one.feed(Sampled(side.sample_id, (Text(""),)))
    start = one.ask(output("c", "1\n2\n3\n4\n5\n6\n7\n8\n9\n\x1b[31mred"))
    assert start is not None
    one.feed(Sampled(start.sample_id, (Text("One"),)))
    one.feed(Sampled(start.sample_id, (Finish("length"),)))
    one.last = next(event["response"]["id"] for event in one.sent if event["type"] == "response.incomplete")
    start = one.ask(user("Go on."))
    assert start is not None
    one.feed(SampleFailed(start.sample_id, "rate_limit_exceeded", "Slow down.", status=429))
    one.feed(ClientGone())
    two = recording.client(seed="22" * 16, transport="sse")
    start = two.ask(user("List the files."), user("Quick."), stream=True)
    assert start is not None
    two.feed(Sampled(start.sample_id, (Text("Yes."), Finish())))
    assert transcript(Fixture.parse(recording.content, name="a.jsonl")) == GOLDEN


def test_a_cut_recording_and_one_without_turns_are_shown() -> None:
    """There is always something to read."""
    recording = Recording()
    recording.client(agent=CODEX)
    assert transcript(recording.fixture).endswith("(Debian 12.0.0; x86_64) dumb\n  no turn\n")
    assert "; cut off\n" in transcript(Fixture.parse(recording.content[:-3]))


def test_nothing_that_a_terminal_obeys_is_printed() -> None:
    """Control characters are shown as text wherever they stand: in a model's name, an agent's, a failure."""
    recording = Recording()
    client = recording.client(agent="agent\x9b2J")
    start = client.ask(user("hi\x07"), model="m\x1b]0;pwned\x07")
    assert start is not None
    client.feed(SampleFailed(start.sample_id, "server_error", "no\x1b[2J\r\nway"))
    shown = transcript(recording.fixture)
    assert "m\\x1b]0;pwned" in shown and "agent\\x9b2J" in shown and "no\\x1b[2J" in shown
    assert all(c == "\n" or c.isprintable() for c in shown)


def test_a_time_beyond_the_calendar_is_shown_as_a_number() -> None:
    recording = Recording()
    recording.client()
    edited = re.sub(rb'"wall":[0-9.]+', b'"wall":1e300', recording.content)
    assert "1e+300 s after 1970" in transcript(Fixture.parse(edited))
