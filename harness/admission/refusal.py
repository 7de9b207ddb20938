"""How an admission ends when nothing may run: nothing fits, or a peer failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.admission.ballot import Ballot, Outcome

__all__ = ["AdmissionRefused", "PeerFailed", "RankNeed", "refusal"]


@dataclass(frozen=True, slots=True)
class RankNeed:
    """What one rank would need and has.

    `required_bytes` is the least that any plan it tried needs, exact or, where the bound alone ruled all of them out,
    a lower bound; `available_bytes` is physically free, headroom taken off; `largest_tokens` is the largest unsplit
    plan that fits, in packed tokens.
    """

    rank: int
    requests: int
    required_bytes: int
    exact: bool
    available_bytes: int
    largest_tokens: int

    @property
    def fits(self) -> bool:
        """Whether this rank alone could run."""
        return self.required_bytes <= self.available_bytes

    def __str__(self) -> str:
        if self.requests == 0:
            return f"rank {self.rank} has no request"
        least = "" if self.exact else "at least "
        return (
            f"rank {self.rank} needs {least}{self.required_bytes:,} bytes for {self.requests} requests, "
            f"{self.available_bytes:,} are free, the largest plan that fits has {self.largest_tokens:,} packed tokens"
        )


class AdmissionRefused(MemoryError):  # noqa: N818 - a refusal is an answer, not a fault
    """No plan of the smallest wave fits. `needs` has every rank's figures, by rank; all ranks raise it together."""

    def __init__(self, message: str, needs: Sequence[RankNeed]) -> None:
        super().__init__(message)
        self.needs = tuple(needs)


class PeerFailed(RuntimeError):  # noqa: N818 - what happened
    """Planning or releasing failed on `ranks`; nothing was run anywhere."""

    def __init__(self, ranks: Sequence[int]) -> None:
        super().__init__(f"admission failed on {'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}")
        self.ranks = tuple(ranks)


def refusal(votes: Sequence[Ballot]) -> AdmissionRefused:
    """The refusal that `votes` amount to."""
    needs = [
        RankNeed(rank, vote.requests, vote.required_bytes, bool(vote.exact), vote.available_bytes, vote.largest_tokens)
        for rank, vote in enumerate(votes)
    ]
    starved = [need for need, vote in zip(needs, votes, strict=True) if vote.outcome is Outcome.NEEDS_RECOVERY]
    single = any(need.requests == 1 for need in starved)
    why = "a single request can not be split" if single else "no split that was tried fits either"
    return AdmissionRefused(f"the smallest wave does not fit and {why}: {'; '.join(map(str, needs))}", needs)
