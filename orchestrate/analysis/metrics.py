"""How good a table's selections are: pairwise order, regret, clear misses (DESIGN section 12)."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrate.analysis.cost_terms import TERMS, cost_terms
from orchestrate.analysis.measured import MeasuredCell
from orchestrate.analysis.noise import TIE_BAND_Z, standard_error_ms

__all__ = [
    "CLEAR_MISS_PCT",
    "ORDERED_PCT",
    "CellResult",
    "Metrics",
    "cell_result",
    "median_and_p95",
    "metrics",
    "predictions",
    "regrets_pct",
]

ORDERED_PCT = 3.0
"""A pair is ordered when the slower one is more than this above the faster one."""

CLEAR_MISS_PCT = 5.0
"""A clear winner is missed when the selected layout's regret exceeds this."""


@dataclass(frozen=True, slots=True)
class CellResult:
    """What a table does in one cell.

    `ordered` and `right` count pairs; `banded` and `banded_right` count them with the tie band that the measured
    spread gives instead of 3%.
    """

    key: str
    selected: str
    best: str
    regret_pct: float
    clear_winner: bool
    ordered: int
    right: int
    banded: int
    banded_right: int

    @property
    def clear_miss(self) -> bool:
        """Whether a clear winner was missed."""
        return self.clear_winner and self.regret_pct > CLEAR_MISS_PCT


@dataclass(frozen=True, slots=True)
class Metrics:
    """Results over several cells. Without an ordered pair there is no accuracy."""

    results: tuple[CellResult, ...]

    @property
    def ordered_pairs(self) -> int:
        """Pairs more than 3% apart."""
        return sum(result.ordered for result in self.results)

    @property
    def accuracy(self) -> float | None:
        """The share of the ordered pairs that the predictions order right; a tie is not right."""
        return _share(sum(result.right for result in self.results), self.ordered_pairs)

    @property
    def clear_misses(self) -> list[str]:
        """Keys of the cells where a clear winner was missed."""
        return [result.key for result in self.results if result.clear_miss]

    def as_json(self) -> dict[str, Any]:
        """The metric block of the published format."""
        regrets = [result.regret_pct for result in self.results]
        median, p95 = median_and_p95(regrets) if regrets else (None, None)
        return {
            "cells": len(self.results),
            "clear_misses": self.clear_misses,
            "max_regret_pct": max(regrets, default=None),
            "median_regret_pct": median,
            "ordered_pairs": self.ordered_pairs,
            "p95_regret_pct": p95,
            "pairwise_accuracy": self.accuracy,
        }

    def banded_as_json(self) -> dict[str, Any]:
        """The same accuracy over the pairs that the measured spread tells apart."""
        pairs = sum(result.banded for result in self.results)
        return {
            "ordered_pairs": pairs,
            "pairwise_accuracy": _share(sum(result.banded_right for result in self.results), pairs),
        }


def metrics(cells: Sequence[MeasuredCell], table: Mapping[str, int]) -> Metrics:
    """What the integer `table` does over `cells`, in whole numbers."""
    return Metrics(tuple(cell_result(cell, predictions(cell, table)) for cell in cells))


def predictions(cell: MeasuredCell, table: Mapping[str, int]) -> list[int]:
    """The predicted cost of each candidate: thousandths of a us times 1024, whole numbers."""
    coefficients = [table[term] for term in TERMS]
    return [sum(map(operator.mul, coefficients, cost_terms(each.features, cell.facts))) for each in cell.candidates]


def cell_result(cell: MeasuredCell, predicted: Sequence[int]) -> CellResult:
    """What the predictions mean in `cell`: the lowest is selected, the first among equals."""
    regrets = regrets_pct(cell)
    selected = min(range(len(predicted)), key=predicted.__getitem__)
    best = regrets.index(0.0)
    lead = sorted(regrets)[1] if len(regrets) > 1 else 0.0
    pairs = _pairs(cell, predicted)
    return CellResult(
        key=cell.key,
        selected=cell.candidates[selected].label,
        best=cell.candidates[best].label,
        regret_pct=regrets[selected],
        clear_winner=lead > max(cell.candidates[best].spread_pct, ORDERED_PCT),
        ordered=pairs[0],
        right=pairs[1],
        banded=pairs[2],
        banded_right=pairs[3],
    )


def regrets_pct(cell: MeasuredCell) -> list[float]:
    """(t - best) / best x 100 of each candidate."""
    best = min(candidate.median_ms for candidate in cell.candidates)
    return [(candidate.median_ms - best) / best * 100 for candidate in cell.candidates]


def median_and_p95(values: Sequence[float]) -> tuple[float, float]:
    """The median, and the sorted value at index int(0.95 n)."""
    ordered = sorted(values)
    return statistics.median(ordered), ordered[int(0.95 * len(ordered))]


def _pairs(cell: MeasuredCell, predicted: Sequence[int]) -> tuple[int, int, int, int]:
    """Ordered pairs and how many of them are right, with the fixed 3% and with the tie band of the spreads."""
    time_ms = np.array([candidate.median_ms for candidate in cell.candidates])
    rank = {value: place for place, value in enumerate(sorted(set(predicted)))}  # predictions may exceed 64 bits
    ranks = np.array([rank[value] for value in predicted])
    error_ms = np.array([standard_error_ms(candidate) for candidate in cell.candidates])
    squares = error_ms * error_ms
    apart_pct = (time_ms[None, :] - time_ms[:, None]) / time_ms[:, None] * 100  # of the faster, where it is positive
    band_pct = TIE_BAND_Z * np.sqrt(squares[None, :] + squares[:, None]) / time_ms[:, None] * 100
    right = ranks[:, None] < ranks[None, :]
    ordered, banded = apart_pct > ORDERED_PCT, (apart_pct > 0) & (apart_pct > band_pct)
    counted = (ordered, ordered & right, banded, banded & right)
    one, two, three, four = (int(np.count_nonzero(each)) for each in counted)
    return one, two, three, four


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
