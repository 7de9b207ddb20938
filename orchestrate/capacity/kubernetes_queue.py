"""What keeps a suspended Job waiting: Kueue's own word on it where there is one, else only that it is suspended."""

from __future__ import annotations

from orchestrate.capacity.finding import Finding
from orchestrate.capacity.seen import Seen, Tree, condition, conditions
from orchestrate.capacity.taxonomy import Basis, Reason

__all__ = ["held_in_queue"]

_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


def held_in_queue(seen: Seen) -> Finding | None:
    """Why the Job is suspended; None where it is not (a `Suspended` condition outlives the suspension a little)."""
    spec = (seen.job or {}).get("spec") or {}
    if not spec.get("suspend"):
        return None
    for workload in seen.workloads:
        finding = _told_by(workload)
        if finding is not None:
            return finding
    labels = ((seen.job or {}).get("metadata") or {}).get("labels") or {}
    queue = labels.get(_QUEUE_LABEL)
    told = f"queue {queue} has not admitted it" if queue else "the Job is suspended, and nobody has resumed it"
    return Finding(Reason.QUEUED, Basis.STRUCTURE, told, final=False)


def _told_by(workload: Tree) -> Finding | None:
    """What one Workload says: checks that rejected it, its deactivation, then why no quota is reserved."""
    for check in (workload.get("status") or {}).get("admissionChecks") or ():
        if check.get("state") == "Rejected":
            told = f"admission check {check.get('name')} rejected it: {check.get('message')}"
            return Finding(Reason.DENIED, Basis.STRUCTURE, told, final=True)
    if (workload.get("spec") or {}).get("active") is False:
        return Finding(Reason.DENIED, Basis.STRUCTURE, "the queue has deactivated the workload", final=True)
    evicted = condition(workload, "Evicted")
    reserved = next((item for item in conditions(workload) if item.get("type") == "QuotaReserved"), None)
    if reserved is None or reserved.get("status") == "True":
        if evicted is not None and evicted.get("reason") == "Preempted":
            return Finding(Reason.PREEMPTED, Basis.STRUCTURE, str(evicted.get("message")), final=False)
        return None
    message = str(reserved.get("message") or "")
    words = message.lower()
    if "maximum capacity" in words and "unused quota" not in words:
        # The only sign of *never* that Kueue gives, flavor by flavor: "insufficient quota for nvidia.com/gpu in flavor
        # a, request > maximum capacity (8 > 4)". Another flavor that only lacks unused quota makes it a *not now*.
        return Finding(Reason.QUOTA_TOO_SMALL, Basis.TEXT, message, final=True)
    if reserved.get("reason") == "Inadmissible" and ("doesn't exist" in words or "does not exist" in words):
        return Finding(Reason.MISCONFIGURED, Basis.TEXT, message, final=False)
    return Finding(Reason.QUEUED, Basis.STRUCTURE, message or "no quota is reserved for it yet", final=False)
