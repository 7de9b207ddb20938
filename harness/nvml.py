"""Which processes are on the GPUs of this node, as NVML says: the driver's own library, which every node with GPUs has.

Loaded by its C interface, so that a node needs no package for it. Where there is none there is no GPU to look at.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["GpuProcess", "Nvml", "open_nvml"]

LIBRARY = "libnvidia-ml.so.1"
_SUCCESS, _INSUFFICIENT_SIZE = 0, 7
_NOT_AVAILABLE = 2**64 - 1
_UUID_BYTES = 96
_MOST = 4096


class _ProcessInfo(ctypes.Structure):
    """`nvmlProcessInfo_t` of the functions that end in `_v3`."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_gpu_memory", ctypes.c_ulonglong),
        ("gpu_instance_id", ctypes.c_uint),
        ("compute_instance_id", ctypes.c_uint),
    )


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process on the GPU of that UUID. In a container the pid may be the host's; `used_bytes` None: not told."""

    gpu: str
    pid: int
    used_bytes: int | None


class Nvml:
    """An initialised NVML. `library` is what `ctypes.CDLL` gives.

    Raises:
        OSError: it can not be initialised, or a later question is refused.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        self._ask("nvmlInit_v2")
        count = ctypes.c_uint()
        self._ask("nvmlDeviceGetCount_v2", ctypes.byref(count))
        self._devices = [self._device(index) for index in range(count.value)]

    def processes(self) -> tuple[GpuProcess, ...]:
        """Every process that computes or draws on a GPU now, once for each GPU that it is on."""
        found: dict[tuple[str, int], GpuProcess] = {}
        for uuid, handle in self._devices:
            for kind in ("Compute", "Graphics"):
                for info in self._infos(f"nvmlDeviceGet{kind}RunningProcesses_v3", handle):
                    used = None if info.used_gpu_memory == _NOT_AVAILABLE else int(info.used_gpu_memory)
                    found.setdefault((uuid, info.pid), GpuProcess(uuid, int(info.pid), used))
        return tuple(found.values())

    def _device(self, index: int) -> tuple[str, ctypes.c_void_p]:
        handle, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(_UUID_BYTES)
        self._ask("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        self._ask("nvmlDeviceGetUUID", handle, uuid, ctypes.c_uint(_UUID_BYTES))
        return uuid.value.decode("ascii", "replace"), handle

    def _infos(self, name: str, handle: ctypes.c_void_p) -> list[_ProcessInfo]:
        room = 64
        while room <= _MOST:
            count, infos = ctypes.c_uint(room), (_ProcessInfo * room)()
            code = getattr(self._library, name)(handle, ctypes.byref(count), infos)
            if code == _SUCCESS:
                return list(infos[: count.value])
            if code != _INSUFFICIENT_SIZE:
                raise OSError(f"NVML: {name} gives {code}")
            room *= 4
        raise OSError(f"NVML: {name} has more than {_MOST} processes")

    def _ask(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != _SUCCESS:
            raise OSError(f"NVML: {name} gives {code}")


def open_nvml(load: Callable[[str], Any] = ctypes.CDLL) -> Nvml | None:
    """The NVML of this node; None where there is none.

    Raises:
        OSError: it is there and does not work.
    """
    try:
        library = load(LIBRARY)
    except OSError:
        return None
    try:
        return Nvml(library)
    except AttributeError as error:  # a driver older than the functions above
        raise OSError(f"NVML: {error}") from error
