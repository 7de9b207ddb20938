"""Before anything is created: who we are on the cluster, what we may do there, and whether the Job can ever fit."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from orchestrate.backends.kubernetes_api import Api, Budget, Object
from orchestrate.backends.kubernetes_client import NO_ANSWER, ApiError
from orchestrate.capacity.kubernetes import refusal_beforehand
from orchestrate.capacity.node_fit import availability
from orchestrate.capacity.taxonomy import Basis, Case, Offer, Reason, classify
from orchestrate.clock import to_wire, utc_now
from orchestrate.errors import BackendError, CapacityError, UnsatisfiableError
from orchestrate.verdict import Verdict

__all__ = ["NEEDED_RIGHTS", "Rights", "Site", "look_around", "refused", "refused_by"]

NEEDED_RIGHTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("batch", "jobs", ("create", "get", "list", "delete")),
    ("", "configmaps", ("create", "get", "list", "delete")),
    ("", "pods", ("get", "list", "delete")),
    ("", "pods/log", ("get",)),
    ("", "pods/exec", ("get", "create")),
    ("", "events", ("list",)),
)
"""API group, resource and verbs in the namespace, without which a run is not begun.

A command over a websocket is a GET; from 1.35 on the server asks for `create` as well, before that it does not.
"""

_PREFLIGHT_S = 60.0
_LIST_S = 20.0
_EXEC_NEEDS_CREATE = 35
_UNAUTHORIZED = 401

_Never = Callable[[Reason, str, str], UnsatisfiableError]
"""Makes the error of a reason, in words, with its remedy."""


@dataclass(frozen=True, slots=True)
class Rights:
    """What may be seen beyond what is needed."""

    nodes: bool
    foreign_pods: bool
    quotas: bool
    workloads: bool


@dataclass(frozen=True, slots=True)
class Site:
    """A cluster as it was found: version, rights, and the GPUs there where they may be seen."""

    version: str
    rights: Rights
    gpus: tuple[Mapping[str, Any], ...]
    namespace_uid: str | None


def look_around(api: Api, job: Object, *, namespace: str, queue: str | None, asked: Mapping[str, Any]) -> Site:
    """Ask everything that can be known beforehand.

    Raises:
        BackendError: the API server does not answer.
        UnsatisfiableError: no such namespace or queue, a right is missing, or no node can ever take the Job.
        CapacityError: the nodes that could take it are of no use for the moment.
    """
    where = f"{api.transport.context or 'in-cluster'}/{namespace}"
    budget = api.budget(_PREFLIGHT_S)
    never = partial(_never, asked, where)
    try:
        version = api.get("/version", budget)
        uid = _namespace(api, namespace, budget, never)
        _check_rights(api, namespace, str(version.get("minor") or ""), budget, never)
        if queue is not None:
            _check_queue(api, namespace, queue, budget, never)
        rights = Rights(
            nodes=api.may("", "list", "nodes", budget),
            foreign_pods=api.may("", "list", "pods", budget),
            quotas=api.may(namespace, "list", "resourcequotas", budget),
            workloads=queue is not None and api.may(namespace, "list", "workloads", budget, group="kueue.x-k8s.io"),
        )
    except ApiError as error:
        raise refused_by(error, asked, where) from error
    nodes = _listed(api, "/api/v1/nodes", may=rights.nodes)
    pods = _listed(api, "/api/v1/pods", may=rights.foreign_pods)
    quotas = _listed(api, f"/api/v1/namespaces/{namespace}/resourcequotas", may=rights.quotas)
    at = to_wire(utc_now())
    case = refusal_beforehand(job, nodes=nodes, foreign_pods=pods, quotas=quotas, asked=asked, where=where, at=at)
    if case is not None:
        raise refused(case)
    free = availability(where, job["spec"]["template"]["spec"], nodes, pods)
    return Site(
        version=str(version.get("gitVersion") or "unknown"),
        rights=rights,
        gpus=tuple(
            {"where": each.where, "kind": each.kind, "total": each.total, "free": each.free, "source": each.source}
            for each in free
        ),
        namespace_uid=uid,
    )


def refused(case: Case) -> BackendError:
    """The error that a refusal is raised as, by the verdict that follows from its offers."""
    found = classify(case.offers)
    offer = next(each for each in case.offers if each.reason is found.reason)
    cause = f"{offer.where}: {offer.reason.meaning}: {offer.detail}"
    match found.verdict:
        case Verdict.CAPACITY:
            return CapacityError(cause, remedy="try again later, or wait with --wait MINUTES", case=case)
        case Verdict.UNSATISFIABLE:
            remedy = _REMEDIES.get(
                found.reason, "change the request, or have the cluster changed; waiting does not help"
            )
            return UnsatisfiableError(cause, remedy=remedy, case=case)
        case _:
            remedy = "look at the cluster; `orchestrate audit` shows what is left there"
            return BackendError(cause, remedy=remedy, answer=offer.detail, case=case)


_REMEDIES = {
    Reason.UNKNOWN_KIND: "name the kind that is there, or --accelerators any:N, or the nodes with --node-selector",
    Reason.DENIED: "have the Role of docs/kubernetes.md bound to you there",
}


def refused_by(error: ApiError, asked: Mapping[str, Any], where: str) -> BackendError:
    """The error that the API server's own refusal of a request is raised as."""
    reason, basis = _reason(error)
    raised = refused(_case(asked, where, reason, str(error), basis, error.retry_after_s))
    if error.status == _UNAUTHORIZED:
        raised.remedy = "log in again: the credentials of the kubeconfig are not, or no longer, accepted"
    return raised


