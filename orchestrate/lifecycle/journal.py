"""The journal of a run: append-only JSON lines, each on disk before what it announces happens.

What a line holds is `orchestrate.receipts.journal_chain`'s to know. A last line without its newline is torn: the crash
came before its fsync returned, so nothing it announces has happened.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from orchestrate.clock import to_wire, utc_now
from orchestrate.errors import JournalDamagedError
from orchestrate.receipts.journal_chain import (
    DamagedLineError,
    JournalRecord,
    JournalView,
    decode_record,
    encode_record,
    parse_journal,
)
from orchestrate.redaction import without_secrets_in

__all__ = [
    "Journal",
    "JournalRecord",
    "JournalView",
    "Observer",
    "is_chained",
    "is_disk_full",
    "last_record",
    "read_journal",
]


class Observer(Protocol):
    """Somebody who watches a journal grow: the console, or a test that strikes at an exact moment."""

    def recording(self, kind: str, facts: Mapping[str, Any]) -> None:
        """A record is about to be written."""

    def recorded(self, record: JournalRecord) -> None:
        """A record is on disk."""


class Journal:
    """Appends records. One writer at a time: whoever holds the lock of the run.

    Args:
        path: `journal.jsonl` of the run directory; made when it is not there.
        observer: told of each record before and after.
        on_disk_full: called once when the disk refuses a record, to make room; the record is then tried again.
        now: the clock.
    """

    def __init__(
        self,
        path: Path,
        *,
        observer: Observer | None = None,
        on_disk_full: Callable[[], None] = lambda: None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._path = path
        self._observer = observer
        self._on_disk_full = on_disk_full
        self._now = now
        is_new = not path.exists()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if is_new:
                _fsync_folder(path.parent)
            self.view = _parse(_read_all(self._fd), path)
            _keep_room(self._fd, self.view.good_bytes)
            if self.view.torn_bytes:
                torn = self.view.torn_bytes
                os.ftruncate(self._fd, self.view.good_bytes)
                _keep_room(self._fd, self.view.good_bytes)
                self.append("note", text=f"dropped a torn last line of {torn} bytes", torn_bytes=torn)
        except BaseException:
            os.close(self._fd)
            raise

    @property
    def head(self) -> str | None:
        """The digest of the last line."""
        return self.view.head

    def append(self, kind: str, **facts: Any) -> JournalRecord:
        """Write one record and return when it is on disk. `OSError` when the disk refuses it twice.

        What looks like a credential in a text is taken out.
        """
        if self._observer is not None:
            self._observer.recording(kind, facts)
        if kind not in _IDENTITIES:
            facts = without_secrets_in(facts)
        record, line = encode_record(len(self.view.records) + 1, to_wire(self._now()), kind, self.head, facts)
        try:
            self._write(line)
        except OSError as error:
            if not is_disk_full(error):
                raise
            self._on_disk_full()
            self._write(line)
        self.view = JournalView((*self.view.records, record), self.view.good_bytes + len(line), 0)
        if self._observer is not None:
            self._observer.recorded(record)
        return record

    def close(self) -> None:
        """Give the room back that was kept for records that never came, and close the file."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            try:
                os.ftruncate(fd, self.view.good_bytes)
            finally:
                os.close(fd)

    def _write(self, line: bytes) -> None:
        # Always at the end of the last good record: what a refused write left there is written over.
        offset = self.view.good_bytes
        view = memoryview(line)
        try:
            while view:
                written = os.pwrite(self._fd, view, offset)
                view, offset = view[written:], offset + written
            os.fsync(self._fd)
        except OSError:
            os.ftruncate(self._fd, self.view.good_bytes)
            raise


def read_journal(path: Path) -> JournalView:
    """Read a journal without changing it.

    A torn last line is left out and counted. Raises `JournalDamagedError`, naming the file and the byte, for any other
    damage, and `FileNotFoundError` when there is no journal.
    """
    return _parse(path.read_bytes(), path)


def last_record(path: Path, *, tail_bytes: int = 4096) -> JournalRecord | None:
    """The last record, read from the end of the file alone and checked by its own `sum`.

    None when that cannot be done (empty, torn, damaged or longer than `tail_bytes`): then the whole journal must be
    read. `FileNotFoundError` when there is no journal.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        start = max(0, size - tail_bytes)
        block = os.pread(fd, size - start, start)
    finally:
        os.close(fd)
    if not block.endswith(b"\n"):
        return None
    before, newline, line = block[:-1].rpartition(b"\n")
    if not newline and (start or before):
        return None
    try:
        return decode_record(line)
    except (ValueError, RecursionError):
        return None


def is_chained(path: Path) -> bool:
    """Whether every line holds the digest of the one before it: a twentieth of the work of reading the records.

    With `last_record`, which checks the last line by its own `sum`, this covers every byte. `OSError` where the file
    can not be read.
    """
    prev = b"null"
    for line in path.read_bytes().split(b"\n")[:-1]:
        if not line.startswith(prev, line.rfind(_PREV_MARK) + len(_PREV_MARK)):
            return False
        prev = b'"' + hashlib.sha256(line).hexdigest().encode() + b'"'
    return True


def is_disk_full(error: OSError) -> bool:
    """Whether this is the disk (or a quota on it) refusing more bytes."""
    return error.errno in {errno.ENOSPC, errno.EDQUOT}


_IDENTITIES = frozenset({"acquiring", "observed"})
"""Our own names and what they are looked up by: a later process must read them exactly as they are."""

_ROOM_BYTES = 256 << 10
_FALLOC_FL_KEEP_SIZE = 1
_PREV_MARK = b'"prev":'


def _parse(data: bytes, path: Path) -> JournalView:
    try:
        return parse_journal(data)
    except DamagedLineError as error:
        raise JournalDamagedError(
            f"{path.parent.name}/{path.name} is damaged at byte {error.place}: "
            f"record {error.number}, bytes {error.begin} to {error.end}: {error.why}",
            remedy="restore the file from a copy; `orchestrate audit` finds what the run may have left without it",
        ) from error


def _read_all(fd: int) -> bytes:
    parts = []
    offset = 0
    while part := os.pread(fd, 1 << 20, offset):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def _keep_room(fd: int, offset: int) -> None:
    # Blocks beyond the end of the file: nobody else can take them, and the file does not look longer. Where the file
    # system can not, the reserve file of the run directory has to do.
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate(fd, _FALLOC_FL_KEEP_SIZE, ctypes.c_long(offset), ctypes.c_long(_ROOM_BYTES))


def _fsync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
