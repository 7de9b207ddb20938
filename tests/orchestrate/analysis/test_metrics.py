from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrate.analysis.cost_terms import TERMS
from orchestrate.analysis.gates import gates
from orchestrate.analysis.metrics import Metrics, cell_result, median_and_p95, metrics, predictions
from orchestrate.analysis.noise import range_constant, standard_error_ms, tie_band_pct

KEY = "cal-a|m|L1|tp1|cp1"
TOKENS_ONLY = dict.fromkeys(TERMS, 0) | {"token_per_rank": 1}


def test_a_pair_is_ordered_when_it_is_more_than_three_percent_of_the_faster_apart(make_cell, candidate):
    def pairs(one, other):
        cell = make_cell(KEY, [candidate("a", median_ms=one), candidate("b", median_ms=other)])
        return cell_result(cell, [0, 1]).ordered

    assert pairs(100.0, 103.0) == 0
    assert pairs(100.0, 103.01) == 1
    assert pairs(103.0, 100.0) == 0
    assert pairs(103.01, 100.0) == 1


def test_a_tie_of_predictions_is_not_right_and_the_first_label_is_selected(make_cell, candidate):
    cell = make_cell(KEY, [candidate("b", median_ms=1.0), candidate("a", median_ms=2.0)])
    result = cell_result(cell, [7, 7])
    assert (result.ordered, result.right) == (1, 0)
    assert result.selected == "a"
    assert result.regret_pct == 100.0


def test_regret_is_the_selected_time_above_the_best_and_zero_with_one_candidate(make_cell, candidate):
    cell = make_cell(KEY, [candidate("a", median_ms=104.0), candidate("b", median_ms=100.0)])
    assert cell_result(cell, [1, 2]).regret_pct == 4.0
    alone = make_cell(KEY, [candidate("a", median_ms=104.0)])
    assert cell_result(alone, [1]).regret_pct == 0.0
    assert not cell_result(alone, [1]).clear_winner


def test_a_clear_winner_leads_by_more_than_its_own_spread_and_three_percent(make_cell, candidate):
    def clear(lead, winner_spread, other_spread=50.0):
        cell = make_cell(
            KEY,
            [
                candidate("a", median_ms=100.0, spread_pct=winner_spread),
                candidate("b", median_ms=100.0 + lead, spread_pct=other_spread),
                candidate("c", median_ms=900.0),
            ],
        )
        return cell_result(cell, [1, 2, 3]).clear_winner

    assert clear(4.0, 1.0)
    assert not clear(3.0, 1.0)
    assert not clear(4.0, 4.0)
    assert clear(4.5, 4.0)


def test_a_clear_winner_is_missed_when_regret_exceeds_five_percent(make_cell, candidate):
    def miss(slower):
        cell = make_cell(KEY, [candidate("a", median_ms=100.0), candidate("b", median_ms=slower)])
        return cell_result(cell, [2, 1]).clear_miss

    assert not miss(105.0)
    assert miss(105.1)


def test_the_95th_percentile_is_the_sorted_value_at_index_int_of_95_hundredths_n():
    assert median_and_p95([float(n) for n in range(20)]) == (9.5, 19.0)
    assert median_and_p95([float(n) for n in range(21)]) == (10.0, 19.0)
    assert median_and_p95([3.0, 1.0]) == (2.0, 3.0)


def test_predictions_are_whole_numbers_however_large(make_cell, candidate):
    cell = make_cell("cal-a|m|L64|tp1|cp1", [candidate("a", median_ms=1.0, packed=10**11)])
    assert predictions(cell, TOKENS_ONLY | {"token_per_rank": 10**12}) == [10**11 * 64 * 1024 * 10**12]


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(1, 100), st.integers(-(10**30), 10**30)), min_size=1, max_size=9))
def test_pairs_are_counted_as_a_plain_loop_counts_them(make_cell, candidate, items):
    cell = make_cell(KEY, [candidate(f"{n}", median_ms=time) for n, (time, _) in enumerate(items)])
    predicted = [guess for _, guess in items]
    ordered = right = 0
    for one, (time, guess) in enumerate(items):
        for later, later_guess in items[one + 1 :]:
            fast, slow = sorted([(time, guess), (later, later_guess)])
            if (slow[0] - fast[0]) / fast[0] * 100 > 3:
                ordered += 1
                right += fast[1] < slow[1]
    result = cell_result(cell, predicted)
    assert (result.ordered, result.right) == (ordered, right)


