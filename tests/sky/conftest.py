"""Runs through SkyPilot on a real Slurm with four stand-in H200s, and what Slurm itself says is left of them.

One bed and one API server for the whole session. Beside every run live two that are not ours: a job whose name looks
like one of ours, and a colleague's run with all its marks; no test may touch them, and nothing else may be left.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
import slurm_bed
from slurm_machine import wait

REPOSITORY = Path(__file__).parents[2]
STAND_IN = Path(__file__).parent / "stand_in"
LOOK_ALIKE = "orc-0123456789abcd-2611302245x-0123abcd"
COLLEAGUES_TOKEN = "c011ea9e" * 4
COLLEAGUE = "orc-23803f0e9b5442-6012312359-0123abcd"
COLLEAGUES_COMMENT = (
    f"orchestrate/1,run=r20601231-000000-c011ea,owner=colleague,token={COLLEAGUES_TOKEN},expires=20601231T235900Z"
)
STAGE_S = 600
"""Within so many seconds a run reaches its next stage, also on a machine that others use."""


class Launched:
    """One `orchestrate launch`, or another command of a run, in a process of its own."""

    def __init__(self, bed, folder, arguments, command="launch"):
        self.bed, self.runs_dir = bed, folder / "runs"
        self.err = folder / "launch.err"
        command = [sys.executable, "-m", "orchestrate", command, "--backend", "sky", "--infra", "slurm/bed",
                   "--accelerators", "H200:4", "--deadline", "30m", "--json",
                   "--runs-dir", str(self.runs_dir)]  # fmt: skip
        with self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [*command, *arguments], stdout=subprocess.PIPE, stderr=err, env=bed.environ, cwd=folder,
                start_new_session=True,
            )  # fmt: skip

    def answer(self, limit_s=900):
        """The JSON answer, once it has ended."""
        out, _ = self.process.communicate(timeout=limit_s)
        assert out, self.err.read_text()
        return json.loads(out)

    def receipts(self, stage):
        """The facts of the newest receipt of a stage."""
        (run,) = self.runs_dir.glob("r*")
        found = [json.loads(path.read_bytes())["predicate"] for path in (run / "receipts").iterdir()]
        return max((each for each in found if each["stage"] == stage), key=lambda each: each["ended_at"])["facts"]

    def records(self):
        paths = list(self.runs_dir.glob("r*/journal.jsonl"))
        if not paths:
            return []
        return [json.loads(line) for line in paths[0].read_bytes().split(b"\n")[:-1]]

    def wait_for(self, kind, limit_s=STAGE_S):
        """Wait until the journal has a record of this kind."""
        return wait(lambda: any(record["kind"] == kind for record in self.records()), f"record {kind}", limit_s=limit_s)

    def wait_for_job(self):
        """Wait until Slurm runs the allocation."""
        return wait(lambda: self.bed.ours() and self.bed.ours()[0][1] == "RUNNING", "our allocation", limit_s=STAGE_S)

    def kill(self):
        """`kill -9` of the launcher alone."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def kill_both(self):
        """`kill -9` of launcher and warden, in this order: a launcher that lives starts a new warden."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        alive = [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
        wardens = [child for child in alive if "orchestrate.lifecycle.warden" in child.cmdline()]
        self.kill()
        assert wardens
        for warden in wardens:
            warden.kill()

    @property
    def run_id(self):
        return next(self.runs_dir.glob("r*")).name

    def closure(self):
        """The newest closure, None while there is none."""
        closures = [record for record in self.records() if record["kind"] == "closure"]
        return self.receipts("closure") if closures else None


class Bed(slurm_bed.SlurmBed):
    """The bed, with the two strangers in it."""

    def ours(self):
        """Everything in Slurm's queue that is not the strangers'."""
        return [job for job in self.queue() if job[0] not in {LOOK_ALIKE, COLLEAGUE}]

    def strangers(self):
        return sorted(job for job in self.queue() if job[0] in {LOOK_ALIKE, COLLEAGUE})

    def job_ids_of(self, jobs):
        """Slurm's numbers of jobs of the queue."""
        names = {name for name, _ in jobs}
        lines = self.run("squeue", "-h", "-o", "%A|%j").splitlines()
        return [line.partition("|")[0] for line in lines if line.partition("|")[2] in names]

    def wait_for_scheduler(self):
        """Wait until slurmctld answers again and has heard from its node."""
        wait(lambda: self.run("sinfo", "-h", "-o", "%t", check=False).strip() in {"mix", "idle"}, "Slurm", limit_s=120)

    def wait_until_gone(self, limit_s):
        """Wait until nothing of ours is in Slurm's queue, without lifting a finger."""
        wait(lambda: not self.ours(), "our allocation to end by itself", limit_s=limit_s)

    def records_left(self):
        """SkyPilot's own list of clusters of ours."""
        return [line for line in self.sky("status", "--refresh").splitlines() if line.startswith("orc-")]

    def folders_left(self):
        """What is left of clusters on the shared disk and in shared memory."""
        disk = [path for place in (".sky_clusters", ".sky_provision") for path in (self.home / place).glob("orc-*")]
        return [str(path) for path in (*disk, *self.shared())]

    def audit(self, *arguments):
        """`orchestrate audit` from a machine without the runs: its answer, and its exit code."""
        command = [sys.executable, "-m", "orchestrate", "audit", "--backend", "sky", "--infra", "slurm/bed", "--json",
                   "--runs-dir", str(self.folder / "no-runs-here"), *arguments]  # fmt: skip
        done = subprocess.run(command, env=self.environ, cwd=self.folder, capture_output=True, timeout=600, check=False)
        return json.loads(done.stdout), done.returncode

    def teardown(self, runs_dir, *arguments):
        """`orchestrate teardown` or `audit` where the run was launched."""
        done = subprocess.run(
            [sys.executable, "-m", "orchestrate", *arguments, "--runs-dir", str(runs_dir), "--json"],
            env=self.environ, cwd=self.folder, capture_output=True, timeout=600, check=False,
        )  # fmt: skip
        return json.loads(done.stdout), done.returncode


