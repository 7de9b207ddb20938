"""The local backend: the ranks of a run are processes of this machine.

The payload runs as `timeout -k 10 SECONDS python -m harness node ...` in a session of its own, so that a terminal's
Ctrl-C reaches the launcher alone, with the ownership token in its environment and a temporary folder of its own.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrate.backends import local_node
from orchestrate.backends.catalogue import BackendPlace
from orchestrate.backends.growing_lines import GrowingLines
from orchestrate.backends.leftovers import SharedFile, TempFolder, TempMark, files_named_after
from orchestrate.backends.local_audit import LocalSurveyor
from orchestrate.backends.local_census import look_for
from orchestrate.backends.members import TOKEN_VARIABLE, Members, Snapshot, end_members
from orchestrate.backends.process_table import Process, ProcessIdentity, boot_id, identity_of
from orchestrate.backends.protocol import (
    Acquisition,
    CensusPath,
    Collection,
    Fact,
    JobState,
    JobStatus,
    Look,
    Outcome,
    Ownership,
    Preflight,
    Request,
    Resource,
    Step,
    Submission,
    Usage,
)
from orchestrate.backends.sampling import Samples
from orchestrate.clock import to_wire, utc_now
from orchestrate.errors import BackendError, ReceiptError
from orchestrate.receipts.files import open_file

__all__ = ["LocalBackend", "LocalSettings", "open_backend", "open_surveyor"]

RUN_VARIABLES = ("RUN_ID", "OWNER", "EXPIRES", "RUN_DIR")
"""The ownership marks in a member's environment, beside the token; each is prefixed with `ORCHESTRATE_`."""


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """How a local run is started and ended.

    Attributes:
        temp_base: where the run's temporary folder is made.
        environ: what the payload's environment starts from.
        payload: the payload's command line without its evidence arguments; None for the harness of this Python.
        adopts_orphans: whether this process is the subreaper of the run.
        grace_s, kill_s: how long members have after SIGTERM, and how long SIGKILL is repeated.
    """

    temp_base: Path
    environ: Mapping[str, str]
    payload: Sequence[str] | None = None
    adopts_orphans: bool = False
    grace_s: float = 3.5
    kill_s: float = 8.0


def open_backend(ownership: Ownership, _settings: Mapping[str, Any], place: BackendPlace) -> LocalBackend:
    """The local backend of one run, as `orchestrate.backends.catalogue` asks for it."""
    local = LocalSettings(place.temp_base, place.environ, payload=place.payload, adopts_orphans=place.adopts_orphans)
    return LocalBackend(ownership, local)


def open_surveyor(_settings: Mapping[str, Any], place: BackendPlace) -> LocalSurveyor:
    """What an audit asks about this machine."""
    return LocalSurveyor(place.temp_base)


