"""Recordings that today's core lawfully answers otherwise: shown, refused, and made anew."""

import json
from pathlib import Path

import orjson
import pytest
from attrs import evolve
from taped import Recording, user

from turntape.core.seam import ClientText, Effect, Event, Send, StartSample, Text
from turntape.core.session import Session
from turntape.replay.changes import compare
from turntape.replay.errors import Divergence
from turntape.replay.fixture import Blob, Fixture
from turntape.replay.takes import NewSession, takes
from turntape.replay.upgrade import UpgradeRefused, upgrade
from turntape.replay.verify import verify

WHEN = {"reason": "temperature is told", "version": "9.9", "date": "2026-11-29"}


def changed(old: bytes, new: bytes) -> NewSession:
    """Sessions of a later core, which sends ``new`` where today's sends ``old``."""

    class Later(Session):
        def receive(self, event: Event, *, now: float) -> list[Effect]:
            def later(effect: Effect) -> Effect:
                if not isinstance(effect, Send):
                    return effect
                return Send(tuple(entry.replace(old, new) for entry in effect.data))

            return [*map(later, super().receive(event, now=now))]

    return Later


WARMER = changed(b'"temperature":1.0', b'"temperature":0.5')
OTHER_DELTAS = changed(b'"logprobs":[]', b'"logprobs":null')


@pytest.fixture
def path(recording: Recording, tmp_path: Path) -> Path:
    path = tmp_path / "fix.jsonl"
    path.write_bytes(recording.content)
    return path


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_recording_of_today_has_nothing_to_show(recording: Recording, path: Path) -> None:
    """Where nothing differs, nothing is shown and the file is not touched."""
    assert compare(recording.fixture).equal
    assert upgrade(path, **WHEN).equal
    assert path.read_bytes() == recording.content


def test_every_prefix_is_equal(recording: Recording) -> None:
    """A recording that was cut off differs in nothing, wherever it was cut."""
    content = recording.content
    for end in range(content.index(b"\n") + 1, len(content), 97):
        assert compare(Fixture.parse(content[:end])).equal


def test_every_difference_is_shown_with_its_place(recording: Recording) -> None:
    """Line, effect, path, and both values; the count says how many lines are concerned."""
    comparison = compare(recording.fixture, WARMER)
    lines = recording.content.split(b"\n")
    told = {n for n, line in enumerate(lines, 1) if b'"temperature":1.0' in line or b'"$like"' in line}
    told -= {n for n in told if lines[n - 1].startswith(b'{"blob"') or b'"type":"Save"' in lines[n - 1]}
    differ = {change.line for change in comparison.changes}
    assert told < differ and all(lines[n - 1].startswith(b'{"s"') or b"$blob" in lines[n - 1] for n in differ - told)
    assert str(comparison.changes[0]).endswith(": effect 1 (Send) data.0.response.temperature: 1.0 → 0.5")
    assert str(comparison).startswith(f"{len(differ)} of {comparison.n_lines} lines differ")
    assert not comparison.edits and not comparison.moved and not comparison.broken


def test_an_upgraded_recording_verifies_and_says_why(recording: Recording, path: Path) -> None:
    """The file holds what the later core sends; its events, rules and takes are the same, and the reason is in its header."""
    before = recording.fixture
    upgrade(path, **WHEN, new_session=WARMER)
    with pytest.raises(Divergence):
        verify(Fixture.load(path))
    after = Fixture.load(path)
    verify(after, WARMER)
    assert [(s.session, s.at, s.event, s.rules) for s in after.steps] == [
        (s.session, s.at, s.event, s.rules) for s in before.steps
    ]
    assert [take.increments() for take in takes(after)] != [] and [*after.turns]
    header = rows(path)[0]
    [entry] = header["upgrades"]  # type: ignore[misc]
    n_lines = compare(before, WARMER).n_changed
    assert entry == {**WHEN, "n_lines": n_lines}
    upgrade(path, reason="and back", version="10", date="2026-11-30")
    verify(Fixture.load(path))
    assert [entry["reason"] for entry in rows(path)[0]["upgrades"]] == ["temperature is told", "and back"]  # type: ignore[attr-defined]
    assert [p.name for p in path.parent.iterdir()] == ["fix.jsonl"]


