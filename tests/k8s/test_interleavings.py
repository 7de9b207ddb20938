"""Random interleavings of a run's life: whatever is done to it in whatever order, it ends with nothing left.

Each example is one launch, as a process, on the emulated cluster; the rules are what API, cluster and people do to it
meanwhile. `ORCHESTRATE_INTERLEAVINGS` is the number of examples.
"""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from k8s_bed import EmulatorBed, until, why_no_emulator
from k8s_lane import IMAGE, Lane, closures, kinds
from kubernetes import client

from orchestrate.receipts.verify import verify_run

EXAMPLES = int(os.environ.get("ORCHESTRATE_INTERLEAVINGS", "4"))
STEPS = 5
CALLS = [
    ("create", "jobs"), ("create", "configmaps"), ("list", "pods"), ("get", "jobs"), ("get", "pods/exec"),
    ("delete", "jobs"), ("list", "jobs"), ("list", "configmaps"), ("list", "events"),
]  # fmt: skip
KINDS = ["429", "500", "503", "reset", "lost", "hang-after"]
GPU_NODE = "gpu-node"
"""Where the runs are; the neighbours ask for no GPU and are on the other one."""
SCRIPT = Path(__file__).with_name("launch_struck.py")


class World:
    """What outlives an example: the cluster, and a number for each lane."""

    def __init__(self, folder, packages):
        self.folder, self.packages = folder, packages
        self.bed = EmulatorBed(folder / "bed", "--nodes", "a-node:0", GPU_NODE + ":400", pace=0.0)
        self.numbers = itertools.count()

    def lane(self, behaviour):
        number = next(self.numbers)
        place = self.folder / f"lane{number}"
        place.mkdir()
        return Lane(self.bed, place, self.packages(behaviour), number)


