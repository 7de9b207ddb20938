"""A node that runs one program on four ranks and watches it: `faulty_node.py EVIDENCE COMPILE_S STEP_S PROGRAM ...`."""

import os
import sys
from pathlib import Path

from harness.node_run import CellJob, NodeJob, NodeRun
from harness.trace.watchdog import Budgets


def main():
    evidence, compile_s, step_s, *command = sys.argv[1:]
    job = NodeJob(
        run_id="fault",
        cell_set="faults",
        groups=None,
        repeat=1,
        device="cpu",
        slots=4,
        evidence=Path(evidence),
        cells=(CellJob("fault", "fault", 4, tuple(command)),),
        budgets=Budgets(load_s=180, compile_s=float(compile_s), step_s=float(step_s)),
    )
    sys.exit(NodeRun(job, os.environ).run())


main()
