import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


class Job:
    """torchrun over real gloo ranks, and what it left in `directory`."""

    def __init__(self, directory, ranks, *command):
        self.directory = directory
        self.rows_path = directory / "rows.jsonl"
        self.done = subprocess.run(
            [
                sys.executable, "-m", "harness.torchrun", "--failures", directory / "failures.json",
                "--nnodes", "1", "--nproc-per-node", str(ranks), "--rdzv-backend", "loopback", "--rdzv-id", "test",
                "--local-addr", "127.0.0.1", *command,
            ],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TMPDIR": str(directory)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=280,
            check=False,
        )  # fmt: skip

    @property
    def rows(self):
        return [json.loads(line) for line in self.rows_path.read_text().splitlines()]

    @property
    def failures(self):
        return json.loads((self.directory / "failures.json").read_text())["failures"]


@pytest.fixture(scope="module")
def torchrun(tmp_path_factory):
    """Runs a command of torchrun; `{rows}` in it stands for the evidence file."""

    def run(ranks, *command):
        directory = tmp_path_factory.mktemp("job")
        return Job(directory, ranks, *[str(each).replace("{rows}", str(directory / "rows.jsonl")) for each in command])

    return run
