"""A scrubbed recording says nothing, and is a recording all the same."""

import json
import re
from pathlib import Path
from typing import Any

import orjson
import pytest
from relayed import RelayFile, call
from stubbed import refused, taken
from taped import CODEX, Client, Recording, output, user

from turntape.core.seam import (
    Arguments,
    ClientText,
    Encrypted,
    Finish,
    Loaded,
    Reasoning,
    Refusal,
    Sampled,
    SampleFailed,
    StoreFailed,
    Summary,
    Text,
    ToolCall,
)
from turntape.core.session import Session
from turntape.replay.errors import ReplayError
from turntape.replay.filler import Filler, assembled
from turntape.replay.fixture import Fixture
from turntape.replay.lines import FromClient, Step
from turntape.replay.prose import KINDS
from turntape.replay.scrub import scrub
from turntape.replay.show import transcript
from turntape.replay.stub import FixtureBackend
from turntape.replay.takes import refeed, takes
from turntape.replay.verify import verify

ROOT = Path(__file__).parents[2]
FIXTURES = [*ROOT.glob("fixtures/*.jsonl"), *ROOT.glob("docs/*.jsonl")]
WORD = "Zanzibar"
KEY = "sk-proj-Ab3dE6gH9jK2mN5pQ8sT1vW4yZ7b"

TOOLS = [
    {
        "type": "function",
        "name": "shell",
        "description": f"Runs a command in {WORD}.",
        "strict": False,
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": f"as in {WORD}", "enum": [WORD, "ls -l"]}},
            "required": ["command"],
        },
    }
]


def private(client: Client) -> None:
    """The word in every place that people or models write to."""
    fields: dict[str, Any] = {
        "tools": TOOLS,
        "instructions": f"You live in {WORD}.\nBe kind.",
        "metadata": {"name": WORD, f"{WORD} !": "x"},
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "low", "summary": "auto"},
        "prompt_cache_key": WORD,
    }
    client.ask(generate=False, **fields)
    said = (
        (Reasoning("They want "), Reasoning(f"{WORD}.")),
        (Text("I look at Zanz"),),
        (Text("ibar now."),),
        (ToolCall("call_1", "shell"), Arguments('{"command":"ls \\"Zan')),
        (Arguments(f'zibar\\"\\n", "x": ["{WORD}", 7], "in {WORD}": true}}'),),
    )
    client.turn(user(f"What is in {WORD}?"), say=said, **fields)
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{WORD}AAAA"}
    result = json.dumps({"stdout": f"{WORD} found\n", "code": 0})
    client.turn(
        output("call_1", [{"type": "input_text", "text": result}, image]),
        say=(
            (Summary(f"On {WORD}"), Encrypted("gAAAA" + WORD)),
            (Text('{"answer": "'), Text(f'{WORD}"}}')),
            (Refusal(WORD),),
        ),
        **fields,
    )
    start = client.ask(user("Once more."), **fields)
    assert start is not None
    client.feed(SampleFailed(start.sample_id, "server_error", f"No {WORD} today."))
    client.text(f"{WORD}, no json")
    start = client.ask(user("keep it"), follow=False, store=True)
    assert start is not None
    client.feed(Sampled(start.sample_id, (Text(f"{WORD}!"), Finish())))
    client.feed(StoreFailed(None, f"{WORD} is full"))
    client.ask(user("x"), follow=False, previous_response_id="resp_" + "0" * 32)
    client.feed(Loaded(None, (orjson.dumps(user(f"earlier in {WORD}")),)))


def recorded(**opened: Any) -> Fixture:
    recording = Recording()
    private(recording.client(agent=f"{CODEX} {WORD}", owner=WORD, **opened))
    return recording.fixture


def scrubbed(fixture: Fixture, folder: Path, **options: Any) -> Fixture:
    out = folder / "scrubbed.jsonl"
    scrub(fixture, out, **options)
    return Fixture.load(out)


def content(fixture: Fixture) -> str:
    return Path(fixture.name).read_text()


