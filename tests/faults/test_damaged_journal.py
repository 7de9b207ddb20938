"""A journal that was damaged: nobody takes the word of its last record, and a teardown says what it can not prove."""

import json
import signal

import pytest


@pytest.fixture
def damaged(bed):
    """A closed run whose journal was damaged before its last record."""
    run = bed.launch("--behaviour", "complete")
    assert run.answer()[1] == 0
    journal = run.path / "journal.jsonl"
    data = bytearray(journal.read_bytes())
    data[40] ^= 1
    journal.write_bytes(data)
    return run


def test_status_shows_the_damage_and_not_the_verdict_of_the_last_record(bed, damaged):
    code, out, _ = bed.command("status", "--runs-dir", str(damaged.runs_dir), "--json")
    (listed,) = json.loads(out)["runs"]
    assert (code, listed["state"]) == (0, "damaged")
    code, out, _ = bed.command("status", "--runs-dir", str(damaged.runs_dir))
    assert "passed" not in out
    assert "damaged" in out
    code, out, _ = bed.command("status", damaged.run_id, "--runs-dir", str(damaged.runs_dir), "--json")
    assert json.loads(out)["state"] == "damaged"


def test_a_teardown_after_damage_is_unconfirmed(bed, damaged):
    code, out, err = bed.command("teardown", damaged.run_id, "--runs-dir", str(damaged.runs_dir), "--json")
    assert code == 70
    error = json.loads(out)["error"]
    assert error["code"] == "teardown-unconfirmed"
    assert "is damaged at byte" in error["cause"]
    assert "remedy:" in err


def test_a_teardown_after_damage_still_ends_what_lives(bed):
    run = bed.launch("--behaviour", "hold")
    run.wait_until_up()
    run.strike([run.warden(), run.process.pid], signal.SIGKILL)
    run.process.wait()
    journal = run.path / "journal.jsonl"
    data = bytearray(journal.read_bytes())
    data[40] ^= 1
    journal.write_bytes(data)
    code, _, _ = bed.command("teardown", run.run_id, "--runs-dir", str(run.runs_dir))
    assert code == 70
    assert run.alive() == []


def test_a_cell_of_a_run_that_nobody_runs_any_more_is_not_said_to_be_running(bed):
    run = bed.launch("--behaviour", "hold")
    run.wait_until_up()
    code, out, _ = bed.command("status", run.run_id, "--runs-dir", str(run.runs_dir), "--json")
    assert [cell["status"] for cell in json.loads(out)["cells_so_far"]] == ["running"]
    run.process.kill()
    run.process.wait()
    run.gone()
    code, out, _ = bed.command("status", run.run_id, "--runs-dir", str(run.runs_dir), "--json")
    assert (code, [cell["status"] for cell in json.loads(out)["cells_so_far"]]) == (0, ["interrupted"])
