"""A rank of the old fault: `per_rank_fault.py DECISION GUARD --evidence FILE ...`.

DECISION is union or alone, GUARD none, digest or checked. Production has no switch for this: the rules are set here.
"""

import os
import sys
from pathlib import Path

from harness.calibrate import Settings, on_rank
from harness.cells import parse_key

CELL = "cal-grpo-tiny|tiny-hybrid|L4|tp1|cp4"

# Packed tokens by layout: no_sharing 24, depth_one 21, uniform_depth_2 20. So the context shards are 6 6 6 6, then
# 6 5 5 5, then 5 5 5 5: rank 0 meets a second shape, and recompiles, one layout later than its peers.
ROWS = (
    (1, 2, 10, 11, 12, 13),
    (1, 2, 20, 21, 22, 23),
    (1, 30, 31, 32, 33, 34),
    (1, 40, 41, 42, 43, 44),
)


def work(settings, heart):
    from harness import cell_run
    from harness.measure import CellOutcome, Rules

    decision, guard = sys.argv[1:3]
    rules = Rules(
        world_wide=decision == "union",
        compare_plans=guard == "digest",
        # The rule was "until a run compiled nothing"; a second run in every case hides the fault for a while.
        minimum_warmups=1,
    )
    cell_run.load_rows = lambda *_: ROWS
    outcome = cell_run.run_cell(settings, heart, rules=rules, checked=guard == "checked")
    return 0 if outcome is CellOutcome.COMPLETE else 4


def main():
    settings = Settings(
        cell=parse_key(CELL),
        repeat=1,
        evidence=Path(sys.argv[sys.argv.index("--evidence") + 1]),
        device="cpu",
        run_id="old-fault",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        local_rank=int(os.environ["LOCAL_RANK"]),
        process_group_timeout_s=60,
    )
    sys.exit(on_rank(settings, work))


main()
