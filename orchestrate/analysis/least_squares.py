"""Non-negative least squares on weighted within-cell deltas: where the search of the fit starts.

The method is Lawson and Hanson's (Solving Least Squares Problems, 1974, chapter 23). The normal equations of the
active columns are solved by Cholesky and refined twice with the residual of the full system, which gives the accuracy
of an orthogonal method (Bjorck, corrected seminormal equations) with sums in one fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from orchestrate.analysis.cost_terms import SCALE, TERMS, cost_terms
from orchestrate.analysis.measured import MeasuredCell

__all__ = ["Deltas", "nnls", "pair_deltas", "starting_point"]

Vector = npt.NDArray[np.float64]

_GRADIENT_TOLERANCE = 1e-10
_LEAVES_AT = 1e-12
_REFINEMENTS = 2
_PIECE = 1 << 14
_MOST_STEPS = 100
_DEPENDENT = 1e-13
"""A pivot this small beside its diagonal is rounding: the column depends on those before it."""


@dataclass(frozen=True, slots=True)
class Deltas:
    """One row for each pair of candidates of a cell: columns scaled to unit maximum, their scales, and the targets."""

    columns: tuple[Vector, ...]
    scales: tuple[float, ...]
    target: Vector

    def gram(self) -> list[list[float]]:
        """Inner products of the columns."""
        size = len(self.columns)
        gram = [[0.0] * size for _ in range(size)]
        for row in range(size):
            for column in range(row + 1):
                gram[row][column] = gram[column][row] = _inner(self.columns[row], self.columns[column])
        return gram

    def gradient(self, solution: Sequence[float]) -> list[float]:
        """Inner product of each column with the residual of `solution`."""
        residual = self.target.copy()
        for start in range(0, residual.size, _PIECE):
            piece = residual[start : start + _PIECE]
            for column, value in zip(self.columns, solution, strict=True):
                if value != 0.0:
                    piece -= column[start : start + _PIECE] * value
        return [_inner(column, residual) for column in self.columns]


def starting_point(cells: Sequence[MeasuredCell]) -> tuple[float, ...]:
    """Non-negative coefficients in us per feature unit, in the order of `TERMS`, that fit the deltas of `cells` best.

    Cells with one candidate have no pair and say nothing.
    """
    deltas = pair_deltas(cells)
    return tuple(value / scale for value, scale in zip(nnls(deltas), deltas.scales, strict=True))


def pair_deltas(cells: Sequence[MeasuredCell]) -> Deltas:
    """All pairs (i before j in label order) within each cell: difference of terms against difference of times in us.

    Row and target are multiplied by 1 / sqrt(pairs in the cell) / (mean time of the pair), so that each cell counts
    the same, however many candidates it has and however long it takes.
    """
    blocks: list[list[Vector]] = []
    for cell in cells:
        count = len(cell.candidates)
        if count < 2:
            continue
        first, second = np.triu_indices(count, 1)
        time_us = np.array([candidate.median_ms * 1000 for candidate in cell.candidates])
        weight = 1 / math.sqrt(len(first)) / ((time_us[first] + time_us[second]) / 2)
        terms = [cost_terms(candidate.features, cell.facts) for candidate in cell.candidates]
        block = [
            (column[first] - column[second]) * weight
            for column in (np.array([row[term] / SCALE for row in terms]) for term in range(len(TERMS)))
        ]
        blocks.append([*block, (time_us[first] - time_us[second]) * weight])
    if not blocks:
        empty = np.zeros(0)
        return Deltas((empty,) * len(TERMS), (1.0,) * len(TERMS), empty)
    *columns, target = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    scales = [float(np.max(np.abs(column))) or 1.0 for column in columns]
    scaled = tuple(column / scale for column, scale in zip(columns, scales, strict=True))
    return Deltas(scaled, tuple(scales), target)


def nnls(deltas: Deltas) -> tuple[float, ...]:
    """The non-negative coefficients of the scaled columns whose residual is least.

    The active set grows by the column with the largest gradient while that is above a tolerance, 1e-10 of max(1, the
    largest at the start); gradients within the tolerance are equal, and the first among equals enters. A coefficient at
    or below 1e-12 leaves the set.
    """
    size = len(deltas.columns)
    gram = deltas.gram()
    solution = [0.0] * size
    moment = gradient = deltas.gradient(solution)
    tolerance = _GRADIENT_TOLERANCE * max([1.0, *(abs(value) for value in gradient)])
    active: list[int] = []
    refused: set[int] = set()
    for _ in range(_MOST_STEPS * size):  # exact arithmetic ends by itself; rounding could go round in circles
        waiting = [index for index in range(size) if index not in active and index not in refused]
        largest = max((gradient[index] for index in waiting), default=0.0)
        if largest <= tolerance:
            break
        # Columns that always go together have one gradient but for rounding: the first of the terms enters.
        entering = next(index for index in waiting if gradient[index] >= largest - tolerance)
        proposal = _least_squares(deltas, gram, moment, sorted([*active, entering]))
        if proposal is None or proposal[entering] <= _LEAVES_AT:
            refused.add(entering)  # it depends on the active columns: its gradient is rounding
            continue
        refused.clear()
        active = sorted([*active, entering])
        solution, active = _stay_feasible(deltas, gram, moment, solution, proposal, active)
        gradient = deltas.gradient(solution)
    return tuple(solution)


def _stay_feasible(
    deltas: Deltas,
    gram: list[list[float]],
    moment: list[float],
    solution: list[float],
    proposal: list[float],
    active: list[int],
) -> tuple[list[float], list[int]]:
    """Walk from `solution` towards the least squares of `active`, dropping each column that reaches zero on the way."""
    while falling := [index for index in active if proposal[index] <= _LEAVES_AT]:
        steps = {index: solution[index] / (solution[index] - proposal[index]) for index in falling}
        first = min(falling, key=steps.__getitem__)
        moved = [old + steps[first] * (new - old) for old, new in zip(solution, proposal, strict=True)]
        active = [index for index in active if moved[index] > _LEAVES_AT and index != first]
        solution = [moved[index] if index in active else 0.0 for index in range(len(moved))]
        again = _least_squares(deltas, gram, moment, active)
        if again is None:
            return solution, active
        proposal = again
    return proposal, active


def _least_squares(
    deltas: Deltas, gram: list[list[float]], moment: list[float], active: list[int]
) -> list[float] | None:
    """The unconstrained solution on the columns `active`, zero elsewhere; None where they depend on each other.

    `moment` is the gradient at zero.
    """
    factor = _cholesky([[gram[row][column] for column in active] for row in active])
    if factor is None:
        return None
    solution = [0.0] * len(deltas.columns)
    gradient = moment
    for refinement in range(1 + _REFINEMENTS):
        if refinement:
            gradient = deltas.gradient(solution)
        for index, value in zip(active, _solve(factor, [gradient[index] for index in active]), strict=True):
            solution[index] += value
    return solution


def _cholesky(matrix: list[list[float]]) -> list[list[float]] | None:
    factor: list[list[float]] = []
    for row, values in enumerate(matrix):
        line: list[float] = []
        for column in range(row):
            inner = math.fsum(a * b for a, b in zip(line, factor[column], strict=False))
            line.append((values[column] - inner) / factor[column][column])
        pivot = values[row] - math.fsum(value * value for value in line)
        if pivot <= _DEPENDENT * values[row]:
            return None
        factor.append([*line, math.sqrt(pivot)])
    return factor


def _solve(factor: list[list[float]], right: list[float]) -> list[float]:
    size = len(right)
    forward: list[float] = []
    for row in range(size):
        inner = math.fsum(factor[row][column] * forward[column] for column in range(row))
        forward.append((right[row] - inner) / factor[row][row])
    solution = [0.0] * size
    for row in reversed(range(size)):
        inner = math.fsum(factor[column][row] * solution[column] for column in range(row + 1, size))
        solution[row] = (forward[row] - inner) / factor[row][row]
    return solution


def _inner(one: Vector, other: Vector) -> float:
    """The inner product, added from the first row to the last: `accumulate` has no choice of order, `dot` has.

    In pieces that stay in the cache; each goes on from the sum of the one before, so the order is one.
    """
    total = 0.0
    for start in range(0, one.size, _PIECE):
        products = one[start : start + _PIECE] * other[start : start + _PIECE]
        products[0] += total
        total = float(np.add.accumulate(products, out=products)[-1])
    return total
