"""A JSON-lines file that somebody else appends to, read as it grows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["GrowingLines"]


class GrowingLines:
    """The lines that were appended to a growing JSON-lines file since the last read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> Iterator[Mapping[str, Any]]:
        """The objects on the lines that were completed since the last call; other lines are passed over."""
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._offset)
                block = stream.read(_READ_BYTES)
        except OSError:
            return
        whole, newline, _ = block.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        for line in whole.splitlines():
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                yield value


_READ_BYTES = 1 << 20
