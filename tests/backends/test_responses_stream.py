"""The reader of a Responses stream against the ways in which servers differ from the documented one."""

from typing import Any

import orjson
import pytest
from backends.cases import calls_of, text_of
from hypothesis import given
from hypothesis import strategies as st

from turntape.core.seam import (
    Arguments,
    Encrypted,
    Finish,
    Increment,
    Message,
    Reasoning,
    Refusal,
    Summary,
    Text,
    ToolCall,
    Usage,
)
from turntape.transport.backends.base import BackendError
from turntape.transport.backends.chat_errors import Refusals
from turntape.transport.backends.chat_tools import ToolKey, ToolNames
from turntape.transport.backends.responses_stream import EventReader

NAMES = ToolNames().including([ToolKey("lookup"), ToolKey("patch", custom=True), ToolKey("spawn", "agents")])


def reader(names: ToolNames = NAMES) -> EventReader:
    return EventReader(names, Refusals("model.test", "hunter2"))


def read(*events: dict[str, Any] | str, names: ToolNames = NAMES) -> list[Increment]:
    """What the events say, each in a read of its own."""
    one = reader(names)
    heard: list[Increment] = []
    for event in events:
        heard += one.feed([event if isinstance(event, str) else orjson.dumps(event).decode()])
    return [*heard, *one.end()]


def failing(*events: dict[str, Any]) -> BackendError:
    with pytest.raises(BackendError) as caught:
        read(*events)
    return caught.value


