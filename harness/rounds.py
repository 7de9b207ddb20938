"""The order of the measured rounds, and which of them have to be measured again: pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from harness.warmup import CompileStatus, worst

__all__ = ["MAXIMUM_ATTEMPTS", "Verdict", "judge", "rotation"]

MAXIMUM_ATTEMPTS = 4
"""How often one candidate is measured in one round before the cell is given up as never settled."""


class Verdict(StrEnum):
    """What one measurement is worth."""

    USABLE = "usable"
    AGAIN = "again"
    UNSETTLED = "unsettled"
    LIMIT = "limit"


def rotation(count: int, round_index: int) -> tuple[int, ...]:
    """The order in which `count` candidates are measured in a round: each round starts one further on.

    Over any `count` consecutive rounds each candidate takes each position once, so that drift of the machine falls on
    all alike.

    >>> rotation(3, 1)
    (1, 2, 0)
    """
    return tuple((round_index + offset) % count for offset in range(count))


def judge(statuses: Sequence[CompileStatus], attempt: int, *, maximum: int = MAXIMUM_ATTEMPTS) -> Verdict:
    """What a measurement with these per-rank `statuses` is worth; `attempt` counts from 0 within its round."""
    union = worst(statuses)
    if union is CompileStatus.NONE:
        return Verdict.USABLE
    if union is CompileStatus.LIMIT:
        return Verdict.LIMIT
    return Verdict.AGAIN if attempt + 1 < maximum else Verdict.UNSETTLED
