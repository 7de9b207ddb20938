"""The logic of tests/gpu/admission.py, on a simulated device; the script itself needs a GPU."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from harness.admission.simulated import SimulatedAllocator

REPOSITORY = Path(__file__).parents[3]
SCRIPT = REPOSITORY / "tests" / "gpu" / "admission.py"
MIB = 1 << 20


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("gpu_admission", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Machine:
    """A forward that keeps a quarter of its peak, on a device that also holds memory of others."""

    def __init__(self, total_mib=80_000, others_mib=3_000):
        self.probe = SimulatedAllocator(total_mib * MIB, others_bytes=others_mib * MIB)
        self.blocks = {}

    def allocate(self, size):
        self.blocks[len(self.blocks) + 1] = self.probe.allocate(size)
        return len(self.blocks)

    def free(self, key):
        block = self.blocks[key]
        self.blocks[key] = None
        self.probe.free(block)

    def forward(self, tokens):
        workspace = self.probe.allocate(tokens * 192 * 1024)
        kept = self.allocate(tokens * 64 * 1024)
        self.probe.free(workspace)
        self.probe.work(tokens * 5000)
        return kept


def test_a_release_of_idle_segments_turns_the_split_into_an_unsplit_plan(script):
    case = script.run_case(Machine(), "returns")
    assert case["holds"], case
    assert case["came_back_bytes"] > 20_000 * MIB
    assert case["releases"][0]["outcomes"] == ["split"]


def test_a_fragmented_cache_returns_nothing_and_the_split_runs(script):
    case = script.run_case(Machine(), "fragmented")
    assert case["holds"], case
    assert case["came_back_bytes"] == 0
    assert case["releases"][0]["reserved_before_bytes"][0] > 20_000 * MIB


def test_the_cost_of_the_release_is_told_beside_the_forward_work(script):
    ledger = script.run_case(Machine(), "returns")["ledger"]
    assert ledger["overhead"] == ledger["release_ms"] / ledger["forward_ms"] > 0


def test_the_case_fails_when_the_release_brings_back_what_it_must_not(script, monkeypatch):
    monkeypatch.setattr(
        script, "fill_cache", lambda machine, size, *, pinned: machine.free(machine.allocate(size)) or []
    )
    assert not script.run_case(Machine(), "fragmented")["holds"]


@pytest.mark.parametrize("pinned", [True, False])
def test_a_filled_cache_holds_what_was_asked_for(script, pinned):
    machine = Machine()
    pins = script.fill_cache(machine, 2_400 * MIB, pinned=pinned)
    reading = machine.probe.read()
    assert reading.reserved_bytes == 2_400 * MIB
    assert reading.allocated_bytes == len(pins) * script.PIN_BYTES
    assert machine.probe.release().came_back_bytes == (0 if pinned else 2_400 * MIB)


def test_without_a_gpu_the_script_skips_and_says_why():
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env={"PYTHONPATH": str(REPOSITORY), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 77
    assert "no CUDA device" in done.stderr
