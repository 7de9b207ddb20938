"""What releases cost and what they may cost: one account for the whole world and for both entry points.

Every figure is a sum over all ranks, brought here by the vote of each planning step, so that all ranks hold the same
account and draw the same conclusion from it. The work that earns budget is the wall time of completed forwards;
backward, idle time and hoped-for savings have no way in.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BUDGET_PERCENT", "Budget", "Ledger"]

BUDGET_PERCENT = 5
"""Releases may cost this much of completed forward work. DESIGN section 11."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The account at one moment, nanoseconds summed over all ranks.

    `warm_ns` is the part of `forward_ns` that was warm-up or compilation; `reserve_ns` is what the next release is
    expected to cost at most: the dearest one so far.
    """

    forward_ns: int
    warm_ns: int
    release_ns: int
    releases: int
    reserve_ns: int

    @property
    def allows(self) -> bool:
        """Whether a necessary release may be made now.

        The first one may. A later one may while what all have cost, and the reserve for it, stays within the budget.
        """
        if self.releases == 0:
            return True
        return 100 * (self.release_ns + self.reserve_ns) <= BUDGET_PERCENT * self.forward_ns

    @property
    def overhead(self) -> float | None:
        """Release cost over forward work; None without any work."""
        return _ratio(self.release_ns, self.forward_ns)

    @property
    def overhead_without_warm(self) -> float | None:
        """Release cost over the forward work that was neither warm-up nor compilation; None without any."""
        return _ratio(self.release_ns, self.forward_ns - self.warm_ns)

    @property
    def warm_share(self) -> float | None:
        """The share of the forward work that was warm-up or compilation; None without any work."""
        return _ratio(self.warm_ns, self.forward_ns)

    def as_json(self) -> dict[str, object]:
        """For evidence and reports."""
        return {
            "forward_ms": self.forward_ns / 1e6,
            "warm_ms": self.warm_ns / 1e6,
            "release_ms": self.release_ns / 1e6,
            "releases": self.releases,
            "reserve_ms": self.reserve_ns / 1e6,
            "budget_ms": self.forward_ns * BUDGET_PERCENT / 100 / 1e6,
            "allows": self.allows,
            "overhead": self.overhead,
            "overhead_without_warm": self.overhead_without_warm,
            "warm_share": self.warm_share,
        }


class Ledger:
    """The account of one world. Only sums over all ranks are entered."""

    def __init__(self, budget: Budget = Budget(0, 0, 0, 0, 0)) -> None:
        self.budget = budget

    def credit_forwards(self, forward_ns: int, warm_ns: int) -> None:
        """Enter completed forwards, of which `warm_ns` were warm-up or compilation."""
        if not 0 <= warm_ns <= forward_ns:
            raise ValueError(f"warm-up {warm_ns} ns is no part of {forward_ns} ns of forward work")
        old = self.budget
        self.budget = Budget(
            old.forward_ns + forward_ns, old.warm_ns + warm_ns, old.release_ns, old.releases, old.reserve_ns
        )

    def charge_release(self, release_ns: int) -> None:
        """Enter one release of the world, whether or not it brought anything back."""
        old = self.budget
        self.budget = Budget(
            old.forward_ns,
            old.warm_ns,
            old.release_ns + release_ns,
            old.releases + 1,
            max(old.reserve_ns, release_ns),
        )


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole > 0 else None
