"""Objects, versions, selectors, pages, preconditions, propagation, watches: what clients rely on."""

import json
import urllib.request

import pytest

MERGE = "application/merge-patch+json"


@pytest.fixture
def lab(shared_lab):
    return shared_lab


def config_map(lab, name, **labels):
    code, made = lab.request("POST", lab.path("configmaps"), {"metadata": {"name": name, "labels": labels}, "data": {}})
    assert code == 201
    return made


def names(answer):
    return [item["metadata"]["name"] for item in answer["items"]]


def test_an_object_gets_a_uid_and_each_change_a_later_version(lab):
    made = config_map(lab, "versions")
    code, changed = lab.request("PATCH", lab.path("configmaps", "versions"), {"data": {"a": "1"}}, content_type=MERGE)
    assert code == 200
    assert changed["metadata"]["uid"] == made["metadata"]["uid"]
    assert int(changed["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
    assert (
        lab.request("POST", lab.path("configmaps"), {"metadata": {"name": "versions"}})[1]["reason"] == "AlreadyExists"
    )


def test_an_update_of_an_old_version_is_a_conflict(lab):
    made = config_map(lab, "stale")
    assert lab.request("PUT", lab.path("configmaps", "stale"), {**made, "data": {"a": "1"}})[0] == 200
    code, answer = lab.request("PUT", lab.path("configmaps", "stale"), {**made, "data": {"a": "2"}})
    assert (code, answer["reason"]) == (409, "Conflict")


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("side=left", ["sel-a", "sel-b"]),
        ("side=left,size!=big", ["sel-b"]),
        ("side in (left,right),size=big", ["sel-a", "sel-c"]),
        ("side notin (left),size", ["sel-c"]),
        ("!side,kind=sel", ["sel-d"]),
    ],
)
def test_label_selectors_choose(lab, selector, found):
    if lab.request("GET", lab.path("configmaps", "sel-a"))[0] == 404:
        config_map(lab, "sel-a", side="left", size="big", kind="sel")
        config_map(lab, "sel-b", side="left", kind="sel")
        config_map(lab, "sel-c", side="right", size="big", kind="sel")
        config_map(lab, "sel-d", kind="sel")
    query = urllib.request.quote(selector)
    assert names(lab.request("GET", lab.path("configmaps") + f"?labelSelector={query}")[1]) == found


def test_field_selectors_choose(lab):
    config_map(lab, "field-a")
    query = "?fieldSelector=metadata.name%3Dfield-a"
    assert names(lab.request("GET", lab.path("configmaps") + query)[1]) == ["field-a"]


def test_a_list_comes_in_pages_and_a_page_of_old_versions_is_gone(lab):
    for index in range(5):
        config_map(lab, f"page-{index}", kind="page")
    found, query = [], "?labelSelector=kind%3Dpage&limit=2"
    code, answer = lab.request("GET", lab.path("configmaps") + query)
    assert answer["metadata"]["remainingItemCount"] == 3
    token = answer["metadata"]["continue"]
    while True:
        found += names(answer)
        if not answer["metadata"].get("continue"):
            break
        more = f"{query}&continue={answer['metadata']['continue']}"
        code, answer = lab.request("GET", lab.path("configmaps") + more)
    assert found == [f"page-{index}" for index in range(5)]
    config_map(lab, "page-later")
    lab.pull("compact")
    code, answer = lab.request("GET", lab.path("configmaps") + f"{query}&continue={token}")
    assert (code, answer["reason"]) == (410, "Expired")


def test_a_delete_with_another_uid_is_refused(lab):
    made = config_map(lab, "precondition")
    path = lab.path("configmaps", "precondition")
    code, answer = lab.request("DELETE", path, {"preconditions": {"uid": "another"}})
    assert (code, answer["reason"]) == (409, "Conflict")
    assert lab.request("DELETE", path, {"preconditions": {"uid": made["metadata"]["uid"]}})[0] == 200
    assert lab.request("GET", path)[0] == 404


def test_what_is_owned_goes_with_its_owner_and_what_names_a_dead_owner_too(lab):
    job = lab.start("owner", "sleep 60")
    ref = {"apiVersion": "batch/v1", "kind": "Job", "name": "owner", "uid": job["metadata"]["uid"]}
    for name, uid in (("owned", ref["uid"]), ("dead-owner", "00000000-0000-0000-0000-000000000000")):
        meta = {"name": name, "ownerReferences": [{**ref, "uid": uid}]}
        assert lab.request("POST", lab.path("configmaps"), {"metadata": meta})[0] == 201
    lab.until(lambda: lab.request("GET", lab.path("configmaps", "dead-owner"))[0] == 404, "the orphan to be collected")
    assert lab.request("GET", lab.path("configmaps", "owned"))[0] == 200
    lab.request("DELETE", lab.jobs_path("owner"), {"propagationPolicy": "Background"})
    lab.until(
        lambda: lab.request("GET", lab.path("configmaps", "owned"))[0] == 404 and not lab.pods("owner"), "all to go"
    )


