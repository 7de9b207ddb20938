"""The audit of a cluster under the Role that k8s/audit.yaml gives it: enough, and each verb of it needed."""

from __future__ import annotations

import json
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from k8s_bed import EmulatorBed, why_real
from kubernetes import client, config

from orchestrate.commands import audit

ROOT = Path(__file__).parents[2]
NAMESPACE = "orchestrate"
MANIFESTS = list(yaml.safe_load_all((ROOT / "k8s" / "audit.yaml").read_text("utf-8")))
(ROLE,) = (each for each in MANIFESTS if each["kind"] == "Role")
VERBS = [(resource, verb) for rule in ROLE["rules"] for resource in rule["resources"] for verb in rule["verbs"]]
PATHS = {
    "ServiceAccount": f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
    "Role": f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/roles",
    "RoleBinding": f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/rolebindings",
}
PAST, FUTURE = "20200101T000000Z", f"{datetime.now(UTC).year + 1}0101T000000Z"


class Cluster:
    """An emulated cluster with the audit's account in it."""

    def __init__(self, folder):
        self.bed = EmulatorBed(folder, namespace=NAMESPACE)
        api = config.new_client_from_config(str(self.bed.kubeconfig))
        self.core, self.batch = client.CoreV1Api(api), client.BatchV1Api(api)
        self.token = ""

    def post(self, path, body):
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.bed.admin_token}"}
        request = urllib.request.Request(
            f"{self.bed.url}{path}", data=json.dumps(body).encode(), method="POST", headers=headers
        )
        with urllib.request.urlopen(request, timeout=20) as response:
            return json.load(response)

    def apply(self, *, without=()):
        """The account, Role and RoleBinding as they are shipped, `without` one verb of one resource."""
        for manifest in MANIFESTS:
            if manifest["kind"] == "Role" and without:
                manifest = {**manifest, "rules": [*self._less(manifest["rules"], *without)]}  # noqa: PLW2901  # a copy
            if manifest["kind"] in PATHS:
                self.post(PATHS[manifest["kind"]], manifest)
        name = "orchestrate-audit"
        self.token = self.post(f"{PATHS['ServiceAccount']}/{name}/token", {})["status"]["token"]

    @staticmethod
    def _less(rules, resource, verb):
        for rule in rules:
            for each in rule["resources"]:
                verbs = [known for known in rule["verbs"] if (each, known) != (resource, verb)]
                yield {"apiGroups": rule["apiGroups"], "resources": [each], "verbs": verbs}

    def leave(self, run_id, *, expires=PAST, owner="ada-ws", token="0123"):
        """What a run may leave: a Job that is not finished, its ConfigMap, and a pod whose Job is gone."""
        labels = {
            "orchestrate/run-id": run_id, "orchestrate/owner": owner, "orchestrate/token": token,
            "orchestrate/expires": expires,
        }  # fmt: skip
        container = {"name": "node", "image": "bed.local/shell:1", "command": ["true"]}
        pod = {"restartPolicy": "Never", "nodeSelector": {"no": "such"}, "containers": [container]}
        self.batch.create_namespaced_job(
            NAMESPACE,
            {
                "metadata": {"name": f"{run_id}-job", "labels": labels},
                "spec": {"suspend": True, "template": {"spec": pod}},
            },
        )
        self.core.create_namespaced_config_map(NAMESPACE, {"metadata": {"name": f"{run_id}-map", "labels": labels}})
        self.core.create_namespaced_pod(
            NAMESPACE, {"metadata": {"name": f"{run_id}-pod", "labels": labels}, "spec": pod}
        )

    def there(self):
        found = [
            *self.batch.list_namespaced_job(NAMESPACE).items,
            *self.core.list_namespaced_config_map(NAMESPACE).items,
            *self.core.list_namespaced_pod(NAMESPACE).items,
        ]
        return {item.metadata.name for item in found}

    def audit(self, monkeypatch, *arguments):
        monkeypatch.setenv("KUBECONFIG", str(self.bed.write_kubeconfig("audit", self.token)))
        full = ["--backend", "k8s", "--namespace", NAMESPACE, "--json", *arguments]
        done = CliRunner().invoke(audit.command, full, standalone_mode=False)
        if done.exception is not None:
            raise done.exception
        return done.return_value, json.loads(done.stdout)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    if (why := why_real()) is not None:
        pytest.skip(why)
    monkeypatch.setenv("ORCHESTRATE_RUNS_DIR", str(tmp_path / "runs"))
    made = Cluster(tmp_path / "bed")
    yield made
    made.bed.close()


def parts(run_id):
    return {f"{run_id}-job", f"{run_id}-map", f"{run_id}-pod"}


def test_under_its_role_the_audit_removes_what_has_expired_and_only_that(cluster, monkeypatch):
    cluster.apply()
    cluster.leave("r-old")
    cluster.leave("r-live", expires=FUTURE)
    cluster.core.create_namespaced_config_map(NAMESPACE, {"metadata": {"name": "r-old-map-of-a-neighbour"}})
    before = cluster.there()
    code, answer = cluster.audit(monkeypatch)
    actions = {finding["run_id"]: finding["action"] for finding in answer["findings"]}
    assert (code, actions) == (1, {"r-old": "end", "r-live": "none"})
    assert cluster.there() == before
    code, answer = cluster.audit(monkeypatch, "--reap")
    assert (code, answer["unknown"]) == (1, [])
    assert cluster.there() == before - parts("r-old")
    code, _ = cluster.audit(monkeypatch, "--reap", "--run", "r-live")
    assert code == 0
    assert cluster.there() == before - parts("r-old") - parts("r-live")
    assert cluster.audit(monkeypatch)[0] == 0


@pytest.mark.parametrize(("resource", "verb"), VERBS)
def test_without_any_one_verb_the_audit_can_not_do_its_work_and_says_so(cluster, monkeypatch, resource, verb):
    cluster.apply(without=(resource, verb))
    cluster.leave("r-old")
    code, answer = cluster.audit(monkeypatch, "--reap")
    assert code == 70, answer
    left = [text for finding in answer["findings"] for text in finding["left"]]
    assert any(f'cannot {verb} resource "{resource}"' in text for text in [*answer["unknown"], *left])


def test_a_cluster_that_does_not_answer_is_never_clean(cluster, monkeypatch):
    cluster.apply()
    cluster.token = "made-up"
    code, answer = cluster.audit(monkeypatch)
    assert code == 70
    assert len(answer["unknown"]) == 3