def _never(asked: Mapping[str, Any], where: str, reason: Reason, cause: str, remedy: str) -> UnsatisfiableError:
    return UnsatisfiableError(cause, remedy=remedy, case=_case(asked, where, reason, cause))


def _case(
    asked: Mapping[str, Any],
    where: str,
    reason: Reason,
    detail: str,
    basis: Basis = Basis.STRUCTURE,
    retry_after_s: float | None = None,
) -> Case:
    offer = Offer(where, str(asked.get("accelerators")), reason, basis, detail[:400], to_wire(utc_now()))
    return Case(asked=dict(asked), offers=(offer,), retry_after_s=retry_after_s)


def _reason(error: ApiError) -> tuple[Reason, Basis]:
    if error.status == NO_ANSWER or error.status >= 500 or error.status in {408, 429}:
        return Reason.UNREACHABLE, Basis.STRUCTURE
    if error.status == 403 and "exceeded quota" in error.message:  # the status is that of a missing right
        return Reason.QUOTA_USED, Basis.TEXT
    if error.status in {401, 403}:
        return Reason.DENIED, Basis.STRUCTURE
    return Reason.MISCONFIGURED, Basis.STRUCTURE


def _listed(api: Api, path: str, *, may: bool) -> tuple[Object, ...] | None:
    """What helps to tell, but is not needed: None where it may not be seen, or a large cluster takes too long."""
    try:
        return api.items(path, api.budget(_LIST_S), tries=2) if may else None
    except ApiError:
        return None


def _namespace(api: Api, namespace: str, budget: Budget, never: _Never) -> str | None:
    """The UID of the namespace; None where we may not read it, and then its absence shows later."""
    try:
        found = api.get(f"/api/v1/namespaces/{namespace}", budget)
    except ApiError as error:
        if error.status == 403:
            return None
        if error.status == 404:
            cause = f"there is no namespace {namespace!r} on {api.transport.server}"
            remedy = "give --namespace; `kubectl get namespace` lists them"
            raise never(Reason.MISCONFIGURED, cause, remedy) from error
        raise
    if (found.get("status") or {}).get("phase") == "Terminating":
        remedy = "give another --namespace, or make it anew"
        raise never(Reason.MISCONFIGURED, f"the namespace {namespace!r} is being deleted", remedy)
    return str(found["metadata"]["uid"])


def _check_rights(api: Api, namespace: str, minor: str, budget: Budget, never: _Never) -> None:
    digits = re.match(r"\d+", minor)
    exec_needs_create = digits is None or int(digits[0]) >= _EXEC_NEEDS_CREATE
    missing = [
        f"{verb} {resource}{'.' + group if group else ''}"
        for group, resource, verbs in NEEDED_RIGHTS
        for verb in verbs
        if (resource != "pods/exec" or verb == "get" or exec_needs_create)
        and not api.may(namespace, verb, resource, budget, group=group)
    ]
    if missing:
        cause = f"we have no right in namespace {namespace!r} to: {', '.join(missing)}"
        raise never(Reason.DENIED, cause, _REMEDIES[Reason.DENIED])


def _check_queue(api: Api, namespace: str, queue: str, budget: Budget, never: _Never) -> None:
    """A Job that is held for a queue which nobody serves would wait for ever."""
    groups = {group.get("name") for group in api.get("/apis", budget).get("groups") or ()}
    if "kueue.x-k8s.io" not in groups:
        remedy = "leave --queue out, or install Kueue"
        raise never(Reason.MISCONFIGURED, f"--queue {queue}: this cluster has no Kueue", remedy)
    try:
        api.get(f"/apis/kueue.x-k8s.io/v1beta1/namespaces/{namespace}/localqueues/{queue}", budget)
    except ApiError as error:
        if error.status == 404:
            cause = f"--queue {queue}: namespace {namespace!r} has no such LocalQueue"
            raise never(Reason.MISCONFIGURED, cause, "`kubectl get localqueue` lists them") from error
        if error.status != 403:
            raise
