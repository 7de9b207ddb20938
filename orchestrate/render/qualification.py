"""The files of a qualification as they travel to a node: what it runs, and the source of one commit that it runs on."""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import dataclass
from pathlib import Path

from orchestrate.errors import RenderError, UsageError
from orchestrate.render.archive import CHUNK_BYTES

__all__ = ["MAX_GROUPS_BYTES", "MAX_SOURCE_BYTES", "MAX_SOURCE_CHUNKS", "QualificationFiles"]

MAX_SOURCE_CHUNKS = 24
"""How many ConfigMaps may carry a source: each is an object that the cluster's own database has to hold."""

MAX_SOURCE_BYTES = MAX_SOURCE_CHUNKS * CHUNK_BYTES
"""The largest gzipped source that travels in ConfigMaps: 16.4 MiB."""

MAX_GROUPS_BYTES = CHUNK_BYTES
"""The largest file of groups: it travels in a ConfigMap of its own."""

_GZIP = 31
"""zlib's number for a gzip wrapper; it writes no time, so that the same bytes give the same archive."""


@dataclass(frozen=True, slots=True)
class QualificationFiles:
    """`groups` tells the node what to run, `archive` is the tar of the source that it runs on.

    `claim` is `pvc:CLAIM[/FOLDER]` where the archive lies on a volume claim already, as its SHA-256 and `.tar`; None
    where it travels from here.
    """

    groups: Path
    archive: Path
    claim: str | None = None

    @property
    def groups_json(self) -> bytes:
        """What the node is to run. `RenderError` where it can not be read."""
        return _read(self.groups)

    @property
    def groups_sha256(self) -> str:
        """Of that file."""
        return hashlib.sha256(self.groups_json).hexdigest()

    @property
    def archive_sha256(self) -> str:
        """The digest that the groups are for; the node compares, and so does whoever verifies."""
        return str(json.loads(self.groups_json)["archive_sha256"])

    @property
    def archive_bytes(self) -> int:
        """The size of the tar."""
        try:
            return self.archive.stat().st_size
        except OSError as error:
            raise _unreadable(self.archive, error) from error

    def groups_text(self) -> str:
        """The groups as the text of a ConfigMap; `UsageError` where they do not fit one."""
        data = self.groups_json
        if len(data) > MAX_GROUPS_BYTES:
            raise UsageError(
                f"the groups of the qualification are {len(data)} bytes, a ConfigMap takes {MAX_GROUPS_BYTES}",
                remedy="name fewer groups, or shorter commands, in the qualification's file",
            )
        return data.decode("ascii")

    def chunks(self) -> tuple[bytes, ...]:
        """The gzipped archive in pieces that fit a ConfigMap each, in order; none where it lies on a claim.

        Raises:
            UsageError: it is larger than `MAX_SOURCE_BYTES`.
        """
        if self.claim is not None:
            return ()
        packer, packed = zlib.compressobj(6, wbits=_GZIP), bytearray()
        try:
            with self.archive.open("rb") as stream:
                while piece := stream.read(1 << 20):
                    packed += packer.compress(piece)
                    if len(packed) > MAX_SOURCE_BYTES:
                        break
        except OSError as error:
            raise _unreadable(self.archive, error) from error
        packed += packer.flush()
        if len(packed) > MAX_SOURCE_BYTES:
            sha256 = self.archive_sha256
            raise UsageError(
                f"the source is {self.archive_bytes} bytes as a tar, and more than {MAX_SOURCE_BYTES} gzipped: that is "
                f"what {MAX_SOURCE_CHUNKS} ConfigMaps of {CHUNK_BYTES} bytes take",
                remedy=f"put `git -c tar.umask=0022 archive --format=tar COMMIT` on a volume claim as {sha256}.tar and "
                "give --source-claim pvc:CLAIM[/FOLDER]; or keep what no group needs out with `export-ignore` in "
                ".gitattributes",
            )
        return tuple(bytes(packed[start : start + CHUNK_BYTES]) for start in range(0, len(packed), CHUNK_BYTES))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> RenderError:
    return RenderError(f"{path}: {error.strerror}", remedy="launch again: the run directory lost a file of its payload")
