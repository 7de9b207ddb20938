"""Whole runs on an emulated cluster whose containers are real processes."""

import pytest
from k8s_bed import until

from orchestrate.backends.protocol import JobState, Outcome
from orchestrate.errors import CapacityError, UnsatisfiableError


def finish(site, backend, request):
    """What the life cycle does once the payload has ended: the problem of the collection."""
    backend.stop()
    problem = backend.collect(request).problem
    steps = backend.release()
    assert [step for step in steps if step.outcome is Outcome.FAILED] == []
    assert [backend.census().is_clean for _ in range(2)] == [True, True]
    assert site.left() == []
    return problem


def test_a_run_brings_its_evidence_home_verified_and_leaves_nothing(site):
    backend, request = site.started('say(event="cell-ended", cell="a", status="complete")\nsys.exit(0)')
    status, progress = site.ended(backend)
    assert (status.exit_code, status.fault, status.by_cap) == (0, None, False)
    assert [event["event"] for event in progress] == ["node-started", "cell-ended"]
    usage = backend.usage()
    assert finish(site, backend, request) is None
    files = sorted(str(path.relative_to(request.evidence)) for path in request.evidence.rglob("*") if path.is_file())
    assert files == ["cells/rows.jsonl", "node.jsonl"]
    assert (request.evidence / "cells" / "rows.jsonl").read_text() == "{}\n" * 1000
    assert "hello from the node" in (request.logs / "node.log").read_text()
    assert usage.gpu_s is not None
    assert usage.image["ran"] is not None


def test_a_payload_that_fails_keeps_its_exit_code_and_its_evidence(site):
    backend, request = site.started("sys.exit(1)")
    status, _ = site.ended(backend)
    assert (status.exit_code, status.fault) == (1, None)
    assert finish(site, backend, request) is None
    assert (request.evidence / "node.jsonl").exists()


def test_a_stopped_payload_ends_by_itself_and_is_collected(site):
    backend, request = site.ready()
    assert backend.poll().state is JobState.RUNNING
    (step,) = backend.stop()
    assert (step.step, step.outcome) == ("end-payload", Outcome.DONE)
    assert finish(site, backend, request) is None
    assert (request.evidence / "node.json").read_text() == '{"exit_code": 130}'


def test_another_process_ends_and_collects_a_run_whose_launcher_died(site):
    backend, request = site.ready()
    heir = site.backend(ownership=backend._ownership)
    heir.recall(site.notes)
    assert heir.stop()[0].outcome is Outcome.DONE
    assert finish(site, heir, request) is None
    assert (request.evidence / "node.json").exists()


def test_evidence_that_a_dead_launcher_had_fetched_is_taken_from_this_disk(site):
    backend, request = site.started("sys.exit(0)")
    site.ended(backend)
    heir = site.backend(ownership=backend._ownership)
    heir.recall(site.notes)
    assert finish(site, heir, request) is None
    assert (request.evidence / "node.jsonl").exists()


def test_evidence_that_was_changed_after_it_was_fetched_is_not_believed(site):
    backend, request = site.started("sys.exit(0)")
    site.ended(backend)
    arrived = request.evidence.with_name("evidence.arriving")
    (arrived / "cells" / "rows.jsonl").write_text("better numbers\n")
    heir = site.backend(ownership=backend._ownership)
    heir.recall(site.notes)
    assert "before its evidence was taken" in finish(site, heir, request)


def test_a_pod_that_somebody_deletes_is_a_fault_and_no_failed_test(site):
    backend, request = site.ready()
    backend.poll()
    pod = next(name for name in site.left() if name.endswith(backend.usage().notes["pod"][-5:]))
    site.send("DELETE", f"/api/v1/namespaces/team/pods/{pod}")
    status, _ = site.ended(backend)
    assert status.fault is not None
    assert finish(site, backend, request) is not None


def test_a_job_that_somebody_deletes_is_a_fault_and_no_failed_test(site):
    backend, request = site.ready()
    backend.poll()
    site.send("DELETE", f"/apis/batch/v1/namespaces/team/jobs/{backend._names.job}")
    status, _ = site.ended(backend)
    assert "deleted" in status.fault
    assert finish(site, backend, request) is not None


