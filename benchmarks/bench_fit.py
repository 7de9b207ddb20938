"""The whole fit beside a plain Python loop of the same method (bars: shared data under 1 s, 2,000 x 40 under 60 s).

`python benchmarks/bench_fit.py CELLS.jsonl` fits that file; without it, cells of the same sizes are made up. CPU
seconds of this process stand beside wall seconds: on a busy machine only the first say what the fit costs.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from plain_fit import Cell, fit

from orchestrate.analysis.cost_terms import SCALE, TERMS, Facts, Features, cost_terms
from orchestrate.analysis.fit import fit_table
from orchestrate.analysis.measured import Candidate, MeasuredCell, is_held_out
from orchestrate.analysis.metrics import metrics
from orchestrate.analysis.reduced_cells import read_reduced_cells

HOLDOUT = ("cp4|g4",)
TRUTH = (2002, 39, 221, 594, 27, 219288, 187255, 684798, 3336555, 1194872)
Answer = TypeVar("Answer")


def main() -> None:
    if len(sys.argv) > 1:
        found, gaps = read_reduced_cells(Path(sys.argv[1]).read_bytes(), sys.argv[1], None)
        if gaps:
            sys.exit(f"error: {gaps[0]}")
        cells = [item.cell for item in found]
    else:
        cells = made_up(58, 8)
    training = [cell for cell in cells if not is_held_out(cell.key, HOLDOUT)]
    ours, table = timed(lambda: fit_table(training).table)
    judged, _ = timed(lambda: metrics(cells, table))
    peer, plain = timed(lambda: fit(plain_cells(training)))
    same = "the same table" if [table[term] for term in TERMS] == plain else "ANOTHER TABLE"
    print(f"{len(training)} cells: {ours:.3f} s (bar: under 1), plain loop {peer:.2f} s, {peer / ours:.0f}x, {same}")
    print(f"metrics, {len(cells)} cells: {judged:.3f} s")
    large = made_up(2000, 40)
    ours, _ = timed(lambda: fit_table(large).table)
    part = large[:20]
    peer, plain = timed(lambda: fit(plain_cells(part)))
    twentieth, table = timed(lambda: fit_table(part).table)
    same = "the same table" if [table[term] for term in TERMS] == plain else "ANOTHER TABLE"
    print(f"fit, 2,000 cells x 40: {ours:.1f} s (bar: under 60)")
    print(f"fit, 20 cells x 40: {twentieth:.2f} s, plain loop {peer:.1f} s, {peer / twentieth:.0f}x, {same}")


def made_up(count: int, candidates: int) -> list[MeasuredCell]:
    """Cells whose times follow a table, with a tenth of noise."""
    draw = random.Random(0)  # noqa: S311  # a benchmark's own numbers
    cells: list[MeasuredCell] = []
    for number in range(count):
        tp, cp = draw.choice([(1, 1), (1, 2), (1, 4), (2, 1)])
        layers, gdn = draw.choice([(32, 24), (36, 0)])
        facts = Facts(tp, cp, layers, gdn)
        key = f"cal-made-up|model|L{layers}|tp{tp}|cp{cp}|g{2 * number}"
        cells.append(MeasuredCell(key, facts, tuple(_candidate(draw, facts, n) for n in range(candidates))))
    return cells


def plain_cells(cells: Sequence[MeasuredCell]) -> list[Cell]:
    """The cells as the plain loop takes them."""
    return [
        (
            [tuple(term / SCALE for term in cost_terms(each.features, cell.facts)) for each in cell.candidates],
            [each.median_ms for each in cell.candidates],
        )
        for cell in cells
    ]


def timed(work: Callable[[], Answer]) -> tuple[float, Answer]:
    """CPU seconds of `work`, and its answer; the wall seconds go to standard error."""
    wall, started = time.perf_counter(), time.process_time()
    answer = work()
    spent = time.process_time() - started
    print(f"  ({spent:.3f} s of CPU, {time.perf_counter() - wall:.3f} s on the wall)", file=sys.stderr)
    return spent, answer


def _candidate(draw: random.Random, facts: Facts, number: int) -> Candidate:
    segments = draw.randint(1, 40)
    below = tuple(sorted(draw.randint(0, segments) for _ in range(8)))
    features = Features(draw.randint(8_000, 80_000), segments, draw.randint(1, 6), below)
    cost = sum(coefficient * term for coefficient, term in zip(TRUTH, cost_terms(features, facts), strict=True))
    return Candidate(f"layout_{number:02}", features, cost / SCALE / 1e6 * draw.uniform(0.9, 1.1), 8, 2.0)


if __name__ == "__main__":
    main()
