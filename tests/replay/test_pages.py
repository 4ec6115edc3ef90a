"""The page of a recording as data: what it holds, what corresponds to what, and that nothing in it can be markup."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from relayed import RelayFile
from running import ROOT, environment
from taped import CODEX, Recording, output, user

from turntape.core.seam import Arguments, Finish, Sampled, SampleFailed, Text, ToolCall, Usage
from turntape.replay.fixture import Fixture
from turntape.replay.pages.assembly import embedded
from turntape.replay.pages.timeline import timeline_page


def shown(*fixtures: Fixture) -> dict[str, Any]:
    """What the page of these was given to show."""
    [found] = re.findall(r'<script type="application/json" id="shown">(.*?)</script>', timeline_page(*fixtures))
    value: dict[str, Any] = json.loads(found)
    return value


def show(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "turntape", "show", *words]
    return subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=60, check=False
    )


def agent(prompt: str = "List the files.", *, n_outputs: int = 1, answer: str = "Done.") -> Fixture:
    recording = Recording()
    client = recording.client(agent=CODEX)
    client.ask(generate=False)
    client.turn(user(prompt), say=((ToolCall("c0", "sh"), Arguments("{}")),))
    for n in range(n_outputs):
        client.turn(output(f"c{n}", f"{n}.txt"), say=((ToolCall(f"c{n + 1}", "sh"), Arguments("{}")),))
    client.turn(output(f"c{n_outputs}", "last"), say=((Text(answer),),))
    return recording.fixture


def test_every_turn_has_its_times_its_texts_and_its_frames(recording: Recording) -> None:
    """A page knows of each turn what was new in its prompt, what it said, when, and which messages were its own."""
    [fixture] = shown(recording.fixture)["fixtures"]
    first, second, failed, stored = fixture["turns"]
    assert [item["type"] for item in first["said"]] == ["reasoning", "function_call"]
    assert (first["at"], first["first"], first["end"], first["before"]) == (0.2, 0.2, "stop", 0)
    assert second["before"] == 3 and second["prompt"][0]["$blob"] in fixture["blobs"]
    assert failed["end"] == "failed" and failed["failure"] == "429 rate_limit_exceeded: Slow down."
    assert stored["usage"] == {"input_tokens": 10, "output_tokens": 3, "cached_tokens": 4, "reasoning_tokens": 1}
    frames = fixture["sessions"]["1"]["frames"]
    ask, start, end = second["frames"]
    assert frames[ask]["c"]["input"][0]["$blob"] in fixture["blobs"]
    types = [frame["s"]["type"] for frame in frames[start:end] if "s" in frame]
    assert types[0] == "response.created" and types[-1] == "response.completed"
    assert [(mark["kind"], mark["track"]) for mark in fixture["marks"]] == [("warm-up", 0), ("refused", 0)]


def test_tokens_of_one_read_are_one_frame_from_which_every_event_can_be_had() -> None:
    """A run of deltas goes on from the event before it, number by number."""
    recording = Recording()
    client = recording.client()
    client.turn(user("Hi"), say=((Text("a"), Text("b")), (Text("c"), Text("d"), Text("e"))))
    [fixture] = shown(recording.fixture)["fixtures"]
    frames = fixture["sessions"]["1"]["frames"]
    runs = [(n, frame["d"]) for n, frame in enumerate(frames) if "d" in frame]
    assert [texts for _, texts in runs] == [["b"], ["c", "d", "e"]]
    before = frames[runs[0][0] - 1]["s"]
    rebuilt = [
        {**before, "delta": delta, "sequence_number": before["sequence_number"] + n}
        for n, delta in enumerate(["a", "b", "c", "d", "e"])
    ]
    assert rebuilt == [event for event in client.sent if event["type"] == "response.output_text.delta"]


def test_a_relay_recording_shows_what_passed() -> None:
    """Its frames are the upstream's own events, ids, padding and all, and what cannot be replayed is said."""
    file = RelayFile()
    sent: list[Any] = []

    def change(event: dict[str, Any]) -> dict[str, Any]:
        padding = {"obfuscation": "x" * len(sent)} if event["type"].endswith(".delta") else {}
        sent.append({**event, **padding})
        return sent[-1]  # type: ignore[no-any-return]

    socket = file.socket(change)
    socket.turn(user("Hi " * 1000), say=((Text("Hel"), Text("lo")), (Text("."), Text("."))))
    socket.turn(user("And then?"))
    file.lines[file.line_of("And then?") - 1]["json"]["previous_response_id"] = "resp_from_another_day"
    socket.gone("client", 1000)
    file.post({"model": "m", "input": "Hi", "stream": True}).say([Text("Yes")])
    [fixture] = shown(file.fixture)["fixtures"]
    assert [(turn["session"], turn["end"]) for turn in fixture["turns"]] == [(1, "stop"), (2, "stop")]
    assert fixture["sessions"]["1"]["upstream"] == "GET /v1/responses of https://api.example.com/v1"
    [lost] = [mark for mark in fixture["marks"] if mark["lost"]]
    assert "does not hold" in lost["lost"][0] and lost["session"] == 1
    frames = fixture["sessions"]["1"]["frames"]
    assert frames[0]["e"] == "the upstream's answer began, status 101"
    assert frames[-1]["e"] == "the client left, close code 1000"
    assert ["lo"] in [frame.get("d") for frame in frames] and [".", "."] in [frame.get("d") for frame in frames]
    events: list[Any] = []
    for frame in frames:
        events += [frame["s"]] if "s" in frame else []
        for delta, padding in zip(frame.get("d", []), frame.get("o", []), strict=True):
            number = events[-1]["sequence_number"] + 1
            events.append({**events[-1], "delta": delta, "sequence_number": number, "obfuscation": padding})
    assert events == sent


