"""The payload is struck, or misbehaves: whose fault it is, and that nothing of it is left."""

import json
import signal
import socket
from pathlib import Path

import pytest

from orchestrate.receipts.verify import verify_run


def test_a_run_that_goes_well_passes_and_verifies(bed):
    run = bed.launch("--behaviour", "complete")
    answer, code = run.answer()
    assert (answer["verdict"], answer["test_verdict"], code) == ("passed", "passed", 0), run.err.read_text()
    assert answer["cells"] == {"expected": 4, "complete": 4}
    assert answer["teardown"] == {"confirmed": True, "remaining": []}
    assert not run.leftovers()
    assert verify_run(run.path, expect_closure=answer["closure_sha256"], require_passed=True).holds


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["rank", "torchrun", "node", "timeout"])
def test_a_payload_process_struck_from_outside_is_an_infrastructure_fault(bed, victim):
    runs = {signum: bed.launch() for signum in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for run in runs.values():
        run.wait_until_up()
    for signum, run in runs.items():
        run.strike(run.family(victim)[:1], signum)
    for signum, run in runs.items():
        closure = run.gone()
        assert closure["verdict"] == "infrastructure", (signum, closure, run.err.read_text())
        assert run.answer()[1] == 5
        verification = verify_run(run.path)
        assert verification.holds, (signum, verification.problems)


def test_a_rank_that_fails_by_itself_fails_the_run(bed):
    run = bed.launch("--behaviour", "fail")
    answer, code = run.answer()
    assert (answer["verdict"], answer["test_verdict"], code) == ("failed", "failed", 1), answer
    assert run.gone()["verdict"] == "failed"
    assert verify_run(run.path).holds


def test_a_hung_run_says_which_collective_its_ranks_disagree_about(bed):
    run = bed.launch("--behaviour", "hang")
    answer, code = run.answer()
    assert (answer["verdict"], code) == ("hung", 3), run.err.read_text()
    said = "missing-rank at all_reduce #3 of group world: rank 2 never issued it"
    assert said in answer["reason"]
    receipts = [json.loads(path.read_bytes())["predicate"] for path in (run.path / "receipts").iterdir()]
    (collect,) = [receipt["facts"] for receipt in receipts if receipt["stage"] == "collect"]
    assert [said in cell.get("reason", "") for cell in collect["cells"]].count(True) == 1
    assert verify_run(run.path).holds


@pytest.mark.parametrize("behaviour", ["deaf", "escape", "storm"])
def test_no_process_escapes_the_teardown(bed, behaviour):
    run = bed.launch("--behaviour", behaviour)
    if behaviour == "storm":
        run.wait_for("submitted")
        bed.wait(lambda: len(run.family("rank")) >= 4, "the storm")
    else:
        run.wait_until_up()
    bed.wait(lambda: len(run.observed("processes")) > 2, "members to be recorded")
    run.process.send_signal(signal.SIGINT)
    closure = run.gone()
    assert closure["verdict"] == "cancelled"
    assert closure["teardown"]["confirmed"]


def test_an_orphan_without_any_mark_is_ended_with_the_run(bed):
    run = bed.launch("--behaviour", "escape")
    run.wait_until_up()

    def orphans():
        return [pid for pid, command in commands() if b"time.sleep(600)" in command]

    (orphan,) = bed.wait(orphans, "the orphan")
    run.process.send_signal(signal.SIGINT)
    run.gone()
    assert orphan not in orphans()


def test_a_neighbour_that_looks_alike_survives(bed):
    first = bed.launch()
    second = bed.launch()
    for run in (first, second):
        run.wait_until_up()
    first.process.send_signal(signal.SIGINT)
    assert first.gone()["verdict"] == "cancelled"
    assert len(second.family("rank")) == 4
    assert second.process.poll() is None
    second.process.send_signal(signal.SIGINT)
    assert second.gone()["verdict"] == "cancelled"


def test_two_launches_at_once_into_one_runs_directory_both_pass(bed):
    runs = [bed.launch("--behaviour", "complete", name="shared") for _ in range(2)]
    answers = [run.answer() for run in runs]
    assert [code for _, code in answers] == [0, 0]
    assert len({answer["run_id"] for answer, _ in answers}) == 2


def test_the_deadline_ends_the_run_with_time_left_for_the_teardown(bed):
    run = bed.launch("--behaviour", "deaf", "--deadline", "42", "--reserve", "30")
    answer, code = run.answer()
    assert (answer["verdict"], code) == ("incomplete", 4)
    assert answer["reason"].startswith("deadline")
    assert answer["teardown"]["confirmed"]
    assert not run.leftovers()
    assert verify_run(run.path).holds


def test_a_deadline_without_room_for_the_teardown_starts_nothing(bed):
    run = bed.launch("--deadline", "21", "--reserve", "20")
    answer, code = run.answer()
    assert (answer["error"]["code"], code) == ("not-run", 76)
    assert list(run.runs_dir.iterdir()) == []


def test_sources_that_change_during_the_run_fail_it(bed):
    run = bed.launch("--behaviour", "complete", "--hold-at", "submitting")
    run.wait_for("submitting")
    (bed.harness / "added.py").write_text("")
    (run.runs_dir / "go").touch()
    answer, code = run.answer()
    assert (answer["verdict"], code) == ("failed", 1)
    assert "harness/added.py" in answer["reason"]
    verification = verify_run(run.path)
    assert verification.holds, verification.problems


def test_a_socket_that_somebody_else_still_holds_is_reported_and_a_later_teardown_closes_it_again(bed):
    with socket.socket(socket.AF_UNIX) as lender:
        lender.bind(str(bed.temp / "lend.sock"))
        lender.listen()
        run = bed.launch("--behaviour", "lend")
        connection, _ = lender.accept()
        with connection:
            _, (borrowed,), _, _ = socket.recv_fds(connection, 1, 1)
    run.wait_until_up()
    port = socket.socket(fileno=borrowed)
    with port:
        number = port.getsockname()[1]
        bed.wait(lambda: number in {item[0] for item in run.observed("ports")}, "the port to be seen")
        run.process.send_signal(signal.SIGINT)
        answer, code = run.answer()
        assert (answer["verdict"], answer["test_verdict"], code) == ("teardown-unconfirmed", "incomplete", 70)
        assert answer["teardown"] == {"confirmed": False, "remaining": [f"port {number}"]}
        code, out, _ = bed.command("audit", "--runs-dir", str(run.runs_dir), "--run", run.run_id, "--json")
        assert (code, json.loads(out)["findings"][0]["action"]) == (1, "look-again")
    first = run.closure()
    code, out, err = bed.command("audit", "--runs-dir", str(run.runs_dir), "--run", run.run_id, "--reap")
    assert code == 0, (out, err)
    second = run.closure()
    assert (first["verdict"], second["verdict"]) == ("teardown-unconfirmed", "cancelled")
    verification = verify_run(run.path, expect_closure=second["closure_sha256"])
    assert verification.holds, verification.problems
    code, out, _ = bed.command("teardown", run.run_id, "--runs-dir", str(run.runs_dir), "--json")
    assert (code, json.loads(out)["closure_sha256"]) == (0, second["closure_sha256"]), (
        "nothing differed, yet closed again"
    )


def commands():
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                yield int(path.name), (path / "cmdline").read_bytes()
            except OSError:
                continue
