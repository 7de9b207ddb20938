"""`python -m harness calibrate`, on each rank of one cell, under torchrun.

    torchrun --standalone --nproc-per-node 4 -m harness calibrate \\
        --cell 'cal-grpo-tiny|tiny-hybrid|L4|tp1|cp4' --repeat 8 --evidence rows.jsonl

Beside FILE it makes `trace/` (the collectives and the beats of each rank) and `stacks/` (empty but for a stall).
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.cells import Cell, parse_key
from harness.errors import InputError, report
from harness.outcome import INFRASTRUCTURE_EXIT_CODE
from harness.processes import die_with_parent
from harness.racing import MOST_ROUNDS, Schedule
from harness.trace.watchdog import Budgets, Heart, Phase, answer_with_stacks

__all__ = ["UNSETTLED_EXIT_CODE", "Settings", "main", "settings_from"]

UNSETTLED_EXIT_CODE = 4


@dataclass(frozen=True, slots=True)
class Settings:
    """One rank's part of a calibration.

    `device` is `cpu` or `h200`. `fingerprint` is the node's, None where this rank is to find it.
    """

    cell: Cell
    repeat: int
    evidence: Path
    device: str
    run_id: str
    rank: int
    world_size: int
    local_rank: int
    corpus: Path | None = None
    corpus_sha256: str | None = None
    fingerprint: str | None = None
    process_group_timeout_s: float = Budgets().process_group_timeout_s
    schedule: Schedule = Schedule.FIXED


def main(argv: Sequence[str]) -> int:
    """Measure one cell; returns 0 when it is complete, 4 when it never settled.

    Raises:
        InputError: an option is wrong, or this process is no rank of the cell's shape.
    """
    settings = settings_from(_parser().parse_args(argv), os.environ)
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(variable, "lo")  # a cell never leaves its node
    return on_rank(settings, _calibrate)


def on_rank(settings: Settings, work: Callable[[Settings, Heart], int]) -> int:
    """Do `work` as a rank that answers for its stacks, shows its progress and never outlives torchrun.

    Returns what `work` returns, 2 where its input is wrong and 5 where files can not be written.
    """
    die_with_parent()
    answer_with_stacks(settings.evidence.parent / "stacks", settings.rank)
    heart = Heart(settings.evidence.parent / "trace", settings.rank)
    heart.beat(Phase.LOAD)
    gc.disable()  # importing torch makes a million objects that live for ever: collecting among them costs 0.5 s
    from torch.distributed.elastic.multiprocessing.errors import record  # noqa: PLC0415 - after the first beat

    try:
        code = record(work)(settings, heart)
    except InputError as error:
        return report(error)
    except OSError as error:  # a full disk, a lost mount: no fault of what is measured
        print(f"error: {error}\nremedy: make room or rights for {settings.evidence.parent}", file=sys.stderr)
        return INFRASTRUCTURE_EXIT_CODE
    heart.beat(Phase.DONE)
    return UNSETTLED_EXIT_CODE if code is None else code


def settings_from(options: argparse.Namespace, env: Mapping[str, str]) -> Settings:
    """The settings of this rank from the options and from what torchrun set.

    Raises:
        InputError: torchrun set nothing, or started another number of ranks than the cell's shape has.
    """
    cell = parse_key(options.cell)
    if "RANK" not in env or "WORLD_SIZE" not in env:
        raise InputError(
            "this process is no rank: RANK and WORLD_SIZE are not set",
            remedy=f"start it with torchrun --standalone --nproc-per-node {cell.gpus} -m harness calibrate ...",
        )
    world_size = int(env["WORLD_SIZE"])
    if world_size != cell.gpus:
        raise InputError(
            f"cell {cell.key} has tp {cell.tp} x cp {cell.cp}, there are {world_size} ranks",
            remedy=f"start exactly {cell.gpus} ranks (--nproc-per-node {cell.gpus})",
        )
    if options.schedule == Schedule.RACING and options.repeat > MOST_ROUNDS:
        raise InputError(f"a race of {options.repeat} rounds", remedy=f"give --repeat at most {MOST_ROUNDS} for a race")
    return Settings(
        cell=cell,
        repeat=options.repeat,
        evidence=options.evidence,
        device=options.device,
        run_id=options.run_id,
        rank=int(env["RANK"]),
        world_size=world_size,
        local_rank=int(env.get("LOCAL_RANK", env["RANK"])),
        corpus=options.corpus,
        corpus_sha256=options.corpus_sha256,
        fingerprint=options.fingerprint,
        process_group_timeout_s=options.process_group_timeout,
        schedule=Schedule(options.schedule),
    )


def _calibrate(settings: Settings, heart: Heart) -> int:
    from harness.cell_run import run_cell  # noqa: PLC0415 - torch and dynamo: 4 s that must come after the first beat
    from harness.measure import CellOutcome  # noqa: PLC0415

    outcome = run_cell(settings, heart)
    return 0 if outcome is CellOutcome.COMPLETE else UNSETTLED_EXIT_CODE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m harness calibrate",
        description="Measure one cell on the ranks that torchrun started.",
        epilog="example: torchrun --standalone --nproc-per-node 4 -m harness calibrate"
        " --cell 'cal-grpo-tiny|tiny-hybrid|L4|tp1|cp4' --repeat 2 --evidence rows.jsonl",
    )
    parser.add_argument("--cell", required=True, metavar="KEY", help="workload|model|L<layers>|tp<T>|cp<C>[|g<group>]")
    parser.add_argument("--repeat", type=_count, default=8, metavar="N", help="measured rounds (default 8)")
    parser.add_argument(
        "--schedule",
        choices=[schedule.value for schedule in Schedule],
        default=Schedule.FIXED.value,
        help="racing stops measuring a layout once it is decided that another one is faster (default fixed)",
    )
    parser.add_argument("--evidence", type=Path, required=True, metavar="FILE", help="where the rows go; must be new")
    parser.add_argument("--device", choices=("cpu", "h200"), default="cpu", help="what to run on (default cpu)")
    parser.add_argument("--run-id", default="by-hand", metavar="ID", help="the run that the rows belong to")
    parser.add_argument("--corpus", type=Path, metavar="PATH", help="the file of a private corpus")
    parser.add_argument("--corpus-sha256", metavar="SHA", help="what it must be")
    parser.add_argument("--fingerprint", metavar="SHA", help="the node's, where it was looked at already")
    parser.add_argument(
        "--process-group-timeout",
        type=float,
        default=Budgets().process_group_timeout_s,
        metavar="S",
        help="seconds that a collective may take; the stall watch of the node comes before it",
    )
    return parser


def _count(text: str) -> int:
    if (value := int(text)) < 1:
        raise ValueError
    return value
