"""A cluster to run against, the tool as a person starts it, and eyes of our own to count what is left.

Without `ORCHESTRATE_K8S_IMAGE` the cluster is the emulator. With it, it is the one that KUBECONFIG names: then
`ORCHESTRATE_K8S_NAMESPACE` is the namespace to use (`orchestrate-it` unless it is set; made when it is not there), and
the image needs bash, tar, gzip, coreutils and `python3` with PyTorch, numpy and pytest.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from k8s_bed import EmulatorBed, until, why_no_containers
from kubernetes import client, config

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
IMAGE = os.environ.get("ORCHESTRATE_K8S_IMAGE", "")
GPUS = 4
OURS = "orchestrate/run-id"


class Cluster:
    """What the tests know of a cluster through the official client, never through the tool.

    `bed` is the emulator's, None on a real cluster.
    """

    def __init__(self, kubeconfig, namespace, image, bed=None):
        self.kubeconfig = kubeconfig
        self.namespace = namespace
        self.image = image
        self.bed = bed
        api = config.new_client_from_config(str(kubeconfig))
        self.core, self.batch = client.CoreV1Api(api), client.BatchV1Api(api)
        self.scheduling = client.SchedulingV1Api(api)
        self.selector = self._selector()

    def _selector(self):
        """How a launch names the GPU nodes here, as options."""
        nodes = [node for node in self.core.list_node().items if int(node.status.allocatable.get("nvidia.com/gpu", 0))]
        if not nodes:
            pytest.skip("no node of this cluster has GPUs")
        product = (nodes[0].metadata.labels or {}).get("nvidia.com/gpu.product")
        return [] if product == "NVIDIA-H200" else ["--node-selector", "none"]

    def gpus(self):
        """All GPUs that nodes here offer to pods."""
        return sum(int(node.status.allocatable.get("nvidia.com/gpu", 0)) for node in self.core.list_node().items)

    def largest(self):
        """GPUs of the node that has most of them."""
        return max(int(node.status.allocatable.get("nvidia.com/gpu", 0)) for node in self.core.list_node().items)

    def ours(self, run_id):
        """Everything that carries this run's id, in words."""
        selector = f"{OURS}={run_id}"
        found = {
            "job": self.batch.list_namespaced_job(self.namespace, label_selector=selector).items,
            "pod": self.core.list_namespaced_pod(self.namespace, label_selector=selector).items,
            "configmap": self.core.list_namespaced_config_map(self.namespace, label_selector=selector).items,
        }
        return [f"{kind} {item.metadata.name}" for kind, items in found.items() for item in items]

    def pods(self, job):
        return self.core.list_namespaced_pod(self.namespace, label_selector=f"job-name={job}").items

    def hold(self, name, *, gpus=0, seconds=3600, labels=None, annotations=None, priority=None, suspend=False):
        """A Job that does nothing for so long, as anybody may have one here."""
        container = {
            "name": "main", "image": self.image,
            "command": ["/bin/sh", "-c", f"trap 'exit 0' TERM; sleep {seconds} & wait"],
        }  # fmt: skip
        if gpus:
            container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
        pod = {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container],
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        }  # fmt: skip
        if priority:
            pod["priorityClassName"] = priority
        meta = {"name": name, "labels": labels or {}, "annotations": annotations or {}}
        body = {
            "metadata": meta,
            "spec": {
                "backoffLimit": 0, "suspend": suspend,
                "template": {"metadata": {"labels": labels or {}}, "spec": pod},
            },
        }  # fmt: skip
        return self.batch.create_namespaced_job(self.namespace, body)

    def drop(self, *names):
        """Delete Jobs and wait until they are gone: in the foreground they stay for a moment after their last pods."""
        options = client.V1DeleteOptions(propagation_policy="Foreground")
        for name in names:
            try:
                self.batch.delete_namespaced_job(name, self.namespace, body=options)
            except client.ApiException as error:
                if error.status != 404:
                    raise
        for name in names:
            until(lambda name=name: not self.pods(name) and not self._has_job(name), f"{name} to go", limit_s=90)

    def _has_job(self, name):
        return bool(self.batch.list_namespaced_job(self.namespace, field_selector=f"metadata.name={name}").items)

    def until_running(self, job, *, limit_s=120):
        def running():
            return [pod for pod in self.pods(job) if pod.status.phase == "Running"]

        return until(running, f"{job} to run", limit_s=limit_s)[0]


