"""What a recorder does to a session: nothing but write it down."""

import io
import json
import re
from pathlib import Path
from typing import Any

import orjson
import pytest
from taped import CODEX, TOOLS, Client, Recording, output, user

from turntape.core.seam import Arguments, ClientText, Effect, Event, Finish, Opened, Sampled, Text, ToolCall, Usage
from turntape.core.session import Session
from turntape.replay.errors import ReplayError
from turntape.replay.fixture import Fixture
from turntape.replay.recorder import Recorder, Tape
from turntape.replay.verify import verify


def test_a_recorded_session_behaves_as_any_other() -> None:
    """The same events have the same effects, deadline and end with a recorder and without."""
    plain, recorded = Client(Session()), Recording().client()
    for client in (plain, recorded):
        client.turn(user("hi"), say=((Text("hello"),),))
        client.text("no json")
    assert plain.sent == recorded.sent and plain.now == recorded.now
    assert plain.session.deadline == recorded.session.deadline
    assert plain.session.closed is recorded.session.closed is False


def test_sessions_share_a_file_in_their_real_order(recording: Recording) -> None:
    """Steps of two sessions stand in the order in which they happened."""
    numbers = [step.session for step in recording.fixture.steps]
    assert numbers[:3] == [1, 2, 1] and numbers != sorted(numbers)
    assert str(recording.tape.counts) == str(recording.fixture.counts)
    assert re.fullmatch(r"2 sessions, 4 turns, 1 tool call, \d+ KB", str(recording.tape.counts))


def test_rules_follow_the_client() -> None:
    """Codex gets its preset; a client that is not known is matched exactly."""
    recording = Recording()
    for agent in (CODEX, "codex_cli_rs/0.98.0 (Debian)", "OpenAI/Python 3.57.0", "mycodex/1", ""):
        recording.client(agent=agent)
    recording.client(dialect="append")
    recording.client(rules=[{"rule": "ignore", "fields": ["user"]}])
    rules = [step.rules for step in recording.fixture.steps]
    assert rules == [("codex",), ("codex",), (), (), (), ("codex",), ({"rule": "ignore", "fields": ["user"]},)]


class Faulty(Session):
    """Fails at a client's text."""

    def receive(self, event: Event, *, now: float) -> list[Effect]:
        if isinstance(event, ClientText):
            raise AssertionError("a bug")  # noqa: TRY004
        return super().receive(event, now=now)


def test_a_crash_is_in_the_file_and_others_write_on() -> None:
    """The event that a session died of is recorded and flushed, the exception passes, other sessions go on."""
    recording = Recording()
    faulty, other = Recorder(Faulty(), recording.tape), recording.client()
    faulty.receive(Opened(seed="aa", wall=0.0), now=0.0)
    with pytest.raises(AssertionError, match="a bug"):
        faulty.receive(ClientText("deadly"), now=0.5)
    other.turn(user("hi"), say=((Text("hello"),),))
    deadly = next(step for step in recording.fixture.steps if step.event == ClientText("deadly"))
    assert deadly.raised == "AssertionError" and deadly.out is None
    with pytest.raises(
        ReplayError, match="the session ends otherwise\n  recorded: AssertionError\n  today:    with effects"
    ):
        verify(recording.fixture)


class FullDisk(io.BytesIO):
    """Takes so many bytes and no more."""

    room = 3000

    def write(self, content: Any) -> int:
        if self.tell() + len(content) > self.room:
            raise OSError(28, "No space left on device")
        return super().write(content)


def test_a_full_disk_ends_the_recording_and_not_the_session() -> None:
    """The client is served on; what was written is a recording, and the tape says why it is short."""
    recording = Recording(FullDisk())
    client = recording.client()
    for _ in range(5):
        client.turn(user("hi"), say=((Text("hello"),),))
    assert client.sent[-1]["type"] == "response.completed"
    assert recording.tape.failure is not None and recording.tape.failure.errno == 28
    assert recording.tape.n_bytes == len(recording.content) <= 3000
    verify(recording.fixture)


