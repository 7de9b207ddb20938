import ctypes
import json
import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from orchestrate.clock import to_wire, utc_now
from orchestrate.commands import gate
from orchestrate.errors import OrchestrateError
from orchestrate.gate.change import owner_of

PR_SET_CHILD_SUBREAPER = 36
POLICY = "schema: orchestrate.gate-policy/1\ndevice: cpu\ngpu_paths: [/harness/]\n"


class GitHub:
    """A repository with a pull request, and the runner's environment for it; `asked` is what its workflow asks for."""

    asked = ("--launch", "--backend local --cell-set smoke", "--audit", "--backend local")

    def __init__(self, root, monkeypatch):
        self.root = root
        self.monkeypatch = monkeypatch
        self.work = root / "work"
        self.work.mkdir()
        self.git("init", "-q", "-b", "main")
        self.git("config", "user.email", "a@example.org")
        self.git("config", "user.name", "a")
        self.write(".github/gpu-gate.yml", POLICY)
        self.write("harness/a.py", "a = 1\n")
        self.base = self.commit("base")
        self.git("checkout", "-q", "-b", "change")
        self.number, self.attempt = 7, 1

    def git(self, *arguments):
        env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        done = subprocess.run(["git", *arguments], cwd=self.work, env=env, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def write(self, name, text):
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def commit(self, message):
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)
        return self.git("rev-parse", "HEAD")

    def change(self, name="harness/a.py", text="a = 2\n"):
        """A pull request with one changed file; GitHub's merge commit is checked out."""
        self.write(name, text)
        self.head = self.commit("change")
        self.git("checkout", "-q", "main")
        self.git("merge", "-q", "--no-ff", "-m", "merge", "change")
        self.tested = self.git("rev-parse", "HEAD")
        self.tree = self.git("rev-parse", "HEAD^{tree}")
        self.announce()

    def announce(self, *, fork=False):
        event = {
            "pull_request": {
                "head": {"sha": self.head, "ref": "change", "repo": {"full_name": "x/fork" if fork else "o/r"}},
                "base": {"sha": self.base},
            }
        }
        (self.root / "event.json").write_text(json.dumps(event))
        for name, value in {
            "GITHUB_EVENT_NAME": "pull_request",
            "GITHUB_EVENT_PATH": str(self.root / "event.json"),
            "GITHUB_REPOSITORY": "o/r",
            "GITHUB_SHA": self.tested,
            "GITHUB_RUN_ID": str(self.number),
            "GITHUB_RUN_ATTEMPT": str(self.attempt),
            "GITHUB_REF_NAME": "1/merge",
            "GITHUB_OUTPUT": str(self.root / "output"),
            "GITHUB_STEP_SUMMARY": str(self.root / "summary.md"),
            "GITHUB_ACTIONS": "true",
        }.items():
            self.monkeypatch.setenv(name, value)

    @property
    def owner(self):
        return owner_of("o/r", self.number, self.attempt)

    @property
    def records(self):
        return self.root / "gate/records"

    @property
    def runs(self):
        return self.root / "gate/runs"

    def record(self, name):
        return json.loads((self.records / name).read_text())

    @property
    def summary(self):
        return (self.root / "summary.md").read_text()

    def step(self, *arguments):
        """One step of the workflow: its exit code and its JSON."""
        runner = CliRunner(mix_stderr=False)
        before = Path.cwd()
        os.chdir(self.work)
        try:
            whole = [*arguments[:1], "--records", str(self.records), "--json", *arguments[1:]]
            done = runner.invoke(gate.command, whole, standalone_mode=False)
        finally:
            os.chdir(before)
        if isinstance(done.exception, OrchestrateError):
            raise done.exception
        assert done.exception is None, done.exc_info
        return done.return_value, json.loads(done.stdout) if done.stdout.strip() else None

    def reconciled(self, **changes):
        look = {"backends": ["k8s", "local", "sky"], "namespace": None, "infra": None}
        lists = {"found": [], "left": [], "unknown": []}
        record = {"schema": "orchestrate.gate/1", "kind": "reconciled", "owner": self.owner, "confirmed": True,
                  "look": look, "at": to_wire(utc_now()), **lists, **changes}  # fmt: skip
        (self.records / "reconcile.json").write_text(json.dumps(record))

    def conclude(self, *arguments, needs=None):
        jobs = needs or {"classify": "success", "run": "success", "reconcile": "success"}
        text = json.dumps({name: {"result": result, "outputs": {}} for name, result in jobs.items()})
        return self.step("conclude", "--runs-dir", str(self.runs), "--needs", text, *arguments)


@pytest.fixture
def github(tmp_path, monkeypatch):
    yield GitHub(tmp_path, monkeypatch)
    # A launch on this machine in this process adopts orphans: all those of later tests would stay as zombies.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture
def run_of(run_builder):
    """A passed run of the change, under the workflow's owner, in the artifact's place."""

    def build(github, *, folder=None, source=None, **changes):
        def plan(tree):
            ran = {**tree["source"], "commit": github.tested, "tree": github.tree, "dirty": False, **(source or {})}
            return {**tree, "owner": github.owner, "source": ran}

        made = run_builder((folder or github.runs) / "r20260102-030405-0a1b2c", plan_hook=plan, **changes)
        return made, made.build()

    return build
