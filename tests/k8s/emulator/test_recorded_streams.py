"""The emulator against what a real cluster delivered: the same conditions, states and events in the same order."""

import json
import re
from pathlib import Path

import pytest

STREAMS = Path(__file__).parents[4] / "shared" / "kubernetes" / "streams"
CASES = (
    "bad_command", "deadline", "delete", "failure", "failure_retry", "gpu_queue", "image_pull", "no_configmap", "oom",
    "preempted", "quota_never", "quota_used", "success", "suspend", "ttl", "unschedulable",
)  # fmt: skip
RUN = """
import signal, sys, time
mode, *rest = sys.argv[1:]
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
print("up", flush=True)
if mode == "fail":
    sys.exit(3)
if mode == "oom":
    held = b"x" * (192 << 20)
    time.sleep(60)
if mode == "sleep":
    time.sleep(600 if int(rest[0]) > 100 else 1.0)
"""
pytestmark = pytest.mark.skipif(not STREAMS.is_dir(), reason=f"no recorded streams at {STREAMS}")


@pytest.mark.parametrize("case", CASES)
def test_a_recorded_case_goes_the_same_way_here(make_lab, case):
    recorded = [json.loads(line) for line in (STREAMS / f"{case}.jsonl").read_text().splitlines()]
    lab = make_lab(pace=0.1)
    prepare(lab, case)
    jobs = [entry["object"] for entry in recorded if entry["stream"] == "jobs" and entry["type"] == "ADDED"]
    for job in jobs:
        manifest = manifest_of(job)
        assert lab.request("POST", lab.jobs_path(), manifest)[0] == 201
        if job is not jobs[-1]:
            settle(lab, case, job["metadata"]["name"])
    drive(lab, case, [job["metadata"]["name"] for job in jobs])
    want = tell(recorded)
    lab.until(lambda: is_as_long(tell(lab.changes()), want), lambda: difference(tell(lab.changes()), want), limit_s=20)
    got = tell(lab.changes())
    for subject in want:
        assert got[subject] == want[subject], difference(got, want)


def is_as_long(got, want):
    return all(len(got.get(subject, [])) >= len(story) for subject, story in want.items())


def manifest_of(job):
    """What had been sent: the recorded object without what a server adds."""
    spec = {key: value for key, value in job["spec"].items() if key not in {"selector", "manualSelector"}}
    spec["template"] = {
        "metadata": {"labels": dict(job["metadata"]["labels"])},
        "spec": job["spec"]["template"]["spec"],
    }
    return {
        "apiVersion": "batch/v1", "kind": "Job", "spec": spec,
        "metadata": {"name": job["metadata"]["name"], "labels": job["metadata"]["labels"]},
    }  # fmt: skip


def prepare(lab, case):
    source = {"metadata": {"name": "src"}, "data": {"run.py": RUN}}
    assert lab.request("POST", lab.path("configmaps"), source)[0] == 201
    if case.startswith("quota"):
        hard = {"requests.nvidia.com/gpu": "2" if case == "quota_never" else "4"}
        quota = {"metadata": {"name": "q"}, "spec": {"hard": hard}}
        assert lab.request("POST", lab.path("resourcequotas"), quota)[0] == 201
    if case == "preempted":
        high = {"metadata": {"name": "bed-high"}, "value": 1000}
        assert lab.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", high)[0] == 201


def settle(lab, case, name):
    if case in {"preempted", "gpu_queue", "quota_used"}:
        lab.until_logged(lab.until_running(name), "up")


