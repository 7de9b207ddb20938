"""How the end of a Job is told to the life cycle."""

import json
from types import SimpleNamespace

import pytest

from orchestrate.backends.kubernetes_api import Api
from orchestrate.backends.kubernetes_job import provision_s, wanted
from orchestrate.backends.kubernetes_status import Held, status_of
from orchestrate.backends.kubernetes_watch import Watch
from orchestrate.backends.protocol import JobState
from orchestrate.capacity.seen import Seen
from orchestrate.clock import from_wire
from orchestrate.errors import UnsatisfiableError


def watched(*, exit_code=0, kind=None, suspend=False, reason="BackoffLimitExceeded"):
    conditions = [] if kind is None else [{"type": kind, "status": "True", "reason": reason, "message": "m"}]
    job = {"metadata": {"uid": "j", "name": "a"}, "spec": {"suspend": suspend}, "status": {"conditions": conditions}}
    ended = {"exitCode": exit_code, "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:01:00Z"}
    pod = {
        "metadata": {"uid": "p", "name": "a-x", "ownerReferences": [{"uid": "j"}]},
        "status": {"phase": "Failed", "containerStatuses": [{"name": "node", "state": {"terminated": ended}}]},
    }
    return SimpleNamespace(seen=Seen(job, pods=(pod,)))


@pytest.mark.parametrize("prefixes", [("",), ("", "batch.kubernetes.io/")], ids=["before 1.27", "since 1.27"])
def test_a_jobs_pods_are_found_by_the_labels_of_every_version(prefixes):
    labels = {f"{prefix}controller-uid": "j" for prefix in prefixes}
    pod = {"metadata": {"uid": "p", "name": "a-x", "labels": labels}}

    class Server:
        def send(self, method, path, query, body, timeout_s):
            key, _, value = query["labelSelector"].partition("=")
            return json.dumps({"items": [pod] if labels.get(key) == value else []})

    api = Api(Server())
    watch = Watch(api, SimpleNamespace(namespace="team"), "j")
    assert watch.pods(api.budget(5)) == (pod,)


def test_a_container_that_ended_is_not_yet_a_job_that_ended():
    assert status_of(watched(exit_code=0), (), told_to_stop=False).state is JobState.RUNNING


@pytest.mark.parametrize(("kind", "code"), [("Complete", 0), ("Failed", 1), ("Failed", 3), ("Failed", 5)])
def test_a_payload_that_ended_by_itself_is_told_by_its_exit_code(kind, code):
    status = status_of(watched(exit_code=code, kind=kind), (), told_to_stop=False)
    assert (status.state, status.exit_code, status.fault, status.by_cap) == (JobState.ENDED, code, None, False)


def test_the_limit_of_the_payload_is_a_cap():
    assert status_of(watched(exit_code=124, kind="Failed"), (), told_to_stop=False).by_cap


def test_a_killed_payload_names_its_signal_as_a_fault():
    status = status_of(watched(exit_code=137, kind="Failed"), (), told_to_stop=False)
    assert status.signal == "SIGKILL"
    assert "SIGKILL" in status.fault


@pytest.mark.parametrize("told", [True, False])
def test_being_told_to_stop_is_a_fault_unless_it_was_us(told):
    status = status_of(watched(exit_code=130, kind="Failed"), (), told_to_stop=told)
    assert (status.fault is None) is told


def test_a_job_whose_queue_took_the_gpus_back_is_over():
    status = status_of(watched(suspend=True), (), told_to_stop=False)
    assert status.state is JobState.ENDED
    assert "suspended" in status.fault


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([], "taken away while it ran"),
        ([{"reason": "Preempted", "message": "by team/x", "involvedObject": {"kind": "Pod", "uid": "p"}}], "preempted"),
    ],
)
def test_a_pod_that_an_old_cluster_replaces_has_ended_the_run(events, says):
    watch = watched()
    first = watch.seen.pods[0] | {"status": {"containerStatuses": [{"name": "node", "state": {"running": {}}}]}}
    second = {"metadata": first["metadata"] | {"uid": "q"}, "status": {"phase": "Pending"}}
    once = watch.seen.job | {"spec": {"backoffLimit": 0}}
    watch.seen = Seen(once, pods=(first, second))
    watch.api = SimpleNamespace(budget=lambda _: None)
    watch.look = lambda _budget, *, events: Seen(watch.seen.job, pods=watch.seen.pods, events=found if events else ())
    found = tuple(events)
    status = status_of(watch, (), told_to_stop=False)
    assert status.state is JobState.ENDED
    assert says in status.fault


def test_gpus_are_held_from_the_schedulers_word_to_the_containers_end():
    held = Held("p", "n", None, "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z")
    now = from_wire("2026-01-01T01:00:00Z")
    assert held.seconds(now) == 60
    assert Held("p", "n", None, "2026-01-01T00:00:00Z", None).seconds(now) == 3600
    assert Held().seconds(now) == 0
    assert Held.of_fact(held.as_fact()) == held


@pytest.fixture
def render(site):
    def make(settings=None, **fields):
        place = {"namespace": "team", "server": "https://x", "context": "c"}
        return wanted(site.request(**fields), settings or {}, site.ownership(), **place)

    return make


@pytest.mark.parametrize("deadline_s", [600.0, 3600.0, 86400.0])
@pytest.mark.parametrize("waiting_s", [None, 60])
def test_payload_and_collection_fit_inside_the_deadline_minus_the_waiting(render, site, deadline_s, waiting_s):
    settings = {} if waiting_s is None else {"provision_timeout_s": waiting_s}
    chosen = render(settings, deadline_s=deadline_s)
    (container,) = chosen.job["spec"]["template"]["spec"]["containers"]
    env = {each["name"]: each["value"] for each in container["env"]}
    used = sum(int(env[name]) for name in ("JOB_LIMIT_S", "KILL_AFTER_S", "COLLECT_WAIT_S"))
    assert chosen.job["spec"]["activeDeadlineSeconds"] == deadline_s
    assert used + provision_s(site.request(deadline_s=deadline_s), settings) <= deadline_s
    assert chosen.job_limit_s == int(env["JOB_LIMIT_S"]) >= 60


def test_gpus_are_asked_for_as_the_cells_need_them(render):
    assert render(device="h200", ranks=2).names.accelerators == "H200:2"
    assert render(device="cpu").names.accelerators == "none"
    assert render({"accelerators": "any:4"}, device="cpu").names.gpus == 4
    for few in ("H200:1", "A100:4", "none", "any:4"):
        with pytest.raises(UnsatisfiableError, match="H200:2"):
            render({"accelerators": few}, device="h200", ranks=2)


def test_a_corpus_of_this_machine_does_not_travel(render):
    environment = {"CELL_SET": "ellavox", "RUN_ID": "r1", "REPEAT": "1", "CORPUS": "/home/ann/private.jsonl"}
    with pytest.raises(UnsatisfiableError, match="claim") as caught:
        render(environment=environment)
    assert "ann" not in caught.value.cause


def test_the_group_variable_arrives(render):
    environment = {"CELL_SET": "ellavox", "RUN_ID": "r1", "REPEAT": "2", "ELLAVOX_GROUPS": "1,4"}
    corpus = {"location": "pvc:corpora/a.jsonl", "sha256": "f" * 64}
    chosen = render({"corpus": corpus}, environment=environment)
    (container,) = chosen.job["spec"]["template"]["spec"]["containers"]
    env = {each["name"]: each["value"] for each in container["env"]}
    assert (env["ELLAVOX_GROUPS"], env["REPEAT"], env["CORPUS"]) == ("1 4", "2", "/corpus/a.jsonl")
