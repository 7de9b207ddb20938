"""The watch over real jobs: what it writes down of one that hangs, and how it ends it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
JOB = Path(__file__).parent / "jobs" / "hangs.py"
WORLD = 3

pytestmark = pytest.mark.slow


def command(directory, *options, job):
    torchrun = ("-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", str(WORLD))
    torchrun += ("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")
    return [
        sys.executable, "-m", "harness", "trace_run", "--dir", directory / "trace", "--summary",
        directory / "summary.json", *options, "--", sys.executable, *torchrun, JOB, *job,
    ]  # fmt: skip


def start(directory, *options, job):
    return subprocess.Popen(
        command(directory, *options, job=job),
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def living_ranks(directory):
    pids = [json.loads(path.read_text())["pid"] for path in (directory / "trace").glob("rank*.beat")]
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.fixture(scope="module", params=["sleeps", "keeps-the-gil"])
def hung(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    process = start(directory, "--step-budget", "12", job=[request.param])
    said = process.communicate(timeout=240)
    return request.param, directory, process.returncode, said


def test_a_job_that_hangs_is_ended_with_the_exit_code_of_hung(hung):
    _, directory, code, (out, err) = hung
    summary = json.loads((directory / "summary.json").read_text())
    assert (code, summary["exit_code"], summary["verdict"]) == (3, 3, "hung")
    assert "through" not in out
    assert err.count("hung: ") == 1
    assert living_ranks(directory) == []


def test_the_stacks_of_every_rank_are_there_also_of_one_that_keeps_the_gil(hung):
    how, directory, *_ = hung
    stacks = [(directory / "trace" / "stacks" / f"rank{rank}.txt").read_text() for rank in range(WORLD)]
    assert {"sleeps": "a_sleep_that_does_not_end", "keeps-the-gil": "a_call_that_keeps_the_gil"}[how] in stacks[1]
    assert all("all_reduce" in stacks[rank] for rank in (0, 2))


def test_it_says_who_waits_where_and_who_does_not(hung):
    _, directory, *_ = hung
    stall = json.loads((directory / "trace" / "stall.json").read_text())
    waits = {wait["rank"]: wait for wait in stall["waits"]}
    for rank in (0, 2):
        assert (waits[rank]["op"], waits[rank]["sequence"], waits[rank]["ranks"]) == ("all_reduce", 1, [0, 1, 2])
        assert waits[rank]["since_s"] >= 12
        assert "hangs.py" in waits[rank]["caller"]
    assert (waits[1]["op"], waits[1]["last"]) == (None, "all_reduce 0 of 0")
    assert (stall["ended"], stall["without_stack"]) == (True, [])


def test_the_diff_of_its_traces_names_the_rank_that_did_not_come(hung):
    _, directory, *_ = hung
    done = subprocess.run(
        [sys.executable, "-m", "orchestrate", "trace", "diff", "--json", directory / "trace"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["verdict"], answer["divergence"]["sequence"]) == (1, "diverge", 1)
    assert answer["divergence"]["odd"] == [1]


def test_observe_only_writes_the_same_and_ends_nothing(tmp_path, eventually):
    process = start(tmp_path, "--step-budget", "12", "--observe-only", job=["sleeps"])
    try:
        eventually((tmp_path / "trace" / "stall.json").exists, within_s=200)
        assert json.loads((tmp_path / "trace" / "stall.json").read_text())["ended"] is False
        assert process.poll() is None
        assert len(living_ranks(tmp_path)) == WORLD
        process.send_signal(signal.SIGTERM)  # which goes on to the command
        _, err = process.communicate(timeout=60)
        assert "hung: rank" in err
        assert process.returncode not in {0, 3}
    finally:
        process.kill()
        process.communicate()


def test_a_compile_that_takes_longer_than_a_step_may_is_not_a_hang(tmp_path):
    process = start(tmp_path, "--step-budget", "12", job=["compiles", "25"])
    out, err = process.communicate(timeout=240)
    assert (process.returncode, out.count("through")) == (0, WORLD), err
    assert json.loads((tmp_path / "summary.json").read_text())["stalls"] == []


def test_a_compile_that_takes_longer_than_a_compile_may_is_one(tmp_path):
    process = start(tmp_path, "--step-budget", "12", "--compile-budget", "20", job=["compiles", "600"])
    process.communicate(timeout=240)
    assert process.returncode == 3
    stall = json.loads((tmp_path / "trace" / "stall.json").read_text())
    assert (stall["stall"]["rank"], stall["stall"]["phase"]) == (1, "warmup")
    assert "slow_backend" in (tmp_path / "trace" / "stacks" / "rank1.txt").read_text()
