"""What this machine is, and whether it can run a request at all. Nothing is guessed and nothing is faked."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrate.capacity.local import refusal
from orchestrate.clock import to_wire, utc_now
from orchestrate.errors import BackendError, CapacityError, UnsatisfiableError

__all__ = [
    "Gpu",
    "check_corpora",
    "check_device",
    "check_tools",
    "fingerprint",
    "gpus",
    "harness_parent",
    "machine_facts",
    "torch_version",
]

INSTALL_HARNESS = "pip install -c constraints.txt -e '.[harness]', in the checkout"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as `nvidia-smi` reports it. Memory in MiB."""

    index: int
    uuid: str
    name: str
    memory_total_mib: int
    memory_used_mib: int
    driver: str


def check_tools() -> None:
    """`UnsatisfiableError`, with the remedy, when this machine lacks what a local run needs."""
    if not sys.platform.startswith("linux"):
        raise UnsatisfiableError(
            f"the local backend needs Linux (/proc, flock, subreapers); this is {sys.platform}",
            remedy="run on a Linux machine, or `orchestrate render --backend sky|k8s` for one that has what it needs",
        )
    if shutil.which("timeout") is None:
        raise UnsatisfiableError("there is no `timeout` command here", remedy="apt install coreutils")
    if harness_parent() is None:
        raise UnsatisfiableError("the package `harness` is not installed here", remedy=INSTALL_HARNESS)
    if importlib.util.find_spec("torch") is None:
        raise UnsatisfiableError(
            f"PyTorch, which the harness needs, is not installed for this Python ({_python_version()})",
            remedy=INSTALL_HARNESS,
        )


def check_device(device: str, ranks: int) -> Mapping[str, Any] | str:
    """The GPUs for a request, or `not-applicable` on `cpu`.

    Raises `UnsatisfiableError` when this machine can never have `ranks` H200s, `CapacityError` when it has them but
    others hold their memory; both carry the case.
    """
    if device == "cpu":
        return "not-applicable"
    found = gpus()
    wanted = [gpu for gpu in found if "H200" in gpu.name]
    held = [(gpu.name, gpu.memory_used_mib) for gpu in found]
    case = refusal(held, kind="H200", count=ranks, idle_mib=_IDLE_MIB, at=to_wire(utc_now()))
    if len(wanted) < ranks:
        have = ", ".join(gpu.name for gpu in found) or "no NVIDIA GPU"
        raise UnsatisfiableError(
            f"{ranks}x H200 are needed and this machine has {have}",
            remedy="`--backend sky|k8s` asks where such GPUs are; `orchestrate launch` has cell sets for cpu, and a "
            "qualification runs anywhere with a file of groups whose device is cpu",
            case=case,
        )
    free = [gpu for gpu in wanted if gpu.memory_used_mib < _IDLE_MIB]
    if len(free) < ranks:
        busy = ", ".join(f"GPU {gpu.index}: {gpu.memory_used_mib} MiB" for gpu in wanted if gpu not in free)
        raise CapacityError(
            f"{ranks} idle H200s are needed and {len(free)} of {len(wanted)} are idle; others hold {busy}",
            remedy="wait until they are free, then launch again",
            case=case,
        )
    return {"gpus": [{"index": gpu.index, "uuid": gpu.uuid, "name": gpu.name, "driver": gpu.driver} for gpu in wanted]}


def check_corpora(not_given: Sequence[str]) -> None:
    """`UnsatisfiableError` when the cells read private corpora that nobody named."""
    if not_given:
        raise UnsatisfiableError(
            f"the cells read the private corpus {', '.join(not_given)}, which was not given",
            remedy="give --corpus PATH and --corpus-sha256 SHA256",
        )


def gpus(timeout_s: float = 20.0) -> tuple[Gpu, ...]:
    """The GPUs of this machine; none where there is no `nvidia-smi`. `BackendError` when it is there but fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    fields = "index,uuid,name,memory.total,memory.used,driver_version"
    try:
        answer = subprocess.run(
            [program, f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackendError(f"nvidia-smi does not answer: {error}", remedy=_LOOK_AT_DRIVER) from error
    if answer.returncode != 0:
        said = (answer.stdout + answer.stderr).strip()
        raise BackendError(f"nvidia-smi exits {answer.returncode}", remedy=_LOOK_AT_DRIVER, answer=said[:2000])
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.stdout.splitlines() if line.strip()]
    try:
        return tuple(
            Gpu(int(index), uuid, name, int(total), int(used), driver)
            for index, uuid, name, total, used, driver in rows
        )
    except ValueError as error:
        raise BackendError(
            "nvidia-smi answers in a form that is not known", remedy=_LOOK_AT_DRIVER, answer=answer.stdout[:2000]
        ) from error


def machine_facts() -> dict[str, Any]:
    """What this machine is like: no name, no address, no path."""
    memory = _meminfo()
    shared = os.statvfs("/dev/shm") if Path("/dev/shm").is_dir() else None  # noqa: S108  # the kernel's own place
    return {
        "kernel": os.uname().release,
        "machine": os.uname().machine,
        "cpus": len(os.sched_getaffinity(0)),
        "memory_total_bytes": memory.get("MemTotal"),
        "memory_available_bytes": memory.get("MemAvailable"),
        "shared_memory_free_bytes": None if shared is None else shared.f_bavail * shared.f_frsize,
        "python": _python_version(),
        "torch": torch_version(),
    }


def fingerprint() -> dict[str, Any]:
    """What names this node without saying its name: the hash of the machine id, kernel, CPU model, boot."""
    identity = "".join(_read(path) for path in ("/etc/machine-id", "/proc/sys/kernel/random/boot_id"))
    models = [line.partition(":")[2].strip() for line in _read("/proc/cpuinfo").splitlines() if "model name" in line]
    return {
        "node_sha256": hashlib.sha256(identity.encode()).hexdigest(),
        "cpu_model": models[0] if models else os.uname().machine,
        "cpus": os.cpu_count(),
        "kernel": os.uname().release,
    }


def harness_parent() -> Path | None:
    """The folder that holds the package `harness` which a run from here would use; None without one."""
    spec = importlib.util.find_spec("harness")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).resolve().parent.parent


def torch_version() -> str | None:
    """The installed PyTorch, without importing it."""
    import importlib.metadata  # noqa: PLC0415  # a third of the warden's start, which never asks for it

    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


_IDLE_MIB = 1024
_LOOK_AT_DRIVER = "run nvidia-smi by hand; the driver or the GPU may need a person"


def _python_version() -> str:
    return ".".join(str(part) for part in sys.version_info[:3])


def _meminfo() -> dict[str, int]:
    lines = (line.split() for line in _read("/proc/meminfo").splitlines())
    return {fields[0].rstrip(":"): int(fields[1]) * 1024 for fields in lines if len(fields) > 1}


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""
