"""What the processes of a local run may leave behind: listening ports, shared-memory files, its temporary folder.

While the run lives, what its members hold is sampled from `/proc`; after they are gone, the same things are looked
for again. A port counts as left only while the very socket (its inode) still listens: another program may use the
number by then. A shared-memory file counts as left while that path has that inode.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from orchestrate.backends.process_table import Process

__all__ = [
    "MARKER",
    "SHARED_MEMORY",
    "Port",
    "SharedFile",
    "TempFolder",
    "TempMark",
    "exists",
    "files_named_after",
    "held_ports",
    "held_shared_files",
    "is_held",
    "listening",
    "shared_files",
]

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # POSIX shared memory lives here on Linux
MARKER = ".orchestrate.json"
"""The file in a run's temporary folder that says whose it is, for those who find it without any other trace."""


@dataclass(frozen=True, slots=True, order=True)
class Port:
    """A listening TCP socket: its port and its inode."""

    number: int
    inode: int


@dataclass(frozen=True, slots=True, order=True)
class SharedFile:
    """A file under `/dev/shm`: its path and its inode."""

    path: str
    inode: int


@dataclass(frozen=True, slots=True)
class TempMark:
    """The content of `MARKER`."""

    run_id: str
    owner: str
    expires_at: str
    run_dir: str


def held_ports(members: Iterable[Process]) -> set[Port]:
    """The listening TCP sockets that these processes hold open."""
    inodes = {inode for process in members for inode in _socket_inodes(process.pid)}
    return {port for port in listening() if port.inode in inodes} if inodes else set()


def listening() -> set[Port]:
    """Every listening TCP socket of this network namespace."""
    ports = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = Path("/proc/net", table).read_text("ascii").splitlines()[1:]
        except FileNotFoundError:  # no IPv6 in this kernel
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN:
                ports.add(Port(int(fields[1].rpartition(":")[2], 16), int(fields[9])))
    return ports


def held_shared_files(members: Iterable[Process]) -> set[SharedFile]:
    """The files under `/dev/shm` that these processes have open or mapped and that still have a name."""
    paths = {path for process in members for path in _shared_paths(process.pid)}
    return {found for path in paths if (found := _shared_file(path)) is not None}


def files_named_after(words: Iterable[str], pids: Iterable[int], since_s: float) -> set[SharedFile]:
    """The files under `/dev/shm` whose name says that they are ours.

    The name holds one of `words` (run id, token); or one of our pids stands in it as a number, as in torch's own
    `torch_<pid>_...`, and the file is of this user, not older than the run (`since_s`, wall clock in seconds), and held
    by no living process: a number in a name is a weak mark, and whoever holds the file after us is somebody else.
    """
    wanted, numbers = tuple(words), {str(pid) for pid in pids}
    found = set()
    for file in shared_files():
        name = Path(file.path).name
        named = any(word in name for word in wanted)
        if named or (numbers & set(_NUMBER.findall(name)) and _made(file, since_s) and not is_held(file)):
            found.add(file)
    return found


def shared_files() -> set[SharedFile]:
    """Every file under `/dev/shm`, at its top level: POSIX allows no folders there."""
    try:
        with os.scandir(SHARED_MEMORY) as entries:
            return {SharedFile(entry.path, entry.inode()) for entry in entries if entry.is_file(follow_symlinks=False)}
    except FileNotFoundError:
        return set()


def is_held(file: SharedFile) -> bool:
    """Whether a living process has the file open or mapped."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208  # names, not paths
    return any(file.path in _shared_paths(pid) for pid in pids)


def exists(file: SharedFile) -> bool:
    """Whether that path still is that file."""
    return _shared_file(file.path) == file


class TempFolder:
    """The temporary folder of one run; its name is chosen before it is made."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, base: Path, run_id: str, token: str) -> TempFolder:
        """The folder of a run below `base`: `orchestrate-<run id>-<8 digits of the token>`."""
        return cls(base / f"orchestrate-{run_id}-{token[:8]}")

    def create(self, mark: TempMark) -> None:
        """Make it, for this user alone, with its marker. `FileExistsError` when something of that name is there."""
        self.path.mkdir(mode=0o700)
        (self.path / MARKER).write_text(json.dumps(asdict(mark), sort_keys=True) + "\n")

    def mark(self) -> TempMark | None:
        """Whose folder it is; None where there is no readable marker."""
        try:
            found = json.loads((self.path / MARKER).read_bytes()[:4096])
            return TempMark(**{name: str(found[name]) for name in TempMark.__slots__})
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def exists(self) -> bool:
        """Whether something of that name is there; raises `OSError` where that can not be told."""
        try:
            self.path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def remove(self) -> bool:
        """Remove it with all that is in it; False when it is not there.

        Refuses (`PermissionError`) what is not a plain folder of this user: somebody else may have put it in place
        of ours.
        """
        try:
            found = self.path.lstat()
        except FileNotFoundError:
            return False
        if not stat.S_ISDIR(found.st_mode) or (found.st_uid != os.geteuid() and os.geteuid() != 0):
            raise PermissionError(f"{self.path} is not a folder of ours; it was left alone")
        shutil.rmtree(self.path)
        return True


_LISTEN = "0A"
_NUMBER = re.compile(r"[0-9]+")


def _made(file: SharedFile, since_s: float) -> bool:
    try:
        found = os.lstat(file.path)
    except OSError:
        return False
    return found.st_uid == os.geteuid() and found.st_mtime >= since_s


def _socket_inodes(pid: int) -> list[int]:
    return [int(target[8:-1]) for target in _open_files(pid) if target.startswith("socket:[")]


def _shared_paths(pid: int) -> set[str]:
    prefix = f"{SHARED_MEMORY}/"
    paths = {target for target in _open_files(pid) if target.startswith(prefix)}
    try:
        maps = Path("/proc", str(pid), "maps").read_text("utf-8", "replace")
    except OSError:
        return paths
    if prefix in maps:
        paths.update(line[line.index(prefix) :] for line in maps.splitlines() if prefix in line)
    return paths


def _open_files(pid: int) -> list[str]:
    folder = f"/proc/{pid}/fd"
    targets = []
    try:
        for name in os.listdir(folder):  # noqa: PTH208  # names, not paths
            try:
                targets.append(os.readlink(f"{folder}/{name}"))  # a target is no path: "socket:[7]"
            except OSError:  # closed in the meantime
                continue
    except OSError:  # ended, or not ours to look into
        return targets
    return targets


def _shared_file(path: str) -> SharedFile | None:
    try:
        found = os.lstat(path)
    except OSError:  # unlinked: the kernel shows it as "... (deleted)", which is no path
        return None
    return SharedFile(path, found.st_ino)
