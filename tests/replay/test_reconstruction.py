"""Relayed sessions give the same takes as those that this server recorded, in every design on the wire."""

import contextlib
import copy
from random import Random
from typing import Any

import orjson
import pytest
from relayed import RelayFile, call
from taped import TOOLS, output, user

from turntape.core.seam import (
    Arguments,
    Encrypted,
    Finish,
    Message,
    Reasoning,
    Refusal,
    Sampled,
    Started,
    Summary,
    Text,
    ToolCall,
    Usage,
)
from turntape.replay.errors import ReplayError
from turntape.replay.fixture import Fixture
from turntape.replay.reconstruction import not_replayable
from turntape.replay.takes import Take, takes
from turntape.replay.verify import verify

HELLO = ((Text("Hel"), Text("lo.")),)


def conversation(take: Take) -> list[str]:
    """What a take answers, in brief."""
    return [
        str(item.value.get("content", item.value.get("output", item.value.get("name"))))
        for item in take.start.context.items_after(None)
    ]


def said(take: Take) -> list[dict[str, Any]]:
    return [item.value for item in take.said()]


def problems(file: RelayFile) -> list[tuple[int, str]]:
    return [(one.line, one.problem) for one in not_replayable(file.fixture)]


def test_a_turn_over_a_websocket() -> None:
    """One take: asked at its line, with the times and the chunks of the upstream's reads."""
    file = RelayFile()
    one = file.socket()
    one.turn(user("Hi"), say=[(Text("Hel"), Text("lo")), (Text(", you"),)])
    [take] = takes(file.fixture)
    assert (take.line, take.session, take.began, take.whole) == (file.line_of('"client":1'), 1, 0.1, True)
    batches = [(at, event.batch) for at, event in take.events if isinstance(event, Sampled)]
    told = [(at, [increment for increment in batch if isinstance(increment, Text)]) for at, batch in batches]
    assert [(at, texts) for at, texts in told if texts] == [
        (0.2, [Text("Hel")]), (0.2, [Text("lo")]), (0.3, [Text(", you")])
    ]  # fmt: skip
    assert isinstance(take.events[0][1], Started) and take.events[0][0] == 0.1
    assert [part["text"] for part in said(take)[0]["content"]] == ["Hello, you"]
    assert conversation(take) == [str(user("Hi")["content"])]
    assert take.start.model == "m" and take.start.request.raw["tools"] == TOOLS


def test_deltas_of_one_read_are_one_batch() -> None:
    """A short line is one chunk, so that its chunking can be played again."""
    file = RelayFile()
    one = file.socket()
    one.turn(user("Hi"), say=[(Text("a"),), (Text("b"), Text("c"), Text("d"))])
    assert {"u": 1, "t": 0.4, "d": ["b", "c", "d"]} in file.lines
    [take] = takes(file.fixture)
    assert (0.3, (Text("b"), Text("c"), Text("d"))) in [
        (at, e.batch) for at, e in take.events if isinstance(e, Sampled)
    ]


def test_obfuscated_deltas_are_read_back_as_they_were() -> None:
    """Padding and numbers of shortened deltas are those of the upstream."""
    file, n = RelayFile(), iter(range(99))

    def padded(event: dict[str, Any]) -> dict[str, Any]:
        return {**event, "obfuscation": "x" * next(n)} if event["type"].endswith(".delta") else event

    file.socket(padded).turn(user("Hi"), say=[(Text("a"), Text("b"), Text("c"))])
    [short] = [line for line in file.fixture.lines if getattr(line, "deltas", None)]
    assert [(m["delta"], m["sequence_number"], m["obfuscation"]) for m in short.messages] == [  # type: ignore[union-attr]
        ("b", 5, "x"), ("c", 6, "xx")
    ]  # fmt: skip


def test_a_chain_is_expanded() -> None:
    """A create that names the upstream's response continues what was said there; a warm-up counts too, and is no take."""
    file = RelayFile()
    one = file.socket()
    one.ask(user("rules"), generate=False)
    one.turn(user("List."), say=[(Message("commentary"), Text("Let me see.")), call("call_1", '{"c":1}')])
    one.turn(output("call_1", "README"), say=HELLO)
    first, second = takes(file.fixture)
    assert len(conversation(first)) == 2 and len(conversation(second)) == 5
    assert conversation(second)[2:] == [
        str([{"type": "output_text", "text": "Let me see.", "annotations": [], "logprobs": []}]), "sh", "README"
    ]  # fmt: skip
    assert second.start.context.parent is not None
    assert not problems(file)


