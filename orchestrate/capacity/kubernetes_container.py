"""Why a pod that exists never began to run its container: struck from outside, or its node could not start it."""

from __future__ import annotations

from orchestrate.capacity.finding import Finding
from orchestrate.capacity.seen import (
    Seen,
    Tree,
    condition,
    container_statuses,
    event_age_s,
    pod_events,
    terminated_state,
)
from orchestrate.capacity.taxonomy import Basis, Reason

__all__ = ["never_began", "not_started_on_node"]

PATIENCE_S = {"image": 30.0, "config": 30.0, "mount": 60.0}
"""How long a kubelet's complaint has to repeat before it counts: our ConfigMaps come after the Job, on purpose."""

_NO_SUCH_IMAGE = ("not found", "manifest unknown", "unauthorized", "denied", "no such host", "invalid reference",
                  "does not exist", "no match for platform", "authentication required", "forbidden")  # fmt: skip
_NO_SUCH_PROGRAM = ("no such file or directory", "executable file not found", "permission denied", "exec format error",
                    "not a directory")  # fmt: skip


def never_began(seen: Seen, pod: Tree) -> Finding | None:
    """What ended the pod before its container ran: preemption, eviction, deletion, a node that refused or died."""
    status = pod.get("status") or {}
    over = status.get("phase") == "Failed" or bool((pod.get("metadata") or {}).get("deletionTimestamp"))
    disrupted = condition(pod, "DisruptionTarget")
    if disrupted is not None:
        preempted = disrupted.get("reason") == "PreemptionByScheduler"
        reason = Reason.PREEMPTED if preempted else Reason.NODE_FAULT
        told = f"{disrupted.get('reason')}: {disrupted.get('message')}"
        return Finding(reason, Basis.STRUCTURE, told, final=over or seen.job_gone)
    if status.get("phase") == "Failed" and status.get("reason"):
        return _refused_by_node(str(status["reason"]), str(status.get("message") or ""))
    end = terminated_state(pod)
    if end is not None:
        return _could_not_start(end)
    return None


def not_started_on_node(seen: Seen, pod: Tree) -> Finding:
    """Why the container of a scheduled pod has not started: image, configuration, volumes, sandbox, or slowness."""
    for container in container_statuses(pod):
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason, message = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
        if reason in {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "RegistryUnavailable"}:
            return _image(seen, pod, message)
        if reason == "InvalidImageName":
            return Finding(Reason.MISCONFIGURED, Basis.STRUCTURE, message or reason, final=True)
        if reason in {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}:
            kind = Reason.MISCONFIGURED if reason == "CreateContainerConfigError" else Reason.NODE_FAULT
            repeats = _repeats(pod_events(seen, pod, "Failed", "BackOff"), PATIENCE_S["config"])
            return Finding(kind, Basis.STRUCTURE, f"{reason}: {message}", final=repeats)
    mounts = pod_events(seen, pod, "FailedMount", "FailedAttachVolume", "FailedMapVolume")
    if mounts:
        message = str(mounts[-1].get("message") or "")
        absent = "not found" in message
        reason_, basis = (Reason.MISCONFIGURED, Basis.TEXT) if absent else (Reason.NODE_FAULT, Basis.STRUCTURE)
        return Finding(reason_, basis, message, final=_repeats(mounts, PATIENCE_S["mount"]))
    sandbox = pod_events(seen, pod, "FailedCreatePodSandBox")
    if sandbox:
        return Finding(Reason.NODE_FAULT, Basis.STRUCTURE, str(sandbox[-1].get("message") or ""), final=False)
    node = (pod.get("spec") or {}).get("nodeName") or "its node"
    return Finding(Reason.NODE_FAULT, Basis.STRUCTURE, f"{node} has not started the container in time", final=False)


def _refused_by_node(reason: str, message: str) -> Finding:
    """A kubelet's own refusal of a pod that the scheduler had given to it."""
    text = f"{reason}: {message}"
    if reason.startswith("OutOf"):  # two pods were given the same place; the kubelet takes one of them
        return Finding(Reason.NOTHING_FREE, Basis.STRUCTURE, text, final=True)
    return Finding(Reason.NODE_FAULT, Basis.STRUCTURE, text, final=True)


def _could_not_start(end: Tree) -> Finding:
    text = f"{end.get('reason')}, exit code {end.get('exitCode')}: {end.get('message') or ''}"
    if end.get("reason") in {"StartError", "ContainerCannotRun"} and any(
        mark in text.lower() for mark in _NO_SUCH_PROGRAM
    ):
        return Finding(Reason.MISCONFIGURED, Basis.TEXT, text, final=True)
    return Finding(Reason.NODE_FAULT, Basis.STRUCTURE, text, final=True)


def _image(seen: Seen, pod: Tree, message: str) -> Finding:
    """An image that can not be pulled; a registry that does not answer is an outage, not a wrong request."""
    told = [str(event.get("message") or "") for event in pod_events(seen, pod, "Failed", "BackOff")]
    # The back-off's own message may leave the cause out: the pull's event has it.
    words = " ".join([message, *told]).lower()
    absent = any(mark in words for mark in _NO_SUCH_IMAGE)
    reason, basis = (Reason.MISCONFIGURED, Basis.TEXT) if absent else (Reason.PROVIDER_FAULT, Basis.STRUCTURE)
    final = _repeats(pod_events(seen, pod, "Failed", "BackOff"), PATIENCE_S["image"])
    return Finding(reason, basis, message or next(reversed(told), "the image can not be pulled"), final=final)


def _repeats(events: list[Tree], for_s: float) -> bool:
    return any(event_age_s(event) >= for_s for event in events)
