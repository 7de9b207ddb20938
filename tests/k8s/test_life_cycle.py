"""A run on a cluster from command to closure, and every way in which a person or a machine breaks it off."""

import os
from pathlib import Path

import pytest
from k8s_bed import until

from orchestrate.receipts.verify import verify_run

pytestmark = [pytest.mark.usefixtures("neighbours"), pytest.mark.timeout(600)]


def test_a_run_passes_and_nothing_of_it_is_left(cluster, tool):
    launched = tool.launch()
    answer, code = launched.answer()
    assert (answer["verdict"], code) == ("passed", 0), launched.err.read_text()
    assert answer["cells"] == {"expected": 4, "complete": 4}
    assert answer["teardown"] == {"confirmed": True, "remaining": []}
    assert (answer["device"], answer["accelerators"]) == ("cpu", "H200:4")
    assert cluster.ours(launched.run_id) == []
    assert verify_run(launched.path).holds


def test_a_failed_run_brings_its_evidence_home(cluster, tool):
    launched = tool.launch(behaviour="fail")
    answer, code = launched.answer()
    assert (answer["verdict"], code) == ("failed", 1), launched.err.read_text()
    assert (launched.path / "evidence" / "node.json").exists()
    assert cluster.ours(launched.run_id) == []


def test_ctrl_c_ends_the_run_and_gives_the_gpus_back(cluster, tool):
    launched = tool.launch(behaviour="hold")
    launched.wait_for("submitted")
    launched.process.send_signal(2)
    answer, code = launched.answer()
    assert (answer["verdict"], code) == ("cancelled", 130)
    assert answer["teardown"]["confirmed"]
    assert cluster.ours(launched.run_id) == []


def test_a_job_deleted_by_hand_is_an_infrastructure_fault(cluster, tool):
    launched = tool.launch(behaviour="hold")
    launched.wait_for("submitted")
    (job,) = [name.split()[1] for name in cluster.ours(launched.run_id) if name.startswith("job ")]
    cluster.drop(job)
    answer, code = launched.answer()
    assert (answer["verdict"], code) == ("infrastructure", 5), answer
    assert cluster.ours(launched.run_id) == []


def test_the_warden_of_a_killed_launcher_gives_everything_back(cluster, tool):
    tool.as_user(os.path.relpath(cluster.kubeconfig, tool.folder), cluster.namespace)  # as seen from the launcher
    launched = tool.launch(behaviour="hold")
    launched.wait_for("submitted")
    launched.kill_launcher()
    closure = launched.until_closed()
    assert (closure["verdict"], closure["reason"]) == ("cancelled", "launcher-lost")
    assert closure["teardown"]["confirmed"]
    assert cluster.ours(launched.run_id) == []
    until(lambda: verify_run(launched.path).holds, "the run to verify: the warden still tidies its folder", limit_s=20)


def test_teardown_finishes_a_run_that_lost_launcher_and_warden(cluster, tool):
    launched = tool.launch(behaviour="hold")
    launched.wait_for("submitted")
    launched.kill_both()
    assert cluster.ours(launched.run_id)
    code, out, err = tool.command("teardown", launched.run_id, "--runs-dir", str(launched.runs_dir), "--json")
    assert code == 0, (out, err)
    assert cluster.ours(launched.run_id) == []
    assert launched.closure()["verdict"] == "cancelled"


def test_an_audit_without_local_state_reaps_a_run_that_it_is_told_of(cluster, tool, tmp_path):
    launched = tool.launch(behaviour="hold")
    launched.wait_for("submitted")
    launched.kill_both()
    (tmp_path / "empty").mkdir()
    where = ("--backend", "k8s", "--namespace", cluster.namespace, "--runs-dir", str(tmp_path / "empty"), "--json")
    code, out, err = tool.command("audit", *where)
    assert code == 1, (out, err)
    assert launched.run_id in out
    code, out, err = tool.command("audit", *where, "--reap")
    assert cluster.ours(launched.run_id), "what has not expired was reaped"
    code, out, err = tool.command("audit", *where, "--reap", "--run", launched.run_id)
    assert code == 0, (out, err)
    assert cluster.ours(launched.run_id) == []


def test_the_cluster_itself_ends_what_everybody_has_forgotten(cluster, emulator, tool):
    launched = tool.launch("--deadline", "15m", "--ttl", "60s", behaviour="hold")
    launched.wait_for("submitted")
    launched.kill_both()
    emulator.pull("advance", seconds=15 * 60)
    until(lambda: not [name for name in cluster.ours(launched.run_id) if name.startswith("pod ")], "the pod to go")
    emulator.pull("advance", seconds=61)
    until(lambda: cluster.ours(launched.run_id) == [], lambda: f"{cluster.ours(launched.run_id)} to go")


@pytest.mark.slow
def test_the_real_harness_runs_in_the_job(cluster, tool):
    launched = tool.launch(packages=Path(__file__).parents[2])
    answer, code = launched.answer(limit_s=500)
    assert (answer["verdict"], code) == ("passed", 0), launched.err.read_text()[-3000:]
    assert answer["cells"] == {"expected": 4, "complete": 4}
    assert cluster.ours(launched.run_id) == []
