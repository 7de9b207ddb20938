"""What happens when calls to the API fail: before they act, after they acted, for a while, or for good."""

import io
import json
import tarfile
import time

import pytest
from k8s_bed import until

from orchestrate.backends.kubernetes_client import ApiError, Exit, connect
from orchestrate.backends.protocol import JobState, Outcome
from orchestrate.errors import BackendError, UnsatisfiableError

JOBS = "/apis/batch/v1/namespaces/team/jobs"
MAPS = "/api/v1/namespaces/team/configmaps"


def run(site, backend, request):
    """A whole run; its last status and what the collection said."""
    backend.preflight(request)
    backend.intent(request)
    backend.acquire(request, budget_s=120, pause=site.pause(backend))
    backend.submit(request, budget_s=600, lifeline_fd=None)
    status, _ = site.ended(backend)
    backend.stop()
    return status, backend.collect(request).problem


def is_clean(site, backend):
    return [backend.census().is_clean for _ in range(2)] == [True, True] and site.left() == []


def test_a_run_survives_that_each_kind_of_call_fails_once_before_and_once_after_it_acted(site, faulty):
    backend, transport = faulty(lambda _method, _path, n: {1: "before", 2: "after"}.get(n))
    request = site.request()
    status, problem = run(site, backend, request)
    assert (status.exit_code, status.fault, problem) == (0, None, None)
    assert [step for step in backend.release() if step.outcome is Outcome.FAILED] == []
    assert is_clean(site, backend)
    assert len({call for call in transport.calls if call[0] in {"POST", "DELETE", "EXEC"}}) >= 7


@pytest.mark.parametrize("path", [JOBS, MAPS])
@pytest.mark.parametrize("how", ["before", "after"])
def test_a_create_without_an_answer_is_made_exactly_once(site, faulty, path, how):
    backend, transport = faulty(lambda method, at, n: how if (method, at, n) == ("POST", path, 1) else None)
    status, problem = run(site, backend, site.request())
    assert (status.exit_code, problem) == (0, None)
    assert transport.calls.count(("POST", path)) == (2 if how == "before" else 1)
    assert len(site.get(path)) == 1
    backend.release()
    assert is_clean(site, backend)


def test_a_lost_create_whose_object_can_not_be_looked_for_is_not_sent_to_another_name(site, faulty):
    def fails(method, path, n):
        if method == "POST" and path == JOBS and n == 1:
            return "after"
        return "before" if method == "GET" and path.startswith(f"{JOBS}/") and n <= 5 else None

    backend, _ = faulty(fails)
    status, _ = run(site, backend, site.request())
    assert status.exit_code == 0
    backend.release()
    assert is_clean(site, backend)


def test_while_a_lost_create_may_still_act_nothing_is_called_gone(site, faulty):
    """The API server goes away in the middle of the create, and only looking works afterwards."""
    backend, transport = faulty(lambda method, path, _n: "before" if (method, path) == ("POST", JOBS) else None)
    request = site.request()
    backend.preflight(request)
    backend.intent(request)

    class StoppedError(Exception):
        pass

    def stop(_seconds):
        if transport.calls[-1][0] == "POST" or transport.calls[-1][1].startswith(f"{JOBS}/"):
            raise StoppedError

    with pytest.raises(StoppedError):
        backend.acquire(request, budget_s=60, pause=stop)
    look = backend.census()
    assert not look.is_clean
    assert "may still act" in look.unknown[0]
    assert backend.release()[0].step == "await-create"
    assert backend.census().is_clean


def test_a_job_of_our_name_that_is_not_ours_is_left_alone(site, faulty):
    backend, _ = faulty(lambda *_: None)
    request = site.request()
    foreign = site.backend(ownership=backend._ownership.__class__(
        backend._ownership.run_id, "0" * 32, "bob", backend._ownership.expires_at, site.folder,
    ))  # fmt: skip
    foreign.preflight(request)
    foreign.intent(request)
    foreign.acquire(request, budget_s=60, pause=site.pause(foreign))
    (theirs,) = site.get(JOBS)
    backend.preflight(request)
    backend.intent(request)
    with pytest.raises(BackendError, match="left alone"):
        backend.acquire(request, budget_s=60, pause=site.pause(backend))
    backend.release()
    assert backend.census().is_clean
    assert "not of this run" in str(backend.census().asked)
    assert [each["metadata"]["uid"] for each in site.get(JOBS)] == [theirs["metadata"]["uid"]]


