"""The files of a revision or of a folder, as bytes: what an equivalence compares."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrate.errors import UsageError

__all__ = ["SourceFile", "Tree", "read_folder", "read_revision"]

_MAX_FILES = 50_000
_MAX_BYTES = 1 << 30
_GIT_TIMEOUT_S = 120
_LEFT_OUT = frozenset({".git", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".nox"})


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file. `kind` is `file`, `executable`, `link` (its data is the target) or `submodule` (the commit)."""

    kind: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Tree:
    """All files by their path. `commit` and `tree` are None for a folder, which has no name but its own."""

    name: str
    commit: str | None
    tree: str | None
    files: Mapping[str, SourceFile]


def read_revision(repository: Path, revision: str, environ: Mapping[str, str]) -> Tree:
    """The files of a commit, straight from the object store: no checkout, no filter, no attribute changes them.

    Raises:
        UsageError: `repository` is none, or has no such commit; or the commit is larger than can be compared.
    """
    commit = _git(repository, environ, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    if commit is None:
        raise UsageError(
            f"{revision!r} is neither a folder nor a commit of {repository}",
            remedy="name a commit, a branch, a tag or a folder; --repo says where the repository is",
        )
    name = commit.decode().strip()
    listed = _need(repository, environ, "ls-tree", "-rzl", "--full-tree", name)
    entries = [_entry(line) for line in listed.split(b"\0") if line]
    if len(entries) > _MAX_FILES or sum(size for *_, size in entries) > _MAX_BYTES:
        raise UsageError(f"{revision!r} has more files or bytes than can be compared", remedy="compare smaller folders")
    wanted = sorted({sha for _, kind, sha, _ in entries if kind != "submodule"})
    blobs = _blobs(_need(repository, environ, "cat-file", "--batch", given="".join(f"{sha}\n" for sha in wanted)))
    files = {
        path: SourceFile(kind, sha.encode() if kind == "submodule" else blobs[sha]) for path, kind, sha, _ in entries
    }
    tree = _need(repository, environ, "rev-parse", f"{name}^{{tree}}").decode().strip()
    return Tree(revision, name, tree, files)


def read_folder(folder: Path) -> Tree:
    """The files below a folder, following no link. Caches and git's own folder are left out.

    Raises:
        UsageError: something there can not be read, is neither file nor link, or is larger than can be compared.
    """
    files: dict[str, SourceFile] = {}
    left_bytes = _MAX_BYTES
    try:
        for place, names, leaves in os.walk(folder, onerror=_raise):
            linked = [name for name in names if Path(place, name).is_symlink()]
            names[:] = sorted(name for name in names if name not in _LEFT_OUT and name not in linked)
            for name in (*leaves, *linked):
                path = Path(place, name)
                if path.suffix in {".pyc", ".pyo"}:
                    continue
                found = _on_disk(path, left_bytes)
                left_bytes -= len(found.data)
                files[path.relative_to(folder).as_posix()] = found
                if len(files) > _MAX_FILES:
                    raise UsageError(f"{folder} has more files than can be compared", remedy="name a smaller folder")
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}", remedy="name a folder that can be read") from error
    return Tree(str(folder), None, None, files)


def _on_disk(path: Path, left_bytes: int) -> SourceFile:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return SourceFile("link", os.fsencode(os.readlink(path)))
    if not stat.S_ISREG(status.st_mode):
        raise UsageError(f"{path} is neither a file nor a link", remedy="name a folder of source files")
    if status.st_size > left_bytes:
        raise UsageError(f"{path} is larger than can be compared", remedy="name a folder of source files")
    return SourceFile("executable" if status.st_mode & 0o111 else "file", path.read_bytes())


def _raise(error: OSError) -> None:
    raise error


def _entry(line: bytes) -> tuple[str, str, str, int]:
    """Path, kind, object and size of a line of `git ls-tree -rzl`."""
    about, _, path = line.partition(b"\t")
    mode, kind, sha, size = about.decode().split()
    kinds = {"100755": "executable", "120000": "link"}
    return (
        path.decode("utf-8", "surrogateescape"),
        "submodule" if kind == "commit" else kinds.get(mode, "file"),
        sha,
        0 if size == "-" else int(size),
    )


def _blobs(stream: bytes) -> dict[str, bytes]:
    """Object to content from what `git cat-file --batch` prints."""
    blobs: dict[str, bytes] = {}
    at = 0
    while at < len(stream):
        end = stream.index(b"\n", at)
        match = re.fullmatch(rb"([0-9a-f]+) blob ([0-9]+)", stream[at:end])
        if match is None:
            raise UsageError(f"git has no content for {stream[at:end].decode()!r}", remedy="fetch the whole commit")
        size = int(match[2])
        blobs[match[1].decode()] = stream[end + 1 : end + 1 + size]
        at = end + 1 + size + 1
    return blobs


def _need(repository: Path, environ: Mapping[str, str], *arguments: str, given: str = "") -> bytes:
    answer = _git(repository, environ, *arguments, given=given)
    if answer is None:
        raise UsageError(f"git {arguments[0]} failed in {repository}", remedy="name a repository that git can read")
    return answer


def _git(repository: Path, environ: Mapping[str, str], *arguments: str, given: str = "") -> bytes | None:
    env = {name: value for name, value in environ.items() if not name.startswith("GIT_")}
    env |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_REPLACE_OBJECTS": "1", "GIT_NO_LAZY_FETCH": "1"}
    try:
        answer = subprocess.run(
            ["git", "-C", str(repository), *arguments],
            env=env, input=given.encode(), capture_output=True, timeout=_GIT_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise UsageError(f"git can not be run: {error}", remedy="install git, or compare two folders") from error
    return answer.stdout if answer.returncode == 0 else None
