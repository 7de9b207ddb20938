"""Positive absence: everything was asked for, twice, some seconds apart, and each time the answer was: not there."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from orchestrate.backends.protocol import Backend, CensusPath, Look

__all__ = ["GAP_S", "PATIENCE_S", "Census", "take_census"]

GAP_S = 2.0
PATIENCE_S = 8.0


@dataclass(frozen=True, slots=True)
class Census:
    """All looks that were taken. `gap_s` lies between the last two, as measured, and `least_gap_s` had to."""

    path: CensusPath
    looks: tuple[Look, ...]
    gap_s: float
    least_gap_s: float = GAP_S

    @property
    def confirmed(self) -> bool:
        """Whether the last two looks were clean and far enough apart."""
        return len(self.looks) > 1 and all(look.is_clean for look in self.looks[-2:]) and self.gap_s >= self.least_gap_s

    @property
    def remaining(self) -> tuple[str, ...]:
        """What the last look still found."""
        return tuple(f"{item.kind} {item.id}" for item in self.looks[-1].remaining)

    @property
    def unknown(self) -> tuple[str, ...]:
        """What the last look could not tell."""
        return self.looks[-1].unknown

    def as_facts(self) -> dict[str, Any]:
        """The facts of the census receipt."""
        return {
            "path": self.path.value,
            "looks": [asdict(look) for look in self.looks],
            "gap_s": round(self.gap_s, 3),
            "confirmed": self.confirmed,
            "remaining": list(self.remaining),
            "unknown": list(self.unknown),
        }


def take_census(
    backend: Backend,
    *,
    pause: Callable[[float], None],
    on_look: Callable[[Look], None] = lambda _look: None,
    clock: Callable[[], float] = time.monotonic,
    patience_s: float = PATIENCE_S,
    gap_s: float = GAP_S,
) -> Census:
    """Look until two looks in a row, at least `gap_s` apart, find nothing; give up after `patience_s`.

    `pause` waits that many seconds at least: an early return would make the two looks one.
    """
    looks: list[Look] = []
    times: list[float] = []
    end = clock() + patience_s
    while True:
        looks.append(backend.census())
        times.append(clock())
        on_look(looks[-1])
        apart_s = times[-1] - times[-2] if len(times) > 1 else 0.0
        census = Census(backend.census_path, tuple(looks), apart_s, gap_s)
        if census.confirmed or (len(looks) > 1 and clock() >= end):
            return census
        pause(gap_s)
