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
        holding = {
            entry["type"] for entry in (job.get("status") or {}).get("conditions", []) if entry["status"] == "True"
        }
        if holding & {"Complete", "Failed"}:
            return
        if "deletionTimestamp" in job["metadata"]:
            if any(_is_terminating(pod) for pod in pods):
                self._count(job, pods, {})
        elif job["spec"].get("suspend"):
            self._suspend(job, pods, holding)
        elif "Suspended" in holding:
            self._resume(job, pods)
        elif not self._track(job, pods):
            if (ending := _ending(job)) is not None:
                self._end(job, pods, ending)
            elif self._late(job):
                self._deadline(job, pods)
            else:
                self._grow(job, pods)

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
            self._count(job, [], {"startTime": None}, self._condition("Suspended", "JobSuspended"))
            self._tell(job, "Normal", "Suspended", "Job suspended")

    def _resume(self, job, pods):
        self._grow(job, pods, self._condition("Suspended", "JobResumed", value="False"))
        self._tell(job, "Normal", "Resumed", "Job resumed")

    def _track(self, job, pods):
        """Count finished pods: first uncounted, with the condition that follows; then released; then counted."""
        status = job.get("status") or {}
        uncounted = status.get("uncountedTerminatedPods") or {}
        done = [pod for pod in pods if TRACKING in pod["metadata"].get("finalizers", []) and not _is_active(pod)]
        known = {*uncounted.get("failed", []), *uncounted.get("succeeded", [])}
        fresh = [pod for pod in done if pod["metadata"]["uid"] not in known]
        if fresh:
            told = {key: list(uncounted.get(key, [])) for key in ("failed", "succeeded")}
            for pod in fresh:
                told["succeeded" if _has_succeeded(pod) else "failed"].append(pod["metadata"]["uid"])
            fields = {"uncountedTerminatedPods": {key: value for key, value in told.items() if value}}
            self._count(job, pods, fields, self._decide(job, told))
            return True
        for pod in done:
            self._untrack(pod)
        if done or not known:
            return bool(done)
        failed = status.get("failed", 0) + len(uncounted.get("failed", []))
        succeeded = status.get("succeeded", 0) + len(uncounted.get("succeeded", []))
        again = self.clock.now() + 10 * 2 ** max(0, failed - 1)
        self._retry_at[job["metadata"]["uid"]] = again
        self.clock.alarm(again, _nothing)
        fields = {"uncountedTerminatedPods": {}, "failed": failed, "succeeded": succeeded}
        ending = _ending(job)
        if ending is None or any(_is_terminating(pod) or _is_active(pod) for pod in pods):
            self._count(job, pods, fields)
        else:
            self._close(job, pods, ending, fields)
        return True

    def _decide(self, job, told):
        """The condition that follows from the finished pods, None when none does."""
        status = job.get("status") or {}
        if _ending(job) is not None:
            return None
        succeeded = status.get("succeeded", 0) + len(told["succeeded"])
        if status.get("failed", 0) + len(told["failed"]) > job["spec"]["backoffLimit"]:
            return self._condition("FailureTarget", "BackoffLimitExceeded")
        if succeeded >= job["spec"]["completions"]:
            return self._condition("SuccessCriteriaMet", "CompletionsReached")
        return None

    def _end(self, job, pods, ending):
        """The terminal condition, once nothing runs any more."""
        for pod in pods:
            if _is_active(pod):
                self._delete(pod)
        left = any(not _is_finished(pod) or _is_terminating(pod) for pod in pods)
        if left or job["status"].get("terminating") or job["status"].get("uncountedTerminatedPods"):
            self._count(job, pods, {})
        else:
            self._close(job, pods, ending, {})

    def _close(self, job, pods, ending, fields):
        if ending["type"] == "SuccessCriteriaMet":
            fields = {**fields, "completionTime": self.clock.stamp()}
            self._count(job, pods, fields, self._condition("Complete", ending["reason"]))
            self._tell(job, "Normal", "Completed", "Job completed")
        else:
            self._count(job, pods, fields, self._condition("Failed", ending["reason"]))
            self._tell(job, "Warning", ending["reason"], ending["message"])
        if (ttl := job["spec"].get("ttlSecondsAfterFinished")) is not None:
            self.clock.alarm(seconds(self.clock.stamp()) + ttl, _nothing)

    def _late(self, job):
        start, limit = (job.get("status") or {}).get("startTime"), job["spec"].get("activeDeadlineSeconds")
        return bool(start and limit) and self.clock.now() >= seconds(start) + limit

    def _deadline(self, job, pods):
        for pod in pods:
            if _is_active(pod):
                self._delete(pod)
                self._tell(job, "Normal", "SuccessfulDelete", f"Deleted pod: {pod['metadata']['name']}")
        told = {"failed": [pod["metadata"]["uid"] for pod in pods if TRACKING in pod["metadata"].get("finalizers", [])]}
        fields = {"uncountedTerminatedPods": {key: value for key, value in told.items() if value}}
        self._count(job, self._pods_of(job), fields, self._condition("FailureTarget", "DeadlineExceeded"))

    def _grow(self, job, pods, condition=None):
        spec, status = job["spec"], job.get("status") or {}
        active = [pod for pod in pods if _is_active(pod)]
        now = self.clock.now()
        fresh = {} if status.get("startTime") else {"startTime": self.clock.stamp()}
        if fresh and (limit := spec.get("activeDeadlineSeconds")):
            self.clock.alarm(seconds(self.clock.stamp()) + limit, _nothing)
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
                self.clock.alarm(self._retry_at[uid], _nothing)
                self._tell(job, "Warning", "FailedCreate", f"Error creating: {error.message}")
        self._count(job, pods, fresh, condition)

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

    def _count(self, job, pods, fields, condition=None):
        """Write the counts, `fields` and a condition, all in one change."""
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
            if condition is not None:
                rest = [old for old in status.get("conditions", []) if old["type"] != condition["type"]]
                status["conditions"] = [*rest, condition]

        meta = job["metadata"]
        self.store.update("jobs", meta["namespace"], meta["name"], write, uid=meta["uid"])

    def _condition(self, kind, reason, *, value="True"):
        stamp = self.clock.stamp()
        return {
            "type": kind, "status": value, "reason": reason, "message": MESSAGES[reason], "lastProbeTime": stamp,
            "lastTransitionTime": stamp,
        }  # fmt: skip

    def _tell(self, job, kind, reason, message):
        self.events.counted(job, kind, reason, message, component="job-controller")

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


def _nothing():
    """An alarm only has the controllers look again."""


def _ending(job):
    """The condition that says how the Job will end, None before."""
    conditions = (job.get("status") or {}).get("conditions", [])
    return next((entry for entry in conditions if entry["type"] in ENDINGS and entry["status"] == "True"), None)


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
