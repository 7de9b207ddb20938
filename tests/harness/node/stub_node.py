"""A node that runs stub cells: `stub_node.py EVIDENCE STEP_BUDGET LIFELINE_FD BEHAVIOUR:RANKS ...`."""

import os
import sys
from pathlib import Path

from harness.node_run import CellJob, NodeJob, NodeRun
from harness.trace.watchdog import Budgets

STUB = str(Path(__file__).parent / "stub_rank.py")


def main():
    evidence, step_s, lifeline, *cells = sys.argv[1:]
    jobs = []
    for index, each in enumerate(cells):
        behaviour, ranks = each.split(":")
        jobs.append(CellJob(f"{behaviour}|{index}", f"{index}-{behaviour}", int(ranks), (STUB, behaviour)))
    job = NodeJob(
        run_id=os.environ["RUN_ID"],
        cell_set="stub",
        groups=None,
        repeat=2,
        device="cpu",
        slots=4,
        evidence=Path(evidence),
        cells=tuple(jobs),
        budgets=Budgets(load_s=120, compile_s=120, step_s=float(step_s)),
        lifeline_fd=None if lifeline == "-" else int(lifeline),
    )
    sys.exit(NodeRun(job, os.environ).run())


main()
