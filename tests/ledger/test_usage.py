"""The ledger as users meet it: a server writes it, ``turntape usage`` adds it up."""

import json
import signal
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from click.testing import CliRunner, Result
from running import LAB, Running, environment, turntape
from used import ONE

from turntape import cli
from turntape.transport.ledger.json_lines import JsonLinesSink
from turntape.transport.ledger.sqlite import SqliteSink, read


def ask(server: Running, text: str) -> dict[str, Any]:
    """The response to one user message."""
    body = json.dumps({"model": "lab-model", "input": text}).encode()
    request = urllib.request.Request(f"{server.url}/responses", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        response: dict[str, Any] = json.load(answer)
        return response


def usage(*words: str, env: Mapping[str, str | None] | None = None) -> Result:
    return CliRunner().invoke(cli.main, ["usage", *words], env=env, catch_exceptions=False)


def test_a_server_writes_down_what_it_served(tmp_path: Path) -> None:
    """By default into the user's data folder; what is added up while it runs and after are the responses' own counts."""
    with turntape("serve", "--store", "memory", "--backend", f"scripted:{LAB}", folder=tmp_path) as server:
        assert "usage.sqlite3" in server.errors
        used = [ask(server, text)["usage"] for text in ("one", "two")]
        assert server.stop() == 0
    result = usage("--by", "model", "--json", env={**environment(tmp_path), "XDG_DATA_HOME": ""})
    [row] = json.loads(result.output)["sums"]
    assert (row["model"], row["responses"], row["failed"]) == ("lab-model", 2, 0)
    for name in ("input_tokens", "output_tokens"):
        assert row[name] == sum(each[name] for each in used) > 0
    assert (tmp_path / ".local" / "share" / "turntape" / "usage.sqlite3").stat().st_mode & 0o777 == 0o600


def test_a_killed_server_has_written_what_it_said_was_done(tmp_path: Path) -> None:
    """A record is on disk soon after its response, with no shutdown needed: ``kill -9`` does not take it."""
    path = tmp_path / "usage.sqlite3"
    options = ("serve", "--store", "memory", "--backend", f"scripted:{LAB}", "--ledger", f"sqlite:{path}")
    with turntape(*options, folder=tmp_path / "server") as server:
        asked = ask(server, "one")["id"]
        end = time.monotonic() + 10
        while not [*read(path, 0)] and time.monotonic() < end:
            time.sleep(0.02)
        server.stop(signal.SIGKILL)
    assert [record.response_id for record in read(path, 0)] == [asked]


def test_no_ledger(tmp_path: Path) -> None:
    """``none`` writes nothing, and neither does a recording."""
    for options in (("serve", "--ledger", "none"), ("record", "--out", tmp_path / "out.jsonl")):
        with turntape(*options, "--store", "memory", "--backend", f"scripted:{LAB}", folder=tmp_path) as server:
            ask(server, "one")
            assert "usage" not in server.errors
            assert server.stop() == 0
    assert not (tmp_path / ".local").exists()


def test_a_ledger_that_cannot_be_opened_stops_only_who_asked_for_it(tmp_path: Path) -> None:
    """One that was named ends the start with exit code 3; the default is done without, which is said."""
    text = tmp_path / "text"
    text.write_text("not a database " * 200)
    command = ["serve", "--store", "memory", "--port", "0", "--ledger", f"sqlite:{text}"]
    result = CliRunner().invoke(cli.main, command, catch_exceptions=False)
    assert result.exit_code == 3 and "--ledger" in result.output
    folder = tmp_path / "home"
    (folder / ".local" / "share" / "turntape" / "usage.sqlite3").mkdir(parents=True)
    with turntape("serve", "--store", "memory", folder=folder) as server:
        assert "warning: usage is not written down: The ledger" in server.errors
        assert server.stop() == 0


@pytest.mark.parametrize("kind", ["sqlite", "jsonl"])
def test_sums_are_by_what_was_asked_for(kind: str, tmp_path: Path) -> None:
    """A row for each, the largest first and days in their order, and a last one for all; the rest is said below."""
    path = tmp_path / "usage"
    sink = SqliteSink(path) if kind == "sqlite" else JsonLinesSink(path)
    day = 86400.0
    big = evolve(ONE, at=2e9, model="big", input_tokens=5000, owner="", responses=3, samples=4)
    failed = evolve(ONE, at=2e9 + day, status="failed", uncounted=1, input_tokens=0, cached_tokens=0, output_tokens=0)
    sink.write([evolve(ONE, estimated=True), big, failed])
    sink.close()
    spec = f"{kind}:{path}"
    result = usage("--ledger", spec)
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "model  responses  failed  cancelled  input  cached  output  reasoning",
        "big            3       0          0  5,000      60      20          0",
        "m              2       1          0    100      60      20          0",
        "total          5       1          0  5,100     120      40          0",
        "1 of them with tokens that the backend did not count: those are estimated",
        "1 samples broke off or were refused: what they used is not known, and not in the sums",
    ]
    by_day = json.loads(usage("--ledger", spec, "--by", "day", "--json").output)
    assert [row["day"] for row in by_day["sums"]] == ["2001-09-09", "2033-05-18", "2033-05-19"]
    assert by_day["total"]["samples"] == 6
    owners = json.loads(usage("--ledger", spec, "--by", "owner", "--json").output)["sums"]
    assert [row["owner"] for row in owners] == ["(none)", "label"]
    assert json.loads(usage("--ledger", spec, "--since", "2033-05-19", "--json").output)["total"]["responses"] == 1
    assert usage("--ledger", spec, "--since", "2034-01-01").output == f"no responses in {spec}\n"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--ledger", "usage.sqlite3"], 2, "is no ledger; write sqlite:FILE, jsonl:FILE, otel or none"),
        (["--ledger", "none"], 2, "there is nothing to read here"),
        (["--ledger", "otel"], 2, "there is nothing to read here"),
        (["--ledger", "sqlite:nowhere"], 3, "The ledger nowhere cannot be read: unable to open database file"),
        (["--ledger", "jsonl:nowhere"], 3, "The ledger nowhere cannot be read: No such file or directory"),
        (["--since", "yesterday"], 2, "'yesterday' is no time; write a day, such as 2026-11-30, or 30m, 12h, 7d"),
        (["--since", "7d", "--by", "price"], 2, "'price' is not one of"),
    ],
)
def test_what_cannot_be_added_up_is_explained(words: list[str], code: int, said: str) -> None:
    """The message names the option, what it holds and what it takes."""
    result = usage(*words)
    assert result.exit_code == code and said in result.output
