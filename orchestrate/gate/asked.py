"""What a workflow asks its run for, and where it has somebody look afterwards: the second must cover the first.

A look at the wrong place finds nothing, and that would read like a proof.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Look", "Target", "look_from", "targets_of_plan", "uncovered"]


@dataclass(frozen=True, slots=True)
class Target:
    """A place where a run may have something: `namespace` on Kubernetes, `infra` of SkyPilot; None is not known."""

    backend: str
    namespace: str | None = None
    infra: str | None = None

    def __str__(self) -> str:
        where = [each for each in (self.namespace, self.infra) if each]
        return " ".join([self.backend, *where])


@dataclass(frozen=True, slots=True)
class Look:
    """Where an audit looks: these backends, narrowed to a namespace or an infra where one is named."""

    backends: frozenset[str]
    namespace: str | None = None
    infra: str | None = None

    def as_json(self) -> dict[str, Any]:
        """As in reconcile.json."""
        return {"backends": sorted(self.backends), "namespace": self.namespace, "infra": self.infra}

    def covers(self, target: Target) -> bool:
        """Whether whatever is at `target` would be seen."""
        return (
            target.backend in self.backends
            and (self.namespace is None or target.backend != "k8s" or self.namespace == target.namespace)
            and (self.infra is None or target.backend != "sky" or self.infra == target.infra)
        )


def uncovered(targets: Iterable[Target], look: Look) -> tuple[str, ...]:
    """Those of `targets` that `look` does not see, in words."""
    return tuple(f"the look afterwards is not at {target}" for target in targets if not look.covers(target))


def look_from(tree: object) -> Look | None:
    """What `Look.as_json` made; None where it is not that."""
    if not isinstance(tree, Mapping):
        return None
    backends = tree.get("backends")
    if not isinstance(backends, list) or not all(isinstance(each, str) for each in backends):
        return None
    return Look(frozenset(backends), _text(tree.get("namespace")), _text(tree.get("infra")))


def targets_of_plan(plan: Mapping[str, Any], admitted: Mapping[str, Any]) -> tuple[Target, ...]:
    """Where the run of that plan, with those facts of its admission, may have something."""
    backend = plan.get("backend")
    settings = _mapping(plan.get("settings"))
    places = plan.get("places")
    found = _mapping(admitted.get("preflight")).get("namespace")
    rows = [_mapping(place) for place in places] if isinstance(places, list) and places else [{}]
    return tuple(
        Target(
            str(backend),
            _text(place.get("namespace") or settings.get("namespace") or found) if backend == "k8s" else None,
            _text(place.get("infra") or settings.get("infra")) if backend == "sky" else None,
        )
        for place in rows
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
