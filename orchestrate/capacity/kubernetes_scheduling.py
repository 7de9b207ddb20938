"""Why the scheduler has not placed a pod: lack told from *never*, and both from a request that fits no node's rules."""

from __future__ import annotations

import re
from collections.abc import Sequence

from orchestrate.capacity.finding import Finding
from orchestrate.capacity.kubernetes_container import not_started_on_node
from orchestrate.capacity.node_fit import Outlook, fit
from orchestrate.capacity.seen import Seen, Tree, condition, conditions, event_time, pod_events
from orchestrate.capacity.taxonomy import Basis, Reason

__all__ = ["autoscaled", "node_finding", "not_scheduled"]

_REASON = {
    Outlook.WOULD_FIT: Reason.NOTHING_FREE,
    Outlook.CORDONED: Reason.NOTHING_FREE,
    Outlook.NODES_DOWN: Reason.NODE_FAULT,
    Outlook.TAINTED: Reason.MISCONFIGURED,
    Outlook.SELECTED_OUT: Reason.MISCONFIGURED,
    Outlook.TOO_SMALL: Reason.NEVER_FITS,
    Outlook.NO_SUCH_KIND: Reason.UNKNOWN_KIND,
}
_AUTOSCALER_MARKS = ("cluster-autoscaler.kubernetes.io/", "karpenter.sh/", "cluster-api.cluster.x-k8s.io/")


def not_scheduled(seen: Seen, pod: Tree, *, settled: bool) -> Finding | None:
    """Why a pod has not started that nothing struck; None where no scheduler has said anything yet.

    A *never* is final only when it is `settled`, that is, when an autoscaler has had the time to speak up.
    """
    if condition(pod, "PodScheduled") is not None or (pod.get("spec") or {}).get("nodeName"):
        return not_started_on_node(seen, pod)
    scheduled = next((item for item in conditions(pod) if item.get("type") == "PodScheduled"), None)
    if scheduled is not None and scheduled.get("reason") == "SchedulingGated":
        told = str(scheduled.get("message") or "a gate holds the pod")
        return Finding(Reason.QUEUED, Basis.STRUCTURE, told, final=False)
    failed = [event for event in pod_events(seen, pod, "FailedScheduling") if not _by_karpenter(event)]
    if scheduled is None and not failed:
        return None
    message = str(((failed[-1] if failed else scheduled) or {}).get("message") or "")
    volume = _volume(message, settled=settled)
    if volume is not None:
        return volume
    scaling = _scaling(seen, pod)
    nodes = None if seen.nodes is None else node_finding(pod.get("spec") or {}, seen.nodes)
    if nodes is not None and nodes.reason.retry_after_s is not None:
        return nodes
    if scaling is not None:
        return scaling
    if nodes is None:
        return _by_text(message)
    if autoscaled(seen):
        detail = f"{nodes.detail}; an autoscaler may bring other nodes, and has not said whether it will"
        return Finding(Reason.CAN_NOT_TELL, Basis.STRUCTURE, detail, final=False)
    return Finding(nodes.reason, nodes.basis, nodes.detail, final=settled)


def node_finding(pod_spec: Tree, nodes: Sequence[Tree]) -> Finding:
    """What the nodes as they are say about the pod."""
    found = fit(pod_spec, nodes)
    return Finding(_REASON[found.outlook], Basis.STRUCTURE, found.why, final=False)


def autoscaled(seen: Seen) -> bool:
    """Whether the nodes bear the marks of an autoscaler: then what is not there now may still be brought."""
    for node in seen.nodes or ():
        metadata = node.get("metadata") or {}
        marks = [*(metadata.get("labels") or {}), *(metadata.get("annotations") or {})]
        if any(mark.startswith(_AUTOSCALER_MARKS) for mark in marks):
            return True
    return False


def _scaling(seen: Seen, pod: Tree) -> Finding | None:
    """What an autoscaler said last about the pod; None where there is none, or it has not spoken."""
    said = pod_events(seen, pod, "TriggeredScaleUp", "NotTriggerScaleUp", "FailedScaleUp", "Nominated")
    said += [event for event in pod_events(seen, pod, "FailedScheduling") if _by_karpenter(event)]
    if not said:
        return None
    last = max(said, key=event_time)
    message = str(last.get("message") or "")
    words = message.lower()
    if last.get("reason") in {"TriggeredScaleUp", "Nominated"}:
        told = f"the autoscaler is bringing a node: {message}"
        return Finding(Reason.NOTHING_FREE, Basis.STRUCTURE, told, final=False)
    if last.get("reason") == "FailedScaleUp":
        quota = "quota" in words
        return Finding(Reason.QUOTA_USED if quota else Reason.STOCKOUT, Basis.TEXT, message, final=False)
    if any(mark in words for mark in ("max node group size", "max limit", "exceed limits", "limits for nodepool")):
        return Finding(Reason.NOTHING_FREE, Basis.TEXT, f"the autoscaler is at its limit: {message}", final=False)
    if "backoff" in words:
        return Finding(Reason.STOCKOUT, Basis.TEXT, message, final=False)
    if "insufficient" in words or "instance type" in words:
        told = f"no node that the autoscaler can bring fits it: {message}"
        return Finding(Reason.NEVER_FITS, Basis.TEXT, told, final=True)
    if "didn't match" in words or "taint" in words or "incompatible" in words:
        told = f"no node that the autoscaler can bring is allowed for it: {message}"
        return Finding(Reason.UNKNOWN_KIND, Basis.TEXT, told, final=True)
    return Finding(Reason.CAN_NOT_TELL, Basis.TEXT, message, final=False)


def _volume(message: str, *, settled: bool) -> Finding | None:
    words = message.lower()
    if "persistentvolumeclaim" in words and "not found" in words:
        return Finding(Reason.MISCONFIGURED, Basis.TEXT, message, final=settled)
    if "unbound immediate persistentvolumeclaims" in words or "persistent volumes to bind" in words:
        return Finding(Reason.PROVIDER_FAULT, Basis.TEXT, message, final=False)
    if "volume node affinity conflict" in words and "insufficient" not in words:
        return Finding(Reason.MISCONFIGURED, Basis.TEXT, message, final=settled)
    return None


def _by_text(message: str) -> Finding:
    """Without the nodes: a lack may be for now or for ever. Only a request that no node's rules admit shows itself.

    The scheduler tests taints and selectors before room, so that a node that is merely full says `Insufficient`.
    """
    listed = re.search(r"nodes are available: (.+?)\.(?:\s|$)", message)
    reasons = [] if listed is None else [part.strip() for part in listed[1].split(", ")]
    kinds = {_rule(reason) for reason in reasons}
    if reasons and kinds == {"selector"}:
        return Finding(Reason.UNKNOWN_KIND, Basis.TEXT, message, final=False)
    if reasons and kinds <= {"selector", "taint"}:
        return Finding(Reason.MISCONFIGURED, Basis.TEXT, message, final=False)
    return Finding(
        Reason.CAN_NOT_TELL, Basis.STRUCTURE, f"{message} (nodes may not be listed: never, or not now?)", final=False
    )


def _rule(reason: str) -> str:
    if "didn't match Pod's node affinity/selector" in reason:
        return "selector"
    if "untolerated taint" in reason and not re.search(r"\{node\.|\{ToBeDeleted|\{karpenter", reason):
        return "taint"
    return "other"


def _by_karpenter(event: Tree) -> bool:
    source = (event.get("source") or {}).get("component") or event.get("reportingComponent") or ""
    return "karpenter" in str(source)
