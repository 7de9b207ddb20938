"""How many GPUs of a kind there are at an infra and how many are free, and whether what is asked for ever fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrate.backends.skypilot_calls import Calls
from orchestrate.backends.skypilot_refusals import Asked, never
from orchestrate.backends.skypilot_settings import SkySettings
from orchestrate.backends.slurm_login import SlurmLogin
from orchestrate.capacity.taxonomy import Availability, Reason

__all__ = ["GpuCount", "check_fits", "gpu_counts", "look_for_free"]

REQUEST_S = 90.0


@dataclass(frozen=True, slots=True)
class GpuCount:
    """GPUs of one kind on one node; `free` is None where that can not be seen."""

    node: str
    kind: str
    total: int
    free: int | None


def gpu_counts(settings: SkySettings, calls: Calls, login: SlurmLogin | None) -> tuple[GpuCount, ...] | None:
    """Node by node, None where the infra has no such list (a cloud). Raises what the provider raises."""
    if settings.kind == "slurm" and login is not None:
        return tuple(GpuCount(node.name, node.kind, node.total, node.total - node.used) for node in login.nodes())
    if settings.kind == "slurm" and settings.place:
        nodes = calls.result("the nodes", lambda: calls.sdk.slurm_nodes(settings.place), REQUEST_S)
        return tuple(_slurm(node) for node in nodes if isinstance(node, Mapping) and node.get("gpu_type"))
    if settings.kind == "kubernetes" and settings.place:
        found = calls.result("the nodes", lambda: calls.sdk.kubernetes_nodes(settings.place), REQUEST_S)
        return tuple(_kubernetes(node) for node in getattr(found, "node_info_dict", {}).values() if _type(node))
    return None


def look_for_free(settings: SkySettings, calls: Calls, login: SlurmLogin | None) -> tuple[Availability, ...]:
    """What is there and what is free of the kind that was asked for; empty where that can not be told."""
    try:
        counts = gpu_counts(settings, calls, login)
    except Exception:  # noqa: BLE001  # told beside a refusal, which must not be lost for it
        return ()
    return () if counts is None else (summed(counts, settings, login),)


def summed(counts: Sequence[GpuCount], settings: SkySettings, login: SlurmLogin | None) -> Availability:
    """All nodes together."""
    ours = [each for each in counts if _same(each.kind, settings.accelerators.kind)]
    free = [each.free for each in ours if each.free is not None]
    source = "sinfo, GRES" if login is not None else "SkyPilot's list of nodes"
    return Availability(
        where=settings.infra or "any",
        kind=settings.accelerators.kind,
        total=sum(each.total for each in ours),
        free=sum(free) if len(free) == len(ours) else None,
        source=source,
    )


def check_fits(counts: Sequence[GpuCount], settings: SkySettings, asked: Asked) -> None:
    """Raise `UnsatisfiableError` where no node has, or ever frees, as many GPUs of that kind."""
    kind, wanted = settings.accelerators.kind, settings.accelerators.count
    if not wanted:
        return
    ours = [each.total for each in counts if _same(each.kind, kind)]
    if not ours:
        there = ", ".join(sorted({each.kind for each in counts})) or "no GPU at all"
        # On Kubernetes an autoscaler may bring a node of a kind that none has now.
        if settings.kind == "slurm":
            raise never(Reason.UNKNOWN_KIND, f"its nodes have {there}", asked)
    elif max(ours) < wanted:
        raise never(Reason.NEVER_FITS, f"its largest node has {max(ours)} GPUs of kind {kind}", asked)


def _slurm(node: Mapping[str, Any]) -> GpuCount:
    return GpuCount(
        str(node.get("node_name")),
        str(node.get("gpu_type")),
        int(node.get("total_gpus") or 0),
        _int(node.get("free_gpus")),
    )


def _kubernetes(node: Any) -> GpuCount:
    total = getattr(node, "total", {}) or {}
    free = getattr(node, "free", {}) or {}
    known = _int(free.get("accelerators_available"))
    count = _int(total.get("accelerator_count")) or 0
    return GpuCount(str(getattr(node, "name", "?")), _type(node), count, known if known is None or known >= 0 else None)


def _type(node: Any) -> str:
    return str(getattr(node, "accelerator_type", None) or "")


def _int(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) else None


def _same(one: str, other: str) -> bool:
    return one.lower() == other.lower()
