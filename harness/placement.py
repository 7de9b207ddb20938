"""Which cells run side by side: a pure function of what waits and which slots are free.

A slot is one GPU, or one process on a CPU. Cells that need fewer than the node has run on disjoint slots at the same
time, so that none is paid for idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Placed", "place"]


@dataclass(frozen=True, slots=True)
class Placed:
    """The `index`th waiting cell is to start on `slots`."""

    index: int
    slots: tuple[int, ...]


def place(waiting: Sequence[int], free: Sequence[int]) -> tuple[Placed, ...]:
    """Which of the waiting cells start now; `waiting` is how many slots each needs, in order.

    Cells start in order, lowest free slots first, and none overtakes one that has to wait: a wide cell is not starved
    by a row of narrow ones.

    >>> place([2, 2, 4], [0, 1, 2, 3])
    (Placed(index=0, slots=(0, 1)), Placed(index=1, slots=(2, 3)))
    """
    placed: list[Placed] = []
    left = sorted(free)
    for index, needed in enumerate(waiting):
        if needed > len(left):
            break
        placed.append(Placed(index, tuple(left[:needed])))
        left = left[needed:]
    return tuple(placed)
