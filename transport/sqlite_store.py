"""Stored responses in one SQLite file: durable, shared by processes on one machine, never on the Trio loop."""

import queue
import sqlite3
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import trio

from turntape.core.seam import Record

from . import sqlite_records as records
from .store import StoredResponse, StoreError

T = TypeVar("T")

RETENTION_DAYS = 30.0  # as long as OpenAI keeps a stored response (API reference, read 2026-11)
MAX_BATCH = 256
"""Saves that share one commit. Ours: a commit this large takes some 5 ms, one sync included."""

MAX_WAITING = 1024
"""Saves that may wait for the writer; the next ones wait outside, in their own tasks."""

CLOSE_S = 10.0

Write = Callable[[sqlite3.Connection], object]


class _Job:
    """One write that waits for its commit."""

    def __init__(self, write: Write) -> None:
        self.write = write
        self.done = trio.Event()
        self.result: Any = None
        self.error: Exception | None = None


class SqliteStore:
    """A ``Store`` in a file. Made by ``open``; used in the Trio run that opened it, and closed there.

    One thread writes. It takes all saves that wait, makes them one transaction, and only when that is on disk do
    they return: many turns share one sync. Reads have a connection of their own, and never wait for a write.
    """

    def __init__(self, writer: sqlite3.Connection, reader: sqlite3.Connection) -> None:
        self._writer, self._reader = writer, reader
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._room = trio.Semaphore(MAX_WAITING)
        self._reading = trio.CapacityLimiter(1)
        self._token = trio.lowlevel.current_trio_token()
        self._closed = False
        self._thread = threading.Thread(target=self._write_all, name="turntape-store", daemon=True)
        self._thread.start()

    @classmethod
    async def open(cls, path: str | Path, *, retention_days: float = RETENTION_DAYS) -> "SqliteStore":
        """The store in ``path``, made with its folders if it is not there.

        Args:
            retention_days: older responses are removed now, those that a younger one continues excepted.

        Raises:
            StoreError: the file cannot be opened or is not ours; names it.
        """
        absolute = Path(path).absolute()
        writer = await trio.to_thread.run_sync(records.open_writer, absolute, retention_days)
        try:
            reader = await trio.to_thread.run_sync(records.open_reader, absolute)
        except BaseException:
            writer.close()
            raise
        return cls(writer, reader)

    async def save(self, record: Record) -> None:
        await self._write(lambda connection: records.insert(connection, record))

    async def delete(self, response_id: str, owner: str) -> bool:
        return bool(await self._write(lambda connection: records.remove(connection, response_id, owner)))

    async def load(self, response_id: str, owner: str) -> tuple[bytes, ...] | None:
        return await self._read(partial(records.chain, self._reader, response_id, owner))

    async def items(self, item_ids: tuple[str, ...], owner: str) -> tuple[bytes | None, ...]:
        return await self._read(partial(records.newest_items, self._reader, item_ids, owner))

    async def get(self, response_id: str, owner: str) -> StoredResponse | None:
        return await self._read(partial(records.response, self._reader, response_id, owner))

    async def aclose(self) -> None:
        """Return when everything that was asked for is on disk and the file is closed. Safe to call twice."""
        if self._closed:
            await trio.lowlevel.checkpoint()
            return
        self._closed = True
        self._jobs.put(None)
        with trio.move_on_after(CLOSE_S, shield=True):
            await trio.to_thread.run_sync(self._thread.join, abandon_on_cancel=True)
            await trio.to_thread.run_sync(self._reader.close, limiter=self._reading)

    async def _read(self, read: Callable[[], T]) -> T:
        self._check_open()
        try:
            return await trio.to_thread.run_sync(read, limiter=self._reading)
        except sqlite3.Error as exc:
            raise StoreError(f"The store could not be read: {exc}.") from None

    async def _write(self, write: Write) -> Any:
        async with self._room:
            self._check_open()
            job = _Job(write)
            self._jobs.put(job)
            await job.done.wait()  # cancelled here, it is written all the same
        if job.error is not None:
            raise job.error
        return job.result

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("The store is closed: the server is shutting down.")

    # --- the writer's thread ------------------------------------------------------------------------

    def _write_all(self) -> None:
        jobs: list[_Job | None] = []
        while None not in jobs:
            jobs = [self._jobs.get()]
            while len(jobs) < MAX_BATCH and jobs[-1] is not None and not self._jobs.empty():
                jobs.append(self._jobs.get())
            batch = [job for job in jobs if job is not None]
            if batch:
                self._commit(batch)
                try:
                    self._token.run_sync_soon(_wake, batch)
                except trio.RunFinishedError:
                    break  # nobody is left to be told
        self._writer.close()

    def _commit(self, batch: list[_Job]) -> None:
        """Make ``batch`` one transaction. A job that fails takes back its own part only."""
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            for job in batch:
                self._writer.execute("SAVEPOINT job")
                try:
                    job.result = job.write(self._writer)
                except Exception as exc:  # noqa: BLE001 - whoever asked gets it; the thread serves the others on
                    job.error = _explained(exc)
                    self._writer.execute("ROLLBACK TO job")
                self._writer.execute("RELEASE job")
            self._writer.execute("COMMIT")
        except Exception as exc:  # noqa: BLE001
            for job in batch:
                job.error = _explained(exc)
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")


def _explained(exc: Exception) -> Exception:
    if not isinstance(exc, sqlite3.Error):
        return exc
    return StoreError(f"The response could not be stored: {exc}. Try again, or set 'store' to false.")


def _wake(batch: list[_Job]) -> None:
    for job in batch:
        job.done.set()
