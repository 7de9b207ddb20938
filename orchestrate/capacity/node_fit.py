"""Whether any node of a cluster could ever take a pod, and how many GPUs there are and are free.

Allocatable tells *never* from *not now*: what is asked for is compared with what a node would offer if it were empty.
Selectors, required affinity and taints are read as the scheduler reads them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from orchestrate.capacity.quantity import quantity
from orchestrate.capacity.seen import Tree, conditions
from orchestrate.capacity.taxonomy import Availability

__all__ = ["Fit", "Outlook", "availability", "fit", "gpu_resource", "needs"]

_GPU_PRODUCT = "nvidia.com/gpu.product"


class Outlook(StrEnum):
    """What the nodes say about a pod that is not running."""

    WOULD_FIT = "would-fit"
    NODES_DOWN = "nodes-down"
    CORDONED = "cordoned"
    TAINTED = "tainted"
    TOO_SMALL = "too-small"
    NO_SUCH_KIND = "no-such-kind"
    SELECTED_OUT = "selected-out"


@dataclass(frozen=True, slots=True)
class Fit:
    """`outlook` for the pod, in words `why`, and the nodes that are left once the selector was applied."""

    outlook: Outlook
    why: str
    nodes: tuple[Tree, ...]


def needs(pod_spec: Tree) -> dict[str, Fraction]:
    """What a pod asks for, resource by resource: the sum of its containers (a limit counts where no request is)."""
    total: dict[str, Fraction] = {}
    for container in pod_spec.get("containers") or ():
        resources = container.get("resources") or {}
        asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        for name, text in asked.items():
            amount = quantity(text)
            if amount is not None:
                total[name] = total.get(name, Fraction(0)) + amount
    return total


def gpu_resource(asked: Mapping[str, Fraction]) -> str:
    """The name of the resource that is the GPU: an extended resource that ends in `gpu`, else NVIDIA's."""
    return next((name for name in sorted(asked) if "/" in name and name.endswith("gpu")), "nvidia.com/gpu")


def fit(pod_spec: Tree, nodes: Sequence[Tree]) -> Fit:
    """Whether one of `nodes`, were it empty, could take the pod; if not, what keeps all of them from it."""
    asked = needs(pod_spec)
    gpu = gpu_resource(asked)
    chosen = tuple(node for node in nodes if _selected(pod_spec, node))
    large = [node for node in chosen if not _lacks(asked, node)]
    if not chosen or (asked.get(gpu) and all(_allocatable(node, gpu) == 0 for node in chosen)):
        return _no_kind(pod_spec, asked, gpu, nodes, chosen)
    if not large:
        best = min(chosen, key=lambda node: (len(_lacks(asked, node)), -_allocatable(node, gpu)))
        lacking = ", ".join(
            f"{name} {_text(asked[name])} asked, {_text(_allocatable(best, name))} on the largest node"
            for name in _lacks(asked, best)
        )
        return Fit(Outlook.TOO_SMALL, f"no node is large enough: {lacking}", chosen)
    kept_out = {_name(node): _blocks(pod_spec, node) for node in large}
    if any(not taints for taints in kept_out.values()):
        return Fit(Outlook.WOULD_FIT, f"{_count(large)} would fit it if empty", chosen)
    # The mildest obstacle decides: what is only down or cordoned comes back without anybody changing the request.
    down = [name for name, taints in kept_out.items() if all(_means_down(taint) for taint in taints)]
    if down:
        return Fit(Outlook.NODES_DOWN, f"the nodes that would fit it are not ready: {', '.join(down[:5])}", chosen)
    passing = [name for name, taints in kept_out.items() if all(_passes(taint) for taint in taints)]
    if passing:
        return Fit(Outlook.CORDONED, f"the nodes that would fit it take no new pods: {', '.join(passing[:5])}", chosen)
    name, taints = next(iter(kept_out.items()))
    taint = next(taint for taint in taints if not _passes(taint))
    return Fit(Outlook.TAINTED, f"node {name} would fit it, but its taint {taint} is not tolerated", chosen)


def availability(
    where: str, pod_spec: Tree, nodes: Sequence[Tree] | None, pods: Sequence[Tree] | None
) -> tuple[Availability, ...]:
    """GPUs of the selected kind: all of them, and those that no pod holds; None where we may not see it."""
    asked = needs(pod_spec)
    gpu = gpu_resource(asked)
    if nodes is None:
        return (Availability(where, gpu, None, None, "nodes may not be listed"),)
    chosen = [node for node in nodes if _selected(pod_spec, node)]
    total = int(sum((_allocatable(node, gpu) for node in chosen), Fraction(0)))
    if pods is None:
        return (Availability(where, gpu, total, None, "node allocatable; pods of others may not be listed"),)
    names = {_name(node) for node in chosen}
    held = sum((needs(pod.get("spec") or {}).get(gpu, Fraction(0)) for pod in pods if _holds(pod, names)), Fraction(0))
    return (Availability(where, gpu, total, max(0, total - int(held)), "node allocatable less what pods hold"),)


