"""A workflow that is cancelled as GitHub does it, and a fresh machine that finishes what the launcher could not."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"),
]

GITHUB = {"GITHUB_REPOSITORY": "o/r", "GITHUB_RUN_ID": "7", "GITHUB_RUN_ATTEMPT": "1"}


@pytest.fixture
def step(bed, monkeypatch):
    """The step `gate run` of a workflow, once its ranks are at work."""
    records = bed.folder / "records"
    records.mkdir()
    (records / "admit.json").write_text(
        json.dumps({"schema": "orchestrate.gate/1", "kind": "admitted", "admitted": True, "reason": "by hand"})
    )
    for name, value in GITHUB.items():
        monkeypatch.setenv(name, value)
    run = bed.launch(name="gate", command=[
        sys.executable, "-m", "orchestrate", "gate", "run", "--records", str(records), "--runs-dir",
        str(bed.folder / "gate"), "--json", "--", "--cell-set", "text", "--groups", "1", "--repeat", "50",
    ])  # fmt: skip
    run.wait_for("cell", limit_s=90)
    return run


def reconcile(bed):
    """The job of its own, with no artifact: another runs directory, which is empty."""
    code, out, err = bed.command(
        "gate", "reconcile", "--records", str(bed.folder / "fresh"), "--json", "--",
        "--backend", "local", "--runs-dir", str(bed.folder / "none"),
    )  # fmt: skip
    return code, json.loads(out), err


def test_the_cancel_sequence_ends_the_run_and_a_fresh_machine_agrees(bed, step):
    for signum, patience_s in ((signal.SIGINT, 7.5), (signal.SIGTERM, 2.5), (signal.SIGKILL, 1.0)):
        if step.process.poll() is None:
            step.process.send_signal(signum)
        try:
            step.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            continue
    assert step.gone()["verdict"] == "cancelled"
    code, record, err = reconcile(bed)
    assert (code, record["confirmed"], record["left"]) == (0, True, []), err


def test_what_launcher_and_warden_could_not_finish_a_fresh_machine_finishes(bed, step):
    node = [pid for pid in step.alive() if b"harness\0node" in _cmdline(pid) and b"timeout" not in _cmdline(pid)[:20]]
    assert node
    os.kill(node[0], signal.SIGSTOP)  # it can not see its lifeline close
    step.strike([step.process.pid, step.warden()], signal.SIGKILL)
    step.process.wait()
    assert step.alive()
    code, record, err = reconcile(bed)
    assert record["found"], err
    assert (code, record["confirmed"]) == (0, True), (record, err)
    assert not step.alive()


def _cmdline(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