def test_without_ordered_pairs_there_is_no_accuracy_and_no_gate_on_it(make_cell, candidate):
    cell = make_cell(KEY, [candidate("a", median_ms=1.0), candidate("b", median_ms=1.01)])
    found = metrics([cell], TOKENS_ONLY)
    assert found.accuracy is None
    assert {gate.name: gate.holds for gate in gates(found)}["pairwise_order"]


def test_the_tie_band_comes_from_the_measured_spread(make_cell, candidate):
    quiet = [candidate("a", median_ms=100.0, spread_pct=0.2), candidate("b", median_ms=101.0, spread_pct=0.2)]
    noisy = [candidate("a", median_ms=100.0, spread_pct=90.0), candidate("b", median_ms=110.0, spread_pct=0.2)]
    assert cell_result(make_cell(KEY, quiet), [1, 2]).banded == 1  # below 3%, and still told apart
    assert cell_result(make_cell(KEY, quiet), [1, 2]).ordered == 0
    assert cell_result(make_cell(KEY, noisy), [1, 2]).banded == 0  # above 3%, and not told apart
    assert cell_result(make_cell(KEY, noisy), [1, 2]).ordered == 1


def test_the_tie_band_by_hand(candidate):
    one = candidate("a", median_ms=100.0, spread_pct=2.847, rounds=8)
    assert range_constant(8) == 2.847
    assert abs(standard_error_ms(one) - 1.2533141373155 / 8**0.5) < 1e-12
    other = candidate("b", median_ms=200.0, spread_pct=0.0)
    assert abs(tie_band_pct(one, other) - 1.96 * standard_error_ms(one)) < 1e-12


def found_with(make_cell, candidate, *cells):
    """Metrics over made cells; each is (selected time, other times...), all predicted in this order."""
    results = [
        cell_result(
            make_cell(KEY, [candidate(f"{n:02}", median_ms=float(t), spread_pct=0.1) for n, t in enumerate(times)]),
            list(range(len(times))),
        )
        for times in cells
    ]
    return {gate.name: gate.holds for gate in gates(Metrics(tuple(results)))}


def test_each_gate_can_fail_alone(make_cell, candidate):
    def failing(*cells):
        return {name for name, holds in found_with(make_cell, candidate, *cells).items() if not holds}

    good = [(100, 200, 300, 400)] * 40
    assert failing(*good) == set()
    assert failing(*[(100, 150, 120)] * 4) == {"pairwise_order"}
    assert failing(*[(102.5, 100, 200)] * 3) == {"median_regret_pct"}
    assert failing(*good, *[(105.5, 100, 101, 300)] * 3) == {"p95_regret_pct"}
    assert failing(*good, (111, 100, 101, 400)) == {"max_regret_pct"}
    assert failing(*good, (106, 100, 400)) == {"clear_winner_regret_pct"}


def test_the_limits_themselves_hold(make_cell, candidate):
    pairs_at_90 = [(100, 200)] * 9 + [(105, 100)]
    found = found_with(make_cell, candidate, *pairs_at_90)
    assert found["pairwise_order"]
    assert found["p95_regret_pct"]
    assert found["clear_winner_regret_pct"]
    assert found_with(make_cell, candidate, (110, 100))["max_regret_pct"]
    assert found_with(make_cell, candidate, (102, 100))["median_regret_pct"]
