"""Logs of Responses events as recordings, in every shape in which people write them."""

import json
from pathlib import Path
from typing import Any

import pytest
from sources import CHAIN, Json, made, response, said

from turntape.core.seam import Arguments, SampleFailed, Text, ToolCall, Usage
from turntape.replay.importing.conversations import ImportFailed
from turntape.replay.takes import takes
from turntape.replay.verify import verify


def as_lines(values: list[Json]) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def as_to_json(values: list[Json]) -> str:
    """As ``event.to_json()`` writes it, which indents."""
    return "".join(json.dumps(value, indent=2) + "\n" for value in values)


def as_event_stream(values: list[Json]) -> str:
    return (
        "".join(f"event: {value.get('type', 'request')}\ndata: {json.dumps(value)}\n\n" for value in values)
        + "data: [DONE]\n\n"
    )


@pytest.mark.parametrize("written", [as_lines, as_to_json, as_event_stream, json.dumps])
def test_each_way_of_writing_gives_the_same_turns(written: Any, tmp_path: Path) -> None:
    """Lines, indented values, an event stream and one array hold the same chain: requests, deltas, calls and tokens."""
    result = made(tmp_path, written(CHAIN))
    assert result.imported.kind == "openai-events" and not result.imported.skipped
    verify(result.fixture)
    first, second = takes(result.fixture)
    assert [i for i in first.increments() if isinstance(i, ToolCall | Arguments)] == [
        ToolCall("call_x", "sh"),
        Arguments('{"cmd":"ls"}'),
    ]
    assert [i.text for i in second.increments() if isinstance(i, Text)] == ["One ", "file."]
    assert second.finish is not None and second.finish.usage == Usage(20, 7, 5, 0)
    assert [item.type for item in second.start.context.items_after(None)] == [
        "message",
        "function_call",
        "function_call_output",
    ]


def test_times_of_a_log_are_those_of_the_recording(tmp_path: Path) -> None:
    """Where events have a time, the take has it; where none has one, that is said."""
    events = said("resp_a", "One ", "two.")
    times = [{"at": 1_800_000_000.5 + n / 4, "event": event} for n, event in enumerate(events)]
    request = {"at": 1_800_000_000.25, "request": {"model": "m", "input": "Count."}}
    result = made(tmp_path, [request, *times], name="timed")
    [take] = takes(result.fixture)
    assert take.first_token_s == pytest.approx(0.75) and take.duration_s == pytest.approx(1.75)
    assert not any("no times" in note for note in result.imported.notes)
    result = made(tmp_path, [request, *events], name="plain")
    assert any("no times" in note for note in result.imported.notes)


def test_a_log_without_requests_says_what_that_means(tmp_path: Path) -> None:
    """Answers can be shown, and a placeholder stands for what was asked, with a word in the header."""
    result = made(tmp_path, said("resp_a", "Hi."))
    [take] = takes(result.fixture)
    assert "".join(i.text for i in take.increments() if isinstance(i, Text)) == "Hi."
    assert "nobody knows what was asked" in result.header["note"]
    assert "does not hold what was asked" in str(take.start.context.items_after(None)[0].value)


def test_whole_responses_are_answers_too(tmp_path: Path) -> None:
    """What ``responses.create`` returned without streaming is one answer, at once."""
    whole = said("resp_a", "Hi.")[-1]["response"]
    result = made(tmp_path, [{"model": "m", "input": "Hello"}, whole])
    [take] = takes(result.fixture)
    assert "".join(i.text for i in take.increments() if isinstance(i, Text)) == "Hi."


def test_a_failed_answer_fails_again(tmp_path: Path) -> None:
    """Code and message of a failure are the upstream's."""
    error = {"code": "rate_limit_exceeded", "message": "Slow down."}
    failed = {"type": "response.failed", "response": response("resp_a", "failed", error=error)}
    [take] = takes(made(tmp_path, [{"model": "m", "input": "Hi"}, said("resp_a", "x")[0], failed]).fixture)
    assert isinstance(take.failure, SampleFailed) and take.failure.code == "rate_limit_exceeded"
    assert "Slow down." in take.failure.message


def test_what_is_not_whole_is_named(tmp_path: Path) -> None:
    """An answer without its end, a request without an answer, a chain from before the log, and a stranger."""
    values = [
        {"request": {"model": "m", "input": "Lost"}},
        *said("resp_a", "x")[:-1],
        {"request": {"model": "m", "input": "Hi", "previous_response_id": "resp_before"}},
        *said("resp_b", "y"),
        {"request": {"model": "m", "input": "Never answered"}},
        {"request": {"model": "m", "input": "Hi"}},
        *said("resp_c", "z"),
        {"something": "else"},
    ]
    result = made(tmp_path, values)
    assert len(takes(result.fixture)) == 1
    why = " | ".join(result.imported.skipped)
    assert "line 2: an answer without its end" in why
    assert "continues resp_before, which is not in the source" in why
    assert "a request without an answer" in why and "is no request, event or response" in why
    assert result.header["imported"]["skipped"] == result.imported.skipped


def test_a_log_that_is_being_written_is_shorter(tmp_path: Path) -> None:
    """A value that is cut off at the end takes nothing from those before it."""
    for written in (as_lines, as_to_json):
        content = written([{"model": "m", "input": "Hi"}, *said("resp_a", "Hello.")]) + '{"type": "response.crea'
        assert len(takes(made(tmp_path, content, name=written.__name__).fixture)) == 1


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is not recognised. What can be imported: Codex"),
        ('{"a": 1}\n', "is not recognised"),
        ("no json at all", "line 1: is not JSON"),
        ('{"type": "response.created"}\n{]\n{"type": "response.completed"}\n', "line 2: is not JSON"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
        ('{"model": "m", "input": "Hi"}\n', "holds nothing to replay"),
    ],
)
def test_what_cannot_be_imported_is_refused_by_name(content: str | bytes, says: str, tmp_path: Path) -> None:
    """The message names file and line and says what to do, and no recording is left behind."""
    with pytest.raises(ImportFailed, match="source") as caught:
        made(tmp_path, content)
    assert says in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_recording_is_never_written_over(tmp_path: Path) -> None:
    """An import into a file that is there already is refused, and that file is as it was."""
    made(tmp_path, CHAIN)
    before = (tmp_path / "source.out.jsonl").read_bytes()
    with pytest.raises(Exception, match="is there already"):
        made(tmp_path, CHAIN)
    assert (tmp_path / "source.out.jsonl").read_bytes() == before
