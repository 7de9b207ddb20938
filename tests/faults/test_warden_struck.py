"""The warden is struck: the launcher replaces it, and the run goes on as if nothing had happened."""

import signal

import pytest


def test_a_killed_warden_is_replaced_and_the_new_one_does_its_work(bed):
    run = bed.launch()
    run.wait_until_up()
    first = run.warden()
    run.strike([first], signal.SIGKILL)
    bed.wait(lambda: run.kinds().count("warden-started") == 2, "a second warden")
    assert run.warden() != first
    lost = run.wait_for("warden-lost")["facts"]
    assert (lost["pid"], lost["exit_code"]) == (first, -signal.SIGKILL)
    bed.wait(lambda: b"warden" in cmdline(run.warden()), "the second warden to be itself")
    run.process.kill()
    run.process.wait()
    closure = run.gone()
    assert (closure["verdict"], closure["reason"]) == ("cancelled", "launcher-lost")


def test_a_warden_that_is_told_to_stop_stays_and_the_journal_tells(bed):
    runs = {
        signum: bed.launch("--behaviour", "complete", "--hold-at", "acquired")
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    for signum, run in runs.items():
        run.wait_for("acquired")
        run.strike([run.warden()], signum)
        (run.runs_dir / "go").touch()
    for signum, run in runs.items():
        answer, code = run.answer()
        assert (answer["verdict"], code) == ("passed", 0)
        assert run.wait_for("warden-signalled")["facts"] == {"signal": signum.name}
        assert run.kinds().count("warden-started") == 1
        assert not run.leftovers()


def test_a_stopped_warden_is_continued_and_does_its_work(bed):
    run = bed.launch()
    run.wait_until_up()
    for count in (1, 2):
        run.strike([run.warden()], signal.SIGSTOP)
        bed.wait(lambda count=count: run.kinds().count("warden-continued") == count, "the warden to be continued")
    run.process.kill()
    run.process.wait()
    closure = run.gone()
    assert (closure["verdict"], closure["reason"]) == ("cancelled", "launcher-lost")


@pytest.mark.slow
def test_a_warden_killed_at_any_stage_changes_nothing_about_the_verdict(bed):
    records = ("stage:admit", "acquired", "run-ended", "stage:collect", "look", "stage:closure")
    runs = {record: bed.launch("--behaviour", "complete", "--hold-at", record) for record in records}
    for record, run in runs.items():
        run.wait_for(record)
        run.strike([run.warden()], signal.SIGKILL)
        (run.runs_dir / "go").touch()
    for record, run in runs.items():
        answer, code = run.answer()
        assert (answer["verdict"], code) == ("passed", 0), (record, run.err.read_text())
        assert not run.leftovers()


def cmdline(pid):
    from pathlib import Path

    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
