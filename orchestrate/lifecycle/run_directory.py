"""The directory of one run: the database that everything about the run is derived from, and its lock.

It appears under its name with lock, token, plan and the first journal record in it, or not at all: it is filled under
a name that begins with a dot and renamed. Whether a run has a living owner is a fact of the kernel: its `flock`.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from orchestrate.errors import RunIsLiveError, RunNotFoundError, RunsDirError
from orchestrate.receipts.attempts import evidence_folder

__all__ = ["RESERVE_BYTES", "RunDirectory", "RunLock", "find_run", "new_run_id", "new_token", "prepare_run"]

RESERVE_BYTES = 2 << 20
"""Room for the last receipts, kept from the start; the journal keeps its own."""

BEING_MADE = ".making-"


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The paths of one run."""

    path: Path

    @property
    def run_id(self) -> str:
        """The run's name, which is the directory's."""
        return self.path.name

    @property
    def plan(self) -> Path:
        """The frozen input of the run."""
        return self.path / "plan.json"

    @property
    def journal(self) -> Path:
        """What happened."""
        return self.path / "journal.jsonl"

    @property
    def token(self) -> Path:
        """The ownership token, in a file of its own: plan, journal and receipts have only its hash."""
        return self.path / "token"

    @property
    def lock(self) -> Path:
        """The file whose `flock` the living owner holds."""
        return self.path / "lock"

    @property
    def evidence(self) -> Path:
        """What the node measured in the first attempt."""
        return self.evidence_of(1)

    def evidence_of(self, attempt: int) -> Path:
        """What the node measured in that attempt."""
        return self.path / evidence_folder(attempt)

    @property
    def capacity(self) -> Path:
        """What was refused, where that happened."""
        return self.path / "capacity.json"

    @property
    def logs(self) -> Path:
        """What the payload printed."""
        return self.path / "logs"

    @property
    def receipts(self) -> Path:
        """What is stated about the run."""
        return self.path / "receipts"

    @property
    def reserve(self) -> Path:
        """Room on the disk for the last records."""
        return self.path / "reserve"

    def has_owner(self) -> bool:
        """Whether some process holds the lock of the run now. Asking changes nothing."""
        if not self.lock.exists():
            return False
        lock = RunLock.try_take(self, shared=True)
        if lock is None:
            return True
        lock.release()
        return False

    def read_token(self) -> str:
        """The ownership token."""
        return self.token.read_text("ascii").strip()

    def keep_reserve(self) -> None:
        """Reserve the room; `OSError` where the disk has none."""
        fd = os.open(self.reserve, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.posix_fallocate(fd, 0, RESERVE_BYTES)
        finally:
            os.close(fd)

    def free_reserve(self) -> None:
        """Give the reserved room back to the disk."""
        self.reserve.unlink(missing_ok=True)


class RunLock:
    """The lock of a run, held until `release` or the end of this process; children do not inherit it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def try_take(cls, run: RunDirectory, *, shared: bool = False) -> RunLock | None:
        """The lock, or None while somebody else has it. `shared` only asks, and disturbs nobody who asks as well."""
        fd = os.open(run.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        return cls(fd)

    @classmethod
    def take(
        cls,
        run: RunDirectory,
        *,
        wait_s: float,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> RunLock:
        """The lock, waited for at most `wait_s` seconds; `RunIsLiveError` when somebody else keeps it."""
        deadline = clock() + wait_s
        while (lock := cls.try_take(run)) is None:
            if clock() >= deadline:
                raise RunIsLiveError(
                    f"run {run.run_id} has a living owner",
                    remedy=f"`orchestrate teardown {run.run_id}` asks that owner to end it",
                )
            pause(0.05)
        return lock

    def release(self) -> None:
        """Give the lock back."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def new_run_id(now: datetime) -> str:
    """A fresh name, e.g. `r20260101-120000-0a1b2c`."""
    return f"r{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def new_token() -> str:
    """A fresh ownership token: 32 random hex digits."""
    return secrets.token_hex(16)


def prepare_run(
    runs_dir: Path, run_id: str, token: str, plan: bytes, begin: Callable[[Path], None]
) -> tuple[RunDirectory, RunLock]:
    """Make the directory of a new run, locked by this process.

    `begin` gets the journal's path while the directory still has its temporary name, and writes the first record.
    Raises `RunsDirError`, leaving nothing behind, when the runs directory cannot be made, written, locked, or has no
    room for the reserve.
    """
    making = RunDirectory(runs_dir / f"{BEING_MADE}{run_id}")
    final = RunDirectory(runs_dir / run_id)
    try:
        runs_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        making.path.mkdir(mode=0o700)
    except OSError as error:
        raise _refused(runs_dir, error) from error
    try:
        lock = RunLock.take(making, wait_s=1.0)
        making.keep_reserve()
        _write_durably(making.token, token.encode() + b"\n")
        _write_durably(making.plan, plan)
        begin(making.journal)
        making.path.rename(final.path)
        _fsync_folder(final.path)
        _fsync_folder(runs_dir)
    except OSError as error:
        shutil.rmtree(making.path, ignore_errors=True)
        raise _refused(runs_dir, error) from error
    except BaseException:
        shutil.rmtree(making.path, ignore_errors=True)
        raise
    return final, lock


def find_run(runs_dir: Path, run: str) -> RunDirectory:
    """The run that `run` names: its id, an unambiguous beginning of it, `latest`, or the path of its directory.

    Raises `RunNotFoundError` otherwise, and where the plan in the directory of that name is another run's.
    """
    as_path = Path(run)
    if len(as_path.parts) > 1 and (as_path / "plan.json").is_file():
        return RunDirectory(as_path.resolve())
    try:
        names = sorted(entry.name for entry in os.scandir(runs_dir) if not entry.name.startswith("."))
    except OSError:
        names = []
    if run == "latest" and names:
        runs = (RunDirectory(runs_dir / name) for name in reversed(names))
        return next((each for each in runs if _planned_id(each) == each.run_id), RunDirectory(runs_dir / names[-1]))
    matching = [name for name in names if name == run] or [name for name in names if run and name.startswith(run)]
    if len(matching) == 1:
        found = RunDirectory(runs_dir / matching[0])
        if (planned := _planned_id(found)) != found.run_id:
            raise RunNotFoundError(
                f"{found.path} is the run {planned} under another name", remedy="name it by its path, or rename it"
            )
        return found
    known = f"{len(matching)} runs begin with that" if matching else "there is no such run"
    raise RunNotFoundError(f"run {run!r}: {known} in the runs directory", remedy="`orchestrate status` lists the runs")


def _write_durably(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _fsync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _planned_id(run: RunDirectory) -> str:
    """The run id in the plan; that of the directory where the plan says none that can be read."""
    try:
        plan = json.loads(run.plan.read_bytes())
    except (OSError, ValueError):
        return run.run_id
    return str(plan.get("run_id", run.run_id)) if isinstance(plan, dict) else run.run_id


def _refused(runs_dir: Path, error: OSError) -> RunsDirError:
    return RunsDirError(
        f"the runs directory {runs_dir} can not be used: {error.strerror or error}; nothing was started",
        remedy="give --runs-dir (or ORCHESTRATE_RUNS_DIR) a folder on a disk that can be written and has room",
    )
