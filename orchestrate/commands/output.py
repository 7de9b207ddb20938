"""The file that a command was asked to write: there whole, or what was there before."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

from orchestrate.errors import UsageError

__all__ = ["write_output", "write_output_by"]


def write_output(path: Path, data: bytes) -> None:
    """Write `data` to `path`, whole or not at all; `UsageError` where it can not be."""
    write_output_by(path, lambda beside: beside.write_bytes(data))


def write_output_by(path: Path, write: Callable[[Path], object]) -> None:
    """Have `write` fill a file beside `path`, then put that in its place; a device or a pipe is written to as it is."""
    try:
        target = path.resolve()
        if target.exists() and not target.is_file():
            write(target)
            return
        beside = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
        try:
            write(beside)
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{path} can not be written: {error.strerror}", remedy="choose another --output") from error
