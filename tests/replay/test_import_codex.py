"""Codex rollouts as recordings: turns, times, tokens, and what is said of what they do not hold."""

import json
from pathlib import Path
from typing import Any

import pytest
from sources import Rollout, call, made, message, output
from stubbed import taken
from taped import live, user

from turntape.core.seam import Arguments, Encrypted, Summary, Text, ToolCall, Usage
from turntape.replay.errors import ReplayError
from turntape.replay.importing.kinds import import_all
from turntape.replay.secrets import Masker
from turntape.replay.stub import FixtureBackend
from turntape.replay.takes import Take, takes
from turntape.replay.verify import verify


def work(rollout: Rollout) -> Rollout:
    """A call, its output, and an answer."""
    rollout.items(message("user", "<environment_context>\n  <cwd>/home/me/repo</cwd>\n</environment_context>"))
    rollout.items(message("user", "List the files."))
    rollout.items({"type": "reasoning", "summary": [{"type": "summary_text", "text": "**Looking**"}]})
    rollout.items(call("call_1", "sh", '{"cmd":"ls"}')).counted(100, 10)
    rollout.items(output("call_1", "README.md"))
    return rollout.items(message("assistant", "One file.", phase="final_answer")).counted(150, 5)


def asked(take: Take) -> list[str]:
    """The conversation, each item by its type and text."""
    return [text_of(item.value) for item in take.start.context.items_after(None)]


def text_of(item: dict[str, object]) -> str:
    parts = item.get("content") or item.get("summary")
    texts = [part["text"] for part in parts] if isinstance(parts, list) else []
    return "".join(texts) or str(item.get("output") or item.get("arguments"))


@pytest.mark.parametrize("version", ["0.98.0", "0.101.0", "0.171.0"])
def test_a_rollout_is_a_recording(version: str, tmp_path: Path) -> None:
    """Turns, calls, outputs, tokens and times of a rollout are those of the recording, which verifies."""
    result = made(tmp_path, work(Rollout(version)).lines)
    assert str(verify(result.fixture)).startswith("1 session")
    first, second = takes(result.fixture)
    assert [type(increment) for increment in first.increments()][:3] == [Summary, ToolCall, Arguments]
    assert first.finish is not None and first.finish.usage == Usage(100, 10, 40, 3)
    assert second.finish is not None and second.finish.usage == Usage(150, 5, 40, 3)
    assert "".join(i.text for i in second.increments() if isinstance(i, Text)) == "One file."
    assert [text for text in asked(second) if text not in ("Be brief.\nBe kind.",)][1:] == [
        "List the files.",
        "**Looking**",
        '{"cmd":"ls"}',
        "README.md",
    ]
    assert (first.began, first.first_token_s, first.duration_s) == pytest.approx((0.0, 0.1, 0.3))
    assert (second.began, second.duration_s) == pytest.approx((0.4, 0.2))
    assert first.start.model == "some-model" and not result.imported.skipped


def test_instructions_stand_where_the_version_sends_them(tmp_path: Path) -> None:
    """Old releases send a field; new ones a first message, which may be cut, unless the rollout has it among its items."""
    [old, _] = takes(made(tmp_path, work(Rollout("0.98.0")).lines, name="old").fixture)
    assert old.start.request.raw["instructions"] == "Be brief.\nBe kind."
    result = made(tmp_path, work(Rollout("0.171.0")).lines, name="new")
    [new, _] = takes(result.fixture)
    assert "instructions" not in new.start.request.raw and asked(new)[0] == "Be brief.\nBe kind."
    assert any(rule.get("with") == "<instructions/>" for rule in new.rules if isinstance(rule, dict))
    assert any("first line" in note for note in result.imported.notes)
    own = Rollout("0.171.0").items(message("developer", "Be brief.\nBe very kind."))
    [own_take, _] = takes(made(tmp_path, work(own).lines, name="own").fixture)
    assert asked(own_take).count("Be brief.\nBe kind.") == 0
    none = work(Rollout("0.98.0", None))
    [unknown, _] = takes(made(tmp_path, none.lines, name="none").fixture)
    assert "instructions" in unknown.rules[1]["fields"]  # type: ignore[index]


