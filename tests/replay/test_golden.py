"""The golden text: what a reviewer sees when a recording changes."""

import difflib

from taped import CODEX, Recording, output, user

from turntape.core.seam import (
    Arguments,
    Finish,
    Message,
    Reasoning,
    Sampled,
    SampleFailed,
    Text,
    ToolCall,
    Usage,
)
from turntape.replay.fixture import Fixture
from turntape.replay.golden import golden

EXPECTED = """\
conversation 1

turn 1
  model: m
  instructions
    | Be brief.
    |
    | Always.
  tool sh
    | {
    |   "name": "sh",
    |   "parameters": {
    |     "properties": {},
    |     "type": "object"
    |   },
    |   "strict": false,
    |   "type": "function"
    | }
  user
    | You are in <cwd><cwd></cwd>. List the files.
  reasoning
    | Let me look.
  call 1 sh
    | {
    |   "cmd": "ls <cwd>"
    | }

turn 2
  temperature: 0.5
  … 2 items as before
  output 1
    | a.py
    | \\x1b[31mb.py
  assistant (final_answer)
    | Two files.
  ended by length

turn 3
  temperature: no longer set
  … 4 items as before
  user
    | Go on.
  failed: 429 rate_limit_exceeded: Slow down.

turn 4
  user
    | Never mind.
  not finished

conversation 2

turn 5
  model: small
  instructions: no longer set
  user
    | Hello?
  assistant
    | Hi.
"""


def run(
    *,
    folder: str = "/src/a",
    call: str = "call_1",
    seed: str = "00",
    pace: float = 0.1,
    prompt: str = "List the files.",
) -> Fixture:
    """The same session each time, but for what is named."""
    recording = Recording()
    client = recording.client(agent=CODEX, rules=("codex",), seed=seed * 16)
    set_ = {"instructions": "Be brief.\n\nAlways."}
    start = client.ask(user(f"You are in <cwd>{folder}</cwd>. {prompt}"), **set_, prompt_cache_key=seed)
    assert start is not None
    client.feed(Sampled(start.sample_id, (Reasoning("Let me "),)), step=pace)
    said = (Reasoning("look."), ToolCall(call, "sh"), Arguments('{"cmd":"ls '), Arguments(f'{folder}"}}'))
    client.feed(Sampled(start.sample_id, said), step=pace)
    client.feed(Sampled(start.sample_id, (Finish(usage=Usage(10, round(pace * 10))),)))
    start = client.ask(output(call, "a.py\n\x1b[31mb.py"), **set_, temperature=0.5)
    assert start is not None
    client.feed(Sampled(start.sample_id, (Message("final_answer"), Text("Two files."), Finish("length"))), step=pace)
    client.last = next(event["response"]["id"] for event in client.sent if event["type"] == "response.incomplete")
    start = client.ask(user("Go on."), **set_)
    assert start is not None
    client.feed(SampleFailed(start.sample_id, "rate_limit_exceeded", "Slow down.", status=429))
    start = client.ask(user("Never mind."), follow=False, **set_)
    side = client.ask(user("Hello?"), follow=False, stream_id=f"lane-{seed}", model="small")
    assert start is not None and side is not None
    client.feed(Sampled(side.sample_id, (Text("Hi."), Finish())))
    for n in range(round(pace * 10)):
        client.feed(Sampled(start.sample_id, (Text(f"{n}"),)))
    return recording.fixture


def test_a_golden_text_says_everything_that_counts() -> None:
    """Settings, prompts and answers are whole; ids, times, usage, lanes' names and a cancelled answer are not there."""
    assert golden(run()) == EXPECTED


def test_two_runs_of_one_thing_have_one_golden_text() -> None:
    """Other ids, times, chunks and folders make no difference, and the same file gives the same bytes."""
    other = run(folder="/home/b/work", call="call_x9", seed="5e", pace=0.7)
    assert golden(other) == golden(run()) == golden(run())


def test_a_changed_prompt_is_one_changed_place() -> None:
    changed = [
        line
        for line in difflib.ndiff(golden(run()).splitlines(), golden(run(prompt="List all files.")).splitlines())
        if line[0] in "+-"
    ]
    assert changed == [
        "-     | You are in <cwd><cwd></cwd>. List the files.",
        "+     | You are in <cwd><cwd></cwd>. List all files.",
    ]


def test_no_text_is_cut_and_an_image_is_named_by_its_hash() -> None:
    """A change at the end of a long text is seen, and so is another image of the same size."""

    def of(text: str, pixels: str) -> str:
        recording = Recording()
        image = {"type": "input_image", "image_url": f"data:image/png;base64,{pixels * 900}"}
        message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}, image]}
        recording.client().turn(message, say=((Text("ok"),),))
        return golden(recording.fixture)

    long = "word " * 20_000
    assert long + "end" in of(long + "end", "A")
    assert "(input_image, 959 bytes, BLAKE2b " in of("", "A")
    assert of("", "A") != of("", "B")


def test_long_strings_of_a_tool_are_lines() -> None:
    """A changed line of a description or of a script in a call is one changed line; a backslash before an n is none."""
    recording = Recording()
    tool = {"type": "function", "name": "sh", "description": "Runs.\n\nBut not C:\\new."}
    call = Arguments('{"script":"cd /src\\nmake"}')
    recording.client().turn(user("Hi"), say=((ToolCall("c", "sh"), call),), tools=[tool])
    text = golden(recording.fixture)
    assert '    |   "description": "Runs.\\n\n    | \\n\n    | But not C:\\\\new.",\n' in text
    assert '    |   "script": "cd /src\\n\n    | make"\n' in text


def test_posts_of_one_conversation_are_one_chapter() -> None:
    """Each POST is a session; those that continue one another stand together, others apart, whatever runs between them."""

    def run(order: tuple[int, ...]) -> str:
        recording = Recording()
        histories: dict[int, list[object]] = {0: [user("First question.")], 1: [user("Second question.")]}
        for n, which in enumerate(order):
            client = recording.client(seed=f"{n:02d}" * 16, transport="sse")
            client.now = float(n)
            client.turn(*histories[which], say=((Text(f"Answer {len(histories[which])}."),),), stream=True)
            answer = {"role": "assistant", "content": f"Answer {len(histories[which])}."}
            histories[which] += [answer, user("And then?")]
        return golden(recording.fixture)

    text = run((0, 1, 0, 1, 1))
    assert text.count("conversation ") == 2
    first, second = text.split("conversation 2")
    assert first.count("turn ") == 2 and second.count("turn ") == 3
    assert "First question." in first and "Second question." in second
    assert second.count("Second question.") == 1
