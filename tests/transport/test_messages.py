"""Items as chat messages: what goes where, what is refused, and that nothing is rendered twice."""

import re
from typing import Any

import orjson
import pytest

from turntape.core.canonical import Item
from turntape.core.context import Context
from turntape.core.tools import Tool
from turntape.core.wire import structure_create
from turntape.transport.backends.base import BackendError
from turntape.transport.backends.chat_dialect import DEFAULT, Dialect
from turntape.transport.backends.dialects import dialect_for
from turntape.transport.backends.messages import Renderer

PIXEL = "data:image/png;base64,AAAA"


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def call(call_id: str, name: str = "f", arguments: str = '{"a":1}', **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, **more}


def output(call_id: str, text: Any = "42") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def as_items(values: list[dict[str, Any]]) -> tuple[Item, ...]:
    return structure_create({"model": "m", "input": values}).input.items


def context(*links: list[dict[str, Any]]) -> Context:
    """One link for each list of items."""
    end = Context()
    for items in links:
        end = end.extend(as_items(items))
    return end


def messages(*items: dict[str, Any], dialect: Dialect = DEFAULT, tools: tuple[Tool, ...] = ()) -> list[Any]:
    """The messages of ``items``; the same however the items are spread over links of the chain."""
    at_once = rendered(Renderer(dialect), context(list(items)), tools)
    renderer, end = Renderer(dialect), Context()
    for item in items:
        end = end.extend(as_items([item]))
        rendered(renderer, end, tools)
    assert rendered(renderer, end, tools) == at_once
    return at_once


def rendered(renderer: Renderer, end: Context, tools: tuple[Tool, ...] = ()) -> list[Any]:
    return list(orjson.loads(b"[" + renderer.render(end, tools).messages() + b"]"))


def as_call(call_id: str, name: str = "f", arguments: str = '{"a":1}') -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def as_tool(call_id: str, content: str = "42") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def as_user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


# --- messages --------------------------------------------------------------------------------------------


def test_roles_and_text() -> None:
    """Order is kept, developers are system, text parts are one string, a refusal is text."""
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert messages(
        {"role": "developer", "content": parts},
        {"role": "system", "content": "s"},
        user("u"),
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "user", "content": []},
    ) == [
        {"role": "system", "content": "a\nb\n\ns"},
        as_user("u"),
        {"role": "assistant", "content": "no"},
        as_user(""),
    ]
    assert messages(
        {"role": "developer", "content": "d"}, dialect=Dialect(developer_role="developer", system_messages="many")
    ) == [{"role": "developer", "content": "d"}]


