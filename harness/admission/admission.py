"""Admission on one rank: the order of things, shared by the whole-batch and the streamed entry point.

A procedure is a generator that yields this rank's ballot and is sent the ballots of all ranks. So the same code runs
over a process group (`admit_batch`, `admit_waves`) and in lockstep in one process (scenarios, property tests). One
planning step, one ballot, one reduction: whatever a rank finds, it issues the same collectives as its peers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from harness.admission.ballot import Ballot, Outcome, Step
from harness.admission.decide import Action, Decision, asking, decide
from harness.admission.estimator import Estimator
from harness.admission.ladder import wave_widths
from harness.admission.ledger import Budget, Ledger
from harness.admission.probe import Probe
from harness.admission.record import RecoveryRecord
from harness.admission.refusal import PeerFailed, refusal
from harness.admission.search import Option, Plan, Planner, Search, SearchCounters
from harness.admission.steps import Call, RankSteps, Taken

__all__ = ["Admission", "Admitted", "Part", "Procedure"]

R = TypeVar("R")
P = TypeVar("P", bound=Plan)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Part(Generic[P]):
    """One forward of an admitted wave: its requests, as (index of the input, position in it), and their plan.

    Requests are in the caller's order, and each is in exactly one part. A rank with fewer requests than the wave has
    parts gets some without: `plan` is None there, and the forward is run all the same, because its collectives are the
    peers' too.
    """

    members: tuple[tuple[int, int], ...]
    plan: P | None


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Admitted(Generic[P]):
    """A wave that may run: inputs `start` to `stop` of the caller, this rank's share of them in `parts`.

    `parts` are in the caller's order and are to be run in `order`, which their price was reckoned for.
    `required_bytes` and `available_bytes` are this rank's at the check that admitted it; `trusted` says whether its
    price rests on measurements near its scale; `oversized` that it does not fit and runs on the caller's word.
    `counters` are those of the last search or check.
    """

    start: int
    stop: int
    parts: tuple[Part[P], ...]
    order: tuple[int, ...]
    required_bytes: int
    available_bytes: int
    trusted: bool
    oversized: bool
    counters: SearchCounters

    @property
    def unsplit(self) -> bool:
        """Whether it is one forward."""
        return len(self.parts) == 1


Procedure = Generator[Ballot, tuple[Ballot, ...], Admitted[P]]


class Admission(Generic[R, P]):
    """Admits waves on one rank, with one account of release costs for both entry points.

    `vote` brings all ranks' ballots, by default of a world of this rank alone. `headroom_bytes` of the free memory are
    never planned with. `allow_oversized` runs the cheapest plan where nothing fits, if every rank allows it. `records`
    gets every release that was needed, made or denied, when its admission has ended.
    """

    def __init__(
        self,
        planner: Planner[R, P],
        estimator: Estimator,
        probe: Probe,
        *,
        vote: Callable[[Ballot], tuple[Ballot, ...]] | None = None,
        ledger: Ledger | None = None,
        headroom_bytes: int = 0,
        allow_oversized: bool = False,
        records: Callable[[RecoveryRecord], None] | None = None,
    ) -> None:
        self.ledger = Ledger() if ledger is None else ledger
        self._probe = probe
        self._steps = RankSteps(Search(planner, estimator, headroom_bytes), probe, allow_oversized=allow_oversized)
        self._vote = _alone if vote is None else vote
        self._records = records
        self._calls = 0
        self._uncredited_ns = 0
        self._uncredited_warm_ns = 0
        # The split that fits, or else the cheapest plan: what runs if a release is denied or brings nothing back. It is
        # here, and not in the procedure's frame alone, so that a dump of a stalled rank shows what admission holds.
        self._kept: Option[P] | None = None

    def admit_batch(self, inputs: Sequence[Sequence[R]]) -> Admitted[P]:
        """Admit all of this rank's own `inputs`, which may be none, as one wave; every rank of the world calls it.

        An input is a sequence of requests.

        Raises:
            AdmissionRefused: on every rank, when no plan that was tried fits.
            PeerFailed: another rank's planner or release failed.
            VoteMismatch: on every rank, when ranks are not in the same admission.
        """
        return self._drive(self.batch(inputs))

    def admit_waves(self, inputs: Sequence[Sequence[R]], *, shard: int = 0, shards: int = 1) -> Iterator[Admitted[P]]:
        """Admit wave after wave of `inputs`, the same on every rank; this rank gets share `shard` of `shards`.

        A wave is admitted when the caller comes for it, against the memory that is free then. Raises as `admit_batch`.
        """
        start = 0
        while start < len(inputs):
            call = self._wave_call(inputs, start, shard, shards)
            # No local name may hold the wave while the caller has it, or the caller could not drop it.
            yield self._drive(self._procedure(call))
            start += call.admitted_width

    def batch(self, inputs: Sequence[Sequence[R]]) -> Procedure[P]:
        """The procedure of `admit_batch`."""
        self._calls += 1
        return self._procedure(Call("batch", self._calls, inputs, 0, (len(inputs),), 0, 1))

    def wave(self, inputs: Sequence[Sequence[R]], start: int, *, shard: int, shards: int) -> Procedure[P]:
        """The procedure that admits one wave of `inputs`, from `start` on."""
        return self._procedure(self._wave_call(inputs, start, shard, shards))

    def run(
        self, admitted: Admitted[P], forward: Callable[[Part[P]], T], *, warm: Callable[[], bool] = lambda: False
    ) -> list[T]:
        """Run the forwards of an admitted wave, longest first, and credit their time; the results in `parts`' order.

        `warm` is asked after them whether they were warm-up or compiled something. A forward that fails is not
        retried, its exception is the caller's, and nothing is credited: only completed work counts.
        """
        started = self._probe.clock_ns()
        results = {index: forward(admitted.parts[index]) for index in admitted.order}
        self.credit(self._probe.clock_ns() - started, warm=warm())
        return [results[index] for index in range(len(admitted.parts))]

    def credit(self, forward_ns: int, *, warm: bool) -> None:
        """Enter this rank's completed forward work; it reaches the shared account with the next vote."""
        self._uncredited_ns += forward_ns
        self._uncredited_warm_ns += forward_ns if warm else 0

    def settle(self) -> None:
        """Bring the work since the last vote into the shared account; every rank of the world calls it, at the end."""
        self._calls += 1
        self._settle(self._vote(self._with_work(Ballot(Step.SETTLE, self._calls, 0, 0, Outcome.EMPTY, 0))))

    def _wave_call(self, inputs: Sequence[Sequence[R]], start: int, shard: int, shards: int) -> Call[R]:
        self._calls += 1
        return Call("waves", self._calls, inputs, start, wave_widths(len(inputs) - start, shards), shard, shards)

    def _drive(self, procedure: Procedure[P]) -> Admitted[P]:
        ballot = next(procedure)
        try:
            while True:
                ballot = procedure.send(self._vote(ballot))
        except StopIteration as done:
            admitted: Admitted[P] = done.value
            return admitted
        finally:
            procedure.close()

    def _procedure(self, call: Call[R]) -> Procedure[P]:
        searched: tuple[Ballot, ...] = ()
        mine: Ballot | None = None
        recovery: RecoveryRecord | None = None
        decision = Decision(Action.SEARCH)
        released = False
        try:
            while True:
                taken = self._steps.take(call, decision, mine, self._kept)
                if decision.action is Action.RELEASE:  # it is made: it must be on record also where the vote fails
                    unvoted = self.ledger.budget
                    recovery = _recovery(call, searched, None, (taken.ballot,), unvoted, self.ledger)
                votes = yield self._with_work(taken.ballot)
                before = self._settle(votes)
                match votes[0].step:
                    case Step.SEARCH:
                        searched, mine = votes, taken.ballot
                    case Step.RELEASE:
                        released = True
                        recovery = _recovery(call, searched, None, votes, before, self.ledger)
                decision = decide(votes, searched, budget=self.ledger.budget, released=released)
                if decision.denied is not None:
                    recovery = _recovery(call, searched, decision.denied, (), before, self.ledger)
                match decision.action:
                    case Action.RUN:
                        admitted = _admitted(call, decision, taken, oversized=votes[0].step is Step.OVERSIZED)
                        recovery = recovery and recovery.ending(_how(admitted), call.admitted_width, decision.parts)
                        return admitted
                    case Action.REFUSE:
                        recovery = recovery and recovery.ending("refused")
                        raise refusal(votes)
                    case Action.FAIL:
                        failed = [rank for rank, vote in enumerate(votes) if vote.outcome is Outcome.ERROR]
                        raise taken.error or PeerFailed(failed)
                    case Action.SEARCH:
                        self._kept = None
                    case _ if taken.found is not None:
                        self._kept = taken.found.split or taken.found.cheapest
        finally:
            # Whatever way it ends, the override included: a plan kept for recovery does not outlive its admission.
            self._kept = None
            if self._records is not None and recovery is not None:
                self._records(recovery)

    def _with_work(self, ballot: Ballot) -> Ballot:
        """`ballot` with the forward work that the shared account has not got yet."""
        return replace(ballot, forward_ns=self._uncredited_ns, warm_ns=self._uncredited_warm_ns)

    def _settle(self, votes: Sequence[Ballot]) -> Budget:
        """Enter what all ranks voted into the shared account: work done, then releases; the account between the two."""
        self._uncredited_ns = self._uncredited_warm_ns = 0
        self.ledger.credit_forwards(sum(vote.forward_ns for vote in votes), sum(vote.warm_ns for vote in votes))
        before = self.ledger.budget
        if votes[0].step is Step.RELEASE:
            self.ledger.charge_release(sum(vote.release_ns for vote in votes))
        return before


