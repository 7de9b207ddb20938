"""What a rank measures with: time and memory, on a CPU and on a CUDA device."""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Protocol

import torch

__all__ = ["CpuInstruments", "CudaInstruments", "Instruments", "instruments"]


class Instruments(Protocol):
    """Time and memory of one rank."""

    def now_ms(self) -> float:
        """Milliseconds of a monotonic clock, after everything that was issued before has been done."""
        ...

    def reset_peak(self) -> None:
        """From now on count the peak anew."""
        ...

    def peak_bytes(self) -> int:
        """The most memory in use since the last reset."""
        ...

    def used_bytes(self) -> int:
        """Memory in use now, by the same measure as the peak."""
        ...


class CpuInstruments:
    """Resident memory of the process, as the kernel counts it."""

    _STATUS = Path("/proc/self/status")
    _CLEAR_REFS = Path("/proc/self/clear_refs")

    def now_ms(self) -> float:
        """Milliseconds of a monotonic clock."""
        return time.perf_counter() * 1e3

    def reset_peak(self) -> None:
        """Set the peak to what is resident now; where the kernel does not allow it the peak is that of the process."""
        try:
            self._CLEAR_REFS.write_text("5")
        except OSError:
            return

    def peak_bytes(self) -> int:
        """Peak resident set size."""
        return self._status_bytes("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def used_bytes(self) -> int:
        """Resident set size."""
        return self._status_bytes("VmRSS")

    def _status_bytes(self, name: str) -> int:
        return _kilobytes(self._STATUS, name)


class CudaInstruments:
    """The allocator's view of one CUDA device, and the driver's view of what is free."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def now_ms(self) -> float:
        """Milliseconds of a monotonic clock, after the device has done all its work."""
        torch.cuda.synchronize(self._device)
        return time.perf_counter() * 1e3

    def reset_peak(self) -> None:
        """Reset the allocator's peak."""
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak_bytes(self) -> int:
        """The allocator's peak."""
        return torch.cuda.max_memory_allocated(self._device)

    def used_bytes(self) -> int:
        """What the allocator has given out."""
        return torch.cuda.memory_allocated(self._device)


def instruments(device: torch.device) -> Instruments:
    """The instruments for `device`."""
    return CudaInstruments(device) if device.type == "cuda" else CpuInstruments()


def _kilobytes(path: Path, name: str) -> int:
    """The value of a `name: 123 kB` line in bytes, 0 where there is none."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)
