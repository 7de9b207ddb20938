"""The few calls of SkyPilot's SDK that are made, as one object that a test can stand in for.

`import sky` takes seconds and reads the environment, so it happens at the first call. Nothing here bounds the time of a
call: `orchestrate.backends.skypilot_calls` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Sdk", "ServerRequest", "SkyPilotSdk"]


@dataclass(frozen=True, slots=True)
class ServerRequest:
    """One request that the API server knows: its id, what it does (`sky.launch`), its status and its cluster."""

    id: str
    name: str
    status: str
    cluster: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether it has ended, so that it can create nothing any more."""
        return self.status in {"SUCCEEDED", "FAILED", "CANCELLED"}

    @property
    def may_create(self) -> bool:
        """Whether a request of this kind can bring a cluster, or a job on it, into being."""
        return self.name.rpartition(".")[2] in {"launch", "exec", "start"}


class Sdk(Protocol):
    """Everything that is asked of SkyPilot. Methods that return `str` return the id of a request at the server."""

    def server(self) -> Mapping[str, Any]:
        """The API server's version and health; starts a local one that is not there."""

    def parse(self, tree: Mapping[str, Any]) -> Any:
        """The task in `tree`, or what SkyPilot says against it."""

    def enabled_infra(self) -> str:
        """Request for the names of the infras that the server has credentials for."""

    def check(self, infra: str) -> str:
        """Request that looks for the credentials of an infra anew."""

    def can_autodown(self, infra: str) -> bool:
        """Whether a cluster on that kind of infra can delete itself."""

    def optimize(self, task: Any) -> str:
        """Request that fails where the task can not be placed anywhere."""

    def launch(self, task: Any, cluster: str) -> str:
        """Request that creates the cluster and starts the job; result: job id and handle."""

    def job_status(self, cluster: str, job: int) -> str:
        """Request for the status of a job, as a word."""

    def cancel_job(self, cluster: str, job: int) -> str:
        """Request that ends a job."""

    def clusters(self, names: Sequence[str] | None, *, force: bool) -> str:
        """Request for the records of clusters, asking the infra again with `force`."""

    def down(self, cluster: str, *, purge: bool) -> str:
        """Request that deletes a cluster; with `purge` also the record of one that could not be deleted."""

    def slurm_nodes(self, slurm_cluster: str) -> str:
        """Request for the nodes of a Slurm cluster."""

    def kubernetes_nodes(self, context: str) -> str:
        """Request for the nodes of a Kubernetes context."""

    def requests(self, ids: Sequence[str] | None = None, cluster: str | None = None) -> tuple[ServerRequest, ...]:
        """The requests with these ids, or all that are about `cluster`."""

    def result(self, request_id: str) -> Any:
        """What a request that is over came to; raises what it failed with."""

    def cancel_requests(self, ids: Sequence[str]) -> str:
        """Request that cancels others."""

    def download_logs(self, cluster: str, job: int) -> Mapping[str, str]:
        """Fetch the logs of a job through the server: folder by job id."""

    def write_ssh_config(self, cluster: str) -> None:
        """Make `ssh NAME` reach the cluster's head node through SkyPilot, as `sky status NAME` does."""


