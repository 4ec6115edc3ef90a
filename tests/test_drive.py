"""``turntape drive`` and ``turntape compare`` as their users run them."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from running import LAB, ROOT, environment, turntape

PARALLEL = ROOT / "fixtures" / "openai_parallel_calls.jsonl"
GREETING = ROOT / "fixtures" / "codex_fix_greeting.jsonl"
SCRIPT = """
[[rule]]
when = { min_outputs = 1 }
say = [{ text = "Rome is larger." }]

[[rule]]
say = [{ call = "population", arguments = { city = "Rome" } }, { call = "population", arguments = { city = "Oslo" } }]
"""


def says(*words: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "turntape", *map(str, words)]
    return subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def script(tmp_path: Path) -> str:
    """A backend that makes the recorded calls, and says something else at the end."""
    (tmp_path / "script.toml").write_text(SCRIPT)
    return f"scripted:{tmp_path / 'script.toml'}"


@pytest.mark.parametrize("design", ["create", "append", "http"])
def test_a_drive_prints_a_table_and_writes_a_report(design: str, script: str, tmp_path: Path) -> None:
    """In each design: the verdicts on standard output and in the file, progress on standard error."""
    more = ("--design", design, "--tool-time", "zero", "--repeat", "2", "--parallel", "2", "--json", "today.json")
    ran = says("drive", PARALLEL, "--backend", script, *more, folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1].startswith("4 turns in 2 runs: 2 equal, 2 text; ")
    assert "run 2 of 2: " in ran.stderr
    report = json.loads((tmp_path / "today.json").read_text())
    assert report["verdicts"]["counts"] == {"equal": 2, "text": 2}
    [call, *_] = report["verdicts"]["runs"][0]["turns"][0]["calls"]
    assert call["verdict"] == "equal" and json.loads(call["got"]["arguments"]) == {"city": "Rome"}


def test_two_drives_of_the_same_differ_in_their_times_alone(script: str, tmp_path: Path) -> None:
    """The verdicts of two processes are the same bytes."""
    for name in ("a.json", "b.json"):
        ran = says(
            "drive", PARALLEL, GREETING, "--backend", script, "--tool-time", "zero", "--json", name, folder=tmp_path
        )
        assert ran.returncode == 0, ran.stderr
    one, other = ((tmp_path / name).read_text().partition('"timings": {')[0] for name in ("a.json", "b.json"))
    assert one == other and '"verdicts": {' in one


def test_strict_says_by_its_exit_code_that_something_differs(script: str, tmp_path: Path) -> None:
    """1 if anything does, 0 if all is as recorded."""
    assert (
        says("drive", PARALLEL, "--backend", script, "--tool-time", "zero", "--strict", folder=tmp_path).returncode == 1
    )
    (tmp_path / "script.toml").write_text('[[rule]]\nsay = [{ text = "Hello." }]\n')
    example = ROOT / "docs" / "example.jsonl"
    assert says("drive", example, "--backend", script, "--strict", folder=tmp_path).returncode == 0


@pytest.mark.parametrize(("mode", "design"), [("forced", "create"), ("forced", "http"), ("free", "append")])
def test_a_server_at_a_url_is_driven(mode: str, design: str, tmp_path: Path) -> None:
    """Over WebSocket and HTTP, with nothing known of it but its URL."""
    with turntape("serve", "--backend", f"scripted:{LAB}", "--store", "memory", folder=tmp_path / "server") as server:
        more = ("--mode", mode, "--design", design, "--tool-time", "zero", "--json", "at.json")
        ran = says("drive", PARALLEL, "--url", server.url, *more, folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    report = json.loads((tmp_path / "at.json").read_text())
    assert report["setup"]["target"] == server.url
    turns = report["verdicts"]["runs"][0]["turns"]
    assert turns[0]["verdict"] == "calls" and (len(turns) == 2) is (mode == "forced")
    assert report["timings"]["runs"][0]["turns"][0]["got"]["ttft_s"] > 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "neither --backend nor --url is given"),
        (["--backend", "scripted", "--url", "http://127.0.0.1:1/v1"], 2, "both --backend and --url"),
        (["--url", "http://127.0.0.1:1/v1"], 3, "nothing listens there"),
        (["--url", "ftp://127.0.0.1/v1"], 2, "--url: the URL must begin with"),
        (["--url", "http://127.0.0.1:1/v1", "--design", "append"], 2, "cannot append"),
        (["--backend", "scripted", "--tool-time", "fast"], 2, "recorded, zero, or a factor"),
        (["--backend", "scripted", "--repeat", "0"], 2, "--repeat"),
        (["--backend", "scripted", "--json", "nowhere/at.json"], 2, "there is no folder nowhere"),
        (["--backend", "scripted", "--json", "."], 2, "--json: . is a folder; name a file"),
        (["--backend", "scripted", str(PARALLEL)], 2, "named twice"),
        (["--backend", "scripted", "--json", str(PARALLEL)], 2, "is a recording"),
    ],
)
def test_what_cannot_be_driven_is_refused_with_the_reason(
    words: list[str], code: int, said: str, tmp_path: Path
) -> None:
    """Nothing is played before, and no traceback is printed."""
    ran = says("drive", PARALLEL, *words, folder=tmp_path)
    assert ran.returncode == code, ran.stderr
    assert said in ran.stderr and "Traceback" not in ran.stderr and not ran.stdout


def test_a_drive_that_is_stopped_reports_what_was_played(script: str, tmp_path: Path) -> None:
    """SIGINT ends a long drive; the turns until then are in the report, and the rest is named as not reached."""
    more = ["--tool-time", "x1000", "--json", "at.json"]
    command = [sys.executable, "-m", "turntape", "drive", str(GREETING), str(PARALLEL), "--backend", script, *more]
    env = environment(tmp_path, {"PYTHONUNBUFFERED": "1"})
    with subprocess.Popen(
        command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as ran:
        assert ran.stdout is not None and ran.stderr is not None
        assert "turn 1 of 6, run 1 of 2" in ran.stderr.readline()
        ran.send_signal(signal.SIGINT)
        said, _ = ran.communicate(timeout=30)
    assert ran.returncode == 130
    assert "1 turn in 1 run" in said and "3 turns not reached" in said
    [run] = json.loads((tmp_path / "at.json").read_text())["verdicts"]["runs"]
    assert len(run["turns"]) == 1 and len(run["not_reached"]) == 3


def test_a_file_that_is_no_fixture_is_refused(tmp_path: Path) -> None:
    """It is named, with what is wrong."""
    (tmp_path / "no.jsonl").write_text("{}\n")
    ran = says("drive", "no.jsonl", "--backend", "scripted", folder=tmp_path)
    assert ran.returncode == 2 and "no.jsonl:1: is no fixture" in ran.stderr


def test_a_url_from_the_environment_gives_way_to_a_backend_on_the_command_line(script: str, tmp_path: Path) -> None:
    """What is said for this one drive counts."""
    command = [sys.executable, "-m", "turntape", "drive", str(PARALLEL), "--backend", script, "--tool-time", "zero"]
    env = environment(tmp_path, {"TURNTAPE_URL": "http://127.0.0.1:1/v1"})
    ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr


def test_models_tables_hold_for_a_drive_too(script: str, tmp_path: Path) -> None:
    """A recorded model that no table has is a failed turn; --model renames it."""
    (tmp_path / "turntape.toml").write_text(f'[models.mine]\nbackend = "{script}"\n')
    ran = says("drive", PARALLEL, "--tool-time", "zero", folder=tmp_path)
    assert ran.returncode == 0 and "2 failed" in ran.stdout and "model_not_found" in ran.stdout
    ran = says("drive", PARALLEL, "--tool-time", "zero", "--model", "mine", folder=tmp_path)
    assert ran.returncode == 0 and "1 equal, 1 text" in ran.stdout


def test_a_backend_that_is_down_fails_every_turn_for_the_same_reason(tmp_path: Path) -> None:
    """It is asked each time, so that the verdicts do not depend on how often it was asked before; the exit code is 3."""
    words = ("--backend", "chat+http://127.0.0.1:1/v1", "--tool-time", "zero", "--repeat", "4", "--json", "at.json")
    ran = says("drive", PARALLEL, *words, folder=tmp_path)
    assert ran.returncode == 3 and "Error: no turn was answered: The backend at 127.0.0.1:1 cannot be" in ran.stderr
    runs = json.loads((tmp_path / "at.json").read_text())["verdicts"]["runs"]
    failures = [turn["failure"]["message"] for run in runs for turn in run["turns"]]
    assert len(failures) == 8 and len(set(failures)) == 1 and "nothing listens there" in failures[0]


def test_a_backend_that_refuses_by_itself_was_there(script: str, tmp_path: Path) -> None:
    """Its refusals are its answers, and what is found out of it: no fault of the environment."""
    (tmp_path / "script.toml").write_text('[[rule]]\nsay = [{ fail = "context_length_exceeded" }]\n')
    ran = says("drive", PARALLEL, "--backend", script, "--tool-time", "zero", folder=tmp_path)
    assert ran.returncode == 0 and "2 failed" in ran.stdout, ran.stderr


def test_a_report_on_standard_output_is_all_that_stands_there(script: str, tmp_path: Path) -> None:
    """The table moves to standard error; no file of that name is made."""
    words = ("drive", PARALLEL, "--backend", script, "--tool-time", "zero", "--json", "-")
    ran = says(*words, folder=tmp_path)
    assert ran.returncode == 0 and json.loads(ran.stdout)["turntape_drive"] == 1
    assert "2 turns in 1 run" in ran.stderr and not (tmp_path / "-").exists()


@pytest.mark.parametrize("words", [("--json",), ("--json", "--backend", "scripted")])
def test_json_without_a_file_says_what_it_wants(words: tuple[str, ...], tmp_path: Path) -> None:
    """Elsewhere it is a flag."""
    ran = says("drive", PARALLEL, *words, folder=tmp_path)
    assert ran.returncode == 2 and "--json wants a file here: --json FILE, or --json -" in ran.stderr


def test_compare_says_by_its_exit_code_what_is_beyond(script: str, tmp_path: Path) -> None:
    """0 within, 1 beyond, 2 for what cannot be compared."""
    drive = ("drive", PARALLEL, "--tool-time", "zero", "--backend")
    assert says(*drive, script, "--json", "a.json", folder=tmp_path).returncode == 0
    assert says(*drive, f"scripted:{LAB}", "--json", "b.json", folder=tmp_path).returncode == 0
    assert says("compare", "a.json", "a.json", "--max-ttft-ratio", "1", folder=tmp_path).returncode == 0
    ran = says("compare", "a.json", "b.json", folder=tmp_path)
    assert ran.returncode == 1 and "equal → calls" in ran.stdout
    assert says("compare", "a.json", "b.json", "--verdicts", "report", folder=tmp_path).returncode == 0
    ran = says("compare", "a.json", "b.json", "--json", folder=tmp_path)
    assert ran.returncode == 1 and json.loads(ran.stdout)["within"] is False
    for bad in (PARALLEL, tmp_path / "script.toml"):
        ran = says("compare", "a.json", bad, folder=tmp_path)
        assert ran.returncode == 2 and str(bad) in ran.stderr and "Traceback" not in ran.stderr
    ran = says("compare", "a.json", "b.json", "--max-wall-ratio", "nan", folder=tmp_path)
    assert ran.returncode == 2 and "above 0" in ran.stderr
