"""The evidence in a running container: read its progress, end its payload, and bring the evidence home.

Nothing can be taken out of a container that has ended, so the Job's script seals the evidence (`ended` holds its digest
and the payload's exit code), waits, and goes when it sees `collected`. The digest is of the lines of `sha256sum` over
every evidence file, sorted by path; it is computed again from what arrived.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from orchestrate.backends.kubernetes_api import Api, Budget
from orchestrate.backends.kubernetes_client import ApiError

__all__ = ["MARKS", "Container", "EvidenceError", "Tail", "evidence_sha256", "json_lines"]

MARKS = ("collected", "ended", "ended.new", "payload.pid")
"""Files of the Job's script in the evidence folder: no evidence."""

MAX_BYTES = 4 << 30
MAX_PACKED_BYTES = 1 << 30
MAX_FILES = 100_000
_TAIL_BYTES = 1 << 18


class EvidenceError(Exception):
    """What arrived is not what was sealed, or is nothing that may be unpacked."""


@dataclass(frozen=True, slots=True)
class Tail:
    """New bytes of `node.jsonl`, and what the script said at the end of the payload (None before that)."""

    data: bytes
    ended: str | None


@dataclass(frozen=True, slots=True)
class Container:
    """The one container of a Job's pod."""

    api: Api
    namespace: str
    pod: str
    name: str = "node"

    def tail(self, offset: int, budget: Budget) -> Tail:
        """What was appended to the progress since `offset`, and whether the payload has ended.

        Two small programs of the image, nothing more: the node is measuring.
        """
        script = (
            '[ -f "$EVIDENCE_DIR/node.jsonl" ] && '
            f'tail -c "+$0" "$EVIDENCE_DIR/node.jsonl" 2>/dev/null | head -c {_TAIL_BYTES}; '
            'if [ -e "$EVIDENCE_DIR/ended" ]; then cat "$EVIDENCE_DIR/ended" >&2; fi'
        )
        data = bytearray()
        done = self._shell(script, str(offset + 1), budget=budget, write=data.extend)
        return Tail(bytes(data), done.strip() or None)

    def end_payload(self, budget: Budget) -> bool:
        """SIGTERM to the payload; the script then seals the evidence and waits. False when it has ended already.

        A payload that is about to start is waited for, some seconds: told too early, it would run to its limit.
        """
        script = (
            "for i in 1 2 3 4 5 6 7 8 9 10; do "
            'if [ -e "$EVIDENCE_DIR/ended" ]; then echo ended; exit 0; fi; '
            'pid=`cat "$EVIDENCE_DIR/payload.pid" 2>/dev/null` && kill -TERM "$pid" && echo told && exit 0; '
            "sleep 1; done; exit 1"
        )
        data = bytearray()
        self._shell(script, budget=budget, write=data.extend)
        return b"told" in data

    def acknowledge(self, budget: Budget) -> None:
        """The evidence is home: the container need not wait any longer."""
        self._shell('touch "$EVIDENCE_DIR/collected"', budget=budget)

    def fetch(self, folder: Path, budget: Budget, *, root: str = "") -> str:
        """Bring the evidence (or the folder `root` in the container) into the new or empty `folder`; its digest.

        Raises `EvidenceError` for a stream that is damaged, too large, or leads out of the folder.
        """
        with tempfile.TemporaryFile() as packed:
            size = 0

            def write(data: bytes) -> None:
                nonlocal size
                size += len(data)
                if size > MAX_PACKED_BYTES:
                    raise EvidenceError(f"the evidence is larger than {MAX_PACKED_BYTES} bytes, packed")
                packed.write(data)

            self._shell('exec "$PYTHON" -c "$0" "$1"', _PACK, root, budget=budget, write=write)
            packed.seek(0)
            return _unpack(packed, folder)

    def _shell(self, script: str, *arguments: str, budget: Budget, write: Any = lambda _data: None) -> str:
        command = ["/bin/sh", "-c", script, *arguments]
        done = self.api.run(self.namespace, self.pod, self.name, command, write, budget)
        if done.code != 0:
            words = " ".join(done.stderr.split())[-300:]
            raise ApiError(500, "CommandFailed", f"a command in pod {self.pod} ended with {done.code}: {words}")
        return done.stderr


def evidence_sha256(folder: Path) -> str:
    """The digest of the evidence in `folder`, as the Job's script computes it."""
    lines = []
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not path.is_symlink() and name not in MARKS:
            with path.open("rb") as file:
                lines.append((f"./{name}".encode(), hashlib.file_digest(file, "sha256").hexdigest()))
    return _digest(lines)


def json_lines(data: bytes) -> Iterator[Mapping[str, Any]]:
    """The objects on whole lines; other lines are passed over."""
    for line in data.splitlines():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value


def _digest(lines: list[tuple[bytes, str]]) -> str:
    listing = b"\n".join(digest.encode() + b"  " + name for name, digest in sorted(lines))
    return hashlib.sha256(listing).hexdigest()


def _unpack(packed: IO[bytes], folder: Path) -> str:
    folder.mkdir(mode=0o700, exist_ok=True)
    total = 0
    lines: list[tuple[bytes, str]] = []
    try:
        with tarfile.open(fileobj=packed, mode="r:gz") as tar:
            for member in tar:
                name = _safe_name(member)
                total += member.size
                if total > MAX_BYTES or len(lines) >= MAX_FILES:
                    raise EvidenceError(f"the evidence has more than {MAX_FILES} files or {MAX_BYTES} bytes")
                lines.append((f"./{name}".encode(), _write(tar, member, folder / name)))
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError) as error:
        raise EvidenceError(f"the evidence did not arrive whole: {error}") from error
    return _digest([line for line in lines if line[0].decode().removeprefix("./") not in MARKS])


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> str:
    source = cast("IO[bytes]", tar.extractfile(member))  # a regular file has one
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with path.open("xb") as file:
        while block := source.read(1 << 20):
            digest.update(block)
            file.write(block)
    if file_size := path.stat().st_size - member.size:
        raise EvidenceError(f"{member.name!r} is {abs(file_size)} bytes off its size")
    return digest.hexdigest()


def _safe_name(member: tarfile.TarInfo) -> str:
    path = PurePosixPath(member.name)
    if not member.isreg() or path.is_absolute() or not path.parts or ".." in path.parts:
        raise EvidenceError(f"the evidence holds {member.name[:200]!r}, which is no file of its folder")
    return path.as_posix()


_PACK = """
import os, sys, tarfile
root = sys.argv[1] or os.environ["EVIDENCE_DIR"]
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|gz", format=tarfile.PAX_FORMAT) as tar:
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(folder, name)
            inside = os.path.relpath(path, root)
            if inside in ("collected", "ended.new", "payload.pid") or os.path.islink(path) or not os.path.isfile(path):
                continue
            with open(path, "rb") as file:
                member = tar.gettarinfo(arcname=inside, fileobj=file)
                member.uid = member.gid = 0
                member.uname = member.gname = ""
                tar.addfile(member, file)
"""
"""Run by the image's own Python: an image need not have tar. The evidence folder, or the one named, goes to stdout."""
