"""Why a Job on Kubernetes is not running, and whether it ever can; read from conditions, events and nodes.

Use: keep one `Seen` over the polls (`seen = remember(seen, now)`), where each poll reads the Job first, then its pods,
then the events, then nodes and quotas where the rights allow it. Then

    case = refusal(seen, asked={"accelerators": "H200:4"}, where="ctx/namespace", at=..., waited_s=...)

is a `Case` as soon as more waiting can not help, and None before that and once a container has run. When the waiting
time is over, or the Job is terminal, `refusal(..., out_of_time=True)` says why it never started: always a `Case`,
unless something may have run. How a pod that has run came to its end is `kubernetes_ending.ending`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrate.capacity.finding import Finding
from orchestrate.capacity.kubernetes_container import never_began
from orchestrate.capacity.kubernetes_creation import creation_refused, quota_too_small
from orchestrate.capacity.kubernetes_queue import held_in_queue
from orchestrate.capacity.kubernetes_scheduling import autoscaled, node_finding, not_scheduled
from orchestrate.capacity.node_fit import availability, gpu_resource, needs
from orchestrate.capacity.seen import Seen, Tree, condition, newest_pod, started
from orchestrate.capacity.taxonomy import Basis, Case, Offer, Reason
from orchestrate.markup import brief

__all__ = ["refusal", "refusal_beforehand"]


def refusal(
    seen: Seen,
    *,
    asked: Mapping[str, Any],
    where: str,
    at: str,
    waited_s: float = 0.0,
    settle_s: float = 45.0,
    out_of_time: bool = False,
) -> Case | None:
    """Why the Job has not started, or None while it still may, and once it has.

    `asked` and `where` go into the case; `at` is now (RFC 3339); `waited_s` is for how long the caller has watched
    this Job. A *never* that is read from the nodes is believed only after `settle_s`: an autoscaler that could bring a
    larger node speaks up within that time. `out_of_time` says that nobody waits any longer.
    """
    if seen.job is None or started(seen) or _may_have_run(seen):
        return None
    finding = _finding(seen, settled=waited_s >= settle_s or out_of_time)
    if finding is None:
        finding = Finding(Reason.PROVIDER_FAULT, Basis.STRUCTURE, _silence(seen), final=False)
    if not finding.final and not out_of_time:
        return None
    return _case(finding, seen, asked, where, at)


def refusal_beforehand(
    job: Tree,
    *,
    nodes: Sequence[Tree] | None,
    foreign_pods: Sequence[Tree] | None,
    quotas: Sequence[Tree] | None,
    asked: Mapping[str, Any],
    where: str,
    at: str,
) -> Case | None:
    """Why the rendered `job` can never run here, before anything is created; None where it might.

    Where the nodes bear the marks of an autoscaler, what they offer now says nothing about never.
    """
    seen = Seen(job, nodes=_tuple(nodes), foreign_pods=_tuple(foreign_pods), quotas=_tuple(quotas))
    finding = quota_too_small(_pod_spec(job), quotas)
    if finding is None and nodes is not None and not autoscaled(seen):
        finding = node_finding(_pod_spec(job), nodes)
        finding = None if finding is None or finding.reason.retry_after_s is not None else finding
    return None if finding is None else _case(finding, seen, asked, where, at)


def _finding(seen: Seen, *, settled: bool) -> Finding | None:
    job = seen.job or {}
    pod = newest_pod(seen)
    if pod is not None:
        struck = never_began(seen, pod)
        if struck is not None:
            return struck
        if (pod.get("metadata") or {}).get("deletionTimestamp") and not _deadline_passed(job) and not seen.job_gone:
            told = "the pod was deleted before it started"
            return Finding(Reason.TAKEN_AWAY, Basis.STRUCTURE, told, final=False)
    if seen.job_gone or (job.get("metadata") or {}).get("deletionTimestamp"):
        return Finding(Reason.TAKEN_AWAY, Basis.STRUCTURE, "the Job was deleted before it started", final=seen.job_gone)
    queued = held_in_queue(seen)
    if queued is not None:
        return queued
    finding = not_scheduled(seen, pod, settled=settled) if pod is not None else creation_refused(seen, _pod_spec(job))
    if finding is not None and _deadline_passed(job):
        return replace(finding, final=True)
    return finding


def _may_have_run(seen: Seen) -> bool:
    """Whether the Job came to an end that a pod of it must have brought about, whatever we saw of that pod."""
    if condition(seen.job, "Complete") or condition(seen.job, "SuccessCriteriaMet"):
        return True
    failed = condition(seen.job, "Failed") or condition(seen.job, "FailureTarget")
    if failed is None or failed.get("reason") == "DeadlineExceeded":
        return False
    pod = newest_pod(seen)
    return pod is None or never_began(seen, pod) is None


def _deadline_passed(job: Tree) -> bool:
    failed = condition(job, "Failed") or condition(job, "FailureTarget")
    return failed is not None and failed.get("reason") == "DeadlineExceeded"


def _silence(seen: Seen) -> str:
    if newest_pod(seen) is None:
        return "the Job controller made no pod and gave no reason"
    return "no scheduler has taken up the pod"


def _case(finding: Finding, seen: Seen, asked: Mapping[str, Any], where: str, at: str) -> Case:
    pod_spec = _pod_spec(seen.job or {})
    wanted = needs(pod_spec)
    gpu = gpu_resource(wanted)
    text = str(asked.get("accelerators") or f"{gpu}: {wanted.get(gpu, 0)}")
    offer = Offer(where, text, finding.reason, finding.basis, brief(finding.detail), at)
    ours = {uid for pod in seen.pods if (uid := (pod.get("metadata") or {}).get("uid"))}
    others = seen.foreign_pods
    if others is not None:  # what our own pod holds is free as soon as it is given back
        others = tuple(pod for pod in others if (pod.get("metadata") or {}).get("uid") not in ours)
    return Case(
        asked=dict(asked),
        offers=(offer,),
        availability=availability(where, pod_spec, seen.nodes, others),
        retry_after_s=finding.reason.retry_after_s,
    )


def _pod_spec(job: Tree) -> Tree:
    spec: Tree = ((job.get("spec") or {}).get("template") or {}).get("spec") or {}
    return spec


def _tuple(items: Sequence[Tree] | None) -> tuple[Tree, ...] | None:
    return None if items is None else tuple(items)