def test_nothing_that_was_said_is_left(tmp_path: Path) -> None:
    """No word of anybody's, in no place, and none of their parts where they were split."""
    text = content(scrubbed(recorded(), tmp_path))
    assert not re.search("zan|zibar|command in|earlier|today|stdout f", text, re.IGNORECASE)
    assert "codex_exec/0.171.0" in text and "Debian" not in text


def test_everything_else_is_left(tmp_path: Path) -> None:
    """Ids, times, types, names of tools and of fields, sizes and counts; it verifies, and shows."""
    before = recorded()
    after = scrubbed(before, tmp_path)
    verify(after)
    for (old, was, _), (new, now, _) in zip(refeed(before), refeed(after), strict=True):
        assert (old.at, old.session, type(old.event)) == (new.at, new.session, type(new.event))
        assert [*map(type, was)] == [*map(type, now)]
        if isinstance(old.event, Sampled) and isinstance(new.event, Sampled):
            assert [*map(type, old.event.batch)] == [*map(type, new.event.batch)]
            texts = [[len(getattr(one, "text", "")) for one in event.batch] for event in (old.event, new.event)]
            assert texts[0] == texts[1]
    text = content(after)
    for kept in ('"name":"shell"', '"call_id":"call_1"', '"properties":{"command":{"type":"string"', '"effort":"low"'):
        assert kept in text
    assert "shell" in transcript(after)


def test_json_stays_json(tmp_path: Path) -> None:
    """Arguments, structured answers and tool outputs that were JSON are, with the same keys and numbers."""
    first, second, *_ = takes(scrubbed(recorded(), tmp_path))
    arguments = json.loads(first.said()[-1].value["arguments"])
    assert [*arguments][:2] == ["command", "x"] and arguments["x"][1] == 7 and len(arguments["command"]) == 16
    assert json.loads(second.said()[1].value["content"][0]["text"]).keys() == {"answer"}
    result = second.start.context.items_after(None)[-1].value["output"]
    assert json.loads(result[0]["text"])["code"] == 0
    assert result[1]["image_url"].startswith("data:image/png;base64,")


def test_the_same_text_has_the_same_filler(tmp_path: Path) -> None:
    """What the model said in pieces is what the next request holds, or a stub would miss its own client."""
    first, second, *_ = takes(scrubbed(recorded(), tmp_path))
    echoed = [item.value for item in second.start.context.items_after(None)]
    content = next(item["content"] for item in echoed if item.get("role") == "assistant")
    assert content[0]["text"] == first.said()[1].value["content"][0]["text"]
    enum = second.start.request.raw["tools"][0]["parameters"]["properties"]["command"]["enum"]
    assert json.loads(first.said()[-1].value["arguments"])["x"][0] == enum[0]


async def test_a_stub_plays_it_to_the_scrubbed_client(tmp_path: Path) -> None:
    """Every turn is found by the scrubbed requests, over the same chain."""
    after = scrubbed(recorded(), tmp_path)
    backend = FixtureBackend.load([after])
    for take in takes(after):
        if take.failure is not None:
            assert (await refused(backend, take.start)).code == "server_error"
        elif take.whole:
            batches = await taken(backend, take.start)
            assert [increment for batch in batches for increment in batch] == [*take.increments()]
    assert not backend.misses


def test_kept_prose_is_kept_and_its_secrets_are_masked(tmp_path: Path) -> None:
    """Each kind of prose can be left as it was; a key in it cannot."""
    recording = Recording()
    client = recording.client()
    client.turn(user(f"In {WORD}: hi"), say=((Text(f"{WORD} says hi"),),), instructions=f"Only {WORD}")
    kept = scrubbed(recording.fixture, tmp_path, keep=["messages"])
    assert f"In {WORD}: hi" in content(kept) and f"{WORD} says hi" in content(kept)
    assert f"Only {WORD}" not in content(kept)
    Path(kept.name).unlink()
    leaky = Fixture.parse(recording.content.replace(b"says hi", KEY.encode()))
    everything = content(scrubbed(leaky, tmp_path, keep=KINDS))
    assert f"{WORD} sk-proj-[masked]" in everything and KEY[10:] not in everything and f"Only {WORD}" in everything


