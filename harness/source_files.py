"""The source that travels: unpacked, pinned by digest file by file, and compared at the end."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from harness.errors import InputError

__all__ = ["changed_files", "pin_files", "unpack"]

MAX_BYTES = 4 << 30
MAX_FILES = 200_000


def unpack(archive: Path, sha256: str, into: Path) -> None:
    """Unpack the tar archive of digest `sha256` below `into`, which must not exist.

    `git archive` makes such archives: regular files, folders and links. A member that would land outside of `into`, a
    device, or more than `MAX_BYTES` or `MAX_FILES` is refused before anything is written.

    Raises:
        InputError: the archive is not that one, is damaged, or holds what no source holds.
    """
    try:
        with archive.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"the source archive {archive.name}: {error.strerror}", remedy=_REMEDY) from error
    if found != sha256:
        raise InputError(
            f"the source archive {archive.name} has the SHA-256 {found}, the plan names {sha256}", remedy=_REMEDY
        )
    try:
        with tarfile.open(archive, "r:") as tar:
            members = tar.getmembers()
            if len(members) > MAX_FILES or sum(member.size for member in members) > MAX_BYTES:
                raise InputError(f"the source archive {archive.name} unpacks to too much", remedy=_REMEDY)
            _check(members, archive.name)
            into.mkdir(parents=True)
            for member in members:
                member.mode &= 0o755  # no set-user-id, nothing that others may write
            tar.extractall(into, members, **_FILTER)  # noqa: S202  # every member was checked
    except (tarfile.TarError, OSError, EOFError) as error:
        raise InputError(f"the source archive {archive.name} can not be unpacked: {error}", remedy=_REMEDY) from error


def pin_files(root: Path) -> dict[str, str]:
    """Path below `root` -> SHA-256, for every file that is there; a link is pinned by its target's text."""
    pins = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            pins[name] = hashlib.sha256(b"link " + str(path.readlink()).encode()).hexdigest()
        elif path.is_file():
            pins[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return pins


def changed_files(root: Path, pins: Mapping[str, str]) -> tuple[str, ...]:
    """Which of the pinned files are no longer what they were; what came into being beside them does not count."""
    changed = []
    for name, digest in pins.items():
        path = root / name
        try:
            data = b"link " + str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
        except OSError:
            changed.append(name)
            continue
        if hashlib.sha256(data).hexdigest() != digest:
            changed.append(name)
    return tuple(changed)


# Debian 12's Python has no filters for archives yet, so that the check below is our own; where they are, both hold.
_FILTER: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


def _check(members: Sequence[tarfile.TarInfo], name: str) -> None:
    """Refuse whatever could land, or point, outside: `..`, absolute names, devices, hard links, links through links."""
    links = {PurePosixPath(member.name) for member in members if member.issym()}
    for member in members:
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts or "\0" in member.name or links & set(path.parents):
            raise _reaches_out(name, member.name)
        if member.issym():
            target = PurePosixPath(member.linkname)
            ups = list(target.parts).count("..")
            if target.is_absolute() or ups >= len(path.parts) or ".." in target.parts[ups:]:
                raise _reaches_out(name, member.name)
        elif not (member.isfile() or member.isdir()):
            raise _reaches_out(name, member.name)


def _reaches_out(archive: str, member: str) -> InputError:
    return InputError(f"the source archive {archive} holds {member[:200]!r}, which no source may hold", remedy=_REMEDY)


_REMEDY = "launch again: the archive is made anew from the commit"
