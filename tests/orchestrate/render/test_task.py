"""A cell set as a SkyPilot task."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import pytest
import yaml

from orchestrate.errors import RenderError, UsageError
from orchestrate.render import Backend, check_task, load_template, parse_image, template_path
from orchestrate.render.schema import SKYPILOT_VERSION

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "render"
DIGEST = "a/b@sha256:" + "0" * 64

needs_skypilot = pytest.mark.skipif(
    not list(metadata.distributions(name="skypilot")), reason="SkyPilot is not installed"
)


def test_a_task_asks_for_four_h200_and_goes_down_without_us(task):
    tree = task(deadline_s=5400)
    assert tree["resources"]["accelerators"] == "H200:4"
    assert tree["resources"]["autostop"] == {"idle_minutes": 90, "down": True, "wait_for": "none"}
    assert tree["config"]["slurm"]["sbatch_options"]["time"] == 90
    assert tree["config"]["kubernetes"]["pod_config"]["spec"]["activeDeadlineSeconds"] == 5400


def test_the_payload_ends_before_every_cap(task):
    envs = task(deadline_s=5400, reserve_s=900)["envs"]
    assert int(envs["JOB_LIMIT_S"]) == 4500


def test_a_minute_begun_counts_whole(task):
    assert task(deadline_s=5401)["resources"]["autostop"]["idle_minutes"] == 91


def test_the_node_gets_the_selection(task):
    envs = task(group_variable="ELLAVOX_GROUPS", groups=("1", "4"), repeat=3)["envs"]
    assert {name: envs[name] for name in ("CELL_SET", "ELLAVOX_GROUPS", "RUN_ID", "REPEAT")} == {
        "CELL_SET": "ellavox",
        "ELLAVOX_GROUPS": "1 4",
        "RUN_ID": "r1",
        "REPEAT": "3",
    }


def test_a_race_is_asked_for_by_name_and_no_race_is_no_variable(task):
    assert task(schedule="racing")["envs"]["SCHEDULE"] == "racing"
    assert "SCHEDULE" not in task()["envs"]


def test_without_a_group_selection_the_variable_is_absent(task):
    # The node refuses an empty selection, and so an empty variable.
    assert "ELLAVOX_GROUPS" not in task(group_variable="ELLAVOX_GROUPS")["envs"]


def test_run_owner_token_and_expiry_are_on_every_provider(task):
    tree = task(owner="Ann B", token="f" * 32, expires_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    labels = tree["config"]["kubernetes"]["custom_metadata"]["labels"]
    assert labels["orchestrate/token"] == tree["resources"]["labels"]["orchestrate-token"] == "f" * 32
    assert labels["orchestrate/expires"] == "20260102T030405Z"
    assert labels["orchestrate/owner"].startswith("Ann-B-")
    assert labels["orchestrate/run-id"] == "r1"


def test_an_image_is_a_docker_image_to_skypilot(task):
    assert task(image=parse_image(DIGEST))["resources"]["image_id"] == f"docker:{DIGEST}"
    assert "image_id" not in task()["resources"]


def test_an_installed_harness_is_mounted_instead_of_a_workdir(task):
    tree = task(harness_mount="/site-packages/harness")
    assert "workdir" not in tree
    assert tree["file_mounts"] == {"~/orchestrate-harness/harness": "/site-packages/harness"}


@pytest.mark.parametrize("infra", ["slurm/lab/gpu", "k8s/my-context", "aws/us-east-1", "*"])
def test_an_infra_of_skypilot_is_accepted(task, infra):
    assert task(infra=infra)["resources"]["infra"] == infra


def test_an_unknown_infra_is_an_error_that_names_document_path_and_remedy(task):
    with pytest.raises(RenderError, match=r"task orchestrate-ellavox-r1: at resources\.infra: 'mars'") as caught:
        task(infra="mars")
    assert "SkyPilot 0.14.1" in caught.value.remedy


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("resourcs",), {}),
        (("resources", "acelerators"), "H200:4"),
        (("resources", "autostop", "wait_for"), "ever"),
        (("resources", "autostop", "idle_minutes"), "240"),
        (("resources", "autostop", "downn"), True),
        (("envs", "1BAD"), "x"),
        (("envs", "REPEAT"), 8),
        (("config", "slrum"), {}),
        (("config", "slurm", "sbatch_options", "time"), ["240"]),
        (("run",), ["a"]),
        (("num_nodes",), "1"),
    ],
)
def test_a_misspelt_field_or_wrong_type_is_found(task, path, value):
    tree = task()
    check_task(tree, "x")
    spot = tree
    for part in path[:-1]:
        spot = spot[part]
    spot[path[-1]] = value
    with pytest.raises(RenderError, match=r"^x: at "):
        check_task(tree, "x")


def test_a_field_of_another_backend_is_refused(task):
    with pytest.raises(UsageError, match="--namespace"):
        task(namespace="a")


def test_the_template_is_a_valid_task_by_itself():
    check_task(load_template(Backend.SKY), "template")


def test_the_template_installs_what_the_harness_needs_as_the_project_is_tested_with_it():
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["harness"]
    names = [requirement.partition(">")[0] for requirement in needed]
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.partition("==")[0] in names]
    assert len(pins) == len(names)
    assert sorted(load_template(Backend.SKY)["envs"]["REQUIREMENTS"].split()) == sorted(pins)


def test_the_template_declares_no_group_variable():
    # `--env ELLAVOX_GROUPS=...` adds it; declared empty, it would be an empty selection for every other set.
    assert not [name for name in load_template(Backend.SKY)["envs"] if name.endswith("_GROUPS")]


@needs_skypilot
def test_the_shipped_schema_is_the_one_of_the_pinned_skypilot(tmp_path):
    exporter = Path(__file__).with_name("export_skypilot_schema.py")
    assert metadata.version("skypilot") == SKYPILOT_VERSION, "export the schema of the new SkyPilot, and pin it"
    answer = subprocess.run(
        [sys.executable, exporter, "--check"], capture_output=True, text=True, env=away(tmp_path), check=False
    )
    assert answer.returncode == 0, answer.stderr


PARSE = """
import json, sys, yaml
import sky
for path in sys.argv[1:]:
    config = yaml.safe_load(open(path))
    envs = dict(config["envs"])
    task = sky.Task.from_yaml_config(config)
    task.validate_name()
    (resources,) = task.resources
    assert resources.autostop_config.down and resources.autostop_config.wait_for.value == "none", path
    assert dict(task.envs) == envs, path
    print(json.dumps({"name": task.name, "accelerators": resources.accelerators, "envs": dict(task.envs)}))
