"""Rights, quotas, rooms, lost nodes, evictions, queues and injected faults."""

import http.client
import time
import urllib.error

import pytest

RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/lab"


def account(lab, name, rules):
    """A token of a service account that may exactly this."""
    lab.request("POST", lab.path("serviceaccounts"), {"metadata": {"name": name}})
    lab.request("POST", f"{RBAC}/roles", {"metadata": {"name": name}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": name, "namespace": lab.namespace}
    binding = {"metadata": {"name": name}, "roleRef": {"kind": "Role", "name": name}, "subjects": [subject]}
    lab.request("POST", f"{RBAC}/rolebindings", binding)
    return lab.request("POST", lab.path("serviceaccounts", name) + "/token", {})[1]["status"]["token"]


def test_a_role_lets_what_it_names_and_nothing_else(lab):
    token = account(lab, "reader", [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list"]}])
    assert lab.request("GET", lab.jobs_path(), token=token)[0] == 200
    code, answer = lab.request("GET", lab.path("pods"), token=token)
    assert (code, answer["reason"]) == (403, "Forbidden")
    assert 'User "system:serviceaccount:lab:reader" cannot list resource "pods"' in answer["message"]
    assert lab.request("POST", lab.jobs_path(), lab.job("no"), token=token)[0] == 403
    assert lab.request("GET", "/api/v1/nodes", token=token)[0] == 403
    assert lab.request("GET", lab.jobs_path(), token="made-up")[0] == 401
    review = {
        "spec": {"resourceAttributes": {"verb": "list", "group": "batch", "resource": "jobs", "namespace": "lab"}}
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    assert lab.request("POST", path, review, token=token)[1]["status"]["allowed"] is True
    review["spec"]["resourceAttributes"]["verb"] = "delete"
    assert lab.request("POST", path, review, token=token)[1]["status"]["allowed"] is False


def test_a_lost_node_keeps_its_pod_terminating_and_answers_no_exec(lab):
    lab.start("there", "sleep 60", gpus=4)
    pod = lab.until_running("there")
    lab.pull("lose-node", name="node-1")
    code, answer = lab.request("GET", lab.path("pods", pod["metadata"]["name"]) + "/exec?command=true")
    assert (code, "no route to host" in answer["message"]) == (500, True)
    lab.pull("advance", seconds=301)
    lab.until(lambda: "deletionTimestamp" in lab.pods("there")[0]["metadata"], "the eviction")
    disrupted = [c for c in lab.pods("there")[0]["status"]["conditions"] if c["type"] == "DisruptionTarget"]
    assert [c["reason"] for c in disrupted] == ["DeletionByTaintManager"]
    lab.pull("find-node", name="node-1")
    lab.until_condition("there", "Failed")


def test_an_evicted_pod_says_so(lab):
    lab.start("heavy", "sleep 60")
    pod = lab.until_running("heavy")
    lab.pull("evict", namespace="lab", name=pod["metadata"]["name"], message="The node was low on resource: memory.")
    lab.until_condition("heavy", "Failed")
    (pod,) = lab.pods("heavy")
    assert (pod["status"]["phase"], pod["status"]["reason"]) == ("Failed", "Evicted")
    assert "TerminationByKubelet" in str(pod["status"]["conditions"])


def test_a_queue_holds_a_job_until_it_is_admitted(make_lab):
    lab = make_lab("--queues")
    job = lab.job("queued")
    job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "team"
    lab.request("POST", lab.jobs_path(), job)
    lab.until_condition("queued", "Suspended")
    assert not lab.pods("queued")
    patch = {"spec": {"suspend": False}}
    lab.request("PATCH", lab.jobs_path("queued"), patch, content_type="application/merge-patch+json")
    lab.until_condition("queued", "Complete")


@pytest.mark.parametrize("code", [429, 500, 503])
def test_a_fault_answers_the_nth_call_only(lab, code):
    lab.pull("arm", kind=str(code), verb="list", resource="jobs", nth=2, retry_after_s=1)
    answers = [lab.request("GET", lab.jobs_path())[0] for _ in range(3)]
    assert answers == [200, code, 200]
    assert lab.pull("struck") == [1]


def test_a_lost_response_hides_a_create_that_happened(lab):
    lab.pull("arm", kind="lost", verb="create", resource="jobs")
    with pytest.raises((ConnectionResetError, http.client.RemoteDisconnected, urllib.error.URLError)):
        lab.request("POST", lab.jobs_path(), lab.job("hidden"))
    assert lab.request("GET", lab.jobs_path("hidden"))[0] == 200


def test_a_reset_keeps_a_create_from_happening(lab):
    lab.pull("arm", kind="reset", verb="create", resource="jobs")
    with pytest.raises((ConnectionResetError, http.client.RemoteDisconnected, urllib.error.URLError)):
        lab.request("POST", lab.jobs_path(), lab.job("never"))
    assert lab.request("GET", lab.jobs_path("never"))[0] == 404


def test_a_slow_call_answers_later(lab):
    lab.pull("arm", kind="slow", verb="list", resource="jobs", delay_s=0.5)
    began = time.monotonic()
    assert lab.request("GET", lab.jobs_path())[0] == 200
    assert time.monotonic() - began >= 0.5


def test_every_call_is_written_down(lab):
    lab.pull("forget-calls")
    lab.request("GET", lab.jobs_path("nothing"))
    (call,) = lab.pull("calls")
    assert (call["verb"], call["resource"], call["name"], call["code"]) == ("get", "jobs", "nothing", 404)
