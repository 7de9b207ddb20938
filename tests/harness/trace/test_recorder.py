import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from harness.trace.format import Flag
from harness.trace.reading import Ending, Stage, read_trace
from harness.trace.recorder import Recorder

KILLED_IN_A_COLLECTIVE = """
import os, signal, sys
from pathlib import Path
from harness.trace.recorder import Recorder

recorder = Recorder(Path(sys.argv[1]), 3, 4)
recorder.context(layout="depth_one", forward=5, phase="measure")
for index in range(100):
    with recorder.record(op="all_to_all_single", group="cp", ranks=(0, 3), send_splits=[index, 1], tag="heads"):
        pass
with recorder.record(op="all_reduce", group="world", ranks=(0, 1, 2, 3), tag="loss"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def one(recorder, **fields):
    with recorder.record(**({"op": "all_to_all_single", "group": "cp", "ranks": (0, 1)} | fields)):
        pass


@pytest.fixture
def recorder(tmp_path):
    return Recorder(tmp_path, 0, 2)


def records(tmp_path):
    return read_trace(tmp_path, 0).records


def test_each_group_has_a_sequence_of_its_own(recorder, tmp_path):
    for group in ("cp", "tp", "cp", "cp"):
        one(recorder, group=group)
    assert [(each.group, each.sequence) for each in records(tmp_path)] == [("cp", 0), ("tp", 0), ("cp", 1), ("cp", 2)]


def test_groups_of_one_name_and_other_ranks_are_two_groups(recorder, tmp_path):
    for ranks in ((0, 1), (0, 2), (0, 1)):
        one(recorder, ranks=ranks)
    assert [(each.ranks, each.sequence) for each in records(tmp_path)] == [((0, 1), 0), ((0, 2), 0), ((0, 1), 1)]


def test_a_record_says_everything_about_its_collective(tmp_path):
    recorder = Recorder(tmp_path, 1, 2, facts={"torch": "2.13"})
    recorder.context(layout="full_sharing", forward=3, phase="warmup")
    one(
        recorder,
        dtype="torch.float32",
        shape=(7, 2),
        send_splits=[3, 4],
        recv_splits=(5, 0),
        reduce_op="sum",
        root=1,
        tag="gdn out",
        direction="backward",
    )
    trace = read_trace(tmp_path, 1)
    assert {"rank": 1, "world_size": 2, "pid": os.getpid(), "torch": "2.13"}.items() <= trace.head.items()
    (record,) = trace.records
    assert (record.frames[0][0], record.frames[0][2]) == ("harness/trace/test_recorder.py", "one")
    assert 0 < record.start_ns <= record.end_ns <= time.monotonic_ns()
    assert (record.layout, record.forward, record.phase, record.flags) == ("full_sharing", 3, "warmup", Flag.BACKWARD)
    assert record.call | {"stack": None} == {
        "op": "all_to_all_single",
        "input_sizes": [[7, 2]],
        "input_dtypes": ["float32"],
        "output_sizes": [[5, 2]],
        "output_dtypes": ["float32"],
        "send_splits": [3, 4],
        "recv_splits": [5, 0],
        "reduce_op": "sum",
        "root": 1,
        "peer": None,
        "tag": "gdn out",
        "stack": None,
    }


def test_the_callers_are_user_code_innermost_first_each_line_for_itself(recorder, tmp_path):
    one(recorder)
    one(recorder)
    first, second = records(tmp_path)
    assert [function for _, _, function in first.frames[:2]] == [
        "one",
        "test_the_callers_are_user_code_innermost_first_each_line_for_itself",
    ]
    line = test_the_callers_are_user_code_innermost_first_each_line_for_itself.__code__.co_firstlineno
    assert (first.frames[1][1], second.frames[1][1]) == (line + 1, line + 2)


def test_the_frames_of_torch_are_passed_over(recorder, tmp_path):
    lines = "def call(recorder):\n with recorder.record(op='barrier', group='w', ranks=(0, 1)): pass"
    library = {}
    exec(compile(lines, str(Path(torch.__file__).parent / "distributed" / "engine.py"), "exec"), library)
    library["call"](recorder)
    assert records(tmp_path)[0].frames[0][2] == "test_the_frames_of_torch_are_passed_over"


def test_sigkill_loses_no_completed_record_and_leaves_the_open_one_readable(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", KILLED_IN_A_COLLECTIVE, str(tmp_path)],
        cwd=Path(__file__).parents[3],
        check=False,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL
    trace = read_trace(tmp_path, 3)
    assert trace.ending is Ending.OPEN
    assert [each.call["send_splits"][0] for each in trace.records if each.is_done] == list(range(100))
    (hanging,) = trace.open
    assert (hanging.op, hanging.call["tag"], hanging.layout) == ("all_reduce", "loss", "depth_one")
    assert (hanging.stage, hanging.end_ns) == (Stage.CALLED, None)


def test_a_collective_that_raised_is_not_a_completed_one(recorder, tmp_path):
    with pytest.raises(ArithmeticError), recorder.record(op="all_reduce", group="tp", ranks=(0, 1)):
        raise ArithmeticError
    (record,) = read_trace(tmp_path, 0).open
    assert record.stage is Stage.RAISED


def test_nothing_is_open_after_the_last_collective_completed(recorder, tmp_path):
    one(recorder)
    recorder.close()
    trace = read_trace(tmp_path, 0)
    assert (trace.open, trace.ending) == ((), Ending.CLOSED)


def test_a_hostile_tag_stays_a_string(recorder, tmp_path):
    one(recorder, tag='a"}\n\0{"')
    assert records(tmp_path)[0].call["tag"] == 'a"}\n\0{"'


def test_split_lists_of_any_length_are_kept(recorder, tmp_path):
    one(recorder, send_splits=[123456] * 20_000)
    assert len(records(tmp_path)[0].call["send_splits"]) == 20_000


def test_a_steady_state_defines_nothing_anew(recorder, tmp_path):
    used = []
    for _ in range(3):
        for group in ("cp", "tp"):
            one(recorder, group=group, dtype="float32", shape=(3, 4), send_splits=[1, 2])
        used.append(len((tmp_path / "rank0.trace").read_bytes().rstrip(b"\0")) // 64)
    assert used[1] - used[0] == used[2] - used[1] == 2