def test_an_old_file_is_never_written_over(tmp_path: Path) -> None:
    """The copy is a new file, and there is none if it cannot be made."""
    out = tmp_path / "there.jsonl"
    out.write_text("mine")
    with pytest.raises(ReplayError, match="is there already"):
        scrub(recorded(), out)
    assert out.read_text() == "mine"

    class Other(Session):
        def receive(self, event: Any, *, now: float) -> Any:
            if isinstance(event, ClientText):
                raise AssertionError("a bug")  # noqa: TRY004
            return super().receive(event, now=now)

    with pytest.raises(ReplayError, match="raises AssertionError"):
        scrub(recorded(), tmp_path / "new.jsonl", new_session=Other)
    assert not (tmp_path / "new.jsonl").exists()


def test_rules_with_patterns_are_left_out(tmp_path: Path) -> None:
    """A pattern names what it is for; presets and names of fields stay."""
    recording = Recording()
    rules = ["codex", {"rule": "ignore", "fields": ["user"]}, {"rule": "replace", "pattern": WORD, "with": "x"}]
    recording.client(rules=rules).turn(user("hi"), say=((Text("ok"),),))
    step = next(scrubbed(recording.fixture, tmp_path).steps)
    assert isinstance(step, Step) and step.rules == ("codex", {"rule": "ignore", "fields": ["user"]})


def test_a_relayed_recording_is_scrubbed_too(tmp_path: Path) -> None:
    """Its messages in both directions, deltas in pieces included; the turns are the same."""
    file = RelayFile()
    one = file.socket(x_secret=WORD)
    said = [(Text("I look at Zanz"),), (Text("ibar"), Text(" now.")), call("call_1", '{"command":"ls Zanzibar"}')]
    one.turn(user(f"What is in {WORD}?"), say=said, tools=TOOLS, instructions=f"You live in {WORD}.")
    one.turn(output("call_1", f"{WORD}\n"), say=[(Text("Done"), Text(" here."))], tools=TOOLS)
    after = scrubbed(file.fixture, tmp_path)
    text = content(after)
    assert not re.search("zanz|ibar now|done here|api.example", text.replace('","', ""), re.IGNORECASE)
    verify(after)
    for old, new in zip(takes(file.fixture), takes(after), strict=True):
        assert (old.line, old.began, old.whole, old.start.model) == (new.line, new.began, new.whole, new.start.model)
        assert [type(one) for one in old.increments()] == [type(one) for one in new.increments()]
        assert [len(one.text) for one in old.increments() if isinstance(one, Text)] == [
            len(one.text) for one in new.increments() if isinstance(one, Text)
        ]
    first, second = takes(after)
    echoed = second.start.context.items_after(None)[1].value["content"][0]["text"]
    assert echoed == first.said()[0].value["content"][0]["text"]
    assert [line.text.startswith("{") for line in after.lines if isinstance(line, FromClient)] == [True, True]


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_the_recordings_of_this_repository_can_be_scrubbed(path: Path, tmp_path: Path) -> None:
    """Real agents' sessions: the copy verifies, is as big within a percent or two, and twice the same."""
    before = Fixture.load(path)
    whole = tmp_path / "whole.jsonl"
    scrub(before, whole, keep=KINDS)
    after = scrubbed(before, tmp_path)
    assert abs(after.n_bytes - whole.stat().st_size) < 200 + before.n_bytes // 50
    again = tmp_path / "again.jsonl"
    scrub(before, again)
    assert again.read_bytes() == Path(after.name).read_bytes()


def test_fillers_keep_length_and_white_space() -> None:
    """Different texts get different ones, and pieces are cut where they were cut."""
    filler = Filler()
    one, other = filler.text("two words\n\tand  more"), filler.text("two wordz\n\tand  more")
    assert one != other and filler.text("two words\n\tand  more") == one
    assert re.sub(r"\S", "x", one) == "xxx xxxxx\n\txxx  xxxx"
    assert assembled(filler, ["two wo", "", "rds\n\tand  more"]) == [one[:6], "", one[6:]]
