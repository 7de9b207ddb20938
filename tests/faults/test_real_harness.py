"""The real harness, one cell, struck where it hurts."""

import importlib.util
import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from orchestrate.receipts.verify import verify_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"),
]


@pytest.fixture
def real(bed):
    """A real launch of one cell, once its ranks are at work."""
    run = bed.launch(name="real", command=[
        sys.executable, "-m", "orchestrate", "launch", "--cell-set", "text", "--groups", "1", "--repeat", "1",
        "--runs-dir", str(bed.folder / "real"), "--json",
    ])  # fmt: skip
    run.wait_for("cell", limit_s=60)
    bed.wait(lambda: progress(run), "a rank to be at work", limit_s=120)
    return run


def test_a_killed_rank_of_the_real_harness_is_an_infrastructure_fault(real):
    (pid,) = ranks(real)[2:3]
    os.kill(pid, signal.SIGKILL)
    closure = real.gone()
    assert (closure["verdict"], closure["test_verdict"]) == ("infrastructure", "infrastructure"), closure
    assert verify_run(real.path).holds


def test_a_killed_launcher_of_the_real_harness_leaves_nothing(real):
    real.process.kill()
    real.process.wait()
    assert real.gone()["reason"] == "launcher-lost"
    assert verify_run(real.path).holds


def test_ctrl_c_in_a_terminal_reaches_the_launcher_alone_and_is_enough(real):
    os.killpg(real.process.pid, signal.SIGINT)  # what a terminal does: the whole foreground process group
    closure = real.gone()
    assert (closure["verdict"], closure["reason"]) == ("cancelled", "stopped by SIGINT")
    assert "warden-signalled" not in real.kinds()
    assert real.answer()[1] == 130


def test_launcher_and_warden_killed_together_end_the_node_by_its_lifeline(bed, real):
    real.strike([real.process.pid, real.warden()], signal.SIGKILL)
    real.process.wait()
    bed.wait(lambda: not real.alive(), lambda: f"the node to end by itself; {real.leftovers()}", limit_s=20)
    code, _, err = bed.command("audit", "--runs-dir", str(real.runs_dir), "--run", real.run_id, "--reap")
    assert code == 0, err
    assert real.gone()["reason"] == "launcher-lost"


def progress(run):
    try:
        lines = (run.path / "evidence" / "node.jsonl").read_text().splitlines()
    except OSError:
        return []
    return [line for line in lines if '"progress"' in line and json.loads(line).get("phase") != "load"]


def ranks(run):
    """The pids of the ranks, which are named after their number."""
    found = {}
    for pid in run.alive():
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:
            continue
        if re.fullmatch(r"rank\d+", name):
            found[name] = pid
    return [found[name] for name in sorted(found)]


def test_a_race_of_the_real_harness_is_planned_and_judged_as_one_and_says_what_a_certificate_lacks(bed):
    run = bed.launch(name="race", command=[
        sys.executable, "-m", "orchestrate", "launch", "--cell-set", "text", "--groups", "1", "--repeat", "4",
        "--schedule", "racing", "--runs-dir", str(bed.folder / "race"), "--json",
    ])  # fmt: skip
    run.wait_for("cell", limit_s=60)
    bed.wait(lambda: run.process.poll() is not None, "the race to end", limit_s=400)
    answer, code = run.answer()
    assert (code, answer["verdict"]) == (0, "passed")
    plan = json.loads((run.path / "plan.json").read_text())
    assert (plan["schedule"], plan["environment"]["SCHEDULE"]) == ("racing", "racing")
    certify = ["calibrate", "certify", "--run", str(run.path), "--json"]
    code, said, _ = bed.command(*certify, "--schedule", "racing")
    gaps = json.loads(said)["error"]["gaps"]
    assert code == 4
    assert [gap.partition(":")[0] for gap in gaps] == ["the holdout", "the holdout", "the training cells"]
    code, said, _ = bed.command(*certify)  # a certificate expects the fixed schedule
    assert code == 4
    assert "schedule 'racing', not 'fixed'" in said
