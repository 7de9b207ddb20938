"""A run through SkyPilot, against a server and a scheduler in memory."""

import dataclasses

import pytest

from orchestrate.backends.protocol import Outcome
from orchestrate.clock import from_wire
from orchestrate.errors import BackendError, CapacityError, UnsatisfiableError

NEVER_IN_TIME = 10**6


def test_a_whole_run_reads_its_caps_back_and_leaves_nothing(bed):
    backend = bed.backend()
    backend.preflight(bed.request)
    backend.intent(bed.request)
    acquired = backend.acquire(bed.request, budget_s=600, pause=bed.clock.pause)
    assert acquired.caps_read["slurm_time_limit_s"] == 1800
    assert acquired.caps_read["autodown"] == {"minutes": 30, "down": True, "wait_for": "none"}
    assert acquired.requested["allocated"] == "gres:gpu:H200:4"
    assert acquired.requested["device"] == "cpu"
    status = bed.forward(bed.backend())
    assert status.exit_code == 0
    assert bed.back(backend).is_clean
    assert not bed.world.jobs
    assert not bed.world.clusters
    assert not bed.world.folders
    assert (
        (bed.request.evidence / "fetched")
        .read_text()
        .endswith(f"/sky_workdir/evidence/{'orchestrate-smoke-' + bed.ownership.run_id}")
    )


def test_the_names_are_known_before_anything_is_asked_for(bed):
    names = bed.backend().intent(bed.request)
    assert names["cluster"] == bed.cluster
    assert len(names["cluster"]) <= 30
    assert bed.ownership.token[:8] not in names["cluster"]
    assert not bed.world.calls


def test_the_request_is_told_before_it_is_waited_for(bed):
    backend = bed.backend()
    told = []

    def stop(_seconds):
        told.extend(backend.observed())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backend.acquire(bed.request, budget_s=600, pause=stop)
    assert [fact["kind"] for fact in told] == ["sky-request"]
    assert bed.world.calls[-1] == "launch"


def test_gpus_that_others_hold_are_a_lack_of_capacity_with_what_is_free(bed, errors):
    bed.world.grants = False
    bed.world.pending_looks = 5
    inner = errors.unavailable("Failed to acquire resources in gpu for {Slurm({'H200': 4})}.")
    bed.world.launch_ends = errors.unavailable("Failed to provision all possible launchable resources.", [inner])
    bed.world.nodes[0] = type(bed.world.nodes[0])("n1", "mix", "H200", 4, 4)
    with pytest.raises(CapacityError) as refused:
        bed.forward(bed.backend())
    (offer,) = refused.value.case.offers
    assert offer.reason.label == "nothing-free"
    assert "Resources" in offer.detail
    (there,) = refused.value.case.availability
    assert (there.total, there.free) == (4, 0)


def test_a_job_that_sbatch_refused_is_no_lack_of_gpus(bed, errors):
    """SkyPilot says the same as when all are held; the queue never had a job of ours, and the GPUs are free."""
    inner = errors.unavailable("Failed to acquire resources in gpu for {Slurm({'H200': 4})}.")
    bed.world.launch_ends = errors.unavailable("Failed to provision all possible launchable resources.", [inner])
    backend = bed.backend()
    bed.world.pending_looks = 3
    bed.world.add_job = lambda *_args, **_more: None
    with pytest.raises(BackendError) as refused:
        bed.forward(backend)
    assert not isinstance(refused.value, CapacityError)
    assert refused.value.case.offers[0].reason.label == "provider-fault"


def test_waiting_is_bounded_by_the_launcher_itself(bed):
    bed.world.grants = False
    bed.world.pending_looks = NEVER_IN_TIME
    backend = bed.backend(provision_timeout_s=60)
    with pytest.raises(CapacityError, match="Resources"):
        bed.forward(backend)
    assert bed.clock.now < 120
    assert bed.back(backend).is_clean


