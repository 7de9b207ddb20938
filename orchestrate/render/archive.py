"""The harness as one archive: the same files give the same bytes, and its digest names what runs on the node."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from orchestrate.errors import RenderError

__all__ = ["CHUNK_BYTES", "HarnessArchive", "harness_archive"]

CHUNK_BYTES = 700 * 1024
"""Raw bytes of one chunk: 1 MiB is the limit of a ConfigMap, and base64 makes four bytes of three."""

_SKIPPED_FOLDERS = frozenset({"__pycache__"})
_SKIPPED_SUFFIXES = frozenset({".pyc", ".pyo"})


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
    """The files under `source` (the folder `harness`), sorted by path, without owners, times or compiled code."""
    files = sorted(
        path
        for path in source.rglob("*")
        if path.is_file()
        and path.suffix not in _SKIPPED_SUFFIXES
        and _SKIPPED_FOLDERS.isdisjoint(path.relative_to(source).parts)
    )
    if not files:
        raise RenderError(f"no file of a harness in {source}", remedy="point at the folder `harness` of a checkout")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in files:
            data = path.read_bytes()
            member = tarfile.TarInfo(f"harness/{path.relative_to(source).as_posix()}")
            member.size = len(data)
            member.mode = 0o644
            tar.addfile(member, io.BytesIO(data))
    tar_bytes = buffer.getvalue()
    return HarnessArchive(
        gz=gzip.compress(tar_bytes, compresslevel=9, mtime=0), sha256=hashlib.sha256(tar_bytes).hexdigest()
    )
