"""A JSON-lines file that somebody else appends to, read as it grows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrate.errors import ReceiptError
from orchestrate.receipts.files import open_file

__all__ = ["GrowingLines"]


class GrowingLines:
    """The lines that were appended to a growing JSON-lines file since the last read.

    Whoever else writes in its folder keeps no reader: what is no plain file has no lines, and nothing more is read once
    another file stands in its place or it is shorter than before.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._inode: int | None = None

    def read(self) -> Iterator[Mapping[str, Any]]:
        """The objects on the lines that were completed since the last call; other lines are passed over."""
        try:
            with open_file(self._path.parent, self._path.name) as descriptor:
                status = os.fstat(descriptor)
                if self._inode not in {None, status.st_ino} or status.st_size < self._offset:
                    return
                self._inode = status.st_ino
                block = os.pread(descriptor, _READ_BYTES, self._offset)
        except (OSError, ReceiptError):
            return
        whole, newline, _ = block.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        for line in whole.splitlines():
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                yield value


_READ_BYTES = 1 << 20
