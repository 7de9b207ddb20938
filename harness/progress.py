"""`node.jsonl` of a node under which others run: what it says while it works, and whether it alone said it."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

from harness.evidence import utc_now
from harness.source_files import remove

__all__ = ["Progress"]


class Progress:
    """The lines of a file that this process alone appends to; its descriptor is held, whatever becomes of its name."""

    def __init__(self, path: Path) -> None:
        """Create `path`, which must not exist."""
        self._path = path
        self._told = b""
        self._create(path)

    def write(self, event: str, **fields: Any) -> dict[str, Any]:
        """Append one event; fields that are None are left out. Returns what was written."""
        kept = {name: value for name, value in fields.items() if value is not None}
        record = {"at": utc_now(), "event": event, **kept}
        self._append(json.dumps(record).encode() + b"\n")
        return record

    def is_own(self) -> bool:
        """Whether nobody else wrote to the file, took it away or put another one in its place, undone or not."""
        try:
            now = self._path.lstat()
        except OSError:
            return False
        held = os.fstat(self._file)
        same = (now.st_ino, now.st_dev, now.st_ctime_ns) == (held.st_ino, held.st_dev, self._changed_ns)
        return same and os.pread(self._file, len(self._told) + 1, 0) == self._told

    def restore(self) -> None:
        """Put a new file, of the own lines alone, in the place of what is there."""
        told, self._told = self._told, b""
        held = self._file
        beside = self._path.with_name(f".{secrets.token_hex(8)}")
        self._create(beside)
        os.close(held)  # not before: a reader knows the new file by its inode
        self._append(told)
        if self._path.is_dir():
            remove(self._path)
        beside.replace(self._path)
        self._changed_ns = os.fstat(self._file).st_ctime_ns

    def _create(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o644)
        self._changed_ns = os.fstat(self._file).st_ctime_ns

    def _append(self, data: bytes) -> None:
        self._told += data
        while data:
            data = data[os.write(self._file, data) :]
        self._changed_ns = os.fstat(self._file).st_ctime_ns
