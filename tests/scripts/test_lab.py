"""The script that tests with unmodified clients rely on says what those clients need."""

from pathlib import Path
from typing import Any

import orjson
import pytest
import trio
import trio.testing

from turntape.core.context import Context
from turntape.core.seam import Arguments, Increment, StartSample, Summary, Text, ToolCall
from turntape.core.wire import structure_create
from turntape.transport.backends.script import Script
from turntape.transport.backends.scripted import ScriptedBackend

LAB = Script.load(Path(__file__).parent / "lab.toml")


def tools(*names: str) -> list[dict[str, Any]]:
    return [
        {"type": "custom", "name": name.removeprefix("custom:")}
        if name.startswith("custom:")
        else {
            "type": "function",
            "name": name,
            "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
        }
        for name in names
    ]


async def said(n_outputs: int, *names: str, user: str = "do it", brought: bool = False) -> list[Increment]:
    """What the lab says after ``n_outputs``, with these tools offered by the request or brought by an item."""
    earlier: list[dict[str, Any]] = [{"role": "user", "content": "an earlier turn"}]
    outputs = [{"type": "function_call_output", "call_id": f"c{n}", "output": "42"} for n in range(n_outputs)]
    if brought:
        earlier.append({"type": "additional_tools", "role": "developer", "tools": tools(*names)})
    request = structure_create(
        {
            "model": "lab-model",
            "input": [*earlier, {"role": "user", "content": user}, *outputs],
            "tools": [{"type": "web_search"}] if brought else tools(*names),
        }
    )
    start = StartSample("smp_1", "lab-model", request, Context().extend(request.input.items), 0)
    got: list[Increment] = []
    async with ScriptedBackend(LAB).sample(start) as channel:
        async for batch in channel:
            got += batch
    return got


def calls(got: list[Increment]) -> list[tuple[str, Any]]:
    """Name and arguments of each call; a custom tool's input as text."""
    found: list[tuple[ToolCall, str]] = []
    for increment in got:
        if isinstance(increment, ToolCall):
            found.append((increment, ""))
        elif isinstance(increment, Arguments):
            found[-1] = (found[-1][0], found[-1][1] + increment.text)
    return [(call.name, text if call.custom else orjson.loads(text)) for call, text in found]


def text(got: list[Increment]) -> str:
    return "".join(increment.text for increment in got if isinstance(increment, Text))


CREATE = "echo hello from the lab > hello.txt && cat hello.txt"
LIST = "ls -la && echo LAB-STEP-1"
PATCH = "*** Begin Patch\n*** Add File: hello.txt\n+hello from the lab\n*** End Patch\n"
CODE = 'const r = await tools.exec_command({cmd: "%s"}); text(r);'


@pytest.mark.parametrize(
    ("n_outputs", "names", "expected"),
    [
        (0, ["lookup", "add"], [("lookup", {"key": "answer"})]),
        (1, ["lookup", "add"], [("add", {"a": 40, "b": 2}), ("lookup", {"key": "colour"})]),
        (0, ["exec_command", "view_image"], [("exec_command", {"cmd": LIST})]),
        (1, ["exec_command", "view_image"], [("exec_command", {"cmd": CREATE})]),
        (1, ["exec_command", "custom:apply_patch"], [("apply_patch", PATCH)]),
        (0, ["shell_command"], [("shell_command", {"command": LIST})]),
        (1, ["shell_command"], [("shell_command", {"command": CREATE})]),
        (0, ["shell"], [("shell", {"command": ["bash", "-lc", LIST]})]),
        (1, ["shell"], [("shell", {"command": ["bash", "-lc", CREATE]})]),
        (0, ["custom:exec", "wait"], [("exec", CODE % LIST)]),
        (1, ["custom:exec", "wait", "custom:apply_patch"], [("exec", CODE % CREATE)]),
        (0, ["custom:other", "get_weather"], [("get_weather", {"q": ""})]),
    ],
)
@pytest.mark.parametrize("brought", [False, True], ids=["in the request", "brought by an item"])
async def test_the_calls_of_each_client(
    n_outputs: int, names: list[str], expected: Any, brought: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """Each client's tools are called in the order that its test expects, wherever it offers them."""
    assert calls(await said(n_outputs, *names, brought=brought)) == expected


@pytest.mark.parametrize(
    ("n_outputs", "names", "expected"),
    [
        (3, ["lookup", "add"], "LAB-DONE after 3 tool outputs."),
        (2, ["exec_command", "custom:apply_patch"], "LAB-DONE: listed files and created hello.txt."),
        (2, ["custom:exec"], "LAB-DONE: listed files and created hello.txt."),
        (1, ["get_weather"], "LAB-DONE after 1 tool outputs."),
        (0, [], "LAB-DONE after 0 tool outputs."),
    ],
)
async def test_the_last_word_of_each_client(
    n_outputs: int, names: list[str], expected: str, autojump_clock: trio.testing.MockClock
) -> None:
    """After its tools each client gets a message in several deltas, and no further call."""
    got = await said(n_outputs, *names)
    assert (text(got), calls(got)) == (expected, [])
    assert sum(isinstance(increment, Text) for increment in got) > 1


async def test_a_first_call_follows_a_thought(autojump_clock: trio.testing.MockClock) -> None:
    """The first answer to agents has a reasoning summary before its call."""
    for name in ("lookup", "exec_command", "custom:exec"):
        assert isinstance((await said(0, name))[0], Summary)


async def test_a_slow_prompt_is_slow(autojump_clock: trio.testing.MockClock) -> None:
    """A prompt with LAB-SLOW gives an event each half second, long enough to be interrupted."""
    began = trio.current_time()
    got = await said(0, "exec_command", user="LAB-SLOW First task")
    n_tokens = sum(isinstance(increment, Text | Summary) for increment in got)
    assert trio.current_time() - began == pytest.approx(0.1 + (n_tokens - 1) / 2)
    assert trio.current_time() - began > 10
