"""What the measured spread says about noise.

The spread of n rounds is their range. For normal noise the range has the expectation d2(n) x sigma (the constant of
control charts), so spread / d2(n) estimates sigma; and the median of n rounds has the standard error
sqrt(pi / 2) x sigma / sqrt(n).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from orchestrate.analysis.measured import Candidate

__all__ = [
    "TIE_BAND_Z",
    "median_of",
    "range_constant",
    "sigma_ms",
    "simulated_rounds_ms",
    "standard_error_ms",
    "tie_band_pct",
]

Vector = npt.NDArray[np.float64]

TIE_BAND_Z = 1.96
"""Two candidates are told apart at a two-sided 95%."""

_MEDIAN_EFFICIENCY = 1.2533141373155003
"""sqrt(pi / 2), written out: a constant needs no library."""

_RANGE_CONSTANTS = (
    1.128, 1.693, 2.059, 2.326, 2.534, 2.704, 2.847, 2.970, 3.078, 3.173, 3.258, 3.336, 3.407, 3.472, 3.532, 3.588,
    3.640, 3.689, 3.735, 3.778, 3.819, 3.858, 3.895, 3.931,
)  # fmt: skip
"""d2 for 2, 3, ..., 25 rounds (ASTM Manual on Presentation of Data, table 49)."""


def range_constant(rounds: int) -> float:
    """d2; beyond 25 rounds that of 25, which takes the noise for larger than it is."""
    if rounds < 2:
        raise ValueError(f"{rounds} rounds have no range")
    return _RANGE_CONSTANTS[min(rounds, 25) - 2]


def sigma_ms(candidate: Candidate) -> float:
    """The standard deviation of one round."""
    return candidate.spread_pct / 100 * candidate.median_ms / range_constant(candidate.rounds)


def standard_error_ms(candidate: Candidate) -> float:
    """The standard error of the median."""
    return _MEDIAN_EFFICIENCY * sigma_ms(candidate) / math.sqrt(candidate.rounds)


def tie_band_pct(one: Candidate, other: Candidate) -> float:
    """How far apart two medians must be, in percent of the faster, to be told apart at `TIE_BAND_Z`."""
    first, second = standard_error_ms(one), standard_error_ms(other)
    return TIE_BAND_Z * math.sqrt(first * first + second * second) / min(one.median_ms, other.median_ms) * 100


def simulated_rounds_ms(candidate: Candidate, normals: Vector) -> Vector:
    """Rounds as the noise model has them: for each z of `normals`, median x (1 + s z), and median / (1 - s z) below.

    s is the relative standard deviation of a round. The median of the model is the measured median, times are
    positive however large the spread, and slow rounds are as far from it as fast ones, as a ratio.
    """
    relative = candidate.spread_pct / 100 / range_constant(candidate.rounds)
    shifted = normals * relative
    return np.where(shifted >= 0, 1 + shifted, 1 / (1 + np.abs(shifted))) * candidate.median_ms


def median_of(rounds_ms: Vector) -> Vector:
    """The median over the last axis: the middle value, or the mean of the two in the middle."""
    ordered = np.sort(rounds_ms, axis=-1)
    count = ordered.shape[-1]
    if count % 2:
        return ordered[..., count // 2]
    middle: Vector = (ordered[..., count // 2 - 1] + ordered[..., count // 2]) / 2
    return middle
