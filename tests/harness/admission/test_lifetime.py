"""What admission holds on to, seen through weak references with the cycle collector off."""

import gc
import weakref
from dataclasses import dataclass

import pytest
import torch

from harness.admission.admission import Admission
from harness.admission.estimator import Estimator, Measured
from harness.admission.ledger import Budget, Ledger
from harness.admission.refusal import AdmissionRefused
from harness.admission.simulated import SimulatedAllocator
from harness.admission.world import SimulatedPlanner, SimulatedRequest

MIB = 1 << 20
SPENT = Budget(1000, 0, 1000, 1, 1000)
UNSPENT = Budget(0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class TensorPlan:
    packed_tokens: int
    tokens: torch.Tensor


class Planner(SimulatedPlanner):
    """Makes plans that hold a tensor, and watches all of them."""

    def __init__(self):
        self.watched = []

    def plan(self, requests, goal, /):
        count = super().plan(requests, goal).packed_tokens
        plan = TensorPlan(count, torch.zeros(count))
        self.watched += [weakref.ref(plan), weakref.ref(plan.tokens)]
        return plan

    def alive(self):
        return {id(each()) for each in self.watched if each() is not None}


@pytest.fixture(autouse=True)
def no_cycle_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def admission_of(planner, *, cache=(), total=100, budget=UNSPENT, **options):
    device = SimulatedAllocator(total * MIB, granularity_bytes=MIB)
    for segment in cache:
        device.preload(segment * MIB, 0)
    estimator = Estimator([Measured(32, 32 * MIB, 16 * MIB)], growth=8, margin_percent=0)
    return Admission(planner, estimator, device, ledger=Ledger(budget), **options)


def plans_of(wave):
    return {id(each) for part in wave.parts if part.plan for each in (part.plan, part.plan.tokens)}


PAIR = [[SimulatedRequest(20), SimulatedRequest(20)]]
CASES = {
    "unsplit at once": ({}, "unsplit"),
    "the plan kept for recovery after a release": ({"cache": [70]}, "unsplit"),
    "a denied split": ({"cache": [70], "budget": SPENT}, "split"),
    "a split after a release that brought nothing": ({"total": 30}, "split"),
    "the oversized override": ({"total": 10, "allow_oversized": True}, "oversized"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("entry", ["batch", "waves"])
def test_after_it_returned_only_the_callers_wave_keeps_plans_alive(case, entry):
    options, ending = CASES[case]
    planner = Planner()
    admission = admission_of(planner, **options)
    if entry == "batch":
        wave = admission.admit_batch(PAIR)
    else:
        waves = admission.admit_waves(PAIR)
        wave = next(waves)
    assert ("oversized" if wave.oversized else "unsplit" if wave.unsplit else "split") == ending
    assert planner.alive() == plans_of(wave)
    del wave
    assert planner.alive() == set()


def test_a_wave_that_the_caller_dropped_is_gone_before_the_next_one_is_planned():
    planner = Planner()
    waves = admission_of(planner, total=45).admit_waves([*PAIR, *PAIR, *PAIR])
    for wave in waves:
        assert planner.alive() == plans_of(wave)
        del wave
        assert planner.alive() == set()


def test_a_real_release_starts_the_fresh_search_with_the_old_plans_gone():
    seen = []

    class Watching(Planner):
        def plan(self, requests, goal, /):
            seen.append(len(self.alive()))
            return super().plan(requests, goal)

    wave = admission_of(Watching(), cache=[70]).admit_batch(PAIR)
    assert wave.unsplit
    # Two layouts of the unsplit wave, then the parts of the split; the last one is the fresh search's first.
    assert seen[-1] == 0
    assert max(seen) > 0


def test_a_refused_call_keeps_nothing_once_its_error_is_gone():
    planner = Planner()
    admission = admission_of(planner, total=10)
    try:
        admission.admit_batch(PAIR)
    except AdmissionRefused as refused:
        assert refused.needs[0].requests == 2  # noqa: PT017 - `pytest.raises` would keep the traceback
    else:
        pytest.fail("it was admitted")
    assert planner.alive() == set()


def test_a_vote_that_fails_keeps_nothing_once_its_error_is_gone():
    planner = Planner()
    votes = iter([True, False])

    def vote(ballot):
        if not next(votes):
            raise ConnectionError
        return (ballot,)

    admission = admission_of(planner, cache=[70], vote=vote)
    try:
        admission.admit_batch(PAIR)
    except ConnectionError:
        pass
    else:
        pytest.fail("the second vote did not fail")
    assert planner.alive() == set()
