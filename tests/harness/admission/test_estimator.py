import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.admission.estimator import Basis, Estimator, Measured
from harness.errors import InputError

TOKENS = st.integers(1, 10**6)


@st.composite
def measured(draw):
    peak = draw(st.integers(0, 10**12))
    return Measured(draw(TOKENS), peak, draw(st.integers(0, peak)))


POINTS = st.lists(measured(), min_size=1, max_size=6)


@given(POINTS, TOKENS, TOKENS)
def test_a_larger_plan_is_never_priced_below_a_smaller_one(points, first, second):
    estimator = Estimator(points)
    small, large = sorted((first, second))
    assert estimator.price(small).peak_bytes <= estimator.price(large).peak_bytes


@given(POINTS)
def test_no_price_is_below_what_was_measured_at_that_scale_or_a_smaller_one(points):
    estimator = Estimator(points)
    for point in points:
        price = estimator.price(point.packed_tokens)
        assert price.trusted
        assert price.peak_bytes >= point.peak_bytes
        assert price.retained_bytes >= point.retained_bytes


@given(POINTS, TOKENS)
def test_outside_every_window_all_of_the_peak_is_taken_to_stay(points, tokens):
    price = Estimator(points).price(tokens)
    near = any(p.packed_tokens <= 2 * tokens and tokens <= 2 * p.packed_tokens for p in points)
    assert price.trusted is near
    if not near:
        assert price.retained_bytes == price.peak_bytes


@given(st.integers(0, 10**6), st.integers(0, 10**4), st.integers(0, 5), st.integers(1, 10**5), TOKENS)
def test_beyond_every_measurement_a_need_that_grows_with_the_square_is_not_underpriced(fixed, linear, square, at, more):
    def need(count):
        return fixed + linear * count + square * count * count

    tokens = 2 * at + more
    price = Estimator([Measured(at, need(at), 0)], margin_percent=0).price(tokens)
    assert price.basis is Basis.ABOVE
    assert price.peak_bytes >= need(tokens)


@given(POINTS, st.data())
def test_a_plan_smaller_than_every_window_gets_no_credit_for_it(points, data):
    smallest = min(points, key=lambda point: (point.packed_tokens, -point.peak_bytes))
    tokens = data.draw(st.integers(1, smallest.packed_tokens))
    price = Estimator(points).price(tokens)
    assert price.trusted is (2 * tokens >= smallest.packed_tokens)
    assert 2 * price.peak_bytes >= smallest.peak_bytes


@given(POINTS, TOKENS, TOKENS)
def test_the_lower_bound_is_below_every_larger_plan_in_peak_and_in_what_stays(points, least, more):
    estimator = Estimator(points)
    bound, price = estimator.least(least), estimator.price(least + more)
    assert bound.peak_bytes <= price.peak_bytes
    assert bound.retained_bytes <= price.retained_bytes


def test_the_three_bases_by_hand():
    estimator = Estimator([Measured(1000, 10_000, 4_000)], margin_percent=0)
    assert (estimator.price(100).basis, estimator.price(100).peak_bytes) == (Basis.BELOW, 5_000)
    assert (estimator.price(500).basis, estimator.price(500).peak_bytes) == (Basis.MEASURED, 5_000)
    assert (estimator.price(2000).basis, estimator.price(2000).retained_bytes) == (Basis.MEASURED, 8_000)
    assert (estimator.price(4000).basis, estimator.price(4000).peak_bytes) == (Basis.ABOVE, 160_000)
    assert estimator.price(0).peak_bytes == 0


def test_a_gap_between_two_windows_is_priced_from_above():
    estimator = Estimator([Measured(10, 100, 0), Measured(1000, 5_000, 0)], margin_percent=0)
    assert estimator.price(100) == estimator.price(400)
    assert (estimator.price(100).basis, estimator.price(100).peak_bytes) == (Basis.BELOW, 2_500)


def test_the_margin_is_added_and_rounded_up():
    assert Estimator([Measured(10, 101, 0)], margin_percent=10).price(10).peak_bytes == 112


def test_a_forward_that_took_more_than_its_price_is_learned_from():
    estimator = Estimator([Measured(1000, 10_000, 4_000)], margin_percent=0)
    estimator.observe(Measured(900, 18_000, 17_000))
    assert estimator.price(900).peak_bytes == 18_000
    assert estimator.price(900).retained_bytes == 17_000


def test_a_larger_forward_extends_what_is_trusted():
    estimator = Estimator([Measured(1000, 10_000, 4_000)])
    assert not estimator.price(3000).trusted
    estimator.observe(Measured(1600, 16_000, 6_400))
    assert estimator.price(3000).trusted


@given(POINTS, st.lists(measured(), max_size=8))
def test_observing_never_makes_an_observed_scale_cheaper_than_it_was(points, seen):
    estimator = Estimator(points)
    for point in seen:
        estimator.observe(point)
    for point in [*points, *seen]:
        assert estimator.price(point.packed_tokens).peak_bytes >= point.peak_bytes


def test_a_long_run_of_the_same_scale_keeps_a_bounded_profile():
    estimator = Estimator([Measured(1000, 100_000, 40_000)])
    before = estimator.points
    for tokens in range(900, 1100):
        estimator.observe(Measured(tokens, tokens * 100, tokens * 40))
    assert len(estimator.points) <= len(before) + 2


@pytest.mark.parametrize("numbers", [(0, 1, 1), (1, -1, -1), (1, 5, 6)])
def test_an_impossible_measurement_is_refused(numbers):
    with pytest.raises(InputError):
        Measured(*numbers)


def test_without_any_measurement_there_is_no_estimator():
    with pytest.raises(InputError):
        Estimator([])


@given(st.integers(0, 10**6), st.integers(0, 10**4), st.integers(1, 5), st.integers(2, 10**5), st.integers(101, 200))
def test_a_need_that_two_measurements_show_to_grow_is_not_underpriced_near_its_scale_either(
    fixed, linear, square, at, more
):
    def need(count):
        return fixed + linear * count + square * count * count

    tokens = at * more // 100
    estimator = Estimator([Measured(at // 2, need(at // 2), 0), Measured(at, need(at), 0)])
    price = estimator.price(tokens)
    assert price.trusted
    shown = 100 * need(at) * (at // 2) > 110 * need(at // 2) * at
    if shown:
        assert price.peak_bytes >= need(tokens)


def test_growth_is_told_from_noise_by_the_margin_and_retained_bytes_have_their_own():
    steady = Estimator([Measured(1000, 10_000, 4_000), Measured(2000, 21_000, 8_000)])
    assert steady.price(4000).peak_bytes == 46_200
    growing = Estimator([Measured(1000, 10_000, 4_000), Measured(2000, 23_000, 8_000)])
    assert growing.price(2000).peak_bytes == 25_300
    assert growing.price(4000).peak_bytes == 4 * 25_300
    assert growing.price(4000).retained_bytes == 2 * 8_800
    assert growing.price(4000).trusted
