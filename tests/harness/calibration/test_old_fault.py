"""The fault that the world-wide decision is there for, with real dynamo, real gloo, real ranks.

Rank 0 recompiles at the third layout, one layout later than its peers. Deciding alone, it warms that layout up again
while its peers run the next one: from then on the ranks issue the collectives of different layouts.
"""

from pathlib import Path

import pytest

from harness.trace.reading import read_trace

FAULT = Path(__file__).parent / "per_rank_fault.py"
WORLD = 4

pytestmark = pytest.mark.slow


def layouts(job):
    """For each rank, the layout that it ran in each of its forwards, from its record of collectives."""
    sequences = []
    for rank in range(WORLD):
        records = read_trace(job.directory / "trace", rank).records
        sequences.append([layout for _, layout in sorted({(each.forward, each.layout) for each in records})])
    return sequences


@pytest.fixture(scope="module")
def united(torchrun):
    return torchrun(WORLD, FAULT, "union", "none", "--evidence", "{rows}")


def test_with_the_union_the_job_completes_and_all_ranks_run_the_same_layouts(united):
    assert united.done.returncode == 0, united.done.stdout
    assert united.rows[-1]["outcome"] == "complete"
    first, *others = layouts(united)
    assert len(first) > 8
    assert others == [first] * 3


def test_one_rank_alone_recompiled_so_the_union_is_not_what_each_rank_saw(united):
    parted = [row for row in united.rows if row["row"] == "warmup" and len(set(row["statuses"])) > 1]
    assert [(row["candidate"], row["statuses"]) for row in parted] == [
        ("uniform_depth_2", ["recompile", "none", "none", "none"])
    ]


def test_deciding_alone_the_ranks_run_different_layouts(torchrun):
    job = torchrun(WORLD, FAULT, "alone", "none", "--evidence", "{rows}")
    first, second, *_ = sequences = layouts(job)
    parted = next(index for index in range(len(first)) if len({sequence[index] for sequence in sequences}) > 1)
    assert first[:parted] == second[:parted]
    assert (first[parted], second[parted]) == ("uniform_depth_2", "minimum_effective_span_2")
    # What gloo makes of it differs: an abort or a late stall (1), or an end with values that no layout has (0).
    assert job.done.returncode in {0, 1}


@pytest.mark.parametrize(("guard", "error"), [("digest", "PlanMismatch"), ("checked", "CollectiveMismatch")])
def test_digest_or_checked_mode_makes_it_an_error_that_names_the_rank(torchrun, guard, error):
    job = torchrun(WORLD, FAULT, "alone", guard, "--evidence", "{rows}")
    assert job.done.returncode == 1
    told = [failure["message"] for failure in job.failures if failure["message"]]
    assert told
    assert all(message.startswith(error) and "look at rank 0" in message for message in told)
    end = job.rows[-1]
    assert (end["row"], end["outcome"]) == ("end", "error")
    assert "look at rank 0" in end["reason"]
