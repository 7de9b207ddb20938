"""Selecting cells on the workstation, which must come out as it does on the node."""

import pytest

from harness import cells as node
from harness.errors import InputError
from orchestrate.cells.cell import parse_key, slug
from orchestrate.cells.cell_set import SETS_DIR, load_cell_sets, select
from orchestrate.errors import SelectionError, UsageError

SELECTIONS = [
    (None, None, {"CELL_SET": "main"}),
    (None, None, {"CELL_SET": "ellavox", "ELLAVOX_GROUPS": "1 4"}),
    (None, None, {"CELL_SET": "ellavox", "ELLAVOX_GROUPS": "4,1"}),
    ("ellavox", "1,4", {}),
    ("ellavox", "1, 4", {"CELL_SET": "main", "ELLAVOX_GROUPS": "2"}),
    ("ellavox", "2", {"CELL_SET": "ellavox", "ELLAVOX_GROUPS": "2"}),
    ("cp2", None, {"ELLAVOX_GROUPS": "0"}),
    ("single", "7", {}),
    ("text", "0 7", {"ELLAVOX_GROUPS": "1"}),
    ("text", None, {"TEXT_GROUPS": "3", "ELLAVOX_GROUPS": ""}),
    ("smoke", None, {}),
]
"""(option --cell-set, option --groups, environment) that select something."""

REFUSED = [
    (None, None, {}, "no cell set was named"),
    ("ellavoks", None, {}, "no cell set 'ellavoks'"),
    ("", None, {}, "no cell set ''"),
    (None, None, {"CELL_SET": ""}, "no cell set ''"),
    ("manifest", None, {}, "no cell set 'manifest'"),
    ("../sets/main", None, {}, "no cell set"),
    ("main,tp2", None, {}, "no cell set"),
    ("ellavox", "8", {}, "has no group 8"),
    ("ellavox", "1 9", {}, "has no group 9"),
    ("ellavox", "", {}, "--groups is empty"),
    ("ellavox", "  ", {}, "--groups is empty"),
    (None, None, {"CELL_SET": "ellavox", "ELLAVOX_GROUPS": ""}, "ELLAVOX_GROUPS is empty"),
    ("ellavox", ",", {}, "not a group number"),
    ("ellavox", "1,,4", {}, "not a group number"),
    ("ellavox", "1,", {}, "not a group number"),
    ("ellavox", "1;4", {}, "'1;4' is not a group number"),
    ("ellavox", "g1", {}, "not a group number"),
    ("ellavox", "-1", {}, "not a group number"),
    ("ellavox", "01", {}, "not a group number"),
    ("ellavox", "1-4", {}, "not a group number"),
    ("ellavox", "٣", {}, "not a group number"),
    ("ellavox", "all", {}, "not a group number"),
    ("ellavox", "1 4 1", {}, "group 1 is named twice"),
    ("main", "1", {}, "--groups selects groups, but set 'main' has none"),
    ("main", "", {}, "--groups selects groups, but set 'main' has none"),
    ("main", None, {"ELLAVOX_GROUPS": "1"}, "ELLAVOX_GROUPS selects groups, but set 'main' has none"),
    (None, None, {"CELL_SET": "smoke", "TEXT_GROUPS": "1"}, "TEXT_GROUPS selects groups, but set 'smoke' has none"),
    ("text", None, {"ELLAVOX_GROUPS": "1"}, "set 'text' takes them from TEXT_GROUPS"),
    ("ellavox", None, {"TEXT_GROUPS": "1"}, "set 'ellavox' takes them from ELLAVOX_GROUPS"),
]


@pytest.mark.parametrize(("cell_set", "groups", "env"), SELECTIONS)
def test_workstation_and_node_select_the_same(cell_set, groups, env):
    here, there = select(cell_set, groups, env), node.resolve(cell_set, groups, env)
    assert [cell.key for cell in here.cells] == [cell.key for cell in there.cells]
    assert here.cells
    assert (here.cell_set.name, here.cell_set.device) == (there.cell_set.name, there.cell_set.device)
    assert (here.groups, here.notes) == (there.groups, there.notes)
    assert [(cell.key, why) for cell, why in here.excluded] == [(cell.key, why) for cell, why in there.excluded]


