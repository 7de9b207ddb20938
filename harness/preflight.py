"""What the node is, looked at before the first cell: a node that lies must not measure anything.

On an `h200` set the GPUs are asked, through `nvidia-smi` and torch, and compared with what the set needs. On a `cpu`
set GPU facts are `not-applicable`: nothing is asked and nothing is made up.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = ["NOT_APPLICABLE", "PREFLIGHT_SCHEMA", "Preflight", "busy_gpus", "check_gpus", "fingerprint", "look"]

PREFLIGHT_SCHEMA = "harness.preflight/1"
NOT_APPLICABLE = "not-applicable"
_GPU_NAMES = {"h200": "H200"}
_GPU_FACTS = ("gpus", "driver", "cuda", "nccl", "topology", "held_by_others")
_MODULES = ("torch", "numpy")
"""What the cells import; torch itself comes without numpy, and its collectives of objects need it."""

_HELD_MIB = 1024
"""Memory in use on an idle GPU that the driver and ECC account for; more than this is somebody's."""

_QUERY = ("index", "uuid", "name", "driver_version", "memory.total", "memory.used", "mig.mode.current")
_TORCH_FACTS = """
import json, torch
print(json.dumps({"cuda": torch.version.cuda, "nccl": list(torch.cuda.nccl.version()) if torch.cuda.is_available() else
None, "visible": torch.cuda.device_count(), "names": [torch.cuda.get_device_name(index) for index in
range(torch.cuda.device_count())]}))
"""

Ask = Callable[[Sequence[str]], str]
"""Runs a command and returns its output; `OSError` or `subprocess.SubprocessError` where it can not."""


@dataclass(frozen=True, slots=True)
class Preflight:
    """The facts of the node, as they go into preflight.json, and what is wrong with it, empty where nothing is.

    `gpus` is how many GPUs there are to be used; none where nobody looked.
    """

    facts: Mapping[str, Any]
    problems: tuple[str, ...]
    gpus: int = 0

    def with_problems(self, more: tuple[str, ...]) -> Preflight:
        """The same node with `more` that is wrong."""
        problems = (*self.problems, *more)
        return Preflight({**self.facts, "problems": list(problems)}, problems, self.gpus)


def look(device: str, slots: int, env: Mapping[str, str], ask: Ask | None = None) -> Preflight:
    """Look at this node for a set that needs `device` and `slots` GPUs (or processes on a CPU)."""
    facts: dict[str, Any] = {"schema": PREFLIGHT_SCHEMA, "device": device, "slots": slots, **_machine()}
    problems = [f"{sys.executable} has no {name}" for name in _MODULES if find_spec(name) is None]
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if device == "cpu":
        facts |= dict.fromkeys(_GPU_FACTS, NOT_APPLICABLE)
    else:
        gpu_facts, more = _gpus(ask or _ask)
        facts |= gpu_facts
        problems += [*more, *check_gpus(facts, device, slots, visible)]
    named = tuple(f"node {facts['node']}: {problem}" for problem in problems)
    facts |= {"fingerprint": fingerprint(facts), "problems": list(named)}
    return Preflight(facts, named, 0 if device == "cpu" else len(_chosen(facts, visible)))


def check_gpus(facts: Mapping[str, Any], device: str, slots: int, visible: str | None) -> list[str]:
    """What is wrong with the GPUs in `facts` for a set that needs `slots` of kind `device`.

    `visible` is CUDA_VISIBLE_DEVICES: with it only the GPUs that it names count, and it must name all of them by
    index or UUID.
    """
    if not isinstance(facts.get("gpus"), list):
        return []  # why there are none is a problem already
    chosen = _chosen(facts, visible)
    kind = _GPU_NAMES[device]
    problems = [f"GPU {gpu['index']} is {gpu['name']!r}, not an {kind}" for gpu in chosen if kind not in gpu["name"]]
    if len(chosen) != slots:
        problems.append(f"{len(chosen)} GPUs are visible, exactly {slots} were asked for")
    problems += [
        f"GPU {gpu['index']} has {gpu['memory_used_mib']} MiB in use by others"
        for gpu in chosen
        if gpu["memory_used_mib"] > _HELD_MIB
    ]
    problems += [f"GPU {gpu['index']} is in MIG mode" for gpu in chosen if gpu["mig"] == "Enabled"]
    seen = facts.get("torch_visible")
    if seen is not None and seen != len(chosen):
        problems.append(f"torch sees {seen} GPUs, nvidia-smi {len(chosen)}")
    return problems


