"""The node's own cells: keys, sets, and the selection that its environment makes."""

import json
import shutil
import subprocess
import sys

import pytest

from harness import __main__ as entry_points
from harness.cells import load_cell_set, load_exclusions, parse_key, resolve, set_names, slug
from harness.errors import InputError
from harness.workloads import SETS_DIR

H200_SETS = {"main": 7, "hetero": 3, "ellavox": 8, "tp2": 7, "cp2": 15, "single": 18}


def test_the_six_h200_sets_are_exactly_the_58_recorded_cells(recorded_cells):
    keys = [cell.key for name in H200_SETS for cell in load_cell_set(name).cells]
    assert len(keys) == 58
    assert set(keys) == set(recorded_cells)


def test_the_sets_have_their_device_shape_and_size():
    shapes = {"main": (1, 4), "hetero": (1, 4), "ellavox": (1, 4), "tp2": (2, 1), "cp2": (1, 2), "single": (1, 1)}
    for name, size in H200_SETS.items():
        cell_set = load_cell_set(name)
        assert cell_set.device == "h200"
        assert len(cell_set.cells) == size
        assert {(cell.tp, cell.cp) for cell in cell_set.cells} == {shapes[name]}
    assert set(set_names()) == {*H200_SETS, "smoke", "text"}
    assert {load_cell_set(name).device for name in ("smoke", "text")} == {"cpu"}


def test_smoke_has_a_grpo_shape_a_heterogeneous_one_and_a_corpus_group_at_cp4_and_a_grpo_shape_at_tp2():
    cells = [(cell.workload, cell.tp, cell.cp, cell.group) for cell in load_cell_set("smoke").cells]
    assert cells == [
        ("cal-grpo-tiny", 1, 4, None),
        ("cal-hetero-tiny", 1, 4, None),
        ("cal-text", 1, 4, 0),
        ("cal-grpo-tiny", 2, 1, None),
    ]


def test_the_published_exclusions_are_excluded_with_a_reason(recorded_cells):
    path = SETS_DIR.parents[2] / "shared" / "data" / "h200_dense_h2560_published.json"
    published = json.loads(path.read_text())["fit_arguments"]["exclude_cells"]
    exclusions = load_exclusions()
    assert set(exclusions) == set(published)
    assert len(exclusions) == 16
    assert all(len(reason) > 20 for reason in exclusions.values())


def test_a_key_says_all_there_is_to_a_cell():
    cell = parse_key("cal-ellavox|Qwen/Qwen3.5-4B|L32|tp2|cp4|g0")
    assert (cell.workload, cell.model, cell.layers) == ("cal-ellavox", "Qwen/Qwen3.5-4B", 32)
    assert (cell.tp, cell.cp, cell.ep, cell.group, cell.gpus) == (2, 4, 1, 0, 8)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "a",
        "a|m|L1|tp1",
        "a|m|L0|tp1|cp1",
        "a|m|L01|tp1|cp1",
        "a|m|L1|cp1|tp1",
        "a|m|L1|tp1|cp1|g-1",
        "a|m|L1|tp1|cp1|g1|ep1",
        "a|m|L1|tp1|cp1 ",
        "a|m|L1|tp1|cp1\n",
        "A|m|L1|tp1|cp1",
        "a||L1|tp1|cp1",
        "a|../m|L1|tp1|cp1",
        "a|m|L1|tp1|cp٣",
    ],
)
def test_what_is_no_key_is_refused(key):
    with pytest.raises(InputError, match="not a cell key"):
        parse_key(key)


def test_expert_parallelism_above_one_is_refused():
    assert parse_key("a|m|L1|tp1|cp1|ep1").gpus == 1
    with pytest.raises(InputError, match="asks for EP 2"):
        parse_key("a|m|L1|tp1|cp1|ep2")


