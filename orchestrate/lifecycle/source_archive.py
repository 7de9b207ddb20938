"""The source of one commit as an archive: what travels to a node, by digest, whatever lies in the working tree."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryFile
from typing import IO, Any, cast

from orchestrate.errors import UsageError

__all__ = ["ArchivedSource", "archive_commit"]

_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_NOT_UTF8 = re.compile("[\ud800-\udfff]")
_TIMEOUT_S = 300
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class ArchivedSource:
    """`git archive` of one commit.

    Attributes:
        commit, tree: the tested commit and its tree.
        parents: the commit's parents: two where it is a merge.
        head, base: the change that was asked for; None where nobody named them.
        path, sha256, size: the tar file; the path holds for as long as the file that it was written to is open.
        files: path to SHA-256 of each file in it.
        left_out: paths of the tree that are not in it (`export-ignore`, submodules): nothing is said about them.
        dirty: whether the working tree differs from the commit: what differs does not travel.
    """

    commit: str
    tree: str
    parents: tuple[str, ...]
    head: str | None
    base: str | None
    path: Path
    sha256: str
    size: int
    files: Mapping[str, str]
    left_out: tuple[str, ...]
    dirty: bool

    def as_json(self) -> dict[str, Any]:
        """As the plan states it."""
        return {
            "commit": self.commit,
            "tree": self.tree,
            "parents": list(self.parents),
            "head": self.head,
            "base": self.base,
            "archive_sha256": self.sha256,
            "archive_bytes": self.size,
            "files": dict(self.files),
            "left_out": list(self.left_out),
            "working_tree_differs": self.dirty,
        }


def archive_commit(
    repository: Path,
    commit: str,
    file: IO[bytes],
    environ: Mapping[str, str],
    *,
    head: str | None = None,
    base: str | None = None,
) -> ArchivedSource:
    """Write the archive of the whole `commit` to the empty `file`, which needs no name: for one commit the same bytes.

    `head` and `base` name the change that the commit is of: it must be that head, or the merge of exactly it into that
    base, whose first parent is the base.

    Raises:
        UsageError: there is no such repository or commit, an object of it is not what its id says, or the commit is not
            of that change.
    """
    git = _Git(repository, environ)
    found = git.commit(commit)
    head_sha, base_sha = (None if name is None else git.commit(name) for name in (head, base))
    plain = git.plain()
    tree, parents = _tree_and_parents(plain("cat-file", "commit", found))
    if head_sha is not None and found != head_sha and parents != (base_sha, head_sha):
        merge = "" if base_sha is None else f", nor its merge into {base_sha[:12]} (whose first parent is the base)"
        raise UsageError(
            f"the commit {found[:12]} is not the head {head_sha[:12]}{merge}",
            remedy="name the commit that is tested, its head and, where it is a merge, its base as they are",
        )
    plain("archive", "--format=tar", found, into=file)
    path = Path(f"/proc/self/fd/{file.fileno()}")
    with path.open("rb") as tar:
        sha256 = hashlib.file_digest(tar, "sha256").hexdigest()
    files = _files(path)
    for name in files:
        if _NOT_UTF8.search(name):
            raise UsageError(
                f"the commit {found[:12]} holds {os.fsencode(name)!r:.300}, and that name is not UTF-8",
                remedy="rename the file: receipts name each one",
            )
    rows = [row.partition(b"\t") for row in plain("ls-tree", "-rtz", found).split(b"\0") if row]
    objects = {found: "the commit", tree: "its tree"}
    listed = set()
    for about, _, at in rows:
        _, kind, object_id = about.split()
        if kind != b"tree":
            listed.add(os.fsdecode(at))
        if kind != b"commit":  # that is of a submodule
            objects.setdefault(object_id.decode(), repr(os.fsdecode(at)))
    _hold_to_ids(plain, objects)
    return ArchivedSource(
        commit=found,
        tree=tree,
        parents=parents,
        head=head_sha,
        base=base_sha,
        path=path,
        sha256=sha256,
        size=path.stat().st_size,
        files=files,
        left_out=tuple(sorted(listed - set(files))),
        dirty=git("rev-parse", "--is-inside-work-tree").strip() == b"true" and bool(git("status", "--porcelain")),
    )


@dataclass(frozen=True, slots=True)
class _Git:
    repository: Path
    environ: Mapping[str, str]
    more: Mapping[str, str] = field(default_factory=dict)

    def plain(self) -> _Git:
        """Git on the same objects and nothing else.

        A commit is asked as it is there: no replacement, graft or shallow boundary, and no attribute, filter or line
        ending that this machine or this clone has of its own decides what it holds.
        """
        kind = self("rev-parse", "--show-object-format").decode().strip()
        empty = Path(__file__).parent / "plain_git" / kind
        objects = os.fsdecode(self("rev-parse", "--git-path", "objects").removesuffix(b"\n"))
        more = {
            "GIT_DIR": str(empty),
            "GIT_OBJECT_DIRECTORY": str((self.repository / objects).absolute()),
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_CONFIG_NOSYSTEM": "1",
            "HOME": str(empty),
            "XDG_CONFIG_HOME": str(empty),
        }
        return replace(self, more=more)

    def __call__(self, *arguments: str, into: IO[bytes] | None = None) -> bytes:
        """What git says; nothing where its output goes `into` a file."""
        try:
            done = subprocess.run(
                ["git", "-C", str(self.repository), *arguments],
                env=self._env(), stdin=subprocess.DEVNULL, stdout=into or subprocess.PIPE, stderr=subprocess.PIPE,
                timeout=_TIMEOUT_S, check=True,
            )  # fmt: skip
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode("utf-8", "replace").strip().splitlines() or ["nothing"]
            raise UsageError(
                f"git {arguments[0]} in {self.repository} says: {said[-1][:300]}",
                remedy="name a repository and a commit that is there; what a partial clone lacks has to be fetched",
            ) from error
        except (OSError, subprocess.SubprocessError) as error:
            raise UsageError(f"git can not be asked: {error}", remedy="install git") from error
        return done.stdout or b""

    @contextmanager
    def objects(self, ids: IO[bytes]) -> Iterator[IO[bytes]]:
        """What `git cat-file --batch` says of the `ids`, one a line, while it says it."""
        command = ["git", "-C", str(self.repository), "cat-file", "--batch", "--buffer"]
        with subprocess.Popen(
            command, env=self._env(), stdin=ids, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            try:
                yield cast("IO[bytes]", process.stdout)
            finally:
                process.kill()

    def _env(self) -> dict[str, str]:
        env = {name: value for name, value in self.environ.items() if not name.startswith("GIT_")}
        return env | {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_REPLACE_OBJECTS": "1", "GIT_NO_LAZY_FETCH": "1", **self.more}

    def commit(self, name: str) -> str:
        """The id of the commit that `name` is; a name that looks like an option is none."""
        if not name or name.startswith("-"):
            raise UsageError(f"{name[:100]!r} is no commit", remedy="name a commit, a branch or a tag")
        self("rev-parse", "--git-dir")
        try:
            found = self("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}").decode().strip()
        except UsageError as error:
            raise UsageError(
                f"{name[:100]!r} is no commit of {self.repository}",
                remedy="name a commit, a branch or a tag that is there; one of a shallow clone may have to be fetched",
            ) from error
        if not _SHA.fullmatch(found):
            raise UsageError(f"{name[:100]!r} is no commit", remedy="name a commit, a branch or a tag")
        return found


def _tree_and_parents(commit: bytes) -> tuple[str, tuple[str, ...]]:
    """What the header of a commit object names."""
    header, _, _ = commit.decode("utf-8", "replace").partition("\n\n")
    named = [line.split(" ", 1) for line in header.split("\n") if line.startswith(("tree ", "parent "))]
    return named[0][1], tuple(value for _, value in named[1:])


def _hold_to_ids(git: _Git, objects: Mapping[str, str]) -> None:
    """Hash every object, named by what it is: git takes what lies under an id for what it names.

    What is not there is in no archive either: a partial clone need not have what `export-ignore` leaves out.
    """
    with TemporaryFile() as ids:
        ids.writelines(f"{object_id}\n".encode() for object_id in objects)
        ids.seek(0)
        with git.objects(ids) as said:
            for object_id, name in objects.items():
                if not _is_as_its_id(object_id, said):
                    raise UsageError(
                        f"the object {object_id} ({name:.300}) is not what its id says, or can not be read whole: the "
                        f"repository {git.repository} is damaged",
                        remedy="`git fsck` names what is wrong; qualify from a new clone",
                    )


def _is_as_its_id(object_id: str, said: IO[bytes]) -> bool:
    header = said.readline()
    if header == f"{object_id} missing\n".encode():
        return True
    words = header.split()
    if len(words) != 3:
        return False
    digest = hashlib.new("sha1" if len(object_id) == 40 else "sha256", usedforsecurity=False)
    digest.update(b" ".join(words[1:]) + b"\0")
    left = int(words[2])
    while left and (block := said.read(min(left, _BLOCK))):
        digest.update(block)
        left -= len(block)
    said.read(1)
    return digest.hexdigest() == object_id


def _files(path: Path) -> dict[str, str]:
    """Path to digest, as the node digests what it unpacked: a link by its target, which has to be within the source."""
    files = {}
    with tarfile.open(path, "r:") as tar:
        for member in tar.getmembers():
            if member.issym():
                if _leads_out(member):
                    raise UsageError(
                        f"the commit holds the link {member.name!r:.200}, which leads out of it, "
                        f"to {member.linkname!r:.200}: no node takes such a source",
                        remedy="let it point inside, or keep it out of the archive (`export-ignore` in .gitattributes)",
                    )
                files[member.name] = hashlib.sha256(b"link " + os.fsencode(member.linkname)).hexdigest()
            elif member.isfile():
                content = tar.extractfile(member)
                files[member.name] = hashlib.sha256(content.read() if content else b"").hexdigest()
    return dict(sorted(files.items()))


def _leads_out(link: tarfile.TarInfo) -> bool:
    """Whether a link points outside, or could: by the rule that the node unpacks by."""
    target = PurePosixPath(link.linkname)
    ups = list(target.parts).count("..")
    return target.is_absolute() or ups >= len(PurePosixPath(link.name).parts) or ".." in target.parts[ups:]
