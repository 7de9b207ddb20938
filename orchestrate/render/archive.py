"""The harness as one archive: the same files give the same bytes, and its digest names what runs on the node."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from orchestrate.errors import RenderError

__all__ = ["CHUNK_BYTES", "HarnessArchive", "harness_archive"]

CHUNK_BYTES = 700 * 1024
"""Raw bytes of one chunk: 1 MiB is the limit of a ConfigMap, and base64 makes four bytes of three."""

_SOURCE_SUFFIXES = frozenset({".py", ".json", ".txt"})
"""What the harness is made of. Whatever else lies in its folder stays here: an editor's copy, a note, evidence."""


@dataclass(frozen=True)
class HarnessArchive:
    """`gz` is the gzipped tar; `sha256` is of the tar inside it, which no version of zlib can change."""

    gz: bytes
    sha256: str

    @cached_property
    def chunks(self) -> tuple[bytes, ...]:
        """The archive in pieces that fit a ConfigMap each, in order."""
        return tuple(self.gz[start : start + CHUNK_BYTES] for start in range(0, len(self.gz), CHUNK_BYTES))


def harness_archive(source: Path) -> HarnessArchive:
    """The source files under `source` (the folder `harness`), sorted by path, without owners and times.

    Raises:
        RenderError: there is none, one can not be read, or something there is a symbolic link, which would carry
            whatever it leads to.
    """
    files = sorted(_source_files(source))
    if not files:
        raise RenderError(f"no file of a harness in {source}", remedy="point at the folder `harness` of a checkout")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in files:
            try:
                data = path.read_bytes()
            except OSError as error:
                raise RenderError(f"{path}: {error.strerror}", remedy="restore the harness") from error
            member = tarfile.TarInfo(f"harness/{path.relative_to(source).as_posix()}")
            member.size = len(data)
            member.mode = 0o644
            tar.addfile(member, io.BytesIO(data))
    tar_bytes = buffer.getvalue()
    return HarnessArchive(
        gz=gzip.compress(tar_bytes, compresslevel=9, mtime=0), sha256=hashlib.sha256(tar_bytes).hexdigest()
    )


def _source_files(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name == "__pycache__":
            continue
        if path.is_symlink():
            raise RenderError(
                f"{path} is a symbolic link, and the harness travels without them",
                remedy="put the file itself there, or remove the link",
            )
        if path.is_dir():
            yield from _source_files(path)
        elif path.is_file() and path.suffix in _SOURCE_SUFFIXES:
            yield path
