"""What this machine can run: found out, never assumed, never faked."""

import pytest

from orchestrate.backends import local_node
from orchestrate.backends.local_node import Gpu, check_device, check_tools, gpus
from orchestrate.capacity.taxonomy import Reason
from orchestrate.errors import BackendError, CapacityError, UnsatisfiableError


def h200(index, used=0):
    return Gpu(index, f"GPU-{index}", "NVIDIA H200", 143771, used, "570.86.15")


def program(tmp_path, monkeypatch, text, code=0):
    path = tmp_path / "nvidia-smi"
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\nexit {code}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def test_a_cpu_set_needs_no_gpu_and_says_not_applicable():
    assert check_device("cpu", 4) == "not-applicable"


def test_too_few_h200s_can_never_do_and_say_what_is_here(monkeypatch):
    monkeypatch.setattr(local_node, "gpus", lambda: (h200(0), Gpu(1, "u", "NVIDIA L4", 23034, 0, "570")))
    with pytest.raises(
        UnsatisfiableError, match="4x H200 are needed and this machine has NVIDIA H200, NVIDIA L4"
    ) as caught:
        check_device("h200", 4)
    assert caught.value.case.offers[0].reason is Reason.NEVER_FITS
    assert [(item.total, item.free) for item in caught.value.case.availability] == [(1, 1)]


def test_h200s_that_others_hold_are_a_lack_of_capacity(monkeypatch):
    monkeypatch.setattr(local_node, "gpus", lambda: tuple(h200(index, used=90000 * (index == 2)) for index in range(4)))
    with pytest.raises(CapacityError, match="GPU 2: 90000 MiB") as caught:
        check_device("h200", 4)
    assert caught.value.case.offers[0].reason is Reason.NOTHING_FREE
    assert [(item.total, item.free) for item in caught.value.case.availability] == [(4, 3)]
    assert caught.value.case.retry_after_s


def test_four_idle_h200s_do(monkeypatch):
    monkeypatch.setattr(local_node, "gpus", lambda: tuple(h200(index) for index in range(4)))
    assert len(check_device("h200", 4)["gpus"]) == 4


def test_nvidia_smi_is_read(tmp_path, monkeypatch):
    program(tmp_path, monkeypatch, "0, GPU-a, NVIDIA H200, 143771, 4, 570.86.15\n1, GPU-b, NVIDIA H200, 143771, 0, 570")
    assert [(gpu.index, gpu.memory_used_mib) for gpu in gpus()] == [(0, 4), (1, 0)]


@pytest.mark.parametrize(("text", "code"), [("NVIDIA-SMI has failed", 9), ("[Unknown Error]", 0)])
def test_a_driver_that_fails_is_a_fault_and_keeps_its_own_words(tmp_path, monkeypatch, text, code):
    program(tmp_path, monkeypatch, text, code)
    with pytest.raises(BackendError) as caught:
        gpus()
    assert type(caught.value) is BackendError
    assert text in caught.value.answer


def test_without_nvidia_smi_there_are_no_gpus(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus() == ()


@pytest.mark.parametrize("missing", ["torch", "harness"])
def test_a_missing_package_comes_with_the_line_that_installs_it(monkeypatch, missing):
    real = local_node.importlib.util.find_spec
    monkeypatch.setattr(local_node.importlib.util, "find_spec", lambda name: None if name == missing else real(name))
    with pytest.raises(UnsatisfiableError) as caught:
        check_tools()
    assert "pip install -c constraints.txt -e '.[harness]'" in caught.value.remedy


def test_a_missing_timeout_command_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsatisfiableError, match="timeout"):
        check_tools()
