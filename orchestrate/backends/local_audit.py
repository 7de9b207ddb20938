"""Everything on this machine that some run owns, found without any local state: by the marks it carries itself."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrate.backends.leftovers import SharedFile, TempFolder, exists, held_shared_files, is_held, shared_files
from orchestrate.backends.members import TOKEN_VARIABLE, Members, end_members
from orchestrate.backends.process_table import (
    Process,
    ProcessIdentity,
    boot_id,
    environment,
    processes,
    ticks_since_boot,
)
from orchestrate.backends.survey import OwnedResources, Survey

__all__ = ["LocalSurveyor"]


class LocalSurveyor:
    """This machine: its processes, its temporary folders below `temp_base`, its shared memory.

    Args:
        temp_base: where runs make their temporary folders.
        now_s: the wall clock in seconds.
        grace_s, kill_s: how long processes get to end, and then to die.
    """

    name = "local"

    def __init__(
        self, temp_base: Path, *, now_s: Callable[[], float] = time.time, grace_s: float = 3.0, kill_s: float = 8.0
    ) -> None:
        self._temp_base = temp_base
        self._now_s = now_s
        self._grace_s = grace_s
        self._kill_s = kill_s

    def survey(self) -> Survey:
        """Every process, temporary folder and shared-memory file with the marks of a run, run by run."""
        found: dict[tuple[str, str], _Owned] = {}
        looked: list[str] = []
        unknown: list[str] = []
        for what, look in (
            ("processes of this machine", self._find_processes),
            (f"temporary folders in {self._temp_base}", self._find_temp_folders),
            ("shared memory of this machine", self._find_shared_files),
        ):
            try:
                look(found)
            except OSError as error:
                unknown.append(f"{what} can not be looked at: {error}")
            else:
                looked.append(what)
        return Survey(tuple(owned.as_resources() for owned in found.values()), tuple(looked), tuple(unknown))

    def reap(self, owned: OwnedResources) -> tuple[str, ...]:
        """End and remove exactly what `owned` names, and whatever its processes begat since; what is left, in words.

        Each process is signalled by pid and start time, each folder removed only while it still carries the run's
        mark, each file only while that path is that file.
        """
        handle = owned.handle
        left: list[str] = []
        held: set[SharedFile] = set()
        if handle["token"] and handle["boot"] == boot_id():
            members = Members(handle["token"])
            for process in handle["processes"]:
                members.recall(_recalled(process))
            held = held_shared_files(members.look().alive)
            ended = end_members(members.look, grace_s=self._grace_s, kill_s=self._kill_s)
            left.extend(f"process {process.pid} {process.name}" for process in ended.left)
            left.extend(ended.refused)
        left.extend(_remove_folders(handle["temp_folders"], owned.run_id))
        named = {SharedFile(path, inode) for path, inode in handle["shared_files"]}
        orphaned = {file for file in held if exists(file) and not is_held(file)}
        for file in {file for file in named if exists(file)} | orphaned:
            try:
                Path(file.path).unlink(missing_ok=True)
            except OSError as error:
                left.append(f"shared-memory {file.path}: {error}")
        return tuple(left)

    def _find_processes(self, found: dict[tuple[str, str], _Owned]) -> None:
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
                _Owned(
                    run_id=run_id,
                    owner=marks.get("ORCHESTRATE_OWNER", "unknown"),
                    expires_at=marks.get("ORCHESTRATE_EXPIRES", ""),
                    run_dir=marks.get("ORCHESTRATE_RUN_DIR", ""),
                    token=token,
                ),
            )
            owned.processes.append(process)
            owned.age_s = max(owned.age_s, (now - process.identity.start_ticks) / hertz)

    def _find_temp_folders(self, found: dict[tuple[str, str], _Owned]) -> None:
        try:
            with os.scandir(self._temp_base) as entries:
                names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            return
        for name in names:
            match = _FOLDER.fullmatch(name)
            if match is None:
                continue
            folder = TempFolder(self._temp_base / name)
            mark = folder.mark()
            if mark is None or mark.run_id != match["run_id"]:
                continue  # a name like ours is not a mark
            owned = found.setdefault(
                (mark.run_id, match["token"]), _Owned(mark.run_id, mark.owner, mark.expires_at, mark.run_dir, "")
            )
            owned.temp_folders.append(folder)
            owned.age_s = max(owned.age_s, self._age_s(folder.path))

    def _find_shared_files(self, found: dict[tuple[str, str], _Owned]) -> None:
        """Files that are named after a run, also of one that nothing else is left of: its name is then all they say."""
        for file in sorted(shared_files()):
            name = Path(file.path).name
            owners = [owned for owned in found.values() if owned.run_id in name]
            match = _RUN_ID.search(name)
            if not owners and match is not None:
                owners = [found.setdefault((match[0], ""), _Owned(match[0], "unknown", "", "", ""))]
            for owned in owners:
                owned.shared_files.append(file)
                owned.age_s = max(owned.age_s, self._age_s(Path(file.path)))

    def _age_s(self, path: Path) -> float:
        try:
            return max(0.0, self._now_s() - path.lstat().st_mtime)
        except FileNotFoundError:
            return 0.0


_RUN_ID = re.compile(r"(?<![0-9A-Za-z])r[0-9]{8}-[0-9]{6}-[0-9a-f]{6}(?![0-9a-f])")
_FOLDER = re.compile(r"orchestrate-(?P<run_id>r[0-9]{8}-[0-9]{6}-[0-9a-f]{6})-(?P<token>[0-9a-f]{8})")


@dataclass(slots=True)
class _Owned:
    """What carries the marks of one run. `token` is empty where no process is left to tell it."""

    run_id: str
    owner: str
    expires_at: str
    run_dir: str
    token: str
    processes: list[Process] = field(default_factory=list)
    temp_folders: list[TempFolder] = field(default_factory=list)
    shared_files: list[SharedFile] = field(default_factory=list)
    age_s: float = 0.0

    def as_resources(self) -> OwnedResources:
        return OwnedResources(
            backend=LocalSurveyor.name,
            where="this machine",
            run_id=self.run_id,
            owner=self.owner,
            expires_at=self.expires_at,
            age_s=self.age_s,
            items=(
                *(f"process {item.pid}:{item.identity.start_ticks} {item.name}" for item in self.processes),
                *(f"temp-folder {folder.path}" for folder in self.temp_folders),
                *(f"shared-memory {file.path}" for file in self.shared_files),
            ),
            handle={
                "boot": boot_id(),
                "token": self.token,
                "processes": [_as_json(process) for process in self.processes],
                "temp_folders": [str(folder.path) for folder in self.temp_folders],
                "shared_files": [[file.path, file.inode] for file in self.shared_files],
            },
            run_dir=self.run_dir,
            token=self.token or None,
        )


def _as_json(process: Process) -> dict[str, Any]:
    identity = process.identity
    return {
        "pid": identity.pid,
        "start_ticks": identity.start_ticks,
        "parent": process.parent,
        "group": process.group,
        "session": process.session,
        "name": process.name,
    }


def _recalled(tree: Mapping[str, Any]) -> Process:
    return Process(
        identity=ProcessIdentity(tree["pid"], tree["start_ticks"]),
        parent=tree["parent"],
        group=tree["group"],
        session=tree["session"],
        state="?",
        threads=1,
        rss_bytes=0,
        name=tree["name"],
    )


def _remove_folders(paths: list[str], run_id: str) -> list[str]:
    left = []
    for folder in map(TempFolder, map(Path, paths)):
        if not folder.exists():
            continue
        mark = folder.mark()
        if mark is None or mark.run_id != run_id:
            left.append(f"temp-folder {folder.path}: it does not carry the run's mark any more")
            continue
        try:
            folder.remove()
        except OSError as error:
            left.append(f"temp-folder {folder.path}: {error}")
    return left
