"""Own work of a launch through SkyPilot, beyond the provider's calls and the deliberate waits (bar: under 1 s, warm).

Two whole launches on a real Slurm on loopback (`tests/beds/slurm`: root, Debian's Slurm), with a payload that ends at
once; the second one is the warm one. Time inside the SDK, `ssh` and waiting is taken from the outside, by wrapping the
functions through which all of it goes; what remains of the launcher's life, from its first import on, is its own work.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]


def main() -> None:
    if "--measured" in sys.argv:
        measured(sys.argv[sys.argv.index("--measured") + 1 :])
        return
    sys.path.insert(0, str(REPOSITORY / "tests/beds/slurm"))
    import slurm_bed  # noqa: PLC0415  # a part of the tests, which an installed package has not

    reason = slurm_bed.why_not()
    if reason is not None:
        print(f"SkyPilot launch: not measured: {reason}")
        return
    folder = Path(tempfile.mkdtemp(prefix="orcbed-", dir="/tmp"))  # the node's user must reach it
    folder.chmod(0o755)
    bed = slurm_bed.SlurmBed(folder)
    try:
        bed.up()
        workdir = folder / "workdir"
        shutil.copytree(REPOSITORY / "tests/sky/stand_in", workdir)
        (workdir / "harness/behaviour").write_text("exit 0")
        for which in ("cold", "warm"):
            print(f"SkyPilot launch, {which}: {launched(bed, folder, workdir)}")
    finally:
        bed.down()
        shutil.rmtree(folder, ignore_errors=True)


def launched(bed: Any, folder: Path, workdir: Path) -> str:
    """One launch in a process of its own; what it spent on what."""
    command = ["launch", "--backend", "sky", "--infra", "slurm/bed", "--cell-set", "smoke", "--deadline", "30m",
               "--workdir", str(workdir), "--python", str(folder / "bin/python-stand-in"),
               "--runs-dir", str(folder / "runs"), "--json"]  # fmt: skip
    # Byte code is written and read, as an installation has it: compiling at every start is no work of a launch.
    environ = {name: value for name, value in bed.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environ |= {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, __file__, "--measured", *command], env=environ, capture_output=True, text=True, check=False
    )
    spent = json.loads(done.stderr.splitlines()[-1])
    own = spent["total_s"] - sum(spent["elsewhere_s"].values())
    elsewhere = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in spent["elsewhere_s"].items())
    return f"{spent['total_s']:.1f} s, of which own work {own:.2f} s ({elsewhere})"


def measured(arguments: list[str]) -> None:
    """Be `orchestrate ARGUMENTS`; the last line on standard error says what was spent outside."""
    began = time.monotonic()
    from orchestrate import cli  # noqa: PLC0415  # the import is part of what is measured
    from orchestrate.backends import skypilot_calls, slurm_login  # noqa: PLC0415
    from orchestrate.lifecycle import watch as waiting  # noqa: PLC0415

    elsewhere: dict[str, float] = {}
    inside = [False]

    def watch(owner: Any, name: str, label: str) -> None:
        function: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            if inside[0] or threading.current_thread() is not threading.main_thread():
                return function(*args, **kwargs)
            inside[0], start = True, time.monotonic()
            try:
                return function(*args, **kwargs)
            finally:
                inside[0] = False
                elsewhere[label] = elsewhere.get(label, 0.0) + time.monotonic() - start

        setattr(owner, name, timed)

    watch(skypilot_calls.Calls, "call", "SDK")
    watch(slurm_login, "_completed", "ssh")
    watch(waiting, "readable", "waits")
    watch(time, "sleep", "waits")
    sys.argv = ["orchestrate", *arguments]
    try:
        cli.main()
    finally:
        spent = {"total_s": time.monotonic() - began, "elsewhere_s": elsewhere}
        print(json.dumps(spent), file=sys.stderr)


if __name__ == "__main__":
    main()
