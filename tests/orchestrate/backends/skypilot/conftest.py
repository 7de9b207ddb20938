"""A SkyPilot server and a Slurm cluster in memory: what the SDK and a login would answer, with faults on demand."""

import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from orchestrate.backends.protocol import JobState, Ownership, Request
from orchestrate.backends.skypilot import SkyPilotBackend
from orchestrate.backends.skypilot_calls import CallTimeoutError
from orchestrate.backends.skypilot_marks import is_of_cluster
from orchestrate.backends.skypilot_sdk import ServerRequest
from orchestrate.backends.skypilot_settings import SkySettings
from orchestrate.backends.slurm_login import SlurmJob, SlurmNode
from orchestrate.errors import BackendError

TOKEN = "00112233445566778899aabbccddeeff"
EXPIRES = "2026-11-30T22:44:10.000Z"
HASH = "-fcd1e5cf"


class ClusterDoesNotExist(Exception):  # noqa: N818  # SkyPilot's name
    pass


class ResourcesUnavailableError(Exception):
    def __init__(self, message, failover_history=()):
        super().__init__(message)
        self.failover_history = list(failover_history)


class RequestCancelled(Exception):  # noqa: N818  # SkyPilot's name
    pass


@dataclass
class World:
    """Both of them. `faults` maps the number of a call to when it fails: `before` it acts, `after`, or by `timeout`."""

    nodes: list = field(default_factory=lambda: [SlurmNode("n1", "idle", "H200", 4, 0)])
    jobs: dict = field(default_factory=dict)
    clusters: dict = field(default_factory=dict)
    requests: dict = field(default_factory=dict)
    results: dict = field(default_factory=dict)
    folders: set = field(default_factory=set)
    calls: list = field(default_factory=list)
    faults: dict = field(default_factory=dict)
    launch_ends: object = None
    pending_looks: int = 1
    final_status: str = "SUCCEEDED"
    exit_code: int = 0
    down_fails: Exception | None = None
    enabled: list = field(default_factory=lambda: ["slurm"])
    scheduler_up: bool = True
    grants: bool = True
    killed: list = field(default_factory=list)

    def __post_init__(self):
        self.ids = itertools.count(1)

    def act(self, name, action):
        """One call to a provider."""
        self.calls.append(name)
        fault = self.faults.get(len(self.calls))
        if fault == "before":
            raise lost(name, f"{name} did not get there")
        answer = action()
        if fault == "after":
            raise lost(name, f"the answer of {name} was lost")
        if fault == "timeout":
            raise CallTimeoutError(f"{name} took too long", remedy="wait")
        return answer

    def request(self, name, cluster, work):
        """A request that the server works on at once; what fails, fails when its result is asked for."""
        number = f"req{next(self.ids)}"
        try:
            self.results[number] = (True, work())
        except Exception as error:  # noqa: BLE001  # it is the request's answer
            self.results[number] = (False, error)
        status = "SUCCEEDED" if self.results[number][0] else "FAILED"
        self.requests[number] = ServerRequest(number, name, status, cluster)
        return number

    def add_job(self, name, *, state="RUNNING", comment="", gpus=4, reason="None"):
        job = SlurmJob(
            str(next(self.ids)), name, state, 1800, "2026-11-30T22:50:00", reason, f"gres:gpu:H200:{gpus}", comment
        )
        self.jobs[job.id] = job
        return job

    def queue(self):
        if not self.scheduler_up:
            raise BackendError("slurm_load_jobs error: Unable to contact slurm controller", remedy="start it")
        return tuple(self.jobs.values())


def lost(name, words):
    """As the SDK says it, and as a login does."""
    over_ssh = name in {"squeue", "sinfo", "scancel", "ls", "rm", "tail", "rsync"}
    return BackendError(words, remedy="see the login") if over_ssh else ConnectionError(words)


