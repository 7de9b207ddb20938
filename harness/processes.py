"""The process family of a node on Linux: who descends from it, and how all of it ends.

torchrun gives each rank a session of its own, so no process group holds a cell together. Two kernel facts do: a
subreaper inherits every orphan among its descendants, so that walking `/proc` from it finds them all; and a mark in the
environment, which children inherit, says which cell a process belongs to whoever its parent is now.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

__all__ = ["become_subreaper", "descendants", "die_with_parent", "end_family", "marked", "reap"]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.02


def become_subreaper() -> None:
    """Make this process the one that inherits its orphaned descendants.

    Raises:
        OSError: the kernel refuses.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int | None = None) -> None:
    """Ask the kernel for SIGKILL when the parent process dies.

    `parent` is the pid that the caller expects as its parent: if that one is already gone, this process ends itself.

    Raises:
        OSError: the kernel refuses.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def descendants(root: int, proc: Path = Path("/proc")) -> tuple[int, ...]:
    """All living descendants of `root`, zombies left out, parents before their children."""
    children: dict[int, list[int]] = {}
    zombies = set()
    for pid, (state, parent) in _states(proc).items():
        children.setdefault(parent, []).append(pid)
        if state in "ZX":
            zombies.add(pid)
    found = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return tuple(pid for pid in found if pid not in zombies)


def marked(pids: Collection[int], mark: str, proc: Path = Path("/proc")) -> tuple[int, ...]:
    """Those of `pids` whose environment holds the entry `mark` (`NAME=value`)."""
    entry = mark.encode()
    return tuple(pid for pid in pids if entry in _environment(pid, proc).split(b"\0"))


def end_family(members: Callable[[], Collection[int]], *, grace_s: float, kill_s: float) -> tuple[int, ...]:
    """End every process that `members` names: SIGTERM, after `grace_s` SIGKILL again and again for up to `kill_s`.

    `members` is asked anew each time, because a family may grow while it is being ended. The answer is who is left:
    empty unless the kernel keeps a process from dying.
    """
    _send(members(), signal.SIGTERM)
    if _gone(members, grace_s):
        return ()
    deadline = time.monotonic() + kill_s
    while time.monotonic() < deadline:
        _send(members(), signal.SIGKILL)
        if _gone(members, 5 * _POLL_S):
            return ()
    return tuple(members())


def reap(keep: Collection[int]) -> Mapping[int, int]:
    """Reap every dead child but those in `keep`, which have a waiter of their own: pid -> wait status."""
    reaped: dict[int, int] = {}
    for pid in _dead_children(keep):
        try:
            reaped[pid] = os.waitpid(pid, os.WNOHANG)[1]
        except ChildProcessError:  # adopted and gone in between
            continue
    return reaped


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _states(proc: Path) -> dict[int, tuple[str, int]]:
    """Pid -> (state letter, parent)."""
    states = {}
    for entry in os.scandir(proc):
        if entry.name.isdigit():
            try:
                stat = (proc / entry.name / "stat").read_bytes()
            except OSError:  # gone since the listing
                continue
            fields = stat[stat.rindex(b")") + 2 :].split()  # the name before it may hold blanks and brackets
            states[int(entry.name)] = (fields[0].decode(), int(fields[1]))
    return states


def _environment(pid: int, proc: Path) -> bytes:
    try:
        return (proc / str(pid) / "environ").read_bytes()
    except OSError:  # gone, or not ours to read
        return b""


def _send(pids: Collection[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _gone(members: Callable[[], Collection[int]], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while members():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _dead_children(keep: Collection[int]) -> tuple[int, ...]:
    me = os.getpid()
    states = _states(Path("/proc"))
    return tuple(pid for pid, (state, parent) in states.items() if parent == me and state == "Z" and pid not in keep)