def busy_gpus(ask: Ask | None = None) -> tuple[str, ...]:
    """Which GPUs are not idle now, and why; a GPU that can not be asked is not known to be idle."""
    command = ["nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"]
    holders = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        gpus = _parse_gpus((ask or _ask)(command))
        held = [line.strip() for line in (ask or _ask)(holders).splitlines() if line.strip()]
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return (f"the GPUs could not be asked: {error}",)
    used = [
        f"GPU {gpu['index']} has {gpu['memory_used_mib']} MiB in use"
        for gpu in gpus
        if gpu["memory_used_mib"] > _HELD_MIB
    ]
    return (*used, *(f"a process holds a GPU: {line}" for line in held))


def fingerprint(facts: Mapping[str, Any]) -> str:
    """SHA-256 of what must be equal for two measurements to be comparable: hardware and software, not names or load."""
    gpus = facts.get("gpus")
    kept: dict[str, Any] = {
        name: facts.get(name) for name in ("device", "cpu", "cpus", "python", "torch", "driver", "cuda", "nccl")
    }
    kept["gpus"] = [gpu["name"] for gpu in gpus] if isinstance(gpus, list) else gpus
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def _chosen(facts: Mapping[str, Any], visible: str | None) -> list[Mapping[str, Any]]:
    gpus = facts.get("gpus")
    if not isinstance(gpus, list):
        return []
    return gpus if visible is None else [gpu for gpu in gpus if {gpu["index"], gpu["uuid"]} & _names(visible)]


def _machine() -> dict[str, Any]:
    return {
        "node": platform.node(),
        "kernel": platform.release(),
        "cpu": _cpu_name(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
        "torch": _torch(),
    }


def _torch() -> str | None:
    """None where it is not installed: a qualification of another repository may not need it."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - costs more than all else in here

    try:
        return version("torch")
    except PackageNotFoundError:
        return None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _gpus(ask: Ask) -> tuple[dict[str, Any], list[str]]:
    if shutil.which("nvidia-smi") is None and ask is _ask:
        return dict.fromkeys(_GPU_FACTS), ["nvidia-smi is not installed: there is no NVIDIA GPU here, or no driver"]
    try:
        gpus = _parse_gpus(ask(["nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"]))
        holders = ask(["nvidia-smi", "--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader,nounits"])
        topology = ask(["nvidia-smi", "topo", "-m"])
        seen = json.loads(ask([sys.executable, "-c", _TORCH_FACTS]))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return dict.fromkeys(_GPU_FACTS), [f"the GPUs could not be asked: {error}"]
    facts = {
        "gpus": gpus,
        "driver": gpus[0]["driver"] if gpus else None,
        "cuda": seen["cuda"],
        "nccl": seen["nccl"],
        "torch_visible": seen["visible"],
        "topology": [line.rstrip() for line in topology.splitlines() if line.strip()],
        "held_by_others": [line.strip() for line in holders.splitlines() if line.strip()],
    }
    return facts, []


def _parse_gpus(text: str) -> list[dict[str, Any]]:
    gpus = []
    for row in csv.reader(io.StringIO(text), skipinitialspace=True):
        index, uuid, name, driver, total, used, mig = row
        gpus.append(
            {
                "index": index,
                "uuid": uuid,
                "name": name,
                "driver": driver,
                "memory_total_mib": int(total),
                "memory_used_mib": int(used),
                "mig": mig,
            }
        )
    return gpus


def _names(visible: str) -> set[str]:
    return {name.strip() for name in visible.split(",") if name.strip()}


def _ask(command: Sequence[str]) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return done.stdout
