"""Random memory states, inputs and peers, in lockstep: what holds for every one of them."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.admission.admission import Admission
from harness.admission.ballot import Ballot, Outcome, Step, VoteMismatch, decode
from harness.admission.decide import Action, decide
from harness.admission.estimator import Estimator, Measured
from harness.admission.ledger import Budget
from harness.admission.refusal import AdmissionRefused, PeerFailed
from harness.admission.search import SearchCounters
from harness.admission.simulated import Latency, SimulatedAllocator
from harness.admission.world import SimulatedPlanner, SimulatedRequest, SimulatedRun, lockstep

MIB = 1 << 20
RELEASE_NS = 1000


class SometimesFailing(SimulatedPlanner):
    def __init__(self, plans_until_failure):
        self.left = plans_until_failure

    def plan(self, requests, goal, /):
        if self.left == 0:
            raise ArithmeticError("planner")
        self.left -= 1
        return super().plan(requests, goal)


@dataclass
class Rank:
    device: SimulatedAllocator
    admission: Admission
    run: SimulatedRun
    records: list = field(default_factory=list)


@st.composite
def ranks(draw, *, faults=True):
    world = draw(st.integers(1, 4))
    made = []
    for _ in range(world):
        total = draw(st.integers(10, 120))
        device = SimulatedAllocator(
            total * MIB,
            granularity_bytes=MIB,
            latency=Latency(release_ns=RELEASE_NS, segment_ns=0, token_ns=draw(st.integers(1, 2000))),
            device=draw(st.sampled_from(["cuda"] * 7 + ["cpu"])),
        )
        left = total
        for _ in range(draw(st.integers(0, 4))):
            segment = draw(st.integers(1, 40))
            if segment > left:
                break
            device.preload(segment * MIB, draw(st.sampled_from([0, 0, MIB, segment * MIB])))
            left -= segment
        device.others_bytes = draw(st.integers(0, left)) * MIB
        if draw(st.booleans()):
            device.others_at_read = {draw(st.integers(1, 5)): draw(st.integers(0, left)) * MIB}
        failing = draw(st.sampled_from([-1] * 9 + [0, 1, 3])) if faults else -1
        records = []
        admission = Admission(
            SometimesFailing(failing),
            Estimator([Measured(32, 32 * MIB, draw(st.integers(0, 32)) * MIB)], growth=8, margin_percent=0),
            device,
            records=records.append,
        )
        retained = admission._steps._search._estimator.points[0].retained_bytes // 32
        made.append(Rank(device, admission, SimulatedRun(device, peak_bytes=MIB, retained_bytes=retained), records))
    return made


REQUEST = st.one_of(
    st.integers(1, 30).map(SimulatedRequest),
    st.builds(SimulatedRequest, st.integers(1, 12), st.sampled_from("ab"), st.just(8)),
)
INPUTS = st.lists(st.lists(REQUEST, max_size=4), max_size=6)


def agree(ended, world):
    """All ranks were admitted to the same wave in the same parts, or all raised."""
    assert len(ended.admitted) + len(ended.errors) == world
    if ended.errors:
        assert all(isinstance(error, (AdmissionRefused, PeerFailed, ArithmeticError)) for error in ended.errors)
        assert len({isinstance(error, AdmissionRefused) for error in ended.errors}) == 1
    else:
        assert len({len(wave.parts) for wave in ended.admitted}) == 1


def check_and_run(made, ended):
    """Nothing that is admitted exceeds what is physically free, and it runs without the allocator's own flush."""
    for rank, wave in zip(made, ended.admitted, strict=True):
        rank.device.others_at_read.clear()  # what others take after the check is not admission's to know
        assert wave.required_bytes <= wave.available_bytes == rank.device.free_bytes
        retries = rank.device.read().alloc_retries
        rank.admission.run(wave, rank.run.forward)
        assert rank.device.read().alloc_retries == retries
        assert rank.device.read().reserved_bytes + rank.device.others_bytes <= rank.device.total_bytes
        rank.run.backward(10**9)