def test_a_full_resend_on_another_socket_meets_the_chain() -> None:
    """After a reconnect the client sends all again: the same conversation, whichever way it came."""
    file = RelayFile()
    one, two = file.socket(), file.socket()
    one.turn(user("A"), say=HELLO)
    one.ask(user("B"))
    one.gone("upstream", 1011)
    said_before = next(
        line["json"]["item"] for line in file.lines if line.get("json", {}).get("type") == "response.output_item.done"
    )
    two.turn(user("A"), said_before, user("B"), say=[(Text("after all"),)], follow=False)
    _, lost, again = takes(file.fixture)
    assert lost.start.context.fold.key == again.start.context.fold.key
    assert lost.failure is not None and (lost.failure.status, lost.failure.code) == (502, "server_error")
    assert lost.whole and again.failure is None


def test_stored_chains_go_on_over_posts() -> None:
    """Each POST is a session of its own; what it continues is found in the file, streamed or not."""
    file = RelayFile()
    one = file.post({"model": "m", "input": "A"})
    one.say(HELLO[0])
    two = file.post({"model": "m", "input": "B", "stream": True})
    two.say((Text("second"),))
    assert one.last and two.last
    body = next(line for line in file.lines if line.get("client") == 2)
    body["json"]["previous_response_id"] = one.last
    [first, second] = takes(file.fixture)
    assert [take.session for take in (first, second)] == [1, 2]
    assert len(conversation(first)) == 1 and len(conversation(second)) == 3
    assert not problems(file)


def test_a_response_that_was_not_stored_is_continued_where_the_upstream_did() -> None:
    """Whether an upstream still had a response shows in its answer, and nowhere else."""
    file = RelayFile()
    one = file.post({"model": "m", "input": "A", "store": False})
    one.say(HELLO[0])
    two = file.post({"model": "m", "input": "B", "store": False})
    two.say((Text("second"),))
    next(line for line in file.lines if line.get("client") == 2)["json"]["previous_response_id"] = one.last
    assert len(conversation(takes(file.fixture)[1])) == 3


def test_appends_go_on() -> None:
    """The prototype's one long response is a take for each of its samples, each with what came before."""
    file = RelayFile()
    one = file.socket(openai_beta="responses_websockets=2026-02-04")
    one.turn(user("List."), say=[call("call_1", '{"c":1}')])
    one.append(output("call_1", "README"))
    one.say(call("call_2", '{"c":2}'))
    one.append(output("call_2", "LICENSE"))
    one.say(*HELLO)
    first, second, third = takes(file.fixture)
    assert [len(conversation(take)) for take in (first, second, third)] == [1, 3, 5]
    assert [said(take)[0]["type"] for take in (first, second, third)] == ["function_call", "function_call", "message"]
    assert len(said(second)) == len(said(third)) == 1, "the terminal event repeats earlier items"
    verify(file.fixture)


def test_appends_to_a_response_that_ended() -> None:
    """The oldest clients append to what has ended, and their upstream begins a response each time."""
    file = RelayFile()
    one = file.socket()
    one.turn(user("List."), say=[call("call_1", '{"c":1}')])
    one.append(output("call_1", "README"))
    one.say(*HELLO)
    first, second = takes(file.fixture)
    assert [len(conversation(take)) for take in (first, second)] == [1, 3]
    verify(file.fixture)


def test_lanes_interleave() -> None:
    """Answers of two lanes at once are told apart, and a fork continues what the other lane was told."""
    file = RelayFile()
    one = file.socket()
    one.turn(user("A"), say=HELLO, stream_id="main")
    parent = one.last
    main = one.ask(user("B"), stream_id="main")
    fork = one.ask(user("C"), stream_id="fork", previous_response_id=parent)
    assert main is not None and fork is not None
    for start, text in ((main, "m"), (fork, "f"), (main, "n"), (fork, "g")):
        one.feed(Sampled(start.sample_id, (Text(text),)))
    for start in (fork, main):
        one.feed(Sampled(start.sample_id, (Finish(),)))
    _, of_main, of_fork = takes(file.fixture)
    assert [said(take)[0]["content"][0]["text"] for take in (of_main, of_fork)] == ["mn", "fg"]
    assert [len(conversation(take)) for take in (of_main, of_fork)] == [3, 3]
    verify(file.fixture)


