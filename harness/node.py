"""The node script: run the selected cells, each in fresh processes, and leave evidence and no process behind.

    CELL_SET=smoke RUN_ID=x python -m harness node --evidence DIR

Besides the cells' own evidence it writes preflight.json, node.jsonl (progress) and, at the end, node.json. A failed
cell is recorded and the others still run; the exit code is the worst cell's.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness import cells
from harness.errors import InputError
from harness.node_run import CellJob, NodeJob, NodeRun
from harness.outcome import INFRASTRUCTURE_EXIT_CODE
from harness.racing import MOST_ROUNDS, Schedule
from harness.trace.watchdog import Budgets
from harness.workloads import Corpus, workload

__all__ = ["main", "node_job"]

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_CPU_BUDGETS = Budgets(load_s=180.0, compile_s=180.0, step_s=90.0)
_FLOORS = Budgets(load_s=600.0, compile_s=600.0, step_s=60.0)


def main(argv: Sequence[str]) -> int:
    """`python -m harness node`: returns 0, or the exit code of the worst cell.

    Raises:
        InputError: what is selected, or an option, is wrong. Nothing was run.
    """
    run = NodeRun(node_job(_parser().parse_args(argv), os.environ), os.environ)
    try:
        return run.run()
    except OSError as error:
        print(f"error: {error}\nremedy: make room or rights for the evidence, or another kernel", file=sys.stderr)
        return INFRASTRUCTURE_EXIT_CODE


def node_job(options: argparse.Namespace, env: Mapping[str, str]) -> NodeJob:
    """What the options and the environment contract ask for: DESIGN section 4.

    Raises:
        InputError: they ask for nothing, for something unknown, or for something that can not be.
    """
    selection = cells.resolve(None, None, env)
    run_id = env.get("RUN_ID", "")
    if not _RUN_ID.fullmatch(run_id):
        raise InputError(f"RUN_ID is {run_id!r}", remedy="set RUN_ID to letters, digits, '.', '_' and '-'")
    repeat = env.get("REPEAT", "8")
    if not re.fullmatch(r"[1-9][0-9]{0,3}", repeat):
        raise InputError(f"REPEAT is {repeat!r}", remedy="set REPEAT to the number of measured rounds, 1 or more")
    schedule = env.get("SCHEDULE", Schedule.FIXED)
    if schedule not in list(Schedule):
        raise InputError(
            f"SCHEDULE is {schedule!r}", remedy=f"set SCHEDULE to {' or '.join(Schedule)}, or leave it out"
        )
    if schedule == Schedule.RACING and int(repeat) > MOST_ROUNDS:
        raise InputError(f"a race of {repeat} rounds", remedy=f"set REPEAT to at most {MOST_ROUNDS} for a race")
    if (options.evidence / "node.jsonl").exists():
        raise InputError(f"{options.evidence} already holds evidence", remedy="name an empty directory")
    device = selection.cell_set.device
    budgets = _budgets(options, Budgets() if device == "h200" else _CPU_BUDGETS)
    common = ["--repeat", repeat, "--schedule", schedule, "--device", device, "--run-id", run_id]
    common += ["--process-group-timeout", str(budgets.process_group_timeout_s)]
    for note in selection.notes:
        print(f"note: {note}", file=sys.stderr)
    for cell, reason in selection.excluded:
        print(f"note: {cell.key} is excluded: {reason}", file=sys.stderr)
    return NodeJob(
        run_id=run_id,
        cell_set=selection.cell_set.name,
        groups=selection.groups,
        repeat=int(repeat),
        schedule=Schedule(schedule),
        device=device,
        slots=options.procs,
        evidence=options.evidence,
        cells=tuple(_cell_job(cell, options.procs, common, env) for cell in selection.cells),
        budgets=budgets,
        floors=_FLOORS.at_most(budgets),
        lifeline_fd=options.lifeline_fd,
    )


def _cell_job(cell: cells.Cell, slots: int, common: Sequence[str], env: Mapping[str, str]) -> CellJob:
    if cell.gpus > slots:
        raise InputError(
            f"cell {cell.key} needs {cell.gpus} slots, the node has {slots}", remedy="raise --procs, or select others"
        )
    command = ["-m", "harness", "calibrate", "--cell", cell.key, *common]
    recipe = workload(cell.workload)
    if isinstance(recipe, Corpus) and recipe.private:
        if not env.get("CORPUS"):
            raise InputError(
                f"cell {cell.key} needs the private corpus {recipe.name!r}", remedy="set CORPUS to the path of its file"
            )
        command += ["--corpus", env["CORPUS"]]
        command += ["--corpus-sha256", env["CORPUS_SHA256"]] if env.get("CORPUS_SHA256") else []
    return CellJob(cell.key, cells.slug(cell.key), cell.gpus, tuple(command))


def _budgets(options: argparse.Namespace, default: Budgets) -> Budgets:
    return Budgets(
        load_s=options.load_budget or default.load_s,
        compile_s=options.compile_budget or default.compile_s,
        step_s=options.step_budget or default.step_s,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m harness node",
        description="Run the cells that CELL_SET and its group variable select, each in fresh processes.",
        epilog="example: CELL_SET=smoke RUN_ID=first python -m harness node --evidence evidence/",
    )
    parser.add_argument("--evidence", type=Path, required=True, metavar="DIR", help="an empty or new directory")
    parser.add_argument("--procs", type=_count, default=4, metavar="N", help="GPUs, or processes on a CPU (default 4)")
    parser.add_argument("--lifeline-fd", type=int, metavar="FD", help="end everything when this descriptor is at EOF")
    for phase in ("load", "compile", "step"):
        parser.add_argument(
            f"--{phase}-budget", type=_seconds, metavar="S", help=f"seconds without progress in a {phase}"
        )
    return parser


def _count(text: str) -> int:
    if (value := int(text)) < 1:
        raise ValueError
    return value


def _seconds(text: str) -> float:
    if not 0 < (value := float(text)) < 1e6:
        raise ValueError
    return value
