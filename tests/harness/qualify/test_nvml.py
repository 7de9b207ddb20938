import os
import subprocess

import pytest

from harness.family import Family
from harness.nvml import GpuProcess, open_nvml

UNKNOWN = 2**64 - 1


class Library:
    """NVML's C functions, each writing through the pointers that it is given. `gpus`: rows of (pid, used bytes)."""

    def __init__(self, *gpus, code=0):
        self.gpus, self.code = gpus, code
        self.rooms = []

    def nvmlInit_v2(self):  # noqa: N802 - the library's own names
        return self.code

    def nvmlDeviceGetCount_v2(self, count):  # noqa: N802
        count._obj.value = len(self.gpus)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):  # noqa: N802
        handle._obj.value = index.value + 1
        return 0

    def nvmlDeviceGetUUID(self, handle, text, length):  # noqa: N802
        text.value = f"GPU-{handle.value}".encode()
        return 0 if len(text) == length.value else 2

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle, count, infos):  # noqa: N802
        rows = self.gpus[handle.value - 1]
        self.rooms.append(count._obj.value)
        room, count._obj.value = count._obj.value, len(rows)
        if room < len(rows):
            return 7
        for info, (pid, used) in zip(infos, rows, strict=False):
            info.pid, info.used_gpu_memory = pid, used
        return 0

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, handle, count, infos):  # noqa: N802
        count._obj.value = 0
        return 0


def test_processes_are_told_by_gpu_with_their_memory_where_the_driver_knows_it():
    nvml = open_nvml(lambda _name: Library([(7, 100), (8, UNKNOWN)], [(7, 200)]))
    assert nvml.processes() == (
        GpuProcess("GPU-1", 7, 100),
        GpuProcess("GPU-1", 8, None),
        GpuProcess("GPU-2", 7, 200),
    )


def test_more_processes_than_there_was_room_for_are_asked_for_again():
    library = Library([(pid, 1) for pid in range(100)])
    assert len(open_nvml(lambda _name: library).processes()) == 100
    assert library.rooms == [64, 256]


def test_without_the_library_there_is_nothing_to_ask_and_a_broken_one_is_an_error():
    def missing(name):
        raise OSError(name)

    assert open_nvml(missing) is None
    with pytest.raises(OSError, match="nvmlInit_v2 gives 9"):
        open_nvml(lambda _name: Library(code=9))
    with pytest.raises(OSError, match="nvmlInit_v2"):
        open_nvml(lambda _name: object())


def test_a_family_says_which_processes_on_the_gpus_were_its_own():
    child = subprocess.Popen(["sleep", "60"])
    answers = [
        (GpuProcess("GPU-1", child.pid, 5), GpuProcess("GPU-1", os.getpid(), None)),
        (GpuProcess("GPU-1", child.pid, 3),),
    ]
    family = Family(gpu_processes=lambda: answers.pop(0) if answers else ())
    try:
        family.sample()
        family.sample()
        assert family.as_facts()["gpu_processes"] == {
            "seen": [
                {"gpu": "GPU-1", "pid": child.pid, "in_family": True, "peak_used_bytes": 5},
                {"gpu": "GPU-1", "pid": os.getpid(), "in_family": False, "peak_used_bytes": None},
            ],
            "problem": None,
        }
    finally:
        child.kill()
        child.wait()


def test_a_family_says_where_nobody_was_asked_and_where_the_answer_failed():
    def fails():
        raise OSError("NVML: lost")

    assert Family().as_facts()["gpu_processes"] == "not-applicable"
    assert Family(gpu_processes=fails).as_facts()["gpu_processes"] == {"seen": [], "problem": "NVML: lost"}
