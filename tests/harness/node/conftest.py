import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


class StubNode:
    """A node of stub cells in a process of its own, and looks at what it left."""

    def __init__(self, directory, *cells, step_s=120, lifeline_fd=None):
        self.run_id = f"t{uuid.uuid4().hex[:12]}"
        self.evidence = directory / "evidence"
        self.log = directory / "node.log"
        lifeline = "-" if lifeline_fd is None else str(lifeline_fd)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, HERE / "stub_node.py", self.evidence, str(step_s), lifeline, *cells],
                cwd=ROOT,
                env={**os.environ, "RUN_ID": self.run_id},
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=() if lifeline_fd is None else (lifeline_fd,),
            )

    def beats(self, cell):
        """Rank -> beat of the cell whose slug is given, those that can be read now."""
        found = {}
        for path in (self.evidence / "cells" / cell / "trace").glob("rank*.beat"):
            try:
                found[int(path.stem[4:])] = json.loads(path.read_bytes())
            except ValueError:
                continue
        return found

    def wait_for_ranks(self, cell, count):
        """The beats, as soon as `count` ranks measure."""
        return eventually(
            lambda: (
                (beats := self.beats(cell))
                and sum(beat["phase"] == "measure" for beat in beats.values()) == count
                and beats
            ),
            self,
        )

    def torchrun(self, cell):
        events = [json.loads(line) for line in (self.evidence / "node.jsonl").read_text().splitlines()]
        return next(
            event["pid"]
            for event in events
            if event["event"] == "cell-started" and event["cell"] == "|".join(reversed(cell.split("-", 1)))
        )

    def wait(self, timeout=90):
        return self.process.wait(timeout=timeout)

    def result(self):
        return json.loads((self.evidence / "node.json").read_text())

    def statuses(self):
        return [cell["status"] for cell in self.result()["cells"]]

    def alive(self):
        """Living processes of any of this node's cells, wherever they hang in the process tree."""
        mark = f"HARNESS_CELL={self.run_id}/".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (path / "environ").read_bytes():
                    found.append(int(path.name))
            except OSError:
                continue
        return found

    def end(self):
        for pid in [self.process.pid, *self.alive()]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()


def eventually(condition, node=None, within_s=60):
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, node.log.read_text() if node else "it never came true"
        time.sleep(0.02)
    return value


@pytest.fixture(name="eventually")
def eventually_fixture():
    return eventually


@pytest.fixture
def stub_node(tmp_path):
    nodes = []

    def start(*cells, **options):
        directory = tmp_path / str(len(nodes))
        directory.mkdir()
        nodes.append(StubNode(directory, *cells, **options))
        return nodes[-1]

    yield start
    for node in nodes:
        node.end()