@pytest.mark.parametrize(("asked", "words"), [("H200:8", "largest node has 4"), ("B300:4", "its nodes have H200")])
def test_what_no_node_has_is_refused_before_anything_is_asked_for(bed, asked, words):
    with pytest.raises(UnsatisfiableError, match=words):
        bed.forward(bed.backend(accelerators=asked))
    assert "launch" not in bed.world.calls


def test_a_slurm_cluster_that_there_is_not_is_misconfigured_and_no_fault_of_the_provider(bed):
    # SkyPilot's list of the nodes of such a cluster fails with a bare KeyError.
    with pytest.raises(UnsatisfiableError, match="Available clusters") as refused:
        bed.forward(bed.backend(direct=False, infra="slurm/nowhere"))
    assert refused.value.case.offers[0].reason.label == "misconfigured"


def test_an_infra_without_credentials_is_refused_after_a_fresh_check(bed):
    bed.world.enabled = []
    with pytest.raises(UnsatisfiableError, match="no access to slurm"):
        bed.forward(bed.backend())
    assert "check" in bed.world.calls


def test_an_infra_without_a_cap_needs_the_users_word(bed):
    bed.world.enabled = ["yotta"]
    with pytest.raises(UnsatisfiableError) as refused:
        bed.backend(direct=False, infra="yotta").preflight(bed.request)
    assert "--accept-no-cap" in refused.value.remedy
    found = bed.backend(direct=False, infra="yotta", accept_no_cap=True).preflight(bed.request)
    assert "accepted_without" in found.caps


def test_a_failed_runtime_setup_is_a_node_fault_and_its_allocation_goes(bed):
    bed.world.launch_ends = RuntimeError("Failed to set up SkyPilot runtime on cluster.")
    backend = bed.backend()
    with pytest.raises(BackendError) as refused:
        bed.forward(backend)
    assert refused.value.case.offers[0].reason.label == "node-fault"
    assert bed.world.jobs, "the fault is that the allocation stays"
    assert bed.back(backend).is_clean
    assert not bed.world.jobs


def test_a_request_that_somebody_cancelled_is_no_lack_of_gpus(bed, errors):
    bed.world.launch_ends = errors.cancelled("Current 'sky.launch' request is cancelled by another process.")
    backend = bed.backend()
    with pytest.raises(BackendError) as refused:
        bed.forward(backend)
    assert not isinstance(refused.value, CapacityError)
    assert bed.back(backend).is_clean
    assert not bed.world.jobs


@pytest.mark.parametrize(
    ("status", "code", "fault", "by_cap"),
    [
        ("SUCCEEDED", 0, False, False),
        ("FAILED", 1, False, False),
        ("FAILED", 3, False, False),
        ("FAILED", 124, False, True),
        ("FAILED", 137, True, False),
        ("FAILED", 127, True, False),
        ("FAILED_SETUP", 0, True, False),
        ("FAILED_DRIVER", 0, True, False),
        ("CANCELLED", 0, True, False),
    ],
)
def test_the_result_is_the_jobs_own_status_and_its_exit_code(bed, status, code, fault, by_cap):
    bed.world.final_status, bed.world.exit_code = status, code
    ended = bed.forward(bed.backend())
    assert (ended.fault is not None, ended.by_cap) == (fault, by_cap)
    if not fault:
        assert ended.exit_code == code


@pytest.mark.parametrize(("state", "by_cap"), [("CANCELLED", False), ("NODE_FAIL", False), ("TIMEOUT", True)])
def test_an_allocation_that_went_away_ends_the_run_with_its_cause(bed, state, by_cap):
    backend = bed.backend()
    backend.acquire(bed.request, budget_s=600, pause=bed.clock.pause)
    job = next(iter(bed.world.jobs.values()))
    bed.world.jobs[job.id] = type(job)(job.id, job.name, state, 1800, "", "", job.tres, job.comment)
    ended = backend.poll()
    assert state in ended.fault or by_cap
    assert ended.by_cap is by_cap