def test_everything_that_a_model_says_is_in_the_take() -> None:
    """Summaries in parts, sealed reasoning, phases, a refusal, two messages, namespaces, free text, and usage."""
    file = RelayFile()
    file.socket().turn(
        user("Hi"),
        say=[
            (Summary("one", 0), Summary("two", 1), Encrypted("sealed")),
            (Reasoning("raw"), Encrypted("more")),
            (Message("commentary"), Text("First.")),
            (Message("final_answer"), Text("Second."), Refusal("But no.")),
            (ToolCall("call_1", "apply", custom=True), Arguments("*** "), Arguments("patch")),
            (ToolCall("call_2", "spawn", "agents"),),
        ],
    )  # fmt: skip
    one = file.socket()
    one.ask(user("Hi"))
    one.say((Text("x"),), finish=Finish("length", Usage(100, 7, 64, 3)))
    whole, cut = takes(file.fixture)
    assert said(whole) == [
        {"type": "reasoning", "content": [], "encrypted_content": "sealed", "summary": [
            {"type": "summary_text", "text": "one"}, {"type": "summary_text", "text": "two"}]},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "raw"}], "encrypted_content": "more",
         "summary": []},
        {"type": "message", "role": "assistant", "phase": "commentary",
         "content": [{"type": "output_text", "text": "First."}]},
        {"type": "message", "role": "assistant", "phase": "final_answer",
         "content": [{"type": "output_text", "text": "Second."}, {"type": "refusal", "refusal": "But no."}]},
        {"type": "custom_tool_call", "call_id": "call_1", "name": "apply", "input": "*** patch"},
        {"type": "function_call", "call_id": "call_2", "name": "spawn", "arguments": "{}", "namespace": "agents"},
    ]  # fmt: skip
    assert cut.finish == Finish("length", Usage(100, 7, 64, 3))
    verify(file.fixture)


# --- what goes wrong ----------------------------------------------------------------------------------


def failure(file: RelayFile) -> tuple[str, int, str | None, str]:
    [take] = [take for take in takes(file.fixture) if take.failure]
    assert take.failure is not None and take.whole
    return take.failure.code, take.failure.status, take.failure.retry_after, take.failure.message


def test_a_refusal_over_a_websocket() -> None:
    """An error frame before the answer is a take that failed the same way, and the session goes on."""
    file = RelayFile()
    one = file.socket()
    one.ask(user("A"))
    one.fail("rate_limit_exceeded", "Slow down.", 429, retry_after="7")
    one.turn(user("A"), say=HELLO, follow=False)
    assert failure(file) == ("rate_limit_exceeded", 429, "7", "Slow down.")
    assert not isinstance(takes(file.fixture)[0].events[0][1], Started)
    assert len(takes(file.fixture)) == 2


def test_a_refusal_over_http() -> None:
    """The status, the code and the header of the answer to a POST are those of the take."""
    file = RelayFile()
    one = file.post({"model": "m", "input": "A", "stream": True})
    file.add(answer=1, t=0.2, status=429, headers={"retry-after": "3"})
    one.up(
        {"error": {"message": "Slow down.", "type": "rate_limit_error", "code": "rate_limit_exceeded", "param": None}}
    )
    one.gone("upstream")
    two = file.post({"model": "m", "input": "B"})
    file.add(answer=2, t=0.2, status=503, headers={})
    two.gone("upstream")
    first, second = (take.failure for take in takes(file.fixture))
    assert first is not None and second is not None
    assert (first.code, first.status, first.retry_after, first.message) == (
        "rate_limit_exceeded",
        429,
        "3",
        "Slow down.",
    )
    assert (second.code, second.status) == ("server_error", 503)


def test_a_failure_after_the_answer_began() -> None:
    """``response.failed`` keeps its code and words, and what was said before it."""
    file = RelayFile()
    one = file.socket()
    one.ask(user("A"))
    one.say((Text("Hel"),), finish=None)
    one.fail("server_error", "It broke.")
    assert failure(file) == ("server_error", 500, None, "It broke.")
    [take] = takes(file.fixture)
    assert said(take)[0]["content"][0]["text"] == "Hel"


def test_an_upstream_that_does_not_have_a_response_any_more() -> None:
    """The recorded refusal is a take of the conversation that the recording knows; the full resend is another."""
    file = RelayFile()
    one = file.socket()
    one.turn(user("A"), say=HELLO)
    one.ask(user("B"))
    file.lines = [line for line in file.lines if line.get("t") != one.now or "client" in line]
    message = "Previous response not found."
    error = {"type": "invalid_request_error", "code": "previous_response_not_found", "message": message}
    one.up({"type": "error", "status": 400, "error": error})
    assert failure(file) == ("previous_response_not_found", 400, None, message)
    assert len(conversation(takes(file.fixture)[1])) == 3


