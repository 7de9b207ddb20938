import json
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cost_table import Facts, automatic, load_tables
from harness.prefix_tree import Features

SHARED = Path(__file__).parents[4] / "shared" / "data"
H200 = {"device_name": "NVIDIA H200", "hidden": 2560, "dtype": "torch.bfloat16"}
CPU = {"device_name": "cpu", "hidden": 32, "dtype": "torch.float32"}
FAMILY = st.lists(
    st.builds(
        Features,
        packed_tokens=st.integers(1, 10_000),
        segment_count=st.integers(1, 50),
        max_depth=st.integers(1, 6),
        segments_below=st.lists(st.integers(0, 50), min_size=8, max_size=8).map(lambda each: tuple(sorted(each))),
    ),
    min_size=1,
)
FACTS = Facts(tp=1, cp=4, layers=32, gdn_layers=24)


@pytest.fixture(scope="module")
def recorded_cells():
    path = SHARED / "h200_dense_h2560_cells.jsonl"
    if not path.exists():
        pytest.skip(f"the recorded cells are not here: {path}")
    return [json.loads(line) for line in path.read_text().splitlines()]


def features_of(candidate):
    _, max_depth, packed_tokens, segment_count, segments_below, *_ = candidate
    return Features(packed_tokens, segment_count, max_depth, tuple(segments_below))


def facts_of(cell):
    facts = cell["facts"]
    return Facts(int(facts["tp"]), int(facts["cp"]), int(facts["layers"]), int(facts["gdn_layers"]))


def test_on_an_h200_the_pick_has_the_published_regret_on_every_recorded_cell(recorded_cells):
    published = json.loads((SHARED / "h200_dense_h2560_published.json").read_text())["metrics"]["all"]
    regrets = []
    for cell in recorded_cells:
        family = [features_of(each) for each in cell["candidates"]]
        picked = automatic(family, facts_of(cell), load_tables(), **H200)
        assert picked.rule == "table dense-h2560-h200-bf16"
        times = [candidate[5] for candidate in cell["candidates"]]
        regrets.append((times[picked.index] - min(times)) / min(times) * 100)
    assert max(regrets) == published["max_regret_pct"]
    assert sorted(regrets)[len(regrets) // 2] == published["median_regret_pct"]


def test_the_table_orders_as_many_recorded_pairs_as_published(recorded_cells):
    published = json.loads((SHARED / "h200_dense_h2560_published.json").read_text())["metrics"]["all"]
    table = load_tables()[0]
    ordered = right = 0
    for cell in recorded_cells:
        for one, other in combinations(cell["candidates"], 2):
            slow, fast = sorted((one, other), key=lambda each: -each[5])
            if slow[5] <= fast[5] * 1.03:
                continue
            ordered += 1
            facts = facts_of(cell)
            right += table.cost(features_of(slow), facts) > table.cost(features_of(fast), facts)
    assert ordered == published["ordered_pairs"]
    assert right / ordered == published["pairwise_accuracy"]


@given(FAMILY)
def test_outside_every_table_the_fewest_tokens_win_then_the_fewest_segments(family):
    picked = automatic(family, FACTS, load_tables(), **CPU)
    assert picked.rule == "fewest-tokens"
    best = family[picked.index]
    assert all((best.packed_tokens, best.segment_count) <= (each.packed_tokens, each.segment_count) for each in family)


@given(FAMILY)
def test_a_table_picks_a_layout_that_no_other_undercuts(family):
    table = load_tables()[0]
    picked = automatic(family, FACTS, [table], **H200)
    assert table.cost(family[picked.index], FACTS) == min(table.cost(each, FACTS) for each in family)


@pytest.mark.parametrize("elsewhere", [{"device_name": "NVIDIA H100"}, {"hidden": 4096}, {"dtype": "torch.float32"}])
def test_a_table_is_not_used_outside_of_what_it_was_measured_on(elsewhere):
    family = [Features(10, 3, 2, (3,) * 8), Features(9, 9, 5, (9,) * 8)]
    assert automatic(family, FACTS, load_tables(), **H200 | elsewhere).rule == "fewest-tokens"
