import os
import signal
import struct
import subprocess
import sys
import threading
import zlib

import pytest

from harness.trace.format import SLOT_BYTES, Flag, TraceWriter, trace_path
from harness.trace.reading import DamagedTraceError, Ending, Stage, count_records, read_trace, used_slots

CHUNK_SLOTS = 1024  # 64 KiB: a whole number of pages on every machine


@pytest.fixture
def writer(tmp_path):
    return TraceWriter(tmp_path, 1, world_size=2, facts={"host": "node"}, chunk_slots=CHUNK_SLOTS)


def filled(writer, records):
    group, call = writer.group("cp", (0, 1)), writer.signature(op="all_reduce", reduce_op="sum")
    for sequence in range(records):
        writer.complete(writer.begin(group, call, sequence=sequence, start_ns=sequence), sequence + 1)


def test_a_record_comes_back_with_everything_that_it_names(writer, tmp_path):
    stack = writer.stack([("job.py", 7, "step"), ("job.py", 90, "main")])
    facts = {
        "op": "all_to_all_single",
        "input_sizes": [[7, 2]],
        "input_dtypes": ["float32"],
        "output_sizes": [[5, 2]],
        "output_dtypes": ["float32"],
        "send_splits": [3, 4],
        "recv_splits": [5, 0],
        "reduce_op": None,
        "root": None,
        "peer": None,
        "tag": "gdn out",
        "stack": stack,
    }
    slot = writer.begin(
        writer.group("cp", (3, 1), backend="gloo"),
        writer.signature(**facts),
        sequence=4,
        start_ns=10_000,
        flags=Flag.ASYNC | Flag.BACKWARD,
        context=writer.context("depth_one", "step"),
        forward=3,
        batch=2,
    )
    writer.waiting(slot, 5_000)
    writer.complete(slot, 99_000)
    writer.close()
    trace = read_trace(tmp_path, 1)
    (record,) = trace.records
    assert trace.head == {"schema": "harness.trace/2", "rank": 1, "world_size": 2, "host": "node"}
    assert (record.group, record.ranks, record.sequence, record.batch) == ("cp", (3, 1), 4, 2)
    assert record.call == facts
    assert record.frames == (("job.py", 7, "step"), ("job.py", 90, "main"))
    assert (record.layout, record.phase, record.forward) == ("depth_one", "step", 3)
    assert record.flags == Flag.ASYNC | Flag.BACKWARD
    assert (record.start_ns, record.wait_ns, record.end_ns) == (10_000, 15_000, 99_000)
    assert record.is_done


@pytest.mark.parametrize(
    ("steps", "stage"),
    [
        ((), Stage.CALLED),
        (("returned",), Stage.RETURNED),
        (("returned", "waiting"), Stage.WAITING),
        (("returned", "waiting", "complete"), Stage.COMPLETED),
        (("raise",), Stage.RAISED),
    ],
)
def test_how_far_a_collective_came_is_to_be_read(writer, tmp_path, steps, stage):
    slot = writer.begin(writer.group("w", (0, 1)), writer.signature(op="barrier"), sequence=0, start_ns=0)
    for step in steps:
        match step:
            case "returned":
                writer.returned(slot)
            case "waiting":
                writer.waiting(slot, 0)
            case "complete":
                writer.complete(slot, 9)
            case "raise":
                writer.complete(slot, 9, raised=True)
    assert read_trace(tmp_path, 1).records[0].stage is stage


def test_what_is_equal_is_defined_once(writer, tmp_path):
    assert writer.group("cp", (0, 1)) == writer.group("cp", (0, 1)) != writer.group("cp", (0, 2))
    size = trace_path(tmp_path, 1).read_bytes().rstrip(b"\0")
    writer.group("cp", (0, 1))
    assert trace_path(tmp_path, 1).read_bytes().rstrip(b"\0") == size


