"""Coordinate search on the selection loss, from the least-squares start."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Search", "coordinate_search"]

FACTORS = (0.25, 0.5, 0.8, 1.25, 2.0, 4.0, 0.0)
SEEDS = (1.0, 10.0, 100.0, 1000.0)
START_FACTORS = (1.0, 0.5, 2.0)
MAXIMUM_SWEEPS = 12
BETTER_BY = 1e-9

Loss = Callable[..., float]


@dataclass(frozen=True, slots=True)
class Search:
    """Where a search ended: unrounded coefficients, their loss, and the run that found them.

    `start_loss` is the loss of the unscaled start, `run` counts the six runs from 0 in their order.
    """

    coefficients: tuple[float, ...]
    loss: float
    start_loss: float
    run: int
    sweeps: int


def coordinate_search(loss: Loss, start: Sequence[float]) -> Search:
    """The best of six runs: from the start times 1, 0.5 and 2, each in forward and in reverse term order.

    `loss(coefficients, above=limit)` must depend on the direction of the coefficients alone, and may return anything
    that is not below `limit` where the loss is not below it. The lowest loss wins, the first run among equals.
    """
    remembered = _Remembered(loss)
    start_loss = remembered(start, above=math.inf)
    seed = min((value for value in start if value > 0), default=0.0) / 1000
    best: Search | None = None
    run = 0
    for factor in START_FACTORS:
        for order in (range(len(start)), range(len(start) - 1, -1, -1)):
            coefficients = [value * factor for value in start]
            reached, sweeps = _descend(remembered, coefficients, order, seed)
            if best is None or reached < best.loss:
                best = Search(tuple(coefficients), reached, start_loss, run, sweeps)
            run += 1
    if best is None:
        raise AssertionError("there is always a first run")
    return best


def _descend(loss: _Remembered, coefficients: list[float], order: Sequence[int], seed: float) -> tuple[float, int]:
    """Sweep over the coordinates in place until a sweep improves nothing; the loss reached, and the sweeps made."""
    reached = loss(coefficients, above=math.inf)
    for sweep in range(1, MAXIMUM_SWEEPS + 1):
        improved = False
        for index in order:
            began = coefficients[index]
            kept = began
            for trial in [began * factor for factor in FACTORS] if began > 0 else [seed * factor for factor in SEEDS]:
                coefficients[index] = trial
                value = loss(coefficients, above=reached - BETTER_BY)
                if value < reached - BETTER_BY:
                    reached, kept, improved = value, trial, True
            coefficients[index] = kept
        if not improved:
            return reached, sweep
    return reached, MAXIMUM_SWEEPS


class _Remembered:
    """A loss that remembers. A power of two times all coefficients is the same question, bit for bit.

    Multiplying by a power of two is exact, so predictions keep their order: the runs from 0.5 and 2 times the start
    ask mostly what the run from the start has asked.
    """

    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        self._known: dict[tuple[float, ...], tuple[float, float]] = {}

    def __call__(self, coefficients: Sequence[float], *, above: float) -> float:
        exponent = math.frexp(max(coefficients, default=0.0))[1]
        question = tuple(math.ldexp(value, -exponent) for value in coefficients)
        known = self._known.get(question)
        if known is not None:
            value, limit = known
            if value < limit or limit >= above:  # exact, or known to be no better than what is asked now
                return value
        value = self._loss(question, above=above)
        self._known[question] = (value, above)
        return value