@pytest.mark.parametrize(
    "error",
    [
        ApiError(429, "TooManyRequests", "slow down", retry_after_s=1.0),
        ApiError(500, "InternalError", "etcd has no leader"),
        ApiError(503, "ServiceUnavailable", "starting"),
    ],
    ids=lambda error: str(error.status),
)
def test_a_busy_server_is_asked_again_and_its_wish_to_wait_is_kept(site, faulty, error):
    backend, transport = faulty(lambda _method, _path, n: error if n == 1 else None)
    began = transport.clock()
    status, problem = run(site, backend, site.request())
    assert (status.exit_code, problem) == (0, None)
    assert [step for step in backend.release() if step.outcome is Outcome.FAILED] == []
    assert is_clean(site, backend)
    if error.retry_after_s:
        assert transport.clock() - began >= error.retry_after_s


def test_an_api_that_goes_away_in_the_middle_of_a_run_ends_nothing_and_proves_nothing(site, faulty):
    down = []
    backend, _ = faulty(lambda *_: "before" if down else None, "time.sleep(600)")
    request = site.request()
    backend.preflight(request)
    backend.intent(request)
    backend.acquire(request, budget_s=60, pause=site.pause(backend))
    down.append(True)
    assert backend.poll().state is JobState.RUNNING
    assert [step.outcome for step in backend.stop()] == [Outcome.FAILED]
    assert backend.collect(request).problem is not None
    assert {step.outcome for step in backend.release()} == {Outcome.FAILED}
    look = backend.census()
    assert not look.is_clean
    assert len(look.unknown) == len(look.asked)
    assert site.left() != []
    down.clear()
    backend.release()
    assert is_clean(site, backend)


def test_an_outage_that_ends_during_the_teardown_costs_neither_evidence_nor_proof(site, faulty):
    """The API is away for 15 s while the payload is told to end, and again for 40 s while the Job is deleted."""
    away = [0.0, 0.0]
    backend, transport = faulty(lambda *_: "before" if away[0] <= transport.clock() < away[1] else None, None)
    request = site.request()
    backend.preflight(request)
    backend.intent(request)
    backend.acquire(request, budget_s=60, pause=site.pause(backend))
    until(lambda: any(event["event"] == "ready" for event in backend.poll().progress), "the payload to be ready")
    away[:] = [transport.clock(), transport.clock() + 15]
    assert backend.stop()[0].outcome is Outcome.FAILED
    transport.clock.grain = 0.5
    assert backend.collect(request).problem is None
    assert (request.evidence / "node.json").exists()
    away[:] = [transport.clock(), transport.clock() + 40]
    assert {step.outcome for step in backend.release()} <= {Outcome.DONE, Outcome.NOTHING_THERE}
    assert is_clean(site, backend)


def test_a_delete_that_is_refused_is_said_and_the_rest_is_removed_all_the_same(site, faulty):
    denied = ApiError(403, "Forbidden", "configmaps is forbidden")
    backend, _ = faulty(lambda method, path, _n: denied if method == "DELETE" and path.startswith(JOBS) else None)
    run(site, backend, site.request())
    outcomes = {step.step: step.outcome for step in backend.release()}
    assert outcomes["delete-job"] is Outcome.FAILED
    assert outcomes["delete-configmap"] is Outcome.DONE
    assert backend.census().remaining[0].kind == "job"


def test_a_missing_right_is_named_before_anything_is_created(site, faulty):
    def fails(_method, path, _n):
        return None

    backend, transport = faulty(fails)
    real = transport.transport.send

    def send(method, path, query, body, timeout_s):
        if "selfsubjectaccessreviews" in path and body["spec"]["resourceAttributes"]["resource"] == "configmaps":
            return '{"status": {"allowed": false}}'
        return real(method, path, query, body, timeout_s)

    transport.transport.send = send
    with pytest.raises(UnsatisfiableError, match=r"create configmaps, get configmaps, list configmaps") as caught:
        backend.preflight(site.request())
    assert "Role" in caught.value.remedy
    (offer,) = caught.value.case.offers
    assert (offer.reason.label, offer.basis.value, offer.where) == ("denied", "structure", "emulated/team")
    assert site.left() == []


def test_an_unreachable_api_is_infrastructure_and_no_lack_of_gpus(site, faulty):
    backend, _ = faulty(lambda *_: "before")
    with pytest.raises(BackendError) as caught:
        backend.preflight(site.request())
    assert type(caught.value) is BackendError
    assert caught.value.case.offers[0].reason.label == "unreachable"


