"""What the documentation shows to be copied does what it says there."""

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
from running import ROOT, environment, turntape
from taped import Recording, output, user

from turntape import agents
from turntape.core import seam
from turntape.core.seam import Arguments, ToolCall
from turntape.replay.fixture import Fixture
from turntape.replay.packing import Packer
from turntape.replay.show import transcript
from turntape.replay.verify import verify

EXAMPLE = ROOT / "docs" / "example.jsonl"


def blocks(page: str, kind: str) -> list[str]:
    """The fenced blocks of one kind in a page."""
    return re.findall(rf"```{kind}\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def run(command: list[str | Path], folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command in ``folder``, with ``turntape`` and ``python`` on its path."""
    path = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=environment(folder, {"PATH": path, **more}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


# --- README -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("say", "code", "said"),
    [
        ("{ text = 'Hi there.' }", 0, "Hi there."),
        ("{ fail = 'model_not_found' }", 1, "model_not_found"),
        ("{ text = 'Hi' }, { fail = 'server_error' }", 1, "server_error"),
        ("{ text = 'Hi' }, { finish = 'length' }", 1, "max_output_tokens"),
    ],
)
def test_the_readmes_sdk_example_runs_and_ends(say: str, code: int, said: str, tmp_path: Path) -> None:
    """It prints the answer, and stops with what went wrong if anything does: it never waits for ever."""
    (tmp_path / "script.toml").write_text(f"[[rule]]\nsay = [{say}]\n")
    [example] = blocks("README.md", "python")
    backend = f"scripted:{tmp_path / 'script.toml'}"
    with turntape("serve", "--store", "memory", "--backend", backend, folder=tmp_path / "server") as server:
        (tmp_path / "example.py").write_text(example.replace("http://127.0.0.1:8765/v1", server.url))
        ran = run([sys.executable, "example.py"], tmp_path)
    assert ran.returncode == code, ran.stderr
    assert said in ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr


# --- record and replay --------------------------------------------------------------------------------------


def test_the_script_that_starts_codex_gives_it_our_overrides(tmp_path: Path) -> None:
    """What must be given by hand where Codex is hidden is what ``record`` itself would give."""
    script = next(block for block in blocks("docs/replay.md", "sh") if "exec codex" in block)
    (tmp_path / "codex-here.sh").write_text(script)
    codex = tmp_path / "codex"
    codex.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    codex.chmod(0o755)
    url = "http://127.0.0.1:5/v1"
    ran = run(["sh", "codex-here.sh", "exec", "add a test"], tmp_path, OPENAI_BASE_URL=url)
    ours = [part for value in agents.codex_overrides(url=url, model="qwen3-coder") for part in ("-c", value)]
    assert json.loads(ran.stdout) == [*ours, "exec", "add a test"]


def test_every_wrapper_is_documented() -> None:
    """docs/replay.md names each program that Codex is found behind, and no other."""
    text = (ROOT / "docs" / "replay.md").read_text(encoding="utf-8")
    [named] = re.findall(r"run by (.*?)\.\n", text, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", named)) == agents.WRAPPERS.keys()


# --- the fixture format -------------------------------------------------------------------------------------


def test_the_example_is_a_fixture() -> None:
    """The example verifies, and its page shows each of its lines, true but for what is cut."""
    fixture = Fixture.load(EXAMPLE)
    assert str(verify(fixture)) == "1 session, 6 steps, 1 turn: equal byte for byte"
    assert "assistant  Hello." in transcript(fixture)
    [shown] = blocks("docs/fixture.md", "jsonl")
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()
    assert len(shown.splitlines()) == len(lines)
    for cut, whole in zip(shown.splitlines(), lines, strict=True):
        assert re.fullmatch(re.escape(cut).replace("…", ".*"), whole), cut


def test_an_edited_answer_is_played(tmp_path: Path) -> None:
    """The edit that the page shows is played by a stub, and found by verify at the line it names."""
    [shown] = [block for block in blocks("docs/fixture.md", "sh") if "sed" in block]
    edit, _, check = shown.splitlines()
    (tmp_path / "example.jsonl").write_bytes(EXAMPLE.read_bytes())
    assert run(["sh", "-c", edit], tmp_path).returncode == 0
    ask = "import os, openai\nprint(openai.OpenAI().responses.create(model='m', input='Hi').output_text)\n"
    with turntape("stub", tmp_path / "edited.jsonl", folder=tmp_path / "stub") as stub:
        ran = run([sys.executable, "-c", ask], tmp_path, OPENAI_BASE_URL=stub.url, OPENAI_API_KEY="any")
        assert ran.stdout == "Good morning.\n", ran.stderr
        assert stub.stop() == 0
    verified = run(shlex.split(check, comments=True), tmp_path)
    assert verified.returncode == 1
    assert verified.stderr.startswith("edited.jsonl:5: other bytes are sent than were recorded")


def test_the_tables_of_the_format_are_whole() -> None:
    """Every event, effect and increment stands in the page with its fields as they are in a file, and no other."""
    text = (ROOT / "docs" / "fixture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([A-Z]\w+)` \| ([^|]*?) ?\|", text, re.MULTILINE)
    documented = {name: re.findall(r"`(\w+)`", fields) for name, fields in rows}
    classes: tuple[Any, ...] = (*seam.Event.__args__, *seam.Effect.__args__, *seam.Increment.__args__)
    classes += (seam.Limits, seam.Usage, seam.Record)
    expected = {cls.__name__: [entry.name for entry in attrs.fields(cls)] for cls in classes}
    start = Recording().client().ask(user("Hi"))
    assert start is not None
    expected["StartSample"] = [name for name in Packer().effects([start])[0] if name != "type"]
    texts = ('{"a":1}', '{"a": 1}', "{")
    packed = [Packer().event(seam.ClientText(text)) for text in texts]
    expected["ClientText"] = [name for row in packed for name in row if name != "type"]
    assert documented == expected


def form(item: dict[str, Any], number: int | None) -> str:
    """The canonical form, as the page describes it."""

    def dense(value: Any) -> Any:
        if isinstance(value, list):
            return [*map(dense, value)]
        if not isinstance(value, dict):
            return value
        return {key: dense(inner) for key, inner in value.items() if inner is not None and inner != []}

    dropped = ("id", "status", "client_metadata", "internal_chat_message_metadata_passthrough")
    plain = {"type": "message", **dense({key: value for key, value in item.items() if key not in dropped})}
    if plain["type"] == "message":
        content = plain["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        texts = ("input_text", "output_text")
        plain["content"] = [{**part, "type": "text"} if part["type"] in texts else part for part in parts]
    if number is not None:
        plain["call_id"] = number
    return json.dumps(plain, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def test_the_key_of_a_conversation_can_be_made_from_its_description() -> None:
    """A reader in another language, written after the page alone, finds the same keys: for calls, nulls and reasoning too."""
    client = Recording().client()
    client.turn(
        user("Hällo"),
        {
            "role": "user",
            "content": "\x01\n",
            "id": "msg_1",
            "status": None,
            "extra": {"a": [], "b": None, "c": [None]},
        },
        say=((ToolCall("call_x", "sh"), Arguments('{"cmd":"ls"}'), ToolCall("call_y", "sh"), Arguments("{}")),),
    )
    start = client.ask(output("call_y", "one"), output("call_x", "two"), {"type": "reasoning", "summary": []})
    assert start is not None
    numbers: dict[str, int] = {}
    key = ""
    for item in start.context.items_after(None):
        value = item.value
        if value.get("type") == "reasoning":
            continue
        number = None
        if (call_id := value.get("call_id")) is not None:
            number = numbers.setdefault(call_id, len(numbers) + 1)
        key = hashlib.blake2b((key + form(value, number)).encode(), digest_size=16).hexdigest()
    assert len(numbers) == 2
    assert start.context.fold.key == key
    text = (ROOT / "docs" / "fixture.md").read_text(encoding="utf-8")
    hi = form({"role": "user", "content": "Hi"}, None)
    assert f"`{hi}`" in text
    assert f"`{hashlib.blake2b(hi.encode(), digest_size=16).hexdigest()}`" in text
