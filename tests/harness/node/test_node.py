"""Real processes: a real node, real torchrun, ranks that do what the test tells them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def run_node(*arguments, **env):
    contract = {"CELL_SET", "RUN_ID", "REPEAT", "SCHEDULE"}
    kept = {name: value for name, value in os.environ.items() if name not in contract}
    return subprocess.run(
        [sys.executable, "-m", "harness", "node", *map(str, arguments)],
        cwd=ROOT,
        env={**kept, **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_failed_cell_is_recorded_the_others_still_run_and_the_node_exits_non_zero(stub_node):
    node = stub_node("exit-7:2", "complete:2", "segfault:3")
    assert node.wait() == 1
    failed, complete, crashed = node.result()["cells"]
    assert (failed["status"], failed["exit_code"], failed["signal"]) == ("failed", 7, None)
    assert failed["reason"] == "rank 1 exited with 7"
    assert (complete["status"], complete["exit_code"]) == ("complete", 0)
    assert (crashed["status"], crashed["signal"]) == ("failed", signal.SIGSEGV)
    assert node.result()["exit_code"] == 1
    assert node.alive() == []


def test_a_rank_killed_from_outside_is_an_infrastructure_fault(stub_node):
    node = stub_node("wait:2")
    os.kill(node.wait_for_ranks("0-wait", 2)[1]["pid"], signal.SIGKILL)
    assert node.wait() == 5
    cell = node.result()["cells"][0]
    assert (cell["status"], cell["signal"]) == ("infrastructure", signal.SIGKILL)
    assert cell["reason"] == "rank 1 was killed by SIGKILL from outside"
    assert node.alive() == []


def test_a_killed_torchrun_is_an_infrastructure_fault_and_leaves_no_rank(stub_node):
    node = stub_node("stubborn:2", "complete:4")
    node.wait_for_ranks("0-stubborn", 2)
    os.kill(node.torchrun("0-stubborn"), signal.SIGKILL)
    assert node.wait() == 5
    assert node.statuses() == ["infrastructure", "complete"]
    assert node.result()["cells"][0]["reason"] == "torchrun was killed by SIGKILL"
    assert node.alive() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_every_process_and_node_json_says_what_happened(stub_node, number):
    node = stub_node("stubborn:2", "wait:2", "complete:4")
    node.wait_for_ranks("0-stubborn", 2)
    node.wait_for_ranks("1-wait", 2)
    node.process.send_signal(number)
    assert node.wait(timeout=20) == 130
    assert node.alive() == []
    result = node.result()
    assert result["stopped"] == f"{number.name} received"
    assert node.statuses() == ["cancelled"] * 3
    assert result["cells"][2]["started_at"] is None


CHANGED_AND_RESTORED = """
import runpy, sys
import harness.node_run
digests = iter(["planned", "planned", "planned", "changed", "planned", "planned"])  # node, two per cell, node
harness.node_run.source_digest = lambda: next(digests)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_source_that_changed_for_one_cell_alone_fails_that_cell(tmp_path):
    evidence, stub = tmp_path / "evidence", Path(__file__).parent / "stub_node.py"
    cells = ["complete:4", "complete:4"]
    done = subprocess.run(
        [sys.executable, "-c", CHANGED_AND_RESTORED, str(stub), str(evidence), "120", "-", *cells],
        env={**os.environ, "RUN_ID": "changed"},
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    first, second = json.loads((evidence / "node.json").read_text())["cells"]
    assert first["status"] == "complete"
    assert (second["status"], second["reason"]) == ("failed", "source files of the harness changed while the node ran")


def test_a_second_signal_does_not_skip_the_end_of_the_ranks(stub_node):
    node = stub_node("stubborn:2")
    node.wait_for_ranks("0-stubborn", 2)
    node.process.send_signal(signal.SIGINT)
    node.process.send_signal(signal.SIGINT)
    node.process.send_signal(signal.SIGTERM)
    assert node.wait(timeout=20) == 130
    assert node.alive() == []
    assert node.statuses() == ["cancelled"]


def test_a_closed_lifeline_ends_the_node_and_its_ranks(stub_node):
    read_end, write_end = os.pipe()
    node = stub_node("stubborn:2", lifeline_fd=read_end)
    os.close(read_end)
    node.wait_for_ranks("0-stubborn", 2)
    os.close(write_end)
    assert node.wait(timeout=20) == 130
    assert node.alive() == []
    assert node.result()["stopped"].startswith("the lifeline closed")


def test_an_open_lifeline_ends_nothing(stub_node):
    read_end, write_end = os.pipe()
    node = stub_node("complete:2", lifeline_fd=read_end)
    os.close(read_end)
    assert node.wait() == 0
    os.close(write_end)
    assert node.statuses() == ["complete"]


def test_a_killed_node_takes_its_ranks_with_it(stub_node, eventually):
    node = stub_node("stubborn:2")
    node.wait_for_ranks("0-stubborn", 2)
    node.process.kill()
    node.process.wait()
    eventually(lambda: node.alive() == [], node, within_s=20)


def test_a_rank_without_progress_leaves_its_stack_and_is_ended_as_hung(stub_node):
    node = stub_node("hang:3", "complete:4", step_s=1.5)
    assert node.wait() == 3
    assert node.statuses() == ["hung", "complete"]
    assert "made no progress in phase measure" in node.result()["cells"][0]["reason"]
    stacks = node.evidence / "cells" / "0-hang" / "stacks"
    assert sorted(path.name for path in stacks.iterdir()) == ["rank0.txt", "rank1.txt", "rank2.txt"]
    assert "rank_that_waits_for_ever" in (stacks / "rank1.txt").read_text()
    assert node.alive() == []


def test_a_stopped_rank_that_the_others_wait_for_is_named_by_its_silence(stub_node):
    node = stub_node("hang:3", step_s=1.5)
    os.kill(node.wait_for_ranks("0-hang", 3)[2]["pid"], signal.SIGSTOP)
    assert node.wait() == 3
    assert node.result()["cells"][0]["reason"].endswith("; no stack came from rank 2")
    assert node.alive() == []


def test_a_cell_that_never_settled_is_its_own_outcome(stub_node):
    node = stub_node("unsettled:2")
    assert node.wait() == 4
    cell = node.result()["cells"][0]
    assert (cell["status"], cell["reason"]) == ("unsettled", "as told")


def test_narrow_cells_run_side_by_side_on_disjoint_slots_and_say_so(stub_node):
    node = stub_node("meet:2", "meet:2", "complete:4")
    assert node.wait() == 0
    one, other, alone = node.result()["cells"]
    assert (one["ran_with"], other["ran_with"], alone["ran_with"]) == (["meet|1"], ["meet|0"], [])
    assert (one["slots"], other["slots"], alone["slots"]) == ([0, 1], [2, 3], [0, 1, 2, 3])


def test_two_nodes_at_once_do_not_meet(stub_node):
    nodes = [stub_node("complete:2"), stub_node("complete:2")]
    assert [node.wait() for node in nodes] == [0, 0]


def test_progress_is_told_while_it_happens(stub_node):
    node = stub_node("complete:2")
    node.wait()
    events = [json.loads(line) for line in (node.evidence / "node.jsonl").read_text().splitlines()]
    names = [event["event"] for event in events]
    assert (names[0], names[1], names[-2], names[-1]) == ("node-started", "cell-started", "cell-ended", "node-ended")
    assert all(event["at"].endswith("Z") for event in events)


def test_the_source_digest_stands_at_the_start_and_at_the_end(stub_node):
    node = stub_node("complete:2")
    node.wait()
    sources = node.result()["sources"]
    assert len(sources["start"]) == 64
    assert sources["start"] == sources["end"]


def test_an_h200_set_without_gpus_is_refused_before_any_cell(tmp_path):
    done = run_node("--evidence", tmp_path / "e", CELL_SET="tp2", RUN_ID="x", CUDA_VISIBLE_DEVICES="")
    if (tmp_path / "e" / "preflight.json").exists() and not json.loads((tmp_path / "e" / "preflight.json").read_text())[
        "problems"
    ]:
        pytest.skip("this machine has the GPUs")
    assert done.returncode == 5
    assert "error: node " in done.stderr
    result = json.loads((tmp_path / "e" / "node.json").read_text())
    assert {cell["status"] for cell in result["cells"]} == {"infrastructure"}
    assert len(result["cells"]) == 7
    assert not (tmp_path / "e" / "cells").exists()


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"RUN_ID": "x"}, "CELL_SET"),
        ({"RUN_ID": "x", "CELL_SET": "nonesuch"}, "smoke"),
        ({"CELL_SET": "smoke"}, "RUN_ID"),
        ({"CELL_SET": "smoke", "RUN_ID": "../x"}, "RUN_ID"),
        ({"CELL_SET": "smoke", "RUN_ID": "x", "REPEAT": "0"}, "REPEAT"),
        ({"CELL_SET": "smoke", "RUN_ID": "x", "SCHEDULE": "quick"}, "SCHEDULE"),
        ({"CELL_SET": "smoke", "RUN_ID": "x", "SCHEDULE": ""}, "SCHEDULE"),
        ({"CELL_SET": "smoke", "RUN_ID": "x", "SCHEDULE": "racing", "REPEAT": "201"}, "a race of 201 rounds"),
        ({"CELL_SET": "smoke", "RUN_ID": "x", "ELLAVOX_GROUPS": "1"}, "groups"),
        ({"CELL_SET": "text", "RUN_ID": "x", "TEXT_GROUPS": ""}, "TEXT_GROUPS"),
        ({"CELL_SET": "ellavox", "RUN_ID": "x", "ELLAVOX_GROUPS": "1"}, "CORPUS"),
    ],
)
def test_a_wrong_selection_is_refused_and_runs_nothing(tmp_path, env, says):
    done = run_node("--evidence", tmp_path / "e", **env)
    assert done.returncode == 2
    assert says in done.stderr
    assert "remedy: " in done.stderr
    assert not (tmp_path / "e").exists()


def test_a_cell_wider_than_the_node_is_refused(tmp_path):
    done = run_node("--evidence", tmp_path / "e", "--procs", "2", CELL_SET="smoke", RUN_ID="x")
    assert done.returncode == 2
    assert "needs 4 slots" in done.stderr


def test_evidence_of_another_run_is_never_added_to(tmp_path):
    (tmp_path / "node.jsonl").write_text("{}\n")
    done = run_node("--evidence", tmp_path, CELL_SET="smoke", RUN_ID="x")
    assert done.returncode == 2
    assert "already holds evidence" in done.stderr
