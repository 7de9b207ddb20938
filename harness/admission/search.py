"""One rank's search: which waves fit unsplit, and if not even the smallest does, which split of it would.

Plans are tried from small to large: the ladder of widths from the smallest wave up, in each the planner's preferred
layout and then its smallest one. A rung whose cheap lower bound already exceeds the memory is rejected before the
planner runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

from harness.admission.estimator import Estimator
from harness.admission.ladder import balanced_parts, part_counts
from harness.admission.probe import Reading

__all__ = ["Found", "Goal", "Option", "Plan", "Planner", "Search", "SearchCounters"]


_LONGEST = 1 << 40
"""More packed tokens than any device holds."""


class Plan(Protocol):
    """What a planner makes of some inputs for one forward."""

    @property
    def packed_tokens(self) -> int:
        """Tokens that this rank holds in the forward."""


R_contra = TypeVar("R_contra", contravariant=True)
P_co = TypeVar("P_co", bound=Plan, covariant=True)
R = TypeVar("R")
P = TypeVar("P", bound=Plan)


class Goal(StrEnum):
    """Which layout a planner is asked for."""

    PREFERRED = "preferred"
    SMALLEST = "smallest"


class Planner(Protocol[R_contra, P_co]):
    """Packs inputs into one forward."""

    def tokens(self, request: R_contra, /) -> int:
        """The length of one input, by which splits are balanced."""

    def least_tokens(self, requests: Sequence[R_contra], /) -> int:
        """A lower bound, cheap to get, of the packed tokens of every plan of `requests`."""

    def plan(self, requests: Sequence[R_contra], goal: Goal, /) -> P_co:
        """Plan all of `requests`, which are not empty, for one forward."""


@dataclass(frozen=True, slots=True)
class Option(Generic[P]):
    """One way to run some inputs, and what it needs.

    `runs` are the positions of the requests in each part, `plans` the parts' plans, None for a part without requests;
    both are empty where the bound alone rejected it. `order` is the order to run the parts in: the longest first, so
    that the workspace of one serves the next; from the requests' lengths alone, so that ranks which share the requests
    share the order. `exact` says whether `required_bytes` is the plans' own price or a
    lower bound of it.
    """

    runs: tuple[tuple[int, ...], ...]
    plans: tuple[P | None, ...]
    order: tuple[int, ...]
    parts: int
    required_bytes: int
    exact: bool
    fits: bool
    trusted: bool


@dataclass(slots=True)
class SearchCounters:
    """What one search cost; a fresh search counts afresh."""

    looked_at: int = 0
    rejected_by_bound: int = 0
    planned: int = 0


@dataclass(slots=True)
class Found(Generic[P]):
    """What one search found.

    `unsplit` are the options of the fitting rungs, smallest first; `split` is the smallest wave's fitting split and
    `cheapest` the option of the smallest wave that needs least.
    """

    available_bytes: int
    counters: SearchCounters
    unsplit: list[Option[P]] = field(default_factory=list)
    split: Option[P] | None = None
    cheapest: Option[P] | None = None


class Search(Generic[R, P]):
    """Searches with one planner and one estimator; keeps nothing between searches.

    `headroom_bytes` of the free memory are left alone.
    """

    def __init__(self, planner: Planner[R, P], estimator: Estimator, headroom_bytes: int) -> None:
        self._planner = planner
        self._estimator = estimator
        self._headroom_bytes = headroom_bytes

    def available_bytes(self, reading: Reading) -> int:
        """What admission may count on: physically free, without the headroom and without the allocator's cache."""
        return max(0, reading.free_bytes - self._headroom_bytes)

    def waves(self, rung_inputs: Callable[[int], Sequence[R]], rungs: int, reading: Reading) -> Found[P]:
        """Climb the ladder of `rungs` waves, whose inputs on this rank `rung_inputs` gives, until one does not fit.

        A wave above the smallest is run only at a trusted price. Only where the smallest does not fit unsplit are its
        splits looked at, in ascending number of parts until one fits.
        """
        found: Found[P] = Found(self.available_bytes(reading), SearchCounters())
        for rung in range(rungs):
            option = self.option(rung_inputs(rung), 1, reading, found.counters)
            if rung == 0:
                found.cheapest = option
            if not option.fits or (rung > 0 and not option.trusted):
                break
            found.unsplit.append(option)
        if found.unsplit:
            return found
        smallest = rung_inputs(0)
        for parts in part_counts(len(smallest)):
            option = self.option(smallest, parts, reading, found.counters)
            if found.cheapest is None or option.required_bytes < found.cheapest.required_bytes:
                found.cheapest = option
            if option.fits:
                found.split = option
                break
        return found

    def option(
        self,
        requests: Sequence[R],
        parts: int,
        reading: Reading,
        counters: SearchCounters,
        *,
        whatever_it_needs: bool = False,
    ) -> Option[P]:
        """`requests` in `parts` forwards whose results all live until the backward: the first layout that fits.

        With `whatever_it_needs` the bound rejects nothing, and the smallest layout is planned if none fits.
        """
        counters.looked_at += 1
        available = self.available_bytes(reading)
        weights = [self._planner.tokens(each) for each in requests]
        runs = balanced_parts(weights, parts)
        order = tuple(sorted(range(parts), key=lambda part: -sum(weights[index] for index in runs[part])))
        chunks = [[requests[index] for index in run] for run in runs]
        bound = self._bound(chunks, reading)
        if bound > available and not whatever_it_needs:
            counters.rejected_by_bound += 1
            return Option((), (), (), parts, bound, exact=False, fits=False, trusted=False)
        best: Option[P] | None = None
        for goal in Goal:
            plans = tuple(self._planner.plan(chunk, goal) if chunk else None for chunk in chunks)
            counters.planned += sum(plan is not None for plan in plans)
            required, trusted = self._price(_tokens(plans, order), reading)
            fits = required <= available
            option = Option(runs, plans, order, parts, required, exact=True, fits=fits, trusted=trusted)
            if option.fits and option.trusted:
                return option
            if best is None or (option.fits, -option.required_bytes) > (best.fits, -best.required_bytes):
                best = option
        assert best is not None  # noqa: S101 - Goal has members
        return best

    def recheck(self, option: Option[P], reading: Reading) -> Option[P]:
        """The same plans against a fresh reading."""
        required, trusted = self._price(_tokens(option.plans, option.order), reading)
        fits = required <= self.available_bytes(reading)
        return replace(option, required_bytes=required, fits=fits, trusted=trusted)

    def largest_tokens(self, reading: Reading) -> int:
        """The largest unsplit plan that would fit now, in packed tokens; 0 when not even one token would."""
        available = self.available_bytes(reading)
        low, high = 0, 1
        while high < _LONGEST and self._price([high], reading)[0] <= available:
            low, high = high, high * 2
        while high - low > 1:
            middle = (low + high) // 2
            if self._price([middle], reading)[0] <= available:
                low = middle
            else:
                high = middle
        return low

    def _price(self, parts: Sequence[int], reading: Reading) -> tuple[int, bool]:
        """What parts of so many tokens need when they run one after the other; whether all prices are trusted.

        All that is retained stays. The workspace of a part is reused by the next unless that needs more: then the
        allocator may have cut something out of the old one that stays, and all of the new one is fresh.
        """
        granule = reading.granularity_bytes
        prices = [self._estimator.price(tokens) for tokens in parts]
        retained = sum(_granules(price.retained_bytes, granule) for price in prices)
        workspaces = [0, *(_granules(price.transient_bytes, granule) for price in prices)]
        fresh = sum(after for before, after in pairwise(workspaces) if after > before)
        return retained + fresh, all(price.trusted for price in prices)

    def _bound(self, chunks: Sequence[Sequence[R]], reading: Reading) -> int:
        """No plan of these parts needs less: the dearest part's peak, and what all of them retain."""
        granule = reading.granularity_bytes
        least = [self._estimator.least(self._planner.least_tokens(chunk)) for chunk in chunks if chunk]
        peak = max((price.peak_bytes for price in least), default=0)
        return max(peak, sum(_granules(price.retained_bytes, granule) for price in least))


def _tokens(plans: Sequence[Plan | None], order: Sequence[int]) -> list[int]:
    return [plan.packed_tokens for plan in (plans[part] for part in order) if plan is not None]


def _granules(size: int, granule: int) -> int:
    return -(-size // granule) * granule
