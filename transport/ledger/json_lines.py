"""A ledger as JSON Lines: one object for each record, appended."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import cattrs
import orjson
from attrs import asdict

from .record import LedgerError, UsageRecord

_converter = cattrs.Converter()


class JsonLinesSink:
    """See ``Sink``. Several servers may append to one file; a line is whole or not there."""

    def __init__(self, path: Path) -> None:
        """The ledger in ``path``, made if it is not there. Raises ``LedgerError``."""
        self.path = path.absolute()
        try:
            # also to read: the end of a file that a power cut left without its last newline is looked at
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise LedgerError(
                f"The ledger {self.path} cannot be opened: {exc.strerror}. Choose another with --ledger."
            ) from None

    def write(self, records: Sequence[UsageRecord]) -> None:
        lines = b"".join(orjson.dumps(asdict(record), option=orjson.OPT_APPEND_NEWLINE) for record in records)
        try:
            self._lock()  # so that nobody else's lines are cut off below
            try:
                self._append(lines)
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)
        except OSError as exc:
            raise LedgerError(f"The ledger {self.path} cannot be written: {exc.strerror}.") from None

    def _append(self, lines: bytes) -> None:
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            lines = b"\n" + lines
        try:
            while lines:
                lines = lines[os.write(self._file, lines) :]
        except OSError:
            os.ftruncate(self._file, size)  # all or none: the whole batch comes again
            raise

    def _lock(self) -> None:
        """Raises ``BlockingIOError`` if others hold it for too long: a write takes milliseconds."""
        for _ in range(99):
            with contextlib.suppress(BlockingIOError):
                return fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            time.sleep(0.01)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        os.close(self._file)


def read(path: Path, since: float) -> Iterator[UsageRecord]:
    """Every record from ``since`` on, seconds since 1970. A line that a power cut left unfinished is passed over.

    Raises:
        LedgerError: the file cannot be read, or a line is no record; names it.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    value = orjson.loads(line)
                except orjson.JSONDecodeError:
                    continue
                try:
                    record = _converter.structure(value, UsageRecord)
                except Exception:  # noqa: BLE001 - cattrs raises whatever a wrong value makes it raise
                    raise LedgerError(
                        f"{path}:{number}: this is no usage record; remove the line, or name another file."
                    ) from None
                if record.at >= since:
                    yield record
    except OSError as exc:
        raise LedgerError(f"The ledger {path} cannot be read: {exc.strerror}.") from None
