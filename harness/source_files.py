"""The source that travels: unpacked, pinned by digest file by file, and compared at the end."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tarfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from harness.errors import InputError

__all__ = ["Watch", "changed_files", "pin_files", "remove", "unpack", "written_name"]

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
                member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
            tar.extractall(into, members, **_FILTER)  # noqa: S202  # every member was checked
    except (tarfile.TarError, OSError, EOFError) as error:
        raise InputError(f"the source archive {archive.name} can not be unpacked: {error}", remedy=_REMEDY) from error


def pin_files(root: Path) -> dict[str, str]:
    """Path below `root` -> SHA-256, for every file that is there; a link is pinned by its target's text."""
    found = {path.relative_to(root).as_posix(): _pin(path) for path in sorted(root.rglob("*"))}
    return {name: digest for name, digest in found.items() if digest is not None}


def _pin(path: Path) -> str | None:
    """The digest of a plain file, or of a link's target as it is spelled (`Path.readlink` would shorten it).

    None for anything else: a read of a FIFO would never end.
    """
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return hashlib.sha256(b"link " + os.fsencode(os.readlink(path))).hexdigest()
    return hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(mode) else None


def changed_files(root: Path, pins: Mapping[str, str]) -> tuple[str, ...]:
    """Which of the pinned files are no longer what they were; what came into being beside them does not count."""
    changed = []
    for name, digest in pins.items():
        try:
            same = _pin(root / name) == digest
        except OSError:
            same = False
        if not same:
            changed.append(name)
    return tuple(changed)


class Watch:
    """The files below `root` as they are now: which of them were written to, replaced, removed or put there since.

    A file that was another one in between and reads as before is found as well: the kernel stamps every change of a
    file or of its name with a time that no program can set back. A folder is found where it is another one, and where
    its own name changed, but for one into which, or out of which, something was put since: then its time tells nothing.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen = self._look()

    def changed(self, ignoring: Collection[str] = (), *, added: bool = True) -> tuple[str, ...]:
        """Paths below the root that are not as they were, but for those in (or below) `ignoring`; a folder ends in '/'.

        Where `added` is False, what was put there does not count.
        """
        now = self._look()
        names = self._seen.keys() | now.keys() if added else self._seen.keys()
        return tuple(
            written_name(name)
            for name in sorted(names)
            if not _is_same(self._seen.get(name), now.get(name))
            and not any(name == each or name.startswith(f"{each}/") for each in ignoring)
        )

    def added(self) -> tuple[str, ...]:
        """The files that were put there, byte code and caches left out."""
        new = (name for name in self._look() if name not in self._seen and not name.endswith("/"))
        return tuple(written_name(name) for name in new if not _is_cache(name))

    def accept(self) -> None:
        """From now on what is there is as it should be."""
        self._seen = self._look()

    def accept_folders(self) -> None:
        """From now on the folders that were there are as they should be, and what was put into them."""
        self._seen |= {name: at for name, at in self._look().items() if name.endswith("/") and name in self._seen}

    def _look(self) -> dict[str, _Stamp]:
        found: dict[str, _Stamp] = {}
        for folder, folders, files in os.walk(self._root):
            for name in (*files, *folders):
                path = Path(folder, name)
                try:
                    status = path.lstat()
                except OSError:  # gone since it was listed
                    continue
                is_folder = stat.S_ISDIR(status.st_mode)
                named = path.relative_to(self._root).as_posix() + ("/" if is_folder else "")
                found[named] = _Stamp(
                    status.st_ino, status.st_ctime_ns, status.st_mtime_ns, 0 if is_folder else status.st_size, is_folder
                )
        return found


class _Stamp(NamedTuple):
    """Of a file or folder; times in nanoseconds, `changed_ns` the kernel's own."""

    inode: int
    changed_ns: int
    modified_ns: int
    size: int
    is_folder: bool


def _is_same(before: _Stamp | None, now: _Stamp | None) -> bool:
    if before is None or now is None or not (before.is_folder and now.is_folder):
        return before == now
    return before.inode == now.inode and (before.changed_ns == now.changed_ns or before.modified_ns != now.modified_ns)


_CACHES = frozenset({"__pycache__", ".pytest_cache"})


def written_name(name: str) -> str:
    """A file name as text that any record can hold, also where its bytes are not UTF-8."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def remove(path: Path) -> None:
    """Remove a folder with all that is in it, or whatever else is there; a link is not followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _is_cache(name: str) -> bool:
    return not _CACHES.isdisjoint(PurePosixPath(name).parts)


# Debian 12's Python has no filters for archives yet, so that the check below is our own; where they are, both hold. Not
# `data`: it shortens the targets of links, and what is unpacked is not what is pinned.
_FILTER: Any = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}


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
