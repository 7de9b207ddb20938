import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.trace.watchdog import STACK_SIGNAL, Beat, Budgets, Heart, Phase, StallWatch, read_beats

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


def steps(watch, seconds, count, ranks=(0, 1)):
    """Beats every `seconds`, `count` intervals of them; the time of the last."""
    for index in range(count + 1):
        assert watch.observe(dict.fromkeys(ranks, beat(index)), index * seconds) is None
    return count * seconds


def test_a_budget_is_learnt_from_the_longest_measured_interval():
    watch = StallWatch(Budgets(step_s=300), 0, floors=Budgets(step_s=1))
    last = steps(watch, 2, 4)
    assert watch.budget_s(Phase.MEASURE) == 20
    assert watch.observe({0: beat(4), 1: beat(4)}, last + 20) is None
    assert watch.observe({0: beat(4), 1: beat(4)}, last + 20.1) is not None


def test_few_measurements_teach_nothing():
    watch = StallWatch(Budgets(step_s=300), 0, floors=Budgets(step_s=1))
    steps(watch, 2, 1)
    assert watch.budget_s(Phase.MEASURE) == 300


@given(st.floats(0.001, 1e4), st.floats(1, 1e3), st.floats(1e3, 1e4))
def test_a_learnt_budget_is_never_below_its_floor_nor_above_what_was_given(interval_s, floor_s, given_s):
    watch = StallWatch(Budgets(step_s=given_s), 0, floors=Budgets(step_s=floor_s))
    watch.observe({0: beat(0)}, 0)
    for index in range(1, 5):
        watch.observe({0: beat(index)}, index * interval_s)
    assert floor_s <= watch.budget_s(Phase.MEASURE) <= given_s


def test_phases_learn_apart():
    watch = StallWatch(Budgets(), 0, floors=Budgets(1, 1, 1))
    steps(watch, 2, 4)
    assert watch.budget_s(Phase.WARMUP) == Budgets().compile_s


def compiling(count):
    return Beat(pid=1, count=count, phase=Phase.MEASURE, compiling=True)


def test_a_slow_compile_is_not_a_hang_neither_of_its_rank_nor_of_the_peers_that_wait_for_it():
    watch = StallWatch(BUDGETS, 0)
    for now in range(0, 100, 3):
        assert watch.observe({0: compiling(1), 1: beat(1)}, now) is None
    # It has ended: from now on everybody has a step's time again, the peers too.
    assert watch.observe({0: beat(2), 1: beat(1)}, 100) is None
    assert watch.observe({0: beat(2), 1: beat(1)}, 104) is None
    assert watch.observe({0: beat(2), 1: beat(1)}, 105.1) is not None


def test_a_compile_that_never_ends_is_a_hang():
    watch = StallWatch(BUDGETS, 0)
    for now in range(0, 100, 3):
        watch.observe({0: compiling(1), 1: beat(1)}, now)
    stall = watch.observe({0: compiling(1), 1: beat(1)}, 100.1)
    assert (stall.rank, stall.phase) == (0, Phase.WARMUP)


def test_a_heart_says_when_a_compilation_begins_and_ends_in_whatever_it_is_at(tmp_path):
    heart = Heart(tmp_path, 0)
    heart.beat(Phase.MEASURE, candidate="depth_one")
    heart.compiling(True)
    assert read_beats(tmp_path)[0] == Beat(os.getpid(), 2, Phase.MEASURE, "depth_one", compiling=True)
    heart.compiling(False)
    assert read_beats(tmp_path)[0] == Beat(os.getpid(), 3, Phase.MEASURE, "depth_one")


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
            process.send_signal(STACK_SIGNAL)
            return "a_call_that_keeps_the_gil" in stacks.read_text()

        eventually(answered)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