@pytest.mark.parametrize("records", range(CHUNK_SLOTS - 40, CHUNK_SLOTS + 2))
def test_every_place_of_a_chunks_border_is_written_and_read(tmp_path, records):
    writer = TraceWriter(tmp_path, 0, world_size=1, chunk_slots=CHUNK_SLOTS)
    filled(writer, records)
    living = read_trace(tmp_path, 0)
    assert (len(living.records), living.ending) == (records, Ending.OPEN)
    writer.close()
    ended = read_trace(tmp_path, 0)
    assert (ended.records, ended.ending) == (living.records, Ending.CLOSED)


def test_a_record_may_end_long_after_later_ones_began_in_other_chunks(writer, tmp_path):
    slot = writer.begin(writer.group("w", (0, 1)), writer.signature(op="broadcast"), sequence=0, start_ns=0)
    filled(writer, 3 * CHUNK_SLOTS)
    writer.complete(slot, 77)
    assert read_trace(tmp_path, 1).records[0].end_ns == 77


def test_records_of_many_threads_do_not_mix(writer, tmp_path):
    group, call = writer.group("w", (0, 1)), writer.signature(op="barrier")

    def work(name):
        for number in range(500):
            writer.context(f"{name} {number}", None)
            writer.complete(writer.begin(group, call, sequence=0, start_ns=number, channel=name), number)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records = read_trace(tmp_path, 1).records
    for name in range(4):
        assert [record.start_ns for record in records if record.channel == name] == list(range(500))


