"""How the end of a pod that has run is to be read.

The Job's own condition does not tell: a preempted pod, a lost node and a failed test all say `BackoffLimitExceeded`.
The pod's conditions and its container's end do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from orchestrate.capacity.seen import Seen, Tree, condition, conditions, newest_pod, started, terminated_state
from orchestrate.markup import brief
from orchestrate.verdict import Verdict

__all__ = ["Ending", "HowEnded", "ending", "was_replaced"]

_REPLACED = "its pod was taken away while it ran, and the cluster began another"


class HowEnded(StrEnum):
    """What brought a pod to its end."""

    COMPLETE = "complete"
    EXITED = "exited"
    DEADLINE = "deadline"
    OUT_OF_MEMORY = "out-of-memory"
    EVICTED = "evicted"
    PREEMPTED = "preempted"
    NODE_LOST = "node-lost"
    DELETED = "deleted"
    NEVER_STARTED = "never-started"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a pod ended.

    Attributes:
        how: what brought the end about.
        exit_code: of the container, None where nobody knows it (or it says nothing about the payload).
        fault: in words, what struck the payload from outside; None where it ended by itself or by its cap.
        by_cap: the Job's `activeDeadlineSeconds` ended it.
        verdict: what that alone makes of the run; None where the payload's exit code and evidence decide.
    """

    how: HowEnded
    exit_code: int | None
    fault: str | None
    by_cap: bool
    verdict: Verdict | None


def ending(seen: Seen, *, settled: bool = False) -> Ending | None:
    """How the newest pod ended; None while it runs, and while what tells is not there yet.

    The pods have to be read after the Job. `settled` says that the Job is terminal or gone and that a later look at
    pods and events brings nothing more: then there always is an answer, `UNKNOWN` at worst, which is no failed test.
    """
    if was_replaced(seen):
        return _by_events(seen) or _struck(HowEnded.DELETED, _REPLACED) if settled else None
    pod = newest_pod(seen)
    if condition(seen.job, "Complete"):
        return Ending(HowEnded.COMPLETE, 0, None, by_cap=False, verdict=None)
    failed = condition(seen.job, "Failed")
    over = failed is not None or seen.job_gone
    if _deadline(seen):
        return Ending(HowEnded.DEADLINE, None, None, by_cap=True, verdict=None) if over else None
    told = None if pod is None else _by_pod(seen, pod, over=over)
    if told is not None and (over or told.how is HowEnded.NODE_LOST):
        return told
    if over and (told := _by_events(seen)) is not None:
        return told
    if seen.job_gone:
        return _struck(HowEnded.DELETED, "the Job was deleted by somebody while it ran")
    if settled:
        why = (failed or {}).get("message") or "the Job is not terminal"
        return _struck(HowEnded.UNKNOWN, f"no pod is left to tell how it ended ({why})")
    return None


def was_replaced(seen: Seen) -> bool:
    """Whether the cluster began a Job of one try anew: before 1.26 a pod that was deleted is no failure to it."""
    if ((seen.job or {}).get("spec") or {}).get("backoffLimit") != 0:
        return False
    newest = newest_pod(seen)
    return any(pod is not newest and started(replace(seen, pods=(pod,), events=())) for pod in seen.pods)


def _by_events(seen: Seen) -> Ending | None:
    """What the events of a pod tell that was gone before its last state was seen."""
    for event in seen.events:
        if (event.get("involvedObject") or {}).get("kind") == "Pod" and event.get("reason") in _TOLD_BY_EVENT:
            how, what = _TOLD_BY_EVENT[str(event["reason"])]
            return _struck(how, _words(what, event))
    return None


_TOLD_BY_EVENT = {
    "Preempted": (HowEnded.PREEMPTED, "preempted: others with more priority took the GPUs"),
    "Evicted": (HowEnded.EVICTED, "evicted from its node"),
    "TaintManagerEviction": (HowEnded.NODE_LOST, "the node was lost"),
}


