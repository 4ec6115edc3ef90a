"""Fixtures of aimock as recordings: what each answers, when, and what its weaker matching lets pass."""

from pathlib import Path

import pytest
from sources import WEATHER, Json, Made, fixture, made
from taped import live, output, user

from turntape.core.seam import Arguments, Finish, StartSample, Summary, Text, ToolCall, Usage
from turntape.replay.importing.conversations import ImportFailed
from turntape.replay.stub_library import Library
from turntape.replay.takes import Take, takes
from turntape.replay.verify import verify


def file(*fixtures: Json) -> list[Json]:
    return [{"fixtures": [*fixtures]}]


def text(take: Take) -> str:
    return "".join(i.text for i in take.increments() if isinstance(i, Text))


def test_a_fixture_is_a_turn(tmp_path: Path) -> None:
    """Texts, calls, reasoning, order, length, tokens and errors are those of the fixture."""
    blocks = [{"type": "toolCall", "name": "look", "arguments": "{}"}, {"type": "text", "text": "Looking."}]
    result = made(
        tmp_path,
        file(
            fixture({"userMessage": "hi"}, {"content": "Hello.", "reasoning": "Greet.", "finishReason": "length"}),
            fixture({"userMessage": "look"}, {"blocks": blocks, "usage": {"prompt_tokens": 9, "completion_tokens": 4}}),
            fixture({"userMessage": "data"}, {"content": {"a": 1}}),
            fixture(
                {"userMessage": "no"}, {"error": {"message": "Slow", "code": "rate_limit_exceeded"}, "status": 429}
            ),
        ),
    )
    assert result.imported.kind == "aimock" and not result.imported.skipped
    verify(result.fixture)
    hi, look, values, no = takes(result.fixture)
    assert text(hi) == "Hello." and hi.finish is not None and hi.finish.reason == "length"
    assert [i.text for i in hi.increments() if isinstance(i, Summary)] == ["Greet."]
    kinds = [type(i) for i in look.increments() if isinstance(i, ToolCall | Arguments | Text | Finish)]
    assert kinds == [ToolCall, Arguments, Text, Finish]
    assert look.finish is not None and look.finish.usage == Usage(9, 4)
    assert text(values) == '{"a":1}'
    assert no.failure is not None and (no.failure.code, no.failure.status) == ("rate_limit_exceeded", 429)


@pytest.mark.parametrize(
    ("timing", "first_s", "duration_s"),
    [
        ({"latency": 100, "chunkSize": 2}, 0.1, 0.4),
        ({"streamingProfile": {"ttft": 500, "tps": 10}, "chunkSize": 2}, 0.5, 0.8),
        ({"recordedTimings": {"ttftMs": 50, "interChunkDelaysMs": [10, 30]}, "chunkSize": 2}, 0.05, 0.12),
        ({}, 0.0, 0.0),
    ],
)
def test_pieces_come_when_aimock_sends_them(timing: Json, first_s: float, duration_s: float, tmp_path: Path) -> None:
    """Sizes and pauses of a fixture are those of the take; the message that begins counts as the first of them."""
    [take] = takes(made(tmp_path, file(fixture({"userMessage": "hi"}, {"content": "abcdef"}, **timing))).fixture)
    assert [i.text for i in take.increments() if isinstance(i, Text)] == (["ab", "cd", "ef"] if timing else ["abcdef"])
    assert (take.first_token_s, take.duration_s) == pytest.approx((first_s, duration_s))


def answers(result: Made, start: StartSample | None) -> list[str]:
    """The texts or calls that a stub would play to a client that asks this."""
    assert start is not None
    library = Library()
    library.add(result.fixture)
    found = [one.take for one, _ in library.matching(start)]
    return [text(take) or next(i.name for i in take.increments() if isinstance(i, ToolCall)) for take in found]


def test_a_client_that_aimock_would_answer_is_answered(tmp_path: Path) -> None:
    """The rules let pass what aimock does not compare, and a whole tool round is one conversation."""
    result = made(tmp_path, file(*WEATHER))
    client = live()
    asked = client.turn(user("How is the weather today?"), say=((ToolCall("x", "look"), Arguments('{"city":"SF"}')),))
    assert answers(result, asked) == ["look"]
    later = client.ask(output("x", "22 degrees"), temperature=0.5, model="any", instructions="Be brief.")
    assert answers(result, later) == ["It is sunny."]
    plain = {"role": "user", "content": "How is the weather?"}
    assert answers(result, live().ask(plain)) == ["look"]
    assert answers(result, live().ask(user("How is the traffic today?"))) == []


