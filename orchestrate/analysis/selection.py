"""What a table selects, fast: the loss of the search, many times over the same cells."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from orchestrate.analysis.cost_terms import SCALE, TERMS, cost_terms
from orchestrate.analysis.measured import MeasuredCell
from orchestrate.analysis.metrics import ORDERED_PCT, regrets_pct

__all__ = ["SelectionLoss"]

Vector = npt.NDArray[np.float64]

_ACCURACY_WEIGHT = 0.05


class SelectionLoss:
    """The loss of unrounded coefficients over fixed cells.

    loss = sum over cells of the selected candidate's regret in percent
         + 0.05 x (100 - percent of the ordered pairs that the predictions order right).
    """

    def __init__(self, cells: Sequence[MeasuredCell]) -> None:
        terms = [cost_terms(candidate.features, cell.facts) for cell in cells for candidate in cell.candidates]
        self._columns = [np.array([row[term] / SCALE for row in terms]) for term in range(len(TERMS))]
        counts = [len(cell.candidates) for cell in cells]
        starts = np.cumsum([0, *counts])[:-1]
        width = max(counts, default=0)
        self._places = np.concatenate(
            [np.arange(count) + row * width for row, count in enumerate(counts)] or [np.zeros(0, np.intp)]
        )
        self._rows = np.arange(len(cells))
        self._predicted = np.full((len(cells), width), np.inf)
        regret = np.full(len(cells) * width, np.nan)
        regret[self._places] = [value for cell in cells for value in regrets_pct(cell)]
        self._regret = regret.reshape(len(cells), width)
        self._faster, self._slower = _ordered_pairs(cells, starts)

    def __call__(self, coefficients: Sequence[float], *, above: float = math.inf) -> float:
        """The loss of `coefficients` in us per feature unit; anything not below `above` where it is not below it."""
        predictions = self._predict(coefficients)
        regret = self._selected_regret(predictions)
        if regret >= above or not len(self._faster):
            return regret
        right = int(np.count_nonzero(predictions[self._faster] < predictions[self._slower]))
        return regret + _ACCURACY_WEIGHT * (100 - right / len(self._faster) * 100)

    def _predict(self, coefficients: Sequence[float]) -> Vector:
        """Coefficient times term, added in the order of the terms."""
        total = self._columns[0] * coefficients[0]
        for column, coefficient in zip(self._columns[1:], coefficients[1:], strict=True):
            if coefficient != 0.0:  # adding zero changes no bit
                total = total + column * coefficient
        return total

    def _selected_regret(self, predictions: Vector) -> float:
        """Sum of the selected candidates' regrets; `argmin` takes the first among equals."""
        if not len(self._rows):
            return 0.0
        self._predicted.ravel()[self._places] = predictions
        chosen = self._regret[self._rows, np.argmin(self._predicted, axis=1)]
        return math.fsum(chosen.tolist())


def _ordered_pairs(
    cells: Sequence[MeasuredCell], starts: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Places of the faster and of the slower candidate of every ordered pair."""
    faster: list[npt.NDArray[np.int64]] = [np.zeros(0, np.int64)]
    slower: list[npt.NDArray[np.int64]] = [np.zeros(0, np.int64)]
    for cell, start in zip(cells, starts, strict=True):
        time_ms = np.array([candidate.median_ms for candidate in cell.candidates])
        apart_pct = (time_ms[None, :] - time_ms[:, None]) / time_ms[:, None] * 100
        one, other = np.nonzero(apart_pct > ORDERED_PCT)
        faster.append(one + start)
        slower.append(other + start)
    return np.concatenate(faster), np.concatenate(slower)
