import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.admission.ledger import Budget, Ledger

NS = st.integers(0, 10**15)
ENTRY = st.tuples(st.sampled_from(["forward", "warm", "release"]), st.integers(0, 10**12))


def test_the_first_release_is_allowed_without_any_work_and_is_charged():
    ledger = Ledger()
    assert ledger.budget.allows
    ledger.charge_release(7)
    assert (ledger.budget.release_ns, ledger.budget.releases) == (7, 1)
    assert not ledger.budget.allows


def test_a_release_that_cost_nothing_uses_the_first_allowance_up():
    ledger = Ledger()
    ledger.charge_release(0)
    ledger.charge_release(5)
    assert not ledger.budget.allows


@pytest.mark.parametrize(("forward", "allowed"), [(3999, False), (4000, True), (4001, True)])
def test_cost_and_reserve_together_may_reach_five_percent_and_no_more(forward, allowed):
    assert Budget(forward, 0, 150, 2, 50).allows is allowed


def test_the_reserve_is_the_dearest_release_so_far():
    ledger = Ledger()
    for cost in (3, 40, 8):
        ledger.charge_release(cost)
    assert ledger.budget.reserve_ns == 40
    assert ledger.budget.release_ns == 51


@given(st.lists(ENTRY))
def test_nothing_but_forward_work_and_releases_moves_the_account(entries):
    ledger = Ledger()
    for kind, cost in entries:
        if kind == "release":
            ledger.charge_release(cost)
        else:
            ledger.credit_forwards(cost, cost if kind == "warm" else 0)
    budget = ledger.budget
    assert budget.forward_ns == sum(cost for kind, cost in entries if kind != "release")
    assert budget.warm_ns == sum(cost for kind, cost in entries if kind == "warm")
    assert budget.release_ns == sum(cost for kind, cost in entries if kind == "release")
    assert budget.releases == sum(kind == "release" for kind, _ in entries)


@given(NS, NS, st.integers(1, 50), NS)
def test_more_forward_work_never_takes_an_allowance_away(forward, more, releases, cost):
    if Budget(forward, 0, cost, releases, cost).allows:
        assert Budget(forward + more, 0, cost, releases, cost).allows


@given(NS, st.data())
def test_warm_work_counts_for_the_budget_but_the_ratio_is_also_told_without_it(forward, data):
    warm = data.draw(st.integers(0, forward))
    budget = Budget(forward, warm, 1000, 1, 1000)
    assert budget.allows is Budget(forward, 0, 1000, 1, 1000).allows
    if forward > warm:
        assert budget.overhead_without_warm == 1000 / (forward - warm) >= budget.overhead
        assert budget.warm_share == warm / forward


def test_ratios_of_no_work_are_unknown_and_not_zero():
    budget = Ledger().budget
    assert (budget.overhead, budget.overhead_without_warm, budget.warm_share) == (None, None, None)
    assert Budget(10, 10, 1, 1, 1).overhead_without_warm is None


def test_warm_work_beyond_the_forward_is_refused():
    with pytest.raises(ValueError, match="no part"):
        Ledger().credit_forwards(5, 6)
