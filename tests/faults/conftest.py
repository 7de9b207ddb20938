"""A bed for runs with real processes, and a look at what they leave that does not use the product's own eyes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LIMIT_S = 20
"""Within this many seconds after a fault nothing of a run may be left (the issue's bound)."""


@pytest.fixture(autouse=True, scope="session")
def hear_hangups():
    """A launcher leaves an ignored SIGHUP ignored, and the tests may themselves run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


class Run:
    """One launcher process and what it made."""

    def __init__(self, bed, name, arguments, command=None):
        self.bed = bed
        self.runs_dir = bed.folder / name
        self.runs_dir.mkdir(exist_ok=True)
        self.err = bed.folder / f"{name}.err"
        environ = {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATE_")}
        with self.err.open("wb") as err:
            self.process = subprocess.Popen(
                command or self.stand_in(arguments),
                stdout=subprocess.PIPE, stderr=err, start_new_session=True,
                env={**environ, "TMPDIR": str(bed.temp), **bed.environ},
            )  # fmt: skip

    def stand_in(self, arguments):
        script, bed = str(HERE / "launch_stand_in.py"), self.bed
        return [sys.executable, script, str(self.runs_dir), str(bed.harness), "--temp", str(bed.temp), *arguments]

    @property
    def path(self):
        return next((path for path in self.runs_dir.iterdir() if re.fullmatch(r"r\d{8}-.*", path.name)), None)

    @property
    def run_id(self):
        return self.path.name

    def records(self):
        try:
            lines = (self.path / "journal.jsonl").read_bytes().split(b"\n")[:-1]
        except (OSError, TypeError):
            return []
        return [json.loads(line) for line in lines]

    def kinds(self):
        return [record["kind"] for record in self.records()]

    def wait_for(self, kind, *, limit_s=30):
        """Wait for a record of this kind, `KIND` or `KIND:STAGE`."""

        def found():
            for record in self.records():
                stage = record["facts"].get("stage")
                if kind in {record["kind"], f"{record['kind']}:{stage}"}:
                    return record
            return None

        return self.bed.wait(found, f"a record {kind}; there are {self.kinds()}", limit_s=limit_s)

    def wait_until_up(self):
        """Wait until every rank of the payload runs, and has been seen by the launcher at least once."""
        self.wait_for("submitted")
        self.bed.wait(lambda: list(self.bed.temp.glob(f"orchestrate-{self.run_id}-*/all.up")), "all ranks to be up")
        self.bed.wait(lambda: len(self.observed("processes")) >= 7, "the family to be seen")

    def observed(self, kind):
        """What the launcher saw of this kind: the items of all its facts."""
        facts = [fact for record in self.records() if record["kind"] == "observed" for fact in record["facts"]["facts"]]
        return [item for fact in facts if fact["kind"] == kind for item in fact["items"]]

    def family(self, role):
        """The pids of the payload with this role: node, torchrun, rank."""
        return [pid for pid in self.alive() if role in roles(pid)]

    def alive(self):
        if self.path is None:
            return []
        return self._alive()

    def _alive(self):
        """Every living process that carries this run's id in its environment or its arguments."""
        marks = (f"ORCHESTRATE_RUN_ID={self.run_id}".encode(), str(self.path).encode())
        return [
            pid
            for pid in all_pids()
            if pid != self.process.pid
            and not is_zombie(pid)
            and (marks[0] in read(pid, "environ").split(b"\0") or marks[1] in read(pid, "cmdline").split(b"\0"))
        ]

    def leftovers(self):
        """What is left of the run, in words."""
        if self.path is None:
            return ["no run yet"]
        left = [f"process {pid} {read(pid, 'cmdline')!r}" for pid in self.alive()]
        left += [f"folder {path}" for path in self.bed.temp.glob(f"orchestrate-{self.run_id}-*")]
        left += [f"shared memory {path}" for path in self.bed.shared() if content(path) == self.run_id]
        if self.process.poll() is None:
            left.append("the launcher")
        return left

    def strike(self, pids, signum):
        for pid in pids:
            os.kill(pid, signum)

    def gone(self):
        """Wait until nothing is left and the run is closed; return the newest closure's facts."""
        self.bed.wait(lambda: not self.leftovers() and self.closure(), lambda: f"{self.leftovers()} to go; "
                      f"{self.kinds()}; {self.err.read_text()[-2000:]}", limit_s=LIMIT_S)  # fmt: skip
        return self.closure()

    def closure(self):
        closures = [record["facts"] for record in self.records() if record["kind"] == "closure"]
        return closures[-1] if closures else None

    def answer(self):
        """The launcher's JSON answer and exit code."""
        out, _ = self.process.communicate(timeout=60)
        lines = out.decode().splitlines()
        assert len(lines) == 1, (out, self.err.read_text()[-3000:])
        return json.loads(lines[0]), self.process.returncode

    def warden(self):
        return [record for record in self.records() if record["kind"] == "warden-started"][-1]["facts"]["pid"]


class Bed:
    def __init__(self, folder):
        self.folder = folder
        self.temp = folder / "tmp"
        self.temp.mkdir()
        self.harness = folder / "package" / "harness"
        self.harness.mkdir(parents=True)
        (self.harness / "__init__.py").write_text("")
        self.runs = []
        self.environ = {}

    def pretend(self, cloud="cloud", **script):
        """From now on the backend `k8s` is the pretended provider in that folder, which answers as `script` says."""
        cloud = self.folder / cloud
        cloud.mkdir(exist_ok=True)
        (cloud / "script.json").write_text(json.dumps(script))
        path = [str(HERE / "pretend"), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.environ = {"PRETEND_CLOUD": str(cloud), "PYTHONPATH": os.pathsep.join(path)}
        return cloud

    def asked(self):
        """What the pretended provider was asked, one entry for each time."""
        path = self.folder / "cloud" / "asked.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @staticmethod
    def waves(count):
        """1 to `count` in groups that are run side by side."""
        return [range(start, min(start + 6, count + 1)) for start in range(1, count + 1, 6)]

    def launch(self, *arguments, name=None, command=None):
        """Start a launcher with a stand-in payload, or `command`."""
        run = Run(self, name or f"run{len(self.runs)}", arguments, command)
        self.runs.append(run)
        return run

    def command(self, *arguments):
        """Run `orchestrate ARGUMENTS`; returns exit code, stdout, stderr."""
        environ = {**os.environ, "TMPDIR": str(self.temp), **self.environ}
        done = subprocess.run(
            [sys.executable, "-m", "orchestrate", *arguments],
            check=False,
            capture_output=True,
            text=True,
            env=environ,
            timeout=90,
        )
        return done.returncode, done.stdout, done.stderr

    def shared(self):
        return list(Path("/dev/shm").glob("stand_in_*"))

    def wait(self, condition, what, *, limit_s=30):
        deadline = time.monotonic() + limit_s
        while not (found := condition()):
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {limit_s}s for {what() if callable(what) else what}")
            time.sleep(0.05)
        return found

    def close(self):
        for run in self.runs:
            if run.process.poll() is None:
                run.process.kill()
            run.process.wait()
            if run.process.stdout:
                run.process.stdout.close()
            if run.path is not None:
                for pid in run.alive():
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        continue
            for path in self.shared():
                if run.path is not None and content(path) == run.run_id:
                    path.unlink(missing_ok=True)


@pytest.fixture
def bed(tmp_path):
    made = Bed(tmp_path)
    yield made
    made.close()


def content(path):
    try:
        return path.read_text()
    except OSError:
        return ""


def all_pids():
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def read(pid, what):
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes()
    except OSError:
        return b""


def is_zombie(pid):
    return b") Z " in read(pid, "stat") or not read(pid, "stat")


def roles(pid):
    words = read(pid, "cmdline").decode("utf-8", "replace").split("\0")
    if not any(word.endswith("stand_in.py") for word in words) or words[0] == "timeout":
        return ["timeout"] if words[0] == "timeout" else []
    if "--role" not in words:
        return ["node"]
    return [words[words.index("--role") + 1]]