def ev(type_: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{type_}", **fields}


def added(id_: str, type: str, **fields: Any) -> dict[str, Any]:
    return ev("output_item.added", item={"id": id_, "type": type, **fields})


def done(id_: str | None, type: str, **fields: Any) -> dict[str, Any]:
    own = {} if id_ is None else {"id": id_}
    return ev("output_item.done", item={**own, "type": type, **fields})


def message(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": [*parts]}


def out(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text}


def end(*output: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return ev("completed", response={"id": "resp_1", "status": "completed", "output": [*output], **fields})


HELLO = {"id": "m", "type": "message", **message(out("hello"))}


# --- where the words are ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "events",
    [
        [ev("output_text.delta", delta="hel"), ev("output_text.delta", delta="lo"), end()],
        [ev("output_text.delta", item_id="m", delta="hel"), ev("output_text.done", item_id="m", text="hello"), end()],
        [ev("output_text.done", item_id="m", text="hello"), end()],
        [added("m", "message"), done("m", "message", **message(out("hello"))), end()],
        [done(None, "message", **message(out("hello"))), end()],
        [end(HELLO)],
        [added("m", "message"), ev("output_text.delta", item_id="other", delta="hello"), end(HELLO)],
        [{"id": "resp_1", "object": "response", "status": "completed", "output": [HELLO]}],
        [ev("created"), ev("in_progress"), ev("in_progress"), "[DONE]", end(HELLO), "[DONE]"],
        [
            ev("output_text.delta", item_id="m", delta="hello"),
            done("m", "message", **message(out("hello"))),
            end(HELLO),
        ],
    ],
    ids=[
        "no ids, no beginning",
        "the rest in done",
        "all in done",
        "all in the item",
        "an item alone",
        "the response alone",
        "ids mixed up",
        "not streamed",
        "keepalives",
        "all of it, thrice",
    ],
)
def test_text_is_found_wherever_a_server_puts_it(events: list[Any]) -> None:
    """What was said is heard once, and only once, whichever events a server leaves out."""
    assert text_of(read(*events)) == "hello"


CALL = {"type": "function_call", "call_id": "call_1", "name": "lookup"}


@pytest.mark.parametrize(
    "events",
    [
        # LM Studio: nothing before the .done
        [added("f", **CALL, arguments=""), ev("function_call_arguments.done", item_id="f", arguments='{"k":1}'), end()],
        # llama.cpp: no numbers, and the delta's id is the call's
        [added("f", **CALL), ev("function_call_arguments.delta", item_id="call_1", delta='{"k":1}'), end()],
        [
            ev("function_call_arguments.delta", item_id="f", delta='{"k":1}'),
            done("f", **CALL, arguments='{"k":1}'),
            end(),
        ],
        [ev("function_call_arguments.done", item_id="f", arguments='{"k":1}'), done("f", **CALL), end()],
        [done("f", **CALL, arguments='{"k":1}'), end({**CALL, "id": "f", "arguments": '{"k":1}'})],
        [end({**CALL, "arguments": '{"k":1}'})],
    ],
)
def test_a_call_is_found_wherever_a_server_puts_it(events: list[Any]) -> None:
    """A call has its name, id and arguments once, whichever event holds them."""
    [(call, arguments)] = calls_of(read(*events))
    assert (call, arguments) == (ToolCall("call_1", "lookup"), '{"k":1}')


def test_a_call_without_arguments_has_empty_ones() -> None:
    """No word about arguments means an empty object."""
    assert calls_of(read(added("f", **CALL), done("f", **CALL), end())) == [(ToolCall("call_1", "lookup"), "{}")]


def test_calls_that_are_mixed_come_one_after_the_other() -> None:
    """Deltas of two calls in turns: the second waits until the first is whole."""
    other = {**CALL, "call_id": "call_2"}
    one = reader()
    heard: list[Increment] = []
    for event in (
        added("f1", **CALL),
        added("f2", **other),
        ev("function_call_arguments.delta", item_id="f1", delta="{"),
        ev("function_call_arguments.delta", item_id="f2", delta="{}"),
        ev("function_call_arguments.delta", item_id="f1", delta="}"),
        done("f1", **CALL, arguments="{}"),
    ):
        heard += one.feed([orjson.dumps(event)])
    assert heard == [
        ToolCall("call_1", "lookup"),
        Arguments("{"),
        Arguments("}"),
        ToolCall("call_2", "lookup"),
        Arguments("{}"),
    ]
    heard += one.feed([orjson.dumps(done("f2", **other, arguments="{}")), orjson.dumps(end())])
    assert [*heard, *one.end()][-1] == Finish()


def test_an_item_that_nobody_ends_does_not_hold_up_the_next() -> None:
    """A server that never says that reasoning is done is streamed all the same, and loses nothing that comes late."""
    one = reader()
    for event, expected in (
        (ev("reasoning_text.delta", item_id="r", delta="hm"), [Reasoning("hm")]),
        (ev("output_text.delta", item_id="m", delta="hel"), [Message(), Text("hel")]),
        (ev("reasoning_text.delta", item_id="r", delta="!"), [Reasoning("!")]),
        (ev("output_text.delta", item_id="m", delta="lo"), [Text("lo")]),
    ):
        assert list(one.feed([orjson.dumps(event)])) == expected


def test_names_find_their_way_back() -> None:
    """A function that stands for a custom tool, or for one in a namespace, is that tool's call."""
    said = read(
        done("f1", "function_call", call_id="c1", name="patch", arguments='{"input":"a\\nb"}'),
        done("f2", "function_call", call_id="c2", name="spawn", arguments="{}"),
        done("f3", "custom_tool_call", call_id="c3", name="exec", input="x"),
        done("f4", "function_call", call_id="c4", name="look", namespace="agents", arguments="{}"),
        end(),
    )
    assert calls_of(said) == [
        (ToolCall("c1", "patch", None, True), "a\nb"),
        (ToolCall("c2", "spawn", "agents"), "{}"),
        (ToolCall("c3", "exec", None, True), "x"),
        (ToolCall("c4", "look", "agents"), "{}"),
    ]


def test_everything_about_reasoning_and_messages() -> None:
    """Summaries by their parts, raw reasoning, what is encrypted, phases and refusals each have their increment."""
    said = read(
        added("r1", "reasoning", encrypted_content="gA-not-yet"),
        ev("reasoning_summary_text.delta", item_id="r1", summary_index=0, delta="One."),
        ev("reasoning_summary_text.delta", item_id="r1", summary_index=1, delta="Two."),
        done("r1", "reasoning", encrypted_content="gA", summary=[{"text": "One."}, {"text": "Two."}]),
        added("r2", "reasoning"),
        ev("reasoning_text.delta", item_id="r2", content_index=0, delta="raw"),
        done("r2", "reasoning"),
        added("m1", "message", phase="commentary"),
        ev("output_text.delta", item_id="m1", delta="Hm."),
        done("m1", "message"),
        added("m2", "message", phase="final_answer"),
        ev("refusal.delta", item_id="m2", delta="No"),
        ev("refusal.done", item_id="m2", refusal="No."),
        done("w", "web_search_call", status="completed"),
        end(usage={"input_tokens": 9, "output_tokens": 5, "output_tokens_details": {"reasoning_tokens": 2}}),
    )
    assert said == [
        Summary("One.", 0),
        Summary("Two.", 1),
        Encrypted("gA"),
        Reasoning("raw"),
        Message("commentary"),
        Text("Hm."),
        Message("final_answer"),
        Refusal("No"),
        Refusal("."),
        Finish("stop", Usage(9, 5, 0, 2)),
    ]


@pytest.mark.parametrize(
    ("details", "reason"),
    [({"reason": "max_output_tokens"}, "length"), ({"reason": "content_filter"}, "content_filter"), (None, "length")],
)
def test_incomplete_answers(details: Any, reason: str) -> None:
    """Why an answer is incomplete is kept; a server that does not say had a limit."""
    over = ev("incomplete", response={"status": "incomplete", "incomplete_details": details})
    assert read(ev("output_text.delta", delta="x"), over)[-1] == Finish(reason)


# --- failures --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "code", "status"),
    [
        (ev("failed", response={"error": {"code": "server_error", "message": "no"}}), "server_error", 502),
        (ev("failed", response={"error": {"code": "rate_limit_exceeded"}}), "rate_limit_exceeded", 429),
        (ev("failed", response={}), "server_error", 502),
        (ev("cancelled", response={"status": "cancelled"}), "server_error", 502),
        ({"type": "error", "code": "server_is_overloaded", "message": "no"}, "server_is_overloaded", 503),
        ({"type": "error", "error": {"code": "context_length_exceeded"}}, "context_length_exceeded", 400),
        ({"error": {"message": "loading model", "code": 503}}, "server_is_overloaded", 503),
        ({"error": "it broke"}, "server_error", 502),
        ({"type": "error", "message": "exceeds the context window"}, "context_length_exceeded", 400),
    ],
)
def test_failures_of_every_shape(event: dict[str, Any], code: str, status: int) -> None:
    """An error event, nested or flat, and a failed response say what they mean, and who said it."""
    error = failing(ev("output_text.delta", delta="x"), event)
    assert (error.code, error.status) == (code, status)
    assert "model.test reported an error after 1 event of its answer" in str(error)


def test_answers_that_are_not_whole() -> None:
    """A stream that ends without a terminal event has failed, also after text."""
    assert "sent an empty answer." in str(failing())
    assert "events (1) that hold no response; check what it speaks" in str(
        failing({"choices": [{"delta": {"content": "x"}}]})
    )
    assert "without saying" in str(failing(ev("output_text.delta", delta="x")))
    assert "call_id" in str(failing(done("f", "function_call", name="lookup"), end()))


def test_what_orjson_does_not_read() -> None:
    """A lone surrogate, which JavaScript servers send, is read, in an error too."""
    with pytest.raises(BackendError, match="no \ufffd more"):
        read('{"type":"error","code":123456789012345678901234567890,"message":"no \\ud800 more"}')
    assert text_of(read('{"type":"response.output_text.delta","delta":"\\ud800"}', end())) == "\ud800"


@given(st.lists(st.recursive(st.none() | st.integers() | st.text(max_size=9), st.lists, max_leaves=3), max_size=5))
def test_no_event_can_crash_the_reader(values: list[Any]) -> None:
    """Whatever stands in an event's fields, the answer is read or has failed."""
    fields = ("response", "item", "delta", "text", "item_id", "output_index", "error", "output", "status")
    types = ("completed", "failed", "output_item.done", "output_text.delta", "function_call_arguments.done", "x")
    one = reader()
    for n, value in enumerate(values):
        for type_ in types:
            event = {"type": f"response.{type_}"} | dict.fromkeys(fields[n % 3 :], value)
            one.feed([orjson.dumps(event, option=orjson.OPT_NON_STR_KEYS) if _fits(value) else "{}"])
            one.feed(
                [orjson.dumps({"type": f"response.{type_}", "item": {"type": "message", "content": [value]}})]
                if _fits(value)
                else []
            )


def _fits(value: Any) -> bool:
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        return False
    return True
