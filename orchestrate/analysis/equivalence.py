"""Two tables over the same cells: is one better, worse, or do they select the same within noise?

The search ends in one of many tables that select alike. A refit is worth a change only where the change can be
measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from orchestrate.analysis.cost_terms import TERMS
from orchestrate.analysis.fit import table_sha256
from orchestrate.analysis.intervals import Resampled, interval, resampled_places
from orchestrate.analysis.least_squares import pair_deltas
from orchestrate.analysis.measured import MeasuredCell
from orchestrate.analysis.metrics import metrics, predictions
from orchestrate.analysis.noise import tie_band_pct

__all__ = ["Standing", "collinear_terms", "compare_tables"]

_COLLINEAR_SHARE = 0.75
_TRADE = 0.5
_SWEPT = 1e-12


class Standing(StrEnum):
    """What a refit is beside the shipped table."""

    IDENTICAL = "identical"
    EQUIVALENT = "equivalent"
    BETTER = "better"
    WORSE = "worse"


def compare_tables(
    cells: Sequence[MeasuredCell], shipped: Mapping[str, int], refit: Mapping[str, int], resampled: Resampled
) -> dict[str, Any]:
    """The comparison of `refit` with `shipped` over `cells`.

    Equivalent: in every cell both select the same layout, or two that the tie band of their spreads does not tell
    apart. Otherwise better or worse, by the sum of regrets; the gain is measurable when the 95% interval of the mean
    difference of regret, over rounds and cells, does not hold zero.
    """
    ours, theirs = metrics(cells, refit), metrics(cells, shipped)
    differing = [
        _difference(cell, old.selected, new.selected)
        for cell, old, new in zip(cells, theirs.results, ours.results, strict=True)
        if old.selected != new.selected
    ]
    told_apart = [each for each in differing if not each["within_noise"]]
    gain = math.fsum(result.regret_pct for result in theirs.results) - math.fsum(
        result.regret_pct for result in ours.results
    )
    if dict(shipped) == dict(refit):
        standing = Standing.IDENTICAL
    elif not told_apart or gain == 0.0:
        standing = Standing.EQUIVALENT
    else:
        standing = Standing.BETTER if gain > 0 else Standing.WORSE
    difference = _mean_difference_interval(cells, shipped, refit, resampled)
    return {
        "shipped_sha256": table_sha256(shipped),
        "refit_sha256": table_sha256(refit),
        "standing": standing.value,
        "measurable": standing in {Standing.BETTER, Standing.WORSE} and not difference[0] <= 0 <= difference[1],
        "regret_difference_pct": -gain / len(cells),
        "regret_difference_interval_pct": difference,
        "cells_that_differ": differing,
        "coefficients_that_differ": {
            term: [shipped[term], refit[term]] for term in TERMS if shipped[term] != refit[term]
        },
        "metrics": {"shipped": theirs.as_json(), "refit": ours.as_json()},
    }


def collinear_terms(cells: Sequence[MeasuredCell]) -> dict[str, Any]:
    """Which terms the least squares of `cells` can hardly tell apart.

    `absent` terms never vary. For each other term, `explained` is the share of its column that the other columns
    explain (R squared; at 1 they could take over for it); `collinear` are those above the threshold, which is a
    variance inflation of 4. `trades` are pairs that do it for each other, by their partial correlation: where it is
    negative one grows as the other shrinks.
    """
    gram = pair_deltas(cells).gram()
    varying = [index for index in range(len(TERMS)) if gram[index][index] > 0.0]
    precision, independent = _inverse(gram, varying)
    explained = dict.fromkeys([TERMS[index] for index in varying], 1.0)
    explained |= {TERMS[index]: 1.0 - 1.0 / (gram[index][index] * precision[index][index]) for index in independent}
    trades: list[dict[str, Any]] = []
    for place, one in enumerate(independent):
        for other in independent[place + 1 :]:
            scale = math.sqrt(precision[one][one]) * math.sqrt(precision[other][other])
            partial = precision[one][other] / scale  # the covariance of fitted coefficients is this inverse
            if abs(partial) >= _TRADE:
                trades.append({"terms": [TERMS[one], TERMS[other]], "coefficient_correlation": partial})
    return {
        "absent": [term for index, term in enumerate(TERMS) if index not in varying],
        "explained": explained,
        "threshold": _COLLINEAR_SHARE,
        "collinear": [term for term, share in explained.items() if share >= _COLLINEAR_SHARE],
        "trades": trades,
    }


def _difference(cell: MeasuredCell, old: str, new: str) -> dict[str, Any]:
    by_label = {candidate.label: candidate for candidate in cell.candidates}
    shipped, refit = by_label[old], by_label[new]
    faster_ms = min(shipped.median_ms, refit.median_ms)
    apart_pct = (refit.median_ms - shipped.median_ms) / faster_ms * 100
    band_pct = tie_band_pct(shipped, refit)
    return {
        "cell": cell.key,
        "shipped": old,
        "refit": new,
        "refit_slower_pct": apart_pct,
        "tie_band_pct": band_pct,
        "within_noise": abs(apart_pct) <= band_pct,
    }


def _mean_difference_interval(
    cells: Sequence[MeasuredCell], shipped: Mapping[str, int], refit: Mapping[str, int], resampled: Resampled
) -> list[float]:
    """The interval of the mean of (regret of refit - regret of shipped), in percent, over rounds and cells."""
    rows: list[npt.NDArray[np.float64]] = []
    for cell in cells:
        median_ms = resampled.median_ms[cell.key]
        best_ms = np.min(median_ms, axis=1)
        new, old = (_selected(cell, table) for table in (refit, shipped))
        rows.append((median_ms[:, new] - median_ms[:, old]) / best_ms * 100)
    difference = np.stack(rows)
    places = resampled_places(len(cells), resampled.seed)
    drawn = difference[places, np.arange(difference.shape[1])[:, None]]
    return interval(np.add.accumulate(drawn, axis=1)[:, -1] / len(cells)) or [0.0, 0.0]


def _selected(cell: MeasuredCell, table: Mapping[str, int]) -> int:
    predicted = predictions(cell, table)
    return min(range(len(predicted)), key=predicted.__getitem__)


def _inverse(gram: list[list[float]], columns: Sequence[int]) -> tuple[list[list[float]], list[int]]:
    """The inverse of `gram` on those of `columns` that do not depend on earlier ones, by Gauss-Jordan sweeps."""
    work = [row[:] for row in gram]
    independent: list[int] = []
    for pivot in columns:
        if work[pivot][pivot] <= _SWEPT * gram[pivot][pivot]:
            continue
        scale = work[pivot][pivot]
        line = [value / scale for value in work[pivot]]
        line[pivot] = 1.0 / scale
        for row in range(len(work)):
            if row != pivot:
                factor = work[row][pivot]
                work[row] = [value - factor * swept for value, swept in zip(work[row], line, strict=True)]
                work[row][pivot] = -factor / scale
        work[pivot] = line
        independent.append(pivot)
    return work, independent
