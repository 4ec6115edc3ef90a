"""The llama backend with a real small model in this process: what it says is nonsense, and everything around that is right."""

import struct
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import programs
import pytest
import trio
import trio.testing
from backends.cases import Cases
from backends.rig_llama import LlamaRig
from gguf import LLAMA, entry, gguf, string

from turntape.core.canonical import Item
from turntape.core.context import Context
from turntape.core.seam import Arguments, Finish, Increment, StartSample, Text, ToolCall, Usage
from turntape.core.wire import structure_create
from turntape.transport.backends import llama as module
from turntape.transport.backends import schema_bounds
from turntape.transport.backends.base import BackendError
from turntape.transport.backends.llama import LlamaBackend
from turntape.transport.backends.llama_engine import EngineError, EngineSettings
from turntape.transport.backends.llama_file import ModelFile, ModelFileError

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 30}, "unit": {"$ref": "#/$defs/unit"}},
        "required": ["city", "unit"],
        "$defs": {"unit": {"enum": ["C", "F"]}},
    },
}
PATCH = {"type": "custom", "name": "apply_patch"}
ODD = {
    "type": "object",
    "properties": {"a": {"type": "string", "pattern": "(?=x)y"}},
    "required": ["a"],
    "additionalProperties": False,
}
"""Look-around is what LLGuidance cannot do."""


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The small model's file, in a process that can import xllamacpp."""
    if "xllamacpp" not in sys.modules:
        monkeypatch.syspath_prepend(str(programs.llama()))
    yield programs.model()


@asynccontextmanager
async def loaded(path: Path, **settings: Any) -> AsyncIterator[LlamaBackend]:
    backend = await LlamaBackend.open(path, EngineSettings(**{"threads": 1, **settings}))
    try:
        yield backend
    finally:
        await backend.aclose()


def start(items: Any = "hi", *, context: Context | None = None, **fields: Any) -> StartSample:
    request = structure_create({"model": "m", "input": items, "temperature": 0, "max_output_tokens": 200, **fields})
    return StartSample("smp_1", "m", request, (context or Context()).extend(request.input.items), 0)


async def said(backend: LlamaBackend, asked: StartSample) -> list[Increment]:
    async with backend.sample(asked) as channel:
        batches = [batch async for batch in channel]
    assert batches[0] == ()
    return [increment for batch in batches for increment in batch]


async def failure(backend: LlamaBackend, asked: StartSample) -> BackendError:
    with pytest.raises(BackendError) as caught:
        async with backend.sample(asked) as channel:
            async for _ in channel:
                pass
    return caught.value


def usage_of(increments: list[Increment]) -> Usage:
    assert isinstance(increments[-1], Finish)
    assert increments[-1].usage is not None
    return increments[-1].usage


def text_of(increments: list[Increment]) -> str:
    return "".join(i.text for i in increments if isinstance(i, Text))


def arguments_of(increments: list[Increment]) -> str:
    return "".join(i.text for i in increments if isinstance(i, Arguments))


async def test_text_with_counts(path: Path) -> None:
    """Text comes in pieces, and the counts are llama.cpp's own."""
    async with loaded(path) as backend:
        assert backend.models == ("SmolLM2-135M-Instruct.Q4_1",)
        increments = await said(backend, start("Say hello.", max_output_tokens=8))
    assert len([i for i in increments if isinstance(i, Text)]) > 1
    assert increments[-1] == Finish("length", Usage(usage_of(increments).input_tokens, 8))
    assert usage_of(increments).input_tokens > 10


@pytest.mark.parametrize("n_slots", [1, 2])
async def test_a_model_that_babbles_ends_with_its_window(path: Path, n_slots: int) -> None:
    """Without a limit in the request an answer ends where its window does, as one that reached a limit."""
    async with loaded(path, n_ctx=256, n_slots=n_slots) as backend:
        increments = await said(backend, start("Count from 1 to 1000, with commas.", max_output_tokens=None))
    assert isinstance(increments[-1], Finish)
    assert increments[-1].reason == "length"
    usage = usage_of(increments)
    assert 250 <= usage.input_tokens + usage.output_tokens <= 256


async def test_required_call_c73(path: Path) -> None:
    """A call that is required comes, of a tool that was offered, with arguments that match its schema."""
    async with loaded(path) as backend:
        increments = await said(backend, start("Weather in Paris?", tools=[WEATHER], tool_choice="required"))
    [call] = [i for i in increments if isinstance(i, ToolCall)]
    assert (call.name, call.custom, increments[-1].reason) == ("get_weather", False, "stop")  # type: ignore[union-attr]
    arguments = orjson.loads(arguments_of(increments))
    assert set(arguments) == {"city", "unit"}
    assert arguments["unit"] in ("C", "F")
    assert not text_of(increments)


