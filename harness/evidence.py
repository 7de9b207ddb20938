"""The evidence of one cell: rows of JSON, written as they are measured.

`schemas/evidence-1.json` describes every row and docs/evidence.md explains them. The rows of a cell are one `cell` row,
then `warmup` and `measure` rows in the order of time, then one `end` row; a cell that was cut short has no `end` row.
No token and no path is in them: lengths, features, digests, times.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

__all__ = ["EVIDENCE_SCHEMA", "EvidenceFile", "read_rows", "utc_now"]

EVIDENCE_SCHEMA = "harness.evidence/1"


class EvidenceFile:
    """The rows of one cell on disk. A row is in the file, for any reader, when `write` returns."""

    def __init__(self, path: Path) -> None:
        """Create `path`, which must not exist: rows of two runs are never mixed."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._rows = 0

    @property
    def rows(self) -> int:
        """How many rows have been written."""
        return self._rows

    def write(self, row: str, **fields: Any) -> None:
        """Append a row of kind `row`.

        Raises:
            ValueError: a number in it is not finite; evidence holds none such.
        """
        record = {"schema": EVIDENCE_SCHEMA, "row": row, "at": utc_now(), **fields}
        line = json.dumps(record, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        _write_all(self._file, line)
        self._rows += 1

    def close(self) -> None:
        """Put the rows on the disk itself and close the file."""
        os.fsync(self._file)
        os.close(self._file)


def read_rows(path: Path) -> tuple[dict[str, Any], ...]:
    """The rows of a cell, none where there is no file; a torn last line is left out."""
    if not path.exists():
        return ()
    return tuple(json.loads(line) for line in path.read_bytes().split(b"\n")[:-1])


def utc_now() -> str:
    """The time as RFC 3339 in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]
