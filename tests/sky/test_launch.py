"""Whole runs on a real Slurm: the part of the matrix that every check of the project runs."""

import json
import subprocess

import pytest
from slurm_machine import wait

from orchestrate.receipts.verify import verify_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_the_smoke_set_holds_h200s_runs_on_cpu_and_says_both(bed, launch):
    """One command, from the request to the closure."""
    run = launch("--cell-set", "smoke", "--repeat", "2", "--python", bed.python_with_torch())
    answer = run.answer()
    assert (answer["verdict"], answer["exit_code"]) == ("passed", 0), run.err.read_text()
    assert answer["device"] == "cpu"
    acquired = run.receipts("acquire")
    assert acquired["requested"]["allocated"] == "gres:gpu:H200:4"
    assert acquired["requested"]["device"] == "cpu"
    assert acquired["caps_read"]["slurm_time_limit_s"] == 1800
    assert acquired["caps_read"]["autodown"] == {"minutes": 30, "down": True, "wait_for": "none"}
    assert run.receipts("admit")["preflight"]["gpus"]["total"] == 4
    assert run.receipts("census")["path"] == "direct"
    closure = run.receipts("closure")
    assert closure["gpu_hours_actual"] > 0
    assert bed.folders_left() == []
    assert bed.records_left() == []


QUALIFICATION = """\
schema: orchestrate.qualification/1
name: foreign
device: cpu
groups:
  - {name: unit, command: python3 -m pytest -q -p no:cacheprovider t, timeout: 3m}
  - {name: bad, command: [bash, -c, 'test -f t/test_x.py && exit 1'], report: exit-code, timeout: 1m}
"""


def test_a_foreign_repository_is_qualified_without_a_gpu_and_a_failing_group_is_red(bed, launch, tmp_path):
    repository = tmp_path / "foreign"
    (repository / "t").mkdir(parents=True)
    (repository / "t" / "test_x.py").write_text("def test_a(): pass\n")
    (repository / "qualification.yaml").write_text(QUALIFICATION)
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for arguments in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *arguments], check=True, capture_output=True)
    options = ("--repo", str(repository), "--accelerators", "none", "--python", bed.python_with_torch())
    run = launch(*options, command="qualify")
    answer = run.answer()
    assert (answer["verdict"], answer["exit_code"]) == ("failed", 1), run.err.read_text()
    assert answer["cells"] == {"expected": 2, "complete": 1}
    assert (answer["accelerators"], answer["teardown"]["confirmed"]) == ("none", True)
    path = run.runs_dir / run.run_id
    assert verify_run(path).holds
    node = json.loads((path / "evidence" / "node.json").read_text())
    assert [group["status"] for group in node["cells"]] == ["complete", "failed"]
    assert run.receipts("closure")["gpu_hours_actual"] == 0
    wait(lambda: not bed.folders_left(), "the folders of its allocation to go", limit_s=60)
    assert bed.records_left() == []


def test_gpus_held_by_others_are_capacity_and_the_request_is_withdrawn(bed, launch):
    theirs = bed.submit("training", gpus=3)
    try:
        run = launch("--cell-set", "smoke", behaviour="exit 0")
        answer = run.answer()
        assert (answer["verdict"], answer["exit_code"]) == ("capacity", 75), run.err.read_text()
        assert answer["capacity"]["availability"][0]["total"] == 4
        assert answer["capacity"]["availability"][0]["free"] == 1
        assert bed.job_state(theirs) == "RUNNING"
    finally:
        bed.cancel(theirs)


@pytest.mark.parametrize("asked", ["H200:8", "B300:4"])
def test_more_gpus_than_a_node_has_or_another_kind_can_never_fit(bed, launch, asked):
    run = launch("--cell-set", "smoke", "--accelerators", asked, behaviour="exit 0")
    answer = run.answer()
    assert (answer["verdict"], answer["exit_code"]) == ("unsatisfiable", 78), run.err.read_text()
    assert bed.ours() == []


def test_a_login_that_is_down_is_infrastructure(bed, launch):
    bed.stop("sshd")
    try:
        answer = launch("--cell-set", "smoke", behaviour="exit 0").answer()
    finally:
        bed.start("sshd")
    assert (answer["verdict"], answer["exit_code"]) == ("infrastructure", 5)


def test_a_runtime_that_can_not_be_set_up_gives_its_gpus_back(bed, launch):
    bed.break_runtime(broken=True)
    try:
        run = launch("--cell-set", "smoke", behaviour="exit 0")
        answer = run.answer()
    finally:
        bed.break_runtime(broken=False)
    assert (answer["verdict"], answer["exit_code"]) == ("infrastructure", 5), run.err.read_text()
    assert answer["teardown"]["confirmed"]
    assert bed.records_left() == []


def test_the_warden_finishes_a_launch_whose_client_was_killed(bed, launch):
    run = launch("--cell-set", "smoke", behaviour="sleep 600")
    run.wait_for_job()
    run.kill()
    run.wait_for("closure")
    closure = run.closure()
    assert (closure["verdict"], closure["teardown"]["confirmed"]) == ("cancelled", True)
    assert bed.records_left() == []