class SkyPilotSdk:
    """`Sdk` by the installed SkyPilot, against the server that its own configuration names."""

    def server(self) -> Mapping[str, Any]:
        """See `Sdk`."""
        sky, _ = _modules()
        from sky.server import common  # noqa: PLC0415  # lazily, as everything of SkyPilot

        common.check_server_healthy_or_start_fn()
        info = sky.api_info()
        endpoint = common.get_server_url()
        return {
            "endpoint": "local" if common.is_api_server_local() else str(endpoint).partition("@")[2] or str(endpoint),
            "version": info.version,
            "api_version": info.api_version,
            "status": getattr(info.status, "value", str(info.status)),
            "client_version": sky.__version__,
        }

    def parse(self, tree: Mapping[str, Any]) -> Any:
        """See `Sdk`."""
        sky, _ = _modules()
        return sky.Task.from_yaml_config(deepcopy(tree))  # it takes the tree apart

    def enabled_infra(self) -> str:
        """See `Sdk`."""
        return str(_modules()[1].enabled_clouds())

    def check(self, infra: str) -> str:
        """See `Sdk`."""
        return str(_modules()[1].check((infra,), verbose=False))

    def can_autodown(self, infra: str) -> bool:
        """See `Sdk`."""
        sky, _ = _modules()
        from sky.utils import registry  # noqa: PLC0415  # lazily, as everything of SkyPilot

        cloud: Any = registry.CLOUD_REGISTRY.from_str(infra)
        wanted = {sky.clouds.CloudImplementationFeatures.AUTODOWN}
        try:
            cloud.check_features_are_supported(sky.Resources(cloud=cloud), wanted)
        except sky.exceptions.NotSupportedError:
            return False
        return True

    def optimize(self, task: Any) -> str:
        """See `Sdk`."""
        sky, sdk = _modules()
        with sky.Dag() as dag:
            dag.add(task)
        return str(sdk.optimize(dag))

    def launch(self, task: Any, cluster: str) -> str:
        """See `Sdk`."""
        return str(_modules()[1].launch(task, cluster_name=cluster))

    def job_status(self, cluster: str, job: int) -> str:
        """See `Sdk`."""
        return str(_modules()[1].job_status(cluster, [job]))

    def cancel_job(self, cluster: str, job: int) -> str:
        """See `Sdk`."""
        return str(_modules()[1].cancel(cluster, job_ids=[job]))

    def clusters(self, names: Sequence[str] | None, *, force: bool) -> str:
        """See `Sdk`."""
        sky, sdk = _modules()
        mode = sky.StatusRefreshMode.FORCE if force else sky.StatusRefreshMode.NONE
        return str(sdk.status(None if names is None else list(names), refresh=mode, all_users=True))

    def down(self, cluster: str, *, purge: bool) -> str:
        """See `Sdk`."""
        return str(_modules()[1].down(cluster, purge=purge))

    def slurm_nodes(self, slurm_cluster: str) -> str:
        """See `Sdk`."""
        return str(_modules()[1].slurm_node_info(slurm_cluster))

    def kubernetes_nodes(self, context: str) -> str:
        """See `Sdk`."""
        return str(_modules()[1].kubernetes_node_info(context))

    def requests(self, ids: Sequence[str] | None = None, cluster: str | None = None) -> tuple[ServerRequest, ...]:
        """See `Sdk`."""
        found = _modules()[1].api_status(
            None if ids is None else list(ids), all_status=True, cluster_name=cluster, limit=None
        )
        known = (ServerRequest(each.request_id, each.name, str(each.status), each.cluster_name) for each in found)
        return tuple(each for each in known if cluster is None or each.cluster == cluster)

    def result(self, request_id: str) -> Any:
        """See `Sdk`."""
        return _modules()[1].get(request_id)

    def cancel_requests(self, ids: Sequence[str]) -> str:
        """See `Sdk`."""
        return str(_modules()[1].api_cancel(list(ids), silent=True))

    def download_logs(self, cluster: str, job: int) -> Mapping[str, str]:
        """See `Sdk`."""
        found: Mapping[str, str] = _modules()[1].download_logs(cluster, [str(job)])
        return found

    def write_ssh_config(self, cluster: str) -> None:
        """See `Sdk`."""
        _modules()
        from sky.client.cli import command  # noqa: PLC0415  # lazily, as everything of SkyPilot

        # The SDK has no public call for it (sky/client/cli/command.py says that it should).
        command._get_cluster_records_and_set_ssh_config([cluster])  # noqa: SLF001


def _modules() -> tuple[Any, Any]:
    from sky.client import sdk  # noqa: PLC0415

    import sky  # noqa: PLC0415  # takes seconds; only a run on this backend pays them

    return sky, sdk