def test_a_link_leads_to_the_upgraded_file(path: Path) -> None:
    """What is written again is the file that a link names, and the link stays."""
    link = path.parent / "link.jsonl"
    link.symlink_to(path.name)
    upgrade(link, **WHEN, new_session=WARMER)
    assert link.is_symlink()
    verify(Fixture.load(path), WARMER)


def test_what_nothing_refers_to_is_dropped_and_places_are_right(path: Path) -> None:
    """Values of the old effects go, and each turn line names the bytes where its sample begins and ends."""
    longer = changed(b'"truncation":"disabled"', b'"truncation":"disabled","note":"' + b"n" * 2000 + b'"')
    upgrade(path, **WHEN, new_session=longer)
    assert any(isinstance(line, Blob) and "nnn" in str(line.value) for line in Fixture.load(path).lines)
    upgrade(path, **WHEN)
    content = path.read_bytes()
    assert b"nnn" not in content
    for row in rows(path):
        if "turn" in row:
            first, last = row["at"]  # type: ignore[misc]
            began, ended = (orjson.loads(content[at : content.index(b"\n", at)]) for at in (first, last))
            assert row["sample"] in [effect.get("sample_id") for effect in began["out"]]
            assert ended["in"]["type"] == "SampleFailed" or ended["in"]["batch"][-1]["type"] == "Finish"


def test_short_lines_that_all_send_otherwise_are_no_edit(path: Path) -> None:
    """A later form of every delta is a change of the core, though short lines hold only a hash."""
    comparison = upgrade(path, **WHEN, new_session=OTHER_DELTAS)
    assert "bytes sent" in {change.part for change in comparison.changes} and not comparison.edits
    verify(Fixture.load(path), OTHER_DELTAS)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"hel","lo"', b'"hel","la"'),  # an increment in a short line
        (b'"r":["Let me "', b'"r":["Let us "'),
        (b'"text":"no json"', b'"text":"no JSON"'),  # a client's text
        (b"a rather long instruction", b"a rather lang instruction"),  # a value that stands for itself
    ],
)
def test_edited_events_are_taken_only_if_they_are_meant(
    recording: Recording, path: Path, old: bytes, new: bytes
) -> None:
    """An edit is named with its line; the file stays as it is until --accept-edits, and verifies then."""
    edited = recording.content.replace(old, new, 1)
    path.write_bytes(edited)
    line = edited[: edited.index(new)].count(b"\n") + 1
    with pytest.raises(UpgradeRefused, match="was edited") as caught:
        upgrade(path, **WHEN)
    assert path.read_bytes() == edited
    edits = compare(Fixture.load(path)).edits
    assert f"line {edits[0]}" in str(caught.value)
    assert edits[0].line >= line
    upgrade(path, **WHEN, accept_edits=True)
    verify(Fixture.load(path))
    assert new in path.read_bytes() and rows(path)[0]["upgrades"][0]["edits"]  # type: ignore[index]


def test_an_answer_without_its_sample_is_refused(path: Path) -> None:
    """If today's core asks for no sample where one was recorded, no upgrade can give its answer a meaning."""

    class Deaf(Session):
        def receive(self, event: Event, *, now: float) -> list[Effect]:
            return [effect for effect in super().receive(event, now=now) if not isinstance(effect, StartSample)]

    content = path.read_bytes()
    with pytest.raises(UpgradeRefused, match=r"does not start the sample smp_.* answers nothing"):
        upgrade(path, **WHEN, new_session=Deaf, accept_edits=True)
    assert path.read_bytes() == content


