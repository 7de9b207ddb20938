"""`orchestrate verify`: the exit code says whether the receipts hold, and both outputs say the verdict."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrate.cli import cli
from orchestrate.errors import RunNotFoundError, UsageError


@dataclass
class Answer:
    code: int
    stdout: str
    stderr: str


@pytest.fixture
def verify(capsys):
    def run(*arguments):
        code = cli.main(["verify", *map(str, arguments)], standalone_mode=False)
        return Answer(code, *capsys.readouterr())

    return run


def test_a_run_that_holds_exits_zero_and_says_its_verdict(builder, verify):
    result = verify(builder().build())
    assert result.code == 0
    assert "receipts HOLDS" in result.stdout
    assert "PASSED" in result.stdout
    assert "not signed" in result.stdout


def test_exit_zero_of_a_failed_run_is_not_silent_about_it(builder, verify):
    made = builder()
    run_dir = builder("failed", failed_cells={made.keys[0]: "failed"}).build()
    plain, as_json = verify(run_dir), verify(run_dir, "--json")
    assert (plain.code, as_json.code) == (0, 0)
    assert "FAILED" in plain.stdout
    assert json.loads(as_json.stdout)["verdict"] == "failed"
    assert verify(run_dir, "--require-passed").code == 1


def test_a_damaged_run_exits_one_and_says_why(builder, verify):
    run_dir = builder().build()
    (run_dir / "plan.json").unlink()
    result = verify(run_dir)
    assert result.code == 1
    assert "DOES NOT HOLD" in result.stdout
    assert "plan.json is missing" in result.stdout


def test_the_verdict_of_what_does_not_hold_is_only_a_claim(builder, verify):
    run_dir = builder().build()
    asked = verify(run_dir, "--commit", "1" * 40).stdout
    assert "verdict  the files claim passed, but they are not what was asked for\n" in asked
    rows = next((run_dir / "evidence").rglob("rows.jsonl"))
    rows.write_bytes(rows.read_bytes() + b"{}\n")
    told = verify(run_dir).stdout
    assert "verdict  the files claim passed, but they do not fit together: nothing in them can be relied on\n" in told
    assert "every check passed" not in told
    assert "cells    claimed passed" in told


def test_that_a_pass_is_required_makes_no_claim_of_a_true_failure(builder, verify):
    run_dir = builder("failed", failed_cells={builder().keys[0]: "failed"}).build()
    assert "verdict  FAILED  a cell or check failed" in verify(run_dir, "--require-passed").stdout


def test_json_is_exactly_one_object_on_standard_output(builder, verify):
    result = verify(builder().build(), "--json")
    said = json.loads(result.stdout)
    assert set(said) == {
        "holds", "run_id", "verdict", "test_verdict", "closure_sha256", "device", "commit", "proves",
        "does_not_prove", "problems", "uncovered", "reviews", "by_review",
    }  # fmt: skip
    assert said["holds"] is True
    assert "PASSED" in result.stderr


def test_the_expected_closure_and_commit_are_taken_from_the_command_line(builder, verify):
    run_dir = builder().build()
    closure = json.loads(verify(run_dir, "--json").stdout)["closure_sha256"]
    assert verify(run_dir, "--expect-closure", closure, "--commit", "c0ffee0").code == 0
    assert verify(run_dir, "--expect-closure", closure[:16]).code == 1
    assert verify(run_dir, "--commit", "deadbeef").code == 1


def test_a_run_is_found_by_its_id_in_the_runs_directory(builder, verify):
    run_dir = builder().build()
    assert verify(run_dir.name, "--runs-dir", run_dir.parent).code == 0


def test_no_such_run_is_an_error_that_names_it(tmp_path, verify):
    with pytest.raises(RunNotFoundError, match="r-none"):
        verify("r-none", "--runs-dir", tmp_path)


@pytest.mark.parametrize("flags", [(), ("--json",)])
@pytest.mark.parametrize("good", [True, False])
def test_nobody_who_reads_and_a_full_disk_leave_the_exit_code_alone(builder, flags, good):
    run_dir = builder().build()
    if not good:
        (run_dir / "plan.json").write_bytes(b"{}")
    reading, closed = os.pipe()
    os.close(reading)
    with Path("/dev/full").open("wb") as full:
        for out, err in ((closed, closed), (full, full)):
            command = [sys.executable, "-m", "orchestrate", "verify", str(run_dir), *flags]
            assert subprocess.run(command, stdout=out, stderr=err, check=False).returncode == (0 if good else 1)
    os.close(closed)


def test_several_runs_hold_only_if_each_does(builder, verify):
    first, second = builder().build(), builder("r20260102-030405-ffffff", run_id="r20260102-030405-ffffff").build()
    both = verify(first, second, "--json")
    assert both.code == 0
    assert json.loads(both.stdout)["holds"] is True
    (second / "plan.json").unlink()
    both = verify(first, second, "--json")
    assert both.code == 1
    assert [run["holds"] for run in json.loads(both.stdout)["runs"]] == [True, False]


def test_an_expected_closure_is_of_one_run(builder, verify):
    with pytest.raises(UsageError, match="of one run"):
        verify(builder().build(), "x/y", "--expect-closure", "0" * 64)
