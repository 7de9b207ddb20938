"""Everything of ours on a cluster, by its labels alone: for an audit that has no local state."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from orchestrate.backends.kubernetes_api import Api, Budget, Deleted, Kind, Object, labels_of, name_of, uid_of
from orchestrate.backends.kubernetes_client import ApiError
from orchestrate.backends.survey import OwnedResources, Survey
from orchestrate.clock import from_wire, to_wire, utc_now
from orchestrate.render.ownership import PREFIX

__all__ = ["KubernetesSurveyor"]

_SURVEY_S = 60.0
_REAP_S = 90.0
_GAP_S = 0.5
_RUN, _TOKEN = f"{PREFIX}run-id", f"{PREFIX}token"


class KubernetesSurveyor:
    """One cluster, in one namespace or, where the rights reach that far, in all of them.

    Args:
        namespace: where to look; None for all namespaces, and for the kubeconfig's own where that is denied.
    """

    name = "k8s"

    def __init__(
        self,
        api: Api,
        namespace: str | None,
        *,
        now: Callable[[], datetime] = utc_now,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._now = now
        self._pause = pause

    def survey(self) -> Survey:
        """Every Job, pod and ConfigMap with a label of ours, by run."""
        budget = self._api.budget(_SURVEY_S)
        runs: dict[tuple[str, str, str], list[tuple[Kind, Object]]] = defaultdict(list)
        looked: list[str] = []
        unknown: list[str] = []
        for kind in (Kind.JOB, Kind.POD, Kind.CONFIG_MAP):
            try:
                where, found = self._all(kind, budget)
            except ApiError as error:
                unknown.append(f"{kind} on {self._api.transport.server}: {error}")
                continue
            looked.append(f"{kind} {where} on {self._api.transport.server}")
            for each in found:
                labels = labels_of(each)
                namespace = str(each["metadata"].get("namespace") or "")
                runs[namespace, labels.get(_RUN, "unknown"), labels.get(_TOKEN, "")].append((kind, each))
        owned = tuple(self._owned(key, parts) for key, parts in sorted(runs.items(), key=lambda item: item[0]))
        return Survey(owned, tuple(looked), tuple(unknown))

    def reap(self, owned: OwnedResources) -> tuple[str, ...]:
        """Delete exactly the objects that were found, each if it still has its UID and its labels."""
        budget = self._api.budget(_REAP_S)
        namespace, token = str(owned.handle["namespace"]), str(owned.handle["token"])
        left: list[str] = []
        waiting: list[tuple[Kind, str, str]] = []
        for kind, name, uid in ((Kind(kind), name, uid) for kind, name, uid in owned.handle["objects"]):
            words = f"{kind.singular} {namespace}/{name} uid {uid}"
            try:
                found = self._api.find(kind, namespace, name, budget)
                if found is None or uid_of(found) != uid:
                    continue
                labels = labels_of(found)
                if labels.get(_TOKEN, "") != token or labels.get(_RUN) != owned.handle["run_label"]:
                    left.append(f"{words}: its labels have changed, so it was left alone")
                    continue
                if self._api.delete(kind, namespace, name, uid, budget) is Deleted.ASKED:
                    waiting.append((kind, name, uid))
            except ApiError as error:
                left.append(f"{words}: {error}")
        there = (self._still_there(namespace, *item, budget) for item in waiting)
        return (*left, *(words for words in there if words is not None))

    def _still_there(self, namespace: str, kind: Kind, name: str, uid: str, budget: Budget) -> str | None:
        words = f"{kind.singular} {namespace}/{name} uid {uid}"
        why = "there was no time to look again"
        while budget.left() > 0:
            try:
                found = self._api.find(kind, namespace, name, budget)
            except ApiError as error:
                why = f"whether it is gone is unknown: {error}"
            else:
                if found is None or uid_of(found) != uid:
                    return None
                why = "it is still there"
            self._pause(min(_GAP_S, budget.left()))
        return f"{words}: {why}"

    def _all(self, kind: Kind, budget: Budget) -> tuple[str, tuple[Object, ...]]:
        """Where was looked, and what is there."""
        if self._namespace is None:
            try:
                return "in all namespaces", self._api.items(kind.path(None), budget, labelSelector=_RUN)
            except ApiError as error:
                if error.status != 403:
                    raise
        namespace = self._namespace or self._api.transport.namespace
        return f"in namespace {namespace}", self._api.items(kind.path(namespace), budget, labelSelector=_RUN)

    def _owned(self, key: tuple[str, str, str], parts: list[tuple[Kind, Object]]) -> OwnedResources:
        namespace, run_label, token = key
        labels: dict[str, str] = {}
        annotations: dict[str, str] = {}
        for _, each in parts:
            labels = {**labels_of(each), **labels}
            annotations = {**(each["metadata"].get("annotations") or {}), **annotations}
        return OwnedResources(
            backend=self.name,
            where=f"{self._api.transport.context or self._api.transport.server}/{namespace}",
            run_id=str(annotations.get(_RUN) or run_label),
            owner=str(annotations.get(f"{PREFIX}owner") or labels.get(f"{PREFIX}owner") or "unknown"),
            expires_at=_expiry(labels.get(f"{PREFIX}expires", "")),
            age_s=max((self._age_s(each) for _, each in parts), default=0.0),
            items=tuple(f"{kind.singular} {namespace}/{name_of(each)} uid {uid_of(each)}" for kind, each in parts),
            handle={
                "namespace": namespace,
                "run_label": run_label,
                "token": token,
                "objects": [[kind.value, name_of(each), uid_of(each)] for kind, each in parts],
            },
            gpus=sum(_gpus(each) for kind, each in parts if kind is Kind.POD),
            token=token,
        )

    def _age_s(self, thing: Object) -> float:
        try:
            made = from_wire(str(thing["metadata"]["creationTimestamp"]))
        except (KeyError, ValueError):
            return 0.0
        return max(0.0, (self._now() - made).total_seconds())


def _expiry(label: str) -> str:
    """The time in a label (`20261130T193000Z`) as RFC 3339; empty where it is none."""
    try:
        return to_wire(datetime.strptime(label, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC))
    except ValueError:
        return ""


def _gpus(pod: Mapping[str, Any]) -> int:
    """The GPUs that a pod holds now: it has them from being scheduled to its end."""
    spec, phase = pod.get("spec") or {}, (pod.get("status") or {}).get("phase")
    if not spec.get("nodeName") or phase in {"Succeeded", "Failed"}:
        return 0
    limits = (each.get("resources", {}).get("limits") or {} for each in spec.get("containers") or ())
    return sum(int(str(limit.get("nvidia.com/gpu", "0"))) for limit in limits)
