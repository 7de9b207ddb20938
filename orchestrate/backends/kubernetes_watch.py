"""One look at a Job and everything that tells why it runs, does not run, or has ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrate.backends.kubernetes_api import Api, Budget, Kind, Object, uid_of
from orchestrate.backends.kubernetes_client import ApiError
from orchestrate.backends.kubernetes_job import Names
from orchestrate.capacity.seen import Seen, newest_pod, remember, terminated_state

__all__ = ["NODE", "Watch", "image_id", "is_running", "pod_times", "termination_message"]

NODE = "node"
"""The name of the Job's one container."""

_WORKLOADS = "/apis/kueue.x-k8s.io/v1beta1/namespaces/{namespace}/workloads"


@dataclass(slots=True)
class Watch:
    """What is known about one Job, look by look.

    Args:
        uid: of the Job; an object of its name with another UID is somebody else's.
        name: of the Job, where it is not the run's own.
        sees_nodes, sees_foreign_pods, sees_quotas, sees_workloads: what our rights allow.
    """

    api: Api
    names: Names
    uid: str
    name: str | None = None
    sees_nodes: bool = False
    sees_foreign_pods: bool = False
    sees_quotas: bool = False
    sees_workloads: bool = False
    seen: Seen | None = None
    _present: frozenset[str] = frozenset()

    def look(self, budget: Budget, *, tries: int = 1, events: bool = False, cluster: bool = False) -> Seen:
        """The Job, then its pods; `events` and the `cluster` (nodes, quotas) if asked for. `ApiError` if it fails."""
        found = self.api.find(Kind.JOB, self.names.namespace, self.name or self.names.job, budget)
        job = found if found is not None and uid_of(found) == self.uid else None
        pods = self.pods(budget, tries)
        quotas = f"/api/v1/namespaces/{self.names.namespace}/resourcequotas"
        self._present = frozenset(uid_of(pod) for pod in pods)
        now = Seen(
            job,
            job_gone=job is None,
            pods=pods,
            events=self._events(pods, budget, tries) if events else (),
            nodes=self._newest("nodes", "/api/v1/nodes", budget, ask=cluster and self.sees_nodes),
            foreign_pods=self._newest("foreign_pods", "/api/v1/pods", budget, ask=cluster and self.sees_foreign_pods),
            quotas=self._newest("quotas", quotas, budget, ask=cluster and self.sees_quotas),
            workloads=self._workloads(budget) if events and self.sees_workloads else (),
        )
        self.seen = remember(self.seen, now)
        return self.seen

    def pods(self, budget: Budget, tries: int = 1) -> tuple[Object, ...]:
        """The pods that the Job owns, by the label that every version sets: the one with a prefix came with 1.27."""
        selector = f"controller-uid={self.uid}"
        return self.api.items(Kind.POD.path(self.names.namespace), budget, tries=tries, labelSelector=selector)

    def pod(self) -> Object | None:
        """The newest pod, as it was last seen."""
        return None if self.seen is None else newest_pod(self.seen)

    def running_pod(self) -> Object | None:
        """The newest pod if the last look still found it and its container runs: a command can be run in it."""
        pod = self.pod()
        return pod if pod is not None and uid_of(pod) in self._present and is_running(pod) else None

    def _events(self, pods: tuple[Object, ...], budget: Budget, tries: int) -> tuple[Object, ...]:
        path = f"/api/v1/namespaces/{self.names.namespace}/events"
        found: list[Object] = []
        # A pod that is gone has its events still: they may be all that tells how it ended.
        gone = () if self.seen is None else self.seen.pods
        for uid in dict.fromkeys((self.uid, *(uid_of(pod) for pod in (*pods, *gone)))):
            found.extend(self.api.items(path, budget, tries=tries, fieldSelector=f"involvedObject.uid={uid}"))
        return tuple(found)

    def _workloads(self, budget: Budget) -> tuple[Object, ...]:
        found = self._all(_WORKLOADS.format(namespace=self.names.namespace), budget) or ()
        return tuple(
            each
            for each in found
            if any(owner.get("uid") == self.uid for owner in each.get("metadata", {}).get("ownerReferences") or ())
        )

    def _all(self, path: str, budget: Budget) -> tuple[Object, ...] | None:
        """What helps to explain, but is not needed: None where it was not answered."""
        try:
            return self.api.items(path, budget, tries=1)
        except ApiError:
            return None

    def _newest(self, field: str, path: str, budget: Budget, *, ask: bool) -> Any:
        """What was listed now, else what was listed before; None where it never was."""
        found = self._all(path, budget) if ask else None
        return getattr(self.seen, field, None) if found is None else found


def is_running(pod: Object | None) -> bool:
    """Whether the pod's container runs, so that a command can be run in it."""
    status = _container(pod)
    return "running" in (status.get("state") or {}) and terminated_state(pod or {}) is None


def termination_message(pod: Object | None) -> str | None:
    """The container's last words, None while it runs or where nobody kept them."""
    ended = (_container(pod).get("state") or {}).get("terminated") or {}
    message = ended.get("message")
    return None if message is None else str(message)


def image_id(pod: Object | None) -> str | None:
    """The image that the node really ran, with its digest."""
    text = str(_container(pod).get("imageID") or "")
    return text.removeprefix("docker-pullable://") or None


def pod_times(pod: Object | None) -> tuple[str | None, str | None]:
    """When the pod got its GPUs (was scheduled), and when its container ended."""
    conditions = ((pod or {}).get("status") or {}).get("conditions") or ()
    scheduled = next(
        (
            str(each.get("lastTransitionTime"))
            for each in conditions
            if each.get("type") == "PodScheduled" and each.get("status") == "True"
        ),
        None,
    )
    ended = (_container(pod).get("state") or {}).get("terminated") or {}
    finished = ended.get("finishedAt")
    return scheduled, None if finished is None else str(finished)


def _container(pod: Object | None) -> Mapping[str, Any]:
    statuses = ((pod or {}).get("status") or {}).get("containerStatuses") or ()
    return next((each for each in statuses if each.get("name") == NODE), {})
