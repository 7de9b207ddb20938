"""What SkyPilot made for a run on Kubernetes, seen in the cluster itself: pods and services by their labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from orchestrate.backends.kubernetes_api import Api, name_of
from orchestrate.backends.kubernetes_client import ApiError, Transport, connect
from orchestrate.backends.protocol import Resource
from orchestrate.errors import BackendError

__all__ = ["Pods", "open_pods"]

CALL_S = 30.0
KINDS = ("pods", "services")


@dataclass(frozen=True, slots=True)
class Pods:
    """The objects of one run in the namespace of a context, which is where SkyPilot puts them."""

    api: Api
    namespace: str
    token: str

    @property
    def what(self) -> str:
        """The question, for a census."""
        return f"pods and services with this run's token in namespace {self.namespace}"

    def look(self) -> list[Resource]:
        """What is there; raises what the API server raises."""
        found: list[Resource] = []
        for kind in KINDS:
            path = f"/api/v1/namespaces/{self.namespace}/{kind}"
            items = self.api.items(path, self.api.budget(CALL_S), labelSelector=f"orchestrate/token={self.token}")
            found.extend(Resource(kind.removesuffix("s"), f"{self.namespace}/{name_of(item)}") for item in items)
        return found


def open_pods(
    context: str,
    token: str,
    environ: Mapping[str, str],
    connecting: Callable[[str | None, Mapping[str, str] | None], Transport] = connect,
) -> Pods | None:
    """The direct way to the cluster of `context`; None where this machine has no credentials, or may not look.

    Then SkyPilot's server is the only one to ask.
    """
    try:
        transport = connecting(context, environ)
        api = Api(transport)
        if all(api.may(transport.namespace, "list", kind, api.budget(CALL_S)) for kind in KINDS):
            return Pods(api, transport.namespace, token)
    except (ApiError, BackendError, ImportError):
        return None
    return None
