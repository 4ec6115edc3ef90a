"""Records reach their file, whatever goes wrong with it, and no turn waits for that."""

import logging
import sqlite3
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
import trio
import trio.testing
from attrs import define, evolve, field
from used import ONE

from turntape.transport.ledger import json_lines, ledger, sqlite
from turntape.transport.ledger.json_lines import JsonLinesSink
from turntape.transport.ledger.ledger import OTHERS, RETRY_S, Ledger
from turntape.transport.ledger.record import LedgerError, UsageRecord
from turntape.transport.ledger.sqlite import SqliteSink

KINDS = [(SqliteSink, sqlite.read), (JsonLinesSink, json_lines.read)]


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No threads: a clock that jumps does not wait for them."""

    async def run_sync(call: Callable[..., Any], *args: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return call(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)


def records(n: int) -> list[UsageRecord]:
    return [evolve(ONE, response_id=f"resp_{i}", at=1e9 + i) for i in range(n)]


@define(eq=False)
class Broken:
    """A sink that fails as long as it is told to, and counts its writes."""

    fails: bool = True
    kept: list[UsageRecord] = field(factory=list)
    n_writes: int = 0
    closed: bool = False

    def write(self, records: Sequence[UsageRecord]) -> None:
        self.n_writes += 1
        if self.fails:
            raise LedgerError("The ledger cannot be written: the disk is full.")
        self.kept += records

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(("make", "read"), KINDS)
def test_what_was_written_is_read(make: Any, read: Any, tmp_path: Path) -> None:
    """Each field as it was, in order, also by those that open the file again; since a time only what came after."""
    path = tmp_path / "usage"
    odd = evolve(ONE, owner="", error="server_error", ttft_s=None, estimated=True, model="m\n☃", samples=3, uncounted=2)
    first = make(path)
    first.write([ONE, odd])
    second = make(path)  # another server's
    second.write([evolve(ONE, at=2e9)])
    first.write([odd])
    assert [*read(path, 0)] == [ONE, odd, evolve(ONE, at=2e9), odd]
    assert [*read(path, 1.5e9)] == [evolve(ONE, at=2e9)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first.close()
    second.close()


def test_a_file_that_is_no_ledger_is_left_alone(tmp_path: Path) -> None:
    """Another program's database is refused by its name, and not written to."""
    other = tmp_path / "other.sqlite3"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE theirs (a)")
    before = other.read_bytes()
    for opens in (lambda: SqliteSink(other), lambda: [*sqlite.read(other, 0)]):
        with pytest.raises(LedgerError, match=r"other\.sqlite3 is the database of something else"):
            opens()
    assert other.read_bytes() == before
    text = tmp_path / "text"
    text.write_text("not a database, but long enough to look like something: " * 50)
    with pytest.raises(LedgerError, match="file is not a database"):
        SqliteSink(text)


@pytest.mark.parametrize("make", [SqliteSink, JsonLinesSink])
def test_a_place_that_cannot_be_opened_is_named(make: Any, tmp_path: Path) -> None:
    """The error says which file, why, and how to choose another."""
    with pytest.raises(LedgerError, match=r"The ledger .* cannot be opened: .*--ledger"):
        make(tmp_path)


