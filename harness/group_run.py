"""One qualification on a node: command groups in order, each as a process family of its own, and what became of it.

A group is to this node what a cell is to the other one: its record in node.json has the same members, and more.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from harness.concealing import Secrets
from harness.documents import write_json
from harness.evidence import utc_now
from harness.family import Family
from harness.group_report import why_undecided
from harness.node_run import NODE_SCHEMA, source_digest
from harness.nvml import GpuProcess
from harness.outcome import OWN_SIGNALS, CellStatus, exit_code, signal_name
from harness.preflight import NOT_APPLICABLE, Preflight
from harness.processes import become_subreaper
from harness.progress import Progress
from harness.source_files import Watch, changed_files, pin_files, remove, written_name
from harness.stop_requests import StopRequests, stop_requests

__all__ = ["PYTEST_REPORT", "Group", "GroupRun", "QualifyJob"]

PYTEST_REPORT = Path(__file__).parent / "pytest_report"
"""The folder, and by `orchestrate_pytest_report` the name, of the plugin that reports on tests."""

MAX_OUTPUT_BYTES = 256 << 20
"""A group that writes more to its standard output and error is ended, and fails."""

MAX_REPORT_BYTES = 64 << 20
"""The largest report on tests that is read."""

_CALLERS_PATH = "ORCHESTRATE_CALLERS_PYTHONPATH"
"""What of the node's PYTHONPATH comes from the shell that called it: the node may need it, no group gets it."""

_NOT_INHERITED = re.compile(rf"PYTEST_|PYTHON(?!(USERBASE|NOUSERSITE)\Z)|{_CALLERS_PATH}\Z")
"""Variables that decide what is tested, or how: a group has those that its own `env` says, which the plan has too."""

_HERE = Path(__file__).resolve().parents[1]
_LOOK_S = 0.2
_ADDED_SHOWN = 100
_GRACE_S = 3.0
_KILL_S = 10.0
_STOP_GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class Group:
    """A named command.

    `command` is an argument list. `env` is added to the node's environment. `timeout_s` bounds it. `needs` are groups
    that must have passed, `gpus` how many GPUs the node must have for it. `report` is `pytest` (the plugin reports on
    every pytest that the command starts), `junit` (the command writes `junit` itself, a path below the source) or
    `exit-code` (there are no tests in it).
    """

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    timeout_s: float
    needs: tuple[str, ...]
    report: str
    junit: str | None = None
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class QualifyJob:
    """What a node is to do: `groups` in order, in `source`, an unpacked source that nothing may change meanwhile.

    `name` is that of the qualification.
    """

    run_id: str
    name: str
    device: str
    slots: int
    source: Path
    archive_sha256: str
    groups: tuple[Group, ...]
    evidence: Path
    lifeline_fd: int | None = None


@dataclass(frozen=True, slots=True)
class _Ended:
    status: CellStatus
    reason: str
    exit_code: int | None = None
    signal: int | None = None
    by_node: bool = False
    """Whether the node ended it for what it did: whatever its report says, that is a failure."""


