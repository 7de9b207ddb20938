"""The fit as its description reads, in plain Python loops: the peer of `bench_fit.py`, and the oracle of a test.

No numpy, no memory of earlier questions, no shortcut: cells as (facts, [(label, features, median_ms)]), one pair after
the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

__all__ = ["fit", "least_squares", "loss"]

Row = tuple[float, ...]
Cell = tuple[list[Row], list[float]]
"""Terms in feature units, and median in ms, of each candidate in label order."""


def fit(cells: Sequence[Cell]) -> list[int]:
    """The integer table in thousandths of a us, in the order of the terms."""
    start = least_squares(cells)
    smallest = min((value for value in start if value > 0), default=0.0)
    best: tuple[float, list[float]] | None = None
    for factor in (1, 0.5, 2):
        for order in (range(len(start)), reversed(range(len(start)))):
            found = _search(cells, [value * factor for value in start], list(order), smallest / 1000)
            if best is None or found[0] < best[0]:
                best = found
    return [] if best is None else [round(value * 1000) for value in best[1]]


def loss(cells: Sequence[Cell], coefficients: Sequence[float]) -> float:
    """Sum of selected regret in percent, plus 0.05 for each percent of the ordered pairs in the wrong order."""
    regrets: list[float] = []
    pairs = right = 0
    for terms, time_ms in cells:
        predicted = [sum(c * t for c, t in zip(coefficients, row, strict=True)) for row in terms]
        best = min(time_ms)
        regrets.append((time_ms[predicted.index(min(predicted))] - best) / best * 100)
        for one in range(len(terms)):
            for other in range(one + 1, len(terms)):
                fast, slow = (one, other) if time_ms[one] <= time_ms[other] else (other, one)
                if (time_ms[slow] - time_ms[fast]) / time_ms[fast] * 100 > 3:
                    pairs += 1
                    right += predicted[fast] < predicted[slow]
    wrong_pct = 100 - right / pairs * 100 if pairs else 0.0
    return math.fsum(regrets) + 0.05 * wrong_pct


def least_squares(cells: Sequence[Cell]) -> list[float]:
    """Non-negative least squares of the weighted deltas (Lawson and Hanson)."""
    rows = list(_deltas(cells))
    size = len(rows[0][0])
    scales = [max(abs(terms[column]) for terms, _ in rows) or 1.0 for column in range(size)]
    scaled = [([value / scale for value, scale in zip(terms, scales, strict=True)], target) for terms, target in rows]
    gram = [[math.fsum(row[i] * row[j] for row, _ in scaled) for j in range(size)] for i in range(size)]
    moment = [math.fsum(row[i] * target for row, target in scaled) for i in range(size)]
    solution = [0.0] * size
    active: list[int] = []
    tolerance = 1e-10 * max([1.0, *(abs(value) for value in moment)])
    while True:
        gradient = [moment[i] - math.fsum(gram[i][j] * solution[j] for j in range(size)) for i in range(size)]
        waiting = [i for i in range(size) if i not in active]
        largest = max((gradient[i] for i in waiting), default=0.0)
        if largest <= tolerance:
            return [value / scale for value, scale in zip(solution, scales, strict=True)]
        entering = next(i for i in waiting if gradient[i] >= largest - tolerance)
        active = sorted([*active, entering])
        solution, active = _feasible(gram, moment, solution, active)


def _search(cells: Sequence[Cell], start: list[float], order: Sequence[int], seed: float) -> tuple[float, list[float]]:
    coefficients = list(start)
    reached = loss(cells, coefficients)
    for _ in range(12):
        improved = False
        for index in order:
            began = kept = coefficients[index]
            factors = (0.25, 0.5, 0.8, 1.25, 2, 4, 0) if began else ()
            for trial in [began * factor for factor in factors] or [seed * times for times in (1, 10, 100, 1000)]:
                coefficients[index] = trial
                value = loss(cells, coefficients)
                if value < reached - 1e-9:
                    reached, kept, improved = value, trial, True
            coefficients[index] = kept
        if not improved:
            break
    return reached, coefficients


def _deltas(cells: Sequence[Cell]) -> Iterator[tuple[list[float], float]]:
    for terms, time_ms in cells:
        pairs = [(i, j) for i in range(len(terms)) for j in range(i + 1, len(terms))]
        for one, other in pairs:
            first, second = time_ms[one] * 1000, time_ms[other] * 1000
            weight = 1 / math.sqrt(len(pairs)) / ((first + second) / 2)
            yield [(a - b) * weight for a, b in zip(terms[one], terms[other], strict=True)], (first - second) * weight


def _feasible(
    gram: list[list[float]], moment: list[float], solution: list[float], active: list[int]
) -> tuple[list[float], list[int]]:
    while True:
        values = _gauss([[gram[i][j] for j in active] for i in active], [moment[i] for i in active])
        proposal = [0.0] * len(solution)
        for index, value in zip(active, values, strict=True):
            proposal[index] = value
        step = 1.0
        for index in active:
            if proposal[index] <= 1e-12:
                step = min(step, solution[index] / (solution[index] - proposal[index]))
        solution = [old + step * (new - old) for old, new in zip(solution, proposal, strict=True)]
        left = [index for index in active if solution[index] > 1e-12]
        solution = [value if index in left else 0.0 for index, value in enumerate(solution)]
        if len(left) == len(active):
            return solution, active
        active = left


def _gauss(matrix: list[list[float]], right: list[float]) -> list[float]:
    rows = [[*line, value] for line, value in zip(matrix, right, strict=True)]
    size = len(rows)
    for column in range(size):
        pivot = max(range(column, size), key=_magnitude(rows, column))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for row in range(column + 1, size):
            factor = rows[row][column] / rows[column][column]
            rows[row] = [a - factor * b for a, b in zip(rows[row], rows[column], strict=True)]
    values = [0.0] * size
    for row in reversed(range(size)):
        known = math.fsum(rows[row][column] * values[column] for column in range(row + 1, size))
        values[row] = (rows[row][size] - known) / rows[row][row]
    return values


def _magnitude(rows: list[list[float]], column: int) -> Callable[[int], float]:
    return lambda row: abs(rows[row][column])
