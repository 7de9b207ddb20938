import json
import os
import signal
import subprocess
import sys
import time

import pytest

from harness.trace.recorder import Recorder, read_trace

KILLED_IN_A_COLLECTIVE = """
import os, signal, sys
from pathlib import Path
from harness.trace.recorder import Recorder

recorder = Recorder(Path(sys.argv[1]), 3)
recorder.context(layout="depth_one", forward=5, phase="measure")
for index in range(100):
    with recorder.record(op="all_to_all", group="cp", ranks=(0, 3), send_splits=[index, 1], tag="heads"):
        pass
with recorder.record(op="all_reduce", group="world", ranks=(0, 1, 2, 3), tag="loss"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def one(recorder, **fields):
    with recorder.record(**({"op": "all_to_all", "group": "cp", "ranks": (0, 1)} | fields)):
        pass


def test_each_group_has_a_sequence_of_its_own(tmp_path):
    recorder = Recorder(tmp_path, 0)
    for group in ("cp", "tp", "cp", "cp"):
        one(recorder, group=group)
    completed = read_trace(tmp_path, 0).completed
    assert [(each["group"], each["seq"]) for each in completed] == [("cp", 0), ("tp", 0), ("cp", 1), ("cp", 2)]


def test_a_record_says_everything_about_its_collective(tmp_path):
    recorder = Recorder(tmp_path, 1)
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
    assert trace.head["rank"] == 1
    assert trace.head["pid"] == os.getpid()
    record = dict(trace.completed[0])
    assert record.pop("caller").startswith("harness/trace/test_recorder.py:")
    assert 0 < record.pop("start") <= record.pop("end") <= time.monotonic_ns()
    assert record == {
        "seq": 0,
        "group": "cp",
        "ranks": [0, 1],
        "op": "all_to_all",
        "dtype": "torch.float32",
        "shape": [7, 2],
        "send_splits": [3, 4],
        "recv_splits": [5, 0],
        "reduce_op": "sum",
        "root": 1,
        "tag": "gdn out",
        "direction": "backward",
        "layout": "full_sharing",
        "forward": 3,
        "phase": "warmup",
    }


def test_a_hostile_tag_stays_a_string(tmp_path):
    recorder = Recorder(tmp_path, 0)
    one(recorder, tag='a"}\n{"')
    assert read_trace(tmp_path, 0).completed[0]["tag"] == 'a"}\n{"'


def test_sigkill_loses_no_completed_record_and_leaves_the_open_one_readable(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED_IN_A_COLLECTIVE, str(tmp_path)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    trace = read_trace(tmp_path, 3)
    assert [each["send_splits"][0] for each in trace.completed] == list(range(100))
    assert trace.open is not None
    assert (trace.open["op"], trace.open["tag"], trace.open["layout"]) == ("all_reduce", "loss", "depth_one")
    assert "end" not in trace.open


def test_a_collective_that_raised_is_not_a_completed_one(tmp_path):
    recorder = Recorder(tmp_path, 0)
    with pytest.raises(ArithmeticError), recorder.record(op="all_reduce", group="tp", ranks=(0, 1)):
        raise ArithmeticError
    trace = read_trace(tmp_path, 0)
    assert trace.completed == ()
    assert trace.open is not None


def test_nothing_is_open_after_the_last_collective_completed(tmp_path):
    one(Recorder(tmp_path, 0))
    assert read_trace(tmp_path, 0).open is None


def test_a_torn_last_line_is_left_out_and_other_damage_is_an_error(tmp_path):
    one(Recorder(tmp_path, 0))
    path = tmp_path / "rank0.jsonl"
    with path.open("ab") as file:
        file.write(b'{"seq": 9')
    assert len(read_trace(tmp_path, 0).completed) == 1
    path.write_bytes(path.read_bytes().replace(b'"seq": 0', b'"seq" 0'))
    with pytest.raises(json.JSONDecodeError):
        read_trace(tmp_path, 0)


def test_split_lists_longer_than_the_slot_still_say_that_a_collective_is_open(tmp_path):
    recorder = Recorder(tmp_path, 0)
    with recorder.record(op="all_to_all", group="cp", ranks=(0, 1), send_splits=[123456] * 2000):
        assert "all_to_all" in read_trace(tmp_path, 0).open["truncated"]
    assert len(read_trace(tmp_path, 0).completed[0]["send_splits"]) == 2000
