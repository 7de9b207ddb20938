"""A world of simulated ranks in one process: all procedures advance in lockstep, vote by vote.

What a process group would do is done by hand: ballots are collected, put through the same encoding, and sent to all.
Ranks that do not vote and end together are a fault of admission, and an error here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from harness.admission.admission import Admitted, Part, Procedure
from harness.admission.ballot import Ballot, decode
from harness.admission.search import Goal, Plan
from harness.admission.simulated import Block, SimulatedAllocator

__all__ = ["Disagreement", "Ended", "SimulatedPlan", "SimulatedPlanner", "SimulatedRequest", "SimulatedRun", "lockstep"]

P = TypeVar("P", bound=Plan)


class Disagreement(AssertionError):  # noqa: N818 - what it is
    """Ranks of one world did not vote or end together."""


@dataclass(frozen=True, slots=True)
class Ended(Generic[P]):
    """How an admission ended on each rank, with the votes of every planning step before."""

    admitted: tuple[Admitted[P], ...]
    errors: tuple[Exception, ...]
    votes: tuple[tuple[Ballot, ...], ...]


def lockstep(procedures: Sequence[Procedure[P]]) -> Ended[P]:
    """Run one admission of all ranks; either all are admitted or all raise.

    Raises:
        Disagreement: some ranks ended while others voted on.
    """
    votes: list[tuple[Ballot, ...]] = []
    admitted: list[Admitted[P]] = []
    errors: list[Exception] = []
    ballots = [next(procedure) for procedure in procedures]
    while True:
        votes.append(decode([ballot.encode() for ballot in ballots]))
        ballots = []
        for procedure in procedures:
            try:
                ballots.append(procedure.send(votes[-1]))
            except StopIteration as done:
                admitted.append(done.value)
            except Exception as error:  # noqa: BLE001 - how it ended is the answer
                errors.append(error)
        counts = (len(ballots), len(admitted), len(errors))
        if max(counts) != len(procedures):
            raise Disagreement(
                f"after {len(votes)} votes {len(ballots)} ranks vote on, {len(admitted)} are admitted, "
                f"{len(errors)} raised"
            )
        if not ballots:
            return Ended(tuple(admitted), tuple(errors), tuple(votes))


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """An input of `own_tokens` after a prefix of `prefix_tokens`, which inputs of the same `prefix` can share."""

    own_tokens: int
    prefix: str = ""
    prefix_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Its length."""
        return self.prefix_tokens + self.own_tokens


@dataclass(frozen=True, slots=True, weakref_slot=True)
class SimulatedPlan:
    """Some inputs packed by `goal`."""

    packed_tokens: int
    goal: Goal


class SimulatedPlanner:
    """Prefers not to share prefixes, and shares all of them where the smallest plan is wanted."""

    def tokens(self, request: SimulatedRequest, /) -> int:
        """The input's length."""
        return request.tokens

    def least_tokens(self, requests: Sequence[SimulatedRequest], /) -> int:
        """Every prefix once."""
        prefixes = {request.prefix: request.prefix_tokens for request in requests}
        return sum(prefixes.values()) + sum(request.own_tokens for request in requests)

    def plan(self, requests: Sequence[SimulatedRequest], goal: Goal, /) -> SimulatedPlan:
        """The plan of all `requests`."""
        unshared = sum(request.tokens for request in requests)
        return SimulatedPlan(self.least_tokens(requests) if goal is Goal.SMALLEST else unshared, goal)


class SimulatedRun:
    """Runs admitted parts on a simulated device: what a forward allocates, keeps and takes.

    A token takes `peak_bytes` in the forward, of which `retained_bytes` stay until `backward`.
    """

    def __init__(self, device: SimulatedAllocator, *, peak_bytes: int, retained_bytes: int) -> None:
        self._device = device
        self._peak_bytes = peak_bytes
        self._retained_bytes = retained_bytes
        self._live: list[Block] = []

    def forward(self, part: Part[SimulatedPlan]) -> int:
        """Run one part; its packed tokens.

        Raises:
            SimulatedOutOfMemory: it does not fit.
        """
        tokens = part.plan.packed_tokens if part.plan is not None else 0
        passing, kept = tokens * (self._peak_bytes - self._retained_bytes), tokens * self._retained_bytes
        workspace = self._device.allocate(passing) if passing else None  # of nothing an allocator makes no block
        if kept:
            self._live.append(self._device.allocate(kept))
        if workspace is not None:
            self._device.free(workspace)
        self._device.work(tokens * self._device.latency.token_ns)
        return tokens

    def backward(self, elapsed_ns: int = 0) -> None:
        """Free what the forwards kept; takes `elapsed_ns`."""
        self._device.work(elapsed_ns)
        for block in self._live:
            self._device.free(block)
        self._live.clear()
