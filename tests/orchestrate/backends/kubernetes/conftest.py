"""An emulated cluster, a backend on it, and payloads that are small programs instead of the harness."""

import dataclasses
import hashlib
import io
import tarfile
import time
from pathlib import Path

import pytest
from k8s_bed import EmulatorBed, until, why_no_containers

from orchestrate.backends.kubernetes import KubernetesBackend
from orchestrate.backends.kubernetes_client import NO_ANSWER, ApiError, connect
from orchestrate.backends.protocol import JobState, Ownership, Request
from orchestrate.render.archive import HarnessArchive

BEGIN = """
import json, os, pathlib, signal, sys, time
evidence = pathlib.Path(sys.argv[sys.argv.index("--evidence") + 1])
def say(**event):
    with (evidence / "node.jsonl").open("a") as file:
        file.write(json.dumps(event) + "\\n")
say(event="node-started")
(evidence / "cells").mkdir()
(evidence / "cells" / "rows.jsonl").write_text("{}\\n" * 1000)
print("hello from the node", flush=True)
"""

UNTIL_TERM = """
def told(*_):
    say(event="node-ended", reason="told to stop")
    (evidence / "node.json").write_text('{"exit_code": 130}')
    sys.exit(130)
signal.signal(signal.SIGTERM, told)
say(event="ready")
while True:
    time.sleep(0.05)
"""


def archive_of(code):
    """A harness of one file: the beginning above, then `code`."""
    data = (BEGIN + code).encode()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        member = tarfile.TarInfo("harness/__main__.py")
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    import gzip

    raw = buffer.getvalue()
    return HarnessArchive(gz=gzip.compress(raw, mtime=0), sha256=hashlib.sha256(raw).hexdigest())


@dataclasses.dataclass
class Site:
    """One bed, and what a run on it is made of."""

    bed: EmulatorBed
    folder: Path
    number: int = 0
    notes: list = dataclasses.field(default_factory=list)

    @property
    def environ(self):
        return {"KUBECONFIG": str(self.bed.kubeconfig)}

    def request(self, **fields):
        folder = self.folder / f"run{self.number}"
        folder.mkdir(parents=True, exist_ok=True)
        known = {
            "cell_set": "smoke", "cells": ("a|b|L1|tp1|cp4",), "device": "cpu", "ranks": 4,
            "environment": {"CELL_SET": "smoke", "RUN_ID": f"r{self.number}", "REPEAT": "1"},
            "evidence": folder / "evidence", "logs": folder / "logs", "deadline_s": 900.0, "reserve_s": 180.0,
        }  # fmt: skip
        return Request(**known | fields)

    def ownership(self):
        self.number += 1
        token = hashlib.sha256(f"{time.time()}{self.number}".encode()).hexdigest()[:32]
        return Ownership(f"r{self.number}", token, "ann", "2099-01-01T00:00:00.000Z", self.folder)

    def backend(self, code="sys.exit(0)", ownership=None, **settings):
        """A backend; what it observes is collected in `notes`, as the journal would."""
        return KubernetesBackend(
            ownership or self.ownership(),
            {"namespace": self.bed.namespace, "accelerators": "H200:4", "provision_timeout_s": 20} | settings,
            lambda context: connect(context, self.environ),
            archive=archive_of(code),
        )

    def started(self, code="sys.exit(0)", **settings):
        """A backend whose Job runs, and its request."""
        backend = self.backend(code, **settings)
        request = self.request()
        backend.preflight(request)
        self.notes = [backend.intent(request)]
        backend.acquire(request, budget_s=60, pause=self.pause(backend))
        backend.submit(request, budget_s=600, lifeline_fd=None)
        return backend, request

    def ready(self, **settings):
        """A backend whose payload runs until it gets SIGTERM, and is ready for that."""
        backend, request = self.started(UNTIL_TERM, **settings)
        until(lambda: any(event["event"] == "ready" for event in backend.poll().progress), "the payload to be ready")
        return backend, request

    def pause(self, backend):
        def pause(seconds):
            self.notes.extend(backend.observed())
            time.sleep(min(seconds, 0.05))

        return pause

    def ended(self, backend, limit_s=30.0):
        """The status with which the Job ended, and all progress before."""
        progress = []

        def over():
            status = backend.poll()
            progress.extend(status.progress)
            self.notes.extend(backend.observed())
            return status if status.state is JobState.ENDED else None

        return until(over, "the Job to end", limit_s=limit_s), progress

    def get(self, path):
        """Objects as the emulator has them, not as our code sees them."""
        import json
        import urllib.request

        request = urllib.request.Request(
            self.bed.url + path, headers={"Authorization": f"Bearer {self.bed.admin_token}"}
        )
        with urllib.request.urlopen(request, timeout=10) as response:
            return json.load(response)["items"]

    def left(self):
        """Names of all Jobs, pods and ConfigMaps in the namespace."""
        within = f"namespaces/{self.bed.namespace}"
        paths = (f"/apis/batch/v1/{within}/jobs", f"/api/v1/{within}/pods", f"/api/v1/{within}/configmaps")
        return [each["metadata"]["name"] for path in paths for each in self.get(path)]

    def send(self, method, path, body=None):
        """One request of a person with all rights."""
        return connect(None, self.environ).send(method, path, {}, body, 10)


