"""What the database file holds, and each statement on it. All of it blocks: ``sqlite_store`` calls it from threads.

A chain is a linked list of records, and an item stands in the file once, with the record that brought it. A deleted
record keeps its items for as long as a descendant needs them, and is shown to nobody.
"""

import os
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from turntape.core.seam import Record

from .store import StoredResponse, StoreError, item_id, parent_gone, stored_response, taken

APPLICATION_ID = 0x54544150  # "TTAP", so that another program's database is never written to
SCHEMA_VERSION = 1
BUSY_S = 10.0
"""How long to wait for another process that writes to the same file. Ours: a group commit takes milliseconds."""

SCHEMA = f"""
CREATE TABLE responses (
    n INTEGER PRIMARY KEY,
    owner TEXT NOT NULL,
    response_id TEXT NOT NULL,
    previous_id TEXT,
    created_at INTEGER NOT NULL,
    deleted INTEGER NOT NULL DEFAULT 0,
    n_output INTEGER NOT NULL,
    response BLOB NOT NULL,
    UNIQUE (owner, response_id)
);
CREATE INDEX responses_by_parent ON responses (owner, previous_id) WHERE previous_id IS NOT NULL;
CREATE INDEX responses_by_age ON responses (created_at);
CREATE TABLE items (
    record INTEGER NOT NULL REFERENCES responses (n) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    owner TEXT NOT NULL,
    item_id TEXT,
    item BLOB NOT NULL
);
CREATE UNIQUE INDEX items_in_order ON items (record, position);
CREATE INDEX items_by_id ON items (owner, item_id) WHERE item_id IS NOT NULL;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""

CHAIN = """
WITH RECURSIVE chain (n, previous_id, depth) AS (
    SELECT n, previous_id, 0 FROM responses WHERE owner = :owner AND response_id = :id AND NOT deleted
    UNION ALL
    SELECT r.n, r.previous_id, depth + 1 FROM chain JOIN responses r
        ON r.owner = :owner AND r.response_id = chain.previous_id
)
"""

EXPIRE = """
WITH RECURSIVE needed (n, owner, previous_id) AS (
    SELECT parent.n, parent.owner, parent.previous_id FROM responses child JOIN responses parent
        ON parent.owner = child.owner AND parent.response_id = child.previous_id
        WHERE child.created_at >= :cutoff AND parent.created_at < :cutoff
    UNION
    SELECT r.n, r.owner, r.previous_id FROM needed JOIN responses r
        ON r.owner = needed.owner AND r.response_id = needed.previous_id
)
DELETE FROM responses WHERE created_at < :cutoff AND n NOT IN (SELECT n FROM needed)
"""


def open_writer(path: Path, retention_days: float) -> sqlite3.Connection:
    """The one connection that writes: the file made if there is none, checked, and rid of what has expired.

    Raises:
        StoreError: names the file and what is the matter with it.
    """
    try:
        _make(path)
        connection = _connect(path)
    except (OSError, sqlite3.Error) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else exc
        raise StoreError(f"The store {path} cannot be opened: {reason}. Choose another file with --store.") from None
    try:
        _prepare(connection, path)
        connection.execute(EXPIRE, {"cutoff": time.time() - retention_days * 86400})
    except sqlite3.Error as exc:
        connection.close()
        raise StoreError(f"The store {path} cannot be used: {exc}. Choose another file with --store.") from None
    except StoreError:
        connection.close()
        raise
    return connection


def open_reader(path: Path) -> sqlite3.Connection:
    """A connection that reads while the other writes. Raises ``StoreError``."""
    try:
        connection = _connect(path)
        connection.execute("PRAGMA query_only = ON")
    except sqlite3.Error as exc:
        raise StoreError(f"The store {path} cannot be read: {exc}.") from None
    return connection


def _make(path: Path) -> None:
    """Conversations are private: the file is for its user only, and so is each folder made on the way."""
    missing = [folder for folder in path.parents if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # SQLite gives -wal and -shm the same mode


def _connect(path: Path) -> sqlite3.Connection:
    # Threads take turns with it: one at a time, not always the same one.
    return sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    _check(connection, path)  # before anything is written to what may not be ours
    [mode] = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreError(
            f"The store {path} cannot have a write-ahead log (its journal mode is {mode}): use a local disk."
        )
    # WAL's usual NORMAL does not sync at a commit: a power cut could take back a response whose terminal event said
    # that it is stored. FULL syncs each commit; group commits share the cost.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("BEGIN IMMEDIATE")
    if not _check(connection, path):  # again: another process may have been opening the same new file
        for statement in SCHEMA.split(";")[:-1]:
            connection.execute(statement)
    connection.execute("COMMIT")


def _check(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the file holds a store that this version knows; it may also be empty."""
    [version] = connection.execute("PRAGMA user_version").fetchone()
    [application] = connection.execute("PRAGMA application_id").fetchone()
    [n_tables] = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if not (version or application or n_tables):
        return False
    if application != APPLICATION_ID:
        raise StoreError(f"{path} is another program's database. Choose another file with --store.")
    if version != SCHEMA_VERSION:
        raise StoreError(
            f"The store {path} has schema version {version}, but this Turntape knows version {SCHEMA_VERSION}. "
            "Use the Turntape that wrote it, or choose another file with --store."
        )
    return True


