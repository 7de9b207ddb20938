"""The launcher is struck at each stage: what is left, what the journal tells, and the verdict."""

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from orchestrate.receipts.verify import verify_run

STAGES = {
    "plan": ("hold", "receipt:plan"),
    "admit": ("hold", "stage:admit"),
    "acquire": ("hold", "acquiring"),
    "acquired": ("hold", "acquired"),
    "submit": ("hold", "submitting"),
    "run": ("hold", None),
    "run-ended": ("complete", "run-ended"),
    "collect": ("complete", "stage:collect"),
    "teardown": ("complete", "stage:teardown"),
    "census": ("complete", "look"),
    "closure": ("complete", "stage:closure"),
}
"""Where the launcher is held: the payload's behaviour, and the journal record after which it stands still."""


def launch_to_each_stage(bed):
    runs = {}
    for name, (behaviour, record) in STAGES.items():
        hold = [] if record is None else ["--hold-at", record]
        runs[name] = bed.launch("--behaviour", behaviour, *hold, name=name)
    for name, run in runs.items():
        record = STAGES[name][1]
        if record is None:
            run.wait_until_up()
        else:
            run.wait_for(record, limit_s=60)
    return runs


@pytest.mark.slow
def test_a_killed_launcher_is_ended_by_its_warden_at_every_stage(bed):
    runs = launch_to_each_stage(bed)
    for run in runs.values():
        run.process.kill()
        run.process.wait()
    for name, run in runs.items():
        closure = run.gone()
        assert (closure["verdict"], closure["reason"]) == ("cancelled", "launcher-lost"), name
        assert closure["teardown"]["confirmed"], name
        takeovers = [record["facts"]["by"] for record in run.records() if record["kind"] == "takeover"]
        assert takeovers == ["warden"], name
        verification = verify_run(run.path)
        assert verification.holds, (name, verification.problems)


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_signal_to_the_launcher_cancels_the_run_at_every_stage(bed, signum):
    runs = launch_to_each_stage(bed)
    for run in runs.values():
        run.process.send_signal(signum)
        (run.runs_dir / "go").touch()
    for name, run in runs.items():
        closure = run.gone()
        answer, code = run.answer()
        assert (closure["verdict"], closure["reason"]) == ("cancelled", f"stopped by {signum.name}"), name
        assert (answer["verdict"], code, answer["closure_sha256"]) == ("cancelled", 130, closure["closure_sha256"]), (
            name
        )
        assert [record["facts"]["signal"] for record in run.records() if record["kind"] == "signal"] == [signum.name], (
            name
        )
        assert answer["test_verdict"] == ("passed" if STAGES[name][0] == "complete" else "incomplete"), name
        verification = verify_run(run.path)
        assert verification.holds, (name, verification.problems)


@pytest.mark.slow
def test_launcher_and_warden_killed_together_leave_a_run_that_audit_closes(bed):
    runs = launch_to_each_stage(bed)
    for run in runs.values():
        run.strike([run.process.pid, run.warden()], signal.SIGKILL)
        run.process.wait()

    def reap(run):
        return bed.command("audit", "--runs-dir", str(run.runs_dir), "--run", run.run_id, "--reap")

    with ThreadPoolExecutor(4) as pool:
        done = dict(zip(runs, pool.map(reap, runs.values()), strict=True))
    for name, run in runs.items():
        assert done[name][0] == 0, (name, done[name])
        closure = run.gone()
        assert (closure["verdict"], closure["reason"]) == ("cancelled", "launcher-lost"), name
        assert [record["facts"]["by"] for record in run.records() if record["kind"] == "takeover"] == ["audit"], name
        verification = verify_run(run.path)
        assert verification.holds, (name, verification.problems)


def test_a_run_whose_closure_is_written_stays_passed_when_the_launcher_is_killed_after_it(bed):
    run = bed.launch("--behaviour", "complete", "--hold-at", "closure")
    run.wait_for("closure")
    run.process.kill()
    run.process.wait()
    assert run.gone()["verdict"] == "passed"
    assert verify_run(run.path, require_passed=True).holds


def test_a_second_sigint_does_not_skip_teardown_and_says_what_is_being_done(bed):
    run = bed.launch("--behaviour", "deaf")
    run.wait_until_up()
    run.process.send_signal(signal.SIGINT)
    run.wait_for("tearing-down")
    run.process.send_signal(signal.SIGINT)
    assert run.gone()["verdict"] == "cancelled"
    assert "not skipped, still ending the processes of the run" in run.err.read_text()
    assert run.answer()[0]["teardown"] == {"confirmed": True, "remaining": []}


def test_the_cancel_sequence_of_github_leaves_enough_for_the_next_step(bed):
    run = bed.launch("--behaviour", "deaf", "--hold-at", "tearing-down")
    run.wait_until_up()
    run.process.send_signal(signal.SIGINT)
    run.wait_for("tearing-down")
    run.process.send_signal(signal.SIGTERM)
    run.process.kill()
    run.strike([run.warden()], signal.SIGKILL)
    run.process.wait()
    code, _, err = bed.command("teardown", run.run_id, "--runs-dir", str(run.runs_dir), "--json")
    assert code == 0, err
    closure = run.gone()
    assert closure["verdict"] == "cancelled"
    assert closure["reason"] == "stopped by SIGINT, then launcher-lost"


def test_a_stopped_signal_before_the_warden_exists_still_closes_the_run(bed):
    run = bed.launch("--hold-at", "planned")
    bed.wait(lambda: list(run.runs_dir.glob(".making-*/journal.jsonl")), "the run to be made")
    run.process.send_signal(signal.SIGTERM)
    (run.runs_dir / "go").touch()
    closure = run.gone()
    assert (closure["verdict"], closure["reason"]) == ("cancelled", "stopped by SIGTERM")
    assert "acquiring" not in run.kinds()


def test_a_launcher_killed_while_it_makes_the_run_leaves_a_husk_that_audit_removes(bed):
    run = bed.launch("--hold-at", "planned")
    (husk,) = bed.wait(lambda: list(run.runs_dir.glob(".making-*")), "the run to be made")
    bed.wait((husk / "journal.jsonl").exists, "the first record")
    run_id = husk.name.removeprefix(".making-")
    bed.command("audit", "--runs-dir", str(run.runs_dir), "--run", run_id, "--reap")
    assert husk.exists(), "a husk whose maker lives was removed"
    run.process.kill()
    run.process.wait()
    code, out, _ = bed.command("audit", "--runs-dir", str(run.runs_dir), "--run", run_id, "--reap")
    assert code == 0, out
    assert not husk.exists()