def test_a_foreground_delete_keeps_the_owner_until_its_pods_are_gone(lab):
    lab.start("slow-owner", "trap '' TERM; sleep 60 & wait; sleep 60")
    lab.until_running("slow-owner")
    _, answer = lab.request("DELETE", lab.jobs_path("slow-owner"), {"propagationPolicy": "Foreground"})
    assert answer["metadata"]["finalizers"] == ["foregroundDeletion"]
    lab.until(lambda: lab.request("GET", lab.jobs_path("slow-owner"))[0] == 404, "the Job to go")
    told = [
        (entry["object"]["kind"], entry["type"])
        for entry in lab.changes(["Job", "Pod"])
        if entry["object"]["metadata"]["name"].startswith("slow-owner") and entry["type"] == "DELETED"
    ]
    assert told == [("Pod", "DELETED"), ("Job", "DELETED")]


def test_a_delete_without_a_policy_leaves_the_pods_of_a_job(lab):
    lab.start("careless", "sleep 60")
    pod = lab.until_running("careless")
    assert lab.request("DELETE", lab.jobs_path("careless"))[0] == 200
    lab.until(lambda: lab.request("GET", lab.jobs_path("careless"))[0] == 404, "the Job to go")
    (left,) = lab.pods("careless")
    assert left["metadata"]["uid"] == pod["metadata"]["uid"]
    assert "ownerReferences" not in left["metadata"]
    lab.request("DELETE", lab.path("pods", pod["metadata"]["name"]), {"gracePeriodSeconds": 0})
    lab.until(lambda: not lab.pods("careless"), "the pod to go")


def test_a_finished_job_lives_as_long_as_its_ttl(make_lab):
    lab = make_lab()
    lab.start("ttl", "true", ttlSecondsAfterFinished=3600)
    lab.until_condition("ttl", "Complete")
    lab.pull("advance", seconds=3500)
    assert lab.request("GET", lab.jobs_path("ttl"))[0] == 200
    lab.pull("advance", seconds=200)
    lab.until(lambda: lab.request("GET", lab.jobs_path("ttl"))[0] == 404 and not lab.pods("ttl"), "the Job to go")


def test_a_watch_continues_where_a_list_ended_and_bookmarks_carry_versions(lab):
    version = lab.request("GET", lab.path("configmaps"))[1]["metadata"]["resourceVersion"]
    config_map(lab, "watched")
    query = f"?watch=1&resourceVersion={version}&timeoutSeconds=2&allowWatchBookmarks=true"
    told = read_watch(lab, lab.path("configmaps") + query)
    assert told[0][0] == "ADDED"
    assert told[0][1]["metadata"]["name"] == "watched"
    assert [kind for kind, _ in told[1:]] == ["BOOKMARK"] * (len(told) - 1)
    assert len(told) > 1


def test_a_watch_from_forgotten_versions_is_told_that_they_are_gone(lab):
    lab.pull("compact")
    ((kind, status),) = read_watch(lab, lab.path("configmaps") + "?watch=1&resourceVersion=1&timeoutSeconds=5")
    assert (kind, status["code"], status["reason"]) == ("ERROR", 410, "Expired")


def test_labels_and_config_maps_that_a_server_refuses_are_refused(lab):
    code, answer = lab.request("POST", lab.path("configmaps"), {"metadata": {"name": "bad", "labels": {"a": "b c"}}})
    assert (code, answer["reason"]) == (422, "Invalid")
    code, answer = lab.request(
        "POST", lab.path("configmaps"), {"metadata": {"name": "big"}, "data": {"a": "x" * 1048577}}
    )
    assert (code, "Too long" in answer["message"]) == (422, True)
    assert lab.request("POST", "/api/v1/namespaces/nowhere/configmaps", {"metadata": {"name": "a"}})[0] == 404


def read_watch(lab, path):
    with urllib.request.urlopen(lab.bed.url + path, timeout=20) as response:
        entries = [json.loads(line) for line in response if line.strip()]
    return [(entry["type"], entry["object"]) for entry in entries]
