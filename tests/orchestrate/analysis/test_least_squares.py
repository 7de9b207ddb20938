from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrate.analysis.least_squares import Deltas, nnls, pair_deltas, starting_point


def deltas(columns, target):
    return Deltas(tuple(np.array(column, float) for column in columns), (1.0,) * len(columns), np.array(target, float))


def exact_gradient(system, solution):
    """X'(y - Xb) in exact arithmetic."""
    columns = [[Fraction(float(value)) for value in column] for column in system.columns]
    residual = [Fraction(float(value)) for value in system.target]
    for column, value in zip(columns, solution, strict=True):
        residual = [old - entry * Fraction(value) for old, entry in zip(residual, column, strict=True)]
    return [float(sum(a * b for a, b in zip(column, residual, strict=True))) for column in columns]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 6), st.integers(6, 30), st.booleans())
def test_the_solution_holds_the_optimality_conditions(seed, columns, rows, repeat_a_column):
    draw = np.random.default_rng(seed)
    matrix = draw.uniform(-1, 1, (columns, rows))
    if repeat_a_column:
        matrix = np.vstack([matrix, matrix[:1] * 0.5, np.zeros((1, rows))])
    system = deltas(matrix, draw.uniform(-1, 1, rows))
    solution = nnls(system)
    scale = max(1.0, *(abs(value) for value in exact_gradient(system, [0.0] * len(solution))))
    for value, slope in zip(solution, exact_gradient(system, solution), strict=True):
        assert value >= 0
        assert slope <= 2e-10 * scale, "a coefficient that wants to grow"
        if value > 0:
            assert abs(slope) <= 2e-10 * scale, "a free coefficient that is not at its best"


def test_a_column_that_is_the_double_of_another_stays_out():
    solution = nnls(deltas([[2, 4, 6], [1, 2, 3]], [2, 4, 6]))
    assert solution == pytest.approx((1.0, 0.0))


def test_of_two_columns_that_always_go_together_the_first_enters_whatever_rounding_says():
    draw = np.random.default_rng(1)
    for _ in range(50):
        column = draw.uniform(-1, 1, 40)
        twin = column * (1 + 1e-15 * draw.choice([-1, 0, 1], 40))
        target = column * 3 + draw.uniform(-0.1, 0.1, 40)
        assert nnls(deltas([twin, column], target))[1] == 0.0
        assert nnls(deltas([column, twin], target))[1] == 0.0


def test_columns_that_depend_on_three_others_stay_out():
    solution = nnls(deltas([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]], [3, 2, 1]))
    assert np.array([[1, 0, 0, 1], [0, 1, 0, 1], [0, 0, 1, 1]]) @ solution == pytest.approx([3, 2, 1])
    assert min(solution) == 0.0


def test_a_coefficient_that_would_be_negative_is_zero():
    assert nnls(deltas([[1, 0], [0, 1]], [2, -3])) == (2.0, 0.0)


def test_scipy_agrees_where_it_is_installed(shared_study):
    optimize = pytest.importorskip("scipy.optimize", reason="scipy is not a dependency; this is a cross-check")
    system = pair_deltas(shared_study("cp4|g4").training)
    expected, _ = optimize.nnls(np.array(system.columns).T, system.target)
    assert nnls(system) == pytest.approx(expected, rel=1e-9)


def test_every_cell_weighs_one_over_the_root_of_its_pairs_and_the_mean_time(make_cell, candidate):
    cell = make_cell(
        "cal-a|m|L1|tp1|cp1",
        [
            candidate("a", median_ms=1.0, packed=100),
            candidate("b", median_ms=3.0, packed=300),
            candidate("c", median_ms=2.0, packed=200),
        ],
    )
    found = pair_deltas([cell])
    weights = [1 / 3**0.5 / mean for mean in (2000, 1500, 2500)]
    assert found.target == pytest.approx([d * w for d, w in zip((-2000, -1000, 1000), weights, strict=True)])
    rows = [d * w for d, w in zip((-200, -100, 100), weights, strict=True)]
    assert found.scales[0] == pytest.approx(max(map(abs, rows)))
    assert found.columns[0] * found.scales[0] == pytest.approx(rows)
    assert max(abs(found.columns[0])) == 1.0
    assert found.scales[1] == 1.0  # cp 1: a column of zeros has nothing to scale


def test_a_perfect_world_gives_its_own_coefficients(make_cell, candidate):
    cells = [
        make_cell(
            f"cal-a|m|L{layers}|tp1|cp1",
            [candidate(str(n), median_ms=n * layers * 0.004, packed=n * 1000) for n in (1, 2, 5)],
        )
        for layers in (2, 4)
    ]
    assert starting_point(cells)[0] == pytest.approx(4e-3, rel=1e-12)  # 0.004 ms for 1,000 tokens in a layer
    assert starting_point(cells)[1:] == (0.0,) * 9


def test_cells_with_one_candidate_say_nothing(make_cell, candidate):
    assert starting_point([make_cell("cal-a|m|L1|tp1|cp1", [candidate("a", median_ms=1.0)])]) == (0.0,) * 10
