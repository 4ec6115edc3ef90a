"""``import``, ``export``, ``verify --diff`` and ``--upgrade`` as their users meet them: output, exit codes, files."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from attrs import frozen
from running import ROOT, environment
from sources import Rollout, call, message, output


@frozen
class Ended:
    code: int
    output: str
    errors: str


def run(*words: str | Path, folder: Path) -> Ended:
    """Run ``turntape WORDS`` in ``folder`` to its end."""
    command = [sys.executable, "-m", "turntape", *map(str, words)]
    ended = subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=60, check=False
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    return Ended(ended.returncode, ended.stdout, ended.stderr)


@pytest.fixture
def rollout(tmp_path: Path) -> Path:
    lines = Rollout().items(message("user", "Go."), call("a", "sh", "{}")).counted()
    lines.items(output("a", "1"), {"type": "web_search_call"}).counted()
    path = tmp_path / "rollout.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines.lines))
    return path


def test_import_says_what_came_of_it(rollout: Path, tmp_path: Path) -> None:
    """Counts on standard output, what is not known and what was left out on standard error; the file is its owner's."""
    ran = run("import", rollout, "--out", "fix.jsonl", folder=tmp_path)
    assert ran.code == 0, ran.errors
    assert ran.output.startswith("imported fix.jsonl: 1 session, 1 turn, 1 tool call, ")
    assert "note: Nor does it hold these fields" in ran.errors
    assert "left out: rollout.jsonl:7: an answer with an item of type web_search_call" in ran.errors
    assert stat.S_IMODE((tmp_path / "fix.jsonl").stat().st_mode) == 0o600
    assert run("verify", "fix.jsonl", folder=tmp_path).code == 0
    again = run("import", rollout, "--out", "fix.jsonl", folder=tmp_path)
    assert again.code == 2 and "is there already" in again.errors
    for_programs = run("import", "--json", rollout, "--out", "two.jsonl", folder=tmp_path)
    said = json.loads(for_programs.output)
    assert (said["recording"], said["from"], said["n_turns"], len(said["skipped"])) == ("two.jsonl", "codex", 1, 1)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["import", "strange.json", "--out", "new.jsonl"],
            "strange.json: is not recognised. What can be imported: Codex's rollout files (codex), logs of Responses",
        ),
        (["import", "plain.txt", "--out", "new.jsonl"], "plain.txt: line 1: is not JSON. What can be imported: "),
        (["import", "example.jsonl", "--out", "new.jsonl"], "example.jsonl: is a recording of Turntape already"),
        (
            ["import", "--from", "codex", "strange.json", "--out", "new.jsonl"],
            "Error: strange.json: holds nothing to replay: line 1: is no line of a rollout.",
        ),
        (
            ["import", "--from", "openai-events", "strange.json", "--out", "new.jsonl"],
            "Error: strange.json: holds nothing to replay: line 1: is no request, event or response.",
        ),
        (["import", "rollout.jsonl", "--out", "nowhere/new.jsonl"], "--out: there is no folder nowhere"),
        (["import", "rollout.jsonl"], "Missing option '--out'"),
        (["import", "--from", "cassette", "rollout.jsonl", "--out", "new.jsonl"], "'cassette' is not one of"),
        (["import", "strange.json", "rollout.jsonl", "--out", "new.jsonl"], "strange.json: is not recognised"),
        (["export", "rollout.jsonl", "--to", "aiperf", "--out", "new.jsonl"], "is no fixture"),
        (["export", "example.jsonl", "--out", "new.jsonl"], "Missing option '--to'"),
        (["verify", "--upgrade", "example.jsonl"], "--upgrade needs --reason TEXT"),
        (["verify", "--reason", "because", "example.jsonl"], "--reason belongs to --upgrade"),
        (["verify", "--accept-edits", "example.jsonl"], "--accept-edits belongs to --upgrade"),
    ],
)
def test_wrong_use_is_named_and_writes_nothing(words: list[str], says: str, rollout: Path, tmp_path: Path) -> None:
    """What is wrong is said in a line, with the thing that is meant, and no file is left behind."""
    (tmp_path / "strange.json").write_text('{"a":1}')
    (tmp_path / "plain.txt").write_text("hello")
    (tmp_path / "example.jsonl").write_bytes((ROOT / "docs" / "example.jsonl").read_bytes())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    ran = run(*words, folder=tmp_path)
    assert ran.code == 2 and says in ran.errors, ran.errors
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_export_writes_a_line_a_turn(tmp_path: Path) -> None:
    """A workload is a new file, and what is missing in it is said."""
    fixture = ROOT / "fixtures" / "codex_fix_greeting.jsonl"
    ran = run("export", fixture, "--to", "aiperf", "--out", "work.jsonl", folder=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "work.jsonl").read_text().splitlines()]
    assert ran.code == 0 and f"exported work.jsonl: 1 session, {len(lines)} turns" in ran.output, (
        ran.output + ran.errors
    )
    again = run("export", fixture, "--to", "aiperf", "--out", "work.jsonl", folder=tmp_path)
    assert again.code == 2 and "work.jsonl is there already" in again.errors


