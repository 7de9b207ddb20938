"""Single rules of admission, each on a rank or two of its own."""

import pytest

from harness.admission.admission import Admission
from harness.admission.ballot import Step
from harness.admission.estimator import Estimator, Measured
from harness.admission.refusal import AdmissionRefused
from harness.admission.scenario import load_scenarios, play
from harness.admission.search import Goal
from harness.admission.simulated import SimulatedAllocator
from harness.admission.world import SimulatedPlanner, SimulatedRequest

MIB = 1 << 20


def alone(total, *, ledger=None, cache=(), **options):
    device = SimulatedAllocator(total * MIB, granularity_bytes=MIB)
    for segment, live in cache:
        device.preload(segment * MIB, live * MIB)
    estimator = Estimator([Measured(32, 32 * MIB, 16 * MIB)], growth=8, margin_percent=0)
    return device, Admission(SimulatedPlanner(), estimator, device, ledger=ledger, **options)


def test_a_forward_that_fails_is_not_retried_and_earns_nothing():
    device, admission = alone(100)
    wave = admission.admit_batch([[SimulatedRequest(10)]])
    tried = []

    def failing(part):
        tried.append(part)
        device.work(10**9)
        raise ArithmeticError("kernel")

    with pytest.raises(ArithmeticError):
        admission.run(wave, failing)
    assert len(tried) == 1
    admission.admit_batch([])
    assert admission.ledger.budget.forward_ns == 0


def test_one_account_is_shared_by_both_entry_points():
    device, admission = alone(100, cache=[(70, 0)])
    requests = [[SimulatedRequest(20), SimulatedRequest(20)]]
    admission.admit_batch(requests)
    assert admission.ledger.budget.releases == 1
    device.preload(70 * MIB, 0)
    (wave,) = admission.admit_waves(requests)
    assert not wave.unsplit
    assert admission.ledger.budget.releases == 1


def test_a_plan_outside_the_measured_scale_is_run_only_as_the_smallest_wave_and_says_so():
    device = SimulatedAllocator(10_000 * MIB, granularity_bytes=MIB)
    estimator = Estimator([Measured(10, 10 * MIB, 5 * MIB)], growth=2, margin_percent=0)
    admission = Admission(SimulatedPlanner(), estimator, device)
    waves = list(admission.admit_waves([[SimulatedRequest(15)] for _ in range(3)]))
    assert [(wave.stop - wave.start, wave.trusted) for wave in waves] == [(1, True)] * 3
    (wave,) = admission.admit_waves([[SimulatedRequest(50)]])
    assert not wave.trusted
    assert wave.required_bytes == 250 * MIB


def test_headroom_is_never_planned_with():
    _, admission = alone(50, headroom_bytes=20 * MIB)
    admission.admit_batch([[SimulatedRequest(30)]])
    with pytest.raises(AdmissionRefused, match="30 packed tokens"):
        admission.admit_batch([[SimulatedRequest(31)]])


def test_a_refusal_names_what_each_rank_needs_has_and_could_run():
    _, admission = alone(50)
    with pytest.raises(AdmissionRefused, match="a single request can not be split") as raised:
        admission.admit_batch([[SimulatedRequest(60)]])
    (need,) = raised.value.needs
    assert (need.required_bytes, need.available_bytes, need.largest_tokens) == (60 * MIB, 50 * MIB, 50)
    assert not need.fits


def test_parts_run_longest_first_and_their_results_come_back_in_the_callers_order():
    _, admission = alone(70)
    wave = admission.admit_batch([[SimulatedRequest(size) for size in (10, 20, 30, 30)]])
    ran = []

    def forward(part):
        ran.append(part.plan.packed_tokens)
        return part.members

    results = admission.run(wave, forward)
    assert ran == sorted(ran, reverse=True)
    assert results == [part.members for part in wave.parts]
    assert ran != [part.plan.packed_tokens for part in wave.parts]


def test_the_bound_spares_the_planner():
    planned = []

    class Counting(SimulatedPlanner):
        def plan(self, requests, goal, /):
            planned.append((len(requests), goal))
            return super().plan(requests, goal)

    device = SimulatedAllocator(40 * MIB, granularity_bytes=MIB)
    estimator = Estimator([Measured(32, 32 * MIB, 16 * MIB)], growth=8, margin_percent=0)
    waves = Admission(Counting(), estimator, device).admit_waves([[SimulatedRequest(20)] for _ in range(9)])
    wave = next(waves)
    assert (wave.stop, wave.counters.looked_at, wave.counters.rejected_by_bound) == (2, 3, 1)
    assert planned == [(1, Goal.PREFERRED), (2, Goal.PREFERRED)]


def test_the_account_sums_over_all_ranks_whichever_of_them_worked_or_released():
    result = play(load_scenarios()["one-starved-rank"])
    assert result.budget.release_ns == 2_100_000
    spent = play(load_scenarios()["empty-peers"])
    assert spent.budget.release_ns == 2_100_000
    waves = play(load_scenarios()["one-rank-bounds-the-wave"])
    assert waves.budget.forward_ns == 6 * 10 * 10_000_000


def test_a_release_is_on_record_also_where_the_vote_after_it_fails():
    kept = []

    def vote(ballot):
        if ballot.step is Step.RELEASE:
            raise ConnectionError("a peer is gone")
        return (ballot,)

    device, admission = alone(100, cache=[(70, 0)], records=kept.append, vote=vote)
    with pytest.raises(ConnectionError):
        admission.admit_batch([[SimulatedRequest(40)]])
    (record,) = kept
    assert record.came_back_bytes == 70 * MIB
    assert record.denied is None
    assert record.then == "error"
    assert device.read().reserved_bytes == 0


def test_work_after_the_last_admission_reaches_the_account_when_it_is_settled():
    _, admission = alone(100)
    admission.admit_batch([[SimulatedRequest(10)]])
    admission.credit(7, warm=False)
    admission.credit(5, warm=True)
    assert admission.ledger.budget.forward_ns == 0
    admission.settle()
    admission.settle()
    assert (admission.ledger.budget.forward_ns, admission.ledger.budget.warm_ns) == (12, 5)