class GroupRun:
    """One run of `job`. `env` is what the groups inherit, `check` looks at the node, `idle` at its GPUs in between.

    `idle` answers with what is wrong, nothing where every GPU is idle or there is none to look at. `gpu_processes` asks
    who is on the GPUs, None where there is no NVML.
    """

    def __init__(
        self,
        job: QualifyJob,
        env: Mapping[str, str],
        *,
        check: Callable[[], Preflight],
        idle: Callable[[], tuple[str, ...]],
        gpu_processes: Callable[[], Collection[GpuProcess]] | None = None,
    ) -> None:
        self._job = job
        self._env = env
        self._check = check
        self._idle = idle
        self._gpu_processes = gpu_processes
        self._gpus = 0
        self._changed_by: str | None = None
        self._records: dict[str, dict[str, Any]] = {}
        self._swapped: set[str] = set()

    def run(self) -> int:
        """Run all groups; 0 where each passed and no source changed, else the worst group's exit code.

        Raises:
            OSError: the evidence can not be written, or the kernel can not do what a node needs.
        """
        job = self._job
        job.evidence.mkdir(parents=True, exist_ok=True)
        self._progress = Progress(job.evidence / "node.jsonl")
        become_subreaper()
        harness = source_digest()
        pins = pin_files(job.source)
        write_json(job.evidence / "sources.json", pins)
        self._source, self._kept = Watch(job.source), Watch(job.evidence)
        with stop_requests(job.lifeline_fd) as requests:
            self._event("node-started", cell_set=job.name, cells=[group.name for group in job.groups])
            problems = self._look_at_node()
            self._kept.accept()
            for group in job.groups:
                self._one(group, requests, problems, pins)
            stopped = requests.reason
        changed = self._changed(pins)
        statuses = [CellStatus(record["status"]) for record in self._records.values()]
        code = exit_code([*statuses, *([CellStatus.FAILED] if changed else [])], stopped=stopped is not None)
        self._write_result(code, stopped, harness, pins, changed)
        self._event("node-ended", status=stopped or "ran to its end", exit_code=code)
        return code

    def _look_at_node(self) -> tuple[str, ...]:
        preflight = self._check()
        write_json(self._job.evidence / "preflight.json", preflight.facts)
        self._gpus = preflight.gpus
        return preflight.problems

    def _one(self, group: Group, requests: StopRequests, problems: tuple[str, ...], pins: Mapping[str, str]) -> None:
        unmet = [name for name in group.needs if self._records[name]["status"] != CellStatus.COMPLETE]
        if requests.reason is not None:
            ended = _Ended(CellStatus.CANCELLED, f"the node was stopped before it began: {requests.reason}")
        elif problems:
            ended = _Ended(CellStatus.INFRASTRUCTURE, "; ".join(problems))
        elif self._changed_by is not None:
            ended = _Ended(CellStatus.UNSETTLED, f"it did not run: {self._changed_by} changed the source before it")
        elif unmet:
            ended = _Ended(CellStatus.UNSETTLED, f"it needs {', '.join(unmet)}, which did not pass")
        elif group.junit is not None and os.path.lexists(self._job.source / group.junit):
            ended = _Ended(CellStatus.UNSETTLED, f"its report {group.junit} was there before it began")
        elif group.gpus > self._gpus:
            ended = _Ended(CellStatus.UNSETTLED, f"it needs {group.gpus} GPUs, and the node has {self._gpus} for it")
        else:
            self._start(group, requests, pins)
            return
        self._record(group, ended, started_at=None, wall_s=0.0, family=Family().as_facts(), retired=None)

    def _start(self, group: Group, requests: StopRequests, pins: Mapping[str, str]) -> None:
        folder = self._folder(group)
        if os.path.lexists(folder):  # a group before it made that, and was told so
            remove(folder)
        folder.mkdir(parents=True)
        self._kept.accept()
        self._event("cell-started", cell=group.name, phase="measure")
        started_at, began = utc_now(), time.monotonic()
        family = Family(gpu_processes=self._gpu_processes)
        with tempfile.TemporaryDirectory(prefix="harness-") as scratch, (folder / "output.log").open("wb") as log:
            ended = self._watch(group, folder, log, family, requests, Path(scratch))
            retired = family.retire(grace_s=0.0 if requests.reason else _GRACE_S, kill_s=_KILL_S)
            if _is_too_much(log) and ended.status in {CellStatus.COMPLETE, CellStatus.FAILED}:
                said = f"it wrote more than {MAX_OUTPUT_BYTES >> 20} MiB of output"
                ended = replace(ended, status=CellStatus.FAILED, reason=said, by_node=True)
            foreign = _keep_own(folder, log, group)
        ended = self._by_report(group, folder, ended)
        if retired.left:
            left = f"processes of it could not be ended: {', '.join(retired.left)}"
            ended = replace(ended, status=CellStatus.INFRASTRUCTURE, reason=left)
        busy = self._idle()
        no_worse = {CellStatus.COMPLETE, CellStatus.UNSETTLED}
        if busy and ended.status in no_worse:
            ended = replace(ended, status=CellStatus.FAILED, reason=f"GPUs are not idle after it: {'; '.join(busy)}")
        if changed := self._changed(pins):
            self._changed_by = group.name
        if changed and ended.status in no_worse:
            ended = replace(
                ended, status=CellStatus.FAILED, reason=f"source files changed meanwhile: {', '.join(changed[:5])}"
            )
        forged = self._kept.changed([f"groups/{group.name}", "node.jsonl"])
        if not self._progress.is_own():
            self._progress.restore()
            forged = ("node.jsonl", *forged)
        if forged:
            said = f"it changed evidence that was not its own: {', '.join(forged[:5])}"
            ended = replace(ended, status=CellStatus.FAILED, reason=said)
        elif foreign:
            said = f"its own evidence is not its log and its report as plain files: {', '.join(foreign[:5])}"
            ended = replace(ended, status=CellStatus.FAILED, reason=said)
        added = self._source.added()
        secrets = Secrets({**self._env, **group.env})
        secrets.conceal(folder)
        told = {
            "retired": {"outlived": list(retired.outlived), "killed": retired.killed, "left": list(retired.left)},
            "gpus_busy_after": NOT_APPLICABLE if self._job.device == "cpu" else list(busy),
            "added": {"count": len(added), "first": list(added[:_ADDED_SHOWN])},
        }
        self._record(
            group,
            replace(ended, reason=secrets.without(ended.reason)),
            started_at=started_at,
            wall_s=time.monotonic() - began,
            family=secrets.without(family.as_facts()),
            **secrets.without(told),
            concealed=secrets.found,
        )
        self._kept.accept()

    def _by_report(self, group: Group, folder: Path, ended: _Ended) -> _Ended:
        """An end that the group's report does not bear out is open: no test failed in it, or none ran at all."""
        is_read = self._fetch_junit(group, folder)
        if not is_read and ended.status in {CellStatus.COMPLETE, CellStatus.FAILED} and not ended.by_node:
            said = f"its report {group.junit} is larger than {MAX_REPORT_BYTES >> 20} MiB"
            return replace(ended, status=CellStatus.UNSETTLED, reason=said)
        if ended.status is not CellStatus.FAILED or ended.by_node:
            return ended
        why = why_undecided(group.report, folder, ended.exit_code)
        return replace(ended, status=CellStatus.UNSETTLED, reason=f"{ended.reason}: {why}") if why else ended

    def _watch(
        self, group: Group, folder: Path, log: BinaryIO, family: Family, requests: StopRequests, scratch: Path
    ) -> _Ended:
        """Run the group's command to its end, its time-out, too much output or a stop, sampling its family."""
        try:
            process = subprocess.Popen(
                group.command,
                cwd=self._job.source,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(group, folder, scratch),
                start_new_session=True,
            )
        except OSError as error:
            return _Ended(CellStatus.FAILED, f"{group.command[0]!r} can not be started: {error.strerror}")
        deadline = time.monotonic() + group.timeout_s
        while process.poll() is None:
            family.sample()
            if requests.reason is not None:
                family.retire([process.pid], grace_s=_STOP_GRACE_S, kill_s=_KILL_S)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_KILL_S)
                return _Ended(CellStatus.CANCELLED, f"the node was stopped: {requests.reason}")
            too_much = _is_too_much(log)
            if too_much or time.monotonic() >= deadline:
                family.retire([process.pid], grace_s=_GRACE_S, kill_s=_KILL_S)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_KILL_S)
                if too_much:
                    return _Ended(CellStatus.FAILED, "it was ended")
                return _Ended(CellStatus.HUNG, f"it did not end within its {group.timeout_s:g}s")
            requests.wait(min(_LOOK_S, max(0.0, deadline - time.monotonic())))
        return _ended(process.returncode)

    def _environment(self, group: Group, folder: Path, scratch: Path) -> dict[str, str]:
        own = {"TMPDIR": str(scratch), "PYTHONPATH": self._python_path(), "PATH": self._path(scratch)}
        inherited = {name: value for name, value in self._env.items() if not _NOT_INHERITED.match(name)}
        env = {**inherited, **own, **group.env}
        if group.report == "pytest":
            path = env.get("PYTHONPATH")
            env["PYTHONPATH"] = f"{PYTEST_REPORT}{os.pathsep}{path}" if path else str(PYTEST_REPORT)
            env["PYTEST_PLUGINS"] = "orchestrate_pytest_report"
            env["ORCHESTRATE_PYTEST_REPORT"] = str((folder / "tests.jsonl").absolute())
        return env

    def _python_path(self) -> str:
        """The source first, and neither the harness that runs here nor what a calling shell added.

        What is tested is the commit.
        """
        rest = self._env.get("PYTHONPATH", "").split(os.pathsep)
        callers = self._env.get(_CALLERS_PATH, "").split(os.pathsep)
        kept = [entry for entry in rest if entry and entry not in callers and Path(entry).resolve() != _HERE]
        return os.pathsep.join([str(self._job.source.absolute()), *kept])

    def _path(self, scratch: Path) -> str:
        """`python` is the interpreter that the node runs under, wherever that one was called from.

        Images of Debian and Ubuntu have `python3` alone: then a script of that name stands for it.
        """
        path, folder = self._env.get("PATH", os.defpath), Path(sys.executable).parent
        if not (folder / "python").exists():
            folder = scratch / "bin"
            folder.mkdir()
            (folder / "python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
            (folder / "python").chmod(0o755)
        found = shutil.which("python", path=path)
        return path if found is not None and Path(found).parent == folder else f"{folder}{os.pathsep}{path}"

    def _fetch_junit(self, group: Group, folder: Path) -> bool:
        """Copy the report that the command wrote; what is not there shows by its absence. False: it is too large."""
        if group.junit is None:
            return True
        written = self._job.source / group.junit
        if written.is_file() and written.resolve().is_relative_to(self._job.source.resolve()):
            if written.stat().st_size > MAX_REPORT_BYTES:
                return False
            (folder / "junit.xml").write_bytes(written.read_bytes())
        return True

    def _record(
        self,
        group: Group,
        ended: _Ended,
        *,
        started_at: str | None,
        wall_s: float,
        family: Mapping[str, Any],
        retired: Mapping[str, Any] | None,
        gpus_busy_after: object = None,
        concealed: tuple[str, ...] = (),
        added: Mapping[str, Any] | None = None,
    ) -> None:
        self._records[group.name] = {
            "key": group.name,
            "ran_with": [],
            "command": list(group.command),
            "report": group.report,
            "status": ended.status,
            "reason": ended.reason,
            "exit_code": ended.exit_code,
            "signal": ended.signal,
            "started_at": started_at,
            "ended_at": utc_now(),
            "wall_s": round(wall_s, 3),
            "family": dict(family),
            "retired": None if retired is None else dict(retired),
            "gpus_busy_after": gpus_busy_after,
            "concealed": list(concealed),
            "added": None if added is None else dict(added),
            "evidence": None if started_at is None else f"groups/{group.name}",
        }
        self._event("cell-ended", cell=group.name, status=ended.status, reason=ended.reason or None)

    def _write_result(
        self, code: int, stopped: str | None, harness: str, pins: Mapping[str, str], changed: tuple[str, ...]
    ) -> None:
        job = self._job
        result = {
            "schema": NODE_SCHEMA,
            "run_id": job.run_id,
            "payload": "groups",
            "cell_set": job.name,
            "device": job.device,
            "exit_code": code,
            "stopped": stopped,
            "cells": [self._records[group.name] for group in job.groups],
            "sources": {"start": harness, "end": source_digest()},
            "qualified": {
                "archive_sha256": job.archive_sha256,
                "files": len(pins),
                "pins": "sources.json",
                "changed": list(changed),
            },
        }
        write_json(job.evidence / "node.json", result)

    def _event(self, event: str, **fields: Any) -> None:
        record = self._progress.write(event, **fields)
        print(" ".join(f"{name}={value}" for name, value in record.items() if name != "at"), flush=True)

    def _changed(self, pins: Mapping[str, str]) -> tuple[str, ...]:
        """Source files that are not the pinned ones any more, or were not in between."""
        self._swapped.update(self._source.changed(added=False))
        self._source.accept_folders()
        rest = {name: digest for name, digest in pins.items() if name not in self._swapped}
        return tuple(sorted({*self._swapped, *changed_files(self._job.source, rest)}))

    def _folder(self, group: Group) -> Path:
        return self._job.evidence / "groups" / group.name


def _is_too_much(log: BinaryIO) -> bool:
    return os.fstat(log.fileno()).st_size > MAX_OUTPUT_BYTES


def _keep_own(folder: Path, log: BinaryIO, group: Group) -> tuple[str, ...]:
    """Leave in the folder of a group its log and its report alone, as plain files of a bounded size.

    Returns what else was there, and is now gone, and what should have been there.
    """
    foreign = []
    for path in (folder.parent, folder):
        if path.is_symlink() or not path.is_dir():
            foreign.append(f"{path.name}/")
            if os.path.lexists(path):
                remove(path)
            path.mkdir(parents=True)
    if _is_too_much(log):
        os.ftruncate(log.fileno(), MAX_OUTPUT_BYTES)
    bounds = {"output.log": MAX_OUTPUT_BYTES, **({"tests.jsonl": MAX_REPORT_BYTES} if group.report == "pytest" else {})}
    for path in sorted(folder.iterdir()):
        status = path.lstat()
        plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
        if plain and status.st_size <= bounds.get(path.name, -1):
            continue
        foreign.append(written_name(path.name))
        remove(path)
    kept = folder / "output.log"
    if not kept.exists() or not kept.samefile(f"/proc/self/fd/{log.fileno()}"):
        foreign.append(kept.name)
    return tuple(dict.fromkeys(foreign))


def _ended(returncode: int) -> _Ended:
    """By its own exit code. A signal that nobody here sent came from outside, or is a fault of the command's own."""
    if returncode == 0:
        return _Ended(CellStatus.COMPLETE, "", 0)
    if returncode > 0:
        return _Ended(CellStatus.FAILED, f"it exited with {returncode}", returncode)
    number = -returncode
    if number in OWN_SIGNALS:
        return _Ended(CellStatus.FAILED, f"it died of {signal_name(number)}", None, number)
    return _Ended(CellStatus.INFRASTRUCTURE, f"it was killed by {signal_name(number)} from outside", None, number)
