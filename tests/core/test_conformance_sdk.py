"""Every server event is one that openai-python declares: checked strictly, since its own parser never refuses."""

import typing

import pytest
from openai.lib.responses_websocket import ResponsesWebSocketAccumulator
from openai.types.responses import response_stream_event
from openai.types.responses.responses_server_event import ResponsesServerEvent
from peer import Peer
from pydantic import BaseModel, TypeAdapter

from turntape.core.seam import Arguments, Finish, Message, Reasoning, Refusal, Summary, Text, Tick, ToolCall

REASONING = (Summary("a"), Summary("b", 1), Reasoning("raw"))
SAID = {
    "text": (Text("Hello, "), Text("there."), Finish()),
    "reasoning": (*REASONING, Text("x"), Finish()),
    "refusal": (Refusal("no"), Finish()),
    "phases": (Message("commentary"), Text("a"), Message("final_answer"), Text("b"), Finish()),
    "calls": (*REASONING, ToolCall("c1", "f"), Arguments("{}"), ToolCall("c2", "g", "ns"), Arguments("{}"), Finish()),
    "custom": (ToolCall("c1", "patch", custom=True), Arguments("*** Begin"), Finish()),
    "incomplete": (Summary("half"), Text("half"), Finish("length")),
}
TOOLS = [
    {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True},
    {"type": "namespace", "name": "ns", "description": "d", "tools": [{"type": "function", "name": "g"}]},
    {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"}},
    {"type": "web_search"},
]


def declared() -> dict[str, list[type[BaseModel]]]:
    """The SDK's event classes by the ``type`` they declare."""
    found: dict[str, list[type[BaseModel]]] = {}
    for union in (ResponsesServerEvent, response_stream_event.ResponseStreamEvent):
        for cls in typing.get_args(typing.get_args(union)[0]):
            for name in typing.get_args(cls.model_fields["type"].annotation):
                found.setdefault(name, []).append(cls)
    return found


DECLARED = declared()


def check(event: dict) -> None:
    """Raises unless ``event`` is valid, strictly and in every nested part, for each class declared for its type."""
    assert event["type"] in DECLARED, f"the SDK knows no {event['type']}"
    for cls in DECLARED[event["type"]]:
        if event["type"] == "error" and "error" not in cls.model_fields:
            continue  # the flat form, which belongs to SSE
        TypeAdapter(cls).validate_python(event, strict=True)


@pytest.mark.parametrize("said", SAID)
def test_c11_every_event_is_declared_by_the_sdk_and_adds_up_to_the_response(said):
    peer = Peer(answer=lambda start: SAID[said])
    events = peer.create(tools=TOOLS, include=["reasoning.encrypted_content"], metadata={"k": "v"}, instructions="i")
    accumulator = ResponsesWebSocketAccumulator()
    for event in events:
        check(event)
        [cls] = [cls for cls in DECLARED[event["type"]] if "Ws" in cls.__name__] or DECLARED[event["type"]][:1]
        accumulator.add_event(cls.model_validate(event))
    final = accumulator.get_final_response()
    assert final.id == events[-1]["response"]["id"] and final.status == events[-1]["response"]["status"]
    assert [item.to_dict() for item in final.output] == [
        event["item"] for event in events if event["type"] == "response.output_item.done"
    ]


def test_c11_failures_keepalives_warm_ups_and_errors_are_declared_too():
    peer = Peer(answer=None)
    peer.create(now=0.0)
    peer.started()
    peer.feed(Tick(), now=15.0)
    peer.fail("rate_limit_exceeded", message="Slow down.", retry_after="1")
    peer.create(generate=False)
    peer.create(stream_id="lane", previous_response_id="resp_no")
    peer.create(model=5)
    peer.text("{")
    peer.create()
    peer.fail("rate_limit_exceeded", message="Slow down.", status=429, retry_after="1")
    assert [event["type"] for event in peer.sent].count("error") == 4
    for event in peer.sent:
        check(event)


def test_c11_the_check_itself_refuses():
    """What the SDK's parser would let pass: a missing field, a wrong kind, an unknown part."""
    [delta] = [e for e in Peer().create() if e["type"].endswith("text.delta")][:1]
    for broken in (
        {k: v for k, v in delta.items() if k != "logprobs"},
        {**delta, "delta": 5},
        {**delta, "sequence_number": "1"},
    ):
        with pytest.raises(ValueError, match="validation error"):
            check(broken)