def test_what_a_rollout_does_not_hold_is_said_and_ignored(tmp_path: Path) -> None:
    """The header tells a reader, and the rules tell a stub, that tools and settings are not known."""
    result = made(tmp_path, work(Rollout()).lines)
    assert "no deltas" in result.header["note"] and result.header["imported"]["from"] == "codex"
    preset, ignored = takes(result.fixture)[0].rules
    assert preset == "codex" and {"tools", "reasoning", "text"} <= set(ignored["fields"])  # type: ignore[index]
    assert "instructions" not in ignored["fields"] and "model" not in ignored["fields"]  # type: ignore[index]


def test_the_same_rollout_gives_the_same_file(tmp_path: Path) -> None:
    """No clock and no chance is in an import."""
    lines = work(Rollout()).lines
    made(tmp_path, lines, name="a")
    (tmp_path / "again").mkdir()
    made(tmp_path / "again", lines, name="a")
    assert (tmp_path / "a.out.jsonl").read_bytes() == (tmp_path / "again" / "a.out.jsonl").read_bytes()


def test_a_client_that_says_the_same_is_in_the_same_place(tmp_path: Path) -> None:
    """The conversations of the recording are those that Codex has, item by item."""
    rollout = Rollout().items(message("user", "hi"), message("assistant", "Hello.")).counted()
    rollout.items(message("user", "bye"), message("assistant", "Farewell.")).counted()
    _, second = takes(made(tmp_path, rollout.lines).fixture)
    client = live()
    client.turn(user("hi"), say=((Text("Hello."),),))
    start = client.ask(user("bye"))
    assert start is not None and start.context.fold.key == second.start.context.fold.key


def test_answers_without_input_between_them_are_told_apart_by_their_counts(tmp_path: Path) -> None:
    """Two calls of one answer are one turn; a second answer to nothing new is a turn of its own."""
    rollout = Rollout().items(message("user", "Go."), call("a", "sh", "{}"), call("b", "sh", "{}")).counted()
    rollout.items(output("a", "1"), output("b", "2"), message("assistant", "And")).counted()
    rollout.items(message("assistant", "so on.")).counted()
    found = takes(made(tmp_path, rollout.lines).fixture)
    assert [len([*take.said()]) for take in found] == [2, 1, 1]


def test_an_interrupted_answer_is_left_out_and_the_conversation_goes_on(tmp_path: Path) -> None:
    """What was said before an interrupt is history to the next turn, and no answer."""
    rollout = work(Rollout()).items(message("user", "Go on."), message("assistant", "I w"))
    rollout.items(message("user", "<turn_aborted/>")).event("turn_aborted")
    rollout.items(message("user", "Stop."), message("assistant", "Stopped.")).counted()
    result = made(tmp_path, rollout.lines)
    [skipped] = result.imported.skipped
    assert "interrupted" in skipped and result.header["imported"]["skipped"] == [skipped]
    last = takes(result.fixture)[-1]
    assert asked(last)[-4:] == ["Go on.", "I w", "<turn_aborted/>", "Stop."]
    assert len(takes(result.fixture)) == 3
    verify(result.fixture)


def test_after_a_compaction_the_conversation_is_the_new_one(tmp_path: Path) -> None:
    """The summary is left out, since nobody knows what asked for it; what follows begins with the new history."""
    rollout = work(Rollout("0.171.0")).items(message("assistant", "A short summary.")).counted()
    new = [message("user", "List the files."), message("user", "So far: A short summary.")]
    rollout.line("compacted", {"message": "So far: A short summary.", "replacement_history": new})
    rollout.items(message("user", "And now?"), message("assistant", "Nothing.")).counted()
    result = made(tmp_path, rollout.lines)
    assert ["compaction" in why for why in result.imported.skipped] == [True]
    last = takes(result.fixture)[-1]
    assert asked(last) == ["Be brief.\nBe kind.", "List the files.", "So far: A short summary.", "And now?"]


def test_a_compaction_that_does_not_say_its_result_ends_the_import(tmp_path: Path) -> None:
    """Turns whose conversation nobody knows are named and left out, not guessed."""
    rollout = work(Rollout()).line("compacted", {"message": "Summary."})
    rollout.items(message("user", "And now?"), message("assistant", "Nothing.")).counted()
    rollout.items(message("user", "And now?"), message("assistant", "Nothing.")).counted()
    result = made(tmp_path, rollout.lines)
    assert len(takes(result.fixture)) == 2
    assert [why.count("not in the rollout") for why in result.imported.skipped] == [1, 1]