def test_an_unreachable_server_is_borne_for_a_while_and_then_told(bed):
    backend = bed.backend()
    backend.acquire(bed.request, budget_s=600, pause=bed.clock.pause)
    bed.world.faults = dict.fromkeys(range(len(bed.world.calls), 10**5), "before")

    def watch():
        while bed.clock.now < 10_000:
            assert backend.poll().exit_code is None
            bed.clock.pause(2)

    with pytest.raises(BackendError, match="status"):
        watch()
    assert bed.clock.now > 300


def test_a_scheduler_that_is_down_leaves_the_teardown_unconfirmed_and_the_record_in_place(bed):
    backend = bed.backend()
    bed.forward(backend)
    bed.world.scheduler_up = False
    bed.world.down_fails = RuntimeError("Failed to terminate: Unable to contact slurm controller")
    look = bed.back(backend)
    assert not look.is_clean
    assert any("squeue" in each for each in look.unknown)
    assert bed.world.clusters, "a purge would have made the running job impossible to find"
    bed.world.scheduler_up, bed.world.down_fails = True, None
    assert bed.back(bed.backend()).is_clean


def test_a_record_that_outlives_its_allocation_is_dropped_only_once_that_is_proven(bed):
    backend = bed.backend()
    bed.forward(backend)
    bed.world.jobs.clear()
    bed.world.down_fails = RuntimeError("the cluster can not be reached")
    steps = {step.step: step for step in backend.release()}
    assert steps["down"].outcome is Outcome.FAILED
    assert steps["forget-cluster"].outcome is Outcome.DONE
    assert not bed.world.clusters


def test_a_neighbour_with_a_look_alike_name_is_left_alone(bed):
    names = [
        f"{bed.cluster}0-fcd1e5cf",
        f"{bed.cluster}-fcd1e5cf-x",
        bed.cluster[:-1] + "9-fcd1e5cf",
        f"x{bed.cluster}-fcd1e5cf",
    ]
    for name in names:
        bed.world.add_job(name)
    backend = bed.backend()
    bed.forward(backend)
    assert bed.back(backend).is_clean
    assert sorted(job.name for job in bed.world.jobs.values()) == sorted(names)


def test_gpu_hours_count_from_the_grant_until_it_is_given_back(bed):
    backend = bed.backend()
    assert backend.usage().gpu_s is None
    bed.forward(backend)
    held = backend.usage()
    assert held.gpu_s is not None
    assert held.cost_usd is None
    bed.back(backend)
    told = {name: value for fact in (*bed.facts, *backend.observed()) for name, value in fact.items()}
    held_s = (from_wire(told["released_at"]) - from_wire(told["granted_at"])).total_seconds()
    assert backend.usage().gpu_s == 4 * held_s


def test_a_job_whose_name_differs_from_ours_in_its_end_alone_is_a_strangers(bed):
    stranger, folder = bed.world.add_job(f"{bed.cluster}-deadbeef"), f".sky_clusters/{bed.cluster}-deadbeef"
    bed.world.folders.add(folder)
    backend = bed.backend()
    bed.forward(backend)
    assert bed.back(backend).is_clean
    assert (list(bed.world.jobs.values()), bed.world.folders) == ([stranger], {folder})


def test_evidence_that_can_not_be_fetched_is_a_problem_of_the_collection(bed):
    backend = bed.backend()
    bed.forward(backend)
    bed.world.folders.clear()
    assert "could not be fetched" in backend.collect(bed.request).problem


def test_groups_and_schedule_reach_the_node_by_the_sets_own_variable(bed):
    request = dataclasses.replace(
        bed.request,
        cell_set="text",
        environment={"SCHEDULE": "racing", "TEXT_GROUPS": "1 4", "CELL_SET": "text", "RUN_ID": "r1", "REPEAT": "3"},
    )
    envs = bed.backend()._render(request).documents[0].tree["envs"]
    assert (envs["TEXT_GROUPS"], envs["SCHEDULE"], envs["REPEAT"]) == ("1 4", "racing", "3")
