"""A ledger in a SQLite file, which several servers may share."""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import astuple, fields

from .record import LedgerError, UsageRecord

APPLICATION_ID = 0x54545553  # "TTUS", so that another program's database is never written to
SCHEMA_VERSION = 1
BUSY_S = 1.0
"""How long one attempt waits for another process that writes; ours. The ledger tries again, and nobody waits for it."""

NAMES = tuple(field.name for field in fields(UsageRecord))
KINDS = {"float": "REAL", "int": "INTEGER", "bool": "INTEGER", "str": "TEXT"}


def _column(name: str, kind: Any) -> str:
    optional = "None" in str(kind)
    base = str(kind).partition(" ")[0] if optional else kind.__name__
    return f"{name} {KINDS[base]}{'' if optional else ' NOT NULL'}"


COLUMNS = ", ".join(_column(field.name, field.type) for field in fields(UsageRecord))
INSERT = f"INSERT INTO usage ({', '.join(NAMES)}) VALUES ({', '.join('?' * len(NAMES))})"


class SqliteSink:
    """See ``Sink``. Used by one thread at a time, not always the same one."""

    def __init__(self, path: Path) -> None:
        """The ledger in ``path``, made with its folders if it is not there. Raises ``LedgerError``."""
        self.path = path.absolute()
        try:
            missing = [folder for folder in self.path.parents if not folder.exists()]
            for folder in reversed(missing):
                folder.mkdir(mode=0o700, exist_ok=True)
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._connection = _connect(self.path)
        except (OSError, sqlite3.Error) as exc:
            reason = exc.strerror if isinstance(exc, OSError) else exc
            raise LedgerError(
                f"The ledger {self.path} cannot be opened: {reason}. Choose another with --ledger."
            ) from None
        try:
            self._prepare()
        except sqlite3.Error as exc:
            self._connection.close()
            raise LedgerError(f"The ledger {self.path} cannot be used: {exc}. Choose another with --ledger.") from None
        except LedgerError:
            self._connection.close()
            raise

    def write(self, records: Sequence[UsageRecord]) -> None:
        try:
            with self._connection:  # commits, or takes all of it back
                self._connection.execute("BEGIN IMMEDIATE")
                self._connection.executemany(INSERT, map(astuple, records))
        except sqlite3.Error as exc:
            raise LedgerError(f"The ledger {self.path} cannot be written: {exc}.") from None

    def close(self) -> None:
        self._connection.close()

    def _prepare(self) -> None:
        _check(self._connection, self.path)  # before anything is written to what may not be ours
        self._connection.execute("PRAGMA journal_mode = WAL")
        # A commit survives kill -9. It is not synced one by one: a power cut may take the last of them, and no client
        # was ever told that they are kept.
        self._connection.execute("PRAGMA synchronous = NORMAL")
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            if not _check(self._connection, self.path):  # again: another process may have been opening the same file
                self._connection.execute(f"CREATE TABLE usage (n INTEGER PRIMARY KEY, {COLUMNS})")
                self._connection.execute("CREATE INDEX usage_by_time ON usage (at)")
                self._connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                self._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def read(path: Path, since: float) -> Iterator[UsageRecord]:
    """Every record from ``since`` on, seconds since 1970. Raises ``LedgerError``."""
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_S)
        try:
            if not _check(connection, path):
                return
            for row in connection.execute(f"SELECT {', '.join(NAMES)} FROM usage WHERE at >= ? ORDER BY n", (since,)):
                yield UsageRecord(**dict(zip(NAMES, row, strict=True)))
        finally:
            connection.close()
    except sqlite3.Error as exc:
        raise LedgerError(f"The ledger {path} cannot be read: {exc}.") from None


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)


def _check(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the file holds a ledger that this version knows; it may also be empty."""
    [version] = connection.execute("PRAGMA user_version").fetchone()
    [application] = connection.execute("PRAGMA application_id").fetchone()
    [n_tables] = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if not (version or application or n_tables):
        return False
    if application != APPLICATION_ID:
        raise LedgerError(f"{path} is the database of something else than a ledger of turntape's; name another file.")
    if version != SCHEMA_VERSION:
        raise LedgerError(
            f"The ledger {path} has version {version}, this turntape knows {SCHEMA_VERSION}: use the turntape that wrote it."
        )
    return True