def test_an_answer_that_increments_cannot_say_is_named(tmp_path: Path) -> None:
    """An item of a hosted tool is history to later turns; the turn that made it is left out."""
    rollout = Rollout().items(message("user", "Search."))
    rollout.items(
        {"type": "web_search_call", "id": "ws_1", "status": "completed"}, message("assistant", "Found.")
    ).counted()
    rollout.items(message("user", "Thanks."), message("assistant", "Welcome.")).counted()
    result = made(tmp_path, rollout.lines)
    assert "web_search_call" in result.imported.skipped[0]
    [take] = takes(result.fixture)
    assert [item.type for item in take.start.context.items_after(None)] == [
        "message",
        "web_search_call",
        "message",
        "message",
    ]


def test_sealed_reasoning_stays_the_backends_own(tmp_path: Path) -> None:
    """What only the upstream can read is handed out again as it was; what we made ourselves is made anew."""
    rollout = Rollout().items(message("user", "Think."))
    rollout.items(
        {"type": "reasoning", "summary": [], "encrypted_content": "opaque"}, message("assistant", "Done.")
    ).counted()
    [take] = takes(made(tmp_path, rollout.lines).fixture)
    assert [i.content for i in take.increments() if isinstance(i, Encrypted)] == ["opaque"]


def test_a_rollout_that_is_being_written_is_shorter(tmp_path: Path) -> None:
    """A last line that is cut off, and an answer to come, take nothing from the rest."""
    content = "".join(f"{line}\n" for line in map(json.dumps, work(Rollout()).lines))
    result = made(tmp_path, content + '{"timestamp":"2026-11-29T12:00:09Z","type":"resp')
    assert len(takes(result.fixture)) == 2 and "is no line of a rollout" in result.imported.skipped[0]


def test_keys_in_a_rollout_are_in_no_recording(tmp_path: Path) -> None:
    """A secret that a tool printed is masked, and where secrets are refused nothing is left behind."""
    key = "sk-proj-" + "Ab1" * 16
    rollout = Rollout().items(message("user", "Show the key."), call("a", "sh", "{}")).counted()
    rollout.items(output("a", f"KEY={key}"), message("assistant", f"It is {key}.")).counted()
    result = made(tmp_path, rollout.lines)
    verify(result.fixture)
    assert key not in (tmp_path / "source.out.jsonl").read_text()
    with pytest.raises(ReplayError, match="source: holds"):
        import_all([tmp_path / "source"], tmp_path / "new.jsonl", masker=Masker(), refuses=True)
    assert not (tmp_path / "new.jsonl").exists()


@pytest.mark.parametrize("version", ["0.98.0", "0.171.0"])
async def test_a_key_in_the_instructions_is_in_no_rule(version: str, tmp_path: Path) -> None:
    """The rule that lets instructions differ quotes them masked, as they are compared: a client with the key is played to."""
    key = "sk-proj-" + "Ab1" * 16
    result = made(tmp_path, work(Rollout(version, f"Use {key}.\nBe brief.")).lines)
    assert "Ab1Ab1" not in (tmp_path / "source.out.jsonl").read_text()
    items = [user("<environment_context>\n  <cwd>/elsewhere</cwd>\n</environment_context>"), user("List the files.")]
    fields: dict[str, Any] = {"model": "some-model", "tools": []}
    if version == "0.98.0":
        fields["instructions"] = f"Use {key}.\nBe brief."
    else:
        text = {"type": "input_text", "text": f"Use {key}.\nWhat does not apply was left out."}
        items.insert(0, {"type": "message", "role": "developer", "content": [text]})
    backend = FixtureBackend.load([result.fixture])
    assert len(await taken(backend, live().ask(*items, **fields))) > 1


def test_several_rollouts_are_sessions_of_one_file(tmp_path: Path) -> None:
    """A main agent and its sub-agent, each in a file of its own, are imported together."""
    for name in ("main", "sub"):
        made(tmp_path, work(Rollout()).lines, name=name)
    _, tape = import_all([tmp_path / "main", tmp_path / "sub"], tmp_path / "both.jsonl")
    assert str(tape.counts).startswith("2 sessions, 4 turns, 2 tool calls")
