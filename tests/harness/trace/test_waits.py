import pytest

from harness.trace.format import Flag, TraceWriter, trace_path
from harness.trace.waits import waits


@pytest.fixture
def rank(tmp_path):
    """Rank -> its writer, with two collectives of `cp` that completed."""

    def start(number):
        writer = TraceWriter(tmp_path, number, world_size=4)
        for sequence in range(2):
            writer.complete(begun(writer, sequence), 1)
        return writer

    return start


def begun(writer, sequence, op="all_reduce", flags=0):
    stack = writer.stack([("train.py", 7, "step")])
    call = writer.signature(op=op, stack=stack)
    return writer.begin(writer.group("cp", (0, 1)), call, sequence=sequence, start_ns=10**9, flags=flags)


def test_a_rank_in_a_collective_says_which_where_and_since_when(rank, tmp_path):
    begun(rank(0), 2)
    (wait,) = waits(tmp_path, 6 * 10**9)
    assert (wait.rank, wait.op, wait.group, wait.ranks, wait.sequence, wait.since_s) == (
        0, "all_reduce", "cp", (0, 1), 2, 5.0,
    )  # fmt: skip
    assert str(wait) == "rank 0 is in all_reduce 2 of cp [0, 1] for 5 s, called at train.py:7 step"


def test_a_rank_in_none_says_which_was_its_last(rank, tmp_path):
    rank(3)
    assert str(waits(tmp_path, 0)[0]) == "rank 3 is in no collective, after all_reduce 1 of cp"


def test_what_a_rank_waits_for_comes_before_what_it_has_only_issued(rank, tmp_path):
    writer = rank(0)
    writer.returned(begun(writer, 2, "broadcast", Flag.ASYNC))
    waited = begun(writer, 3, "all_gather", Flag.ASYNC)
    writer.waiting(waited, 2 * 10**9)
    (wait,) = waits(tmp_path, 6 * 10**9)
    assert (wait.op, wait.stage, wait.since_s) == ("all_gather", "waiting", 3.0)


def test_a_collective_that_raised_keeps_nobody(rank, tmp_path):
    writer = rank(0)
    writer.complete(begun(writer, 2), 5, raised=True)
    assert waits(tmp_path, 0)[0].op is None


def test_a_damaged_trace_leaves_the_others(rank, tmp_path):
    rank(0), rank(10), rank(2)
    trace_path(tmp_path, 2).write_bytes(b"no trace")
    assert [wait.rank for wait in waits(tmp_path, 0)] == [0, 10]
