import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.trace.watchdog import Beat, Budgets, Heart, Phase, StallWatch, read_beats

BUDGETS = Budgets(load_s=10, compile_s=100, step_s=5)

GIL_IS_HELD = """
import ctypes, sys
from pathlib import Path
from harness.trace.watchdog import Heart, Phase, answer_with_stacks

directory = Path(sys.argv[1])
answer_with_stacks(directory, 0)
Heart(directory, 0).beat(Phase.MEASURE)
print("ready", flush=True)
def a_call_that_keeps_the_gil():
    ctypes.PyDLL(None).sleep(600)  # PyDLL, unlike CDLL, keeps the GIL
a_call_that_keeps_the_gil()
"""


def beat(count, phase=Phase.MEASURE):
    return Beat(pid=1, count=count, phase=phase)


def test_a_rank_that_beats_within_its_budget_is_never_stalled():
    watch = StallWatch(BUDGETS, 0)
    assert all(watch.observe({0: beat(step), 1: beat(step)}, step * 4.9) is None for step in range(50))


def test_the_rank_that_is_silent_longest_is_named():
    watch = StallWatch(BUDGETS, 0)
    watch.observe({0: beat(1), 1: beat(1)}, 0)
    watch.observe({0: beat(2), 1: beat(1)}, 2)
    stall = watch.observe({0: beat(2), 1: beat(1)}, 8)
    assert (stall.rank, stall.silent_s) == (1, 8)
    assert str(stall) == "rank 1 made no progress in phase measure for 8 s"


@pytest.mark.parametrize(("phase", "budget"), [("load", 10), ("warmup", 100), ("measure", 5), ("done", 10)])
def test_each_phase_has_its_own_budget(phase, budget):
    watch = StallWatch(BUDGETS, 0)
    watch.observe({0: beat(1, Phase(phase))}, 0)
    assert watch.observe({0: beat(1, Phase(phase))}, budget) is None
    assert watch.observe({0: beat(1, Phase(phase))}, budget + 0.1) is not None


def test_a_cell_of_which_no_rank_ever_beats_is_stalled_after_the_load_budget():
    watch = StallWatch(BUDGETS, 100)
    assert watch.observe({}, 109) is None
    assert str(watch.observe({}, 111)) == "no rank has started in phase load for 11 s"


@given(st.floats(1, 1e5), st.floats(1, 1e5), st.floats(1, 1e5))
def test_the_watch_always_comes_before_the_process_groups_own_timeout(load_s, compile_s, step_s):
    budgets = Budgets(load_s, compile_s, step_s)
    assert all(budgets.of(phase) + 60 < budgets.process_group_timeout_s for phase in Phase)


def test_a_beat_says_what_the_rank_is_at(tmp_path):
    heart = Heart(tmp_path, 3)
    heart.beat(Phase.LOAD)
    heart.beat(Phase.MEASURE, candidate="depth_one", round_index=2, rounds=8)
    assert read_beats(tmp_path) == {3: Beat(os.getpid(), 2, Phase.MEASURE, "depth_one", 2, 8)}


def test_a_beat_that_is_torn_is_left_out(tmp_path):
    Heart(tmp_path, 0).beat(Phase.LOAD)
    (tmp_path / "rank1.beat").write_bytes(b'{"pid": 1, "cou')
    assert list(read_beats(tmp_path)) == [0]


def test_stacks_come_also_while_the_gil_is_held(tmp_path, eventually):
    process = subprocess.Popen([sys.executable, "-c", GIL_IS_HELD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        # Signals until it answers: the first may come before the call that keeps the GIL.
        stacks = tmp_path / "rank0.txt"

        def answered():
            process.send_signal(signal.SIGUSR1)
            return "a_call_that_keeps_the_gil" in stacks.read_text()

        eventually(answered)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
