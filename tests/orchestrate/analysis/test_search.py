import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrate.analysis.cost_terms import SCALE, cost_terms
from orchestrate.analysis.fit import fit_table, rounded
from orchestrate.analysis.least_squares import starting_point
from orchestrate.analysis.reduced_cells import read_reduced_cells
from orchestrate.analysis.search import coordinate_search
from orchestrate.analysis.selection import SelectionLoss
from orchestrate.errors import EvidenceDamagedError


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), noise=st.sampled_from([0.05, 0.3, 0.8]))
def test_table_and_loss_are_those_of_the_plain_loop(seed, noise, made_up, as_bytes, plain_fit):
    cells = [item.cell for item in read_reduced_cells(as_bytes(made_up(6, 4, seed=seed, noise=noise)), "x", None)[0]]
    plain = [
        (
            [tuple(term / SCALE for term in cost_terms(each.features, cell.facts)) for each in cell.candidates],
            [each.median_ms for each in cell.candidates],
        )
        for cell in cells
    ]
    fit = fit_table(cells)
    assert list(fit.table.values()) == plain_fit.fit(plain)
    assert fit.search.loss == plain_fit.loss(plain, fit.search.coefficients)
    assert fit.search.loss <= fit.search.start_loss


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), above=st.floats(0, 200))
def test_a_limit_never_changes_whether_the_loss_is_below_it(seed, above, made_up, as_bytes):
    cells = [item.cell for item in read_reduced_cells(as_bytes(made_up(5, 4, seed=seed)), "x", None)[0]]
    loss = SelectionLoss(cells)
    draw = random.Random(seed)
    coefficients = [draw.choice([0.0, draw.uniform(0, 10)]) for _ in range(10)]
    whole, limited = loss(coefficients), loss(coefficients, above=above)
    assert limited == whole if whole < above else limited >= above


def asked(landscape, start):
    """Every question of a search, as it was asked."""
    questions = []

    def loss(coefficients, *, above):
        questions.append(tuple(coefficients))
        return landscape(coefficients)

    return coordinate_search(loss, start), questions


def test_a_search_that_improves_nothing_ends_after_one_sweep_and_the_first_run_wins():
    found, _ = asked(lambda _: 1.0, [3.0, 0.0])
    assert (found.run, found.sweeps, found.coefficients) == (0, 1, (3.0, 0.0))


def test_factors_apply_to_the_value_at_the_begin_of_the_turn_and_each_is_held_against_the_best_so_far():
    def landscape(coefficients):
        ratio = coefficients[0] / coefficients[1] if coefficients[1] else 100.0
        return {0.25: 5.0, 0.5: 4.0, 0.8: 6.0, 1.25: 3.0, 2.0: 3.5, 4.0: 9.0}.get(round(ratio, 6), 10.0)

    found, _ = asked(landscape, [1.0, 1.0])
    # 1.25 is reached by 1.25 times the first value, not by 0.5 x 1.25 of an accepted one.
    assert found.loss == 3.0
    assert found.coefficients[0] / found.coefficients[1] == 1.25


def test_a_zero_coefficient_tries_1_10_100_1000_thousandths_of_the_smallest_positive_start():
    def landscape(coefficients):
        ratio = coefficients[0] / coefficients[1] if coefficients[1] else math.inf
        return 0.0 if math.isclose(ratio, 0.1) else 1.0

    found, questions = asked(landscape, [0.0, 2.0])
    assert found.coefficients == (0.2, 2.0)  # 100 times 2.0 / 1000
    seen = {round(one / other, 9) for one, other in questions if other}
    assert {0.001, 0.01, 0.1, 1.0} <= seen


def test_a_gain_of_a_billionth_is_no_gain():
    found, _ = asked(lambda coefficients: 1.0 - 1e-9 * (coefficients[0] != coefficients[1]), [1.0, 1.0])
    assert found.coefficients == (1.0, 1.0)


def test_a_search_gives_up_after_twelve_sweeps():
    found, _ = asked(lambda c: math.log(c[1] / c[0]) if min(c) else 9e9, [1.0, 1.0])
    assert found.sweeps == 12


def test_a_coefficient_may_become_zero():
    found, _ = asked(lambda coefficients: float(coefficients[0] > 0), [1.0, 1.0])
    assert found.coefficients == (0.0, 1.0)


def test_no_positive_start_leaves_everything_zero():
    found, _ = asked(lambda _: 0.0, [0.0, 0.0])
    assert found.coefficients == (0.0, 0.0)


def test_a_coefficient_that_no_reader_keeps_exact_is_no_coefficient():
    assert rounded([9e12] + [0] * 9)["token_per_rank"] == 9 * 10**15
    with pytest.raises(EvidenceDamagedError, match="token_per_rank is"):
        rounded([1e14] + [0] * 9)


def test_coefficients_are_rounded_once_half_to_even():
    assert list(rounded([0.0005, 0.0015, 2.0, 0, 0, 0, 0, 0, 0, 1e-9]).values()) == [0, 2, 2000, 0, 0, 0, 0, 0, 0, 0]


def test_the_start_of_the_search_is_the_least_squares(made_up, as_bytes):
    cells = [item.cell for item in read_reduced_cells(as_bytes(made_up()), "x", None)[0]]
    assert fit_table(cells).start == starting_point(cells)