@dataclass
class Launched:
    """One `orchestrate launch`, as a process."""

    process: subprocess.Popen
    runs_dir: Path
    err: Path
    marks: list = field(default_factory=list)

    @property
    def path(self):
        return next((path for path in self.runs_dir.iterdir() if re.fullmatch(r"r\d{8}-.*", path.name)), None)

    @property
    def run_id(self):
        return self.path.name

    def records(self):
        try:
            lines = (self.path / "journal.jsonl").read_bytes().split(b"\n")[:-1]
        except (OSError, TypeError, AttributeError):
            return []
        return [json.loads(line) for line in lines]

    def wait_for(self, kind, *, limit_s=90):
        def found():
            record = next((record for record in self.records() if record["kind"] == kind), None)
            return record or self._over()

        return until(found, lambda: f"a record {kind}; {self.told()}", limit_s=limit_s)

    def told(self):
        return f"{[record['kind'] for record in self.records()]} {self.err.read_text()[-3000:]}"

    def _over(self):
        if self.process.poll() is not None:
            raise AssertionError(f"the launcher ended with {self.process.returncode}: {self.err.read_text()[-3000:]}")

    def answer(self, *, limit_s=240):
        """The JSON answer and the exit code."""
        out, _ = self.process.communicate(timeout=limit_s)
        assert out.count(b"\n") == 1, (out, self.err.read_text()[-3000:])
        return json.loads(out), self.process.returncode

    def closure(self):
        closures = [record["facts"] for record in self.records() if record["kind"] == "closure"]
        return closures[-1] if closures else None

    def until_closed(self, *, limit_s=180):
        return until(self.closure, lambda: f"a closure; {self.told()}", limit_s=limit_s)

    def warden(self):
        return [record for record in self.records() if record["kind"] == "warden-started"][-1]["facts"]["pid"]

    def kill_launcher(self):
        self.process.kill()
        self.process.wait()

    def kill_both(self):
        """The launcher and its warden, at one go: nothing of ours is left on this machine."""
        warden = self.warden()
        os.kill(self.process.pid, signal.SIGSTOP)  # or it would start another warden
        os.kill(warden, signal.SIGKILL)
        self.process.kill()
        self.process.wait()


