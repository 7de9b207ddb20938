"""What a Kubernetes API has answered about one Job, remembered beyond the life of the objects.

Objects are the API's own JSON (`camelCase`, as `kubectl get -o json` prints them). Traps that this module knows of:
`FailedScheduling` events have `eventTime` alone; counts of zero are left out; a deleted pod takes the only condition
that tells a preemption from a failed test with it, so that what was once seen has to be kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrate.clock import from_wire

__all__ = [
    "Seen",
    "Tree",
    "condition",
    "conditions",
    "container_statuses",
    "event_age_s",
    "event_time",
    "job_events",
    "newest_pod",
    "pod_events",
    "remember",
    "seconds_between",
    "started",
    "terminated_state",
]

Tree = Mapping[str, Any]
"""One object of the API, as plain JSON."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything known about one Job, at the latest look.

    Attributes:
        job: the Job as it was last seen, None when it was never seen.
        job_gone: the API said that this Job (by UID) is not there any more.
        pods: its pods as they were last seen, also those that are gone.
        events: events about the Job and its pods; those about anything else are left out.
        nodes: all nodes of the cluster, None where we may not list them.
        foreign_pods: all pods of the cluster, None where we may not list them.
        quotas: the ResourceQuotas of the namespace, None where we may not list them.
        workloads: the Kueue Workloads that the Job owns; empty where there is no Kueue.
    """

    job: Tree | None
    job_gone: bool = False
    pods: tuple[Tree, ...] = ()
    events: tuple[Tree, ...] = ()
    nodes: tuple[Tree, ...] | None = None
    foreign_pods: tuple[Tree, ...] | None = None
    quotas: tuple[Tree, ...] | None = None
    workloads: tuple[Tree, ...] = ()


def remember(before: Seen | None, now: Seen) -> Seen:
    """`now`, with what `before` knew of the same Job and is not in `now` any more.

    An object is known by its UID; of two versions the one of `now` stands. The Job's last version survives its
    deletion. A Job of another UID starts anew: nothing of the one before is kept.
    """
    job = now.job if now.job is not None else (before.job if before else None)
    if before is None or before.job is None or (now.job is not None and _uid(now.job) != _uid(before.job)):
        before = None
    pods = _merged(() if before is None else before.pods, now.pods)
    pods = tuple(pod for pod in pods if job is None or _is_of(pod, job))
    about = {_uid(pod) for pod in pods} | ({_uid(job)} if job is not None else set())
    events = _merged(() if before is None else before.events, now.events)
    return replace(
        now,
        job=job,
        job_gone=now.job_gone or (now.job is None and before is not None and before.job_gone),
        pods=pods,
        events=tuple(event for event in events if (event.get("involvedObject") or {}).get("uid") in about),
    )


def newest_pod(seen: Seen) -> Tree | None:
    """The pod of the last attempt: the one that was created last."""
    return max(seen.pods, key=lambda pod: (str(_meta(pod).get("creationTimestamp") or ""), _uid(pod)), default=None)


def condition(thing: Tree | None, kind: str) -> Tree | None:
    """The condition `kind` where its status is True; None otherwise, whatever the order of the conditions."""
    return next((item for item in conditions(thing) if item.get("type") == kind and item.get("status") == "True"), None)


def conditions(thing: Tree | None) -> Sequence[Tree]:
    """The conditions of an object; none where it has no status yet."""
    status = (thing or {}).get("status") or {}
    return status.get("conditions") or ()


def started(seen: Seen) -> bool:
    """Whether a container of any pod ever began to run: only then did anything of ours execute."""
    for pod in seen.pods:
        for status in container_statuses(pod):
            for state in (status.get("state") or {}, status.get("lastState") or {}):
                if "running" in state or _ran(state.get("terminated")):
                    return True
    return any(event.get("reason") == "Started" for event in seen.events)


def terminated_state(pod: Tree) -> Tree | None:
    """The end of the pod's container, None while one still runs. A pod can be `Running` and its container ended."""
    ends: list[Tree] = []
    for status in container_statuses(pod):
        end = (status.get("state") or {}).get("terminated")
        if end is None:
            return None
        ends.append(end)
    return next((end for end in ends if end.get("exitCode")), ends[0] if ends else None)


def container_statuses(pod: Tree) -> Sequence[Tree]:
    """The states of the pod's containers; none before a kubelet has seen it."""
    return (pod.get("status") or {}).get("containerStatuses") or ()


def pod_events(seen: Seen, pod: Tree | None, *reasons: str) -> list[Tree]:
    """The events about `pod` with one of `reasons`, oldest first."""
    if pod is None:
        return []
    return _sorted(event for event in seen.events if _about(event, pod) and event.get("reason") in reasons)


def job_events(seen: Seen, *reasons: str) -> list[Tree]:
    """The events about the Job itself with one of `reasons`, oldest first."""
    if seen.job is None:
        return []
    job = seen.job
    return _sorted(event for event in seen.events if _about(event, job) and event.get("reason") in reasons)


def event_time(event: Tree) -> str:
    """When an event happened last, as the API wrote it; sorts as text within a second."""
    series = event.get("series") or {}
    for text in (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime")):
        if text:
            return str(text)
    return str(event.get("firstTimestamp") or _meta(event).get("creationTimestamp") or "")


def event_age_s(event: Tree) -> float:
    """How long the event has been repeating, in seconds of the cluster's own clock; 0 for a single one."""
    first = event.get("firstTimestamp") or event.get("eventTime") or _meta(event).get("creationTimestamp")
    return max(0.0, seconds_between(str(first or ""), event_time(event)))


def seconds_between(first: str, last: str) -> float:
    """The seconds between two times of the API; 0 where one can not be read."""
    try:
        return (from_wire(last) - from_wire(first)).total_seconds()
    except ValueError:
        return 0.0


def _merged(before: Iterable[Tree], now: Iterable[Tree]) -> tuple[Tree, ...]:
    known = {_uid(item): item for item in before}
    known.update({_uid(item): item for item in now})
    return tuple(known.values())


def _is_of(pod: Tree, job: Tree) -> bool:
    owners = _meta(pod).get("ownerReferences") or ()
    return any(owner.get("uid") == _uid(job) for owner in owners)


def _about(event: Tree, thing: Tree) -> bool:
    return bool((event.get("involvedObject") or {}).get("uid") == _uid(thing))


def _ran(end: Tree | None) -> bool:
    """Whether an ended container had begun: one that could not be started has its start in 1970, or none.

    A kubelet that lost track of a container (`ContainerStatusUnknown`) can not say; it may well have run.
    """
    if end is None or end.get("reason") in {"StartError", "ContainerCannotRun"}:
        return False
    if end.get("reason") == "ContainerStatusUnknown":
        return True
    return not str(end.get("startedAt") or "1970").startswith("1970")


def _sorted(events: Iterable[Tree]) -> list[Tree]:
    return sorted(events, key=event_time)


def _meta(thing: Tree) -> Tree:
    metadata: Tree = thing.get("metadata") or {}
    return metadata


def _uid(thing: Tree) -> str:
    return str(_meta(thing).get("uid") or "")
