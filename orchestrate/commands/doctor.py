"""`orchestrate doctor`: say what this machine can run and what is missing."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from orchestrate.backends import local_node
from orchestrate.cells.cell_set import load_cell_sets
from orchestrate.commands.run_dir import RUNS_DIR_OPTION
from orchestrate.errors import OrchestrateError
from orchestrate.lifecycle.run_directory import RESERVE_BYTES
from orchestrate.verdict import Verdict

__all__ = ["command"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. `needed` says that no run starts here without it."""

    name: str
    ok: bool
    found: str
    remedy: str = ""
    needed: bool = True


@click.command("doctor")
@RUNS_DIR_OPTION
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(runs_dir: Path, *, as_json: bool) -> int:
    """Say what this machine can run and what is missing, each with its remedy. Changes nothing.

    The exit code is 0 when cell sets for a CPU can run here, 78 when they can not.

    \b
    Example:
      orchestrate doctor
      orchestrate doctor --json
    """
    checks = tuple(_checks(runs_dir.absolute()))
    sets = _sets(ready=all(check.ok for check in checks if check.needed))
    ready = all(check.ok for check in checks if check.needed)
    if as_json:
        answer = {"ok": ready, "checks": [asdict(check) for check in checks], "cell_sets": sets}
        click.echo(json.dumps(answer, sort_keys=True))
    else:
        for check in checks:
            mark, colour = ("ok", "green") if check.ok else ("missing", "red" if check.needed else "yellow")
            click.echo(f"{click.style(f'{mark:8}', fg=colour)}{check.name:16} {check.found}")
            if not check.ok:
                click.echo(f"{'':24} {check.remedy}")
        click.echo("\ncell sets on this machine:")
        for entry in sets:
            click.echo(f"  {entry['name']:10} {'can run' if entry['runs_here'] else entry['why']}")
    return 0 if ready else Verdict.UNSATISFIABLE.exit_code


def _checks(runs_dir: Path) -> Iterator[Check]:
    yield Check(
        "linux", sys.platform.startswith("linux"), f"{platform.system()} {platform.release()}", "use a Linux machine"
    )
    yield _refused_by("tools", "timeout, harness and PyTorch are there", local_node.check_tools)
    yield Check("python", sys.version_info >= (3, 11), platform.python_version(), "install Python 3.11 or newer")
    yield Check("cpus", True, f"{len(os.sched_getaffinity(0))} usable")
    shared = local_node.machine_facts()["shared_memory_free_bytes"]
    yield Check("shared memory", shared is not None, f"{shared} bytes free in /dev/shm", "mount a tmpfs at /dev/shm")
    yield _runs_dir_check(runs_dir)
    yield Check("git", shutil.which("git") is not None, shutil.which("git") or "not installed",
                "apt install git; without it a run from a checkout can not name its commit", needed=False)  # fmt: skip
    yield _gpu_check()
    for module, extra in (("sky", "sky"), ("kubernetes", "k8s")):
        there = importlib.util.find_spec(module) is not None
        yield Check(
            f"client of {extra}",
            there,
            f"{'installed' if there else 'not installed'}; `orchestrate render` needs none, `launch` runs here only",
            f"pip install 'orchestrate[{extra}]'",
            needed=False,
        )


def _refused_by(name: str, good: str, check: Callable[[], None]) -> Check:
    try:
        check()
    except OrchestrateError as error:
        return Check(name, ok=False, found=error.cause, remedy=error.remedy)
    return Check(name, ok=True, found=good)


def _runs_dir_check(runs_dir: Path) -> Check:
    place = runs_dir
    while not place.exists() and place != place.parent:
        place = place.parent
    remedy = "give --runs-dir (or ORCHESTRATE_RUNS_DIR) a folder that can be written"
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK) or os.statvfs(place).f_flag & os.ST_RDONLY:
        return Check("runs directory", ok=False, found=f"{place} can not be written", remedy=remedy)
    disk = os.statvfs(place)
    free = disk.f_bavail * disk.f_frsize
    room = free > 2 * RESERVE_BYTES
    return Check("runs directory", room, f"{runs_dir}, {free >> 20} MiB free", remedy if room else "free the disk")


def _gpu_check() -> Check:
    try:
        found = local_node.gpus()
    except OrchestrateError as error:
        return Check("gpus", ok=False, found=error.cause, remedy=error.remedy, needed=False)
    names = ", ".join(gpu.name for gpu in found) or "no NVIDIA GPU"
    return Check("gpus", bool(found), names, "sets for cpu run without; for others use a GPU machine", needed=False)


def _sets(*, ready: bool) -> list[dict[str, object]]:
    answers: list[dict[str, object]] = []
    for cell_set in load_cell_sets():
        why = "" if ready else "something above is missing"
        if ready:
            try:
                local_node.check_device(cell_set.device, cell_set.gpus)
            except OrchestrateError as error:
                why = error.cause
        answers.append({"name": cell_set.name, "device": cell_set.device, "runs_here": not why, "why": why})
    return answers