def insert(connection: sqlite3.Connection, record: Record) -> None:
    """Add ``record``. Raises ``StoreError`` if its id is taken or its parent is gone."""
    if record.previous_id is not None and not _exists(connection, record.owner, record.previous_id):
        raise parent_gone(record.previous_id)
    cursor = connection.execute(
        "INSERT INTO responses (owner, response_id, previous_id, created_at, n_output, response)"
        " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (
            record.owner,
            record.response_id,
            record.previous_id,
            record.created_at,
            record.n_output,
            record.response,
        ),
    )
    if not cursor.rowcount:
        raise taken(record.response_id)
    connection.executemany(
        "INSERT INTO items (record, position, owner, item_id, item) VALUES (?, ?, ?, ?, ?)",
        [(cursor.lastrowid, n, record.owner, item_id(item), item) for n, item in enumerate(record.items)],
    )


def _exists(connection: sqlite3.Connection, owner: str, response_id: str) -> bool:
    found = connection.execute("SELECT 1 FROM responses WHERE owner = ? AND response_id = ?", (owner, response_id))
    return found.fetchone() is not None


def chain(connection: sqlite3.Connection, response_id: str, owner: str) -> tuple[bytes, ...] | None:
    """Every item of the chain, oldest first; None if there is none, or if a link of it is missing."""
    rows = connection.execute(  # one statement, so that no other process can delete half of what it finds
        CHAIN + "SELECT previous_id, item FROM chain LEFT JOIN items ON record = n ORDER BY depth DESC, position",
        {"owner": owner, "id": response_id},
    ).fetchall()
    if not rows or rows[0][0] is not None:
        return None
    return tuple(item for _, item in rows if item is not None)


def newest_items(connection: sqlite3.Connection, item_ids: Sequence[str], owner: str) -> tuple[bytes | None, ...]:
    """The newest item of each id, None where there is none."""
    found: list[bytes | None] = []
    for name in item_ids:
        row = connection.execute(
            "SELECT item FROM items JOIN responses ON record = n"
            " WHERE items.owner = ? AND item_id = ? AND NOT deleted ORDER BY n DESC, position DESC LIMIT 1",
            (owner, name),
        ).fetchone()
        found.append(None if row is None else row[0])
    return tuple(found)


def response(connection: sqlite3.Connection, response_id: str, owner: str) -> StoredResponse | None:
    connection.execute("BEGIN")  # one snapshot: another process may delete between the two reads
    try:
        row = connection.execute(
            "SELECT response, n_output FROM responses WHERE owner = ? AND response_id = ? AND NOT deleted",
            (owner, response_id),
        ).fetchone()
        items = chain(connection, response_id, owner)
    finally:
        connection.execute("COMMIT")
    return None if row is None or items is None else stored_response(row[0], items, row[1])


def remove(connection: sqlite3.Connection, response_id: str, owner: str) -> bool:
    """Hide the record, then drop it and each hidden ancestor that nothing continues any more."""
    hidden = connection.execute(
        "UPDATE responses SET deleted = 1 WHERE owner = ? AND response_id = ? AND NOT deleted", (owner, response_id)
    )
    if not hidden.rowcount:
        return False
    name: str | None = response_id
    while name is not None:
        row = connection.execute(
            "DELETE FROM responses WHERE owner = :owner AND response_id = :id AND deleted AND NOT EXISTS"
            " (SELECT 1 FROM responses child WHERE child.owner = :owner AND child.previous_id = :id)"
            " RETURNING previous_id",
            {"owner": owner, "id": name},
        ).fetchone()
        name = None if row is None else row[0]
    return True