def _alone(ballot: Ballot) -> tuple[Ballot, ...]:
    return (ballot,)


def _admitted(call: Call[R], decision: Decision, taken: Taken[P], *, oversized: bool) -> Admitted[P]:
    """The wave that `decision` lets run: from the search on its rung, or the option that was just checked."""
    option = taken.option if taken.found is None else taken.found.unsplit[decision.rung]
    assert option is not None  # noqa: S101 - a decision to run follows a step that had plans
    members = call.members(decision.rung)
    call.admitted_width = call.widths[decision.rung]
    return Admitted(
        start=call.start,
        stop=call.start + call.admitted_width,
        parts=tuple(
            Part(tuple(members[index] for index in run), plan)
            for run, plan in zip(option.runs, option.plans, strict=True)
        ),
        order=option.order,
        required_bytes=option.required_bytes,
        available_bytes=taken.ballot.available_bytes,
        trusted=option.trusted,
        oversized=oversized,
        counters=taken.counters,
    )


def _recovery(
    call: Call[R],
    searched: Sequence[Ballot],
    denied: str | None,
    votes: tuple[Ballot, ...],
    before: Budget,
    ledger: Ledger,
) -> RecoveryRecord:
    outcomes = tuple(vote.outcome.name.lower().replace("_", "-") for vote in searched)
    return RecoveryRecord(call.entry, call.number, outcomes, asking(searched), denied, votes, before, ledger.budget)


def _how(admitted: Admitted[P]) -> str:
    if admitted.oversized:
        return "oversized"
    return "unsplit" if admitted.unsplit else "split"