class FakeSdk:
    def __init__(self, world):
        self.world = world
        self.launching = {}

    def server(self):
        return self.world.act("server", lambda: {"version": "0.14.1", "api_version": "62", "status": "healthy"})

    def parse(self, tree):
        return self.world.act("parse", lambda: dict(tree))

    def enabled_infra(self):
        return self.world.act(
            "enabled_infra", lambda: self.world.request("sky.enabled", None, lambda: self.world.enabled)
        )

    def check(self, infra):
        return self.world.act("check", lambda: self.world.request("sky.check", None, dict))

    def can_autodown(self, infra):
        return infra != "yotta"

    def optimize(self, task):
        return self.world.act(
            "optimize",
            lambda: self.world.request("sky.optimize", None, lambda: self._place(task["resources"]["infra"])),
        )

    @staticmethod
    def _place(infra):
        if infra == "slurm/nowhere":
            raise ValueError(f"Cluster {infra} not found in Slurm config. Available clusters: ['bed']")

    def launch(self, task, cluster):
        return self.world.act("launch", lambda: self._launch(task, cluster))

    def _launch(self, task, cluster):
        world = self.world
        number = f"req{next(world.ids)}"
        world.requests[number] = ServerRequest(number, "sky.launch", "RUNNING", cluster)
        comment = task["config"]["slurm"]["sbatch_options"].get("comment", "")
        state, reason = ("RUNNING", "None") if world.grants else ("PENDING", "Resources")
        world.add_job(cluster + HASH, comment=comment, state=state, reason=reason)
        world.folders |= {f".sky_clusters/{cluster}{HASH}"}
        world.clusters[cluster] = {
            "name": cluster, "status": "INIT", "to_down": True,
            "autostop": task["resources"]["autostop"]["idle_minutes"],
            "cloud": "Slurm", "region": "bed", "launched_at": 0, "accelerators": "{'H200': 4}",
            "labels": task["resources"]["labels"],
            "last_creation_yaml": "resources: {autostop: {wait_for: none}}",
        }  # fmt: skip
        self.launching[number] = [world.pending_looks, cluster]
        return number

    def _step(self):
        for number, waiting in list(self.launching.items()):
            world = self.world
            if world.requests[number].is_over:
                del self.launching[number]
                continue
            waiting[0] -= 1
            if waiting[0] > 0 or not (world.grants or world.launch_ends):
                continue
            del self.launching[number]
            self._finish(number, waiting[1])

    def _finish(self, number, cluster):
        world = self.world
        if isinstance(world.launch_ends, Exception):
            world.results[number] = (False, world.launch_ends)
            if isinstance(world.launch_ends, ResourcesUnavailableError):
                self._delete(cluster)
        else:
            world.clusters.get(cluster, {})["status"] = "UP"
            handle = SimpleNamespace(
                cluster_name_on_cloud=cluster + HASH, launched_resources=SimpleNamespace(get_cost=lambda _seconds: 0.0)
            )
            world.results[number] = (True, (1, handle))
        status = "SUCCEEDED" if world.results[number][0] else "FAILED"
        world.requests[number] = ServerRequest(number, "sky.launch", status, cluster)

    def job_status(self, cluster, job):
        return self.world.act(
            "job_status", lambda: self.world.request("sky.job_status", cluster, lambda: {job: self.world.final_status})
        )

    def cancel_job(self, cluster, job):
        return self.world.act("cancel_job", lambda: self.world.request("sky.cancel", cluster, lambda: None))

    def clusters(self, names, *, force):
        def found():
            if names is None:
                return list(self.world.clusters.values())
            return [self.world.clusters[name] for name in names if name in self.world.clusters]

        return self.world.act("clusters", lambda: self.world.request("sky.status", None, found))

    def down(self, cluster, *, purge):
        return self.world.act(
            "down", lambda: self.world.request("sky.down", cluster, lambda: self._down(cluster, purge))
        )

    def _down(self, cluster, purge):
        if cluster not in self.world.clusters:
            raise ClusterDoesNotExist(cluster)
        if self.world.down_fails is not None and not purge:
            raise self.world.down_fails
        if purge:
            del self.world.clusters[cluster]
        else:
            self._delete(cluster)

    def _delete(self, cluster):
        self.world.clusters.pop(cluster, None)
        for number, job in list(self.world.jobs.items()):
            if job.name == cluster + HASH:
                del self.world.jobs[number]
        self.world.folders.discard(f".sky_clusters/{cluster}{HASH}")

    def slurm_nodes(self, slurm_cluster):
        rows = {"bed": [{"node_name": "n1", "gpu_type": "H200", "total_gpus": 4, "free_gpus": 1}]}
        return self.world.act("slurm_nodes", lambda: self.world.request("sky.nodes", None, lambda: rows[slurm_cluster]))

    def kubernetes_nodes(self, context):
        return self.world.act("kubernetes_nodes", lambda: self.world.request("sky.nodes", None, lambda: None))

    def requests(self, ids=None, cluster=None):
        def found():
            self._step()
            every = self.world.requests.values()
            return tuple(each for each in every if (ids is None or each.id in ids) and cluster in {None, each.cluster})

        return self.world.act("requests", found)

    def result(self, request_id):
        def answer():
            well, value = self.world.results[request_id]
            if not well:
                raise value
            return value

        return self.world.act("result", answer)

    def cancel_requests(self, ids):
        return self.world.act(
            "cancel_requests", lambda: self.world.request("sky.cancel", None, lambda: self._cancel(ids))
        )

    def _cancel(self, ids):
        for number in ids:
            known = self.world.requests[number]
            self.world.requests[number] = ServerRequest(number, known.name, "CANCELLED", known.cluster)
            self.world.results[number] = (False, RequestCancelled("cancelled by another process"))

    def download_logs(self, cluster, job):
        return self.world.act("download_logs", dict)

    def write_ssh_config(self, cluster):
        return self.world.act("write_ssh_config", lambda: None)