@settings(max_examples=150)
@given(ranks(), st.data())
def test_whole_batches_agree_fit_and_hold_each_request_once(made, data):
    for _ in range(data.draw(st.integers(1, 3))):
        inputs = [data.draw(INPUTS) for _ in made]
        ended = lockstep([rank.admission.batch(mine) for rank, mine in zip(made, inputs, strict=True)])
        agree(ended, len(made))
        if ended.errors:
            return
        for wave, mine in zip(ended.admitted, inputs, strict=True):
            members = [member for part in wave.parts for member in part.members]
            assert members == [(index, each) for index, requests in enumerate(mine) for each in range(len(requests))]
        check_and_run(made, ended)


@settings(max_examples=150)
@given(ranks(), INPUTS.filter(bool), st.booleans())
def test_streamed_waves_agree_fit_and_hold_each_request_once(made, inputs, sharded):
    shards = len(made) if sharded else 1
    start, seen = 0, []
    while start < len(inputs):
        ended = lockstep(
            [
                rank.admission.wave(inputs, start, shard=number % shards, shards=shards)
                for number, rank in enumerate(made)
            ]
        )
        agree(ended, len(made))
        if ended.errors:
            return
        assert len({(wave.start, wave.stop) for wave in ended.admitted}) == 1
        assert ended.admitted[0].start == start < ended.admitted[0].stop
        for number, wave in enumerate(ended.admitted):
            members = [member for part in wave.parts for member in part.members]
            assert members == sorted(members)
            if number < shards:
                seen += members
        check_and_run(made, ended)
        start = ended.admitted[0].stop
    assert sorted(seen) == [(index, each) for index, requests in enumerate(inputs) for each in range(len(requests))]


@pytest.mark.parametrize("retained", [0, 1])
def test_a_forward_that_keeps_all_or_nothing_of_its_peak_fills_the_memory_to_the_last_byte(retained):
    device = SimulatedAllocator(24 * MIB, granularity_bytes=MIB)
    run = SimulatedRun(device, peak_bytes=MIB, retained_bytes=retained * MIB)
    admission = Admission(
        SimulatedPlanner(), Estimator([Measured(32, 32 * MIB, retained * 32 * MIB)], margin_percent=0), device
    )
    ended = lockstep([admission.batch([[SimulatedRequest(1), SimulatedRequest(23)]])])
    admission.run(ended.admitted[0], run.forward)
    assert device.free_bytes == 0


@settings(max_examples=100)
@given(ranks(faults=False), st.data())
def test_releases_never_cost_more_than_the_first_and_five_percent_of_forward_work(made, data):
    """Every release costs the same here, so the reserve is exact and the rule bounds the cost itself."""
    worked = [0] * len(made)
    entered = 0
    for _ in range(data.draw(st.integers(1, 8))):
        inputs = [data.draw(INPUTS) for _ in made]
        entered = sum(worked)
        ended = lockstep([rank.admission.batch(mine) for rank, mine in zip(made, inputs, strict=True)])
        budget = made[0].admission.ledger.budget
        assert all(rank.admission.ledger.budget == budget for rank in made)
        assert budget.forward_ns == entered
        for record in made[0].records:
            if record.denied is None:
                assert record.before.allows
                assert record.elapsed_ns == sum(each.release_ns for each in record.votes)
            elif record.denied == "budget":
                assert not record.before.allows
        made_releases = [record for record in made[0].records if record.denied is None]
        assert budget.releases == len(made_releases)
        assert budget.release_ns == sum(record.elapsed_ns for record in made_releases)
        if len({record.elapsed_ns for record in made_releases}) == 1 and len(made_releases) > 1:
            assert 100 * budget.release_ns <= 5 * budget.forward_ns
        for number, (rank, wave) in enumerate(zip(made, ended.admitted, strict=False)):
            before = rank.device.clock_ns()
            rank.admission.run(wave, rank.run.forward)
            worked[number] += rank.device.clock_ns() - before
            rank.run.backward(10**12)