async def test_named_custom_call(path: Path) -> None:
    """A named tool is called whatever else is offered; a custom one gets free text."""
    choice = {"type": "custom", "name": "apply_patch"}
    async with loaded(path) as backend:
        asked = start("Patch it.", tools=[WEATHER, PATCH], tool_choice=choice, max_output_tokens=100)
        increments = await said(backend, asked)
    [call] = [i for i in increments if isinstance(i, ToolCall)]
    assert (call.name, call.custom) == ("apply_patch", True)
    assert '"input"' not in arguments_of(increments)


async def test_structured_output_c74(path: Path) -> None:
    """Text in a format parses and has the schema's properties."""
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 20},
            "degrees": {"type": "integer", "minimum": 0, "maximum": 60},
        },
        "required": ["city", "degrees"],
        "additionalProperties": False,
    }
    form = {"format": {"type": "json_schema", "name": "weather", "schema": schema}}
    async with loaded(path) as backend:
        answer = orjson.loads(text_of(await said(backend, start("Weather in Paris, as JSON.", text=form))))
        assert set(answer) == {"city", "degrees"}
        increments = await said(backend, start("Weather in Paris, as JSON.", text=form, tools=[WEATHER]))
    assert orjson.loads(text_of(increments) or arguments_of(increments))  # the one or the other, never prose


async def test_overflow_c43(path: Path) -> None:
    """A prompt that is longer than the window is refused with the code that agents know, and the next one is answered."""
    async with loaded(path, n_ctx=512) as backend:
        error = await failure(backend, start("word " * 600))
        assert (error.code, error.status, error.param) == ("context_length_exceeded", 400, "input")
        assert "SmolLM2" in str(error)
        assert text_of(await said(backend, start("Say hello.", max_output_tokens=8)))


async def test_leaving_during_a_prefill(path: Path) -> None:
    """Who leaves while the prompt is read stops that: most of it was never computed, and the slot is free again."""
    prompt = "one two three four " * 200
    async with loaded(path) as backend:
        async with backend.sample(start(prompt)) as channel:
            assert await channel.receive() == ()
        counts = usage_of(await said(backend, start(prompt, max_output_tokens=1)))
    assert counts.input_tokens > 800
    assert counts.cached_tokens < counts.input_tokens / 2


async def test_leaving_while_it_speaks(path: Path) -> None:
    """Who leaves in the middle of an answer frees the slot for the next one."""
    async with loaded(path) as backend:
        for _ in range(3):
            async with backend.sample(start("Tell a very long story.", max_output_tokens=4000)) as channel:
                async for batch in channel:
                    if batch:
                        break
        assert text_of(await said(backend, start("Say hello.", max_output_tokens=8)))


