"""How much memory a rank really has: what the driver calls free, what the allocator holds, what a release gives back.

Admission looks at memory through a `Probe` alone: CUDA's (`harness.admission.cuda`), the simulated one
(`harness.admission.simulated`), and the host's here, which never releases.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harness.errors import InputError

__all__ = ["HostProbe", "Probe", "Reading", "Release", "ReleaseRefused"]


@dataclass(frozen=True, slots=True)
class Reading:
    """Memory of one device at one moment, in bytes.

    `free_bytes` is physically free by the driver's own account, whoever holds the rest; `reserved_bytes` is what this
    process's allocator holds, `allocated_bytes` the part of it in live tensors, `inactive_split_bytes` the free parts
    of segments that also hold live blocks: no release returns those. `peak_bytes` is the most that was allocated since
    the last `reset_peak`. `alloc_retries` counts the allocator's own emergency flushes. One allocation takes a multiple
    of `granularity_bytes` from the driver.
    """

    total_bytes: int
    free_bytes: int
    reserved_bytes: int
    allocated_bytes: int
    inactive_split_bytes: int
    peak_bytes: int
    alloc_retries: int
    granularity_bytes: int


@dataclass(frozen=True, slots=True)
class Release:
    """One release of the allocator's cache: the readings around it and its wall time, both sides synchronised."""

    before: Reading
    after: Reading
    elapsed_ns: int

    @property
    def came_back_bytes(self) -> int:
        """What the allocator gave back to the driver.

        Taken from the allocator's own account: the driver's free memory also moves with other processes.
        """
        return max(0, self.before.reserved_bytes - self.after.reserved_bytes)


class ReleaseRefused(RuntimeError):  # noqa: N818 - a refusal is an answer, not a fault
    """The device has no cache that could be released."""


class Probe(Protocol):
    """One rank's view of its device's memory."""

    @property
    def can_release(self) -> bool:
        """Whether `release` can give anything back on this kind of device."""

    def read(self) -> Reading:
        """The memory now."""

    def release(self) -> Release:
        """Give the cache back to the driver.

        Raises:
            ReleaseRefused: the device never releases.
        """

    def reset_peak(self) -> None:
        """Start `peak_bytes` again from what is allocated now."""

    def clock_ns(self) -> int:
        """Monotonic time after all work queued on the device is done, in nanoseconds."""


class HostProbe:
    """The host's memory, for ranks on a CPU. There is no cache to release, so it refuses to.

    `read` reports what the kernel says is available, within the limit of the control group where there is one, divided
    by the `ranks` that share the host.
    """

    def __init__(self, ranks: int = 1, *, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> None:
        self._ranks = ranks
        self._proc = proc
        self._cgroup = cgroup

    @property
    def can_release(self) -> bool:
        """Never."""
        return False

    def read(self) -> Reading:
        """The host's memory now; allocator statistics are zero, because the CPU's allocator keeps none.

        Raises:
            InputError: the kernel does not say how much memory is available.
        """
        facts = _meminfo(self._proc / "meminfo")
        total, free = facts["MemTotal"], facts["MemAvailable"]
        limit, used = _number(self._cgroup / "memory.max"), _number(self._cgroup / "memory.current")
        if limit is not None and used is not None:
            used -= _cached_bytes(self._cgroup / "memory.stat")
            total, free = min(total, limit), min(free, max(0, limit - used))
        return Reading(total // self._ranks, free // self._ranks, 0, 0, 0, 0, 0, granularity_bytes=4096)

    def release(self) -> Release:
        """Refuses.

        Raises:
            ReleaseRefused: always.
        """
        raise ReleaseRefused("a CPU device has no cache to release")

    def reset_peak(self) -> None:
        """Nothing to reset."""

    def clock_ns(self) -> int:
        """The monotonic clock: nothing is queued on a CPU."""
        return time.monotonic_ns()


def _meminfo(path: Path) -> dict[str, int]:
    """Bytes by name."""
    facts: dict[str, int] = {}
    for line in path.read_text().splitlines():
        name, _, rest = line.partition(":")
        if rest.strip().endswith("kB"):
            facts[name] = int(rest.split()[0]) * 1024
    missing = {"MemTotal", "MemAvailable"} - set(facts)
    if missing:
        raise InputError(f"{path} does not give {', '.join(sorted(missing))}", remedy="run on Linux 3.14 or newer")
    return facts


def _cached_bytes(path: Path) -> int:
    """Pages of files that the kernel drops when the group needs memory; 0 where it does not say."""
    try:
        facts = dict(line.split() for line in path.read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(facts.get("inactive_file", 0)) + int(facts.get("active_file", 0))


def _number(path: Path) -> int | None:
    """The integer in `path`; None where there is no such file or it says `max`."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
