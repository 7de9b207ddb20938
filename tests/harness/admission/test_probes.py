import pytest
import torch

from harness.admission.cuda import CudaProbe, open_probe
from harness.admission.probe import HostProbe, ReleaseRefused
from harness.errors import InputError

MIB = 1 << 20


class Runtime:
    """`torch.cuda` as the probe sees it, with a log of what it called."""

    def __init__(self):
        self.calls = []
        self.free = 10 * MIB
        self.stats = {
            "reserved_bytes.all.current": 80 * MIB,
            "allocated_bytes.all.current": 20 * MIB,
            "inactive_split_bytes.all.current": 5 * MIB,
            "allocated_bytes.all.peak": 70 * MIB,
            "num_alloc_retries": 3,
        }

    def mem_get_info(self, device):
        self.calls.append("mem_get_info")
        return self.free, 100 * MIB

    def memory_stats(self, device):
        self.calls.append("memory_stats")
        return dict(self.stats)

    def empty_cache(self):
        self.calls.append("empty_cache")
        self.free += 50 * MIB
        self.stats["reserved_bytes.all.current"] -= 55 * MIB
        self.stats["num_alloc_retries"] += 1

    def synchronize(self, device):
        self.calls.append("synchronize")

    def reset_peak_memory_stats(self, device):
        self.calls.append("reset_peak")


def test_a_cuda_reading_is_the_drivers_free_memory_and_the_allocators_statistics():
    reading = CudaProbe("cuda:0", Runtime()).read()
    assert (reading.free_bytes, reading.total_bytes, reading.reserved_bytes) == (10 * MIB, 100 * MIB, 80 * MIB)
    assert (reading.allocated_bytes, reading.inactive_split_bytes) == (20 * MIB, 5 * MIB)
    assert (reading.peak_bytes, reading.alloc_retries) == (70 * MIB, 3)


def test_a_cuda_release_is_synchronised_on_both_sides_of_empty_cache():
    runtime = Runtime()
    release = CudaProbe("cuda:0", runtime).release()
    index = runtime.calls.index("empty_cache")
    assert runtime.calls[index - 1] == runtime.calls[index + 1] == "synchronize"
    assert runtime.calls.count("empty_cache") == 1
    assert (release.before.alloc_retries, release.after.alloc_retries) == (3, 4)
    assert release.elapsed_ns > 0


def test_what_came_back_is_the_allocators_account_and_not_the_drivers():
    """The driver's free memory also moves with other processes: here one took 5 MiB meanwhile."""
    release = CudaProbe("cuda:0", Runtime()).release()
    assert release.after.free_bytes - release.before.free_bytes == 50 * MIB
    assert release.came_back_bytes == 55 * MIB


def test_a_cuda_probe_of_a_cpu_is_refused():
    with pytest.raises(ReleaseRefused, match="cpu is no CUDA device"):
        CudaProbe("cpu")


def test_the_probe_of_a_cpu_device_never_releases():
    probe = open_probe(torch.device("cpu"))
    assert isinstance(probe, HostProbe)
    assert not probe.can_release
    with pytest.raises(ReleaseRefused):
        probe.release()


@pytest.fixture
def machine(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 600 kB\nHugePages_Total: 0\n")
    return tmp_path


def test_the_hosts_memory_is_what_the_kernel_calls_available(machine):
    reading = HostProbe(proc=machine, cgroup=machine / "no-cgroup").read()
    assert (reading.total_bytes, reading.free_bytes) == (1000 * 1024, 600 * 1024)


def test_ranks_that_share_a_host_share_its_memory(machine):
    reading = HostProbe(4, proc=machine, cgroup=machine / "no-cgroup").read()
    assert (reading.total_bytes, reading.free_bytes) == (250 * 1024, 150 * 1024)


@pytest.mark.parametrize(("limit", "used", "free"), [("300000", "100000", 200_000), ("max", "5", 614_400)])
def test_the_limit_of_the_control_group_bounds_it(machine, limit, used, free):
    (machine / "memory.max").write_text(f"{limit}\n")
    (machine / "memory.current").write_text(f"{used}\n")
    assert HostProbe(proc=machine, cgroup=machine).read().free_bytes == free


def test_pages_of_files_that_the_group_has_cached_are_free_for_the_asking(machine):
    (machine / "memory.max").write_text("300000\n")
    (machine / "memory.current").write_text("250000\n")
    (machine / "memory.stat").write_text("anon 100000\nfile 150000\ninactive_file 90000\nactive_file 50000\n")
    assert HostProbe(proc=machine, cgroup=machine).read().free_bytes == 190_000


def test_a_kernel_that_does_not_say_what_is_available_is_an_error(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\n")
    with pytest.raises(InputError, match="MemAvailable"):
        HostProbe(proc=tmp_path).read()