def test_what_aimock_does_compare_is_compared(tmp_path: Path) -> None:
    """Model, parts of the instructions and of a tool's output decide, as they do there."""
    hello = fixture(
        {"userMessage": "hi", "systemMessage": ["polite", "brief"], "model": "gpt-5"}, {"content": "Hello."}
    )
    result = made(tmp_path, file(hello), name="hello")
    told = {"model": "gpt-5", "instructions": "Be brief and polite."}
    assert answers(result, live().ask(user("hi there"), **told)) == ["Hello."]
    assert answers(result, live().ask(user("hi there"), **{**told, "model": "gpt-4"})) == []
    assert answers(result, live().ask(user("hi there"), **{**told, "instructions": "Be brief."})) == []
    yes = fixture({"toolCallId": "call_1", "toolResultContains": "yes\\n"}, {"content": "Booked."})
    result = made(tmp_path, file(WEATHER[0], yes), name="booking")
    for said, expected in (("I say yes\\n.", ["Booked."]), ("I say no.", [])):
        client = live()
        client.turn(user("weather"), say=((ToolCall("x", "look"), Arguments('{"city":"SF"}')),))
        assert answers(result, client.ask(output("x", said))) == expected


def test_a_fixture_for_anything_answers_anything(tmp_path: Path) -> None:
    """An empty match is answered to every first message, whatever it says."""
    result = made(tmp_path, file(fixture({}, {"content": "I do not know."})))
    assert answers(result, live().ask(user("What is\nthis?"))) == ["I do not know."]


def test_turns_follow_by_their_index(tmp_path: Path) -> None:
    """Fixtures of one message that name their place are turns of one conversation, in that order."""
    steps = [fixture({"userMessage": "plan", "turnIndex": n}, {"content": f"Step {n}."}) for n in (1, 0, 2)]
    found = takes(made(tmp_path, file(*steps)).fixture)
    assert [text(take) for take in found] == ["Step 0.", "Step 1.", "Step 2."]
    assert [take.start.context.n_items for take in found] == [1, 3, 5]
    assert len({take.session for take in found}) == 1


def test_what_is_no_answer_of_a_model_is_named(tmp_path: Path) -> None:
    """Embeddings, images, orphans and nonsense are left out, each with its number and why."""
    result = made(
        tmp_path,
        file(
            fixture({"inputText": "x"}, {"embedding": [0.1]}),
            fixture({"endpoint": "image"}, {"image": {"url": "u"}}),
            fixture({"toolCallId": "call_nowhere"}, {"content": "?"}),
            fixture({"userMessage": 7}, {"content": "?"}),
            fixture({"userMessage": "a"}, {"toolCalls": [{"arguments": {}}]}),
            fixture({"userMessage": "hi"}, {"content": "Hello."}),
        ),
    )
    assert len(takes(result.fixture)) == 1
    numbers = sorted(why.partition(": ")[2].partition(":")[0] for why in result.imported.skipped)
    assert numbers == [f"fixture {n}" for n in (1, 2, 3, 4, 5)]
    assert "let pass what aimock does not look at" in result.header["note"]


def test_another_file_is_refused(tmp_path: Path) -> None:
    """A file that is said to be aimock's and is not is named, with the shape that it should have."""
    with pytest.raises(ImportFailed, match="is no file of aimock"):
        made(tmp_path, [{"fixtures": []}], kind="aimock")


def test_a_key_that_a_fixture_waits_for_is_in_no_rule(tmp_path: Path) -> None:
    """A message or a tool output with a key is compared masked, and the rules quote it so."""
    key = "sk-proj-" + "Ab1" * 16
    match = {"userMessage": f"my key is {key}", "systemMessage": f"Never say {key}"}
    result = made(tmp_path, file(fixture(match, {"content": "Thanks."})))
    assert "Ab1Ab1" not in (tmp_path / "source.out.jsonl").read_text()
    asked = live().ask(user("So my key is sk-proj-[masked]."), instructions="Never say sk-proj-[masked]!")
    assert answers(result, asked) == ["Thanks."]
