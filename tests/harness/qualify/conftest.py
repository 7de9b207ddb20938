import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


BOUNDED = """import sys
from harness import group_run, qualify
group_run.MAX_OUTPUT_BYTES = {}
sys.exit(qualify.main(sys.argv[1:]))
"""


class Qualified:
    """A node that runs command groups over a source of the test's, in a process of its own."""

    def __init__(
        self, directory, groups, files, *, lifeline_fd=None, device="cpu", archive_sha256=None, python=sys.executable,
        environ=None, max_output_bytes=None,
    ):  # fmt: skip
        self.directory = directory
        self.evidence = directory / "evidence"
        self.source = directory / "work"
        archive = directory / "source.tar"
        with tarfile.open(archive, "w") as tar:
            for name, text in files.items():
                data = text.encode()
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        plan = {
            "schema": "orchestrate.groups/1",
            "run_id": "test",
            "name": "self",
            "device": device,
            "archive_sha256": archive_sha256 or hashlib.sha256(archive.read_bytes()).hexdigest(),
            "groups": [{"timeout_s": 60, "report": "exit-code", **group} for group in groups],
        }
        (directory / "groups.json").write_text(json.dumps(plan))
        start = ["-m", "harness", "qualify"] if max_output_bytes is None else ["-c", BOUNDED.format(max_output_bytes)]
        command = [python, *start, "--plan", directory / "groups.json"]
        command += ["--archive", archive, "--source", self.source, "--evidence", self.evidence]
        command += [] if lifeline_fd is None else ["--lifeline-fd", str(lifeline_fd)]
        self.log = directory / "node.log"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=() if lifeline_fd is None else (lifeline_fd,),
                env={**clean, **(environ or {})},
            )

    def wait(self):
        return self.process.wait(timeout=120)

    def result(self):
        return json.loads((self.evidence / "node.json").read_text())

    def group(self, name):
        return next(group for group in self.result()["cells"] if group["key"] == name)

    def test_rows(self, name):
        return [json.loads(line) for line in (self.evidence / "groups" / name / "tests.jsonl").read_text().splitlines()]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture(name="alive")
def alive_fixture():
    return alive


@pytest.fixture
def eventually():
    def wait(condition, within_s=60):
        deadline = time.monotonic() + within_s
        while not (value := condition()):
            assert time.monotonic() < deadline, "it never came true"
            time.sleep(0.02)
        return value

    return wait


@pytest.fixture
def qualify(tmp_path):
    started = []

    def start(*groups, files=None, **options):
        directory = tmp_path / str(len(started))
        directory.mkdir()
        started.append(Qualified(directory, groups, {"readme.txt": "hello\n", **(files or {})}, **options))
        return started[-1]

    yield start
    for node in started:
        if node.process.poll() is None:
            node.process.send_signal(signal.SIGKILL)
            node.process.wait()
