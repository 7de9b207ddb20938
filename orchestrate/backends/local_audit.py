"""Everything on this machine that some run owns, found without any local state: by the marks it carries itself."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from orchestrate.backends.leftovers import SharedFile, TempFolder, exists, held_shared_files, is_held, shared_files
from orchestrate.backends.members import TOKEN_VARIABLE, Members, end_members
from orchestrate.backends.process_table import Process, environment, processes, ticks_since_boot

__all__ = ["Owned", "find_owned", "reap_owned"]


@dataclass(slots=True)
class Owned:
    """What carries the marks of one run.

    `token` is empty where only a temporary folder is left, whose name has its first digits. `age_s` is the age of the
    oldest thing.
    """

    run_id: str
    owner: str
    expires_at: str
    run_dir: Path
    token: str
    processes: list[Process] = field(default_factory=list)
    temp_folders: list[TempFolder] = field(default_factory=list)
    shared_files: list[SharedFile] = field(default_factory=list)
    age_s: float = 0.0

    def items(self) -> tuple[str, ...]:
        """What there is, in words."""
        return (
            *(f"process {item.pid}:{item.identity.start_ticks} {item.name}" for item in self.processes),
            *(f"temp-folder {folder.path}" for folder in self.temp_folders),
            *(f"shared-memory {file.path}" for file in self.shared_files),
        )


def find_owned(temp_base: Path, now_s: Callable[[], float]) -> tuple[Owned, ...]:
    """Every process, temporary folder and shared-memory file with the marks of a run, run by run.

    `now_s` is the wall clock in seconds. Raises `OSError` when the process table can not be read.
    """
    found: dict[tuple[str, str], Owned] = {}
    _find_processes(found)
    _find_temp_folders(found, temp_base, now_s)
    for file in shared_files():
        for owned in found.values():
            if owned.run_id in Path(file.path).name:
                owned.shared_files.append(file)
    return tuple(found.values())


def reap_owned(owned: Owned, *, grace_s: float = 3.0, kill_s: float = 8.0) -> tuple[str, ...]:
    """End and remove exactly what `owned` names, and whatever its processes begat since; what is left, in words.

    Each process is signalled by pid and start time, each folder removed only while it still carries the run's mark.
    """
    left: list[str] = []
    held: set[SharedFile] = set()
    if owned.token:
        members = Members(owned.token)
        for process in owned.processes:
            members.recall(process)
        held = held_shared_files(members.look().alive)
        ended = end_members(members.look, grace_s=grace_s, kill_s=kill_s)
        left.extend(f"process {process.pid} {process.name}" for process in ended.left)
        left.extend(ended.refused)
    for folder in owned.temp_folders:
        mark = folder.mark()
        if mark is None or mark.run_id != owned.run_id:
            left.append(f"temp-folder {folder.path}: it does not carry the run's mark any more")
            continue
        try:
            folder.remove()
        except OSError as error:
            left.append(f"temp-folder {folder.path}: {error}")
    orphaned = (file for file in held if exists(file) and not is_held(file))
    for file in {*owned.shared_files, *orphaned}:
        try:
            Path(file.path).unlink(missing_ok=True)
        except OSError as error:
            left.append(f"shared-memory {file.path}: {error}")
    return tuple(left)


_FOLDER = re.compile(r"orchestrate-(?P<run_id>r[0-9]{8}-[0-9]{6}-[0-9a-f]{6})-(?P<token>[0-9a-f]{8})")


def _find_processes(found: dict[tuple[str, str], Owned]) -> None:
    hertz = os.sysconf("SC_CLK_TCK")
    now = ticks_since_boot()
    for process in processes():
        marks = environment(process.pid) or {}
        token = marks.get(TOKEN_VARIABLE)
        if not token or process.pid == os.getpid() or process.is_zombie:
            continue
        run_id = marks.get("ORCHESTRATE_RUN_ID", "unknown")
        owned = found.setdefault(
            (run_id, token[:8]),
            Owned(
                run_id=run_id,
                owner=marks.get("ORCHESTRATE_OWNER", "unknown"),
                expires_at=marks.get("ORCHESTRATE_EXPIRES", ""),
                run_dir=Path(marks.get("ORCHESTRATE_RUN_DIR", "/nonexistent")),
                token=token,
            ),
        )
        owned.processes.append(process)
        owned.age_s = max(owned.age_s, (now - process.identity.start_ticks) / hertz)


def _find_temp_folders(found: dict[tuple[str, str], Owned], temp_base: Path, now_s: Callable[[], float]) -> None:
    try:
        names = sorted(entry.name for entry in os.scandir(temp_base) if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return
    for name in names:
        match = _FOLDER.fullmatch(name)
        if match is None:
            continue
        folder = TempFolder(temp_base / name)
        mark = folder.mark()
        if mark is None or mark.run_id != match["run_id"]:
            continue  # a name like ours is not a mark
        owned = found.setdefault(
            (mark.run_id, match["token"]), Owned(mark.run_id, mark.owner, mark.expires_at, Path(mark.run_dir), "")
        )
        owned.temp_folders.append(folder)
        owned.age_s = max(owned.age_s, now_s() - folder.path.lstat().st_mtime)
