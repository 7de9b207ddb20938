"""What the recorder costs per collective (bar 5 us), beside PyTorch's flight recorder, and of a smoke step (bar 2 %).

1. The recorder by itself: the time of an empty recorded block with split lists, minus that of an empty block.
2. In a job: `all_reduce` of one gloo rank without any recorder, with PyTorch's flight recorder, with ours, and with
   ours in a job that knows nothing of it; in turn, so that a drift of the machine's speed meets all of them.
3. The smoke cell: collectives of a measured forward and backward, times the cost, of the measured time.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from harness.trace.reading import read_trace
from harness.trace.recorder import Recorder

ROOT = Path(__file__).parents[1]
JOB = Path(__file__).with_name("recorder_job.py")
CELL = "cal-grpo-tiny|tiny-hybrid|L4|tp1|cp4"
ROUNDS = 3
SECONDS = 3.0


def main() -> None:
    cost_us = recorder_us()
    print(f"recorder, one collective with split lists: {cost_us:.2f} us (bar 5 us)")
    plain, flight, ours, foreign = in_a_job()
    print(
        f"all_reduce of one gloo rank: {plain:.1f} us; with PyTorch's flight recorder +{flight - plain:.1f} us, with"
        f" the harness's recorder +{ours - plain:.1f} us, recorded from outside (trace run) +{foreign - plain:.1f} us"
    )
    count, step_ms = smoke_step()
    share = count * cost_us / 1e3 / step_ms
    print(f"smoke cell {CELL}: {count} collectives in a step of {step_ms:.1f} ms: {share:.2%} of it (bar 2%)")


def recorder_us() -> float:
    """Microseconds of one record: the least of many short batches."""
    send, recv = [3, 4, 0, 1], [5, 0, 2, 1]
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(Path(folder), 0, 4)
        recorder.context(layout="depth_one", forward=0, phase="measure")

        def recorded() -> None:
            with recorder.record(
                op="all_to_all_single",
                group="cp",
                ranks=(0, 1, 2, 3),
                dtype="float32",
                shape=(8, 16),
                send_splits=send,
                recv_splits=recv,
                tag="layers.0.delta.to_owners",
            ):
                pass

        nothing = contextlib.nullcontext()

        def empty() -> None:
            with nothing:
                pass

        return _least_us(recorded) - _least_us(empty)


def in_a_job() -> list[float]:
    """Microseconds of an all-reduce: unrecorded, with torch's flight recorder, with ours, with ours from outside."""
    ways = (("none", 0), ("none", 2000), ("harness", 0), ("foreign", 0))
    found: list[list[float]] = [[] for _ in ways]
    for _ in range(ROUNDS):
        for times, (recorded, flight_records) in zip(found, ways, strict=True):
            env = {**os.environ, "TORCH_FR_BUFFER_SIZE": str(flight_records), "PYTHONPATH": str(ROOT)}
            done = subprocess.run(
                [sys.executable, str(JOB), recorded, str(SECONDS)],
                env=env,
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
            times.append(float(done.stdout))
    return [min(times) for times in found]


def smoke_step() -> tuple[int, float]:
    """Collectives and milliseconds of the median measured forward and backward of the smoke cell."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "harness.torchrun", "--nnodes", "1", "--nproc-per-node", "4"]
        command += ["--rdzv-backend", "loopback", "--rdzv-id", "bench", "--local-addr", "127.0.0.1"]
        command += ["-m", "harness", "calibrate", "--cell", CELL, "--repeat", "4", "--evidence", f"{folder}/rows.jsonl"]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
        subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        rows = [json.loads(line) for line in Path(folder, "rows.jsonl").read_text().splitlines()]
        records = [each for each in read_trace(Path(folder) / "trace", 0).records if each.phase == "measure"]
    steps = len({each.forward for each in records})
    elapsed = [row["elapsed_ms"] for row in rows if row["row"] == "measure"]
    return round(len(records) / steps), statistics.median(elapsed)


def _least_us(work: Callable[[], None], batches: int = 2000, batch: int = 100) -> float:
    least = float("inf")
    for _ in range(batches):
        started = time.perf_counter()
        for _ in range(batch):
            work()
        least = min(least, time.perf_counter() - started)
    return least / batch * 1e6


if __name__ == "__main__":
    main()
