"""The two qualifications that this repository ships: what they name is there; without GPUs one can not pass."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from harness.__main__ import ENTRY_POINTS
from orchestrate.qualify.group_file import parse_qualification
from orchestrate.qualify.judgement import judge_groups
from orchestrate.verdict import Verdict

ROOT = Path(__file__).parents[3]
FOR_GPUS = ROOT / "qualification-h200.yaml"


def shipped(path):
    return parse_qualification(path.read_bytes(), path.name)


def test_the_one_for_a_cpu_has_the_five_groups():
    found = shipped(ROOT / "qualification.yaml")
    assert [group.name for group in found.groups] == ["unit", "numerics-cp", "numerics-tp", "admission", "trace"]
    paths = [word for group in found.groups for word in group.command if word.startswith("tests/")]
    assert all((ROOT / path).is_dir() for path in paths)


def test_the_one_for_four_h200s_names_what_is_there_and_every_group_needs_gpus():
    found = shipped(FOR_GPUS)
    assert (found.device, found.slots) == ("h200", 4)
    assert all(1 <= group.gpus <= 4 for group in found.groups)
    for group in found.groups:
        words = group.command
        entries = [words[i + 2] for i, word in enumerate(words[:-2]) if (word, words[i + 1]) == ("-m", "harness")]
        scripts = [word for word in words if word.startswith("tests/gpu/")]
        assert entries or scripts, words
        assert set(entries) <= ENTRY_POINTS.keys()
        assert all((ROOT / script).is_file() for script in scripts)


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="what a machine without GPUs does")
def test_on_a_node_without_gpus_no_group_of_it_runs_or_passes(tmp_path):
    data = io.BytesIO()
    tarfile.open(fileobj=data, mode="w").close()
    (tmp_path / "source.tar").write_bytes(data.getvalue())
    found = shipped(FOR_GPUS)
    plan = found.for_node("test", hashlib.sha256(data.getvalue()).hexdigest())
    (tmp_path / "groups.json").write_text(json.dumps(plan))
    files = ["--plan", tmp_path / "groups.json", "--archive", tmp_path / "source.tar", "--source", tmp_path / "work"]
    command = [sys.executable, "-m", "harness", "qualify", *files, "--evidence", tmp_path / "evidence"]
    assert subprocess.run(command, check=False, capture_output=True, cwd=ROOT).returncode == 5
    node = json.loads((tmp_path / "evidence" / "node.json").read_text())
    judged = judge_groups([(group.name, group.report) for group in found.groups], node, {})
    assert {group.verdict for group in judged} == {Verdict.INFRASTRUCTURE}
    assert all(record["started_at"] is None for record in node["cells"])


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="what a machine without GPUs does")
def test_on_a_machine_without_gpus_it_is_unsatisfiable(tmp_path):
    pytest.importorskip("torch", reason="the local backend asks for it before it looks for GPUs")
    shutil.copy(FOR_GPUS, tmp_path)
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for arguments in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *arguments], cwd=tmp_path, env=env, check=True, capture_output=True)
    options = ["--repo", tmp_path, "--runs-dir", tmp_path / "runs", "--file", FOR_GPUS.name, "--json"]
    command = [sys.executable, "-m", "orchestrate", "qualify", *options]
    done = subprocess.run(command, env=env, check=False, capture_output=True, timeout=120)
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["verdict"], answer["cells"]["complete"]) == (78, "unsatisfiable", 0), done.stderr
