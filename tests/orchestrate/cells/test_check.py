"""`cells check`: each piece is damaged in turn, and each damage is found and named."""

import json
from pathlib import Path

import pytest

from orchestrate.cells.cell_set import load_cell_sets
from orchestrate.cells.check import check_templates
from orchestrate.commands.cells import disagreements

GRPO = "cal-grpo-g8|Qwen/Qwen3-4B|L36|tp1|cp4"


def edit_json(path, edit):
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))


def sets_file(name, edit):
    return lambda root: edit_json(root / "harness" / "sets" / name, edit)


def text_file(name, old, new, count=1):
    def damage(root):
        text = (root / name).read_text()
        assert old in text, f"{name} has no {old!r}: the damage would do nothing"
        (root / name).write_text(text.replace(old, new, count))

    return damage


def corpus_byte(root):
    path = root / "harness" / "sets" / "corpus" / "cal-text.json"
    path.write_bytes(path.read_bytes().replace(b"summer", b"winter", 1))


def without(keys, key):
    return [one for one in keys if one["key"] != key]


def expected(manifest, name, key):
    (found,) = [one for one in manifest["sets"][name]["cells"] if one["key"] == key]
    return found


SKY, K8S = "sky/cost-calibration.sky.yaml", "k8s/cost-calibration.job.yaml"

DAMAGES = {
    "a set loses a cell": (
        sets_file("main.json", lambda one: one.update(cells=without(one["cells"], GRPO))),
        f"set 'main': expects {GRPO}, which the set does not list",
    ),
    "a set gains a cell": (
        sets_file("main.json", lambda one: one["cells"].append({"key": "cal-grpo-g8|Qwen/Qwen3-4B|L2|tp1|cp4"})),
        "does not expect cal-grpo-g8|Qwen/Qwen3-4B|L2|tp1|cp4",
    ),
    "a set is gone": (lambda root: (root / "harness" / "sets" / "tp2.json").unlink(), "expects set 'tp2'"),
    "a set is damaged": (text_file("harness/sets/hetero.json", "{", ""), "sets/hetero.json at line"),
    "a cell is excluded twice": (
        sets_file("manifest.json", lambda one: one["exclusions"].append(one["exclusions"][0])),
        "excludes cal-ellavox-qwen3",
    ),
    "an exclusion loses its reason": (
        sets_file("manifest.json", lambda one: one["exclusions"][0].update(reason="")),
        "at exclusions[0].reason",
    ),
    "the manifest loses a cell": (
        sets_file(
            "manifest.json", lambda one: one["sets"]["main"].update(cells=without(one["sets"]["main"]["cells"], GRPO))
        ),
        f"does not expect {GRPO}",
    ),
    "the manifest expects a cell twice": (
        sets_file("manifest.json", lambda one: one["sets"]["main"]["cells"].append(one["sets"]["main"]["cells"][0])),
        "a second time",
    ),
    "the manifest loses a set": (
        sets_file("manifest.json", lambda one: one["sets"].pop("single")),
        "does not list set 'single'",
    ),
    "the manifest loses a candidate": (
        sets_file("manifest.json", lambda one: expected(one, "main", GRPO)["candidates"].pop()),
        f"{GRPO}: candidates are no_sharing depth_one uniform_depth_2; the harness makes",
    ),
    "the manifest has a candidate twice": (
        sets_file("manifest.json", lambda one: expected(one, "main", GRPO)["candidates"].append("no_sharing")),
        "distinct candidate labels",
    ),
    "the manifest gives up on candidates": (
        sets_file("manifest.json", lambda one: expected(one, "main", GRPO).update(candidates=None)),
        "candidates are null",
    ),
    "the manifest invents candidates of a private corpus": (
        sets_file("manifest.json", lambda one: one["sets"]["ellavox"]["cells"][2].update(candidates=["no_sharing"])),
        "g2: lists candidates of a private corpus",
    ),
    "a recipe changes its shape": (
        text_file("harness/sets/workloads.json", "[2, 8, 1023, 2048, 255]", "[2, 8, 1024, 2048, 255]"),
        "the harness makes no_sharing depth_one uniform_depth_2 minimum_effective_span_1025",
    ),
    "a recipe is gone": (
        sets_file("workloads.json", lambda one: one["workloads"].pop("cal-hetero3")),
        "there is no workload 'cal-hetero3'",
    ),
    "a corpus has fewer groups": (
        sets_file("workloads.json", lambda one: one["workloads"]["cal-ellavox"].update(groups=7)),
        "workload 'cal-ellavox' has no group 7",
    ),
    "a corpus cell loses its group": (
        sets_file("smoke.json", lambda one: one["cells"][2].update(key="cal-text|tiny-hybrid|L4|tp1|cp4")),
        "workload 'cal-text' needs a group",
    ),
    "a synthetic cell gains a group": (
        sets_file("smoke.json", lambda one: one["cells"][0].update(key="cal-grpo-tiny|tiny-hybrid|L4|tp1|cp4|g0")),
        "workload 'cal-grpo-tiny' has no group 0",
    ),
    "a byte of the corpus flips": (corpus_byte, "corpus/cal-text.json: its SHA-256 is"),
    "the sky template forgets CELL_SET": (text_file(SKY, "\n  CELL_SET:", "\n  CELLS:"), "does not hand CELL_SET"),
    "the sky template forgets RUN_ID": (text_file(SKY, "\n  RUN_ID:", "\n  RUN:"), "does not hand RUN_ID"),
    "the sky template forgets REPEAT": (text_file(SKY, "\n  REPEAT:", "\n  REPEATS:"), "does not hand REPEAT"),
    "the sky template forgets the group variable": (
        text_file(SKY, "ELLAVOX_GROUPS", "GROUPS", -1),
        "does not name the group variable ELLAVOX_GROUPS",
    ),
    "the sky template presets a group": (
        text_file(SKY, "\nenvs:", "\nenvs:\n  ELLAVOX_GROUPS: '1'"),
        "presets ELLAVOX_GROUPS",
    ),
    "the sky template asks for two GPUs": (
        text_file(SKY, "H200:4", "H200:2"),
        "asks for 2 GPUs, but the largest cell of set 'ellavox' takes 4",
    ),
    "the Job forgets RUN_ID": (text_file(K8S, "name: RUN_ID", "name: RUN"), "does not hand RUN_ID"),
    "the Job forgets the group variable": (
        text_file(K8S, "ELLAVOX_GROUPS", "GROUPS", -1),
        "does not name the group variable ELLAVOX_GROUPS",
    ),
    "the Job asks for one GPU": (text_file(K8S, "nvidia.com/gpu: 4", "nvidia.com/gpu: 1"), "asks for 1 GPUs"),
    "the Job is no YAML": (text_file(K8S, "spec:", "spec: ["), "not YAML"),
    "the Job has no containers": (text_file(K8S, "containers:", "vessels:"), "does not hand CELL_SET"),
    "the sky template is a list": (lambda root: (root / SKY).write_text("- a\n"), "holds ['a'] where a task"),
    "the sky template is null": (lambda root: (root / SKY).write_text("null\n"), "holds None where a task"),
    "the sky template is something else": (
        lambda root: (root / SKY).write_text("a: 1\n"),
        "is neither a SkyPilot task",
    ),
    "the sky template is empty": (lambda root: (root / SKY).write_text(""), f"{SKY}: is empty"),
    "the Job is something else": (lambda root: (root / K8S).write_text("a: 1\n"), "nor a Kubernetes manifest"),
    "the sky template is of another kind": (lambda root: (root / SKY).write_text("kind: Role\n"), "runs no cells"),
    "the sky template is not UTF-8": (lambda root: (root / SKY).write_bytes(b"# \xff\n"), "not UTF-8 at byte 2"),
    "the sky template names no set": (
        text_file(SKY, "CELL_SET: smoke", "CELL_SET: smoky"),
        "'smoky', which is no cell",
    ),
    "the Job names no set": (text_file(K8S, "value: smoke", "value: smoky"), "'smoky', which is no cell set"),
    "the sky envs are a list": (text_file(SKY, "\nenvs:", "\nenvs: [1]\nenvz:"), "does not hand CELL_SET"),
    "an exclusion spells its key in another way": (
        sets_file("manifest.json", lambda one: one["exclusions"].append({"key": f"{GRPO}|ep1", "reason": "no"})),
        f"which no cell is called: write {GRPO}",
    ),
    "an exclusion has a blank reason": (
        sets_file("manifest.json", lambda one: one["exclusions"].append({"key": GRPO, "reason": " "})),
        f"excludes {GRPO} for a blank reason",
    ),
    "every cell of a set is excluded": (
        sets_file(
            "manifest.json",
            lambda one: one["exclusions"].extend(
                {"key": e["key"], "reason": "no"} for e in one["sets"]["text"]["cells"]
            ),
        ),
        "excludes every cell of set 'text'",
    ),
    "a template folder is empty": (lambda root: (root / SKY).unlink(), "has no template"),
}