def drive(lab, case, names):
    """What the recording did from outside, and time put forward where it waited."""
    (name, *_) = names
    match case:
        case "deadline":
            lab.until_logged(lab.until_running(name), "up")
            lab.pull("advance", seconds=6)
        case "delete":
            pod = lab.until_running(name)
            lab.until_logged(pod, "up")
            uid = pod["metadata"]["ownerReferences"][0]["uid"]
            wrong = {"preconditions": {"uid": "nobody"}, "propagationPolicy": "Foreground"}
            assert lab.request("DELETE", lab.jobs_path(name), wrong)[0] == 409
            assert lab.request("DELETE", lab.jobs_path(name), {**wrong, "preconditions": {"uid": uid}})[0] == 200
            lab.until(lambda: lab.request("GET", lab.jobs_path(name))[0] == 404, "the Job to go")
        case "failure_retry":
            lab.until(lambda: "Failed" in lab.phases(name), "the first to fail")
            lab.pull("advance", seconds=10)
        case "suspend":
            lab.until(lambda: "Suspended" in lab.conditions(name), "suspension")
            lab.request("PATCH", lab.jobs_path(name), {"spec": {"suspend": False}},
                        content_type="application/merge-patch+json")  # fmt: skip
        case "ttl":
            lab.until_condition(name, "Complete")
            lab.pull("advance", seconds=5)
        case "quota_used":
            lab.until_condition(name, "Complete")
            lab.pull("advance", seconds=30)
        case "image_pull":
            lab.until(lambda: "BackOff" in str(lab.changes(["Event"])), "the back-off")
            lab.pull("advance", seconds=12)


def tell(stream):
    """The story of each object: its states in order, without repetitions, names, times and numbers of this place."""
    stories = {}
    for entry in stream:
        tree = entry["object"]
        line = {"Job": job_line, "Pod": pod_line, "Event": event_line}[tree["kind"]](tree, entry["type"])
        story = stories.setdefault(subject_of(tree), [])
        if line is not None and line not in story[-1:] and not (tree["kind"] == "Event" and line in story):
            story.append(line)
    return {subject: story for subject, story in stories.items() if story}


def subject_of(tree):
    if tree["kind"] == "Event":
        return f"events of {tree['involvedObject']['kind']} {stem(tree['involvedObject']['name'])}"
    return f"{tree['kind']} {stem(tree['metadata']['name'])}"


def stem(name):
    return name.split("-")[0]


def job_line(job, kind):
    status = job["status"]
    conditions = [(entry["type"], entry["status"], entry["reason"]) for entry in status.get("conditions", [])]
    counts = [f"{key} {status[key]}" for key in ("succeeded", "failed", "terminating") if status.get(key)]
    deleting = [*job["metadata"].get("finalizers", [])]
    return str((kind if kind == "DELETED" else "", conditions, counts, deleting))


def pod_line(pod, kind):
    status = pod["status"]
    conditions = sorted((c["type"], c["status"], c.get("reason", "")) for c in status.get("conditions", []))
    states = [
        (name, detail.get("reason", ""), detail.get("exitCode", ""), detail.get("startedAt", "")[:4] == "1970")
        for entry in status.get("containerStatuses", [])
        for name, detail in entry["state"].items()
    ]
    deleting = "deleting" if "deletionTimestamp" in pod["metadata"] else ""
    return str((kind if kind == "DELETED" else "", status["phase"], conditions, states, deleting))


def event_line(event, kind):
    message = re.sub(r"assigned \S+ to", "assigned PLACE to", event["message"])
    message = re.sub(r"\b[a-z0-9]+-[a-z0-9]{5}\b", "POD", message)
    message = re.sub(r"(to|on node) \S+$", r"\1 NODE", message)
    message = re.sub(r"pod [0-9a-f-]{36}", "pod UID", message)
    message = re.sub(r"(failed to resolve image).*", r"\1", message)
    shape = "eventTime" if event["firstTimestamp"] is None else "counted"
    return (event["type"], event["reason"], message, shape, event["reportingComponent"])


def difference(got, want):
    lines = []
    for subject in want:
        if got.get(subject) != want[subject]:
            lines += [f"--- {subject}", *(f"  want {line}" for line in want[subject])]
            lines += [f"  got  {line}" for line in got.get(subject, [])]
    return "\n".join(["", *lines])