def _by_pod(seen: Seen, pod: Tree, *, over: bool) -> Ending | None:
    status = pod.get("status") or {}
    end = terminated_state(pod)
    deleted = _deleted(pod)
    stopped = end is not None or status.get("phase") in {"Failed", "Succeeded", "Unknown"}
    disrupted = condition(pod, "DisruptionTarget")
    if disrupted is not None and _is_node_lost(pod, str(disrupted.get("reason"))) and (deleted or stopped or over):
        # Its kubelet will never confirm the end, and the Job waits for that for ever: nothing more is coming.
        return _struck(HowEnded.NODE_LOST, _words("the node was lost", disrupted))
    if disrupted is not None and _came_first(disrupted, end) and (stopped or over):
        if disrupted.get("reason") == "PreemptionByScheduler":
            return _struck(HowEnded.PREEMPTED, _words("preempted: others with more priority took the GPUs", disrupted))
        return _struck(HowEnded.EVICTED, _words("evicted from its node", status if status.get("reason") else disrupted))
    if status.get("reason") == "NodeLost" or status.get("phase") == "Unknown":
        return _struck(HowEnded.NODE_LOST, _words("the node was lost", status))
    if status.get("phase") == "Failed" and status.get("reason"):
        how = HowEnded.EVICTED if started(seen) else HowEnded.NEVER_STARTED
        what = "evicted from its node" if started(seen) else "its node refused it"
        return _struck(how, _words(what, status))
    if end is None:
        return None
    if end.get("reason") == "ContainerStatusUnknown":
        return _struck(HowEnded.NODE_LOST, _words("the node lost track of the container", end))
    if end.get("reason") in {"StartError", "ContainerCannotRun"}:
        return _struck(HowEnded.NEVER_STARTED, _words("the container could not be started", end))
    if end.get("reason") == "OOMKilled":
        told = "the kernel's memory killer ended the container (OOMKilled): its memory limit was reached"
        return _struck(HowEnded.OUT_OF_MEMORY, told, end.get("exitCode"))
    code = int(end.get("exitCode") or 0)
    if deleted and not (condition(seen.job, "Failed") and _deleted(seen.job)):
        # Neither a deadline nor a disruption, and the Job had not ended before: whatever code the payload gave on its
        # SIGTERM says nothing about what it tested.
        return _struck(HowEnded.DELETED, "the pod was deleted by somebody while it ran", code)
    return Ending(HowEnded.EXITED, code, None, by_cap=False, verdict=None)


_NODE_GONE = {"DeletionByTaintManager", "DeletionByPodGC"}


def _struck(how: HowEnded, fault: str, exit_code: int | None = None) -> Ending:
    return Ending(how, exit_code, brief(fault), by_cap=False, verdict=Verdict.INFRASTRUCTURE)


def _is_node_lost(pod: Tree, reason: str) -> bool:
    """The taint manager also removes pods from nodes that somebody tainted by hand; a lost node's pod is not ready."""
    if reason not in _NODE_GONE:
        return False
    ready = next((item for item in conditions(pod) if item.get("type") == "Ready"), {})
    return terminated_state(pod) is None or ready.get("reason") not in {"PodCompleted", "PodFailed"}


def _came_first(disrupted: Tree, end: Tree | None) -> bool:
    """Whether the disruption was there before the container ended: one that came later is not why it ended."""
    at, finished = str(disrupted.get("lastTransitionTime") or ""), str((end or {}).get("finishedAt") or "")
    return not at or not finished or at <= finished


def _deleted(thing: Tree | None) -> bool:
    return bool(((thing or {}).get("metadata") or {}).get("deletionTimestamp"))


def _deadline(seen: Seen) -> bool:
    for kind in ("Failed", "FailureTarget"):
        found = condition(seen.job, kind)
        if found is not None and found.get("reason") == "DeadlineExceeded":
            return True
    return False


def _words(what: str, thing: Tree) -> str:
    told = ": ".join(str(thing[key]) for key in ("reason", "message") if thing.get(key))
    return f"{what} ({told})" if told else what