def test_another_conversation_is_refused(path: Path) -> None:
    """If the samples would answer other items than they did, the file is left, and the sample is named."""

    class Longer(Session):
        def receive(self, event: Event, *, now: float) -> list[Effect]:
            def longer(effect: Effect) -> Effect:
                if not isinstance(effect, StartSample):
                    return effect
                return evolve(effect, context=effect.context.extend(list(effect.context.items_after(None))[:1]))

            return [*map(longer, super().receive(event, now=now))]

    with pytest.raises(UpgradeRefused, match="answers a conversation of 2 items, and was recorded with 1"):
        upgrade(path, **WHEN, new_session=Longer)


def test_a_core_that_fails_is_no_upgrade(path: Path) -> None:
    """An exception of today's core is named with its line, and nothing is written."""

    class Broken(Session):
        def receive(self, event: Event, *, now: float) -> list[Effect]:
            if isinstance(event, ClientText) and "Once more" in event.text:
                raise KeyError("oops")
            return super().receive(event, now=now)

    with pytest.raises(UpgradeRefused, match="today's core fails here with KeyError"):
        upgrade(path, **WHEN, new_session=Broken)


def test_other_questions_to_the_store_are_refused(path: Path) -> None:
    """What the store was asked is what its recorded answers are to."""

    class Saveless(Session):
        def receive(self, event: Event, *, now: float) -> list[Effect]:
            effects = super().receive(event, now=now)
            return [effect for effect in effects if type(effect).__name__ != "Save"]

    with pytest.raises(UpgradeRefused, match="asks the store for other things"):
        upgrade(path, **WHEN, new_session=Saveless)


def test_a_disk_that_fails_leaves_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the new file cannot take the place of the old one, the old one is whole and nothing else is left behind."""
    content = path.read_bytes()

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        upgrade(path, **WHEN, new_session=WARMER)
    assert path.read_bytes() == content
    assert [p.name for p in path.parent.iterdir()] == ["fix.jsonl"]


def test_a_chain_follows_an_edited_answer(tmp_path: Path) -> None:
    """Later turns that continue an edited answer by its name have it in their conversation, under another key."""
    recording = Recording()
    client = recording.client()
    client.turn(user("hi"), say=((Text("Hello."),),))
    client.turn(user("bye"), say=((Text("Farewell."),),))
    path = tmp_path / "fix.jsonl"
    path.write_bytes(recording.content.replace(b'"d":["Hello."]', b'"d":["Hi ","there."]'))
    comparison = upgrade(path, **WHEN, accept_edits=True)
    assert "turn line key" in " ".join(map(str, comparison.changes))
    verify(Fixture.load(path))
    second = takes(Fixture.load(path))[1]
    assert b"Hi there." in b"".join(item.encoded for item in second.start.context.items_after(None))


def test_a_relays_recording_has_nothing_to_upgrade(tmp_path: Path) -> None:
    """It holds what an upstream sent, which no core of ours could send otherwise; it is left as it is."""
    path = tmp_path / "fix.jsonl"
    head = {"relay": 1, "t": 0.0, "wall": 1.8e9, "transport": "http", "method": "POST", "path": "/v1/responses"}
    head |= {"upstream": "http://127.0.0.1:1/v1", "headers": {}, "rules": []}
    path.write_text('{"turntape":1}\n' + json.dumps(head) + "\n")
    content = path.read_bytes()
    with pytest.raises(UpgradeRefused, match="was recorded by a relay"):
        upgrade(path, **WHEN)
    assert path.read_bytes() == content


def test_a_secret_is_not_written_again(tmp_path: Path) -> None:
    """A recording from before masking that holds a key is refused: its events would be others, or the key on disk again."""
    recording = Recording()
    recording.client().turn(user("My key is KEY."), say=((Text("Thanks."),),))
    key = "sk-proj-" + "Ab1" * 16
    path = tmp_path / "fix.jsonl"
    path.write_bytes(recording.content.replace(b"My key is KEY.", f"My key is {key}".encode()))
    with pytest.raises(UpgradeRefused, match=r"looks like a secret in line \d+"):
        upgrade(path, **WHEN, accept_edits=True)
    assert [p.name for p in path.parent.iterdir()] == ["fix.jsonl"]
