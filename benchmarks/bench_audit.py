"""`orchestrate audit` and `status` over 10,000 closed runs (bar: 3 s each), each journal as long as a smoke run's."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from orchestrate.lifecycle.journal import Journal

RUNS = 10_000
RECORDS = 60


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="orchestrate-bench-") as folder:
        runs_dir = Path(folder)
        make_runs(runs_dir)
        for words in (["audit", "--backend", "local"], ["status"]):
            command = [sys.executable, "-m", "orchestrate", *words, "--runs-dir", str(runs_dir)]
            cpu_s, wall_s = min(measured(command) for _ in range(3))
            print(f"orchestrate {words[0]} over {RUNS} runs: {cpu_s:.2f} s CPU, {wall_s:.2f} s (bar: 3 s)")


def make_runs(runs_dir: Path) -> None:
    """One closed run, and as many of it as are wanted."""
    first = runs_dir / "r20260101-000000-000000"
    first.mkdir()
    (first / "lock").touch()
    journal = Journal(first / "journal.jsonl")
    for number in range(RECORDS):
        journal.append("cell", key=f"cal-grpo-tiny|tiny-hybrid|L4|tp1|cp4|g{number}", status="complete", text="x" * 150)
    journal.append("closure", verdict="passed", owner="bench", created_at="2026-01-01T00:00:00Z", cell_set="smoke")
    journal.close()
    for number in range(1, RUNS):
        shutil.copytree(first, runs_dir / f"r20260101-000000-{number:06x}")


def measured(command: list[str]) -> tuple[float, float]:
    """Processor and wall seconds of a command; audit ends with 1 where other runs of this machine are alive."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu_s, time.perf_counter() - started


if __name__ == "__main__":
    main()
