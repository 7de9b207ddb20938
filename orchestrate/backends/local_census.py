"""One look for everything that a local run may own, question by question."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field

from orchestrate.backends.leftovers import SharedFile, TempFolder
from orchestrate.backends.members import Members
from orchestrate.backends.process_table import Process, processes
from orchestrate.backends.protocol import Answer, Look, Resource
from orchestrate.backends.sampling import Samples
from orchestrate.clock import to_wire, utc_now

__all__ = ["look_for"]


def look_for(
    members: Members,
    samples: Samples,
    temp: TempFolder,
    *,
    named: Callable[[], set[SharedFile]],
    with_gpus: bool = False,
) -> Look:
    """Ask every question once. `named` finds shared memory that is ours by its name. Never raises for what it finds."""
    findings = _Findings()
    findings.ask("processes with this run's token, or seen in it (pid and start time)", lambda: _processes(members))
    findings.ask("process groups of this run", lambda: _still_populated(members, "group"))
    findings.ask("sessions of this run", lambda: _still_populated(members, "session"))
    findings.ask("listening sockets of this run", lambda: _ports(samples))
    findings.ask("shared-memory files of this run", lambda: _shared(samples, named))
    findings.ask("temporary folder of this run", lambda: _temp_folder(temp))
    if with_gpus:
        findings.ask("GPU processes of this run", lambda: _gpu_processes(members))
    return Look(to_wire(utc_now()), tuple(findings.asked), tuple(findings.remaining), tuple(findings.unknown))


@dataclass(slots=True)
class _Findings:
    asked: list[Answer] = field(default_factory=list)
    remaining: list[Resource] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def ask(self, what: str, question: Callable[[], tuple[str, list[Resource]]]) -> None:
        try:
            answer, found = question()
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self.asked.append(Answer(what, f"could not be asked: {error}"))
            self.unknown.append(what)
            return
        self.asked.append(Answer(what, answer if not found else f"{answer}; {len(found)} still there"))
        self.remaining.extend(item for item in found if item not in self.remaining)


def _processes(members: Members) -> tuple[str, list[Resource]]:
    now = members.look()
    answer = f"{len(members.seen)} were tracked, {len(now.alive)} live"
    if now.zombies:
        answer += f", {len(now.zombies)} ended and wait for a parent that is not ours to reap them"
    return answer, [_as_resource(process) for process in now.alive]


def _still_populated(members: Members, kind: str) -> tuple[str, list[Resource]]:
    own = {0, os.getpgid(0), os.getsid(0)}  # 0: the leader is outside of our pid namespace
    numbers = {int(getattr(process, kind)) for process in members.seen.values()} - own
    table = {process.pid: process for process in processes()}
    eldest = min((identity.start_ticks for identity in members.seen), default=0)
    found = []
    for process in table.values():
        number = int(getattr(process, kind))
        if number not in numbers or process.is_zombie or process.identity.start_ticks < eldest:
            continue
        leader = table.get(number)
        if leader is not None and leader.identity not in members.seen:
            continue  # the number is in use again, by somebody else
        found.append(_as_resource(process))
    return f"{len(numbers)} were tracked", found


def _ports(samples: Samples) -> tuple[str, list[Resource]]:
    seen, _ = samples.counts()
    return f"{seen} were seen", [Resource("port", str(port.number)) for port in sorted(samples.ports_left())]


def _shared(samples: Samples, named: Callable[[], set[SharedFile]]) -> tuple[str, list[Resource]]:
    _, seen = samples.counts()
    left = samples.shared_left() | named()
    return f"{seen} were seen", [Resource("shared-memory", file.path) for file in sorted(left)]


def _temp_folder(temp: TempFolder) -> tuple[str, list[Resource]]:
    if temp.exists():
        return "it is there", [Resource("temp-folder", str(temp.path))]
    return "it is not there", []


def _gpu_processes(members: Members) -> tuple[str, list[Resource]]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return "there is no nvidia-smi, so no GPU", []
    answer = subprocess.run(
        [program, "--query-compute-apps=pid", "--format=csv,noheader"],
        capture_output=True, text=True, timeout=20, check=True,
    )  # fmt: skip
    pids = {int(line) for line in answer.stdout.split() if line.isdigit()}
    ours = pids & {identity.pid for identity in members.seen}
    return f"{len(pids)} processes hold a GPU", [Resource("gpu-process", str(pid)) for pid in sorted(ours)]


def _as_resource(process: Process) -> Resource:
    return Resource("process", f"{process.pid}:{process.identity.start_ticks} {process.name}")
