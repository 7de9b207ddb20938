"""What one rank does in one planning step, and the ballot that tells it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from harness.admission.ballot import Ballot, Outcome, Step
from harness.admission.decide import Action, Decision, asking
from harness.admission.ladder import share
from harness.admission.probe import Probe, Reading
from harness.admission.search import Found, Option, Plan, Search, SearchCounters

__all__ = ["Call", "RankSteps", "Taken"]

R = TypeVar("R")
P = TypeVar("P", bound=Plan)

_STEP_FOR = {
    Action.SEARCH: Step.SEARCH,
    Action.RELEASE: Step.RELEASE,
    Action.CONFIRM: Step.CONFIRM,
    Action.OVERSIZED: Step.OVERSIZED,
}


@dataclass(slots=True)
class Call(Generic[R]):
    """The inputs of one admission, as the ladder of waves that may be cut from them; `number` counts admissions.

    An input is a sequence of requests: a wave holds whole inputs, a split may cut between requests. `admitted_width`
    is set when a wave is admitted.
    """

    entry: str
    number: int
    inputs: Sequence[Sequence[R]]
    start: int
    widths: tuple[int, ...]
    shard: int
    shards: int
    admitted_width: int = 0

    def members(self, rung: int) -> list[tuple[int, int]]:
        """The requests of this rank's share of the wave on `rung`: index of the input, position in it."""
        indices = share(self.start, self.widths[rung], self.shard, self.shards)
        return [(index, position) for index in indices for position in range(len(self.inputs[index]))]

    def requests(self, rung: int) -> list[R]:
        """The requests at `members(rung)`."""
        return [self.inputs[index][position] for index, position in self.members(rung)]


@dataclass(slots=True)
class Taken(Generic[P]):
    """A step that was taken: what to vote, and what it found, checked or failed with."""

    ballot: Ballot
    found: Found[P] | None = None
    option: Option[P] | None = None
    counters: SearchCounters = field(default_factory=SearchCounters)
    error: Exception | None = None


class RankSteps(Generic[R, P]):
    """The local half of admission: reads memory, searches, releases; decides nothing."""

    def __init__(self, search: Search[R, P], probe: Probe, *, allow_oversized: bool) -> None:
        self._search = search
        self._probe = probe
        self._allow_oversized = allow_oversized

    def take(self, call: Call[R], decision: Decision, mine: Ballot | None, kept: Option[P] | None) -> Taken[P]:
        """Take the step that `decision` leads to; `mine` is this rank's vote of the latest search.

        A failure is a vote like any other: peers must not wait for a rank that raised.
        """
        blank = Ballot(_STEP_FOR[decision.action], call.number, len(call.widths), decision.parts, Outcome.EMPTY, 0)
        try:
            blank = replace(
                blank,
                requests=len(call.members(0)),
                can_release=int(self._probe.can_release),
                allow_oversized=int(self._allow_oversized),
            )
            match decision.action:
                case Action.SEARCH:
                    return self._search_waves(call, blank)
                case Action.RELEASE if mine is not None:
                    return self._release(blank, mine, kept)
                case _:
                    return self._check_parts(call, blank, kept)
        except Exception as error:  # noqa: BLE001 - voted on here, raised again on this rank after the vote
            return Taken(replace(blank, outcome=Outcome.ERROR), error=error)

    def _search_waves(self, call: Call[R], blank: Ballot) -> Taken[P]:
        reading = self._probe.read()
        found = self._search.waves(call.requests, len(call.widths), reading)
        if blank.requests == 0:
            outcome, parts = Outcome.EMPTY, 1
        elif found.unsplit:
            outcome, parts = Outcome.HEALTHY, 1
        elif found.split is not None:
            outcome, parts = Outcome.SPLIT, found.split.parts
        else:
            outcome, parts = Outcome.NEEDS_RECOVERY, 0
        ballot = replace(blank, outcome=outcome, fitting=len(found.unsplit), parts=parts)
        return Taken(self._with_need(ballot, found.cheapest, reading), found=found, counters=found.counters)

    def _release(self, blank: Ballot, mine: Ballot, kept: Option[P] | None) -> Taken[P]:
        """Release where this rank asked for it and can; a rank that is well keeps its cache."""
        ballot = replace(mine, step=blank.step, asked_parts=blank.asked_parts, forward_ns=0, warm_ns=0)
        if not asking([mine]) or not self._probe.can_release:
            return Taken(ballot)
        release = self._probe.release()
        before, after = release.before, release.after
        ballot = replace(
            ballot,
            release_ns=release.elapsed_ns,
            came_back_bytes=release.came_back_bytes,
            free_before_bytes=before.free_bytes,
            free_after_bytes=after.free_bytes,
            reserved_before_bytes=before.reserved_bytes,
            reserved_after_bytes=after.reserved_bytes,
            retries_before=before.alloc_retries,
            retries_after=after.alloc_retries,
        )
        return Taken(self._with_need(ballot, kept, after))

    def _check_parts(self, call: Call[R], blank: Ballot, kept: Option[P] | None) -> Taken[P]:
        """Check the smallest wave in the parts asked for against a fresh reading.

        The kept plans are checked again where they have so many parts; otherwise there are new ones.
        """
        reading, counters = self._probe.read(), SearchCounters()
        if kept is not None and kept.exact and kept.parts == blank.asked_parts:
            option = self._search.recheck(kept, reading)
        else:
            oversized = blank.step is Step.OVERSIZED
            option = self._search.option(
                call.requests(0), blank.asked_parts, reading, counters, whatever_it_needs=oversized
            )
        outcome = Outcome.HEALTHY if option.fits else Outcome.NEEDS_RECOVERY
        ballot = replace(blank, outcome=outcome if blank.requests else Outcome.EMPTY)
        return Taken(self._with_need(ballot, option, reading), option=option, counters=counters)

    def _with_need(self, ballot: Ballot, option: Option[P] | None, reading: Reading) -> Ballot:
        """`ballot` with what `option` needs and what there is."""
        ballot = replace(
            ballot,
            available_bytes=self._search.available_bytes(reading),
            largest_tokens=self._search.largest_tokens(reading),
        )
        if option is None:
            return ballot
        return replace(
            ballot, required_bytes=option.required_bytes, exact=int(option.exact), cheapest_parts=option.parts
        )
