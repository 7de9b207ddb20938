"""The kernel's process table: who lives, who begat whom, and signals that can not hit a stranger.

A process is named by its pid *and* the clock tick at which it started: pids are used again, that pair is not (until
the next boot). Linux only; everything is read from `/proc`.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "Process",
    "ProcessIdentity",
    "become_subreaper",
    "boot_id",
    "environment",
    "identity_of",
    "processes",
    "read_process",
    "send_signal",
    "ticks_since_boot",
]

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, order=True)
class ProcessIdentity:
    """A process of this boot. `start_ticks` is field 22 of `/proc/PID/stat`: clock ticks since boot."""

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class Process:
    """One line of the process table. `rss_bytes` is resident memory; `threads` counts the living threads."""

    identity: ProcessIdentity
    parent: int
    group: int
    session: int
    state: str
    threads: int
    rss_bytes: int
    name: str

    @property
    def pid(self) -> int:
        """The process id."""
        return self.identity.pid

    @property
    def is_zombie(self) -> bool:
        """Whether it has ended and only waits for its parent to read the exit status.

        A leader that ended before its other threads also shows as `Z`, but is alive.
        """
        return self.state in "ZX" and self.threads <= 1


def processes() -> tuple[Process, ...]:
    """Every process that this process may see, kernel threads left out."""
    return tuple(_all())


def read_process(pid: int) -> Process | None:
    """The process with that pid now, or None; kernel threads are no processes."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:  # noqa: PTH123  # a thousand times a look: Path costs double
            text = stream.read().decode("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name is in parentheses and may itself hold spaces and parentheses.
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    if int(fields[6]) & _KERNEL_THREAD:
        return None
    return Process(
        identity=ProcessIdentity(pid, int(fields[19])),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        state=fields[0],
        threads=int(fields[17]),
        rss_bytes=int(fields[21]) * _PAGE_BYTES,
        name=head.partition("(")[2],
    )


def identity_of(pid: int) -> ProcessIdentity | None:
    """The identity of the process that has this pid now, or None."""
    process = read_process(pid)
    return None if process is None else process.identity


def environment(pid: int) -> dict[str, str] | None:
    """The environment that the process was started with, or None where the kernel does not show it.

    Empty for zombies and for processes in the middle of an exec.
    """
    try:
        block = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    pairs = (entry.partition(b"=") for entry in block.split(b"\0") if entry)
    return {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, _, value in pairs}


def send_signal(identity: ProcessIdentity, signum: signal.Signals) -> bool:
    """Signal exactly this process; False when it is gone already. Raises `PermissionError` where we may not.

    The pidfd is opened first and the start time read after: what the descriptor names can not change any more.
    """
    try:
        descriptor = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return False
    try:
        if identity_of(identity.pid) != identity:
            return False
        signal.pidfd_send_signal(descriptor, signum)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def become_subreaper() -> bool:
    """Make orphans below this process its children instead of init's; False where the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) == 0


def boot_id() -> str:
    """The kernel's name for this boot: start ticks of another boot mean nothing."""
    return (_PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()


def ticks_since_boot() -> int:
    """Now, on the clock of `ProcessIdentity.start_ticks`."""
    return int(float((_PROC / "uptime").read_text("ascii").split()[0]) * os.sysconf("SC_CLK_TCK"))


_PR_SET_CHILD_SUBREAPER = 36
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD of the kernel's include/linux/sched.h
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def _all() -> Iterator[Process]:
    for name in os.listdir(_PROC):  # noqa: PTH208  # names, not paths
        if name.isdigit() and (process := read_process(int(name))) is not None:
            yield process
