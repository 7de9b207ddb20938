"""A run on Kubernetes through SkyPilot, counted in the cluster itself by its labels."""

import json
from urllib.parse import unquote

import pytest

from orchestrate.backends.kubernetes_client import ApiError
from orchestrate.backends.protocol import CensusPath
from orchestrate.backends.skypilot_pods import open_pods
from orchestrate.errors import UnsatisfiableError


class Cluster:
    """A `Transport` to an API server that has one pod of the run and one of somebody else."""

    server, context, namespace = "https://k8s", "prod", "team"

    def __init__(self, token):
        self.pods = {"ours": token, "theirs": "f" * 32}
        self.allowed = True
        self.up = True

    def send(self, method, path, query, body, timeout_s):
        if not self.up:
            raise ApiError(0, "Unreachable", "connection refused")
        if path.endswith("selfsubjectaccessreviews"):
            return json.dumps({"status": {"allowed": self.allowed}})
        if path == "/api/v1/namespaces/team/services":
            return json.dumps({"items": []})
        assert path == "/api/v1/namespaces/team/pods"
        wanted = unquote(query["labelSelector"]).removeprefix("orchestrate/token=")
        return json.dumps(
            {"items": [{"metadata": {"name": name}} for name, token in self.pods.items() if token == wanted]}
        )


@pytest.fixture
def cluster(bed):
    return Cluster(bed.ownership.token)


def opener(bed, cluster):
    return lambda: open_pods("prod", bed.ownership.token, {}, lambda _context, _environ: cluster)


def test_a_pod_of_the_run_remains_and_one_of_somebody_else_does_not_count(bed, cluster):
    backend = bed.backend(direct=False, infra="k8s/prod")
    backend._open_pods = opener(bed, cluster)
    look = backend.census()
    assert backend.census_path is CensusPath.DIRECT
    assert [(item.kind, item.id) for item in look.remaining] == [("pod", "team/ours")]
    del cluster.pods["ours"]
    assert backend.census().is_clean


def test_a_cluster_that_answers_no_more_is_unknown(bed, cluster):
    backend = bed.backend(direct=False, infra="k8s/prod")
    backend._open_pods = opener(bed, cluster)
    del cluster.pods["ours"]
    assert backend.census().is_clean
    cluster.up = False
    assert backend.census().unknown


@pytest.mark.parametrize("why", ["no rights", "no answer", "no credentials"])
def test_where_the_cluster_can_not_be_seen_the_server_is_asked_alone(bed, cluster, why):
    cluster.allowed, cluster.up = why != "no rights", why != "no answer"

    def connecting(_context, _environ):
        if why == "no credentials":
            raise UnsatisfiableError("no kubeconfig", remedy="none")
        return cluster

    backend = bed.backend(direct=False, infra="k8s/prod")
    backend._open_pods = lambda: open_pods("prod", bed.ownership.token, {}, connecting)
    assert backend.census().is_clean
    assert backend.census_path is CensusPath.VIA_SERVER
