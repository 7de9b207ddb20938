"""Times `all_reduce` of one gloo rank in batches: `recorder_job.py none|harness|foreign SECONDS`; prints microseconds.

The least batch counts: on a shared machine it is the one that was disturbed least. What the environment says of
PyTorch's flight recorder holds.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

from harness.trace.recorder import Recorder

BATCH = 200


def main() -> None:
    recorded, seconds = sys.argv[1], float(sys.argv[2])
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if recorded == "foreign":
            from harness.trace.foreign import ForeignRecorder  # noqa: PLC0415 - it needs torch, as all of this

            ForeignRecorder(Path(folder)).install()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        recorder = Recorder(Path(folder) / "harness", 0, 1) if recorded == "harness" else None
        value = torch.ones(4)
        least, until = float("inf"), time.monotonic() + seconds
        while time.monotonic() < until:
            started = time.perf_counter()
            for _ in range(BATCH):
                if recorder is None:
                    dist.all_reduce(value)
                else:
                    with recorder.record(
                        op="all_reduce",
                        group="world",
                        ranks=(0,),
                        dtype=value.dtype,
                        shape=value.shape,
                        reduce_op="sum",
                    ):
                        dist.all_reduce(value)
            least = min(least, time.perf_counter() - started)
        print(least / BATCH * 1e6)


if __name__ == "__main__":
    main()
