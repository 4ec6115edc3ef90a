# ruff: noqa: RUF001 - the marks of DeepSeek hold a wide bar
"""Families of models: calls and reasoning are read as each writes them, and its own template writes them as they were."""

import itertools
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import pytest
import trio
from backends import chat_model
from backends.cases import LOOKUP, calls_of, finish_of, reasoning_of, text_of
from backends.family_templates import template
from backends.test_tokens_files import Agent, answering, output
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from llama_server import LlamaServer

from turntape.core.seam import Arguments, Increment, Text, ToolCall
from turntape.transport.backends.call_patterns import Patterns
from turntape.transport.backends.call_reader import CallReader
from turntape.transport.backends.call_values import types_of
from turntape.transport.backends.chat_tools import ToolKey, ToolNames
from turntape.transport.backends.model_families import Family, FamilyError, families, family_of, read_families
from turntape.transport.backends.tokens import TokensBackend
from turntape.transport.backends.tokens_files import FilesSource
from turntape.transport.backends.tokens_source import Told
from turntape.transport.backends.tokens_template import TemplateRenderer

NAMES = list(families())
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "flag": {"type": "boolean"},
        "list": {"$ref": "#/$defs/list"},
        "any": {},
        "maybe": {"type": ["string", "null"]},
    },
    "$defs": {"list": {"type": "array"}},
}
TOOLS = {"get-it": PARAMETERS, "do_2": PARAMETERS}
NAMED = ToolNames({}, {"patch": ToolKey("patch", custom=True)})


def reader(family: str) -> CallReader:
    ids = itertools.count()
    return CallReader(NAMED, lambda: f"call_{next(ids)}", Patterns.of(families()[family]), TOOLS)


def found(increments: Sequence[Increment]) -> list[tuple[str, ...]]:
    """Texts as ("text", ...), calls as ("call", name, arguments)."""
    out: list[tuple[str, ...]] = []
    for increment in increments:
        match increment:
            case ToolCall(_, name):
                out.append(("call", name, ""))
            case Arguments(text):
                out[-1] = (*out[-1][:2], out[-1][2] + text)
            case Text(text) if out and out[-1][0] == "text":
                out[-1] = ("text", out[-1][1] + text)
            case Text(text):
                out.append(("text", text))
    return out


def read(family: str, *pieces: str) -> list[tuple[str, ...]]:
    calls = reader(family)
    return found([*(i for piece in pieces for i in calls.feed(piece)), *calls.end()])


def cut(text: str, edges: Sequence[int]) -> Iterator[str]:
    places = [0, *sorted(edge % (len(text) + 1) for edge in edges), len(text)]
    yield from (text[a:b] for a, b in itertools.pairwise(places))


# --- there and back ------------------------------------------------------------------------------------------


@cache
def renderer(family: str, folder: Path) -> TemplateRenderer:
    async def made() -> TemplateRenderer:
        files = chat_model.write(folder / family, template(family))
        made = TemplateRenderer(await FilesSource.load(files), lambda: "call")
        await made.check()
        return made

    return trio.run(made)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


whole_numbers = st.integers(-(2**53), 2**53)
words = st.lists(st.sampled_from([*'<>/{}[]":,;\\= \nab1é|', "</", "tool", "call", "parameter"]), max_size=12).map(
    "".join
)
values = st.recursive(st.none() | st.booleans() | whole_numbers | words, lambda inner: st.lists(inner, max_size=2))
arguments = st.fixed_dictionaries(
    {},
    optional={
        "text": words,
        "count": whole_numbers,
        "flag": st.booleans(),
        "list": st.lists(values, max_size=2) | st.lists(st.dictionaries(words, values, max_size=2), max_size=1),
        "any": whole_numbers | st.booleans() | st.lists(words, max_size=2),
        "maybe": words.filter(lambda text: text.strip() not in ("null", "None")) | st.none(),
    },
)


