"""An emulated cluster for each test, and clients for it."""

import contextlib
import json
import urllib.error
import urllib.request

import pytest
from k8s_bed import EmulatorBed, until, why_no_emulator
from kubernetes import client, config

NAMESPACE = "lab"


class Lab:
    """A bed with what these tests say often."""

    def __init__(self, bed):
        self.bed = bed
        self.pull = bed.pull
        self.namespace = bed.namespace
        api = config.new_client_from_config(str(bed.kubeconfig))
        self.core, self.batch = client.CoreV1Api(api), client.BatchV1Api(api)
        self.api = api
        self.until = until

    def request(self, method, path, body=None, *, token=None, content_type="application/json"):
        """(code, answer) of one request, without a client's own opinions."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content_type, "Authorization": f"Bearer {token or self.bed.admin_token}"}
        request = urllib.request.Request(f"{self.bed.url}{path}", data=data, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def jobs_path(self, name=""):
        return f"/apis/batch/v1/namespaces/{self.namespace}/jobs" + (f"/{name}" if name else "")

    def path(self, plural, name=""):
        return f"/api/v1/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    def job(self, name, script="true", *, gpus=0, pod=None, **spec):
        """The manifest of a Job whose container runs a shell script."""
        container = {"name": "main", "image": "bed.local/shell:1", "command": ["/bin/sh", "-c", script]}
        if gpus:
            container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
        template = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            **(pod or {}),
        }
        return {
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "labels": {"app": name}},
            "spec": {"backoffLimit": 0, **spec, "template": {"spec": template}},
        }  # fmt: skip

    def start(self, *arguments, **more):
        """Create a Job; returns it as stored."""
        code, made = self.request("POST", self.jobs_path(), self.job(*arguments, **more))
        assert code == 201, made
        return made

    def pods(self, job):
        answer = self.request("GET", self.path("pods") + f"?labelSelector=job-name={job}")
        return answer[1]["items"]

    def phases(self, job):
        return [pod["status"]["phase"] for pod in self.pods(job)]

    def conditions(self, job):
        return [entry["type"] for entry in self.request("GET", self.jobs_path(job))[1]["status"].get("conditions", [])]

    def until_running(self, job):
        return until(lambda: [pod for pod in self.pods(job) if pod["status"]["phase"] == "Running"], f"{job} to run")[0]

    def log(self, pod):
        return self.core.read_namespaced_pod_log(pod["metadata"]["name"], self.namespace)

    def until_logged(self, pod, text):
        until(lambda: text in self.log(pod), f"{text!r} in the log")

    def until_condition(self, job, kind):
        until(lambda: kind in self.conditions(job), lambda: f"{kind} of {job}; {self.conditions(job)}")

    def changes(self, kinds=("Job", "Pod", "Event")):
        """Everything that happened to objects of these kinds in the namespace."""
        return [
            entry
            for entry in self.pull("history")
            if entry["object"]["kind"] in kinds and entry["object"]["metadata"].get("namespace") == self.namespace
        ]


@pytest.fixture
def make_lab(tmp_path):
    with made_labs(tmp_path) as make:
        yield make


@pytest.fixture
def lab(make_lab):
    return make_lab()


@pytest.fixture(scope="module")
def shared_lab(tmp_path_factory):
    """One cluster for the tests of a module that stay out of each other's way."""
    with made_labs(tmp_path_factory.mktemp("shared")) as make:
        yield make()


@contextlib.contextmanager
def made_labs(folder):
    if (why := why_no_emulator()) is not None:
        pytest.skip(why)
    beds = []

    def make(*arguments, pace=0.0):
        beds.append(EmulatorBed(folder / f"bed{len(beds)}", *arguments, namespace=NAMESPACE, pace=pace))
        return Lab(beds[-1])

    try:
        yield make
    finally:
        for bed in beds:
            bed.close()
