"""The process family of a command group: everything that it starts is its own, however it was detached.

A node runs one group at a time and is the subreaper of all that descends from it, so that a double fork or a session
of its own does not take a process out of the family. The family is sampled: a process that lives for less than the
time between two looks may go unseen, and is retired all the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.nvml import GpuProcess
from harness.preflight import NOT_APPLICABLE
from harness.processes import descendants, end_family, reap

__all__ = ["Family", "Member", "Retired", "read_member"]

_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Member:
    """One process as it was last seen. A pid is used again; `start_ticks` since boot tells its holders apart."""

    pid: int
    start_ticks: int
    name: str
    group: int
    session: int
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class Retired:
    """How a family ended: who outlived its first process, how many of those were killed, and who is left still."""

    outlived: tuple[str, ...]
    killed: int
    left: tuple[str, ...]


@dataclass(slots=True)
class Family:
    """Everything below this process, from now on until `retire`.

    `peak_rss_bytes` is the largest sum of resident memory in one look; a page that two processes share counts twice.
    `gpu_processes` asks who is on the GPUs now, None where there is no NVML to ask; an `OSError` of it is kept.
    """

    proc: Path = Path("/proc")
    gpu_processes: Callable[[], Collection[GpuProcess]] | None = None
    peak_rss_bytes: int = 0
    seen: dict[tuple[int, int], Member] = field(default_factory=dict)
    _on_gpus: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    _gpu_problem: str | None = None

    def sample(self) -> tuple[Member, ...]:
        """Look once; the living members."""
        members = tuple(
            member for pid in descendants(os.getpid(), self.proc) if (member := read_member(pid, self.proc)) is not None
        )
        self.seen.update({(member.pid, member.start_ticks): member for member in members})
        self.peak_rss_bytes = max(self.peak_rss_bytes, sum(member.rss_bytes for member in members))
        self._sample_gpus({member.pid for member in members})
        return members

    def retire(self, keep: Collection[int] = (), *, grace_s: float = 2.0, kill_s: float = 10.0) -> Retired:
        """End whoever is still there: SIGTERM, a grace, SIGKILL. `keep` has a waiter of its own and is not reaped."""
        outlived = self.sample()
        if outlived:
            end_family(self._living, grace_s=grace_s, kill_s=kill_s)
        reap(keep)
        left = self.sample()
        return Retired(
            outlived=tuple(f"{member.name} {member.pid}" for member in outlived),
            killed=len(outlived) - len({member.pid for member in outlived} & {member.pid for member in left}),
            left=tuple(f"{member.name} {member.pid}" for member in left),
        )

    def as_facts(self) -> dict[str, Any]:
        """What the receipts say: how many, which, and the peak of their memory."""
        members = self.seen.values()
        alive = {(member.pid, member.start_ticks) for member in self.sample()}
        return {
            "tracked": len(self.seen),
            "groups": len({member.group for member in members}),
            "sessions": len({member.session for member in members}),
            "retired": sum(identity not in alive for identity in self.seen),
            "peak_rss_bytes": self.peak_rss_bytes,
            "gpu_processes": NOT_APPLICABLE
            if self.gpu_processes is None
            else {"seen": list(self._on_gpus.values()), "problem": self._gpu_problem},
            "members": [
                {
                    "pid": member.pid,
                    "start_ticks": member.start_ticks,
                    "name": member.name,
                    "group": member.group,
                    "session": member.session,
                }
                for member in members
            ],
        }

    def _sample_gpus(self, pids: Collection[int]) -> None:
        """Who is on which GPU, of the family or not: in a container NVML may name pids of the host."""
        try:
            found = () if self.gpu_processes is None else self.gpu_processes()
        except OSError as error:
            self._gpu_problem = str(error)
            return
        for one in found:
            row = self._on_gpus.setdefault(
                (one.gpu, one.pid), {"gpu": one.gpu, "pid": one.pid, "in_family": False, "peak_used_bytes": None}
            )
            row["in_family"] = row["in_family"] or one.pid in pids
            if one.used_bytes is not None:
                row["peak_used_bytes"] = max(one.used_bytes, row["peak_used_bytes"] or 0)

    def _living(self) -> tuple[int, ...]:
        return tuple(member.pid for member in self.sample())


def read_member(pid: int, proc: Path = Path("/proc")) -> Member | None:
    """The process `pid`; None where it is gone. Fields as proc_pid_stat(5) numbers them."""
    try:
        stat = (proc / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    opened, closed = stat.index(b"("), stat.rindex(b")")  # the name between them may hold blanks and brackets
    fields = stat[closed + 2 :].split()
    return Member(
        pid=pid,
        start_ticks=int(fields[19]),
        name=stat[opened + 1 : closed].decode("utf-8", "replace"),
        group=int(fields[2]),
        session=int(fields[3]),
        rss_bytes=int(fields[21]) * _PAGE,
    )