def test_lines_are_whole_after_a_disk_was_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that was written by half is taken back, so that it can come again without doubling anything."""
    path = tmp_path / "usage.jsonl"
    sink = JsonLinesSink(path)
    sink.write(records(1))
    before = path.read_bytes()
    write, calls = json_lines.os.write, []

    def half(file: int, lines: bytes) -> int:
        calls.append(lines)
        if len(calls) == 1:
            return write(file, lines[: len(lines) // 2])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(json_lines.os, "write", half)
        with pytest.raises(LedgerError, match="No space left on device"):
            sink.write(records(3))
    assert len(calls) == 2
    assert path.read_bytes() == before
    sink.write(records(3))
    assert [*json_lines.read(path, 0)] == records(1) + records(3)
    sink.close()


def test_a_line_that_a_power_cut_left_unfinished_spoils_no_other(tmp_path: Path) -> None:
    """What comes next stands on a line of its own; a line that is JSON and no record is an error with its number."""
    path = tmp_path / "usage.jsonl"
    path.write_bytes(b'{"at":1')
    sink = JsonLinesSink(path)
    sink.write([ONE])
    sink.close()
    assert [*json_lines.read(path, 0)] == [ONE]
    path.write_bytes(path.read_bytes() + orjson.dumps({"at": 1}) + b"\n")
    with pytest.raises(LedgerError, match=r"usage\.jsonl:3: this is no usage record"):
        [*json_lines.read(path, 0)]


async def test_records_that_come_together_are_written_together(
    nursery: trio.Nursery, inline: None, autojump_clock: Any
) -> None:
    """Fifty sessions' responses share one write, within a quarter of a second."""
    sink = Broken(fails=False)
    book = Ledger(sink)
    nursery.start_soon(book.run)
    for record in records(50):
        book.put(record)
        await trio.sleep(0.001)
    await trio.sleep(0.3)
    assert (sink.kept, sink.n_writes) == (records(50), 1)
    book.put(ONE)
    await trio.sleep(0.3)
    assert (len(sink.kept), sink.n_writes) == (51, 2)


async def test_a_ledger_that_cannot_be_written_is_tried_again(
    nursery: trio.Nursery, inline: None, autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is lost or written twice, and it is said once that it failed and once that it works again."""
    sink = Broken()
    book = Ledger(sink)
    nursery.start_soon(book.run)
    for record in records(3):
        book.put(record)
        await trio.sleep(RETRY_S)
    assert sink.kept == [] and sink.n_writes > 1
    sink.fails = False
    await trio.sleep(2 * RETRY_S)
    assert sink.kept == records(3)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and "the disk is full" in said[0] and "can be written again" in said[1]


async def test_a_locked_database_is_waited_for(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another process holds it nothing can be written, and afterwards everything is there once."""
    monkeypatch.setattr(sqlite, "BUSY_S", 0.01)
    monkeypatch.setattr(ledger, "RETRY_S", 0.01)
    path = tmp_path / "usage.sqlite3"
    book = Ledger(SqliteSink(path))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerError, match="locked"):
        book.sink.write(records(1))
    for record in records(5):
        book.put(record)
    other.execute("ROLLBACK")
    other.close()
    with trio.fail_after(10):
        await book.aclose()
    assert [*sqlite.read(path, 0)] == records(5)


async def test_closing_writes_what_waits(inline: None, autojump_clock: Any) -> None:
    """Also what nobody has begun to write; then the sink is closed, and nothing is said."""
    sink = Broken(fails=False)
    book = Ledger(sink)
    for record in records(3000):
        book.put(record)
    await book.aclose()
    assert sink.kept == records(3000) and sink.closed


async def test_what_cannot_be_written_by_the_end_is_said_in_sums(
    inline: None, autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Closing gives up after its time, and the log holds owner, model, backend and counts of all that is missing."""
    sink = Broken()
    book = Ledger(sink)
    for record in records(7):
        book.put(record)
    started = trio.current_time()
    await book.aclose()
    assert trio.current_time() - started == ledger.CLOSE_S and sink.closed
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    [line] = said
    assert line == (
        "usage that is not in the ledger: owner label, model m, backend b: "
        "7 responses (completed), 700 input tokens (420 cached), 140 output tokens"
    )


async def test_memory_is_bounded_and_no_count_is_lost(
    inline: None, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the bound records are added up by owner, model and backend, and beyond that under one name."""
    monkeypatch.setattr(ledger, "MAX_WAITING", 2)
    monkeypatch.setattr(ledger, "MAX_SUMS", 3)
    sink = Broken()
    book = Ledger(sink)
    for number, record in enumerate(records(100)):
        book.put(evolve(record, model=f"m{number % 10}"))
    sink.fails = False
    await book.aclose()
    assert len(sink.kept) == 2 + 3 + 1
    for name, each in (("responses", 1), ("samples", 1), ("input_tokens", 100), ("output_tokens", 20)):
        assert sum(getattr(record, name) for record in sink.kept) == 100 * each
    assert {record.model for record in sink.kept[2:]} == {"m2", "m3", "m4", OTHERS}