def test_images() -> None:
    """A message with an image becomes parts; ``detail`` goes along only if it says something."""
    image = {"type": "input_image", "image_url": PIXEL, "detail": "auto"}
    [message] = messages({"role": "user", "content": [{"type": "input_text", "text": "see"}, image]})
    assert message["content"] == [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": PIXEL}}]
    [message] = messages({"role": "user", "content": [{**image, "detail": "high"}]})
    assert message["content"][0]["image_url"]["detail"] == "high"


def test_a_turn_is_one_assistant_message() -> None:
    """Text and all calls of a turn share a message, and the outputs follow it."""
    assert messages(user("u"), said("t"), call("1"), call("2", "g"), output("1"), output("2", "x"), said("end")) == [
        as_user("u"),
        {"role": "assistant", "content": "t", "tool_calls": [as_call("1"), as_call("2", "g")]},
        as_tool("1"),
        as_tool("2", "x"),
        {"role": "assistant", "content": "end"},
    ]


def test_turns_stay_apart() -> None:
    """A call after an output begins the next assistant message."""
    assert messages(call("1"), output("1"), call("2"), output("2")) == [
        {"role": "assistant", "content": None, "tool_calls": [as_call("1")]},
        as_tool("1"),
        {"role": "assistant", "content": None, "tool_calls": [as_call("2")]},
        as_tool("2"),
    ]


def test_outputs_stand_right_after_their_calls() -> None:
    """What a client put between a call and its output waits, since servers refuse it there."""
    note = {"role": "developer", "content": "note"}
    assert messages(call("1"), said("t"), note, call("2"), output("1"), user("u"), output("2"), said("end")) == [
        {"role": "assistant", "content": "t", "tool_calls": [as_call("1"), as_call("2")]},
        as_tool("1"),
        as_tool("2"),
        as_user("note"),
        as_user("u"),
        {"role": "assistant", "content": "end"},
    ]


def test_two_assistant_messages_in_a_row_are_one() -> None:
    """Templates refuse two messages of one role in a row; a commentary and an answer are joined."""
    assert messages(said("a"), said("b"), user("u")) == [{"role": "assistant", "content": "a\n\nb"}, as_user("u")]


def test_custom_calls_are_function_calls() -> None:
    """A custom tool's input travels as the one string argument that its function has."""
    custom = {"type": "custom_tool_call", "call_id": "1", "name": "patch", "input": 'a "b"\n'}
    answer = {"type": "custom_tool_call_output", "call_id": "1", "output": "ok"}
    [assistant, tool] = messages(custom, answer)
    assert orjson.loads(assistant["tool_calls"][0]["function"]["arguments"]) == {"input": 'a "b"\n'}
    assert tool == as_tool("1", "ok")


def test_outputs_with_parts() -> None:
    """Text parts are one string; images follow all outputs of the turn in a user's message."""
    image = {"type": "input_image", "image_url": PIXEL}
    text = {"type": "input_text", "text": "shot:"}
    rendered = messages(call("1"), call("2"), output("1", [text, image]), output("2"), said("end"))
    assert rendered[1:3] == [as_tool("1", "shot:\n[image 1: in a message below]"), as_tool("2")]
    assert rendered[3]["role"] == "user"
    assert rendered[3]["content"][1] == {"type": "image_url", "image_url": {"url": PIXEL}}
    assert rendered[4] == {"role": "assistant", "content": "end"}


@pytest.mark.parametrize("arguments", ["{cut", "", "[1]", "nonsense"])
def test_old_arguments_are_always_an_object(arguments: str) -> None:
    """Servers parse the whole history: what a model once wrote wrongly must not refuse every later turn."""
    [assistant, _] = messages(call("1", arguments=arguments), output("1"))
    sent = orjson.loads(assistant["tool_calls"][0]["function"]["arguments"])
    assert sent == ({"unreadable_arguments": arguments} if arguments else {})


def test_items_that_say_nothing_to_the_model_are_left_out() -> None:
    """Hosted calls, a vendor's own items and reasoning without an answer are no messages."""
    others = [{"type": "web_search_call", "id": "ws_1"}, {"type": "acme:note", "text": "x"}, thought("hm")]
    assert messages(*others, user("u")) == [as_user("u")]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}, "input_file.*input_text"),
        ({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}, "without an 'image_url'"),
        ({"role": "assistant", "content": [{"type": "input_image", "image_url": PIXEL}]}, "assistant's message"),
        (output("1", [{"type": "input_file", "file_data": "x"}]), "input_file"),
    ],
)
def test_content_that_no_message_can_hold_is_refused(item: dict[str, Any], message: str) -> None:
    """The client hears which part it is and what to send instead, each time it asks."""
    renderer, end = Renderer(DEFAULT), context([item])
    for _ in range(2):
        with pytest.raises(BackendError, match=message) as caught:
            renderer.render(end, ())
        assert (caught.value.status, caught.value.code, caught.value.param) == (400, "invalid_prompt", "input")


def test_system_messages() -> None:
    """Those in front are one with the instructions; a later one is a user's message where templates refuse it."""
    note = {"role": "developer", "content": "note"}
    items = ({"role": "system", "content": "s"}, note, user("u"), note)
    assert messages(*items) == [{"role": "system", "content": "s\n\nnote"}, as_user("u"), as_user("note")]
    assert messages(*items, dialect=Dialect(system_messages="many")) == [
        {"role": "system", "content": "s"},
        {"role": "system", "content": "note"},
        as_user("u"),
        {"role": "system", "content": "note"},
    ]
    rendered = Renderer(DEFAULT).render(context(list(items)), ()).messages(["Be brief."], ["Answer in JSON."])
    assert orjson.loads(b"[" + rendered + b"]")[0]["content"] == "Be brief.\n\ns\n\nnote\n\nAnswer in JSON."


MISTRAL = dialect_for("mistral", "m")


def test_a_user_after_a_tool_is_bridged_where_it_is_refused() -> None:
    """The assistant says a word between a tool's output and a user, in the tail too that waits for other outputs."""
    bridge = {"role": "assistant", "content": MISTRAL.bridge}
    sent = messages(call("abcdefghi"), output("abcdefghi"), user("u"), user("v"), dialect=MISTRAL)
    assert sent[2:] == [bridge, as_user("u"), as_user("v")]
    waiting = messages(
        call("abcdefghi"), call("123456789"), output("abcdefghi"), user("u"), output("123456789"), dialect=MISTRAL
    )
    assert [m["role"] for m in waiting] == ["assistant", "tool", "tool", "assistant", "user"]


def test_ids_that_a_server_refuses_are_replaced_alike() -> None:
    """A call and its output agree on an id of the server's form, the same each time; its own ids stay."""
    assistant, first, second = messages(
        call("call_1"), call("abcDEF123"), output("call_1"), output("abcDEF123"), dialect=MISTRAL
    )
    ids = [each["id"] for each in assistant["tool_calls"]]
    assert ids == [first["tool_call_id"], second["tool_call_id"]]
    assert re.fullmatch("[A-Za-z0-9]{9}", ids[0]) and ids[1] == "abcDEF123"
    assert "content" not in assistant


