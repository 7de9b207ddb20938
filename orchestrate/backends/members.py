"""The processes of one local run: how they are found, and how they are ended.

torchrun gives each rank its own session, ranks fork compile workers, and a worker may drop its environment, so no
single mark suffices. A process is a member when any of these holds, and then so are its descendants and whoever
shares its session or process group:

- the run's ownership token is in its environment,
- it was seen as a member before (pid and start time),
- it was orphaned and handed to the launcher, which is a subreaper (`adopts_orphans`).

The launcher, the warden, this process and its ancestors are never members.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from orchestrate.backends.process_table import (
    Process,
    ProcessIdentity,
    environment,
    processes,
    read_process,
    send_signal,
    ticks_since_boot,
)

__all__ = ["TOKEN_VARIABLE", "Ended", "Members", "Snapshot", "end_members"]

TOKEN_VARIABLE = "ORCHESTRATE_TOKEN"  # noqa: S105  # the name of a variable, not a secret


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The members at one moment.

    `alive` can still run. `zombies` have ended, hold nothing, and wait for a parent that is not ours to read their
    status: only that parent (or init, after it) can remove the entry, so they count as gone.
    """

    alive: tuple[Process, ...]
    zombies: tuple[Process, ...]


class Members:
    """Finds the members of the run that owns `token`.

    Args:
        token: the run's ownership token, 32 hex digits.
        adopts_orphans: whether this process is the subreaper of the run, so that its children are members.
    """

    def __init__(self, token: str, *, adopts_orphans: bool = False) -> None:
        self._token = token
        self._keep_out: set[ProcessIdentity] = set()
        self._adopts_orphans = adopts_orphans
        self._foreign: set[ProcessIdentity] = set()
        self._waited_for: set[int] = set()
        self._sessions: set[int] = set()
        self.seen: dict[ProcessIdentity, Process] = {}

    def keep_out(self, identity: ProcessIdentity) -> None:
        """From now on this process is not a member, whatever it looks like."""
        self._keep_out.add(identity)
        self.seen.pop(identity, None)

    def leave_to_its_waiter(self, pid: int) -> None:
        """Do not reap this child when it ends: somebody reads its exit status."""
        self._waited_for.add(pid)

    def recall(self, process: Process) -> None:
        """Remember a member that another process of ours saw during this boot."""
        self.seen.setdefault(process.identity, process)

    def look(self) -> Snapshot:
        """Read the process table once, reap what is ours to reap, and remember who was there."""
        table = processes()
        members = self._close_over(table)
        alive, zombies = [], []
        for process in members.values():
            self.seen[process.identity] = process
            if not process.is_zombie:
                alive.append(process)
            elif not self._reap(process):
                zombies.append(process)
        self._sessions = {process.session for process in alive} - self._own_sessions()
        return Snapshot(tuple(alive), tuple(zombies))

    def _close_over(self, table: tuple[Process, ...]) -> dict[int, Process]:
        by_pid = {process.pid: process for process in table}
        untouchable = self._untouchable(by_pid)
        own_sessions, own_groups = self._own_sessions(), {os.getpgid(0)}
        candidates = [process for process in table if process.identity not in untouchable]
        members = {process.pid: process for process in candidates if self._is_marked(process)}
        grown = True
        while grown:
            sessions = {process.session for process in members.values()} | self._sessions
            groups = {process.group for process in members.values()} - own_groups
            sessions -= own_sessions | {0}  # 0: the leader is outside of our pid namespace
            groups -= {0}
            found = {
                process.pid: process
                for process in candidates
                if process.pid not in members
                and (process.parent in members or process.session in sessions or process.group in groups)
            }
            members.update(found)
            grown = bool(found)
        return members

    def _is_marked(self, process: Process) -> bool:
        if process.identity in self.seen:
            return True
        if self._adopts_orphans and process.parent == os.getpid():
            return True
        if process.identity in self._foreign:
            return False
        found = environment(process.pid)
        if found is not None and found.get(TOKEN_VARIABLE) == self._token:
            return True
        # A young process may still be about to exec with our environment; an old one never becomes ours.
        if found and ticks_since_boot() - process.identity.start_ticks > _SETTLED_TICKS:
            self._foreign.add(process.identity)
        return False

    def _untouchable(self, by_pid: dict[int, Process]) -> set[ProcessIdentity]:
        untouchable = set(self._keep_out)
        pid = os.getpid()
        while pid in by_pid:
            untouchable.add(by_pid[pid].identity)
            pid = by_pid[pid].parent
        return untouchable

    def _own_sessions(self) -> set[int]:
        sessions = {os.getsid(0)}
        for identity in self._keep_out:
            process = read_process(identity.pid)
            if process is not None and process.identity == identity:
                sessions.add(process.session)
        return sessions

    def _reap(self, process: Process) -> bool:
        if process.parent != os.getpid() or process.pid in self._waited_for:
            return False
        try:
            return os.waitpid(process.pid, os.WNOHANG)[0] == process.pid
        except ChildProcessError:
            return True


@dataclass(slots=True)
class Ended:
    """What `end_members` did: how many got which signal, and who was still there at the end."""

    terminated: int = 0
    killed: int = 0
    refused: list[str] = field(default_factory=list)
    left: tuple[Process, ...] = ()


def end_members(
    look: Callable[[], Snapshot],
    *,
    grace_s: float,
    kill_s: float,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Ended:
    """End every member: SIGTERM to those at the top, `grace_s` to go, then SIGKILL until two looks find nobody.

    Only a member whose parent is not a member is told to end: it knows how to end those below it, and can say that it
    was told. Orphans of one that ended without doing so come to the top themselves. Two empty looks, because a fork
    can race one reading of the table: the child of a process that was killed between being listed and being signalled
    carries the same mark and is found by the next look. Gives up after `kill_s` more seconds (a process in
    uninterruptible sleep can not be killed) and says who is left.
    """
    ended = Ended()
    told: set[ProcessIdentity] = set()
    deadline = clock() + grace_s
    alive = look().alive
    while alive and clock() < deadline:
        pids = {process.pid for process in alive}
        for process in alive:
            if process.parent in pids or process.identity in told:
                continue
            told.add(process.identity)
            if _signal(process, signal.SIGTERM, ended):
                ended.terminated += 1
                _signal(process, signal.SIGCONT, ended)  # a stopped process acts on SIGTERM only once it runs
        pause(_PAUSE_S)
        alive = look().alive
    killed: set[ProcessIdentity] = set()
    deadline = clock() + kill_s
    empty_looks = 0 if alive else 1
    while empty_looks < 2 and clock() < deadline:
        for process in alive:
            if _signal(process, signal.SIGKILL, ended):
                killed.add(process.identity)
        pause(_PAUSE_S)
        alive = look().alive
        empty_looks = 0 if alive else empty_looks + 1
    ended.killed = len(killed)
    ended.left = alive
    return ended


_SETTLED_TICKS = 2 * os.sysconf("SC_CLK_TCK")
_PAUSE_S = 0.05


def _signal(process: Process, signum: signal.Signals, ended: Ended) -> bool:
    try:
        return send_signal(process.identity, signum)
    except PermissionError as error:
        ended.refused.append(f"{signum.name} to {process.pid}: {error.strerror}")
        return False
