"""Bootstrap intervals over rounds and cells: how far accuracy and regret of a fixed table could be off.

Each resample draws cells with replacement and, within each cell, new rounds for each candidate: from its measured
rounds where they are known, from the noise model (`orchestrate.analysis.noise`) where only median and spread are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from orchestrate.analysis.measured import Candidate, MeasuredCell
from orchestrate.analysis.metrics import ORDERED_PCT, predictions
from orchestrate.analysis.noise import median_of, simulated_rounds_ms
from orchestrate.analysis.random_bits import Stream

__all__ = ["RESAMPLES", "Resampled", "interval", "intervals", "resample", "resampled_places"]

RESAMPLES = 1000
_LEVEL = 0.95
_ROUNDS, _CELLS = 1, 2

Vector = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Resampled:
    """Resampled medians of every cell by its key: one row a resample, one column a candidate."""

    median_ms: Mapping[str, Vector]
    seed: int


def resample(cells: Sequence[MeasuredCell], *, seed: int) -> Resampled:
    """New rounds for every candidate of `cells`, `RESAMPLES` times, and their medians."""
    found: dict[str, Vector] = {}
    for index, cell in enumerate(cells):
        stream = Stream(seed, _ROUNDS, index)
        found[cell.key] = np.stack([_medians_ms(candidate, stream) for candidate in cell.candidates], axis=1)
    return Resampled(found, seed)


def intervals(cells: Sequence[MeasuredCell], table: Mapping[str, int], resampled: Resampled) -> dict[str, Any]:
    """95% percentile intervals of the pairwise accuracy, median, 95th percentile and largest regret over `cells`."""
    ordered, right, regret_pct = _outcomes(cells, table, resampled)
    places = resampled_places(len(cells), resampled.seed)
    columns = np.arange(RESAMPLES)[:, None]
    pairs = ordered[places, columns].sum(axis=1)
    share = right[places, columns].sum(axis=1) / np.maximum(pairs, 1)
    drawn = np.sort(regret_pct[places, columns], axis=1)
    return {
        "level": _LEVEL,
        "resamples": RESAMPLES,
        "pairwise_accuracy": interval(share[pairs > 0]),
        "median_regret_pct": interval(median_of(drawn)),
        "p95_regret_pct": interval(drawn[:, int(0.95 * len(cells))]),
        "max_regret_pct": interval(drawn[:, -1]),
    }


def interval(values: Vector) -> list[float] | None:
    """The middle 95% of `values`, both ends; None without any."""
    if not len(values):
        return None
    ordered = np.sort(values)
    tail = int((1 - _LEVEL) / 2 * len(ordered))
    return [float(ordered[tail]), float(ordered[len(ordered) - 1 - tail])]


def resampled_places(count: int, seed: int) -> Counts:
    """The cells of each resample, as places among `count` cells."""
    return Stream(seed, _CELLS, count).places(count, RESAMPLES, count)


def _medians_ms(candidate: Candidate, stream: Stream) -> Vector:
    if candidate.samples_ms is None:
        return median_of(simulated_rounds_ms(candidate, stream.normals(RESAMPLES, candidate.rounds)))
    samples_ms = np.array(candidate.samples_ms)
    return median_of(samples_ms[stream.places(len(samples_ms), RESAMPLES, len(samples_ms))])


def _outcomes(
    cells: Sequence[MeasuredCell], table: Mapping[str, int], resampled: Resampled
) -> tuple[Counts, Counts, Vector]:
    """Ordered pairs, right ones and regret of each cell (row) in each resample (column)."""
    ordered: list[Counts] = []
    right: list[Counts] = []
    regret_pct: list[Vector] = []
    for cell in cells:
        predicted = predictions(cell, table)
        median_ms = resampled.median_ms[cell.key]
        selected = min(range(len(predicted)), key=predicted.__getitem__)
        best_ms = np.min(median_ms, axis=1)
        regret_pct.append((median_ms[:, selected] - best_ms) / best_ms * 100)
        pairs, agreeing = np.zeros(RESAMPLES, np.int64), np.zeros(RESAMPLES, np.int64)
        for one in range(len(predicted)):
            apart_pct = (median_ms - median_ms[:, [one]]) / median_ms[:, [one]] * 100
            slower = apart_pct > ORDERED_PCT
            later = np.array([value > predicted[one] for value in predicted])
            pairs += slower.sum(axis=1)
            agreeing += (slower & later[None, :]).sum(axis=1)
        ordered.append(pairs)
        right.append(agreeing)
    return np.stack(ordered), np.stack(right), np.stack(regret_pct)
