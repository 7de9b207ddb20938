import doctest
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from harness.admission import ladder
from harness.admission.ladder import balanced_parts, part_counts, share, wave_widths

WEIGHTS = st.lists(st.integers(0, 1000), max_size=40)


def test_the_examples_in_the_docstrings():
    assert doctest.testmod(ladder).failed == 0


@given(st.integers(1, 10**6), st.integers(1, 16))
def test_widths_rise_from_one_input_a_share_to_all_and_are_few(remaining, shards):
    widths = wave_widths(remaining, shards)
    assert widths[0] == min(shards, remaining)
    assert widths[-1] == remaining
    assert all(before < after <= 2 * before + 1 for before, after in pairwise(widths))
    assert len(widths) <= 2 * remaining.bit_length() + 1


@given(st.integers(0, 10**5))
def test_part_counts_double_and_end_at_one_request_each(requests):
    counts = part_counts(requests)
    assert (counts[-1] if counts else 1) == max(1, requests)
    assert all(before < after <= 2 * before for before, after in pairwise((1, *counts)))


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 6))
def test_shares_of_a_wave_hold_each_input_once(start, width, shards):
    shares = [list(share(start, width, shard, shards)) for shard in range(shards)]
    assert sorted(index for each in shares for index in each) == list(range(start, start + width))
    assert all(each == sorted(each) for each in shares)


@given(st.integers(0, 50), st.integers(0, 40), st.integers(0, 20), st.integers(1, 6))
def test_a_wider_wave_only_adds_to_a_share(start, width, more, shards):
    for shard in range(shards):
        narrow, wide = share(start, width, shard, shards), share(start, width + more, shard, shards)
        assert list(wide)[: len(narrow)] == list(narrow)


@given(WEIGHTS, st.integers(1, 50))
def test_parts_hold_each_request_once_in_the_callers_order(weights, parts):
    runs = balanced_parts(weights, parts)
    assert len(runs) == parts
    assert [index for run in runs for index in run] == list(range(len(weights)))
    assert sum(bool(run) for run in runs) == min(parts, len(weights))
    assert balanced_parts(weights, parts) == runs


@given(WEIGHTS.filter(bool), st.integers(1, 50))
def test_no_part_exceeds_its_even_share_by_more_than_one_request(weights, parts):
    heaviest = max(sum(weights[index] for index in run) for run in balanced_parts(weights, parts))
    assert heaviest <= sum(weights) / min(parts, len(weights)) + max(weights)