def test_slugs_are_safe_file_names_and_never_meet():
    keys = ["a|m.1|L1|tp1|cp1", "a|m-1|L1|tp1|cp1", "a-m.1|L1|tp1|cp1", "a|m/1|L1|tp1|cp1"]
    slugs = [slug(key) for key in keys]
    assert len(set(slugs)) == len(keys)
    assert slugs[0].startswith("a-m.1-L1-tp1-cp1-")
    assert all(set(one) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-") for one in slugs)


@pytest.mark.parametrize("text", ["1 4", "1,4", "1, 4", " 4 , 1 ", "4\n1"])
def test_the_environment_alone_selects_two_cells(text):
    selection = resolve(None, None, {"CELL_SET": "ellavox", "ELLAVOX_GROUPS": text})
    assert [cell.key for cell in selection.cells] == [
        "cal-ellavox|Qwen/Qwen3.5-4B|L32|tp1|cp4|g1",
        "cal-ellavox|Qwen/Qwen3.5-4B|L32|tp1|cp4|g4",
    ]
    assert selection.groups == (1, 4)


def test_without_a_group_selection_all_cells_stand():
    assert len(resolve(None, None, {"CELL_SET": "single"}).cells) == 18


@pytest.mark.parametrize(("name", "without_group"), [("cp2", 7), ("single", 10)])
def test_groups_filter_the_corpus_cells_and_the_others_stay_and_it_says_so(name, without_group):
    selection = resolve(name, "3", {})
    assert [cell.group for cell in selection.cells].count(None) == without_group
    assert [cell.group for cell in selection.cells if cell.group is not None] == [3]
    assert any(f"the {without_group} cells of set '{name}' without a group stay" in note for note in selection.notes)


def copied_sets(tmp_path):
    shutil.copytree(SETS_DIR, tmp_path / "sets")
    return tmp_path / "sets"


def change(path, edit):
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))


def test_an_excluded_cell_is_not_run_and_its_reason_is_kept(tmp_path):
    sets = copied_sets(tmp_path)
    key = "cal-ellavox|Qwen/Qwen3.5-4B|L32|tp1|cp4|g4"
    change(sets / "manifest.json", lambda one: one["exclusions"].append({"key": key, "reason": "its rows are damaged"}))
    selection = resolve("ellavox", "1 4", {}, sets_dir=sets)
    assert [cell.group for cell in selection.cells] == [1]
    assert [(cell.key, reason) for cell, reason in selection.excluded] == [(key, "its rows are damaged")]
    with pytest.raises(InputError, match="every selected cell of set 'ellavox' is excluded"):
        resolve("ellavox", "4", {}, sets_dir=sets)


@pytest.mark.parametrize(
    ("edit", "place"),
    [
        (lambda one: one.update(schema="orchestrate.cell-set/2"), "at schema"),
        (lambda one: one.update(name="other"), "at name"),
        (lambda one: one.update(device="h100"), "at device"),
        (lambda one: one.update(device=None), "at device"),
        (lambda one: one.update(cells=[]), "at cells"),
        (lambda one: one.update(cells={}), "at cells"),
        (lambda one: one["cells"][2].update(key="nonsense"), "at cells[2].key"),
        (lambda one: one["cells"][2].update(key=7), "at cells[2].key"),
        (lambda one: one["cells"][2].update(key="a|m|L1|tp1|cp1|ep2|g2"), "at cells[2].key: cell"),
        (lambda one: one["cells"][2].update(one["cells"][1]), "at cells[2].key: lists"),
        (
            lambda one: one["cells"][2].update(key=one["cells"][1]["key"].replace("|g1", "|ep1|g1")),
            "at cells[2].key: lists",
        ),
        (lambda one: one["cells"][2].update(note=""), "at cells[2]"),
        (lambda one: one.update(group_variable="groups"), "at group_variable"),
        (lambda one: one.update(group_variable=""), "at group_variable"),
        (lambda one: one.update(cells=[{"key": "a|m|L1|tp1|cp1"}]), "at group_variable"),
        (lambda one: one.pop("device"), "has no 'device'"),
        (lambda one: one.update(colour="red"), "'colour'"),
    ],
)
def test_a_damaged_set_is_refused_with_file_and_place(edit, place, tmp_path):
    sets = copied_sets(tmp_path)
    change(sets / "text.json", edit)
    with pytest.raises(InputError) as refused:
        load_cell_set("text", sets)
    assert "sets/text.json" in refused.value.cause
    assert place in refused.value.cause