class FakeLogin:
    cluster = "bed"

    def __init__(self, world):
        self.world = world

    def jobs(self):
        return self.world.act("squeue", self.world.queue)

    def jobs_of(self, cluster):
        return tuple(job for job in self.jobs() if job.is_there and is_of_cluster(job.name, cluster))

    def nodes(self):
        return self.world.act("sinfo", lambda: tuple(self.world.nodes))

    def cancel(self, jobs):
        def end():
            self.world.queue()
            for job in jobs:
                self.world.killed.append(self.world.jobs.pop(job.id).name)

        self.world.act("scancel", end)

    def folders_of(self, cluster):
        return self.world.act("ls", lambda: tuple(each for each in self.world.folders if cluster in each))

    def remove(self, folders):
        self.world.act("rm", lambda: self.world.folders.difference_update(folders))

    def tail(self, path, offset, limit_bytes=0):
        def read():
            if path.endswith(".exit"):
                return f"{self.world.exit_code}\n".encode()
            lines = b'{"event":"node-started"}\n{"event":"node-ended"}\n'
            return lines[offset:]

        return self.world.act("tail", read)

    def fetch(self, path, to, limit_s=0):
        def copy():
            if not any(path.startswith(folder) for folder in self.world.folders):
                raise BackendError(f"{path} is not there", remedy="none")
            to.mkdir(parents=True, exist_ok=True)
            (to / "fetched").write_text(path)

        self.world.act("rsync", copy)


class Clock:
    """Time that passes only where somebody waits."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def pause(self, seconds):
        self.now += max(seconds, 0.01)


class Bed:
    """A world, and backends of one run in it."""

    def __init__(self, folder, monkeypatch):
        self.world = World()
        self.folder = folder
        self.clock = Clock()
        self.facts = []
        monkeypatch.setattr("time.sleep", self.clock.pause)
        monkeypatch.setattr("time.monotonic", self.clock)
        self.ownership = Ownership("r20261130-224410-aaaaaa", TOKEN, "ann", EXPIRES, folder)
        self.request = Request(
            cell_set="smoke", cells=("cal-grpo-tiny|tiny-hybrid|L4|tp1|cp4",), device="cpu", ranks=4,
            environment={"CELL_SET": "smoke", "RUN_ID": self.ownership.run_id, "REPEAT": "2", "SCHEDULE": "fixed"},
            evidence=folder / "evidence", logs=folder / "logs", deadline_s=1800, reserve_s=900,
        )  # fmt: skip

    def backend(self, *, direct=True, **settings):
        chosen = SkySettings.parse({"infra": "slurm/bed", "accelerators": "H200:4", **settings})
        login = FakeLogin(self.world) if direct else None
        made = SkyPilotBackend(
            self.ownership, chosen, FakeSdk(self.world), login, None, clock=self.clock, pause=self.clock.pause
        )
        made._calls._warm = True
        made.recall(self.facts)
        return made

    def observe(self, backend):
        self.facts.extend(backend.observed())

    def forward(self, backend):
        """Everything up to the end of the payload, as the life cycle does it; returns how it ended."""

        def pause(seconds):
            self.observe(backend)
            self.clock.pause(seconds)

        backend.preflight(self.request)
        self.facts.append(dict(backend.intent(self.request)))
        backend.acquire(self.request, budget_s=600, pause=pause)
        backend.submit(self.request, budget_s=600, lifeline_fd=None)
        for _ in range(400):
            status = backend.poll()
            self.observe(backend)
            if status.state is JobState.ENDED:
                return status
            self.clock.pause(backend.poll_interval_s)
        raise AssertionError("the payload never ended")

    def back(self, backend):
        """Everything after it."""
        backend.stop()
        backend.collect(self.request)
        backend.release()
        return backend.census()

    @property
    def cluster(self):
        return self.backend()._known.cluster


@pytest.fixture
def bed(tmp_path, monkeypatch):
    return Bed(tmp_path, monkeypatch)


@pytest.fixture
def errors():
    """SkyPilot's exceptions, by their own names."""
    return SimpleNamespace(unavailable=ResourcesUnavailableError, cancelled=RequestCancelled, gone=ClusterDoesNotExist)
