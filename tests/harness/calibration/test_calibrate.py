"""One real cell on two gloo ranks, and the rows it leaves."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

import harness
from harness.trace.format import Flag
from harness.trace.reading import Ending, read_trace

ROOT = Path(__file__).parents[3]
CELL = "cal-grpo-tiny|tiny-hybrid|L4|tp2|cp1"
REPEAT = 2


@pytest.fixture(scope="module")
def job(torchrun):
    done = torchrun(
        2, "-m", "harness", "calibrate", "--cell", CELL, "--repeat", REPEAT, "--evidence", "{rows}", "--run-id", "t1"
    )
    assert done.done.returncode == 0, done.done.stdout
    return done


def of_kind(job, kind):
    return [row for row in job.rows if row["row"] == kind]


def test_every_row_holds_the_published_schema(job):
    schema = json.loads((Path(harness.__file__).parent / "schemas" / "evidence-1.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    for row in job.rows:
        validator.validate(row)


def test_the_header_says_what_is_measured_and_the_end_counts_the_rows(job):
    header, *_, end = job.rows
    assert (header["row"], header["cell"], header["run_id"], header["repeat"]) == ("cell", CELL, "t1", REPEAT)
    assert header["shape"] == {"tp": 2, "cp": 1, "ep": 1, "world": 2}
    assert header["device"] == {"kind": "cpu", "name": "cpu"}
    assert header["automatic"]["rule"] == "fewest-tokens"
    assert (end["row"], end["outcome"], end["rows"]) == ("end", "complete", len(job.rows) - 1)


def test_every_candidate_and_automatic_are_measured_once_in_each_round(job):
    header = job.rows[0]
    items = [("candidate", each["label"]) for each in header["candidates"]]
    items.append(("automatic", header["automatic"]["label"]))
    measured = of_kind(job, "measure")
    for round_index in range(REPEAT):
        this_round = [row for row in measured if row["round"] == round_index]
        assert sorted((row["role"], row["candidate"]) for row in this_round) == sorted(items)
        assert [row["position"] for row in this_round] == list(range(len(items)))
    starts = [next(row for row in measured if row["round"] == each)["candidate"] for each in range(REPEAT)]
    assert starts == [items[0][1], items[1][1]]


def test_automatic_is_the_candidate_with_the_fewest_tokens(job):
    header = job.rows[0]
    fewest = min(header["candidates"], key=lambda each: each["features"]["packed_tokens"])
    assert header["automatic"]["label"] == fewest["label"]


def test_each_measured_row_is_usable_and_its_time_is_the_slowest_ranks(job):
    for row in of_kind(job, "measure"):
        assert row["compile"] == ["none", "none"]
        assert row["elapsed_ms"] == max(row["per_rank_ms"]) > 0
        assert row["elapsed_ms"] <= row["forward_ms"] + row["backward_ms"] + 1e-6
        assert row["planning_ms"] > 0
        assert min(row["peak_bytes"]) > 1 << 20
        assert (row["subforwards"], row["admitted"], row["unsplit"], row["layout_live"]) == (1, True, True, True)


def test_the_loss_is_the_same_for_every_layout(job):
    losses = [row["loss"] for row in of_kind(job, "measure")]
    assert max(losses) == pytest.approx(min(losses), rel=1e-4)
    assert min(losses) > 0


def test_every_item_was_warm_before_it_was_measured(job):
    warmups = of_kind(job, "warmup")
    assert warmups[0]["statuses"] != ["none", "none"]
    by_item = {}
    for row in warmups:
        by_item.setdefault((row["role"], row["candidate"]), []).append(row)
    for rows in by_item.values():
        assert 2 <= len(rows) <= 8
        assert rows[-1]["statuses"] == ["none", "none"]
        assert [row["settled"] for row in rows] == [False] * (len(rows) - 1) + [True]


def test_a_run_has_one_exchange_of_results_and_one_of_plans(job):
    trace = read_trace(job.directory / "trace", 0)
    assert trace.ending is Ending.CLOSED
    assert trace.open == ()
    forwards = {each.forward for each in trace.records}
    assert len(forwards) == len(of_kind(job, "warmup")) + len(of_kind(job, "measure"))
    for tag in ("calibrate.result", "plan.digest"):
        assert sum(each.call["tag"] == tag for each in trace.records) == len(forwards)


def test_ranks_recorded_the_same_collectives_from_the_first_one(job):
    kept = ("sequence", "group", "call", "frames", "flags", "layout", "forward", "phase")
    one, other = (
        [{name: getattr(record, name) for name in kept} for record in read_trace(job.directory / "trace", rank).records]
        for rank in (0, 1)
    )
    assert one == other
    assert {record["phase"] for record in one} == {"warmup", "measure"}
    assert {record["flags"] for record in one} == {Flag(0), Flag.BACKWARD}
    assert all(record["frames"] for record in one)


def calibrate(*arguments, **env):
    return subprocess.run(
        [sys.executable, "-m", "harness", "calibrate", "--evidence", "rows.jsonl", *arguments],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("cell", "env", "says"),
    [
        (CELL, {}, "torchrun --standalone --nproc-per-node 2"),
        (CELL, {"RANK": "0", "WORLD_SIZE": "4"}, "there are 4 ranks"),
        ("cal-grpo-tiny", {"RANK": "0", "WORLD_SIZE": "1"}, "not a cell key"),
        ("cal-grpo-tiny|tiny-hybrid|L4|tp1|cp1|ep2", {"RANK": "0", "WORLD_SIZE": "1"}, "EP 2"),
    ],
)
def test_what_can_not_be_calibrated_is_refused_with_a_remedy(cell, env, says):
    done = calibrate("--cell", cell, **env)
    assert done.returncode == 2
    assert says in done.stderr
    assert "remedy: " in done.stderr


A_FULL_DISK = """
import errno, os, sys
from pathlib import Path
from harness.calibrate import Settings, on_rank
from harness.cells import parse_key

