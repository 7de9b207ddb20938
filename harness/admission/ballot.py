"""What a rank says in the vote of one planning step, as a row of integers that a sum over the world can carry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace
from enum import IntEnum

__all__ = ["BALLOT_FIELDS", "Ballot", "Outcome", "Step", "VoteMismatch", "decode"]


class Step(IntEnum):
    """What the ranks did before they vote."""

    SEARCH = 1
    """Looked for plans against a fresh reading of their memory."""

    RELEASE = 2
    """Released their cache, where they had asked for it."""

    CONFIRM = 3
    """Checked one split, the same number of parts on all ranks, against a fresh reading."""

    OVERSIZED = 4
    """Planned what will be run although it does not fit."""

    SETTLE = 5
    """Planned nothing: brings completed work into the account after the last admission."""


class Outcome(IntEnum):
    """What one rank found."""

    EMPTY = 1
    """It has no request in this wave; it fits, and takes part in everything."""

    HEALTHY = 2
    """What was asked fits; in a search: at least the smallest wave, unsplit."""

    SPLIT = 3
    """The smallest wave fits only when it is split."""

    NEEDS_RECOVERY = 4
    """No plan that it tried fits."""

    ERROR = 5
    """It failed; its own exception is raised on it, and one that names it on its peers."""


class VoteMismatch(RuntimeError):  # noqa: N818 - named like the plan's and the collectives' mismatch
    """Ranks voted on different planning steps; `ranks` are those that differ from the first."""

    def __init__(self, message: str, ranks: Sequence[int]) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


@dataclass(frozen=True, slots=True)
class Ballot:
    """One rank's row. Bytes and nanoseconds are this rank's own; zero where a step has no such fact.

    `call` counts the admissions of this rank, `rungs` the widths on its ladder and `asked_parts` the parts that this
    step is about: they must be the same on all ranks. `requests` are its requests in the smallest wave; `fitting`
    counts the rungs, from the smallest, whose unsplit plan fits; `parts` is its fewest fitting parts of the smallest
    wave, 1 for unsplit and 0 for none; `cheapest_parts` those that need least of all it tried, which is what
    `required_bytes` tells, exactly or (`exact` 0) as a lower bound. `largest_tokens` is the largest unsplit plan that
    would fit.
    """

    step: Step
    call: int
    rungs: int
    asked_parts: int
    outcome: Outcome
    requests: int
    fitting: int = 0
    parts: int = 0
    cheapest_parts: int = 1
    required_bytes: int = 0
    exact: int = 1
    available_bytes: int = 0
    largest_tokens: int = 0
    can_release: int = 0
    allow_oversized: int = 0
    forward_ns: int = 0
    warm_ns: int = 0
    release_ns: int = 0
    came_back_bytes: int = 0
    free_before_bytes: int = 0
    free_after_bytes: int = 0
    reserved_before_bytes: int = 0
    reserved_after_bytes: int = 0
    retries_before: int = 0
    retries_after: int = 0

    def encode(self) -> tuple[int, ...]:
        """The row: every field as an integer."""
        return tuple(int(value) for value in astuple(self))


BALLOT_FIELDS = len(fields(Ballot))


def decode(rows: Sequence[Sequence[int]]) -> tuple[Ballot, ...]:
    """The ballots of all ranks from the summed matrix, one row each.

    Raises:
        VoteMismatch: ranks are at different steps, calls, ladders or splits, or one of them did not vote.
    """
    if not all(row[0] in set(Step) and row[4] in set(Outcome) for row in rows):
        odd = [rank for rank, row in enumerate(rows) if row[0] not in set(Step) or row[4] not in set(Outcome)]
        raise VoteMismatch(f"ranks {odd} cast no readable vote", odd)
    ballots = tuple(replace(Ballot(*row), step=Step(row[0]), outcome=Outcome(row[4])) for row in rows)  # type: ignore[arg-type]
    subjects = [(each.step.name, each.call, each.rungs, each.asked_parts) for each in ballots]
    odd = [rank for rank, subject in enumerate(subjects) if subject != subjects[0]]
    if odd:
        told = "; ".join(
            f"rank {rank}: {step} of admission {call}, {rungs} widths, {parts} parts"
            for rank, (step, call, rungs, parts) in enumerate(subjects)
        )
        raise VoteMismatch(f"ranks vote on different planning steps: {told}", odd)
    return ballots