def test_an_interrupted_answer_is_no_whole_take() -> None:
    """Nobody knows how an answer would have ended whose client left."""
    file = RelayFile()
    one = file.socket()
    one.ask(user("A"))
    one.say((Text("Hel"),), finish=None)
    one.gone("client")
    [take] = takes(file.fixture)
    assert not take.whole and said(take)[0]["content"][0]["text"] == "Hel"
    assert not problems(file)


def test_an_upstream_that_dies_before_it_answers() -> None:
    """The take says that the connection closed, with its code."""
    file = RelayFile()
    one = file.socket()
    one.ask(user("A"))
    file.lines = [line for line in file.lines if "up" not in line]
    one.gone("upstream", 1012)
    code, status, _, message = failure(file)
    assert (code, status) == ("server_error", 502) and "1012" in message


# --- what cannot be said ------------------------------------------------------------------------------


def test_a_conversation_from_before_the_recording_is_listed() -> None:
    """The turn is named with its line, so are those that continue it; the rest of the file plays."""
    file = RelayFile()
    one = file.socket()
    one.turn(user("A"), say=HELLO)
    one.turn(user("B"), say=HELLO)
    file.lines[3]["json"]["previous_response_id"] = "resp_from_another_day_entirely"
    two = file.socket()
    two.turn(user("C"), say=HELLO)
    [take] = takes(file.fixture)
    assert conversation(take) == [str(user("C")["content"])]
    lost = "it continues a response that this recording does not hold, or could not replay"
    assert problems(file) == [(4, lost), (file.line_of('"client":1', 1), lost)]


def test_an_item_that_the_core_refuses_is_listed() -> None:
    """With the core's own words, and without harm to the next turn."""
    file = RelayFile()
    one = file.socket()
    one.turn(user("A"), say=HELLO)
    one.turn(user("B"), say=HELLO, follow=False)
    file.lines[3]["json"]["input"].append({"type": "compaction_trigger"})
    assert len(takes(file.fixture)) == 1
    [(line, problem)] = problems(file)
    assert line == 4 and "compaction_trigger" in problem
    assert "compaction_trigger" in str(verify(file.fixture))


def test_hosted_items_of_an_answer_are_listed() -> None:
    """A take says what increments can say; what it leaves out is named."""
    file = RelayFile()
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed"}

    def searching(event: dict[str, Any]) -> dict[str, Any]:
        if event["type"] != "response.completed":
            return event
        response = event["response"]
        return {**event, "response": {**response, "output": [search, *response["output"]]}}

    file.socket(searching).turn(user("A"), say=HELLO)
    assert len(takes(file.fixture)) == 1
    assert problems(file) == [(4, "the web_search_call of its answer is left out; the rest of it is played")]


def test_what_is_no_request_is_listed() -> None:
    """Steering, a message that is no JSON, another path, a handshake that was refused, a part that was not read."""
    file = RelayFile()
    one = file.socket()
    one.turn(user("A"), say=HELLO)
    file.add(client=1, t=2.0, json={"type": "response.steer", "previous_response_id": one.last, "input": "also"})
    file.add(client=1, t=2.1, text="no json")
    file.post({"model": "m", "input": "A"}, path="/v1/responses/compact?x=1")
    refused = file.socket()
    file.lines[-1]["status"] = 401
    refused.gone("upstream")
    last = file.socket()
    file.add(unread=last.number, t=0.5, by="upstream", reason="a reserved bit is set")
    last.turn(user("B"), say=HELLO)
    assert [problem for _, problem in problems(file)] == [
        "a message of type 'response.steer' is not replayed",
        "a message that is no JSON object is not replayed",
        "POST /v1/responses/compact is no request for a response",
        "the handshake was refused with status 401: there is no turn in it",
        "from here on the upstream could not be read (a reserved bit is set)",
    ]
    assert len(takes(file.fixture)) == 1


def test_an_answer_that_nobody_asked_for_is_listed() -> None:
    """A successor that steering began has no request of the client's."""
    file = RelayFile()
    one = file.socket()
    one.turn(user("A"), say=HELLO)
    one.up({"type": "response.created", "sequence_number": 0, "response": {"id": "resp_next"}})
    assert [problem for _, problem in problems(file)] == ["response resp_next answers no request of this session"]


