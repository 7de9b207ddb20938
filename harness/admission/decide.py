"""What the world does after a planning step: a pure function of all ranks' ballots and of the shared account.

Every rank evaluates it on the same arguments, so that all ranks do the same thing next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from harness.admission.ballot import Ballot, Outcome, Step
from harness.admission.ladder import part_counts
from harness.admission.ledger import Budget

__all__ = ["Action", "Decision", "asking", "decide"]


class Action(StrEnum):
    """What comes next."""

    RUN = "run"
    """Run the plans: rung `rung` of the ladder unsplit, or the smallest wave in `parts` parts."""

    RELEASE = "release"
    """Release the cache on the ranks that asked, then vote on what it brought."""

    SEARCH = "search"
    """Search again from the start: memory is not what it was."""

    CONFIRM = "confirm"
    """Check the split into `parts` parts against a fresh reading."""

    OVERSIZED = "oversized"
    """Run in `parts` parts although it does not fit: every rank asked for that."""

    REFUSE = "refuse"
    """Nothing fits."""

    FAIL = "fail"
    """A rank failed."""


@dataclass(frozen=True, slots=True)
class Decision:
    """An action, the rung or the parts it is about, and why a release was not tried where one was needed."""

    action: Action
    rung: int = 0
    parts: int = 1
    denied: str | None = None


def asking(searched: Sequence[Ballot]) -> tuple[int, ...]:
    """The ranks whose smallest wave failed its unsplit check."""
    wanting = {Outcome.SPLIT, Outcome.NEEDS_RECOVERY}
    return tuple(rank for rank, ballot in enumerate(searched) if ballot.outcome in wanting)


def decide(votes: Sequence[Ballot], searched: Sequence[Ballot], *, budget: Budget, released: bool) -> Decision:
    """What follows from `votes`, all of one step.

    `searched` are the votes of the latest search (of this step, if it was one), `released` says whether this
    admission has made its one release already. DESIGN section 11.
    """
    if any(vote.outcome is Outcome.ERROR for vote in votes):
        return Decision(Action.FAIL)
    match votes[0].step:
        case Step.SEARCH:
            return _after_search(votes, budget, released=released)
        case Step.RELEASE:
            if any(vote.came_back_bytes > 0 for vote in votes):
                return Decision(Action.SEARCH)
            return _split_or_refuse(searched)
        case Step.CONFIRM:
            return _after_confirm(votes, searched)
        case Step.OVERSIZED:
            return Decision(Action.RUN, parts=votes[0].asked_parts)
        case Step.SETTLE:
            raise AssertionError("settling an account decides nothing")


def _after_search(votes: Sequence[Ballot], budget: Budget, *, released: bool) -> Decision:
    askers = asking(votes)
    if not askers:
        return Decision(Action.RUN, rung=min(vote.fitting for vote in votes) - 1)
    if released:
        return _split_or_refuse(votes)
    if not any(votes[rank].can_release for rank in askers):
        return _split_or_refuse(votes, denied="device")
    if not budget.allows:
        return _split_or_refuse(votes, denied="budget")
    return Decision(Action.RELEASE)


def _split_or_refuse(searched: Sequence[Ballot], denied: str | None = None) -> Decision:
    if any(vote.outcome is Outcome.NEEDS_RECOVERY for vote in searched):
        return _oversized_or_refuse(searched, denied)
    return Decision(Action.CONFIRM, parts=max(vote.parts for vote in searched), denied=denied)


def _after_confirm(votes: Sequence[Ballot], searched: Sequence[Ballot]) -> Decision:
    parts = votes[0].asked_parts
    if all(vote.outcome in {Outcome.HEALTHY, Outcome.EMPTY} for vote in votes):
        return Decision(Action.RUN, parts=parts)
    finer = [count for count in part_counts(max(vote.requests for vote in votes)) if count > parts]
    if finer:
        return Decision(Action.CONFIRM, parts=finer[0])
    return _oversized_or_refuse(searched)


def _oversized_or_refuse(searched: Sequence[Ballot], denied: str | None = None) -> Decision:
    if all(vote.allow_oversized for vote in searched):
        return Decision(Action.OVERSIZED, parts=max(vote.cheapest_parts for vote in searched), denied=denied)
    return Decision(Action.REFUSE, denied=denied)