async def test_waiting_for_the_slot(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One answer at a time; others wait for it, and too many are told to come back."""
    monkeypatch.setattr(module, "MAX_WAITING", 1)
    results: list[str] = []

    async def ask(word: str) -> None:
        await said(backend, start(f"Say {word}.", max_output_tokens=5))
        results.append(word)

    async with loaded(path) as backend, trio.open_nursery() as nursery:
        async with backend.sample(start("Tell a very long story.", max_output_tokens=4000)) as channel:
            await channel.receive()
            nursery.start_soon(ask, "one")
            await trio.testing.wait_all_tasks_blocked()
            error = await failure(backend, start("two"))
            assert (error.code, error.status, error.retry_after) == ("server_is_overloaded", 503, "5")
            assert not results
        with trio.fail_after(60):
            while not results:
                await trio.testing.wait_all_tasks_blocked(0.01)
    assert results == ["one"]


async def test_turns_reuse_what_is_computed(path: Path) -> None:
    """Each turn of a tool loop prefills what is new: all that the turn before was asked is reused."""
    context, before, new = Context(), 0, [{"role": "user", "content": "What is the weather in Paris? " * 3}]
    async with loaded(path) as backend:
        for turn in range(4):
            asked = start(new, context=context, tools=[WEATHER], tool_choice="required", instructions="Be brief.")
            increments = await said(backend, asked)
            counts = usage_of(increments)
            assert counts.cached_tokens >= before, turn
            assert counts.cached_tokens < counts.input_tokens
            before = counts.input_tokens
            [call] = [i for i in increments if isinstance(i, ToolCall)]
            item = {"type": "function_call", "call_id": call.call_id, "name": call.name}
            context = asked.context.extend([Item.of({**item, "arguments": arguments_of(increments)})])
            new = [{"type": "function_call_output", "call_id": call.call_id, "output": f"sunny, {turn} degrees"}]
        assert backend.renderer.n_rendered == 7


async def test_schema_that_llama_cpp_cannot_take(path: Path) -> None:
    """A tool's odd schema costs its guarantee and not the call; a format that cannot be kept is an error that says so."""
    odd = {"type": "function", "name": "odd", "parameters": ODD}
    async with loaded(path) as backend:
        asked = start("Go.", tools=[odd], tool_choice="required", max_output_tokens=200)
        [call] = [i for i in await said(backend, asked) if isinstance(i, ToolCall)]
        assert call.name == "odd"
        form = {"format": {"type": "json_schema", "name": "odd", "schema": ODD}}
        error = await failure(backend, start("Go.", text=form))
    assert (error.code, error.status, error.param) == ("invalid_prompt", 400, "text.format")


async def test_schema_that_llama_cpp_would_take_all_memory_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of too many items never reach llama.cpp: a tool loses its guarantee, and a format is refused."""
    monkeypatch.setattr(schema_bounds, "MAX_ITEMS", 10)  # really so many would end the process, were they taken
    items = {"type": "array", "items": {"type": "integer"}, "minItems": 4, "maxItems": 7}
    schema = {"type": "object", "properties": {"a": items}, "required": ["a"]}
    huge = {"type": "function", "name": "huge", "parameters": schema}
    async with loaded(path) as backend:
        asked = start("Go.", tools=[huge], tool_choice="required", max_output_tokens=200)
        [call] = [i for i in await said(backend, asked) if isinstance(i, ToolCall)]
        assert call.name == "huge"
        form = {"format": {"type": "json_schema", "name": "huge", "schema": schema}}
        error = await failure(backend, start("Go.", text=form))
    assert (error.code, error.status, error.param) == ("invalid_prompt", 400, "text.format")


@pytest.mark.parametrize(
    ("schemas", "bounded"),
    [
        ([None, {}, {"type": "array"}], True),
        ([{"maxItems": 99_999}], True),
        ([{"maxItems": 10**9}], False),
        ([{"minItems": 1e9}], False),
        ([{"properties": {"a": {"items": [{"anyOf": [{"maxItems": 10**30}]}]}}}], False),
        ([{"maxItems": 1000}] * 101, False),
        ([{"properties": {"maxItems": {"type": "integer"}, "minItems": {"maxItems": 3}}}], True),
        ([{"maxItems": None, "minItems": "x"}], True),
    ],
)
def test_how_many_items_schemas_may_ask_for(schemas: list[Any], bounded: bool) -> None:
    """All arrays of a request count together, wherever they stand."""
    assert schema_bounds.is_bounded(schemas) is bounded


async def test_image_for_a_model_that_reads_text(path: Path) -> None:
    """What the model cannot take is an error of the request, in llama.cpp's words."""
    part = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    async with loaded(path) as backend:
        error = await failure(backend, start([{"role": "user", "content": [part]}]))
    assert (error.code, error.status) == ("invalid_prompt", 400)
    assert "image" in str(error)


class TestLlama(Cases):
    """Everything but llama.cpp itself keeps the promises of every backend."""

    rig = LlamaRig()


# --- files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read"),
        (b"", "not a GGUF file"),
        (b"\x80\x04\x95 pickled", "not a GGUF file"),
        (b"GGUF\x03", "cut short"),
        (gguf(LLAMA, n=2), "cut short"),
        (gguf(string("general.architecture") + struct.pack("<IQ", 8, 1 << 60)), "cut short"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "cut short"),
        (b"GGUF" + struct.pack("<IQQ", 99, 0, 0), "version 99"),
        (gguf(), "holds no model"),
        (gguf(LLAMA, entry("general.type", "adapter")), "'adapter'"),
    ],
)
def test_file_that_is_no_model(tmp_path: Path, content: bytes | None, says: str) -> None:
    """A wrong file is refused when the backend is made, with its name and the reason."""
    file = tmp_path / "model.gguf"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ModelFileError, match=says) as caught:
        LlamaBackend(file)
    assert str(file) in str(caught.value)


def test_what_a_file_says(tmp_path: Path) -> None:
    """The window and the template are read past arrays of any kind."""
    words = string("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + string("a") + string("b")
    scores = string("tokenizer.ggml.scores") + struct.pack("<IIQff", 9, 6, 2, 0.0, 1.0)
    window = string("llama.context_length") + struct.pack("<II", 4, 2048)
    template = entry("tokenizer.chat_template", "{{ tools }}")
    (tmp_path / "tiny.Q8.gguf").write_bytes(gguf(LLAMA, words, scores, window, template))
    model = ModelFile.read(tmp_path / "tiny.Q8.gguf")
    assert (model.name, model.architecture, model.n_ctx_train, model.takes_tools) == ("tiny.Q8", "llama", 2048, True)
    assert LlamaBackend(tmp_path / "tiny.Q8.gguf").settings.n_ctx == 2048


async def test_file_that_llama_cpp_cannot_load(path: Path, tmp_path: Path) -> None:
    """A file with a good head and nothing behind it is an error of the start, and of a sample, not the process's end."""
    file = tmp_path / "cut.gguf"
    file.write_bytes(path.read_bytes()[: 4 << 20])
    with pytest.raises(EngineError, match="cannot load"):
        await LlamaBackend.open(file)
    error = await failure(LlamaBackend(file), start())
    assert (error.code, error.status) == ("server_error", 503)


async def test_without_xllamacpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the extra is not installed, the error names it."""
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    (tmp_path / "m.gguf").write_bytes(gguf(LLAMA))
    with pytest.raises(EngineError, match=r"turntape\[llama\]"):
        await LlamaBackend.open(tmp_path / "m.gguf")
