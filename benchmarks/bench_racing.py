"""Rounds that the racing schedule saves at equal selection (bars: 40% saved, 95% of campaigns unchanged).

`python benchmarks/bench_racing.py CELLS.jsonl [REFITS]` simulates 1,000 campaigns from medians and spreads; without a
file the cells are made up. In REFITS of them (default 20) the table is fitted twice, to what each schedule measured,
and the layouts that the two tables select are compared.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bench_fit import made_up

from orchestrate.analysis.fit import fit_table
from orchestrate.analysis.measured import MeasuredCell, is_held_out
from orchestrate.analysis.metrics import metrics
from orchestrate.analysis.racing import Race, simulate
from orchestrate.analysis.reduced_cells import read_reduced_cells

HOLDOUT = ("cp4|g4",)


def main() -> None:
    if len(sys.argv) > 1:
        found, gaps = read_reduced_cells(Path(sys.argv[1]).read_bytes(), sys.argv[1], None)
        if gaps:
            sys.exit(f"error: {gaps[0]}")
        cells = [item.cell for item in found]
    else:
        cells = made_up(58, 8)
    refits = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    started = time.process_time()
    summary, races = simulate(cells)
    spent = time.process_time() - started
    print(
        f"{summary['campaigns']} campaigns of {summary['cells']} cells, {summary['rounds_fixed']} rounds each, error"
        f" probability {summary['error_probability']} a cell: {summary['saved_share']:.1%} of the rounds saved"
        f" (least {summary['least_saved_share']:.1%}; bar 40%), best layout unchanged in every cell in"
        f" {summary['unchanged_campaigns']} (bar 950); {spent:.1f} s of CPU"
    )
    same = sum(
        selections(cells, races, number, raced=True) == selections(cells, races, number) for number in range(refits)
    )
    print(f"refits: the tables of both schedules select the same layout in every cell in {same} of {refits} campaigns")


def selections(
    cells: Sequence[MeasuredCell], races: Mapping[str, Race], number: int, *, raced: bool = False
) -> list[str]:
    """What the table fitted to campaign `number` selects in every cell."""
    training = [
        replace(
            cell,
            candidates=tuple(
                replace(candidate, median_ms=float(median_ms))
                for candidate, median_ms in zip(
                    cell.candidates, _medians_ms(races[cell.key], number, raced), strict=True
                )
            ),
        )
        for cell in cells
        if not is_held_out(cell.key, HOLDOUT)
    ]
    return [result.selected for result in metrics(cells, fit_table(training).table).results]


def _medians_ms(race: Race, number: int, raced: bool) -> Sequence[float]:
    medians: Sequence[float] = (race.median_ms if raced else race.fixed_median_ms)[number].tolist()
    return medians


if __name__ == "__main__":
    main()