def test_what_an_orphaning_delete_leaves_is_removed(site):
    backend, request = site.ready()
    options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Orphan"}
    site.send("DELETE", f"/apis/batch/v1/namespaces/team/jobs/{backend._names.job}", options)
    assert len(site.left()) == 2
    finish(site, backend, request)


def test_a_job_whose_labels_somebody_took_away_is_still_ours(site):
    backend, request = site.ready()
    name = backend._names.job
    path = f"/apis/batch/v1/namespaces/team/jobs/{name}"
    (job,) = site.get("/apis/batch/v1/namespaces/team/jobs")
    job["metadata"]["labels"] = {}
    site.send("PUT", path, {**job, "kind": "Job", "apiVersion": "batch/v1"})
    assert f"team/{name}" in str(backend.census().remaining)
    finish(site, backend, request)


def test_gpus_that_others_hold_are_a_lack_of_capacity_and_nothing_is_left(site):
    first, one = site.ready()
    second = site.backend(provision_timeout_s=1)
    request = site.request()
    second.preflight(request)
    second.intent(request)
    with pytest.raises(CapacityError) as caught:
        second.acquire(request, budget_s=60, pause=site.pause(second))
    assert caught.value.case.offers[0].asked == "H200:4"
    second.release()
    assert second.census().is_clean
    assert first.poll().state is JobState.RUNNING
    finish(site, first, one)


def test_more_gpus_than_any_node_has_are_refused_before_anything_is_created(site):
    backend = site.backend(accelerators="H200:8")
    with pytest.raises(UnsatisfiableError, match="8"):
        backend.preflight(site.request())
    assert site.left() == []


def test_a_cell_set_for_a_cpu_runs_without_any_gpu(site):
    backend, request = site.started("sys.exit(0)", accelerators="none")
    (job,) = site.get("/apis/batch/v1/namespaces/team/jobs")
    assert "nvidia.com/gpu" not in str(job["spec"])
    assert site.ended(backend)[0].exit_code == 0
    assert backend.usage().gpu_s == 0
    assert finish(site, backend, request) is None


def test_a_payload_that_somebody_kills_in_its_container_is_a_fault_with_its_evidence(site):
    backend, request = site.ready()
    watch = backend._watch
    kill = ["/bin/sh", "-c", 'kill -KILL `cat "$EVIDENCE_DIR/payload.pid"`']
    pod = watch.running_pod()["metadata"]["name"]
    watch.api.run("team", pod, "node", kill, lambda _data: None, watch.api.budget(10))
    status, _ = site.ended(backend)
    assert (status.exit_code, status.signal) == (None, "SIGKILL")
    assert finish(site, backend, request) is None
    assert (request.evidence / "node.json").read_text() == '{"exit_code": 130}'


def pod_of(backend):
    backend.poll()
    return backend.usage().notes["pod"]


@pytest.mark.parametrize(
    ("lever", "more", "words"),
    [("oom", {}, "OOMKilled"), ("evict", {"message": "the node was low on memory"}, "evicted")],
    ids=["oom", "evict"],
)
def test_what_strikes_the_pod_from_outside_is_a_fault_in_the_clusters_words(site, bed, lever, more, words):
    backend, request = site.ready()
    bed.pull(lever, namespace="team", name=pod_of(backend), **more)
    status, _ = site.ended(backend)
    assert words in status.fault
    assert finish(site, backend, request) is not None


def test_the_deadline_of_the_job_is_a_cap_and_its_log_was_kept(site, bed):
    backend, request = site.ready()
    until(lambda: backend.poll() and backend.logs(), "the log to be read")
    bed.pull("advance", seconds=1000)
    status, _ = site.ended(backend)
    assert (status.by_cap, status.fault) == (True, None)
    assert "hello from the node" in backend.logs()
    assert finish(site, backend, request) is not None


def test_a_node_that_is_lost_proves_nothing_until_it_is_back(site, bed):
    backend, request = site.ready()
    pod_of(backend)
    bed.pull("lose-node", name="node-1")
    try:
        assert backend.poll().state is JobState.RUNNING
        bed.pull("advance", seconds=400)
        status, _ = site.ended(backend)
        assert "the node was lost" in status.fault
        assert not backend.census().is_clean
    finally:
        bed.pull("find-node", name="node-1")
    finish(site, backend, request)