def test_a_tape_is_for_its_owner_only_and_never_overwrites(tmp_path: Path) -> None:
    """Prompts are in it."""
    path = tmp_path / "a.jsonl"
    Tape.create(path).close()
    assert path.stat().st_mode & 0o777 == 0o600 and path.read_bytes() == b'{"turntape":1}\n'
    with pytest.raises(ReplayError, match="is there already"):
        Tape.create(path)
    with pytest.raises(ReplayError, match="cannot be created: No such file"):
        Tape.create(tmp_path / "no" / "folder.jsonl")


def test_a_finished_turn_is_on_disk(tmp_path: Path) -> None:
    """What a kill -9 can take is what happened since the last turn, or the last flush of a timer."""
    path = tmp_path / "a.jsonl"
    tape = Tape.create(path)
    client = Client(Recorder(Session(), tape))
    client.turn(user("hi"), say=((Text("hello"),),))
    assert path.stat().st_size == tape.n_bytes
    client.ask(user("more"))
    assert path.stat().st_size < tape.n_bytes
    tape.flush()
    assert path.stat().st_size == tape.n_bytes


def test_a_tape_is_a_fixture_from_its_beginning_on(tmp_path: Path) -> None:
    """A process that is killed before anything was flushed leaves a recording without sessions, which can be read."""
    tape = Tape.create(tmp_path / "new.jsonl")
    assert verify(Fixture.load(tmp_path / "new.jsonl")).n_sessions == 0
    tape.close()


def test_a_turn_line_says_where_the_turn_is(recording: Recording) -> None:
    """Its offsets are those of the line that started the sample and of the one that ended it."""
    content = recording.content
    for line in content.splitlines():
        row = orjson.loads(line)
        if "turn" in row:
            begun, ended = (orjson.loads(content[at : content.index(b"\n", at)]) for at in row["at"])
            assert row["sample"] in [effect.get("sample_id") for effect in begun["out"]]
            assert ended["in"].get("sample_id", row["sample"]) == row["sample"]
            assert ended["in"]["type"] == "SampleFailed" or ended["in"]["batch"][-1]["type"] == "Finish"


def test_two_hundred_turns_of_a_coding_agent_fit_in_two_megabytes() -> None:
    """Tools of 20 KB in each frame, three echoes of them in each answer, 2 KB of output each turn: only news costs."""
    recording = Recording()
    client = recording.client(agent=CODEX)
    tools = [{**TOOLS[0], "name": f"tool{n}", "description": "what it does " * 100} for n in range(15)]
    frames = 0
    items: list[Any] = [user("Do it."), user("The folder is /work. " * 800)]
    for n in range(200):
        body = {"tools": tools, "client_metadata": {"turn": f"{n:04}" * 340}}
        said = (
            (ToolCall(f"call_{n}", "tool1"),),
            *((Arguments(piece),) for piece in ('{"cmd":', '"cat f', f'{n}"', "}")),
        )
        start = client.ask(*items, **body)
        assert start is not None
        frames += len(orjson.dumps({**body, "input": items}))
        for batch in said:
            client.feed(Sampled(start.sample_id, batch))
        client.feed(Sampled(start.sample_id, (Finish(usage=Usage(9, 9)),)))
        items = [output(f"call_{n}", f"{n}: some output\n" * 120)]
    naive = frames + sum(len(orjson.dumps(event)) for event in client.sent)
    assert naive > 15_000_000
    assert len(recording.content) < 2_200_000
    assert verify(recording.fixture).n_turns == 200


def test_a_header_holds_what_its_maker_says_of_the_file() -> None:
    """Keys for people stand in the first line beside the version, and change nothing that is read from the rest."""
    out = io.BytesIO()
    tape = Tape(out, {"note": "made by hand"})
    tape.flush()
    assert json.loads(out.getvalue()) == {"turntape": 1, "note": "made by hand"}
    assert Fixture.parse(out.getvalue()).lines == []
