"""The racing schedule as receipts judge it: how many rounds the rule gives each layout, from the rounds themselves.

After each round, from the third on, every layout still measured is compared with the leader (the lowest median). It is
decided when the mean of its paired differences from the leader is above zero by a t-test at the stated error
probability of the cell, shared among all comparisons and rounds (Bonferroni). The standard deviation is the larger of
the pair's own and the one pooled over all layouts still measured, so that two rounds that agree by chance decide
nothing. When one layout is left, the cell is done.

`harness/racing.py` is the same rule on the node, which imports nothing of orchestrate, and
`orchestrate/analysis/racing.py` the same over many simulated campaigns; tests compare them bit for bit. So sums run
from the first to the last: `sum` does not, it compensates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

__all__ = [
    "ERROR_PROBABILITY",
    "LEAST_ROUNDS",
    "MOST_FREEDOM",
    "MOST_ROUNDS",
    "decided",
    "rounds_of_race",
    "t_quantile",
]

ERROR_PROBABILITY = 0.001
"""The probability, for one cell, that a layout is dropped that the leader does not beat."""

LEAST_ROUNDS = 3
"""Rounds before anything is decided: two that agree by chance are too common."""

MOST_ROUNDS = 200
"""More would make a judgement long, which takes every decision again: its time grows with the square of the rounds."""

MOST_FREEDOM = 60
"""More degrees of freedom change nothing that matters."""


def rounds_of_race(samples_ms: Sequence[Sequence[float]], repeat: int) -> list[int]:
    """How many rounds the rule gives each layout, from the rounds that were measured, in the order of the family.

    Where a layout has fewer rounds than the rule asks for, the answer is what it asks for at least.
    """
    layouts = len(samples_ms)
    alive = list(range(layouts))
    rounds = [0] * layouts
    for done in range(1, repeat + 1):
        if not alive or (layouts > 1 and len(alive) == 1):
            return rounds
        for index in alive:
            rounds[index] = done
        if any(len(samples_ms[index]) < done for index in alive):
            return rounds
        times_ms = [samples[:done] for samples in samples_ms]
        dropped = decided(times_ms, alive, repeat=repeat)
        alive = [index for index in alive if index not in dropped]
    return rounds


def decided(times_ms: Sequence[Sequence[float]], alive: Sequence[int], *, repeat: int) -> frozenset[int]:
    """The layouts of `alive` (places in `times_ms`) that are decided to be slower than the leader.

    Each of `alive` has all rounds so far; the others may have fewer. `repeat` is the number of rounds of the cell, and
    shares out the error probability together with the number of layouts.
    """
    rounds = len(times_ms[alive[0]])
    if rounds < LEAST_ROUNDS or len(alive) < 2:
        return frozenset()
    first = _leader(times_ms, alive)
    means = {index: _mean(times_ms[index]) for index in alive}
    pooled = _total([_variance(times_ms[index]) / (means[index] * means[index]) for index in alive]) / len(alive)
    limit = _limit(len(alive) * (rounds - 1), ERROR_PROBABILITY / ((len(times_ms) - 1) * (repeat - LEAST_ROUNDS + 1)))
    found = set()
    for index in alive:
        apart = [one - best for one, best in zip(times_ms[index], times_ms[first], strict=True)]
        shared = pooled * (means[index] * means[index] + means[first] * means[first])
        deviation = math.sqrt(max(_variance(apart), shared) / rounds)
        if index != first and _mean(apart) > limit * deviation:
            found.add(index)
    return frozenset(found)


@cache
def t_quantile(tail: float, freedom: int) -> float:
    """T with P(T > t) = `tail` for an even number of degrees of freedom, from the closed form of its distribution.

    (Abramowitz and Stegun 26.7.4.) Algebra alone, so that every machine decides alike.
    """
    if freedom < 2 or freedom % 2:
        raise ValueError(f"{freedom} degrees of freedom: the closed form is for even numbers")
    low, high = 0.0, 1.0
    while _t_tail(high, freedom) > tail:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_tail(middle, freedom) > tail else (low, middle)
    return high


def _leader(times_ms: Sequence[Sequence[float]], alive: Sequence[int]) -> int:
    """The layout of `alive` with the lowest median; the first among equals."""
    return min(alive, key=lambda index: _median(times_ms[index]))


def _limit(freedom: int, tail: float) -> float:
    return t_quantile(tail, min(freedom - freedom % 2, MOST_FREEDOM))


def _t_tail(value: float, freedom: int) -> float:
    sine = value / math.sqrt(value * value + freedom)
    square = freedom / (value * value + freedom)
    term, total = 1.0, 1.0
    for step in range(1, freedom // 2):
        term *= square * (2 * step - 1) / (2 * step)
        total += term
    return (1 - sine * total) / 2


def _mean(values: Sequence[float]) -> float:
    return _total(values) / len(values)


def _variance(values: Sequence[float]) -> float:
    mean = _mean(values)
    return _total([(value - mean) * (value - mean) for value in values]) / (len(values) - 1)


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _total(values: Sequence[float]) -> float:
    total = values[0]
    for value in values[1:]:
        total += value
    return total