class LocalBackend:
    """One run on this machine. See `protocol.Backend` for what each call means."""

    name = "local"
    census_path = CensusPath.DIRECT
    teardown_reserve_s = 25.0
    """SIGTERM grace and SIGKILL repeats, collection, and a census of two looks, on a slow machine."""

    def __init__(
        self,
        ownership: Ownership,
        settings: LocalSettings,
        *,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._ownership = ownership
        self._settings = settings
        self._pause = pause
        self._temp = TempFolder.of(settings.temp_base, ownership.run_id, ownership.token)
        self._members = Members(ownership.token, adopts_orphans=settings.adopts_orphans)
        self._samples = Samples()
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd: int | None = None
        self._started_at = 0.0
        self._grew_at = -math.inf
        self._cap_s = math.inf
        self._log: Path | None = None
        self._progress: GrowingLines | None = None
        self._told: set[ProcessIdentity] = set()
        self._device = "cpu"
        self._since_s = math.inf
        self._oom_kills = _oom_kills()

    @property
    def poll_interval_s(self) -> float:
        """Half a second; a tenth while the family is growing, so that hardly a member lives unseen."""
        return 0.1 if time.monotonic() - self._grew_at < _YOUNG_S else 0.5

    def spare(self, pid: int) -> None:
        """The process `pid` (a warden) is no member."""
        identity = identity_of(pid)
        if identity is not None:
            self._members.keep_out(identity)

    def preflight(self, request: Request) -> Preflight:
        """Tools, PyTorch and the device, without creating anything."""
        local_node.check_tools()
        self._device = request.device
        gpus = local_node.check_device(request.device, request.ranks)
        local_node.check_corpora(request.corpora_not_given)
        return Preflight(
            device=request.device,
            facts={**local_node.machine_facts(), "gpu": gpus},
            caps={"job": f"timeout -k {_KILL_AFTER_S}", "lifeline": "the node ends when launcher and warden are gone"},
            fingerprint=local_node.fingerprint(),
        )

    def intent(self, request: Request) -> Fact:
        """The name of the temporary folder."""
        self._since_s = utc_now().timestamp()
        return {
            "kind": "names",
            "temp_folder": str(self._temp.path),
            "boot": boot_id(),
            "device": request.device,
            "since_s": self._since_s,
        }

    def acquire(self, request: Request, *, budget_s: float, pause: Callable[[float], None]) -> Acquisition:  # noqa: ARG002  # nothing here is waited for
        """Make the temporary folder; the processes come with `submit`."""
        owned = self._ownership
        self._samples.begin()
        try:
            self._temp.create(TempMark(owned.run_id, owned.owner, owned.expires_at, str(owned.run_dir)))
        except OSError as error:
            raise BackendError(
                f"the temporary folder {self._temp.path} can not be made: {error.strerror}",
                remedy="free the disk, or point TMPDIR at a folder that can be written",
            ) from error
        return Acquisition(
            (Resource("temp-folder", self._temp.path.name),), {"device": request.device, "ranks": request.ranks}
        )

    def submit(self, request: Request, *, budget_s: float, lifeline_fd: int | None) -> Submission:
        """Start the payload under `timeout`, in its own session."""
        self._cap_s = math.ceil(budget_s) + _CAP_MARGIN_S
        request.evidence.mkdir(mode=0o700, exist_ok=True)
        request.logs.mkdir(mode=0o700, exist_ok=True)
        self._log = request.logs / "node.log"
        self._progress = GrowingLines(request.evidence / "node.jsonl")
        payload = self._settings.payload or _payload(request)
        command = ["timeout", "-k", str(_KILL_AFTER_S), str(self._cap_s), *payload]
        command += ["--evidence", str(request.evidence)]
        if lifeline_fd is not None:
            command += ["--lifeline-fd", str(lifeline_fd)]
        self._oom_kills = _oom_kills()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self._temp.path,
                env=self._environment(request),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=() if lifeline_fd is None else (lifeline_fd,),
            )
        self._started_at = time.monotonic()
        self._members.leave_to_its_waiter(self._process.pid)
        self._pidfd = os.pidfd_open(self._process.pid)
        self._look()
        return Submission(Resource("process", _name(identity_of(self._process.pid), self._process.pid)), self._cap_s)

    def poll(self) -> JobStatus:
        """Look at the process table, read new progress, and see whether the payload has ended."""
        if self._process is None or self._progress is None:
            return JobStatus(JobState.WAITING)
        self._look()
        code = self._process.poll()
        progress = tuple(self._progress.read())
        if code is None:
            return JobStatus(JobState.RUNNING, progress=progress)
        if time.monotonic() - self._started_at >= self._cap_s and code in _CAP_CODES:
            return JobStatus(JobState.ENDED, exit_code=None if code < 0 else code, progress=progress, by_cap=True)
        if code == _TOLD_TO_STOP:  # not by us: then nobody polls any more
            told = "the node was told to stop by somebody outside"
            return JobStatus(JobState.ENDED, exit_code=code, progress=progress, fault=told)
        if code < 0 or 128 < code <= 128 + signal.NSIG:
            name = _signal_name(abs(code) if code < 0 else code - 128)
            return JobStatus(JobState.ENDED, signal=name, progress=progress, fault=self._killed(name))
        fault = f"`timeout` could not start the payload (exit {code})" if code in {125, 126, 127} else None
        return JobStatus(JobState.ENDED, exit_code=code, progress=progress, fault=fault)

    def wake_fd(self) -> int | None:
        """The payload's pidfd."""
        return self._pidfd

    def logs(self) -> str:
        """The last 4 KiB of what the node printed."""
        if self._log is None:
            return ""
        try:
            with open_file(self._log.parent, self._log.name) as log:
                return os.pread(log, 4096, max(0, os.fstat(log).st_size - 4096)).decode("utf-8", "replace")
        except (OSError, ReceiptError):
            return ""

    def stop(self) -> tuple[Step, ...]:
        """End every member: SIGTERM to the top, a short grace, SIGKILL, until two looks find nobody."""
        ended = end_members(self._look, grace_s=self._settings.grace_s, kill_s=self._settings.kill_s, pause=self._pause)
        if self._process is not None:
            self._process.poll()
        said = f"{ended.terminated} got SIGTERM, {ended.killed} got SIGKILL"
        if ended.left or ended.refused:
            left = ", ".join(f"{process.name} {process.pid}" for process in ended.left)
            return (self._step("end-processes", "members", Outcome.FAILED, f"{said}; left: {left} {ended.refused}"),)
        touched = ended.terminated or ended.killed
        return (self._step("end-processes", "members", Outcome.DONE if touched else Outcome.NOTHING_THERE, said),)

    def collect(self, request: Request) -> Collection:
        """The node wrote the evidence where it belongs; say so when it did not even start to."""
        if not request.evidence.is_dir():
            return Collection("the node never wrote anything")
        return Collection()

    def release(self) -> tuple[Step, ...]:
        """End what may have come back, then remove shared-memory files and the temporary folder."""
        return (*self.stop(), *self._remove_shared_files(), self._remove_temp_folder())

    def census(self) -> Look:
        """The process table, groups, sessions, ports, shared memory, the temporary folder, and GPUs where asked for."""
        return look_for(
            self._members,
            self._samples,
            self._temp,
            named=self._named_files,
            with_gpus=self._device != "cpu",
        )

    def usage(self) -> Usage:
        """Everything that was tracked, and the largest sum of resident memory that was seen."""
        seen = self._members.seen.values()
        alive = {process.identity for process in self._members.look().alive}
        counts = {
            "tracked": len(seen),
            "groups": len({process.group for process in seen}),
            "sessions": len({process.session for process in seen}),
            "retired": sum(process.identity not in alive for process in seen),
        }
        return Usage(
            counts, self._samples.peak_rss_bytes, {"oom_kills_on_this_machine": _oom_kills() - self._oom_kills}
        )

    def observed(self) -> tuple[Fact, ...]:
        """New members, ports and shared-memory files."""
        new = [process for identity, process in self._members.seen.items() if identity not in self._told]
        self._told.update(process.identity for process in new)
        facts: list[Fact] = []
        if new:
            facts.append({"kind": "processes", "boot": boot_id(), "items": [_as_row(process) for process in new]})
        return (*facts, *self._samples.news())

    def recall(self, facts: Iterable[Fact]) -> None:
        """Processes of this boot, ports, shared-memory files, and the name of the temporary folder."""
        for fact in facts:
            match fact.get("kind"):
                case "names":
                    self._temp = TempFolder(Path(fact["temp_folder"]))
                    self._device = fact["device"]
                    self._since_s = fact["since_s"]
                case "processes" if fact["boot"] == boot_id():
                    for row in fact["items"]:
                        self._members.recall(_from_row(row))
                case "ports" | "shared-memory":
                    self._samples.recall(fact)
                case _:
                    continue

    def _look(self) -> Snapshot:
        known = len(self._members.seen)
        snapshot = self._members.look()
        if len(self._members.seen) > known:
            self._grew_at = time.monotonic()
        self._samples.take(snapshot.alive)
        return snapshot

    def _environment(self, request: Request) -> dict[str, str]:
        owned = self._ownership
        environment = {
            name: value
            for name, value in self._settings.environ.items()
            if not name.startswith("ORCHESTRATE_") and name != "CELL_KEYS"  # the plan says which cells are to run
        }
        environment.update(request.environment)
        marks = (owned.run_id, owned.owner, owned.expires_at, str(owned.run_dir))
        environment.update({f"ORCHESTRATE_{name}": value for name, value in zip(RUN_VARIABLES, marks, strict=True)})
        environment[TOKEN_VARIABLE] = owned.token
        environment["TMPDIR"] = str(self._temp.path)
        parent = local_node.harness_parent()
        if parent is not None:  # the node must run the very package whose files were pinned
            rest = environment.get("PYTHONPATH")
            environment["PYTHONPATH"] = f"{parent}{os.pathsep}{rest}" if rest else str(parent)
            environment["ORCHESTRATE_CALLERS_PYTHONPATH"] = rest or ""
        return environment

    def _killed(self, name: str) -> str:
        oom = _oom_kills() - self._oom_kills
        by = f"; the kernel's memory killer struck {oom} times on this machine meanwhile" if oom else ""
        return f"the payload's top process was killed from outside ({name}){by}"

    def _remove_shared_files(self) -> list[Step]:
        steps = []
        for file in sorted(self._samples.shared_left() | self._named_files()):
            try:
                Path(file.path).unlink()
                steps.append(self._step("remove-shared-memory", file.path, Outcome.DONE))
            except FileNotFoundError:
                steps.append(self._step("remove-shared-memory", file.path, Outcome.NOTHING_THERE))
            except OSError as error:
                steps.append(self._step("remove-shared-memory", file.path, Outcome.FAILED, str(error.strerror)))
        return steps

    def _named_files(self) -> set[SharedFile]:
        words = (self._ownership.run_id, self._ownership.token)
        return files_named_after(words, (identity.pid for identity in self._members.seen), self._since_s)

    def _remove_temp_folder(self) -> Step:
        try:
            removed = self._temp.remove()
        except (OSError, shutil.Error) as error:
            return self._step("remove-temp-folder", self._temp.path.name, Outcome.FAILED, str(error))
        outcome = Outcome.DONE if removed else Outcome.NOTHING_THERE
        return self._step("remove-temp-folder", self._temp.path.name, outcome)

    @staticmethod
    def _step(step: str, target: str, outcome: Outcome, detail: str = "") -> Step:
        return Step(step, target, outcome, to_wire(utc_now()), detail)