@pytest.mark.parametrize(
    ("edit", "place"),
    [
        (lambda one: one.update(schema=None), "at schema"),
        (lambda one: one["exclusions"].append(one["exclusions"][0]), "at exclusions[16].key"),
        (lambda one: one["exclusions"][3].update(reason=""), "at exclusions[3].reason"),
        (lambda one: one["exclusions"][3].pop("reason"), "at exclusions[3]"),
    ],
)
def test_a_damaged_manifest_is_refused_with_file_and_place(edit, place, tmp_path):
    sets = copied_sets(tmp_path)
    change(sets / "manifest.json", edit)
    with pytest.raises(InputError) as refused:
        load_exclusions(sets)
    assert "sets/manifest.json" in refused.value.cause
    assert place in refused.value.cause


def test_the_cells_entry_point_prints_what_the_environment_selects(harness):
    answer = harness("cells", "--json", env={"CELL_SET": "text", "TEXT_GROUPS": "2"})
    assert json.loads(answer.stdout)["cells"] == ["cal-text|tiny-hybrid|L4|tp1|cp4|g2"]


def test_an_option_wins_and_the_entry_point_says_so(harness):
    answer = harness("cells", "--cell-set", "text", "--groups", "1", env={"CELL_SET": "main", "TEXT_GROUPS": "2"})
    assert answer.stdout.splitlines() == ["cal-text|tiny-hybrid|L4|tp1|cp4|g1"]
    assert "--cell-set text wins over CELL_SET='main'" in answer.stderr
    assert "--groups '1' wins over TEXT_GROUPS='2'" in answer.stderr


def test_an_empty_selection_runs_nothing_and_exits_2(harness):
    answer = harness("cells", env={"CELL_SET": "ellavox", "ELLAVOX_GROUPS": ""})
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "error: ELLAVOX_GROUPS is empty" in answer.stderr
    assert "remedy: " in answer.stderr
    assert "0 1 2 3 4 5 6 7" in answer.stderr


@pytest.mark.parametrize("argv", [["layouts", "--all"], ["cells", "--cell-set", "smoke"]])
def test_layouts_and_cell_selection_need_no_torch(argv):
    without_torch = (
        "import sys; sys.modules['torch'] = None; from harness.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", without_torch, *argv],
        cwd=SETS_DIR.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr


def test_an_unknown_entry_point_lists_those_that_exist(harness):
    answer = harness("calibrat")
    assert answer.returncode == 2
    assert all(name in answer.stderr for name in entry_points.ENTRY_POINTS)


def test_help_names_every_entry_point_and_no_arguments_are_an_error(harness):
    assert all(name in harness("--help").stdout for name in entry_points.ENTRY_POINTS)
    assert harness().returncode == 2


def test_cell_keys_narrow_a_selection_to_exactly_the_named_cells_in_the_order_of_the_set():
    whole = resolve(None, None, {"CELL_SET": "smoke"})
    keys = [cell.key for cell in whole.cells]
    wanted = [keys[2], keys[0]]
    narrowed = resolve(None, None, {"CELL_SET": "smoke", "CELL_KEYS": " ".join(wanted)})
    assert [cell.key for cell in narrowed.cells] == [keys[0], keys[2]]
    assert any("CELL_KEYS leaves 2" in note for note in narrowed.notes)


def test_cell_keys_that_name_nothing_something_else_or_a_cell_twice_are_refused():
    key = resolve(None, None, {"CELL_SET": "smoke"}).cells[0].key
    for text, cause in ((" ", "selects nothing"), (f"{key} {key}", "twice"), ("main", "is not selected")):
        with pytest.raises(InputError, match=cause):
            resolve(None, None, {"CELL_SET": "smoke", "CELL_KEYS": text})


def test_cell_keys_can_not_reach_beyond_the_selected_groups():
    cells = load_cell_set("text").cells
    outside = next(cell.key for cell in cells if cell.group == 4)
    with pytest.raises(InputError, match="is not selected"):
        resolve(None, None, {"CELL_SET": "text", "TEXT_GROUPS": "1", "CELL_KEYS": outside})