"""


@needs_skypilot
def test_skypilot_parses_the_template_and_every_golden_task(tmp_path):
    tasks = [template_path(Backend.SKY), *sorted(GOLDEN.glob("*.sky.yaml"))]
    assert len(tasks) > 5
    answers = parsed_by_skypilot(tasks, tmp_path)
    assert [answer["accelerators"] for answer in answers] == [{"H200": 4}] * len(tasks)


@needs_skypilot
def test_the_template_takes_its_envs_from_the_command_line_of_sky(tmp_path):
    config = yaml.safe_load(template_path(Backend.SKY).read_text())
    # What `sky launch --env` does before it makes the task.
    config["envs"] |= {"RUN_ID": "x", "CELL_SET": "ellavox", "ELLAVOX_GROUPS": "1 4"}
    path = tmp_path / "task.yaml"
    path.write_text(yaml.safe_dump(config))
    (answer,) = parsed_by_skypilot([path], tmp_path)
    assert answer["envs"]["ELLAVOX_GROUPS"] == "1 4"


def away(home):
    """An environment in which SkyPilot leaves the user's own files alone."""
    return {**os.environ, "HOME": str(home), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}


def parsed_by_skypilot(paths, home):
    command = [sys.executable, "-c", PARSE, *map(str, paths)]
    answer = subprocess.run(command, capture_output=True, text=True, env=away(home), cwd=ROOT, check=False)
    assert answer.returncode == 0, answer.stderr
    return [json.loads(line) for line in answer.stdout.splitlines() if line.startswith("{")]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize("script", ["setup", "run"])
def test_the_scripts_of_the_template_are_bash(script):
    subprocess.run(["bash", "-n", "-c", load_template(Backend.SKY)[script]], check=True)