# --- ids ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("session", ["same", "other"])
def test_items_that_are_named_by_id_are_found(session: str) -> None:
    """An ``item_reference`` to what the upstream said, in this session or another, is that item."""
    file = RelayFile()
    one = file.socket()
    one.turn(user("A"), say=HELLO)
    done = next(
        line["json"]["item"] for line in file.lines if line.get("json", {}).get("type") == "response.output_item.done"
    )
    two = file.socket() if session == "other" else one
    two.ask(user("A"), done, user("B"), follow=False)
    two.say(*HELLO)
    asking = next(line for line in file.lines if "client" in line and len(line["json"]["input"]) == 3)
    asking["json"]["input"][1] = {"type": "item_reference", "id": done["id"]}
    _, second = takes(file.fixture)
    assert len(conversation(second)) == 3 and "Hello." in conversation(second)[1]


def test_an_id_within_a_text_stays() -> None:
    """Ids are mapped as whole strings; a word that is an id by chance is one only where a key says so."""
    file, ids = RelayFile(), {"id": "r1"}

    def short(event: dict[str, Any]) -> dict[str, Any]:
        return {**event, "response": {**event["response"], **ids}} if "response" in event else event

    one = file.socket(short)
    one.turn(user("A"), say=[call("call_1", "{}")])
    real = one.last
    one.turn(output("call_1", "r1"), say=HELLO)
    asking = file.lines[file.line_of('"client":1', 1) - 1]["json"]
    assert asking["previous_response_id"] == real
    asking["previous_response_id"] = "r1"
    asking["metadata"] = {"word": "r1"}
    second = takes(file.fixture)[1]
    assert conversation(second)[-1] == "r1"
    raw = second.start.request.raw
    assert raw["metadata"] == {"word": "r1"} and raw["previous_response_id"] != "r1"


def test_a_cut_file_is_a_shorter_recording() -> None:
    """Cut anywhere, it is read, and says nothing that the whole one does not."""
    file = RelayFile()
    one = file.socket()
    one.turn(user("A"), say=HELLO)
    one.turn(user("B"), say=[call("call_1", '{"c":1}')])
    whole = takes(file.fixture)
    for end in range(file.content.index(b"\n") + 1, len(file.content), 61):
        fixture = Fixture.parse(file.content[:end])
        verify(fixture)
        for take, complete in zip(takes(fixture), whole, strict=False):
            assert take.events == complete.events[: len(take.events)]


ODD: tuple[Any, ...] = (None, 0, -1, 1e9, "", "x", [], {}, [1], [{}], {"a": 1}, True)


def spoilt(file: RelayFile, random: Random) -> bytes:
    """A recording with a few lines lost, moved, doubled, or with other values in them."""
    lines = copy.deepcopy(file.lines)
    for _ in range(random.choice((1, 1, 2, 5))):
        at, other = random.randrange(1, len(lines)), random.randrange(1, len(lines))
        match random.randrange(6):
            case 0:
                del lines[at]
            case 1:
                lines.insert(other, copy.deepcopy(lines[at]))
            case 2:
                lines[at], lines[other] = lines[other], lines[at]
            case _:
                spoil(lines[at], random)
    return b"".join(orjson.dumps(line) + b"\n" for line in lines)


def spoil(value: Any, random: Random) -> None:
    """Change one value somewhere in ``value``."""
    keys = [*value] if isinstance(value, dict) else [*range(len(value))]
    if not keys:
        return
    key = random.choice(keys)
    if isinstance(value[key], dict | list) and value[key] and random.random() < 0.8:
        spoil(value[key], random)
    else:
        value[key] = copy.deepcopy(random.choice(ODD))


@pytest.mark.parametrize("seed", range(200))
def test_a_spoilt_recording_is_refused_or_played(seed: int) -> None:
    """Whatever an upstream, a relay or a person wrote into it: an error that names a line, or takes, and never a traceback."""
    file = RelayFile()
    one = file.socket()
    one.turn(user("A"), say=[(Message("commentary"), Text("x")), call("call_1", '{"c":1}')], stream_id="a")
    one.turn(output("call_1", "b"), say=HELLO, stream_id="a")
    one.ask(user("B"))
    one.fail("rate_limit_exceeded", "Slow down.", 429)
    file.post({"model": "m", "input": "A", "stream": True}).say(HELLO[0])
    for read in (takes, verify, not_replayable):
        with contextlib.suppress(ReplayError):
            read(Fixture.parse(spoilt(file, Random(seed))))