class RunLife(RuleBasedStateMachine):
    """One run, from its launch to the day when everybody has gone."""

    world: World

    @initialize(
        behaviour=st.sampled_from(["complete", "hold", "fail"]), moment=st.sampled_from(["acquiring", "submitted"])
    )
    def launch(self, behaviour, moment):
        self.behaviour = behaviour
        self.lane = self.world.lane(behaviour)
        self.alive = True
        self.runs_dir = self.lane.folder / "runs"
        self.runs_dir.mkdir()
        self.err = self.lane.folder / "launch.err"
        with self.err.open("wb") as stream:
            self.process = subprocess.Popen(
                [sys.executable, str(SCRIPT), str(self.runs_dir), self.lane.namespace, IMAGE],
                stdout=subprocess.DEVNULL, stderr=stream, start_new_session=True, env=self.lane.environ(),
                cwd=self.lane.folder,
            )  # fmt: skip
        until(lambda: moment in self.kinds() or self.process.poll() is not None, moment, limit_s=120)

    @rule(call=st.sampled_from(CALLS), kind=st.sampled_from(KINDS), times=st.sampled_from([1, 1, 2, 6]))
    def the_api_fails(self, call, kind, times):
        verb, resource = call
        self.world.bed.pull("arm", user=self.lane.user, verb=verb, resource=resource, kind=kind, times=times)

    @rule(steps=st.integers(1, 4))
    def the_run_goes_on(self, steps):
        seen = len(self.kinds())
        until(lambda: len(self.kinds()) >= seen + steps or self.is_still(), "records", limit_s=120)

    @precondition(lambda self: self.alive)
    @rule()
    def the_launcher_is_killed(self):
        self.process.kill()
        self.process.wait()
        self.alive = False

    @precondition(lambda self: self.alive)
    @rule()
    def launcher_and_warden_are_killed(self):
        os.kill(self.process.pid, signal.SIGSTOP)
        self.kill_warden()
        self.process.kill()
        self.process.wait()
        self.alive = False

    @precondition(lambda self: self.alive)
    @rule()
    def a_person_interrupts(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)

    @rule(policy=st.sampled_from(["Foreground", "Background", "Orphan"]))
    def somebody_deletes_the_job(self, policy):
        for job in self.our_jobs():
            options = client.V1DeleteOptions(propagation_policy=policy)
            try:
                self.lane.batch.delete_namespaced_job(job.metadata.name, self.lane.namespace, body=options)
            except client.ApiException as error:
                if error.status != 404:
                    raise

    @rule(how=st.sampled_from(["evict", "oom", "delete"]))
    def the_pod_is_struck(self, how):
        for pod in self.our_pods():
            if pod.status.phase != "Running":
                continue
            where = {"namespace": self.lane.namespace, "name": pod.metadata.name}
            try:
                if how == "delete":
                    self.lane.core.delete_namespaced_pod(pod.metadata.name, self.lane.namespace)
                elif how == "evict":
                    self.world.bed.pull("evict", **where, message="The node was low on resource: memory.")
                else:
                    self.world.bed.pull("oom", **where)
            except (client.ApiException, RuntimeError) as error:
                if not re.search("not found|on no node", str(error), re.IGNORECASE):
                    raise

    @rule(seconds=st.sampled_from([60, 1000, 5000]))
    def time_passes_on_the_cluster(self, seconds):
        """Past the Job's deadline, past its life after that."""
        self.world.bed.pull("advance", seconds=seconds)

    @rule()
    def the_node_is_lost_and_comes_back(self):
        if not any(pod.spec.node_name for pod in self.our_pods()):
            return
        self.world.bed.pull("lose-node", name=GPU_NODE)
        self.world.bed.pull("advance", seconds=301)  # now its pods are to go, and nobody there hears it
        if self.alive:
            until(lambda: self.is_told("run-ended") or self.process.poll() is not None, "it to be seen", limit_s=120)
        self.world.bed.pull("find-node", name=GPU_NODE)

    @rule()
    def somebody_tears_it_down(self):
        if self.run is not None and not self.alive:
            self.lane.command("teardown", self.run.name, "--runs-dir", str(self.runs_dir))

    @rule()
    def an_audit_elsewhere_reaps_it(self):
        if self.run is not None:
            empty = self.lane.folder / "elsewhere"
            empty.mkdir(exist_ok=True)
            self.lane.command("audit", "--backend", "k8s", "--namespace", self.lane.namespace, "--run", self.run.name,
                              "--reap", "--runs-dir", str(empty))  # fmt: skip

    def teardown(self):
        """The API works again; whoever is still there ends; what nobody could end, `teardown` does."""
        if not hasattr(self, "lane"):
            return
        self.world.bed.pull("disarm", user=self.lane.user)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(240)
        self.check_what_was_claimed()
        if self.run is not None and self.kinds():
            code, out = self.lane.command("teardown", self.run.name, "--runs-dir", str(self.runs_dir), "--wait", "200s")
            assert code == 0, out
            self.check_what_was_claimed()
            assert closures(self.run)[-1]["teardown"]["confirmed"]
            assert verify_run(self.run).holds, verify_run(self.run).problems
        assert self.lane.state() == self.lane.before, set(self.lane.state()) ^ set(self.lane.before)

    def check_what_was_claimed(self):
        """A closure that says `confirmed` is true, and `passed` lacks nothing."""
        told = closures(self.run) if self.run is not None else []
        if told and told[-1]["teardown"]["confirmed"]:
            until(lambda: self.lane.state() == self.lane.before, lambda: f"{told[-1]} to be true", limit_s=1)
        for closure in told:
            if closure["verdict"] == "passed":
                assert self.behaviour == "complete", closure
                assert closure["teardown"]["confirmed"], closure
                assert closure["cells"] == {"expected": 4, "complete": 4}, closure
                assert json.loads((self.run / "evidence" / "node.json").read_bytes())["exit_code"] == 0
            if not closure["teardown"]["confirmed"]:
                assert closure["verdict"] == "teardown-unconfirmed", closure

    @property
    def run(self):
        return next((path for path in self.runs_dir.iterdir() if re.fullmatch(r"r\d{8}-.*", path.name)), None)

    def kinds(self):
        return [] if self.run is None else kinds(self.run)

    def is_told(self, kind):
        return kind in self.kinds() or "closure" in self.kinds()

    def is_still(self):
        """The launcher has gone; or its payload holds, and no record comes until something is done to it."""
        gone = self.process.poll() is not None
        return gone or (self.behaviour == "hold" and "submitted" in self.kinds())

    def kill_warden(self):
        for line in (self.run / "journal.jsonl").read_text().splitlines() if self.run else ():
            record = json.loads(line)
            if record["kind"] == "warden-started":
                try:
                    os.kill(record["facts"]["pid"], signal.SIGKILL)
                except ProcessLookupError:
                    continue

    def our_jobs(self):
        found = self.lane.batch.list_namespaced_job(self.lane.namespace).items
        return [job for job in found if job.metadata.uid not in {uid for _, _, uid, _ in self.lane.before}]

    def our_pods(self):
        found = self.lane.core.list_namespaced_pod(self.lane.namespace).items
        return [pod for pod in found if pod.metadata.uid not in {uid for _, _, uid, _ in self.lane.before}]


@pytest.fixture(scope="module")
def life(tmp_path_factory, packages):
    """The machine, on a cluster of its own."""
    if (why := why_no_emulator()) is not None:
        pytest.skip(why)
    world = World(tmp_path_factory.mktemp("interleavings"), packages)

    class Life(RunLife):
        pass

    Life.world = world
    yield Life
    world.bed.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_whatever_happens_in_whatever_order_a_run_ends_with_nothing_left(life):
    bounded = settings(
        max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, derandomize=True, database=None,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck), print_blob=False,
    )  # fmt: skip
    run_state_machine_as_test(life, settings=bounded)


@pytest.mark.slow
def test_a_run_whose_node_is_lost_and_comes_back_ends_with_nothing_left(life):
    run = life()
    run.launch(behaviour="hold", moment="submitted")
    run.the_node_is_lost_and_comes_back()
    run.process.wait(200)
    assert [(told["verdict"], "node was lost" in told["reason"]) for told in closures(run.run)] == [
        ("infrastructure", True)
    ]
    run.teardown()


@pytest.mark.slow
def test_a_run_that_everybody_left_is_ended_and_removed_by_the_cluster_and_its_teardown_proves_it(life):
    run = life()
    run.launch(behaviour="hold", moment="submitted")
    run.launcher_and_warden_are_killed()
    run.time_passes_on_the_cluster(seconds=1000)
    until(lambda: not run.our_pods(), "its deadline to end the pod", limit_s=60)
    run.time_passes_on_the_cluster(seconds=5000)
    until(lambda: not run.our_jobs(), "its life to be over", limit_s=60)
    run.teardown()
