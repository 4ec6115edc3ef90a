"""A recording with a little of everything."""

import pytest
from taped import CODEX, Recording, output, user

from turntape.core.seam import (
    Arguments,
    ClientGone,
    Finish,
    Reasoning,
    Sampled,
    SampleFailed,
    Saved,
    Text,
    ToolCall,
    Usage,
)

LONG = "a rather long instruction. " * 50


@pytest.fixture
def recording() -> Recording:
    """Two sessions in one file, interleaved: tool calls and a failure on one, a stored turn on the other."""
    recording = Recording()
    one, two = recording.client(agent=CODEX), recording.client(seed="11" * 16, transport="sse")
    one.ask(generate=False, instructions=LONG)
    said = (
        (Reasoning("Let me "), Reasoning("look.")),
        (ToolCall("call_7", "sh"), Arguments('{"c')),
        (Arguments('md":"ls"}'),),
    )
    one.turn(user("List the files."), say=said, instructions=LONG)
    start = two.ask(user("hi"), store=True, stream=True)
    assert start is not None
    two.feed(Sampled(start.sample_id, (Text("hel"), Text("lo"))))
    one.turn(output("call_7", "README.md\n" * 200), say=((Text("One "),), (Text("file. " * 300),)), instructions=LONG)
    two.feed(Sampled(start.sample_id, (Text("!"),)))
    two.feed(Sampled(start.sample_id, (Finish(usage=Usage(10, 3, 4, 1)),)))
    two.feed(Saved(None))
    start = one.ask(user("Once more."), instructions=LONG)
    assert start is not None
    one.feed(SampleFailed(start.sample_id, "rate_limit_exceeded", "Slow down.", status=429, retry_after="7"))
    one.text("no json")
    one.feed(ClientGone(1001))
    return recording
