"""`audit` with and without local state: it finds what is there, reaps what it may, and leaves the living alone."""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from orchestrate.backends.leftovers import MARKER


def audit(bed, *arguments, runs_dir=None):
    where = ("--backend", "local", "--runs-dir", str(runs_dir or bed.folder / "none"))
    code, out, err = bed.command("audit", *where, "--json", *arguments)
    answer = json.loads(out)
    assert answer["exit_code"] == code, err
    return code, {finding["run_id"]: finding for finding in answer["findings"]}


def orphaned(bed):
    """A run whose launcher, warden and directory are gone, and whose payload does not care."""
    run = bed.launch("--behaviour", "deaf")
    run.wait_until_up()
    run.run_name = run.run_id
    run.strike([run.process.pid, run.warden()], signal.SIGKILL)
    run.process.wait()
    return run


@pytest.fixture
def stray(bed):
    """A process with the marks of a run that nobody remembers."""
    strays = []

    def start(expires_at, run_dir="/nonexistent", owner="ada@ws"):
        run_id = f"r20260101-000000-{secrets.token_hex(3)}"
        marks = {
            "ORCHESTRATE_TOKEN": secrets.token_hex(16), "ORCHESTRATE_RUN_ID": run_id, "ORCHESTRATE_OWNER": owner,
            "ORCHESTRATE_EXPIRES": expires_at.isoformat(), "ORCHESTRATE_RUN_DIR": str(run_dir),
        }  # fmt: skip
        code = "import time; time.sleep(300)"
        child = subprocess.Popen(
            [sys.executable, "-S", "-c", code], env={**os.environ, **marks}, start_new_session=True
        )
        strays.append(child)
        bed.wait(lambda: b"sleep" in Path(f"/proc/{child.pid}/cmdline").read_bytes(), "the stray")
        return run_id, child

    yield start
    for child in strays:
        child.kill()
        child.wait()


PAST = datetime.now(UTC) - timedelta(hours=1)
FUTURE = datetime.now(UTC) + timedelta(hours=1)


def test_nothing_of_ours_is_clean(bed):
    code, findings = audit(bed, "--run", "r20260101-000000-000000")
    assert (code, findings) == (0, {})


def test_a_run_without_any_local_state_is_found_with_its_owner_and_reaped_when_named(bed):
    run = orphaned(bed)
    shutil.move(run.path, bed.folder / "elsewhere")
    code, findings = audit(bed, "--run", run.run_name)
    finding = findings[run.run_name]
    assert (code, finding["owner"], finding["live"]) == (1, "tester@bed", False)
    kinds = {item.split()[0] for item in finding["items"]}
    assert {"process", "temp-folder"} <= kinds
    shared = [path for path in bed.shared() if path.read_text() == run.run_name]
    assert len(shared) == 4
    code, findings = audit(bed, "--run", run.run_name, "--reap")
    assert (code, findings[run.run_name]["left"]) == (0, [])
    assert not [path for path in shared if path.exists()]
    assert not list(bed.temp.glob(f"orchestrate-{run.run_name}-*"))
    assert audit(bed, "--run", run.run_name)[1] == {}


def test_a_runs_directory_that_is_none_could_not_be_looked_at(bed):
    path = bed.folder / "a file"
    path.touch()
    code, out, _ = bed.command("audit", "--backend", "local", "--runs-dir", str(path))
    assert code == 70
    assert "is not a directory" in out


def test_what_has_not_expired_is_not_reaped_unless_named(bed, stray):
    run_id, child = stray(FUTURE)
    code, findings = audit(bed)
    assert (code, findings[run_id]["action"]) == (1, "none")
    assert "--run or --owner says that it may be ended" in findings[run_id]["because"]
    code, findings = audit(bed, "--owner", "ada@ws", "--reap")
    assert (code, findings[run_id]["outcome"].split(" ")[0]) == (0, "ended")
    assert child.wait() < 0


def test_what_has_expired_is_reaped(bed, stray):
    run_id, child = stray(PAST)
    code, findings = audit(bed, "--run", run_id)
    assert (code, findings[run_id]["action"]) == (1, "end")
    assert child.poll() is None, "looking alone ended it"
    assert audit(bed, "--run", run_id, "--reap")[0] == 0
    assert child.wait() < 0


def test_a_younger_thing_than_asked_for_is_not_listed(bed, stray):
    run_id, child = stray(PAST)
    assert audit(bed, "--run", run_id, "--older-than", "1h", "--reap") == (0, {})
    assert child.poll() is None


