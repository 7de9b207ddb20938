"""One run of the node script: start cells, watch them, say what became of each, and never leave a process behind."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.documents import write_json
from harness.evidence import read_rows, utc_now
from harness.outcome import CellStatus, Ended, Outcome, classify, exit_code
from harness.placement import place
from harness.preflight import Preflight, look
from harness.processes import become_subreaper, descendants, end_family, marked, reap
from harness.racing import Schedule
from harness.stop_requests import StopRequests, stop_requests
from harness.trace.stall import take_stacks, write_stall
from harness.trace.watchdog import Beat, Budgets, Stall, StallWatch, read_beats

__all__ = ["NODE_SCHEMA", "CellJob", "NodeJob", "NodeRun", "source_digest"]

NODE_SCHEMA = "harness.node/1"
_MARK = "HARNESS_CELL"
_LOOK_S = 0.25
_GRACE_S = 2.0
_KILL_S = 10.0
_STACKS_S = 3.0


@dataclass(frozen=True, slots=True)
class CellJob:
    """A cell to run: torchrun starts `ranks` of `command`, with `--evidence` and `--fingerprint` at its end."""

    key: str
    slug: str
    ranks: int
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeJob:
    """What a node is to do. `groups` is None where none were selected; `lifeline_fd` where nobody holds one.

    `floors` are the least budgets that measured times can bring about; None keeps `budgets` as they are.
    """

    run_id: str
    cell_set: str
    groups: tuple[int, ...] | None
    repeat: int
    device: str
    slots: int
    evidence: Path
    cells: tuple[CellJob, ...]
    budgets: Budgets
    schedule: Schedule = Schedule.FIXED
    floors: Budgets | None = None
    lifeline_fd: int | None = None


class NodeRun:
    """One run of `job`. `env` is what the cells' processes inherit."""

    def __init__(self, job: NodeJob, env: Mapping[str, str], *, check: Callable[[], Preflight] | None = None) -> None:
        self._job = job
        self._env = env
        self._check = check or (lambda: look(job.device, job.slots, env))
        self._fingerprint = ""
        self._sources = ""
        self._running: list[_Running] = []
        self._records: dict[str, dict[str, Any]] = {}

    def run(self) -> int:
        """Run all cells; returns the node's exit code. Whatever happens, no process of a cell is left.

        Raises:
            OSError: the evidence can not be written, or the kernel can not do what a node needs.
        """
        job = self._job
        job.evidence.mkdir(parents=True, exist_ok=True)
        become_subreaper()
        self._sources = sources = source_digest()
        with tempfile.TemporaryDirectory(prefix="harness-") as scratch, stop_requests(job.lifeline_fd) as requests:
            try:
                self._event("node-started", cell_set=job.cell_set, cells=[cell.key for cell in job.cells])
                if self._node_is_good():
                    self._run_cells(requests, Path(scratch))
                stopped = requests.reason
            finally:
                end_family(lambda: descendants(os.getpid()), grace_s=0, kill_s=_KILL_S)
                reap(())
        code = exit_code(
            (CellStatus(record["status"]) for record in self._records.values()), stopped=stopped is not None
        )
        self._write_result(code, stopped, sources)
        self._event("node-ended", status=stopped or "ran to its end", exit_code=code)
        return code

    def _node_is_good(self) -> bool:
        preflight = self._check()
        self._fingerprint = preflight.facts["fingerprint"]
        write_json(self._job.evidence / "preflight.json", preflight.facts)
        for problem in preflight.problems:
            print(f"error: {problem}", file=sys.stderr)
        if not preflight.problems:
            return True
        reason = "; ".join(preflight.problems)
        for cell in self._job.cells:
            self._record_unstarted(cell, Outcome(CellStatus.INFRASTRUCTURE, reason, None, None))
        return False

    def _run_cells(self, requests: StopRequests, scratch: Path) -> None:
        waiting = list(self._job.cells)
        while (waiting or self._running) and requests.reason is None:
            taken = {slot for running in self._running for slot in running.slots}
            free = [slot for slot in range(self._job.slots) if slot not in taken]
            placed = place([cell.ranks for cell in waiting], free)
            for each in placed:
                self._start(waiting[each.index], each.slots, scratch)
            del waiting[: len(placed)]
            requests.wait(_LOOK_S)
            for running in tuple(self._running):
                self._look_at(running)
        if requests.reason is not None:
            # All together: each family has its own grace, and a stop must not take one grace per cell.
            end_family(lambda: descendants(os.getpid()), grace_s=_GRACE_S, kill_s=_KILL_S)
            for running in tuple(self._running):
                self._finish(running, stopped=f"the node was stopped: {requests.reason}")
            for cell in waiting:
                reason = f"the node was stopped before the cell began: {requests.reason}"
                self._record_unstarted(cell, Outcome(CellStatus.CANCELLED, reason, None, None))

    def _start(self, cell: CellJob, slots: tuple[int, ...], scratch: Path) -> None:
        directory = self._directory(cell)
        directory.mkdir(parents=True)
        mark = f"{_MARK}={self._job.run_id}/{cell.slug}/{os.getpid()}"
        launcher = [sys.executable, "-m", "harness.torchrun"]
        launcher += ["--failures", str(directory / "failures.json"), "--parent", str(os.getpid())]
        launcher += ["--fork-ranks", "1" if self._job.device == "cpu" else "0"]
        launcher += ["--nnodes", "1", "--nproc-per-node", str(cell.ranks), "--max-restarts", "0"]
        launcher += ["--rdzv-backend", "loopback", "--rdzv-id", cell.slug, "--local-addr", "127.0.0.1"]
        sources = source_digest()  # before: each cell imports the files anew
        with (directory / "stdout.log").open("wb") as log:
            process = subprocess.Popen(
                [
                    *launcher,
                    *cell.command,
                    "--evidence",
                    str(directory / "rows.jsonl"),
                    "--fingerprint",
                    self._fingerprint,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(mark, slots, scratch),
                start_new_session=True,  # so that a Ctrl-C at a terminal comes to the node alone
            )
        stall_watch = StallWatch(self._job.budgets, time.monotonic(), floors=self._job.floors)
        started = _Running(cell, slots, process, mark, stall_watch, utc_now(), sources)
        for other in self._running:
            other.ran_with.add(cell.key)
            started.ran_with.add(other.cell.key)
        self._running.append(started)
        self._event("cell-started", cell=cell.key, phase="load", pid=process.pid, slots=list(slots))

    def _environment(self, mark: str, slots: tuple[int, ...], scratch: Path) -> dict[str, str]:
        """The cell's environment: its mark, loopback only, one thread a rank, its own GPUs or none."""
        name, _, value = mark.partition("=")
        visible = self._env.get("CUDA_VISIBLE_DEVICES")
        gpus = [str(slot) for slot in range(self._job.slots)] if visible is None else visible.split(",")
        return {
            **self._env,
            name: value,
            "TMPDIR": str(scratch),
            "MASTER_ADDR": "127.0.0.1",
            "GLOO_SOCKET_IFNAME": "lo",
            "NCCL_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "CUDA_VISIBLE_DEVICES": "" if self._job.device == "cpu" else ",".join(gpus[slot] for slot in slots),
        }

    def _look_at(self, running: _Running) -> None:
        if running.process.poll() is not None:
            self._finish(running)
            return
        beats = read_beats(self._directory(running.cell) / "trace")
        self._show(running, beats.get(0))
        stall = running.watch.observe(beats, time.monotonic())
        if stall is not None:
            self._end_stalled(running, beats, stall)

    def _show(self, running: _Running, beat: Beat | None) -> None:
        """A progress event whenever rank 0 is at something else."""
        if beat is None or replace(beat, count=0, compiling=False) == running.shown:
            return
        running.shown = replace(beat, count=0, compiling=False)
        self._event(
            "progress",
            cell=running.cell.key,
            candidate=beat.candidate,
            phase=beat.phase,
            round=beat.round,
            rounds=beat.rounds,
            pid=beat.pid,
        )

    def _end_stalled(self, running: _Running, beats: Mapping[int, Beat], stall: Stall) -> None:
        """Stacks first, then the end: what a hung rank was doing is lost with it."""
        members = set(running.members())
        pids = {rank: beat.pid for rank, beat in beats.items() if beat.pid in members}
        directory = self._directory(running.cell)
        silent = take_stacks(directory / "stacks", pids, within_s=_STACKS_S)
        told = write_stall(directory / "trace", stall, silent, ended=True)
        end_family(running.members, grace_s=0, kill_s=_KILL_S)
        self._finish(running, stall=told)

    def _finish(self, running: _Running, *, stall: str | None = None, stopped: str | None = None) -> None:
        end_family(running.members, grace_s=0, kill_s=_KILL_S)
        with suppress(subprocess.TimeoutExpired):
            running.process.wait(timeout=_KILL_S)
        self._running.remove(running)
        reap([other.process.pid for other in self._running])
        directory = self._directory(running.cell)
        for stacks in (directory / "stacks").glob("rank*.txt"):
            if not _has_content(stacks):
                stacks.unlink()
        rows = read_rows(directory / "rows.jsonl")
        end = rows[-1] if rows and rows[-1].get("row") == "end" else None
        ended = Ended(running.process.poll(), _read_json(directory / "failures.json"), end, stall, stopped)
        outcome = classify(ended)
        if outcome.status is CellStatus.COMPLETE and {running.sources, source_digest()} != {self._sources}:
            reason = "source files of the harness changed while the node ran"
            outcome = Outcome(CellStatus.FAILED, reason, outcome.exit_code, outcome.signal)
        self._record(running, outcome, len(rows))

    def _record(self, running: _Running, outcome: Outcome, rows: int) -> None:
        cell = running.cell
        self._records[cell.key] = {
            "key": cell.key,
            "slug": cell.slug,
            "status": outcome.status,
            "reason": outcome.reason,
            "exit_code": outcome.exit_code,
            "signal": outcome.signal,
            "started_at": running.started_at,
            "ended_at": utc_now(),
            "ran_with": sorted(running.ran_with),
            "slots": list(running.slots),
            "evidence": f"cells/{cell.slug}/rows.jsonl",
            "rows": rows,
        }
        self._event("cell-ended", cell=cell.key, status=outcome.status, reason=outcome.reason, pid=running.process.pid)

    def _record_unstarted(self, cell: CellJob, outcome: Outcome) -> None:
        self._records[cell.key] = {
            "key": cell.key,
            "slug": cell.slug,
            "status": outcome.status,
            "reason": outcome.reason,
            "exit_code": None,
            "signal": None,
            "started_at": None,
            "ended_at": None,
            "ran_with": [],
            "slots": [],
            "evidence": None,
            "rows": 0,
        }

    def _write_result(self, code: int, stopped: str | None, sources: str) -> None:
        job = self._job
        result = {
            "schema": NODE_SCHEMA,
            "run_id": job.run_id,
            "cell_set": job.cell_set,
            "groups": None if job.groups is None else list(job.groups),
            "repeat": job.repeat,
            "schedule": job.schedule,
            "device": job.device,
            "exit_code": code,
            "stopped": stopped,
            "cells": [self._records[cell.key] for cell in job.cells if cell.key in self._records],
            "sources": {"start": sources, "end": source_digest()},
        }
        write_json(job.evidence / "node.json", result)

    def _event(self, event: str, **fields: Any) -> None:
        record = {
            "at": utc_now(),
            "event": event,
            **{name: value for name, value in fields.items() if value is not None},
        }
        with (self._job.evidence / "node.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        print(" ".join(f"{name}={value}" for name, value in record.items() if name != "at"), flush=True)

    def _directory(self, cell: CellJob) -> Path:
        return self._job.evidence / "cells" / cell.slug


def source_digest(root: Path = Path(__file__).parent) -> str:
    """SHA-256 over the harness's own files, names and contents: whether what ran changed while it ran.

    It is the digest of the sorted-key JSON object of `harness/<path>` to the file's SHA-256.
    """
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.suffix in {".py", ".json", ".txt"})
    pins = {f"harness/{path.relative_to(root)}": hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    return hashlib.sha256(json.dumps(pins, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@dataclass(slots=True)
class _Running:
    """A cell under way."""

    cell: CellJob
    slots: tuple[int, ...]
    process: subprocess.Popen[bytes]
    mark: str
    watch: StallWatch
    started_at: str
    sources: str
    ran_with: set[str] = field(default_factory=set)
    shown: Beat | None = None

    def members(self) -> Collection[int]:
        """The cell's living processes, whoever their parent is now."""
        return marked(descendants(os.getpid()), self.mark)


def _has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    content: dict[str, Any] = json.loads(path.read_bytes())
    return content
