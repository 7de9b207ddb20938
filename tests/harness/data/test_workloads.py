"""Workloads made from recipes, and recipes that are refused."""

import json
import shutil

import pytest

from harness.errors import InputError
from harness.prefix_tree import PrefixTree
from harness.workloads import SETS_DIR, Corpus, Grpo, _grpo_rows, load_rows, load_workloads, workload

SYNTHETIC = [name for name, recipe in load_workloads().items() if not isinstance(recipe, Corpus)]
TINY = [("cal-grpo-tiny", None), ("cal-hetero-tiny", None), *(("cal-text", group) for group in range(8))]


@pytest.mark.parametrize("name", SYNTHETIC)
def test_rows_depend_on_the_recipe_alone(name):
    assert load_rows(name, None) == load_rows(name, None)


def test_rows_of_another_seed_are_others_of_the_same_shape():
    assert load_rows("cal-grpo-g8", None)[0] != load_rows("cal-grpo-g16", None)[0]
    assert len(load_rows("cal-grpo-g8", None)[0]) == len(load_rows("cal-grpo-g16", None)[0])


def test_a_grpo_tree_has_the_system_prompt_and_each_groups_prompt_as_its_only_nodes():
    tree = PrefixTree.from_rows(load_rows("cal-grpo-tiny", None))
    assert [(node.start, node.end, node.rows) for node in tree.nodes] == [
        (0, 24, (0, 1, 2, 3, 4, 5)),
        (24, 56, (0, 1, 2)),
        (24, 56, (3, 4, 5)),
    ]


def test_even_256_completions_from_256_tokens_differ_at_their_first_token():
    crowd = Grpo(groups=1, rows=256, system=2, prompt=2, completion=3, seed=1, vocabulary=256)
    (node,) = PrefixTree.from_rows(list(_grpo_rows(crowd))).nodes
    assert (node.end, len(node.rows)) == (4, 256)


@pytest.mark.parametrize("name", ["cal-hetero", "cal-hetero2", "cal-hetero3", "cal-hetero-tiny"])
def test_families_share_their_prefix_and_nothing_else(name):
    recipe = workload(name)
    tree = PrefixTree.from_rows(load_rows(name, None))
    assert [(node.start, node.end, len(node.rows)) for node in tree.nodes] == [
        (0, prefix, len(completions)) for prefix, completions in recipe.families
    ]


@pytest.mark.parametrize("name", SYNTHETIC)
def test_every_token_is_within_the_recipes_vocabulary(name):
    tokens = {token for row in load_rows(name, None) for token in row}
    assert min(tokens) >= 0
    assert max(tokens) < workload(name).vocabulary


@pytest.mark.parametrize(("name", "group"), TINY)
def test_cpu_workloads_are_small_and_fit_a_vocabulary_of_512(name, group):
    rows = load_rows(name, group)
    assert max(token for row in rows for token in row) < 512
    assert 150 <= sum(len(row) for row in rows) <= 800


def test_an_unknown_workload_lists_those_that_exist():
    with pytest.raises(InputError) as refused:
        load_rows("cal-nothing", None)
    assert "cal-nothing" in refused.value.cause
    assert all(name in refused.value.remedy for name in ("cal-grpo-g8", "cal-hetero3", "cal-text"))


def test_a_synthetic_workload_refuses_a_group():
    with pytest.raises(InputError, match="synthetic and has no group 1"):
        load_rows("cal-hetero", 1)


@pytest.mark.parametrize(("group", "cause"), [(None, "needs a group"), (8, "no group 8"), (-1, "no group -1")])
def test_a_corpus_workload_needs_one_of_its_groups(group, cause):
    with pytest.raises(InputError, match=cause) as refused:
        load_rows("cal-text", group)
    assert "0 to 7" in refused.value.remedy


def grpo(**changed):
    return {"kind": "grpo", "shape": [2, 2, 4, 4, 4], "seed": 1, "vocabulary": 512} | changed


def families(**changed):
    recipe = {"kind": "families", "families": [[4, [1, 2]]], "singles": [3], "seed": 1, "vocabulary": 512}
    return recipe | changed


def corpus(**changed):
    recipe = {"kind": "corpus", "corpus": "c", "private": False, "groups": 8, "sha256": "0" * 64}
    return recipe | changed


@pytest.mark.parametrize(
    ("recipe", "place"),
    [
        (grpo(shape=[2, 2, 4, 4]), "workloads.w.shape"),
        (grpo(shape=[2, 2, 0, 4, 4]), "workloads.w.shape[2]"),
        (grpo(shape=[2, 257, 4, 4, 4]), "workloads.w.shape"),
        (grpo(seed="1"), "workloads.w.seed"),
        (grpo(vocabulary=500), "workloads.w.vocabulary"),
        (grpo(extra=1), "'extra'"),
        (families(families=[[4]]), "workloads.w.families[0]"),
        (families(families=[[4, [0]]]), "workloads.w.families[0][1][0]"),
        (families(singles=[True]), "workloads.w.singles[0]"),
        (corpus(private="no"), "workloads.w.private"),
        (corpus(sha256=None), "workloads.w.sha256"),
        (corpus(private=True), "workloads.w.sha256"),
        ({"kind": "poem"}, "workloads.w.kind"),
        ({}, "workloads.w.kind"),
        ([], "workloads.w"),
    ],
)
def test_a_damaged_recipe_is_refused_with_file_and_place(recipe, place, tmp_path):
    (tmp_path / "workloads.json").write_text(
        json.dumps({"schema": "orchestrate.workloads/1", "workloads": {"w": recipe}})
    )
    with pytest.raises(InputError) as refused:
        load_workloads(tmp_path)
    assert "workloads.json" in refused.value.cause
    assert place in refused.value.cause


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ('{"schema": "orchestrate.workloads/1", "workloads": {', "line 1 column"),
        ('{"schema": "orchestrate.workloads/2", "workloads": {}}', "at schema"),
        ('{"schema": "orchestrate.workloads/1"}', "no 'workloads'"),
        ('{"schema": "orchestrate.workloads/1", "workloads": {"a": {}, "a": {}}}', "'a' twice"),
        ("[" * 100_000, "nested too deeply"),
        ("9" * 5000, "digits"),
        ("\ud800", "not UTF-8"),
    ],
    ids=["torn", "schema", "member", "twice", "deep", "long integer", "not UTF-8"],
)
def test_a_damaged_file_is_refused_with_file_and_place(text, cause, tmp_path):
    (tmp_path / "workloads.json").write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(InputError) as refused:
        load_workloads(tmp_path)
    assert "workloads.json" in refused.value.cause
    assert cause in refused.value.cause


def test_a_missing_file_is_refused_by_name(tmp_path):
    shutil.copytree(SETS_DIR, tmp_path / "sets")
    (tmp_path / "sets" / "workloads.json").unlink()
    with pytest.raises(InputError, match=r"sets/workloads\.json"):
        load_workloads(tmp_path / "sets")
