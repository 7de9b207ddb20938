"""The racing schedule over many simulated campaigns at once: what it saves, and what it costs in selections.

The rule is that of `orchestrate/receipts/racing.py`, by arrays; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from orchestrate.analysis.measured import MeasuredCell
from orchestrate.analysis.noise import median_of, simulated_rounds_ms
from orchestrate.analysis.random_bits import Stream
from orchestrate.receipts.racing import ERROR_PROBABILITY, LEAST_ROUNDS, MOST_FREEDOM, t_quantile

__all__ = ["Race", "decided", "race", "simulate"]

Vector = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Race:
    """Outcomes of the same rounds under both schedules, one entry a campaign.

    `selected` and `fixed` are the layouts with the lowest median, `rounds` how often each layout was measured.
    """

    selected: npt.NDArray[np.int64]
    fixed: npt.NDArray[np.int64]
    rounds: npt.NDArray[np.int64]
    median_ms: Vector
    fixed_median_ms: Vector


def decided(time_ms: Vector, alive: Flags, *, layouts: int, repeat: int, error: float = ERROR_PROBABILITY) -> Flags:
    """Which layouts are decided to be slower than the leader.

    `time_ms` has the rounds so far (campaign, layout, round), `alive` the layouts still measured. `layouts` and
    `repeat` are the numbers that the cell began with: they share out the error probability.
    """
    rounds = time_ms.shape[2]
    if rounds < LEAST_ROUNDS or layouts < 2:
        return np.zeros_like(alive)
    median_ms = np.where(alive, median_of(time_ms), np.inf)
    leader = np.argmin(median_ms, axis=1)
    campaigns = np.arange(len(leader))
    apart = time_ms - time_ms[campaigns, leader][:, None, :]
    mean = _mean(apart)
    own = _variance(apart, mean)
    relative = _variance(time_ms, _mean(time_ms)) / (_mean(time_ms) * _mean(time_ms))
    counts = alive.sum(axis=1)
    pooled = np.add.accumulate(np.where(alive, relative, 0.0), axis=1)[:, -1] / np.maximum(
        counts, 1
    )  # none left: the race is over
    scale = _mean(time_ms)
    shared = pooled[:, None] * (scale * scale + (scale[campaigns, leader] * scale[campaigns, leader])[:, None])
    deviation = np.sqrt(np.maximum(own, shared) / rounds)
    limit = _limits(counts, rounds, layouts, repeat, error)
    slower: Flags = alive & (mean > limit[:, None] * deviation)
    slower[campaigns, leader] = False
    return slower


def race(time_ms: Vector, *, error: float = ERROR_PROBABILITY) -> Race:
    """Run both schedules on the same rounds (campaign, layout, round)."""
    campaigns, layouts, repeat = time_ms.shape
    alive = np.ones((campaigns, layouts), np.bool_)
    rounds = np.full((campaigns, layouts), 0, np.int64)
    for done in range(1, repeat + 1):
        over = (alive.sum(axis=1) == 1) & (layouts > 1)
        racing = alive & ~over[:, None]
        rounds += racing
        alive = alive & ~decided(time_ms[:, :, :done], racing, layouts=layouts, repeat=repeat, error=error)
    median_ms = np.empty((campaigns, layouts))
    for count in range(1, repeat + 1):
        median_ms = np.where(rounds == count, median_of(time_ms[:, :, :count]), median_ms)
    fixed_median_ms = median_of(time_ms)
    return Race(
        selected=np.argmin(np.where(alive, median_ms, np.inf), axis=1),
        fixed=np.argmin(fixed_median_ms, axis=1),
        rounds=rounds,
        median_ms=median_ms,
        fixed_median_ms=fixed_median_ms,
    )


def simulate(
    cells: Sequence[MeasuredCell],
    *,
    campaigns: int = 1000,
    repeat: int = 8,
    seed: int = 1,
    error: float = ERROR_PROBABILITY,
) -> tuple[dict[str, Any], Mapping[str, Race]]:
    """Simulate campaigns over `cells` from their medians and spreads, under both schedules on the same rounds.

    The noise model is `orchestrate.analysis.noise.simulated_rounds_ms`, independent between rounds and layouts.
    Returns the summary and, by cell key, the races.
    """
    races: dict[str, Race] = {}
    for index, cell in enumerate(cells):
        stream = Stream(seed, 3, index)
        time_ms = np.stack(
            [simulated_rounds_ms(each, stream.normals(campaigns, repeat)) for each in cell.candidates], axis=1
        )
        races[cell.key] = race(time_ms, error=error)
    used = sum(one.rounds.sum(axis=1) for one in races.values())
    whole = repeat * sum(len(cell.candidates) for cell in cells)
    same = np.ones(campaigns, np.bool_)
    for one in races.values():
        same &= one.selected == one.fixed
    changed = sum(int((one.selected != one.fixed).sum()) for one in races.values())
    saved = np.sort(1 - np.asarray(used) / whole)
    summary = {
        "campaigns": campaigns,
        "error_probability": error,
        "rounds_fixed": whole,
        "saved_share": float(np.add.accumulate(saved)[-1] / campaigns),
        "least_saved_share": float(saved[0]),
        "unchanged_campaigns": int(same.sum()),
        "changed_cells": changed,
        "cells": len(cells),
    }
    return summary, races


def _limits(counts: npt.NDArray[np.int64], rounds: int, layouts: int, repeat: int, error: float) -> Vector:
    """The t that a mean must exceed, by how many layouts are still measured."""
    tail = error / ((layouts - 1) * (repeat - LEAST_ROUNDS + 1))
    found = {int(count): _limit(int(count) * (rounds - 1), tail) for count in np.unique(counts)}
    return np.array([found[int(count)] for count in counts])


def _limit(freedom: int, tail: float) -> float:
    even = min(freedom - freedom % 2, MOST_FREEDOM)
    return t_quantile(tail, even) if even >= 2 else 0.0  # at most the leader is left: there is nothing to decide


def _mean(values: Vector) -> Vector:
    mean: Vector = np.add.accumulate(values, axis=-1)[..., -1] / values.shape[-1]
    return mean


def _variance(values: Vector, mean: Vector) -> Vector:
    away = values - mean[..., None]
    variance: Vector = np.add.accumulate(away * away, axis=-1)[..., -1] / (values.shape[-1] - 1)
    return variance
