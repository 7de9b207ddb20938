"""The candidate families and features that a real campaign recorded on H200s."""

import json

import pytest

from harness.layouts import describe
from harness.prefix_tree import SEGMENT_LENGTH_THRESHOLDS
from harness.workloads import Grpo, load_rows, load_workloads

SYNTHETIC = (
    "cal-grpo-g16",
    "cal-grpo-g4x4",
    "cal-grpo-g8",
    "cal-grpo-g8-long",
    "cal-hetero",
    "cal-hetero2",
    "cal-hetero3",
)


def recorded_features(cell):
    """label -> (max_depth, packed_tokens, segment_count, segments_below)."""
    return {label: (depth, packed, count, below) for label, depth, packed, count, below, *_ in cell["candidates"]}


def made_features(document):
    return {
        one["label"]: (one["max_depth"], one["packed_tokens"], one["segment_count"], one["segments_below"])
        for one in document["candidates"]
    }


def workload_of(key):
    return key.partition("|")[0]


def test_there_are_34_synthetic_cells(recorded_cells):
    assert sum(workload_of(key) in SYNTHETIC for key in recorded_cells) == 34


@pytest.mark.parametrize("workload", SYNTHETIC)
def test_the_family_and_features_of_every_synthetic_cell_are_the_recorded_ones(workload, recorded_cells, harness):
    cells = [cell for key, cell in recorded_cells.items() if workload_of(key) == workload]
    assert cells
    answer = harness("layouts", "--workload", workload, "--json")
    assert answer.returncode == 0, answer.stderr
    document = json.loads(answer.stdout)
    assert document["thresholds"] == list(SEGMENT_LENGTH_THRESHOLDS)
    for cell in cells:
        assert made_features(document) == recorded_features(cell), cell["cell"]


def test_the_recipes_have_the_recorded_shapes_and_seeds(recorded_cells):
    recipes = load_workloads()
    for key, cell in recorded_cells.items():
        if workload_of(key) in SYNTHETIC:
            recipe = recipes[workload_of(key)]
            assert recipe.seed == cell["workload"]["seed"]
            if isinstance(recipe, Grpo):
                shape = [recipe.groups, recipe.rows, recipe.system, recipe.prompt, recipe.completion]
                assert shape == cell["workload"]["shape"]


def chain(name, length):
    """`length` tokens that no other name has."""
    return tuple(hash_of(name) * 100_000 + position for position in range(length))


def hash_of(name):
    return sum(ord(letter) * 31**place for place, letter in enumerate(name))


CORPUS_GROUPS = {
    # Three prefixes, each within the one before: 12267 tokens of four rows, 45 of three, 5 of two.
    0: [
        chain("a", 12267) + chain("tail", 50),
        chain("a", 12267) + chain("b", 45) + chain("tail b", 32),
        chain("a", 12267) + chain("b", 45) + chain("c", 5) + chain("tail c", 125),
        chain("a", 12267) + chain("b", 45) + chain("c", 5) + chain("tail d", 40),
    ],
    # Two prefixes: 494 tokens of three rows, 11150 of two.
    4: [
        chain("a", 494) + chain("tail", 7082),
        chain("a", 494) + chain("b", 11150) + chain("tail b", 300),
        chain("a", 494) + chain("b", 11150) + chain("tail c", 301),
    ],
}
"""Rows of the shape that the recorded features of these private groups determine; only their lengths matter."""


@pytest.mark.parametrize("group", CORPUS_GROUPS)
def test_nested_prefixes_give_the_family_that_was_recorded_for_a_corpus_group(group, recorded_cells):
    made = made_features(describe("cal-ellavox", group, CORPUS_GROUPS[group]))
    cells = [
        cell for key, cell in recorded_cells.items() if workload_of(key) == "cal-ellavox" and key.endswith(f"g{group}")
    ]
    assert cells
    for cell in cells:
        assert made == recorded_features(cell), cell["cell"]


def test_a_description_has_lengths_and_digests_but_no_token():
    rows = load_rows("cal-text", 4)
    document = describe("cal-text", 4, rows)
    lists = [value for value in document.values() if isinstance(value, list) and all(type(one) is int for one in value)]
    assert lists == [list(SEGMENT_LENGTH_THRESHOLDS)]
    assert document["tokens"] == sum(len(row) for row in rows)
