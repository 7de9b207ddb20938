"""Who a resource belongs to, in the fields that providers keep.

Kubernetes (also through SkyPilot) has labels with a prefix. Clouds have labels of the narrowest syntax among them.
Both carry the run, its owner, the ownership token and the expiry; a value that is no label is cut and hashed, and on
Kubernetes an annotation has it whole.
"""

from __future__ import annotations

from datetime import datetime

from orchestrate.render.request import RenderRequest
from orchestrate.render.text import cloud_label_value, dns_label, label_value

__all__ = [
    "PREFIX",
    "cloud_labels",
    "expiry_label",
    "kubernetes_annotations",
    "kubernetes_labels",
    "removal",
    "resource_name",
    "selector",
    "slurm_comment",
]

PREFIX = "orchestrate/"
"""Of every label and annotation key of ours on Kubernetes."""


def kubernetes_labels(request: RenderRequest) -> dict[str, str]:
    """Labels for Kubernetes objects."""
    return {f"{PREFIX}{key}": label_value(value) for key, value in _facts(request).items()}


def cloud_labels(request: RenderRequest) -> dict[str, str]:
    """Labels for the instances of any cloud."""
    return {f"orchestrate-{key}": cloud_label_value(value) for key, value in _facts(request).items()}


def kubernetes_annotations(request: RenderRequest) -> dict[str, str]:
    """What a label can not hold whole."""
    return {f"{PREFIX}run-id": request.run_id, f"{PREFIX}owner": request.owner}


def slurm_comment(request: RenderRequest) -> str:
    """The comment of a Slurm job: every mark in one word, since SkyPilot hands it to `sbatch` without quotes."""
    facts = _facts(request)
    marks = {"run": facts["run-id"], "owner": facts["owner"], "token": facts["token"], "expires": facts["expires"]}
    return "orchestrate/1," + ",".join(f"{key}={label_value(value)}" for key, value in marks.items())


def resource_name(request: RenderRequest) -> str:
    """The name of the task or Job: an RFC 1123 label, distinct for distinct run ids."""
    return dns_label(f"orchestrate-{request.cell_set}-{request.run_id}")


def selector(run_id: str) -> str:
    """The label selector that finds everything of a run on Kubernetes."""
    return f"{PREFIX}run-id={label_value(run_id)}"


def removal(run_id: str, namespace: str | None) -> str:
    """The shell command that removes everything of a run from Kubernetes, in kubectl's own namespace if None."""
    where = "" if namespace is None else f" -n {namespace}"
    return f"kubectl delete job,configmap{where} --selector {selector(run_id)}"


def expiry_label(expires_at: datetime) -> str:
    """A UTC time in label syntax, to the second: `20261130T193000Z`."""
    return expires_at.strftime("%Y%m%dT%H%M%SZ")


def _facts(request: RenderRequest) -> dict[str, str]:
    facts = {"run-id": request.run_id, "owner": request.owner, "cell-set": request.cell_set}
    if request.token is not None:
        facts["token"] = request.token
    if request.expires_at is not None:
        facts["expires"] = expiry_label(request.expires_at)
    return facts