def test_two_recordings_are_aligned_where_they_say_the_same() -> None:
    """A turn that one has more of moves nothing; what differs in a pair is named; ids and times differ in nothing."""
    assert all(pair["differs"] == [] for pair in shown(agent(), agent())["pairs"])
    pairs = shown(agent(n_outputs=1), agent(n_outputs=2))["pairs"]
    assert [(pair["a"], pair["b"]) for pair in pairs] == [(0, 0), (1, 1), (None, 2), (2, 3)]
    pairs = shown(agent(), agent(prompt="List all files.", answer="All done."))["pairs"]
    assert [pair["differs"] for pair in pairs] == [["prompt"], [], ["answer"]]


def test_settings_models_and_outcomes_are_compared() -> None:
    """Each is named as a difference of its own."""

    def of(end: Finish | None, **fields: Any) -> Fixture:
        recording = Recording()
        client = recording.client()
        start = client.ask(user("Hi"), **fields)
        assert start is not None
        client.feed(Sampled(start.sample_id, (Text("ok"),)))
        client.feed(Sampled(start.sample_id, (end,)) if end else SampleFailed(start.sample_id, "server_error"))
        return recording.fixture

    [pair] = shown(of(Finish()), of(Finish("length", Usage(1, 2)), temperature=0.1, model="other"))["pairs"]
    assert pair["differs"] == ["outcome", "model", "settings"]
    [pair] = shown(of(Finish(usage=Usage(9, 9))), of(Finish()))["pairs"]
    assert pair["differs"] == []
    [pair] = shown(of(Finish()), of(None))["pairs"]
    assert pair["differs"] == ["outcome"]


@pytest.mark.parametrize("path", sorted((ROOT / "fixtures").glob("*.jsonl")), ids=lambda path: path.stem)
def test_a_page_is_not_much_larger_than_its_recording(path: Path) -> None:
    """Values that the file holds once, the page holds once."""
    empty = len(timeline_page(Fixture.parse(b'{"turntape":1}\n')))
    assert len(timeline_page(Fixture.load(path)).encode()) - empty < 1.2 * path.stat().st_size


def test_embedded_json_holds_nothing_that_is_markup() -> None:
    """Whatever the texts are, no element can begin or end in them, and they read back as they were."""
    hostile = {"</script><!--": "<script>\u2028\u2029&amp;", "deep": [["]]>", "\ud800"]]}
    safe = embedded(hostile)
    assert not set("<>&\u2028\u2029") & set(safe)
    assert json.loads(safe) == hostile


def test_show_writes_a_page_and_never_over_a_recording(tmp_path: Path) -> None:
    """``--html`` makes a file; a recording is refused as its name, and so is a third recording."""
    for name in ("a.jsonl", "b.jsonl", "c.jsonl"):
        (tmp_path / name).write_bytes((ROOT / "docs" / "example.jsonl").read_bytes())
    ended = show(tmp_path, "--html", "a.html", "a.jsonl", "b.jsonl")
    assert ended.returncode == 0 and ended.stdout == "wrote a.html\n", ended.stderr
    assert (tmp_path / "a.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert (tmp_path / "a.html").stat().st_mode & 0o777 == 0o600  # it says what the recording says
    for words in (["--html", "a.jsonl", "a.jsonl"], ["--html", "b.jsonl", "a.jsonl"]):
        ended = show(tmp_path, *words)
        assert ended.returncode == 2 and "recording" in ended.stderr
    ended = show(tmp_path, "--html", "x.html", "a.jsonl", "b.jsonl", "c.jsonl")
    assert ended.returncode == 2 and "but there are 3" in ended.stderr
    ended = show(tmp_path, "--golden", "--html", "x.html", "a.jsonl")
    assert ended.returncode == 2 and "name one of them" in ended.stderr
    ended = show(tmp_path, "--html", "nowhere/x.html", "a.jsonl")
    assert ended.returncode == 3 and "cannot be written" in ended.stderr
    assert (tmp_path / "a.jsonl").read_bytes() == (ROOT / "docs" / "example.jsonl").read_bytes()
