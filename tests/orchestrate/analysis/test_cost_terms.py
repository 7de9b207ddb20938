import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import cost_table
from harness.prefix_tree import Features as NodeFeatures
from orchestrate.analysis.cost_terms import SEGMENT_BOUNDS, TERMS, Facts, Features, cost_terms

BELOW = (1, 2, 3, 4, 5, 6, 7, 8)


def terms(facts, features):
    return dict(zip(TERMS, cost_terms(features, facts), strict=True))


def test_every_term_by_hand():
    found = terms(Facts(tp=2, cp=4, layers=32, gdn_layers=24), Features(1001, 9, 3, BELOW))
    assert found == {
        "token_per_rank": 1001 * 32 * 1024 // 8,
        "token_cp_exchange": 1001 * 32 * 3 * 1024 // 4,
        "token_tp_collective": 1001 * 32 * 1 * 1024 // 2,
        "gdn_token_per_rank": 1001 * 24 * 1024 // 8,
        "attention_token_cp_exchange": 1001 * 8 * 3 * 1024 // 4,
        "tiny_segment_per_layer": 4 * 32 * 1024,  # 128 * 4 = 512
        "level_cp_per_layer": 2 * 32 * 3 * 1024,
        "level_tp_per_layer": 2 * 32 * 1 * 1024,
        "gdn_level": 2 * 24 * 1024,
        "gdn_level_tp": 2 * 24 * 1 * 1024,
    }


def test_one_floor_division_comes_last():
    found = terms(Facts(tp=1, cp=3, layers=1, gdn_layers=0), Features(1, 1, 1, (0,) * 8))
    assert found["token_per_rank"] == 341  # 1024 // 3, not (1 // 3) * 1024
    assert found["token_cp_exchange"] == 682  # 2048 // 3, not 2 * (1024 // 3)


@pytest.mark.parametrize(("cp", "counted"), [(1, 2), (2, 3), (3, 4), (4, 4), (5, 5), (64, 8), (65, 8), (1000, 8)])
def test_tiny_segments_are_those_below_the_smallest_bound_at_or_above_128_cp(cp, counted):
    found = terms(Facts(tp=1, cp=cp, layers=1, gdn_layers=0), Features(1, 9, 1, BELOW))
    assert found["tiny_segment_per_layer"] == counted * 1024


@given(
    st.integers(1, 8), st.integers(1, 16), st.integers(1, 64), st.integers(0, 64), st.integers(1, 10**7),
    st.integers(1, 9), st.lists(st.integers(0, 500), min_size=8, max_size=8),
)  # fmt: skip
def test_the_node_computes_the_same_terms(tp, cp, layers, gdn, packed, depth, below):
    gdn = min(gdn, layers)
    ours = terms(Facts(tp, cp, layers, gdn), Features(packed, 500, depth, tuple(below)))
    node = cost_table.cost_terms(
        NodeFeatures(packed_tokens=packed, segment_count=500, max_depth=depth, segments_below=tuple(below)),
        cost_table.Facts(tp, cp, layers, gdn),
    )
    assert ours == node
    assert all(isinstance(value, int) and value >= 0 for value in ours.values())
    assert len(SEGMENT_BOUNDS) == len(below)