@pytest.mark.parametrize(("cell_set", "groups", "env", "cause"), REFUSED)
def test_workstation_and_node_refuse_the_same_in_the_same_words(cell_set, groups, env, cause):
    with pytest.raises(SelectionError) as here:
        select(cell_set, groups, env)
    with pytest.raises(InputError) as there:
        node.resolve(cell_set, groups, env)
    assert cause in here.value.cause
    assert (here.value.cause, here.value.remedy) == (there.value.cause, there.value.remedy)
    assert here.value.exit_code == 2


@pytest.mark.parametrize(("cell_set", "groups", "env", "cause"), REFUSED)
def test_every_refusal_lists_what_exists(cell_set, groups, env, cause):
    with pytest.raises(SelectionError) as refused:
        select(cell_set, groups, env)
    sets = "cp2, ellavox, hetero, main, single, smoke, text, tp2"
    with_groups = "cp2 (ELLAVOX_GROUPS), ellavox (ELLAVOX_GROUPS), single (ELLAVOX_GROUPS), text (TEXT_GROUPS)"
    assert any(list_ in refused.value.remedy for list_ in (sets, with_groups, "0 1 2 3 4 5 6 7"))


@pytest.mark.parametrize(("cell_set", "groups", "env"), SELECTIONS)
def test_the_node_environment_of_a_selection_selects_it_again(cell_set, groups, env):
    chosen = select(cell_set, groups, env)
    again = node.resolve(None, None, chosen.node_environment)
    assert [cell.key for cell in again.cells] == [cell.key for cell in chosen.cells]
    assert again.groups == chosen.groups


def test_an_option_wins_over_the_environment_and_it_is_said():
    chosen = select("ellavox", "1,4", {"CELL_SET": "main", "ELLAVOX_GROUPS": "2"})
    assert chosen.groups == (1, 4)
    assert chosen.notes == (
        "--cell-set ellavox wins over CELL_SET='main'",
        "--groups '1,4' wins over ELLAVOX_GROUPS='2'",
    )


def test_nothing_is_said_where_nothing_was_overruled():
    assert select("ellavox", "1,4", {"CELL_SET": "ellavox", "ELLAVOX_GROUPS": "1,4"}).notes == ()


def test_the_variable_of_another_set_is_said_to_be_ignored_where_groups_were_named():
    (note,) = select("text", "3", {"ELLAVOX_GROUPS": "1"}).notes
    assert "ELLAVOX_GROUPS='1' is of no use to set 'text' and was ignored" in note


def test_a_default_counts_only_where_nothing_names_a_set():
    assert select(None, None, {}, default="smoke").cell_set.name == "smoke"
    assert select(None, None, {"CELL_SET": "main"}, default="smoke").cell_set.name == "main"
    assert select("tp2", None, {}, default="smoke").cell_set.name == "tp2"


def test_keys_and_slugs_are_the_nodes_own():
    for cell_set in load_cell_sets():
        for cell in cell_set.cells:
            there = node.parse_key(cell.key)
            assert [getattr(cell, name) for name in there.__slots__] == [
                getattr(there, name) for name in there.__slots__
            ]
            assert (cell.slug, cell.gpus) == (node.slug(cell.key), there.gpus)
            assert slug(cell.key) == cell.slug


@pytest.mark.parametrize("key", ["nonsense", "a|m|L1|tp1|cp1|ep2", "a|m|L1|tp1|cp1\n"])
def test_a_bad_key_is_refused_in_the_nodes_own_words(key):
    with pytest.raises(UsageError) as here:
        parse_key(key)
    with pytest.raises(InputError) as there:
        node.parse_key(key)
    assert (here.value.cause, here.value.remedy) == (there.value.cause, there.value.remedy)


def test_sets_are_read_from_the_harness():
    assert SETS_DIR == node.SETS_DIR
