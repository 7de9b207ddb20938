"""Jobs that part, on real gloo ranks: what their traces say, whatever became of the job."""

from pathlib import Path

import pytest

from harness.trace.reading import Ending

HERE = Path(__file__).parent
RANK = HERE / "faulty_rank.py"
OLD_FAULT = HERE.parents[1] / "calibration" / "per_rank_fault.py"
WORLD = 4

pytestmark = pytest.mark.slow


def issued(trace, group):
    """What a rank issued in `group`, in order."""
    return [(each.op, each.call["tag"], each.forward) for each in trace.records if each.group == group]


def said(stall):
    return {wait["rank"]: (wait["op"], wait["group"], wait["sequence"]) for wait in stall["waits"]}


def test_without_a_fault_the_traces_agree_and_end_by_themselves(faulty):
    job = faulty(RANK, "healthy")
    assert (job.cell["status"], job.stall) == ("complete", None)
    assert all((trace.ending, trace.open) == (Ending.CLOSED, ()) for trace in job.ranks)
    code, answer = job.diff()
    assert (code, answer["verdict"]) == (0, "agree")


@pytest.mark.parametrize("fault", ["skips-backward", "skips-all-reduce", "opposite-order"])
def test_a_job_that_stalls_is_ended_as_hung_with_a_stack_of_every_rank(faulty, fault):
    job = faulty(RANK, fault)
    assert job.cell["status"] == "hung"
    assert job.stall["ended"]
    assert (job.stall["without_stack"], job.stall["stall"]["phase"]) == ([], "measure")
    assert [f"rank{rank}.txt" for rank in range(WORLD)] == sorted(path.name for path in job.stacks.iterdir())
    assert all("faulty_rank.py" in path.read_text() for path in job.stacks.iterdir())
    assert {trace.ending for trace in job.ranks} == {Ending.OPEN}


def test_a_backward_exchange_that_one_rank_skips_shows_who_waits_where(faulty):
    job = faulty(RANK, "skips-backward")
    last = len(issued(job.ranks[1], "cp"))
    waits = said(job.stall)
    assert {waits[rank] for rank in (0, 2, 3)} == {("all_to_all_single", "cp", last)}
    assert waits[1][:2] == ("all_reduce", "world")
    assert f"rank 1 is in all_reduce {waits[1][2]} of world" in job.cell["reason"]


def test_the_diff_finds_the_skipped_backward_exchange(faulty):
    code, answer = faulty(RANK, "skips-backward").diff()
    divergence = answer["divergence"]
    assert (code, answer["verdict"], divergence["kind"], divergence["odd"]) == (1, "diverge", "missing-rank", [1])
    records = divergence["records"]
    assert {(records[rank]["op"], records[rank]["direction"]) for rank in ("0", "2", "3")} == {
        ("all_to_all_single", "backward")
    }
    assert (records["1"]["tag"], records["1"]["forward"]) == ("gradients.whole", 2)
    assert all(any("faulty_rank.py" in caller for caller in each["callers"]) for each in records.values())


def test_the_diff_finds_the_all_reduce_that_one_rank_skips(faulty):
    job = faulty(RANK, "skips-all-reduce")
    assert len(issued(job.ranks[3], "world")) == len(issued(job.ranks[0], "world")) - 1
    code, answer = job.diff()
    divergence = answer["divergence"]
    assert (code, answer["verdict"], divergence["kind"], divergence["odd"]) == (1, "diverge", "missing-rank", [3])
    tags = {rank: each["tag"] for rank, each in divergence["records"].items()}
    assert tags == {"0": "gradients.whole", "1": "gradients.whole", "2": "gradients.whole", "3": "statistics.cp"}
    assert {each["forward"] for each in divergence["records"].values()} == {1}


def test_the_diff_finds_two_groups_used_in_opposite_order(faulty):
    code, answer = faulty(RANK, "opposite-order").diff()
    divergence = answer["divergence"]
    assert (code, answer["verdict"], divergence["kind"], divergence["odd"]) == (1, "diverge", "order", [0])
    tags = {rank: each["tag"] for rank, each in divergence["records"].items()}
    assert tags.pop("0") == "statistics.world"
    assert set(tags.values()) == {"statistics.cp"}


@pytest.fixture(scope="module")
def old_fault(faulty):
    return faulty(OLD_FAULT, "alone", "none")


def test_the_hang_of_the_harness_ends_in_time_however_it_ends(old_fault):
    """Gloo may finish with garbage (complete, or an error that sees it), abort (failed) or stall (hung)."""
    assert old_fault.cell["status"] in {"complete", "failed", "hung"}
    assert (old_fault.cell["status"] == "hung") == (old_fault.stall is not None)


def test_its_traces_are_there_and_the_ranks_part_in_them(old_fault):
    layouts = [
        [layout for _, layout in sorted({(each.forward, each.layout) for each in trace.records if each.layout})]
        for trace in old_fault.ranks
    ]
    parted = next(index for index, names in enumerate(zip(*layouts, strict=False)) if len(set(names)) > 1)
    assert layouts[0][parted] == "uniform_depth_2"
    assert {names[parted] for names in layouts[1:]} == {"minimum_effective_span_2"}


def test_the_diff_names_forward_layouts_and_the_first_all_to_all_that_parts(old_fault):
    code, answer = old_fault.diff()
    assert (code, answer["verdict"]) == (1, "diverge")
    records = answer["divergence"]["records"]
    assert {each["op"] for each in records.values()} == {"all_to_all_single"}
    (forward,) = {each["forward"] for each in records.values()}
    assert answer["divergence"]["odd"] == [0]
    assert records["0"]["layout"] == "uniform_depth_2"
    assert {records[str(rank)]["layout"] for rank in (1, 2, 3)} == {"minimum_effective_span_2"}
    assert answer["layouts_part_at"]["forward"] == forward