@pytest.fixture(scope="module")
def bed(tmp_path_factory):
    why_not = why_no_containers()
    if why_not is not None:
        pytest.skip(why_not)
    made = EmulatorBed(tmp_path_factory.mktemp("bed"), namespace="team")
    yield made
    made.close()


@pytest.fixture
def site(bed, tmp_path):
    made = Site(bed, tmp_path)
    bed.pull("disarm")
    yield made
    bed.pull("disarm")
    within = f"namespaces/{bed.namespace}"
    for path in (f"/apis/batch/v1/{within}/jobs", f"/api/v1/{within}/pods", f"/api/v1/{within}/configmaps"):
        for each in made.get(path):
            options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
            options["gracePeriodSeconds"] = 0
            made.send("DELETE", f"{path}/{each['metadata']['name']}", options)
    until(lambda: not made.left(), "the namespace to be empty")


class Clock:
    """Time that passes when somebody sleeps or waits for an answer that does not come."""

    def __init__(self):
        self.time = 1000.0
        self.grain = 0.01  # the most real time that one wait takes

    def __call__(self):
        return self.time

    def sleep(self, seconds):
        self.time += seconds
        time.sleep(min(seconds, self.grain))


class Faulty:
    """A transport whose calls fail as `fails(method, path, n)` says, n counting the calls of one kind from 1.

    `before` fails without acting, `after` acts and loses the answer; anything else is an `ApiError` that is raised.
    """

    def __init__(self, transport, fails, clock):
        self.transport, self.fails, self.clock = transport, fails, clock
        self.server, self.context, self.namespace = transport.server, transport.context, transport.namespace
        self.calls = []

    def send(self, method, path, query, body, timeout_s):
        return self._call(method, path, lambda: self.transport.send(method, path, query, body, timeout_s))

    def run(self, namespace, pod, container, command, write, timeout_s):
        act = lambda: self.transport.run(namespace, pod, container, command, write, timeout_s)  # noqa: E731
        return self._call("EXEC", command[2][:20], act)

    def _call(self, method, path, act):
        call = (method, path)
        self.calls.append(call)
        match self.fails(method, path, self.calls.count(call)):
            case None:
                return act()
            case "before":
                self.clock.time += 1
                raise ApiError(NO_ANSWER, "Reset", "the connection was reset")
            case "after":
                act()
                self.clock.time += 1
                raise ApiError(NO_ANSWER, "Timeout", "the answer did not come in time")
            case error:
                raise error


@pytest.fixture
def faulty(site):
    """`faulty(fails, code)` is a backend on the bed whose calls fail so, and its transport; None ends at SIGTERM."""

    def make(fails, code="sys.exit(0)", ownership=None, **settings):
        clock = Clock()
        transport = Faulty(connect(None, site.environ), fails, clock)
        settings = {"namespace": site.bed.namespace, "accelerators": "H200:4", "provision_timeout_s": 60} | settings
        backend = KubernetesBackend(
            ownership or site.ownership(), settings, lambda _context: transport,
            archive=archive_of(UNTIL_TERM if code is None else code), clock=clock, sleep=clock.sleep, now=clock,
        )  # fmt: skip
        return backend, transport

    return make