def test_the_pieces_agree(checkout):
    assert disagreements(root=checkout) == []


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_is_found_and_named(name, checkout):
    damage, words = DAMAGES[name]
    damage(checkout)
    found = disagreements(root=checkout)
    assert any(words in f"{one.place}: {one.what}" for one in found), found


def test_a_check_of_one_set_says_nothing_of_the_others(checkout):
    sets_file("main.json", lambda one: one.update(cells=without(one["cells"], GRPO)))(checkout)
    assert disagreements(only=["tp2"], root=checkout) == []
    assert len(disagreements(only=["main"], root=checkout)) == 1


def test_a_template_may_name_its_accelerators_as_a_map():
    sets = [one for one in load_cell_sets() if one.name == "ellavox"]
    text = (
        "resources: {{accelerators: {{H200: {count}}}}}\n"
        "run: 'true'\n"
        "envs: {{CELL_SET: a, RUN_ID: b, REPEAT: '8'}}  # ELLAVOX_GROUPS"
    )
    assert check_templates({"one": text.format(count=4)}, sets, "a") == []
    (found,) = check_templates({"one": text.format(count=3)}, sets, "a")
    assert "asks for 3 GPUs" in found.what


def test_documents_that_run_no_cells_are_not_looked_at():
    others = "---\nkind: Role\n---\nkind: ServiceAccount\n"
    job = (Path(__file__).parents[3] / K8S).read_text()
    assert check_templates({"both": job + others}, load_cell_sets(), ["smoke"]) == []
