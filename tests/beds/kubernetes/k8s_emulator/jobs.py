"""The Job controller: pods for Jobs, and the conditions that follow from what becomes of them."""

import random

from k8s_emulator.answers import ApiError
from k8s_emulator.clock import seconds

TRACKING = "batch.kubernetes.io/job-tracking"
FINISHED = {"Succeeded", "Failed"}
LETTERS = "bcdfghjklmnpqrstvwxz2456789"
MESSAGES = {
    "BackoffLimitExceeded": "Job has reached the specified backoff limit",
    "DeadlineExceeded": "Job was active longer than specified deadline",
    "CompletionsReached": "Reached expected number of succeeded pods",
    "JobSuspended": "Job suspended",
    "JobResumed": "Job resumed",
}


class Jobs:
    """One `reconcile` is one look at every Job; each look takes at most one visible step of each."""

    def __init__(self, store, clock, events, deletion, create_pod):
        self.store = store
        self.clock = clock
        self.events = events
        self.deletion = deletion
        self.create_pod = create_pod
        self._retry_at = {}
        self._tries = {}

    def reconcile(self):
        for job in self.store.all("jobs"):
            self._sync(job)
        uids = {job["metadata"]["uid"] for job in self.store.all("jobs") if "deletionTimestamp" not in job["metadata"]}
        for pod in self.store.all("pods"):
            owners = pod["metadata"].get("ownerReferences", [])
            if TRACKING in pod["metadata"].get("finalizers", []) and not any(ref["uid"] in uids for ref in owners):
                self._untrack(pod)

    def _sync(self, job):
        pods = self._pods_of(job)
        status = job.get("status") or {}
        conditions = {condition["type"] for condition in status.get("conditions", []) if condition["status"] == "True"}
        if conditions & {"Complete", "Failed"}:
            return None
        if "deletionTimestamp" in job["metadata"]:
            return self._count(job, pods, {})
        if job["spec"].get("suspend"):
            return self._suspend(job, pods, conditions)
        if "Suspended" in conditions:
            self._condition(job, "Suspended", "JobResumed", value="False")
            self.events.counted(job, "Normal", "Resumed", "Job resumed", component="job-controller")
            return None
        if self._track(job, pods):
            return None
        job = self.store.get("jobs", job["metadata"]["namespace"], job["metadata"]["name"])
        ending = next(
            (c for c in job["status"].get("conditions", []) if c["type"] in ENDINGS and c["status"] == "True"), None
        )
        if ending is not None:
            return self._end(job, pods, ending)
        if self._late(job):
            return self._deadline(job, pods)
        return self._grow(job, pods)

    def _pods_of(self, job):
        uid = job["metadata"]["uid"]
        return [
            pod
            for pod in self.store.all("pods", job["metadata"]["namespace"])
            if any(ref["uid"] == uid and ref.get("controller") for ref in pod["metadata"].get("ownerReferences", []))
        ]

    def _suspend(self, job, pods, conditions):
        for pod in pods:
            if _is_active(pod):
                self._delete(pod)
        if "Suspended" not in conditions:
            self._condition(job, "Suspended", "JobSuspended")
            self._count(job, [], {"startTime": None})
            self.events.counted(job, "Normal", "Suspended", "Job suspended", component="job-controller")

    def _track(self, job, pods):
        """Count finished pods: first uncounted, with the condition that follows; then released; then counted."""
        status = job.get("status") or {}
        uncounted = status.get("uncountedTerminatedPods") or {}
        done = [pod for pod in pods if TRACKING in pod["metadata"].get("finalizers", []) and not _is_active(pod)]
        known = {*uncounted.get("failed", []), *uncounted.get("succeeded", [])}
        fresh = [pod for pod in done if pod["metadata"]["uid"] not in known]
        if fresh:
            told = {
                "failed": [
                    *uncounted.get("failed", []),
                    *(p["metadata"]["uid"] for p in fresh if not _has_succeeded(p)),
                ],
                "succeeded": [
                    *uncounted.get("succeeded", []),
                    *(p["metadata"]["uid"] for p in fresh if _has_succeeded(p)),
                ],
            }
            self._count(job, pods, {"uncountedTerminatedPods": {key: value for key, value in told.items() if value}})
            self._decide(job, told)
            return True
        if done:
            for pod in done:
                self._untrack(pod)
            return True
        if known:
            failed = status.get("failed", 0) + len(uncounted.get("failed", []))
            succeeded = status.get("succeeded", 0) + len(uncounted.get("succeeded", []))
            self._retry_at[job["metadata"]["uid"]] = self.clock.now() + 10 * 2 ** max(0, failed - 1)
            self._count(job, pods, {"uncountedTerminatedPods": {}, "failed": failed, "succeeded": succeeded})
            self.clock.alarm(self._retry_at[job["metadata"]["uid"]], lambda: None)
            ending = next(
                (c for c in status.get("conditions", []) if c["type"] in ENDINGS and c["status"] == "True"), None
            )
            if ending is None or any(_is_terminating(pod) for pod in pods):
                return True
            self._end(self.store.get("jobs", job["metadata"]["namespace"], job["metadata"]["name"]), pods, ending)
            return True
        return False

    def _decide(self, job, told):
        status = job.get("status") or {}
        if {condition["type"] for condition in status.get("conditions", [])} & set(ENDINGS):
            return
        succeeded = status.get("succeeded", 0) + len(told["succeeded"])
        if status.get("failed", 0) + len(told["failed"]) > job["spec"]["backoffLimit"]:
            self._condition(job, "FailureTarget", "BackoffLimitExceeded")
        elif succeeded >= job["spec"]["completions"]:
            self._condition(job, "SuccessCriteriaMet", "CompletionsReached")

    def _end(self, job, pods, ending):
        """The terminal condition, once nothing runs any more."""
        for pod in pods:
            if _is_active(pod):
                self._delete(pod)
        if any(not _is_finished(pod) or _is_terminating(pod) for pod in pods):
            return self._count(job, pods, {})
        before = job["status"]
        reason = ending["reason"]
        final = {"terminating": 0}
        if ending["type"] == "SuccessCriteriaMet":
            final["completionTime"] = self.clock.stamp()
        settled = self._count(
            job, pods, {key: value for key, value in final.items() if before.get(key) != value and key == "terminating"}
        )
        if settled["status"].get("uncountedTerminatedPods"):
            return None
        terminal = "Complete" if ending["type"] == "SuccessCriteriaMet" else "Failed"
        job = self._condition(job, terminal, reason, also=final)
        if terminal == "Complete":
            self.events.counted(job, "Normal", "Completed", "Job completed", component="job-controller")
        else:
            self.events.counted(job, "Warning", reason, ending["message"], component="job-controller")
        if (ttl := job["spec"].get("ttlSecondsAfterFinished")) is not None:
            self.clock.alarm(seconds(self.clock.stamp()) + ttl, lambda: None)
        return None

    def _late(self, job):
        start, limit = (job.get("status") or {}).get("startTime"), job["spec"].get("activeDeadlineSeconds")
        return bool(start and limit) and self.clock.now() >= seconds(start) + limit

    def _deadline(self, job, pods):
        active = [pod for pod in pods if _is_active(pod)]
        for pod in active:
            self._delete(pod)
            self.events.counted(
                job, "Normal", "SuccessfulDelete", f"Deleted pod: {pod['metadata']['name']}", component="job-controller"
            )
        self._condition(job, "FailureTarget", "DeadlineExceeded")

    def _grow(self, job, pods):
        spec, status = job["spec"], job.get("status") or {}
        active = [pod for pod in pods if _is_active(pod)]
        now = self.clock.now()
        fresh = {} if status.get("startTime") else {"startTime": self.clock.stamp()}
        if fresh and (limit := spec.get("activeDeadlineSeconds")):
            self.clock.alarm(seconds(self.clock.stamp()) + limit, lambda: None)
        wanted = min(spec["parallelism"], spec["completions"] - status.get("succeeded", 0)) - len(active)
        uid = job["metadata"]["uid"]
        if wanted > 0 and now >= self._retry_at.get(uid, 0):
            try:
                pod = self.create_pod(self._pod(job))
                self._tries.pop(uid, None)
                self.events.counted(
                    job,
                    "Normal",
                    "SuccessfulCreate",
                    f"Created pod: {pod['metadata']['name']}",
                    component="job-controller",
                )
                pods = [*pods, pod]
            except ApiError as error:
                self._tries[uid] = self._tries.get(uid, -1) + 1
                self._retry_at[uid] = now + 2.0 ** min(self._tries[uid], 4)
                self.clock.alarm(self._retry_at[uid], lambda: None)
                message = f"Error creating: {error.message}"
                self.events.counted(job, "Warning", "FailedCreate", message, component="job-controller")
        self._count(job, pods, fresh)

    def _pod(self, job):
        meta, template = job["metadata"], job["spec"]["template"]
        suffix = "".join(random.choices(LETTERS, k=5))
        return {
            "metadata": {
                "name": f"{meta['name'][:57]}-{suffix}", "generateName": f"{meta['name'][:57]}-",
                "namespace": meta["namespace"], "labels": dict(template["metadata"]["labels"]),
                "annotations": dict(template["metadata"].get("annotations") or {}),
                "finalizers": [TRACKING],
                "ownerReferences": [{
                    "apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"],
                    "controller": True, "blockOwnerDeletion": True,
                }],
            },
            "spec": template["spec"],
        }  # fmt: skip

    def _count(self, job, pods, fields):
        active = [pod for pod in pods if _is_active(pod)]
        counts = {
            "active": len(active),
            "ready": sum(_is_ready(pod) for pod in active),
            "terminating": sum(_is_terminating(pod) for pod in pods),
        }

        def write(tree):
            status = tree.setdefault("status", {})
            status.setdefault("uncountedTerminatedPods", {})
            status.update(counts)
            status.update(fields)
            for key in ("active", "failed", "succeeded"):
                if not status.get(key):
                    status.pop(key, None)
            if status.get("startTime", "") is None:
                del status["startTime"]

        meta = job["metadata"]
        return self.store.update("jobs", meta["namespace"], meta["name"], write, uid=meta["uid"])

    def _condition(self, job, kind, reason, *, value="True", also=None):
        stamp = self.clock.stamp()
        condition = {
            "type": kind, "status": value, "reason": reason, "message": MESSAGES[reason], "lastProbeTime": stamp,
            "lastTransitionTime": stamp,
        }  # fmt: skip

        def write(tree):
            status = tree.setdefault("status", {})
            rest = [old for old in status.get("conditions", []) if old["type"] != kind]
            status["conditions"] = [*rest, condition]
            status.update(also or {})

        meta = job["metadata"]
        return self.store.update("jobs", meta["namespace"], meta["name"], write, uid=meta["uid"])

    def _untrack(self, pod):
        def drop(tree):
            rest = [name for name in tree["metadata"].get("finalizers", []) if name != TRACKING]
            tree["metadata"]["finalizers"] = rest
            if not rest:
                tree["metadata"].pop("finalizers")

        meta = pod["metadata"]
        self.store.update("pods", meta["namespace"], meta["name"], drop, uid=meta["uid"])

    def _delete(self, pod):
        self.deletion.delete("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])


ENDINGS = ("FailureTarget", "SuccessCriteriaMet")


def _is_finished(pod):
    return pod.get("status", {}).get("phase") in FINISHED


def _has_succeeded(pod):
    return pod.get("status", {}).get("phase") == "Succeeded"


def _is_terminating(pod):
    return "deletionTimestamp" in pod["metadata"] and not _is_finished(pod)


def _is_active(pod):
    return not _is_finished(pod) and "deletionTimestamp" not in pod["metadata"]


def _is_ready(pod):
    conditions = pod.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