@settings(max_examples=100)
@given(ranks(faults=False), st.data())
def test_a_release_is_made_at_most_once_and_only_when_the_smallest_wave_failed_unsplit(made, data):
    inputs = [data.draw(INPUTS) for _ in made]
    ended = lockstep([rank.admission.batch(mine) for rank, mine in zip(made, inputs, strict=True)])
    steps = [votes[0].step for votes in ended.votes]
    assert steps.count(Step.RELEASE) <= 1
    assert steps[0] is Step.SEARCH
    wanting = any(vote.outcome in {Outcome.SPLIT, Outcome.NEEDS_RECOVERY} for vote in ended.votes[0])
    if Step.RELEASE in steps:
        assert wanting
        assert steps[1] is Step.RELEASE
    came_back = any(vote.came_back_bytes for votes in ended.votes for vote in votes)
    assert (steps.count(Step.SEARCH) == 2) is came_back
    if ended.admitted and len(ended.admitted[0].parts) > 1:
        assert steps[-1] is Step.CONFIRM


@given(ranks(faults=False), INPUTS)
def test_a_search_that_rejects_by_the_bound_alone_never_rejects_what_fits(made, inputs):
    requests = [request for each in inputs for request in each]
    search = made[0].admission._steps._search
    reading = made[0].device.read()
    for parts in range(1, len(requests) + 1):
        option = search.option(requests, parts, reading, SearchCounters())
        planned = search.option(requests, parts, reading, SearchCounters(), whatever_it_needs=True)
        assert option.fits is planned.fits
        if not option.exact:
            assert option.required_bytes <= planned.required_bytes


VOTES = st.lists(
    st.builds(
        Ballot,
        step=st.just(Step.SEARCH),
        call=st.just(1),
        rungs=st.just(3),
        asked_parts=st.just(1),
        outcome=st.sampled_from(Outcome),
        requests=st.integers(0, 8),
        fitting=st.integers(1, 3),
        parts=st.integers(2, 8),
        can_release=st.integers(0, 1),
        allow_oversized=st.integers(0, 1),
    ),
    min_size=1,
    max_size=4,
)


@given(VOTES, st.booleans(), st.booleans())
def test_the_decision_does_not_depend_on_which_rank_voted_what(votes, rich, released):
    budget = Budget(10**9 if rich else 0, 0, 1, 1, 1)
    decision = decide(votes, votes, budget=budget, released=released)
    assert decide(votes[::-1], votes[::-1], budget=budget, released=released) == decision
    if decision.action is Action.RELEASE:
        assert rich
        assert not released
    if decision.action is Action.RUN:
        assert {vote.outcome for vote in votes} <= {Outcome.HEALTHY, Outcome.EMPTY}


@given(VOTES)
def test_a_ballot_survives_its_encoding(votes):
    assert decode([vote.encode() for vote in votes]) == tuple(votes)


def test_ranks_in_different_admissions_are_told_apart_instead_of_mixed_up():
    first = Ballot(Step.SEARCH, 1, 1, 1, Outcome.EMPTY, 0)
    other = Ballot(Step.SEARCH, 2, 1, 1, Outcome.EMPTY, 0)
    with pytest.raises(VoteMismatch, match="admission 2") as raised:
        decode([first.encode(), other.encode(), first.encode()])
    assert raised.value.ranks == (1,)


def test_a_rank_that_did_not_vote_is_named():
    vote = Ballot(Step.SEARCH, 1, 1, 1, Outcome.EMPTY, 0).encode()
    with pytest.raises(VoteMismatch, match="no readable vote") as raised:
        decode([vote, tuple(0 for _ in vote)])
    assert raised.value.ranks == (1,)