def _no_kind(
    pod_spec: Tree, asked: Mapping[str, Fraction], gpu: str, nodes: Sequence[Tree], chosen: tuple[Tree, ...]
) -> Fit:
    elsewhere = [node for node in nodes if not _lacks(asked, node)]
    wanted = _selector_words(pod_spec)
    if chosen or not elsewhere:
        what = f"no node that matches {wanted} offers {gpu}" if wanted else f"no node offers {gpu}"
        return Fit(Outlook.NO_SUCH_KIND, what, chosen)
    if _GPU_PRODUCT in wanted:
        have = sorted({str(_labels(node).get(_GPU_PRODUCT)) for node in elsewhere if _GPU_PRODUCT in _labels(node)})
        return Fit(
            Outlook.NO_SUCH_KIND,
            f"no node matches {wanted}; there is {', '.join(have) or 'no node that names its kind'}",
            chosen,
        )
    return Fit(Outlook.SELECTED_OUT, f"{_count(elsewhere)} would fit it, but none matches {wanted}", chosen)


def _selected(pod_spec: Tree, node: Tree) -> bool:
    labels = _labels(node)
    if any(labels.get(key) != value for key, value in (pod_spec.get("nodeSelector") or {}).items()):
        return False
    terms = _affinity_terms(pod_spec)
    return terms is None or any(_matches_term(term, node) for term in terms)


def _affinity_terms(pod_spec: Tree) -> Sequence[Tree] | None:
    affinity = (pod_spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return None if required is None else required.get("nodeSelectorTerms") or ()


def _matches_term(term: Tree, node: Tree) -> bool:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False  # an empty term matches nothing
    named = {"metadata.name": _name(node)}
    return all(_matches(item, _labels(node)) for item in expressions) and all(_matches(item, named) for item in fields)


def _matches(expression: Tree, labels: Mapping[str, str]) -> bool:
    value = labels.get(str(expression.get("key")))
    values = [str(item) for item in expression.get("values") or ()]
    match expression.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            number, bound = quantity(value), quantity(values[0] if values else None)
            if number is None or bound is None:
                return False
            return number > bound if operator == "Gt" else number < bound
        case _:
            return False


def _lacks(asked: Mapping[str, Fraction], node: Tree) -> list[str]:
    return [name for name, amount in asked.items() if _allocatable(node, name) < amount]


def _allocatable(node: Tree, name: str) -> Fraction:
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return quantity(allocatable.get(name, "0")) or Fraction(0)


def _blocks(pod_spec: Tree, node: Tree) -> list[str]:
    """The taints that keep the pod off the node, as `key=value:Effect`; a node that is down or cordoned has such."""
    spec = node.get("spec") or {}
    tolerations = pod_spec.get("tolerations") or ()
    taints = [taint for taint in spec.get("taints") or () if taint.get("effect") in {"NoSchedule", "NoExecute"}]
    blocking = [
        f"{taint.get('key')}{'=' + str(taint['value']) if taint.get('value') else ''}:{taint.get('effect')}"
        for taint in taints
        if not any(_tolerates(toleration, taint) for toleration in tolerations)
    ]
    cordoned = "node.kubernetes.io/unschedulable:NoSchedule"
    if spec.get("unschedulable") and cordoned not in blocking:
        blocking.append(cordoned)
    ready = next((item for item in conditions(node) if item.get("type") == "Ready"), None)
    if ready is not None and ready.get("status") != "True" and not any(_means_down(taint) for taint in blocking):
        blocking.append("node.kubernetes.io/not-ready:NoSchedule")
    return blocking


def _tolerates(toleration: Tree, taint: Tree) -> bool:
    if toleration.get("effect") not in {None, "", taint.get("effect")}:
        return False
    key = toleration.get("key")
    if toleration.get("operator") == "Exists":
        return not key or key == taint.get("key")
    return key == taint.get("key") and (toleration.get("value") or "") == (taint.get("value") or "")


def _means_down(taint: str) -> bool:
    return taint.startswith(("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"))


def _passes(taint: str) -> bool:
    """Whether the taint tells of a passing state of the node, not of who may use it."""
    return taint.startswith(
        ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/", "ToBeDeletedByClusterAutoscaler",
         "DeletionCandidateOfClusterAutoscaler", "karpenter.sh/disrupt", "node.cilium.io/")
    )  # fmt: skip


def _holds(pod: Tree, nodes: Collection[str]) -> bool:
    """Whether the pod takes room on one of `nodes`: it has been placed there and has not ended."""
    phase = (pod.get("status") or {}).get("phase")
    return str((pod.get("spec") or {}).get("nodeName")) in nodes and phase not in {"Succeeded", "Failed"}


def _selector_words(pod_spec: Tree) -> str:
    pairs = [f"{key}={value}" for key, value in sorted((pod_spec.get("nodeSelector") or {}).items())]
    for term in _affinity_terms(pod_spec) or ():
        for item in term.get("matchExpressions") or ():
            values = ",".join(str(value) for value in item.get("values") or ())
            pairs.append(f"{item.get('key')} {item.get('operator')} {values}".strip())
    return " and ".join(pairs)


def _labels(node: Tree) -> Mapping[str, str]:
    return (node.get("metadata") or {}).get("labels") or {}


def _name(node: Tree) -> str:
    return str((node.get("metadata") or {}).get("name"))


def _count(nodes: Sequence[Tree]) -> str:
    return f"{len(nodes)} node{'' if len(nodes) == 1 else 's'}"


def _text(amount: Fraction) -> str:
    return str(amount.numerator) if amount.denominator == 1 else f"{float(amount):g}"