@pytest.mark.parametrize("family", NAMES)
@given(
    calls=st.lists(st.tuples(st.sampled_from([*TOOLS]), arguments), min_size=1, max_size=3),
    content=st.text(st.sampled_from([*"<[ab. \n"]), max_size=8),
    edges=st.lists(st.integers(0, 2000), max_size=8),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_the_template_writes_is_read_as_the_same_calls(
    family: str, folder: Path, calls: list[tuple[str, dict[str, Any]]], content: str, edges: list[int]
) -> None:
    """A turn's text and calls, as the history shows them to the model, come back as they were, wherever they are cut."""
    made = renderer(family, folder)
    assert made.family.name == family
    if family == "llama-3":
        calls, content = calls[:1], ""
    encoded = [(name, orjson.dumps(value).decode()) for name, value in calls]
    tags = made.family.parameter
    assume(tags is None or not any(tags[1].strip() in text for _, text in encoded))
    told = [
        {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": text}}
        for n, (name, text) in enumerate(encoded)
    ]
    question = {"role": "user", "content": "Go."}
    history = [question, {"role": "assistant", "content": content, "tool_calls": told}]

    async def rendered() -> str:
        text = Told(shape=made._shape)
        before = await made.source.text([question], (), text)
        after = await made.source.text(made.family.with_ids(history), (), text)
        assert after.startswith(before)
        return after[len(before) :].removesuffix("<|im_end|>\n<|im_start|>assistant\n")

    said = trio.run(rendered)
    heard = read(family, *cut(said, edges))
    assert [(each[1], orjson.loads(each[2])) for each in heard if each[0] == "call"] == [(n, v) for n, v in calls]
    assert "".join(each[1] for each in heard if each[0] == "text").strip() == content.strip()


@pytest.mark.parametrize("family", NAMES)
@given(st.data())
@settings(max_examples=100, deadline=None)
def test_nothing_breaks_a_reader(family: str, data: st.DataObject) -> None:
    """Whatever a model writes, the same is found however it is cut; without marks of its family it is all text."""
    row = families()[family]
    begun, _ = row.begun(["do_2"])
    parts = [*'{}[]",:;<\n a', *row.section, *row.call, *(row.parameter or ()), begun, row.tail, *row.heads]
    parts += ["get-it", "text", '{"name": "get-it", "', row.arguments, '": ', '{"text": "a"}', '"type": "function", ']
    pieces = data.draw(st.lists(st.sampled_from([part for part in parts if part]), max_size=14))
    whole = "".join(pieces)
    at_once = read(family, whole)
    assert read(family, *pieces) == at_once
    assert read(family, *whole) == at_once
    marks = Patterns.of(row).opens
    if row.json != "bare" and not any(mark in whole for mark in marks):
        assert at_once == ([("text", whole)] if whole else [])


@pytest.mark.parametrize(
    ("family", "answer", "heard"),
    [
        # What models write and templates do not.
        ("llama-3", '{"type": "function", "name": "f", "parameters": {}}', [("call", "f", "{}")]),
        ("llama-3", '<|python_tag|>{"name": "f", "parameters": {"a": 1}}', [("call", "f", '{"a": 1}')]),
        ("llama-3", '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', [("call", "f", "{}"), ("call", "g", "{}")]),
        ("llama-3", '{"name": "Ann", "age": 5}', [("text", '{"name": "Ann", "age": 5}')]),
        ("llama-3", '{"city": "Paris"}', [("text", '{"city": "Paris"}')]),
        ("llama-3", 'So: {"name": "f", "parameters": {}}', [("text", 'So: {"name": "f", "parameters": {}}')]),
        ("llama-3", "<|python_tag|>print(1)", [("text", "<|python_tag|>print(1)")]),
        ("mistral-v3", '[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "123456789"}]', [("call", "f", "{}")]),
        ("mistral-v3", '[TOOL_CALLS][{"name": "f", "arguments": {"a', [("call", "f", '{"a')]),
        ("mistral", "[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{}", [("call", "f", "{}")]),
        ("mistral", 'Hm.[TOOL_CALLS]f[ARGS]{"a": 1}', [("text", "Hm."), ("call", "f", '{"a": 1}')]),
        ("kimi-k2", "<|tool_calls_section_begin|> <|tool_call_begin|>f:0<|tool_call_argument_begin|>{} <|tool_call_end|>",
         [("call", "f", "{}")]),
        ("deepseek-v3.1", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>", [("call", "f", "{}")]),
        # Tags: the schema says what is a string.
        ("glm-4", "<tool_call>do_2<arg_key>text</arg_key><arg_value>5</arg_value></tool_call>", [("call", "do_2", '{"text": "5"}')]),
        ("glm-4", "<tool_call>do_2<arg_key>count</arg_key><arg_value>5</arg_value></tool_call>", [("call", "do_2", '{"count": 5}')]),
        ("glm-4", "<tool_call>do_2\n</tool_call>", [("call", "do_2", "{}")]),
        ("qwen3-coder", "<function=do_2>\n<parameter=flag>\nTrue\n</parameter>\n</function>\n</tool_call>", [("call", "do_2", '{"flag": true}')]),
        ("qwen3-coder", "<function=do_2>\n<parameter=maybe>\nNone\n</parameter>\n</function>", [("call", "do_2", '{"maybe": null}')]),
        ("qwen3-coder", "<function=do_2>\n<parameter=maybe>\n5\n</parameter>\n</function>", [("call", "do_2", '{"maybe": "5"}')]),
        ("qwen3-coder", "<function=do_2>\n<parameter=count>\nfive\n</parameter>\n</function>", [("call", "do_2", '{"count": "five"}')]),
        ("qwen3-coder", "<function=gone>\n<parameter=a>\nb c\n</parameter>\n</function>", [("call", "gone", '{"a": "b c"}')]),
        ("qwen3-coder", "<function=gone>\n<parameter=a>\n[1]\n</parameter>\n</function>", [("call", "gone", '{"a": [1]}')]),
        ("qwen3-coder", "<function=patch>\n<parameter=input>\na\n\"b\"\n</parameter>\n</function>", [("call", "patch", 'a\n"b"')]),
        ("qwen3-coder", "<tool_call>\n<function=do_2>\n<parameter=text>\nab", [("call", "do_2", '{"text": "ab')]),
        ("qwen3-coder", "<tool_call>\n<function=do_2>\n<parameter=count>\n4", [("call", "do_2", '{"count": 4')]),
        ("qwen3-coder", "<tool_call>\n<function=do_2>\n<parameter=count>\n4\n</parameter>\n</tool_call>", [("call", "do_2", '{"count": 4}')]),
        ("qwen3-coder", "a <tool_call> and </tool_call>", [("text", "a <tool_call> and </tool_call>")]),
        ("minimax-m2", "<minimax:tool_call>\nnothing\n</minimax:tool_call>", [("text", "<minimax:tool_call>\nnothing\n</minimax:tool_call>")]),
    ],
)  # fmt: skip
def test_what_models_write(family: str, answer: str, heard: list[tuple[str, ...]]) -> None:
    """Forms that a family's own template does not write, cut calls, and texts that only look like one."""
    assert read(family, answer) == heard
    assert read(family, *answer) == heard


@pytest.mark.parametrize("family", ["qwen3-coder", "glm-4", "minimax-m2", "seed-oss", "hermes", "mistral", "kimi-k2"])
def test_arguments_come_while_they_are_written(family: str) -> None:
    """A long text in the arguments does not wait for its end."""
    row = families()[family]
    begun, _ = row.begun(["do_2"])
    opening = row.parameter[0].replace("{key}", "text") if row.parameter else '{"text": "'
    head = '{"name": "do_2", "arguments": ' if row.json else ""
    calls = reader(family)
    first = [*calls.feed(begun + head + opening), *calls.feed("some words")]
    assert "some words" in "".join(i.text for i in first if isinstance(i, Arguments))


def test_types_of_a_schema() -> None:
    """What a value may be is found through references and alternatives; what cannot be known is nothing."""
    root = {"$defs": {"s": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"}}}
    assert types_of({"anyOf": [{"$ref": "#/$defs/s"}, {"type": "null"}]}, root) == {"string", "null"}
    assert types_of({"enum": ["a", "b"]}, root) == {"string"}
    assert types_of({"const": 5}, root) == {"other"}
    assert types_of({"anyOf": [{"type": "string"}, {}]}, root) == set()
    assert (
        types_of({"$ref": "#/$defs/loop"}, root) == types_of({"$ref": "#/gone"}, root) == types_of(True, root) == set()
    )


def test_calls_of_the_history_get_the_ids_that_a_family_knows() -> None:
    """They count through the conversation, and outputs follow their calls; another family's stay as they are."""

    def call(name: str, call_id: str) -> dict[str, Any]:
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}

    messages: list[dict[str, Any]] = [
        {"role": "assistant", "tool_calls": [call("f", "call_a"), call("g", "call_b")]},
        {"role": "tool", "tool_call_id": "call_b", "content": "1"},
        {"role": "tool", "tool_call_id": "call_a", "content": "2"},
        {"role": "assistant", "tool_calls": [call("f", "call_c")]},
    ]
    first, *outputs, last = families()["kimi-k2"].with_ids(messages)
    assert [each["id"] for each in first["tool_calls"]] == ["functions.f:0", "functions.g:1"]
    assert [each["tool_call_id"] for each in outputs] == ["functions.g:1", "functions.f:0"]
    assert last["tool_calls"][0]["id"] == "functions.f:2"
    assert families()["mistral-v3"].with_ids(messages)[3]["tool_calls"][0]["id"] == "000000002"
    assert families()["hermes"].with_ids(messages) == messages


# --- played --------------------------------------------------------------------------------------------------


def words_of(family: Family, name: str, value: dict[str, str]) -> str:
    """A call as a model of the family writes it."""
    begun, _ = family.begun([name])
    if family.json:
        call = orjson.dumps({"name": name, family.arguments: value}).decode()
        return begun + (f"[{call}]" if family.json == "list" else call) + family.call[1] + family.section[1]
    if family.parameter is None:
        said = orjson.dumps(value).decode()
    else:
        before, after = family.parameter
        said = "".join(before.replace("{key}", key) + text + after + "\n" for key, text in value.items())
    return begun + said + family.tail + family.call[1] + "\n" + family.section[1]


@pytest.mark.parametrize("family", NAMES)
async def test_a_tool_loop(family: str, tmp_path: Path) -> None:
    """A client of any family's model gets reasoning, a call, and after its output an answer; the history shows all of it."""
    row = families()[family]
    files = chat_model.write(tmp_path / "m", template(family))
    think = f"{row.think[0]}\nHm.\n{row.think[1]}\n\n"
    async with trio.open_nursery() as nursery:
        agent = Agent("vllm", nursery, files, answering(think + words_of(row, "lookup", {"key": "a"}), "Done."))
        heard = await agent.turn("Go.", tools=[LOOKUP])
        assert reasoning_of(heard).strip() == "Hm."
        assert [(call.name, orjson.loads(text)) for call, text in calls_of(heard)] == [("lookup", {"key": "a"})]
        assert text_of(heard).strip() == ""
        usage = finish_of(heard).usage
        assert usage is not None and usage.reasoning_tokens
        heard = await agent.turn(output(heard, "42"), tools=[LOOKUP])
        assert text_of(heard) == "Done."
        shown = chat_model.decode(agent.prompt).partition("assistant\n")[2].partition("<|im_end|>")[0]
        assert found_calls(family, shown) == [("lookup", {"key": "a"})]
        assert "Hm." in shown
        probe = await agent.backend.probe()
        assert not [note for note in probe.notes if "family" in note]
        nursery.cancel_scope.cancel()


def found_calls(family: str, text: str) -> list[tuple[str, Any]]:
    row = families()[family]
    after = text.rpartition(row.think[1])[2]
    return [(each[1], orjson.loads(each[2])) for each in read(family, after) if each[0] == "call"]


@pytest.mark.parametrize("family", NAMES)
async def test_a_required_call_is_begun_in_the_family_s_words(family: str, tmp_path: Path) -> None:
    """The prompt ends within a call, behind the reasoning that the template had opened, and what follows is its rest."""
    row = families()[family]
    opened = template(family).replace(
        "'<|im_start|>assistant\\n' }}\n", f"'<|im_start|>assistant\\n{row.think[0]}\\n' }}}}\n"
    )
    files = chat_model.write(tmp_path / "m", opened)
    begun, _ = row.begun(["lookup"])
    rest = words_of(row, "lookup", {"key": "a"}).removeprefix(begun)
    async with trio.open_nursery() as nursery:
        agent = Agent("vllm", nursery, files, answering(rest))
        heard = await agent.turn("Go.", tools=[LOOKUP], tool_choice="required")
        assert chat_model.decode(agent.prompt).endswith(f"{row.think[0]}\n{row.think[1]}\n\n{begun}")
        assert [(call.name, orjson.loads(text)) for call, text in calls_of(heard)] == [("lookup", {"key": "a"})]
        assert reasoning_of(heard) == text_of(heard) == ""
        assert (agent.server.schemas[-1] is None) == (row.parameter is not None)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("family", ["qwen3-coder", "kimi-k2", "mistral-v3"])
async def test_a_real_llama_cpp_writes_calls_that_are_read(family: str) -> None:
    """Its own reading of templates gives calls, ids and arguments as the family has them."""
    server = LlamaServer(n_ctx=512, chat_template=template(family))
    server.start()
    try:
        backend = TokensBackend(server.url)
        assert (await backend.probe()).notes == ()
        await backend.aclose()
    finally:
        server.kill()


async def test_a_family_can_be_said_and_doubts_are_told(tmp_path: Path) -> None:
    """A template whose calls are not read as its family's is noted; the family that is named is the one that is read."""
    strange = template("hermes").replace("<tool_call>", "<a_call>")
    source = await FilesSource.load(chat_model.write(tmp_path / "m", strange))
    made = TemplateRenderer(source, lambda: "call")
    await made.check()
    assert [note for note in made.notes if "read as hermes" in note]
    named = TemplateRenderer(source, lambda: "call", told_family="glm-4")
    assert named.family.name == "glm-4"


async def test_what_ends_a_turn_of_the_family_is_asked_for(tmp_path: Path) -> None:
    """Files that name another end than the one that the family writes do not let the model go on past it."""
    files = chat_model.write(tmp_path / "m", template("kimi-k2"), eos_token="<|endoftext|>")
    async with trio.open_nursery() as nursery:
        agent = Agent("vllm", nursery, files, answering("Done."))
        assert text_of(await agent.turn("Go.")) == "Done."
        assert chat_model.token("<|im_end|>") in agent.server.bodies[-1]["stop_token_ids"]
        nursery.cancel_scope.cancel()


async def test_a_template_without_tools_keeps_its_family_s_reasoning(tmp_path: Path) -> None:
    """Calls are read as the model was told to write them, reasoning and its end as its family has them."""
    bare = template("mistral").replace("tools", "nothing")
    files = chat_model.write(tmp_path / "m", bare)
    said = '[THINK]Hm.[/THINK]<tool_call>{"name": "lookup", "arguments": {"key": "a"}}</tool_call>'
    async with trio.open_nursery() as nursery:
        agent = Agent("vllm", nursery, files, answering(said))
        heard = await agent.turn("Go.", tools=[LOOKUP])
        assert reasoning_of(heard) == "Hm."
        assert [(call.name, text) for call, text in calls_of(heard)] == [("lookup", '{"key": "a"}')]
        nursery.cancel_scope.cancel()


# --- the table -----------------------------------------------------------------------------------------------


def test_each_family_is_known_by_its_template() -> None:
    """Every row says where its facts stand, and its marks find it and no other."""
    for name, row in families().items():
        assert row.source and family_of(template(name)) is row
    assert family_of("").name == "hermes"


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("[[family]\n", "not valid TOML"),
        ("[x]\n", "unknown table 'x'"),
        ("[[family]]\nname = 'a'\nsource = 's'\nconfidence = 'assumed'\ncall = ['<c>']\njson = 'list'\n", "'a'.call"),
        ("[[family]]\nname = 'a'\nsource = 's'\nconfidence = 'sure'\njson = 'list'\n", "'a'.confidence"),
        ("[[family]]\nname = 'a'\nsource = 's'\nconfidence = 'assumed'\ncall = ['<c>', '']\n", "'json' or 'heads'"),
        ("[[family]]\nname = 'a'\nsource = 's'\nconfidence = 'assumed'\nheads = ['x']\n", "without {name}"),
        ("[[family]]\nname = 'a'\nsource = 's'\nconfidence = 'assumed'\njson = 'list'\n", "needs marks"),
        ("[[family]]\nname = 'a'\nsurce = 's'\nconfidence = 'assumed'\njson = 'list'\n", "surce"),
    ],
)
def test_a_table_that_cannot_be_used(table: str, says: str) -> None:
    """The family, the key and the cure are named."""
    with pytest.raises(FamilyError) as refused:
        read_families(table)
    assert says in str(refused.value)