class Tool:
    """The tool with a copy of its packages in which the node needs no PyTorch."""

    def __init__(self, cluster, folder, packages):
        self.cluster = cluster
        self.folder = folder
        self.packages = packages
        self.launched = []
        self.as_user(cluster.kubeconfig, cluster.namespace)

    def as_user(self, kubeconfig, namespace):
        """From now on with these credentials, in this namespace."""
        self.kubeconfig, self.namespace = kubeconfig, namespace

    def environ(self, packages=None):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATE_")}
        return {
            **kept, "KUBECONFIG": str(self.kubeconfig), "TMPDIR": str(self.folder),
            "PYTHONPATH": str(packages or self.packages("complete")),
        }  # fmt: skip

    def launch(self, *options, behaviour="complete", packages=None, gpus=GPUS):
        """Start `orchestrate launch --backend k8s` on the cluster."""
        runs_dir = self.folder / f"runs{len(self.launched)}"
        runs_dir.mkdir()
        err = self.folder / f"launch{len(self.launched)}.err"
        own = ["--image", self.cluster.image] if "--image" not in options else []
        own += ["--deadline", "15m"] if "--deadline" not in options else []
        command = [
            sys.executable, "-m", "orchestrate", "launch", "--backend", "k8s", "--namespace", self.namespace,
            "--cell-set", "smoke", "--repeat", "2", "--accelerators", f"H200:{gpus}", *self.cluster.selector,
            "--runs-dir", str(runs_dir), "--json", *own, *options,
        ]  # fmt: skip
        with err.open("wb") as stream:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=stream, start_new_session=True,
                env=self.environ(packages or self.packages(behaviour)), cwd=self.folder,
            )  # fmt: skip
        launched = Launched(process, runs_dir, err)
        self.launched.append(launched)
        return launched

    def command(self, *arguments):
        """(exit code, stdout, stderr) of `orchestrate ARGUMENTS`."""
        done = subprocess.run(
            [sys.executable, "-m", "orchestrate", *arguments], check=False, capture_output=True, text=True,
            env=self.environ(), timeout=240, cwd=self.folder,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    def close(self):
        for launched in self.launched:
            if launched.process.poll() is None:
                launched.process.send_signal(signal.SIGTERM)
                try:
                    launched.process.wait(60)
                except subprocess.TimeoutExpired:
                    launched.process.kill()
            launched.process.wait()
            launched.process.stdout.close()


@pytest.fixture(scope="session")
def packages(tmp_path_factory):
    """behaviour -> a folder with the packages, whose node is the stand-in."""
    made = {}

    def packages_for(behaviour):
        if behaviour not in made:
            folder = tmp_path_factory.mktemp(f"packages-{behaviour}")
            for name in ("orchestrate", "harness", "k8s", "sky"):
                shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            shutil.copy(HERE / "stand_in_node.py", folder / "harness" / "node.py")
            (folder / "harness" / "behaviour.txt").write_text(behaviour)
            made[behaviour] = folder
        return made[behaviour]

    return packages_for


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """The emulator, or the cluster that KUBECONFIG names."""
    if IMAGE:
        yield real_cluster()
        return
    if (why := why_no_containers()) is not None:
        pytest.skip(why)
    bed = EmulatorBed(tmp_path_factory.mktemp("cluster"), namespace="team", pace=0.2)
    yield Cluster(bed.kubeconfig, "team", "bed.local/torch:1", bed)
    bed.close()


@pytest.fixture
def emulator(cluster):
    """The emulator's levers; a test that needs them has nothing to do on a real cluster."""
    if cluster.bed is None:
        pytest.skip("only an emulator's clock can be put forward, and this suite runs on a real cluster")
    return cluster.bed


@pytest.fixture
def tool(cluster, packages, tmp_path):
    made = Tool(cluster, tmp_path, packages)
    yield made
    made.close()


@pytest.fixture(scope="module")
def make_tool(cluster, packages, tmp_path_factory):
    """Tools for launches that go on at the same time."""
    made = []

    def make():
        made.append(Tool(cluster, tmp_path_factory.mktemp("tool"), packages))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def neighbours(cluster, request):
    """A colleague's live run and a look-alike of ours; both must outlive whatever a test does, untouched."""
    if "emulator" in request.fixturenames:
        request.getfixturevalue("emulator")  # on a real cluster it skips, before anything is made there
    expires = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() + 86400))
    name = "orchestrate-smoke-r20260101-000000-c0ffee"
    labels = {
        "app.kubernetes.io/name": "orchestrate", OURS: "r20260101-000000-c0ffee", "orchestrate/owner": "colleague",
        "orchestrate/token": "c" * 32, "orchestrate/expires": expires, "orchestrate/cell-set": "smoke",
    }  # fmt: skip
    like = {"app.kubernetes.io/name": "orchestrate", "orchestrate/template": "cost-calibration"}
    body = {"metadata": {"name": f"{name}-harness-000000000000-0", "labels": labels}, "data": {"a": "1"}}
    try:
        cluster.core.create_namespaced_config_map(cluster.namespace, body)
        cluster.hold(name, labels=labels)
        cluster.hold("orchestrate-smoke-by-hand", labels=like, suspend=True)
        cluster.until_running(name)
        before = state(cluster)
        yield
        assert state(cluster) == before
    finally:  # what is left here would fail every later test
        cluster.drop(name, "orchestrate-smoke-by-hand")
        cluster.core.delete_namespaced_config_map(body["metadata"]["name"], cluster.namespace)


def state(cluster):
    """What must not change of anybody else's: names, UIDs and who runs."""
    names = ("orchestrate-smoke-r20260101-000000-c0ffee", "orchestrate-smoke-by-hand")
    jobs = [cluster.batch.read_namespaced_job(name, cluster.namespace).metadata.uid for name in names]
    pods = [(pod.metadata.uid, pod.status.phase) for pod in cluster.pods(names[0])]
    maps = cluster.core.list_namespaced_config_map(
        cluster.namespace, label_selector="orchestrate/owner=colleague"
    ).items
    return jobs, pods, [(item.metadata.uid, item.metadata.resource_version) for item in maps]


def real_cluster():
    namespace = os.environ.get("ORCHESTRATE_K8S_NAMESPACE", "orchestrate-it")
    kubeconfig = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    core = client.CoreV1Api(config.new_client_from_config(kubeconfig))
    try:
        core.create_namespace({"metadata": {"name": namespace}})
    except client.ApiException as error:
        if error.status not in {403, 409}:
            raise
    return Cluster(kubeconfig, namespace, IMAGE)