KILLED = """
import os, signal, sys
from pathlib import Path
from harness.trace.format import TraceWriter
writer = TraceWriter(Path(sys.argv[1]), 1, world_size=2)
group, call = writer.group("w", (0, 1)), writer.signature(op="barrier")
for number in range(100):
    writer.complete(writer.begin(group, call, sequence=number, start_ns=number), number + 1)
writer.begin(group, call, sequence=100, start_ns=100)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_sigkill_takes_no_record(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    trace = read_trace(tmp_path, 1)
    assert [record.sequence for record in trace.records] == list(range(101))
    assert [record.sequence for record in trace.open] == [100]
    assert trace.ending is Ending.OPEN


def test_a_forked_child_that_closes_its_copy_ends_nothing(writer, tmp_path):
    pid = os.fork()
    if pid == 0:
        writer.close()
        os._exit(0)
    os.waitpid(pid, 0)
    filled(writer, 1)
    trace = read_trace(tmp_path, 1)
    assert (len(trace.records), trace.ending) == (1, Ending.OPEN)


def test_a_cut_anywhere_is_seen_and_never_taken_for_an_end(writer, tmp_path):
    filled(writer, 30)
    path = trace_path(tmp_path, 1)
    living = path.read_bytes()
    writer.close()
    for data in (path.read_bytes(), living):
        for size in range(SLOT_BYTES, min(60 * SLOT_BYTES, len(data)), 7):
            path.write_bytes(data[:size])
            try:
                trace = read_trace(tmp_path, 1)
            except DamagedTraceError as error:
                assert f"{path}: byte" in str(error)  # noqa: PT017 - either answer is right
            else:
                assert trace.ending is Ending.CUT
                assert [record.sequence for record in trace.records] == list(range(len(trace.records)))


def test_the_slot_that_was_being_written_when_the_process_died_never_was_a_record(writer, tmp_path):
    filled(writer, 3)
    path = trace_path(tmp_path, 1)
    data = path.read_bytes()
    last = (len(data.rstrip(b"\0")) - 1) // SLOT_BYTES * SLOT_BYTES
    path.write_bytes(data[: last + 4] + b"\x01\x00\x07" + bytes(SLOT_BYTES - 7) + data[last + SLOT_BYTES :])
    trace = read_trace(tmp_path, 1)
    assert (len(trace.records), trace.ending) == (2, Ending.OPEN)


def test_every_changed_byte_is_named_with_its_place_or_changes_nothing(writer, tmp_path):
    filled(writer, 3)
    writer.close()
    path = trace_path(tmp_path, 1)
    data = path.read_bytes()
    whole = read_trace(tmp_path, 1)
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :])
        try:
            trace = read_trace(tmp_path, 1)
        except DamagedTraceError as error:
            assert at - SLOT_BYTES < error.offset <= at or at >= len(data) - SLOT_BYTES  # noqa: PT017
        else:
            assert trace.records == whole.records, at
            assert trace.ending is not Ending.CLOSED, at


def test_slots_that_changed_their_places_are_damage(writer, tmp_path):
    filled(writer, 3)
    path = trace_path(tmp_path, 1)
    data = path.read_bytes()
    end = -(-len(data.rstrip(b"\0")) // SLOT_BYTES) * SLOT_BYTES
    one, two = data[end - 128 : end - 64], data[end - 64 : end]
    path.write_bytes(data[: end - 128] + two + one + data[end:])
    with pytest.raises(DamagedTraceError, match=f"byte {end - 128}:"):
        read_trace(tmp_path, 1)


def test_the_checksums_are_the_ones_that_the_page_names(writer, tmp_path):
    filled(writer, 2)
    writer.close()
    data = trace_path(tmp_path, 1).read_bytes()
    for at in range(0, len(data), SLOT_BYTES):
        checked = data[at + 4 : at + (40 if data[at + 4] == 1 else 64)]
        assert struct.unpack_from("<I4xI", data, at) == (zlib.crc32(checked), at // SLOT_BYTES)


@pytest.mark.parametrize("records", [0, 1, 5, CHUNK_SLOTS, 2 * CHUNK_SLOTS + 3])
def test_how_far_a_living_trace_has_come_is_found_without_reading_it(writer, tmp_path, records):
    path = trace_path(tmp_path, 1)
    filled(writer, 0)
    defined = used_slots(path)
    filled(writer, records)
    assert used_slots(path) == defined + records
    assert count_records(path) == records
    writer.close()
    assert used_slots(path) == defined + records + 1 == path.stat().st_size // SLOT_BYTES


def test_of_a_long_trace_the_open_records_and_the_last_one_are_read_alone(writer, tmp_path):
    group, call = writer.group("cp", (0, 1)), writer.signature(op="all_reduce", reduce_op="sum")
    filled(writer, 50)
    writer.begin(group, call, sequence=50, start_ns=50)
    assert [each.sequence for each in read_trace(tmp_path, 1, only_open=True).records] == [50]
    filled(writer, 10)
    assert [each.sequence for each in read_trace(tmp_path, 1, only_open=True).records] == [50, 9]


def test_a_writer_that_gives_up_says_so_and_takes_whatever_comes_later(writer, tmp_path):
    filled(writer, 3)
    group, call = writer.group("cp", (0, 1)), writer.signature(op="barrier")
    begun = writer.begin(group, call, sequence=3, start_ns=3)
    writer.give_up("No space left on device")
    size = trace_path(tmp_path, 1).stat().st_size
    writer.complete(begun, 9)
    for sequence in range(CHUNK_SLOTS // 2):
        writer.complete(writer.begin(group, call, sequence=sequence, start_ns=5), 6)
    writer.give_up("again")
    writer.close()
    trace = read_trace(tmp_path, 1)
    assert (trace.ending, len(trace.records), trace.open) == (Ending.CUT, 4, ())
    assert trace_path(tmp_path, 1).stat().st_size == size
    assert b"No space left on device" in trace_path(tmp_path, 1).read_bytes()[-SLOT_BYTES:]


def test_a_writer_whose_file_can_not_grow_still_has_the_slot_to_say_so(tmp_path):
    writer = TraceWriter(tmp_path, 0, world_size=1, chunk_slots=CHUNK_SLOTS)
    os.close(writer._file)
    writer._file = os.open(trace_path(tmp_path, 0), os.O_RDONLY)  # a file that takes no more, as one on a full disk
    with pytest.raises(OSError) as caught:
        filled(writer, CHUNK_SLOTS)
    os.close(writer._file)
    writer._file = os.open(trace_path(tmp_path, 0), os.O_RDWR)
    writer.give_up(str(caught.value.strerror))
    trace = read_trace(tmp_path, 0)
    assert trace.ending is Ending.CUT
    assert trace_path(tmp_path, 0).stat().st_size == CHUNK_SLOTS * SLOT_BYTES
