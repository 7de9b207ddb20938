"""Whether this machine has what it takes to ask a provider: a kubeconfig, an endpoint. Asks nobody."""

from __future__ import annotations

from pathlib import Path

from orchestrate.backends.catalogue import BackendPlace

__all__ = ["why_not_configured"]

_POD_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


def why_not_configured(name: str, place: BackendPlace) -> str | None:
    """Why the backend `name` can not be asked from here, in words; None where something says that it can."""
    match name:
        case "k8s":
            if place.environ.get("KUBECONFIG") or _has(place, ".kube/config") or _POD_TOKEN.exists():
                return None
            return "no KUBECONFIG, no ~/.kube/config, and this is no pod with a service account"
        case "sky":
            marks = (".sky/config.yaml", ".sky/state.db")
            if place.environ.get("SKYPILOT_API_SERVER_ENDPOINT") or any(_has(place, mark) for mark in marks):
                return None
            return "no SKYPILOT_API_SERVER_ENDPOINT, and SkyPilot has never been used in this home"
        case _:
            return None


def _has(place: BackendPlace, path: str) -> bool:
    return place.home is not None and (place.home / path).exists()
