"""The time a run has, with the time for its teardown taken out beforehand."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from orchestrate.errors import NotRunError

__all__ = ["LEAST_RUN_S", "Deadline"]

LEAST_RUN_S = 5.0
"""A payload with less time than this is not worth starting."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """`total_s` seconds from `started` (monotonic), the last `reserve_s` of which belong to the teardown."""

    total_s: float
    reserve_s: float
    started: float
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def start(
        cls,
        total_s: float,
        reserve_s: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        started: float | None = None,
    ) -> Deadline:
        """Start the clock, now or at `started`. `NotRunError` when the teardown would not fit."""
        least = reserve_s + LEAST_RUN_S
        if total_s < least:
            raise NotRunError(
                f"a deadline of {total_s:g}s leaves no room: the teardown needs {reserve_s:g}s of it and the cells at "
                f"least {LEAST_RUN_S:g}s; nothing was started",
                remedy=f"give --deadline at least {least:g}s",
            )
        return cls(total_s, reserve_s, clock() if started is None else started, clock)

    def budget_s(self) -> float:
        """How long the payload may still run."""
        return self.started + self.total_s - self.reserve_s - self.clock()
