"""The demonstration works without anything set up, and its tools do no harm."""

from pathlib import Path

import orjson
import pytest
import trio

from turntape.core.session import Session
from turntape.demo import DemoFailed, run
from turntape.demo_tools import TOOLS, Toolbox, ToolError, calculate
from turntape.transport.backends.script import Script
from turntape.transport.backends.scripted import ScriptedBackend
from turntape.transport.memory_store import MemoryStore
from turntape.transport.server import ServerSettings, serve


async def test_the_demo_runs_by_itself() -> None:
    """Without a server at hand the agent works through its task, and says what each turn cost."""
    lines: list[str] = []
    with trio.fail_after(60):
        await run(None, None, lines.append)
    text = "\n".join(lines)
    for name in ("list_files", "read_file", "calculate", "write_file"):
        assert f"calls  {name}" in text
    assert "    The orders come to 193." in lines
    assert "5 turns over one connection" in lines[-1]
    sent, whole = (
        int(word.replace(",", "").rstrip(".")) for word in lines[-1].split() if word[0].isdigit() and "," in word
    )
    assert sent < whole


async def serving(script: str, nursery: trio.Nursery, shutdown: trio.Event, *keys: str) -> str:
    """The base URL of a server that plays ``script``."""

    async def start(task_status: trio.TaskStatus[int]) -> None:
        await serve(
            ServerSettings(default_model="m", keys=frozenset(keys), grace_s=0),
            new_session=Session,
            backend=ScriptedBackend(Script.parse(script)),
            store=MemoryStore(),
            shutdown=shutdown,
            task_status=task_status,
        )

    return f"http://127.0.0.1:{await nursery.start(start)}/v1"


@pytest.mark.parametrize(
    ("say", "said"),
    [
        ("{ fail = 'x', status = 400, message = 'Not today.' }", "the server refused the request: Not today."),
        (
            "{ text = 'a' }, { fail = 'server_error', message = 'It broke.' }",
            "the response is failed: It broke.",
        ),
        ("{ text = 'a' }, { finish = 'length' }", "the response is incomplete: max_output_tokens"),
        ("{ call = 'calculate', arguments = '{' }", "the model was not done after 16 turns."),
    ],
)
async def test_a_failure_is_said_and_ends_with_1(say: str, said: str) -> None:
    """A server or model that says no ends the demo with its reason, not with a traceback."""
    shutdown = trio.Event()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            url = await serving(f"[[rule]]\nsay = [{say}]", nursery, shutdown)
            with pytest.raises(DemoFailed) as failed:
                await run(url, None, lambda line: None)
            shutdown.set()
    assert (str(failed.value), failed.value.exit_code) == (said, 1)


async def test_a_key_is_presented() -> None:
    """A server that needs a key is worked with by its key, and refuses without it."""
    lines: list[str] = []
    shutdown = trio.Event()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            url = await serving("[[rule]]\nsay = [{ text = 'hello' }]", nursery, shutdown, "sk-test")
            await run(url, "sk-test", lines.append)
            with pytest.raises(DemoFailed, match=r"status 401; give a key with --key-file\.$") as failed:
                await run(url, None, lines.append)
            shutdown.set()
    assert failed.value.exit_code == 3
    assert not any("sk-test" in line for line in lines)


async def test_no_server_is_said_and_ends_with_3() -> None:
    """A URL where nobody listens is an error with a cure, and one that is no URL is used wrongly."""
    with trio.fail_after(30):
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        for listener in listeners:
            await listener.aclose()
        with pytest.raises(DemoFailed, match="start one with 'turntape serve'") as failed:
            await run(f"http://127.0.0.1:{port}/v1", None, print)
        assert failed.value.exit_code == 3
        for url in ("127.0.0.1:8765", "http://127.0.0.1:x/v1", "http://[", "ftp://host"):
            with pytest.raises(DemoFailed, match=r"write one like http://127\.0\.0\.1:8765/v1") as failed:
                await run(url, None, print)
            assert failed.value.exit_code == 2


@pytest.fixture
def toolbox(tmp_path: Path) -> Toolbox:
    (tmp_path / "secret").write_text("outside")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "secret")
    filled = Toolbox(folder)
    filled.fill()
    return filled


def test_files_are_written_and_read(toolbox: Toolbox) -> None:
    """What the agent writes it can read and list."""
    assert toolbox.call("write_file", '{"path":"a.txt","content":"hé"}') == "wrote 3 bytes to a.txt"
    assert toolbox.call("read_file", '{"path":"a.txt"}') == "hé"
    assert "a.txt (3 bytes)" in toolbox.call("list_files", "{}")


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "link", "a/../../secret", "..", ".", "nul\0", ""])
def test_nothing_outside_of_the_folder_is_touched(toolbox: Toolbox, path: str) -> None:
    """Neither a path nor a link leads out, for reading or for writing."""
    read = toolbox.call("read_file", orjson.dumps({"path": path}).decode())
    written = toolbox.call("write_file", orjson.dumps({"path": path, "content": "x"}).decode())
    assert read.startswith("error: ") and written.startswith("error: ")
    assert (toolbox.folder.parent / "secret").read_text() == "outside"


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("read_file", "{", "not JSON"),
        ("read_file", "[]", "should be a JSON object"),
        ("read_file", '{"path":5}', "'path' should be a string"),
        ("read_file", '{"path":"absent"}', "No such file"),
        ("write_file", '{"path":"x","content":"%s"}' % ("x" * 70_000), "longer than"),
        ("rm", "{}", "there is no tool 'rm'"),
    ],
)
def test_a_bad_call_is_an_answer_for_the_model(toolbox: Toolbox, name: str, arguments: str, said: str) -> None:
    """Whatever a model writes, the agent goes on: the tool's output says what was wrong."""
    output = toolbox.call(name, arguments)
    assert output.startswith("error: ") and said in output


@pytest.mark.parametrize(
    ("expression", "value"), [("3 * 19.50 + 2 * 7.25 + 1 * 120", 193), ("-(2 + 3) // 2", -3), ("2 ** 10 % 1000", 24)]
)
def test_the_calculator_calculates(expression: str, value: float) -> None:
    """Arithmetic comes out as written."""
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "x",
        "1 / 0",
        "9 ** 9 ** 9",
        "(-1) ** 0.5",
        "1e308 * 10",
        "'a' * 3",
        "True",
        "__import__('os')",
        "1" * 300,
        "[1]",
    ],
)
def test_the_calculator_does_nothing_else(expression: str) -> None:
    """Names, calls, texts and numbers without end are refused."""
    with pytest.raises(ToolError):
        calculate(expression)


def test_every_tool_offered_is_there(toolbox: Toolbox) -> None:
    """No tool is offered that the toolbox does not know."""
    for tool in TOOLS:
        assert "there is no tool" not in toolbox.call(tool["name"], "{}")
