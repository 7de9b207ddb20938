import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.outcome import CellStatus, Ended, classify, exit_code
from harness.placement import place

COMPLETE = {"row": "end", "outcome": "complete", "reason": ""}
EXIT_CODES = {
    CellStatus.COMPLETE: 0,
    CellStatus.FAILED: 1,
    CellStatus.HUNG: 3,
    CellStatus.UNSETTLED: 4,
    CellStatus.INFRASTRUCTURE: 5,
}


def death(rank, *, code=None, number=None, by_torchrun=False, at=0, message=""):
    return {
        "rank": rank,
        "exit_code": code,
        "signal": number,
        "by_torchrun": by_torchrun,
        "at": at,
        "message": message,
    }


def failures(*deaths, launcher_signal=None):
    return {"launcher_signal": launcher_signal, "failures": list(deaths)}


@pytest.mark.parametrize(
    ("ended", "status", "reason"),
    [
        (Ended(0, None, COMPLETE), CellStatus.COMPLETE, ""),
        (
            Ended(0, None, None),
            CellStatus.FAILED,
            "torchrun exited with 0 and the cell has no end row",
        ),
        (
            Ended(1, failures(death(2, code=1, message="ValueError: no\nmore")), None),
            CellStatus.FAILED,
            "rank 2 exited with 1: ValueError: no",
        ),
        (
            Ended(1, failures(death(0, code=1, at=9), death(3, code=7, at=8)), None),
            CellStatus.FAILED,
            "rank 3 exited with 7",
        ),
        (
            Ended(1, failures(death(1, number=signal.SIGSEGV)), None),
            CellStatus.FAILED,
            "rank 1 died of SIGSEGV",
        ),
        (
            Ended(1, failures(death(1, number=signal.SIGABRT)), None),
            CellStatus.FAILED,
            "rank 1 died of SIGABRT",
        ),
        (
            Ended(1, failures(death(0, code=1), death(2, number=signal.SIGKILL)), None),
            CellStatus.INFRASTRUCTURE,
            "rank 2 was killed by SIGKILL from outside",
        ),
        (
            Ended(1, failures(death(1, number=signal.SIGTERM)), None),
            CellStatus.INFRASTRUCTURE,
            "rank 1 was killed by SIGTERM from outside",
        ),
        (
            Ended(
                1,
                failures(death(0, number=signal.SIGTERM, by_torchrun=True), death(1, code=1)),
                None,
            ),
            CellStatus.FAILED,
            "rank 1 exited with 1",
        ),
        (
            Ended(
                1,
                failures(death(0, number=signal.SIGKILL, by_torchrun=True), death(1, code=1)),
                None,
            ),
            CellStatus.FAILED,
            "rank 1 exited with 1",
        ),
        (
            Ended(-9, None, None),
            CellStatus.INFRASTRUCTURE,
            "torchrun was killed by SIGKILL",
        ),
        (
            Ended(1, failures(launcher_signal=15), None),
            CellStatus.INFRASTRUCTURE,
            "torchrun was ended by SIGTERM",
        ),
        (
            Ended(1, None, None),
            CellStatus.INFRASTRUCTURE,
            "torchrun itself failed with exit code 1",
        ),
        (
            Ended(1, failures(death(0, code=4)), {"outcome": "unsettled", "reason": "still compiling"}),
            CellStatus.UNSETTLED,
            "still compiling",
        ),
        (
            Ended(1, failures(death(0, code=4)), {"outcome": "limit", "reason": "eager"}),
            CellStatus.UNSETTLED,
            "eager",
        ),
        (Ended(-9, None, COMPLETE, stall="rank 1 silent"), CellStatus.HUNG, "rank 1 silent"),
        (Ended(-15, None, None, stopped="SIGTERM received"), CellStatus.CANCELLED, "SIGTERM received"),
    ],
)
def test_who_died_and_how_decides_the_status(ended, status, reason):
    outcome = classify(ended)
    assert (outcome.status, outcome.reason) == (status, reason)


def test_a_cell_that_says_complete_but_whose_rank_died_is_not_complete():
    assert classify(Ended(1, failures(death(1, code=1)), COMPLETE)).status is CellStatus.FAILED


@given(st.lists(st.sampled_from(list(EXIT_CODES)), max_size=6))
def test_the_exit_code_is_zero_only_where_every_cell_is_complete(statuses):
    code = exit_code(statuses)
    assert (code == 0) == (set(statuses) <= {CellStatus.COMPLETE})
    assert code in {EXIT_CODES[status] for status in statuses} | {0}


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        (["unsettled", "failed"], 1),
        (["failed", "hung"], 3),
        (["hung", "infrastructure", "complete"], 5),
        (["complete", "unsettled"], 4),
    ],
)
def test_the_worst_cell_decides_the_exit_code(statuses, code):
    assert exit_code(CellStatus(status) for status in statuses) == code
    assert exit_code([], stopped=True) == 130


@given(st.lists(st.integers(1, 4), max_size=12), st.sets(st.integers(0, 3)))
def test_cells_that_run_together_never_share_a_slot_and_none_overtakes(waiting, free):
    placed = place(waiting, sorted(free))
    taken = [slot for each in placed for slot in each.slots]
    assert len(taken) == len(set(taken))
    assert set(taken) <= free
    assert [each.index for each in placed] == list(range(len(placed)))
    assert [len(each.slots) for each in placed] == waiting[: len(placed)]
    if len(placed) < len(waiting):
        assert waiting[len(placed)] > len(free) - len(taken)