def test_an_image_by_address_is_refused_where_the_server_cannot_fetch_it() -> None:
    """Ollama takes data URLs only; the client hears it before anything is sent."""
    image = {"type": "input_image", "image_url": "https://h/x.png"}
    with pytest.raises(BackendError, match="as a data URL"):
        messages({"role": "user", "content": [image]}, dialect=dialect_for("ollama", "m"))
    [message] = messages(
        {"role": "user", "content": [{**image, "image_url": PIXEL}]}, dialect=dialect_for("ollama", "m")
    )
    assert message["content"][0]["image_url"]["url"] == PIXEL


# --- reasoning -------------------------------------------------------------------------------------------


LOOP = (user("u"), thought("why"), call("1"), output("1"), thought("so"), said("end"), user("more"))


@pytest.mark.parametrize(
    ("dialect", "learnt", "expected"),
    [
        (DEFAULT, "", [None, None]),
        (DEFAULT, "reasoning", [("reasoning", "why"), None]),
        (Dialect(reasoning_in="reasoning_content"), "reasoning", [("reasoning_content", "why"), None]),
        (Dialect(reasoning_in="none"), "reasoning", [None, None]),
        (Dialect(reasoning_in="rc", reasoning_scope="always"), "", [("rc", "why"), ("rc", "so")]),
        (dialect_for("deepseek", "m"), "", [("reasoning_content", "why"), ("reasoning_content", "so")]),
        (dialect_for("openai", "m"), "reasoning", [None, None]),
    ],
)
def test_reasoning_goes_back(dialect: Dialect, learnt: str, expected: list[tuple[str, str] | None]) -> None:
    """By default with calls only, and under the name that the server itself used, once it has."""
    assistants = [m for m in rendered(Renderer(dialect, learnt), context(list(LOOP))) if m["role"] == "assistant"]
    for message, field in zip(assistants, expected, strict=True):
        extra = {k: v for k, v in message.items() if k not in ("role", "content", "tool_calls")}
        assert extra == (dict([field]) if field else {})


def test_reasoning_as_a_part_of_the_content() -> None:
    """Mistral reads its thinking where it wrote it."""
    [assistant, _] = messages(thought("why"), said("t"), call("abcdefghi"), output("abcdefghi"), dialect=MISTRAL)
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "why"}]}
    assert assistant["content"] == [thinking, {"type": "text", "text": "t"}]


# --- names and chains ------------------------------------------------------------------------------------


def test_calls_have_the_names_of_the_offered_tools() -> None:
    """History and tools agree on names, for a client too that left the namespace out."""
    tools = (Tool("wait", "agents"), Tool("wait", "files"), Tool("spawn", "agents"))
    history = [call("1", "wait", namespace="files"), call("2", "spawn"), call("3", "gone", namespace="old")]
    [assistant, *_] = messages(*history, *(output(str(n)) for n in (1, 2, 3)), tools=tools)
    assert [c["function"]["name"] for c in assistant["tool_calls"]] == ["files__wait", "spawn", "gone"]


def test_names_stay_along_a_chain() -> None:
    """New tools in a later turn rename nothing that an earlier turn called."""
    renderer = Renderer(DEFAULT)
    first = context([user("u")])
    renderer.render(first, (Tool("wait", "agents"),))
    later = first.extend(as_items([call("1", "wait", namespace="agents"), output("1")]))
    result = renderer.render(later, (Tool("wait", "files"), Tool("wait", "agents")))
    assert [orjson.loads(each)["function"]["name"] for each in result.offer.encoded] == ["files__wait", "wait"]
    assert b'"name":"wait"' in result.messages()


def test_each_item_is_rendered_once() -> None:
    """In 200 tool turns no item of the history is rendered again, and forks share what they have in common."""
    renderer, end = Renderer(DEFAULT), context([user("u")])
    for n in range(200):
        renderer.render(end, ())
        end = end.extend(as_items([thought("t"), call(str(n))]))
        end = end.extend(as_items([output(str(n))]))
    whole = rendered(renderer, end)
    assert renderer.n_rendered == end.n_items == 601
    assert len(whole) == 401
    fork = end.parent
    assert fork is not None
    renderer.render(fork.extend(as_items([output("199", "other")])), ())
    assert renderer.n_rendered == 602
    assert rendered(renderer, end) == whole


def test_a_rendering_dies_with_its_conversation() -> None:
    """Nothing is kept for a conversation that nobody holds any more."""
    renderer = Renderer(DEFAULT)
    renderer.render(context([user("u")], [said("a")]), ())
    assert len(renderer._kept) == 0