def test_an_edited_answer_is_shown_refused_and_taken(tmp_path: Path) -> None:
    """``--diff`` shows each place and changes nothing; ``--upgrade`` wants a reason and a word about the edit."""
    path = tmp_path / "fix.jsonl"
    original = (ROOT / "docs" / "example.jsonl").read_bytes()
    edited = original.replace(b'"d":["Hel","lo."]', b'"d":["Good ","morning."]')
    path.write_bytes(edited)
    shown = run("verify", "--diff", "fix.jsonl", folder=tmp_path)
    assert shown.code == 1 and 'fix.jsonl:6: effect 1 (Send) data.0.text: "Hello." → "Good morning."' in shown.output
    assert "2 of 7 lines differ" in shown.output and path.read_bytes() == edited
    refused = run("verify", "--upgrade", "--reason", "kinder", "fix.jsonl", folder=tmp_path)
    assert refused.code == 1 and "give --accept-edits if that is meant" in refused.errors
    assert path.read_bytes() == edited
    words = ["verify", "--upgrade", "--reason", "kinder", "--accept-edits", "--json", "fix.jsonl"]
    result = json.loads(run(*words, folder=tmp_path).output)
    assert result["verified"] and result["fixtures"][0]["upgraded"] and result["fixtures"][0]["n_changed"] == 2
    assert run("verify", "fix.jsonl", folder=tmp_path).code == 0
    assert json.loads(path.read_text().split("\n")[0])["upgrades"][0]["reason"] == "kinder"
    equal = run("verify", "--diff", "fix.jsonl", folder=tmp_path)
    assert equal.code == 0 and "0 of 7 lines differ" in equal.output


def test_a_relays_recording_among_others_stops_neither_diff_nor_upgrade(tmp_path: Path) -> None:
    """It is named, and the other files say how the command ends; alone it is no file for them."""
    head = {"relay": 1, "t": 0.0, "wall": 1.8e9, "transport": "http", "method": "POST", "path": "/v1/responses"}
    head |= {"upstream": "http://127.0.0.1:1/v1", "headers": {}, "rules": []}
    (tmp_path / "relay.jsonl").write_text('{"turntape":1}\n' + json.dumps(head) + "\n")
    original = (ROOT / "docs" / "example.jsonl").read_bytes()
    (tmp_path / "same.jsonl").write_bytes(original)
    (tmp_path / "edited.jsonl").write_bytes(original.replace(b'"d":["Hel","lo."]', b'"d":["Good ","morning."]'))
    for words in (["--diff"], ["--upgrade", "--reason", "kinder"]):
        ran = run("verify", *words, "relay.jsonl", "same.jsonl", folder=tmp_path)
        assert ran.code == 0 and "relay.jsonl: was recorded by a relay" in ran.errors
        assert "same.jsonl: 0 of 7 lines differ" in ran.output
        assert run("verify", *words, "relay.jsonl", "edited.jsonl", folder=tmp_path).code == 1
        alone = run("verify", *words, "relay.jsonl", folder=tmp_path)
        assert alone.code == 2 and "every file was recorded by a relay; leave out --diff or --upgrade" in alone.errors
    result = json.loads(run("verify", "--diff", "--json", "relay.jsonl", "same.jsonl", folder=tmp_path).output)
    assert [each["verified"] for each in result["fixtures"]] == [None, True] and result["verified"]
