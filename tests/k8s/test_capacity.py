"""A lack of GPUs, in all its forms, is reported as exactly that, and the request is withdrawn."""

import json

import pytest
from k8s_bed import until
from kubernetes import client

pytestmark = [pytest.mark.usefixtures("neighbours"), pytest.mark.timeout(600)]


def refused(launched, cluster, verdict, code):
    """Check what every refusal has in common; returns capacity.json."""
    answer, exit_code = launched.answer()
    assert (answer["verdict"], exit_code) == (verdict, code), (answer, launched.err.read_text()[-3000:])
    assert answer["teardown"] == {"confirmed": True, "remaining": []}
    assert cluster.ours(launched.run_id) == []
    return json.loads((launched.path / "capacity.json").read_bytes())


def reasons(report):
    return [offer["reason"] for offer in report["offers"]]


@pytest.fixture
def quota(cluster):
    """Set a quota of so many GPUs in the namespace."""

    def set_quota(gpus):
        body = {"metadata": {"name": "it-gpus"}, "spec": {"hard": {"requests.nvidia.com/gpu": str(gpus)}}}
        cluster.core.create_namespaced_resource_quota(cluster.namespace, body)
        until(lambda: (read().status.hard or {}).get("requests.nvidia.com/gpu"), "the quota to hold")

    def read():
        return cluster.core.read_namespaced_resource_quota("it-gpus", cluster.namespace)

    yield set_quota
    try:
        cluster.core.delete_namespaced_resource_quota("it-gpus", cluster.namespace)
    except client.ApiException as error:
        if error.status != 404:
            raise


@pytest.fixture
def holder(cluster):
    """All GPUs of the cluster, held by somebody else."""
    cluster.hold("somebody", gpus=cluster.gpus())
    try:
        cluster.until_running("somebody")
        yield
    finally:
        cluster.drop("somebody")


@pytest.mark.usefixtures("holder")
def test_gpus_that_others_hold_are_a_lack_of_capacity(cluster, tool):
    launched = tool.launch("--provision-timeout", "5s")
    report = refused(launched, cluster, "capacity", 75)
    assert reasons(report) == ["nothing-free"]
    assert cluster.until_running("somebody")


def test_more_gpus_than_any_node_has_can_never_be_had(cluster, tool):
    launched = tool.launch("--provision-timeout", "10s", gpus=cluster.largest() + 4)
    report = refused(launched, cluster, "unsatisfiable", 78)
    assert set(reasons(report)) == {"never-fits"}


def test_a_quota_below_the_request_can_never_be_met(cluster, tool, quota):
    quota(2)
    launched = tool.launch("--provision-timeout", "10s")
    report = refused(launched, cluster, "unsatisfiable", 78)
    assert set(reasons(report)) == {"quota-too-small"}


def test_a_quota_that_others_use_up_is_a_lack_of_capacity(cluster, tool, quota):
    quota(4)
    cluster.hold("spender", gpus=2)
    try:
        cluster.until_running("spender")
        launched = tool.launch("--provision-timeout", "5s")
        report = refused(launched, cluster, "capacity", 75)
        assert set(reasons(report)) == {"quota-used"}
    finally:
        cluster.drop("spender")


def test_an_image_that_can_not_be_pulled_is_no_lack_of_gpus(cluster, tool):
    launched = tool.launch("--image", "127.0.0.1:1/no-such:1", "--provision-timeout", "8s")
    answer, code = launched.answer()
    assert answer["verdict"] in {"infrastructure", "unsatisfiable"}, answer
    assert code in {5, 78}
    assert "no-such" in answer["reason"]
    assert cluster.ours(launched.run_id) == []


def test_a_run_that_is_pushed_aside_did_not_fail(cluster, tool):
    try:
        cluster.scheduling.create_priority_class({"metadata": {"name": "it-high"}, "value": 1000})
    except client.ApiException as error:
        if error.status == 403:
            pytest.skip("no right to make a priority class here")
        if error.status != 409:
            raise
    launched = tool.launch(behaviour="hold")
    launched.wait_for("submitted")
    cluster.hold("urgent", gpus=cluster.gpus(), priority="it-high")
    try:
        answer, code = launched.answer()
        assert (answer["verdict"], code) == ("infrastructure", 5), answer
        assert "preempt" in answer["reason"].lower()
        assert cluster.ours(launched.run_id) == []
        cluster.until_running("urgent")
    finally:
        cluster.drop("urgent")
        cluster.scheduling.delete_priority_class("it-high")


def test_a_queue_that_does_not_admit_the_run_in_time_is_a_lack_of_capacity(cluster, emulator, tool):
    queues = client.CustomObjectsApi(cluster.core.api_client)
    body = {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "LocalQueue",
        "metadata": {"name": "team-queue"},
        "spec": {},
    }
    queues.create_namespaced_custom_object("kueue.x-k8s.io", "v1beta1", cluster.namespace, "localqueues", body)
    emulator.pull("queues", on=True)
    try:
        launched = tool.launch("--queue", "team-queue", "--provision-timeout", "5s")
        report = refused(launched, cluster, "capacity", 75)
        assert set(reasons(report)) == {"queued"}
    finally:
        emulator.pull("queues", on=False)


def test_a_queue_admits_a_run_and_it_passes(cluster, emulator, tool):
    queues = client.CustomObjectsApi(cluster.core.api_client)
    body = {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "LocalQueue",
        "metadata": {"name": "good-queue"},
        "spec": {},
    }
    queues.create_namespaced_custom_object("kueue.x-k8s.io", "v1beta1", cluster.namespace, "localqueues", body)
    emulator.pull("queues", on=True)
    try:
        launched = tool.launch("--queue", "good-queue")
        job = until(lambda: suspended(cluster), "the Job to be suspended")
        assert cluster.pods(job) == []
        cluster.batch.patch_namespaced_job(job, cluster.namespace, {"spec": {"suspend": False}})
        answer, code = launched.answer()
        assert (answer["verdict"], code) == ("passed", 0), answer
        assert cluster.ours(launched.run_id) == []
    finally:
        emulator.pull("queues", on=False)


def suspended(cluster):
    """The name of the Job that waits in a queue."""
    jobs = cluster.batch.list_namespaced_job(cluster.namespace, label_selector="kueue.x-k8s.io/queue-name").items
    return next((job.metadata.name for job in jobs if job.spec.suspend), None)