@pytest.fixture(scope="session")
def session_bed():
    reason = slurm_bed.why_not()
    if reason is not None:
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="orcbed-", dir="/tmp"))
    folder.chmod(0o755)
    bed = Bed(folder, provision_timeout_s=10)
    try:
        bed.up()
        yield bed
    finally:
        bed.down()
        shutil.rmtree(folder, ignore_errors=True)
    assert not bed.server_pids(), "SkyPilot's server outlives its bed"


@pytest.fixture
def bed(session_bed):
    """The bed for one test, with both strangers; afterwards they must live, and nothing of ours must be left."""
    jobs = [
        session_bed.submit(LOOK_ALIKE),
        session_bed.submit(COLLEAGUE, comment=COLLEAGUES_COMMENT),
    ]
    wait(lambda: all(session_bed.job_state(job) == "RUNNING" for job in jobs), "the strangers to run", limit_s=60)
    yield session_bed
    states = [session_bed.job_state(job) for job in jobs]
    # A job that a test of its own has cancelled is in the queue for a moment more.
    wait(lambda: all(state != "COMPLETING" for _, state in session_bed.ours()), "what was ended to go", limit_s=60)
    left = session_bed.ours()
    session_bed.cancel(*jobs, *session_bed.job_ids_of(left))
    wait(lambda: not session_bed.queue(), "an empty queue", limit_s=60)
    assert states == ["RUNNING", "RUNNING"], "a stranger was touched"
    assert left == [], "something of the run is in Slurm's queue"


@pytest.fixture
def launch(bed, tmp_path):
    """`launch(*arguments, behaviour=...)`: with a behaviour, a stand-in for the harness does that."""
    made = []

    def start(*arguments, behaviour=None, command="launch"):
        folder = tmp_path / f"launch{len(made)}"
        folder.mkdir()
        if behaviour is not None:
            workdir = folder / "workdir"
            shutil.copytree(STAND_IN, workdir, ignore=shutil.ignore_patterns("__pycache__"))
            (workdir / "harness" / "behaviour").write_text(behaviour)
            arguments = (*arguments, "--workdir", str(workdir), "--python", str(bed.folder / "bin/python-stand-in"))
        made.append(Launched(bed, folder, arguments, command))
        return made[-1]

    yield start
    for each in made:
        if each.process.poll() is None:
            each.process.send_signal(signal.SIGTERM)
            each.process.wait(300)
