"""Jobs with a fault, each run once a session on four gloo ranks under the node's watch, and their traces."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from harness.trace.reading import read_trace

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
WORLD = 4


@dataclass(frozen=True)
class Faulty:
    """What a job with a fault left. `cell` is its entry in node.json; `log` is what it printed."""

    directory: Path
    cell: dict
    log: str

    @property
    def trace(self):
        return self.directory / "trace"

    @property
    def stacks(self):
        return self.directory / "stacks"

    @property
    def stall(self):
        """The stall.json of the watch, None where it did not have to end the job."""
        path = self.trace / "stall.json"
        return json.loads(path.read_text()) if path.exists() else None

    @cached_property
    def ranks(self):
        """The trace of each rank."""
        return [read_trace(self.trace, rank) for rank in range(WORLD)]

    def diff(self, *options):
        """`orchestrate trace diff --json` of it: exit code and answer."""
        done = subprocess.run(
            [sys.executable, "-m", "orchestrate", "trace", "diff", "--json", *options, self.trace],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, json.loads(done.stdout)


@pytest.fixture(scope="session")
def faulty(tmp_path_factory):
    """`faulty(PROGRAM, ARGUMENT ...)` runs a program of this folder's kind, once; its budgets are in seconds."""
    known = {}

    def run(program, *arguments, compile_s=40, step_s=15):
        key = (program, *arguments)
        if key not in known:
            evidence = tmp_path_factory.mktemp("fault") / "evidence"
            command = [HERE / "faulty_node.py", evidence, str(compile_s), str(step_s), program, *arguments]
            subprocess.run(
                [sys.executable, *command],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                capture_output=True,
                timeout=280,
                check=False,
            )
            (cell,) = json.loads((evidence / "node.json").read_text())["cells"]
            folder = evidence / "cells" / "fault"
            known[key] = Faulty(folder, cell, (folder / "stdout.log").read_text())
        return known[key]

    return run