_KILL_AFTER_S = 10
_CAP_MARGIN_S = 2  # the launcher ends the payload at its own budget; the cap is for when it can not
_CAP_CODES = {124, 137, -int(signal.SIGKILL), -int(signal.SIGTERM)}
_YOUNG_S = 3.0
_TOLD_TO_STOP = 130  # the node's exit code for it (harness/outcome.py)


def _payload(request: Request) -> tuple[str, ...]:
    """The node's command line, without its evidence. A qualification unpacks its source in the temporary folder."""
    if request.groups is None or request.archive is None:
        return (sys.executable, "-P", "-m", "harness", "node")
    files = ("--plan", str(request.groups), "--archive", str(request.archive), "--source", "source")
    return (sys.executable, "-P", "-m", "harness", "qualify", *files, "--procs", str(request.ranks))


def _as_row(process: Process) -> list[Any]:
    identity = process.identity
    return [identity.pid, identity.start_ticks, process.parent, process.group, process.session, process.name]


def _from_row(row: Sequence[Any]) -> Process:
    pid, start_ticks, parent, group, session, name = row
    return Process(ProcessIdentity(pid, start_ticks), parent, group, session, "?", 1, 0, name)


def _name(identity: ProcessIdentity | None, pid: int) -> str:
    return str(pid) if identity is None else f"{identity.pid}:{identity.start_ticks}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _oom_kills() -> int:
    try:
        lines = Path("/proc/vmstat").read_text("ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
