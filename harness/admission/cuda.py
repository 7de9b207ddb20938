"""The probe of a CUDA device: the driver's free memory, the caching allocator's statistics, `empty_cache`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

import torch

from harness.admission.probe import HostProbe, Probe, Reading, Release, ReleaseRefused

__all__ = ["CudaProbe", "CudaRuntime", "open_probe"]

_LARGE_BUFFER_BYTES = 20 << 20
"""`kLargeBuffer` of torch's caching allocator: what it takes from the driver for a request of 1 to 10 MiB; larger
requests are rounded to 2 MiB. Admission counts the coarser one."""


class CudaRuntime(Protocol):
    """The part of `torch.cuda` that the probe uses."""

    def mem_get_info(self, device: Any) -> tuple[int, int]:
        """Free and total bytes by the driver."""

    def memory_stats(self, device: Any) -> Mapping[str, Any]:
        """The allocator's statistics."""

    def empty_cache(self) -> None:
        """Return unused segments to the driver."""

    def synchronize(self, device: Any) -> None:
        """Wait for the device."""

    def reset_peak_memory_stats(self, device: Any) -> None:
        """Start the peaks again."""


class CudaProbe:
    """`device`'s memory through `runtime`, torch's own unless told otherwise.

    Raises:
        ReleaseRefused: `device` is no CUDA device.
    """

    def __init__(self, device: torch.device | str, runtime: CudaRuntime = torch.cuda) -> None:
        self._device = torch.device(device)
        if self._device.type != "cuda":
            raise ReleaseRefused(f"{self._device} is no CUDA device: it has no cache to release")
        self._runtime = runtime

    @property
    def can_release(self) -> bool:
        """Always."""
        return True

    def read(self) -> Reading:
        """The memory now; nothing is synchronised, because the allocator's account does not wait for the device."""
        free, total = self._runtime.mem_get_info(self._device)
        statistics = self._runtime.memory_stats(self._device)
        return Reading(
            total_bytes=total,
            free_bytes=free,
            reserved_bytes=int(statistics.get("reserved_bytes.all.current", 0)),
            allocated_bytes=int(statistics.get("allocated_bytes.all.current", 0)),
            inactive_split_bytes=int(statistics.get("inactive_split_bytes.all.current", 0)),
            peak_bytes=int(statistics.get("allocated_bytes.all.peak", 0)),
            alloc_retries=int(statistics.get("num_alloc_retries", 0)),
            granularity_bytes=_LARGE_BUFFER_BYTES,
        )

    def release(self) -> Release:
        """Empty the cache. Its time starts after the queued work is done, so that this work is not charged to it."""
        before = self.read()
        started = self.clock_ns()
        self._runtime.empty_cache()
        elapsed = self.clock_ns() - started
        return Release(before, self.read(), elapsed)

    def reset_peak(self) -> None:
        """Start `peak_bytes` again."""
        self._runtime.reset_peak_memory_stats(self._device)

    def clock_ns(self) -> int:
        """The monotonic clock, after the device is idle."""
        self._runtime.synchronize(self._device)
        return time.monotonic_ns()


def open_probe(device: torch.device | str, ranks: int = 1) -> Probe:
    """The probe of `device`: CUDA's, or the host's, which `ranks` share and which never releases."""
    return CudaProbe(device) if torch.device(device).type == "cuda" else HostProbe(ranks)