def work(settings, heart):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

cell = parse_key("cal-grpo-tiny|tiny-hybrid|L4|tp1|cp1")
sys.exit(on_rank(Settings(cell, 1, Path(sys.argv[1]), "cpu", "x", 0, 1, 0), work))
"""


def test_a_rank_that_can_not_write_says_so_by_its_exit_code(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", A_FULL_DISK, str(tmp_path / "rows.jsonl")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 5
    assert "error: [Errno 28] No space left on device" in done.stderr


def test_every_measured_row_was_admitted_at_a_price_that_its_warm_ups_taught(job):
    for row in of_kind(job, "measure"):
        admission = row["admission"]
        assert (admission["trusted"], admission["on_word"], admission["releases"]) == (True, False, [])
        assert all(
            need <= free for need, free in zip(admission["required_bytes"], admission["available_bytes"], strict=True)
        )
    first = of_kind(job, "warmup")[0]["admission"]
    assert (first["required_bytes"], first["on_word"]) == ([0, 0], True)


def test_the_end_row_tells_the_forward_work_and_how_much_of_it_was_warm_up(job):
    account = job.rows[-1]["admission"]["ledger"]
    assert 0 < account["warm_share"] < 1
    assert (account["releases"], account["overhead"]) == (0, 0)
    slowest_ms = sum(row["forward_ms"] for row in of_kind(job, "measure"))  # of two ranks, the last round included
    measured_ms = account["forward_ms"] - account["warm_ms"]
    assert slowest_ms - 1 < measured_ms < 2 * slowest_ms + 1


def test_each_run_but_the_first_is_voted_on(job):
    trace = read_trace(job.directory / "trace", 0)
    votes = [each.forward for each in trace.records if each.call["tag"] == "admission vote"]
    runs = len(of_kind(job, "warmup")) + len(of_kind(job, "measure"))
    assert set(votes) == set(range(1, runs))
