"""The rest of what SkyPilot and Slurm can do to a run: `nox -s faults`."""

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(1200)]


@pytest.mark.parametrize(("behaviour", "verdict"), [("exit 1", "failed"), ("exit 3", "hung")])
def test_the_nodes_exit_code_decides(bed, launch, behaviour, verdict):
    answer = launch("--cell-set", "smoke", behaviour=behaviour).answer()
    assert answer["verdict"] == verdict
    assert answer["teardown"]["confirmed"]


def test_a_setup_that_fails_is_infrastructure_and_its_log_comes_home(bed, launch, tmp_path):
    run = launch("--cell-set", "smoke", "--python", "/nowhere/python3")
    answer = run.answer()
    assert answer["verdict"] == "infrastructure", run.err.read_text()
    assert "setup failed" in answer["reason"]
    (folder,) = run.runs_dir.glob("r*/logs/node")
    assert any("nowhere" in path.read_text("utf-8", "replace") for path in folder.rglob("*.log"))


def test_an_allocation_cancelled_from_outside_is_infrastructure(bed, launch):
    run = launch("--cell-set", "smoke", behaviour="sleep 600")
    run.wait_for("submitted")
    bed.cancel(*bed.job_ids_of(bed.ours()))
    answer = run.answer()
    assert answer["verdict"] == "infrastructure", run.err.read_text()
    assert "ended by somebody outside" in answer["reason"]
    assert bed.records_left() == []
    assert bed.folders_left() == []


def test_a_launch_request_cancelled_by_somebody_gives_its_allocation_back(bed, launch):
    run = launch("--cell-set", "smoke", behaviour="sleep 600")
    run.wait_for_job()
    bed.sky("api", "cancel", "--all", "--yes")
    answer = run.answer()
    assert answer["verdict"] in {"infrastructure", "cancelled"}, run.err.read_text()
    assert answer["teardown"]["confirmed"]


def test_an_api_server_stopped_in_the_middle_of_a_launch_is_infrastructure(bed, launch):
    run = launch("--cell-set", "smoke", behaviour="sleep 600")
    run.wait_for_job()
    bed.sky("api", "stop")
    answer = run.answer()
    assert answer["verdict"] == "infrastructure", run.err.read_text()
    assert answer["teardown"]["confirmed"]


def test_an_api_server_stopped_while_the_payload_runs_does_not_lose_the_run(bed, launch):
    run = launch("--cell-set", "smoke", behaviour="sleep 60\nexit 1")
    run.wait_for("submitted")
    bed.sky("api", "stop")
    answer = run.answer()
    assert answer["verdict"] == "failed", run.err.read_text()
    assert answer["teardown"]["confirmed"]


def test_a_scheduler_that_is_down_at_teardown_is_unconfirmed_until_an_audit_finds_it_back(bed, launch):
    run = launch("--cell-set", "smoke", behaviour="sleep 600")
    run.wait_for("submitted")
    bed.stop("slurmctld")
    try:
        run.process.terminate()
        answer = run.answer()
        assert (answer["verdict"], answer["exit_code"]) == ("teardown-unconfirmed", 70), run.err.read_text()
    finally:
        bed.start("slurmctld")
    bed.wait_for_scheduler()
    assert bed.ours(), "the job leaks while the scheduler is away: that is what the verdict says"
    found, code = bed.teardown(
        run.runs_dir, "audit", "--backend", "sky", "--infra", "slurm/bed", "--run", answer["run_id"], "--reap"
    )
    assert code == 0, found
    closure = run.closure()
    assert (closure["verdict"], closure["teardown"]["confirmed"]) == ("cancelled", True)


def test_a_login_that_goes_down_in_the_middle_is_reaped_when_it_is_back(bed, launch):
    run = launch("--cell-set", "smoke", behaviour="sleep 600")
    run.wait_for("submitted")
    bed.stop("sshd")
    try:
        run.process.terminate()
        answer = run.answer()
        assert answer["verdict"] == "teardown-unconfirmed"
    finally:
        bed.start("sshd")
    _, code = bed.teardown(
        run.runs_dir, "audit", "--backend", "sky", "--infra", "slurm/bed", "--run", answer["run_id"], "--reap"
    )
    assert code == 0
    assert run.closure()["teardown"]["confirmed"]


@pytest.mark.parametrize("record", ["acquiring", "observed", "acquired", "submitted"])
def test_a_launcher_killed_after_a_record_is_finished_by_its_warden(bed, launch, record):
    run = launch("--cell-set", "smoke", behaviour="sleep 600")
    run.wait_for(record)
    run.kill()
    run.wait_for("closure")
    closure = run.closure()
    assert (closure["verdict"], closure["teardown"]["confirmed"]) == ("cancelled", True)
    assert bed.records_left() == []


def test_launcher_and_warden_both_killed_are_reaped_from_a_machine_that_knows_nothing(bed, launch):
    run = launch("--cell-set", "smoke", behaviour="sleep 600")
    run.wait_for("submitted")
    run.kill_both()
    found, code = bed.audit()
    assert code == 1
    ours = [each for each in found["findings"] if each["owner"] != "colleague"]
    assert len(ours) == 1
    assert ours[0]["run_id"].startswith("r20")
    _, code = bed.audit("--run", ours[0]["run_id"], "--reap")
    assert code == 0
    assert bed.ours() == []


@pytest.mark.timeout(1800)
def test_a_hung_job_of_a_dead_workstation_ends_by_the_clusters_own_limits(bed, launch):
    run = launch("--cell-set", "smoke", "--deadline", "17m", behaviour="trap '' TERM\nsleep 6000")
    run.wait_for("submitted")
    run.kill_both()
    assert bed.ours()
    bed.wait_until_gone(limit_s=1500)
    _, code = bed.teardown(run.runs_dir, "teardown", run.run_id)
    assert code == 0
    assert (run.closure()["verdict"], run.closure()["teardown"]["confirmed"]) == ("cancelled", True)