def test_a_kubeconfig_that_leads_elsewhere_proves_no_absence(site, faulty):
    backend, _ = site.ready()
    heir, transport = faulty(lambda *_: None, ownership=backend._ownership)
    transport.server = "https://elsewhere:6443"
    heir.recall(site.notes)
    assert "leads to" in heir.census().unknown[0]
    assert heir.release()[0].outcome is Outcome.FAILED
    assert site.left() != []


def test_a_blackholed_server_costs_no_more_than_the_budget(site, faulty):
    backend, transport = faulty(lambda *_: None)
    run(site, backend, site.request())

    def hangs(_method, _path, _n):
        transport.clock.time += 9
        return "before"

    transport.fails = hangs
    began, wall = transport.clock(), time.monotonic()
    backend.release()
    assert transport.clock() - began < 100
    assert time.monotonic() - wall < 20


@pytest.mark.parametrize("times", [1, 1000])
def test_evidence_that_was_changed_on_its_way_is_fetched_again_or_not_taken(site, faulty, times):
    other = io.BytesIO()
    with tarfile.open(fileobj=other, mode="w:gz") as tar:
        member = tarfile.TarInfo("node.jsonl")
        member.size = 2
        tar.addfile(member, io.BytesIO(b"{}"))
    backend, transport = faulty(lambda *_: None, collect_wait_s=60 if times == 1 else 3)
    real, struck = transport.transport.run, []

    def run_in(namespace, pod, container, command, write, timeout_s):
        if "PYTHON" in command[2] and len(struck) < times:
            struck.append(command)
            write(other.getvalue())
            return Exit(0, "")
        return real(namespace, pod, container, command, write, timeout_s)

    transport.transport.run = run_in
    request = site.request()
    status, problem = run(site, backend, request)
    assert status.exit_code == 0
    assert struck
    if times == 1:
        assert problem is None
        assert (request.evidence / "cells" / "rows.jsonl").exists()
    else:
        assert "digest" in problem
        assert not request.evidence.exists() or not (request.evidence / "cells").exists()


def test_a_cluster_that_takes_the_deadline_off_the_job_is_refused_and_nothing_is_left(site, faulty):
    backend, transport = faulty(lambda *_: None)
    real = transport.transport.send

    def send(method, path, query, body, timeout_s):
        if method == "POST" and path == JOBS:
            body = {**body, "spec": {**body["spec"]}}
            del body["spec"]["activeDeadlineSeconds"]
        return real(method, path, query, body, timeout_s)

    transport.transport.send = send
    request = site.request()
    backend.preflight(request)
    backend.intent(request)
    with pytest.raises(UnsatisfiableError, match="activeDeadlineSeconds is None, not 900") as caught:
        backend.acquire(request, budget_s=60, pause=site.pause(backend))
    assert "--accept-no-cap" in caught.value.remedy
    backend.release()
    assert is_clean(site, backend)


@pytest.mark.parametrize("text", ["", "a: [", "apiVersion: v1\nkind: Config\n", None])
def test_a_kubeconfig_that_leads_nowhere_is_said_with_its_remedy(tmp_path, text):
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UnsatisfiableError, match="no Kubernetes cluster is configured") as caught:
        connect(None, {"KUBECONFIG": str(path)})
    assert "KUBECONFIG" in caught.value.remedy


@pytest.mark.parametrize(
    ("groups", "words"),
    [([], "no Kueue"), ([{"name": "kueue.x-k8s.io"}], "no such LocalQueue")],
    ids=["kueue", "queue"],
)
def test_a_queue_that_nobody_serves_is_refused_before_anything_is_created(site, faulty, groups, words):
    gone = ApiError(404, "NotFound", "not found")
    backend, transport = faulty(lambda _, path, _n: gone if "localqueues/" in path else None, queue="team-a")
    real = transport.transport.send

    def send(method, path, query, body, timeout_s):
        return json.dumps({"groups": groups}) if path == "/apis" else real(method, path, query, body, timeout_s)

    transport.transport.send = send
    with pytest.raises(UnsatisfiableError, match=words) as caught:
        backend.preflight(site.request())
    (offer,) = caught.value.case.offers
    assert (offer.reason.label, offer.basis.value, offer.where) == ("misconfigured", "structure", "emulated/team")
    assert caught.value.case.asked["queue"] == "team-a"
    assert site.left() == []


def test_what_only_helps_to_explain_keeps_no_run_from_starting(site, faulty):
    wide = {"/api/v1/nodes", "/api/v1/pods", "/api/v1/namespaces/team/resourcequotas"}
    backend, _ = faulty(lambda _method, path, _n: "before" if path in wide else None)
    status, problem = run(site, backend, site.request())
    assert (status.exit_code, problem) == (0, None)
    backend.release()
    assert is_clean(site, backend)
