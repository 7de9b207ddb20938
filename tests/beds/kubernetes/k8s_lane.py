"""A namespace of an emulated cluster for one run at a time, with neighbours that must not be touched."""

import json
import os
import subprocess
import sys

from k8s_bed import until
from k8s_roles import apply_roles, token_of
from kubernetes import client, config

IMAGE = "bed.local/torch:1"


class Lane:
    """A namespace with a user who may do exactly what the shipped roles allow, and with neighbours."""

    def __init__(self, bed, folder, packages, number):
        self.bed, self.folder, self.packages = bed, folder, packages
        self.namespace = f"lane-{number}"
        self.user = f"system:serviceaccount:{self.namespace}:orchestrate-runner"
        self.api = config.new_client_from_config(str(bed.kubeconfig))
        self.core, self.batch = client.CoreV1Api(self.api), client.BatchV1Api(self.api)
        self.core.create_namespace({"metadata": {"name": self.namespace}})
        apply_roles(self.api, self.namespace)
        token = token_of(self.api, self.namespace)
        self.kubeconfig = bed.write_kubeconfig(f"{self.namespace}-runner", token)
        self._neighbours()
        self.before = self.state()

    def _neighbours(self):
        labels = {"orchestrate/run-id": "r20260101-000000-c0ffee", "orchestrate/owner": "colleague",
                  "orchestrate/token": "c" * 32, "orchestrate/expires": "20991231T000000Z"}  # fmt: skip
        container = {"name": "main", "image": IMAGE, "command": ["/bin/sleep", "3600"]}
        for name, marks in (("orchestrate-smoke-r20260101-000000-c0ffee", labels), ("orchestrate-smoke-like", {})):
            template = {"metadata": {"labels": marks}, "spec": {"restartPolicy": "Never", "containers": [container]}}
            body = {"metadata": {"name": name, "labels": marks}, "spec": {"backoffLimit": 0, "template": template}}
            self.batch.create_namespaced_job(self.namespace, body)
        body = {"metadata": {"name": "orchestrate-smoke-like-harness", "labels": labels}, "data": {"a": "1"}}
        self.core.create_namespaced_config_map(self.namespace, body)
        until(lambda: self.phases() == ["Running"] * 2, "the neighbours to run")

    def phases(self):
        return [pod.status.phase for pod in self.core.list_namespaced_pod(self.namespace).items]

    def state(self):
        """Every object of the namespace by name, UID and phase, as the cluster's administrator sees it."""
        found = [
            *self.batch.list_namespaced_job(self.namespace).items,
            *self.core.list_namespaced_pod(self.namespace).items,
            *self.core.list_namespaced_config_map(self.namespace).items,
        ]
        return sorted(
            (type(item).__name__, item.metadata.name, item.metadata.uid, str(getattr(item.status, "phase", "")))
            if hasattr(item, "status") else (type(item).__name__, item.metadata.name, item.metadata.uid, "")
            for item in found
        )  # fmt: skip

    def environ(self):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATE_")}
        return {
            **kept,
            "KUBECONFIG": str(self.kubeconfig),
            "PYTHONPATH": str(self.packages),
            "TMPDIR": str(self.folder),
        }

    def command(self, *arguments):
        done = subprocess.run(
            [sys.executable, "-m", "orchestrate", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=self.environ(), cwd=self.folder, timeout=240, check=False, text=True,
        )  # fmt: skip
        return done.returncode, done.stdout[-800:]


def kinds(run):
    return [record["kind"] for record in records_of(run)]


def closures(run):
    return [record["facts"] for record in records_of(run) if record["kind"] == "closure"]


def records_of(run):
    try:
        return [json.loads(line) for line in (run / "journal.jsonl").read_bytes().split(b"\n")[:-1]]
    except OSError:
        return []
