"""Reading files of a run directory that anybody may have prepared.

Nothing here follows a symbolic link, opens a device or a FIFO, waits, or reads more than it was told to.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from orchestrate.errors import ReceiptError
from orchestrate.receipts.statement import is_safe_name

__all__ = ["Digest", "Listing", "hash_file", "list_files", "open_file", "read_file", "read_lines"]

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Listing:
    """What lies under a folder.

    `files` are the regular files, relative path to size in bytes; `strange` is all that is neither a regular file nor
    a folder, relative path to what it is.
    """

    files: dict[str, int]
    strange: dict[str, str]


class Digest(Protocol):
    """A running hash of `hashlib`."""

    def update(self, data: bytes, /) -> object:
        """Hash `data` too."""

    def hexdigest(self) -> str:
        """The digest so far, in hex."""


@contextmanager
def open_file(root: Path, name: str) -> Iterator[int]:
    """A read-only descriptor of the regular file `name` (a relative path) below `root`.

    Every folder on the way is opened without following links, so that no race can lead outside. Raises
    `ReceiptError` when the path or anything on it is not plain; `FileNotFoundError` when it is not there.
    """
    if not is_safe_name(name):
        raise _refused(root, name, "it is not a plain relative path")
    folders: list[int] = []
    try:
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        folders.append(folder)
        *parents, last = name.split("/")
        for parent in parents:
            folder = os.open(parent, _FLAGS | os.O_DIRECTORY, dir_fd=folder)
            folders.append(folder)
        descriptor = os.open(last, _FLAGS, dir_fd=folder)
        folders.append(descriptor)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _refused(root, name, "it is not a regular file")
        yield descriptor
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _refused(root, name, f"it can not be opened as a plain file ({error.strerror})") from error
    finally:
        for descriptor in reversed(folders):
            os.close(descriptor)


def read_file(root: Path, name: str, *, limit: int) -> bytes:
    """The bytes of a file below `root`, at most `limit` of them; a `ReceiptError` when there are more."""
    with open_file(root, name) as descriptor:
        parts: list[bytes] = []
        left = limit + 1
        while left and (part := os.read(descriptor, min(left, _CHUNK))):
            parts.append(part)
            left -= len(part)
    if not left:
        raise _refused(root, name, f"it is larger than {limit} bytes")
    return b"".join(parts)


def hash_file(root: Path, name: str, *, limit: int) -> str:
    """The SHA-256 (hex) of a file below `root` of at most `limit` bytes; a `ReceiptError` when there are more."""
    digest = hashlib.sha256()
    with open_file(root, name) as descriptor:
        if os.fstat(descriptor).st_size > limit:
            raise _refused(root, name, f"it is larger than {limit} bytes")
        left = limit + 1
        while left and (part := os.read(descriptor, min(left, _CHUNK))):
            digest.update(part)
            left -= len(part)
    if not left:
        raise _refused(root, name, f"it is larger than {limit} bytes")
    return digest.hexdigest()


def read_lines(root: Path, name: str, *, limit: int, line_limit: int, digest: Digest | None = None) -> Iterator[bytes]:
    """The lines of a file below `root`, each with its newline where it has one, without holding the file in memory.

    A line longer than `line_limit` bytes comes in pieces of that size, all but the last without a newline. `digest`
    is fed every byte, so that what was judged and what was hashed are the same. Reading ends after `limit` bytes with
    a `ReceiptError`.
    """
    with open_file(root, name) as descriptor, os.fdopen(os.dup(descriptor), "rb") as stream:
        left = limit
        while line := stream.readline(line_limit):
            left -= len(line)
            if left < 0:
                raise _refused(root, name, f"it is larger than {limit} bytes")
            if digest is not None:
                digest.update(line)
            yield line


def list_files(root: Path, *, limit: int) -> Listing:
    """Everything below `root`, links not followed. A `ReceiptError` beyond `limit` entries."""
    files: dict[str, int] = {}
    strange: dict[str, str] = {}
    folders = [""]
    while folders:
        prefix = folders.pop()
        with os.scandir(root / prefix) as entries:
            for entry in entries:
                name = f"{prefix}{entry.name}"
                about = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(about.st_mode):
                    folders.append(f"{name}/")
                elif stat.S_ISREG(about.st_mode):
                    files[name] = about.st_size
                else:
                    strange[name] = _kind(about.st_mode)
                if len(files) + len(strange) + len(folders) > limit:
                    raise _refused(root, ".", f"it holds more than {limit} entries")
    return Listing(dict(sorted(files.items())), dict(sorted(strange.items())))


# O_NONBLOCK: a FIFO put in place of a file must not make us wait for its writer.
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a character device",
        stat.S_IFBLK: "a block device",
    }
    return kinds.get(stat.S_IFMT(mode), "not a file")


def _refused(root: Path, name: str, why: str) -> ReceiptError:
    return ReceiptError(
        f"{name} in {root.name or root} is refused: {why}",
        remedy="a run directory holds plain files only; look at who put this there",
    )
