"""Each verb of the Role is needed: without it a life cycle breaks off, or says what it lacks.

The preflight knows nothing of the denial here: it would refuse all of them. The table says at which stage it shows.
"""

import pytest
from k8s_bed import until

from orchestrate.backends.kubernetes_client import ApiError
from orchestrate.backends.kubernetes_preflight import NEEDED_RIGHTS
from orchestrate.backends.protocol import Outcome
from orchestrate.errors import UnsatisfiableError

JOBS = "/apis/batch/v1/namespaces/team/jobs"
BREAKS = {
    ("create", "jobs"): "acquire", ("get", "jobs"): "acquire",
    ("list", "jobs"): "release", ("delete", "jobs"): "release",
    ("create", "configmaps"): "acquire", ("get", "configmaps"): "release",
    ("list", "configmaps"): "release", ("delete", "configmaps"): "release",
    ("get", "pods"): "release", ("list", "pods"): "acquire", ("delete", "pods"): "release",
    ("get", "pods/log"): "log", ("get", "pods/exec"): "collect", ("create", "pods/exec"): "collect",
    ("list", "events"): "acquire",
}  # fmt: skip
RIGHTS = [(verb, resource) for _, resource, verbs in NEEDED_RIGHTS for verb in verbs]


def asked_for(method, path):
    """(verb, resource) that a request needs."""
    if method == "EXEC":
        return {("get", "pods/exec"), ("create", "pods/exec")}
    parts = path.split("/")[path.split("/").index("namespaces") + 2 :] if "/namespaces/team/" in path else [""]
    resource = parts[0] + (f"/{parts[2]}" if len(parts) > 2 else "")
    verb = {"POST": "create", "DELETE": "delete"}.get(method, "get" if len(parts) > 1 else "list")
    return {(verb, resource)}


def breaks_at(site, faulty, denied):
    """The first stage of a life cycle that does not do its work without that right; None where each does."""

    def fails(method, path, _n):
        return ApiError(403, "Forbidden", f"cannot {denied}") if denied in asked_for(method, path) else None

    backend, _ = faulty(fails, collect_wait_s=2)
    request = site.request()
    backend.preflight(request)
    backend.intent(request)
    try:
        backend.acquire(request, budget_s=60, pause=site.pause(backend))
    except UnsatisfiableError as error:
        return "acquire" if error.case.offers[0].reason.label == "denied" else str(error)
    backend.submit(request, budget_s=600, lifeline_fd=None)
    status, _ = site.ended(backend)
    assert status.exit_code == 0
    if backend.collect(request).problem is not None:
        return "collect"
    if not (request.logs / "node.log").exists():
        return "log"
    if denied != ("delete", "jobs"):
        orphan_what_the_job_owns(site)
    if any(step.outcome is Outcome.FAILED for step in backend.release()):
        return "release"
    assert backend.census().is_clean
    return None


def orphan_what_the_job_owns(site):
    """Somebody deletes the Job with `--cascade=orphan`: pod and ConfigMaps have to be given back one by one."""
    (job,) = site.get(JOBS)
    options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Orphan"}
    site.send("DELETE", f"{JOBS}/{job['metadata']['name']}", options)
    until(lambda: not site.get(JOBS), "the Job to go")


def test_the_table_has_every_right_that_a_launch_asks_for():
    assert set(BREAKS) == set(RIGHTS)


@pytest.mark.parametrize("denied", [None, *RIGHTS], ids=lambda right: "none" if right is None else " ".join(right))
def test_without_any_one_right_a_life_cycle_breaks_off_or_says_what_it_lacks(site, faulty, denied):
    assert breaks_at(site, faulty, denied) == BREAKS.get(denied)
