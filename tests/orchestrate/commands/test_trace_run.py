import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(3))
print("the job's own words")
sys.exit(int(sys.argv[1]))
"""


def trace_run(cwd, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "orchestrate", "trace", "run", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("code", [0, 5])
def test_the_exit_code_is_the_jobs_and_the_summary_counts_records_and_ranks(tmp_path, code):
    done = trace_run(tmp_path, "--dir", "traces", "--", sys.executable, "-c", PROGRAM, str(code))
    assert (done.returncode, done.stdout) == (code, "the job's own words\n")
    assert f"1 record of 1 rank in {tmp_path / 'traces'}" in done.stderr


def test_with_json_standard_output_is_one_object(tmp_path):
    done = trace_run(tmp_path, "--json", "--", sys.executable, "-c", PROGRAM, "0")
    answer = json.loads(done.stdout)
    assert (answer["exit_code"], answer["records"], len(answer["ranks"])) == (0, 1, 1)
    assert "the job's own words" in done.stderr
    (made,) = tmp_path.glob("trace-*")
    assert answer["directory"] == str(made)


def test_a_folder_that_holds_something_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "rank0.trace").write_bytes(b"")
    done = trace_run(tmp_path, "--dir", ".", "--", sys.executable, "-c", "print('ran')")
    assert (done.returncode, done.stdout) == (2, "")
    assert "is not empty" in done.stderr


def test_a_command_that_is_not_there_is_a_usage_error(tmp_path):
    done = trace_run(tmp_path, "--", "no-such-program")
    assert done.returncode == 2
    assert "no-such-program could not be started" in done.stderr


def test_options_of_the_job_are_the_jobs(tmp_path):
    done = trace_run(tmp_path, sys.executable, "-c", "import sys; print(sys.argv[1:])", "--json", "--dir", "x")
    assert done.returncode == 2
    done = trace_run(tmp_path, "--", sys.executable, "-c", "import sys; print(sys.argv[1:])", "--json", "--dir", "x")
    assert done.stdout == "['--json', '--dir', 'x']\n"
