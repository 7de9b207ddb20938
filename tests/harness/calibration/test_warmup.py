import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.rounds import Verdict, judge, rotation
from harness.warmup import CompileStatus, Decision, decide, worst

STATUS = st.sampled_from(list(CompileStatus))
USABLE_OR_WORKING = st.sampled_from([each for each in CompileStatus if each is not CompileStatus.LIMIT])
RUNS = st.integers(1, 4).flatmap(
    lambda world: st.lists(st.lists(STATUS, min_size=world, max_size=world), min_size=0, max_size=9)
)


@given(st.lists(STATUS, min_size=1), STATUS)
def test_the_worst_status_is_never_milder_for_one_more_rank(statuses, other):
    order = list(CompileStatus)
    assert order.index(worst([*statuses, other])) >= order.index(worst(statuses))
    assert worst([*statuses, other]) in {*statuses, other}


def test_no_status_at_all_is_unknown_and_not_none():
    assert worst([]) is CompileStatus.UNKNOWN


@given(RUNS)
def test_every_rank_draws_the_same_decision_whatever_its_own_status_was(runs):
    """The union is symmetric: permuting the ranks changes nothing."""
    assert decide(runs) is decide([list(reversed(run)) for run in runs])


@given(RUNS)
def test_settled_means_that_the_last_run_compiled_nothing_on_any_rank(runs):
    if decide(runs) is Decision.SETTLED:
        assert len(runs) >= 2
        assert set(runs[-1]) == {CompileStatus.NONE}


@given(st.integers(1, 4), st.data())
def test_warming_up_ends_after_at_least_two_and_at_most_eight_runs(world, data):
    runs: list[list[CompileStatus]] = []
    while decide(runs) is Decision.AGAIN:
        runs.append(data.draw(st.lists(STATUS, min_size=world, max_size=world)))
        assert len(runs) <= 8
    assert len(runs) >= 2 or CompileStatus.LIMIT in runs[-1]


@given(st.lists(st.lists(USABLE_OR_WORKING, min_size=4, max_size=4), min_size=8, max_size=8))
def test_a_candidate_that_never_ran_clean_is_unsettled(runs):
    runs[-1][3] = CompileStatus.RECOMPILE
    assert decide(runs) is Decision.UNSETTLED


def test_one_rank_that_recompiles_keeps_all_ranks_warming_up():
    first = [CompileStatus.COMPILE] * 4
    second = [CompileStatus.NONE, CompileStatus.RECOMPILE, CompileStatus.NONE, CompileStatus.NONE]
    assert decide([first, second]) is Decision.AGAIN
    assert decide([first, second, [CompileStatus.NONE] * 4]) is Decision.SETTLED


def test_an_unknown_status_is_not_taken_for_warm():
    assert decide([["compile"] * 2, ["none", "unknown"]]) is Decision.AGAIN


@given(RUNS.filter(bool), st.data())
def test_the_recompile_limit_on_one_rank_is_never_usable(runs, data):
    run = data.draw(st.sampled_from(runs))
    run[data.draw(st.integers(0, len(run) - 1))] = CompileStatus.LIMIT
    assert decide(runs) is Decision.LIMIT


@given(st.integers(1, 12), st.integers(0, 50))
def test_each_candidate_takes_each_position_once_in_as_many_rounds_as_there_are_candidates(count, first):
    rounds = [rotation(count, first + index) for index in range(count)]
    for order in rounds:
        assert sorted(order) == list(range(count))
    for position in range(count):
        assert {order[position] for order in rounds} == set(range(count))


@pytest.mark.parametrize(
    ("statuses", "attempt", "expected"),
    [
        (["none", "none"], 0, Verdict.USABLE),
        (["none", "recompile"], 0, Verdict.AGAIN),
        (["none", "recompile"], 2, Verdict.AGAIN),
        (["none", "recompile"], 3, Verdict.UNSETTLED),
        (["none", "unknown"], 3, Verdict.UNSETTLED),
        (["none", "limit"], 0, Verdict.LIMIT),
    ],
)
def test_a_round_in_which_something_compiled_is_measured_again_a_bounded_number_of_times(statuses, attempt, expected):
    assert judge([CompileStatus(status) for status in statuses], attempt) is expected