def test_a_live_run_of_a_colleague_is_told_and_never_touched_even_when_expired_or_named(bed, stray):
    run = bed.launch()
    run.wait_until_up()
    run_id, child = stray(PAST, run_dir=run.path)
    for arguments in (["--run", run.run_id], ["--owner", "tester@bed"]):
        code, findings = audit(bed, *arguments, "--reap")
        assert (code, findings[run.run_id]["live"]) == (1, True)
        assert not findings[run.run_id]["outcome"]
    code, findings = audit(bed, "--run", run_id, "--reap")
    assert (code, findings[run_id]["live"]) == (1, True)
    assert child.poll() is None
    assert len(run.family("rank")) == 4
    run.process.send_signal(signal.SIGINT)
    assert run.gone()["teardown"]["confirmed"]


def test_a_run_in_another_runs_directory_is_closed_there(bed):
    run = orphaned(bed)
    code, findings = audit(bed, "--run", run.run_id, "--reap")
    assert code == 0, findings
    assert run.gone()["reason"] == "launcher-lost"


def test_a_folder_that_only_has_a_name_like_ours_is_left_alone(bed):
    run_id = "r20260101-000000-aaaaaa"
    unmarked = bed.temp / f"orchestrate-{run_id}-00000000"
    marked = bed.temp / f"orchestrate-{run_id}-11111111"
    for folder in (unmarked, marked):
        folder.mkdir()
    mark = {"run_id": run_id, "owner": "ada@ws", "expires_at": PAST.isoformat(), "run_dir": "/nonexistent"}
    (marked / MARKER).write_text(json.dumps(mark))
    assert audit(bed, "--run", run_id, "--reap")[0] == 0
    assert (unmarked.exists(), marked.exists()) == (True, False)


def test_a_damaged_journal_is_told_and_what_the_run_left_is_ended_all_the_same(bed):
    run = orphaned(bed)
    journal = run.path / "journal.jsonl"
    data = bytearray(journal.read_bytes())
    data[200] ^= 1
    journal.write_bytes(data)
    code, findings = audit(bed, "--run", run.run_id, "--reap", runs_dir=run.runs_dir)
    assert code == 70
    assert "damaged at byte" in findings[run.run_id]["outcome"]
    assert not run.alive()
    assert not list(bed.temp.glob(f"orchestrate-{run.run_id}-*"))


def test_what_only_the_journal_of_a_closed_run_tells_is_found_when_the_run_is_named(bed):
    run = bed.launch()
    run.wait_until_up()
    pid = run.family("rank")[0]
    run.process.send_signal(signal.SIGINT)
    assert run.gone()["teardown"]["confirmed"]
    late = Path(f"/dev/shm/torch_{pid}_{secrets.randbits(30)}")
    late.touch()
    try:
        code, findings = audit(bed, "--run", run.run_id, runs_dir=run.runs_dir)
        assert (code, findings[run.run_id]["action"]) == (1, "look-again")
        assert any(str(late) in item for item in findings[run.run_id]["items"])
        code, findings = audit(bed, "--run", run.run_id, "--reap", runs_dir=run.runs_dir)
        assert (code, late.exists()) == (0, False)
        assert audit(bed, "--run", run.run_id, runs_dir=run.runs_dir) == (0, {})
    finally:
        late.unlink(missing_ok=True)


def test_teardown_asks_a_living_owner_and_waits_for_it(bed):
    run = bed.launch()
    run.wait_until_up()
    os.kill(run.process.pid, signal.SIGSTOP)  # as Ctrl-Z does
    code, out, err = bed.command("teardown", run.run_id, "--runs-dir", str(run.runs_dir), "--json")
    answer = json.loads(out)
    assert (code, answer["verdict"], answer["reason"]) == (0, "cancelled", "stopped by SIGTERM"), err
    assert run.answer()[1] == 130
    again = json.loads(bed.command("teardown", run.run_id, "--runs-dir", str(run.runs_dir), "--json")[1])
    assert again["closure_sha256"] == answer["closure_sha256"]


def test_status_tells_live_open_and_closed_runs(bed):
    run = bed.launch()
    run.wait_until_up()

    def state(*arguments):
        _, out, _ = bed.command("status", *arguments, "--runs-dir", str(run.runs_dir), "--json")
        return json.loads(out)

    (head,) = state()["runs"]
    assert (head["state"], head["stage"], head["owner"], head["verdict"]) == ("live", "run", "tester@bed", None)
    assert state("latest")["supervisor"]["pid"] == run.process.pid
    run.strike([run.process.pid, run.warden()], signal.SIGKILL)
    run.process.wait()
    assert state("latest")["state"] == "open"
    assert bed.command("teardown", "latest", "--runs-dir", str(run.runs_dir))[0] == 0
    head = state("latest")
    assert (head["state"], head["verdict"], head["teardown"]["confirmed"]) == ("closed", "cancelled", True)
    assert [entry["by"] for entry in head["takeovers"]] == ["teardown"]
