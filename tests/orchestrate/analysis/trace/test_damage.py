"""Cut and damaged traces: a place named, a right part of the answer, never a wrong one; and nobody's code is run."""

import contextlib
import json
import os
import pickle
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrate.analysis.trace.answer import Decision, make_answer
from orchestrate.analysis.trace.compare import compare
from orchestrate.analysis.trace.flight_recorder import read_dump
from orchestrate.analysis.trace.folder import open_job
from orchestrate.analysis.trace.reconcile import Kind
from orchestrate.analysis.trace.strict_pickle import PickleError, load_flat
from orchestrate.errors import OrchestrateError

FUZZ = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture(params=["closed", "open"])
def ending(request):
    return request.param == "closed"


@pytest.fixture(params=["agree", "diverge"])
def damaged_job(request, writers, step, answer, ending):
    """A job, its true answer, and a way to replace the bytes of one rank's trace."""
    steps = {
        rank: [step(size=(4 + i % 5,), forward=i // 4, layout=f"l{i // 4}") for i in range(40)] for rank in range(3)
    }
    if request.param == "diverge":
        steps[1][25] = steps[1][25].but(size=(1,))
    folder = writers(3).own(steps, closed=ending)
    truth = answer(folder)
    assert truth.decision.value == request.param
    path = folder / "rank1.trace"
    whole = path.read_bytes()
    used = len(whole.rstrip(b"\0")) if not ending else len(whole)

    def ask(data):
        path.write_bytes(data)
        try:
            return make_answer(compare(open_job(folder)))
        finally:
            path.write_bytes(whole)

    return truth, whole, used, ask


def never_wrong(truth, found, whole_file_is_the_same):
    if found.decision is Decision.DIVERGE:
        assert truth.decision is Decision.DIVERGE, found.summary
        assert found.first.kind is truth.first.kind
        assert found.first.key == truth.first.key
    elif found.decision is Decision.AGREE:
        assert truth.decision is Decision.AGREE
        assert whole_file_is_the_same
    else:
        place = next(place for place in found.undecided if place.offset is not None)
        assert place.path.name == "rank1.trace"
        assert f"rank1.trace, byte {place.offset}" in str(place)


def test_any_truncation_is_noticed(damaged_job):
    truth, whole, used, ask = damaged_job

    @FUZZ
    @given(st.integers(0, used + 200))
    def cut(length):
        if length >= len(whole):
            return
        never_wrong(truth, ask(whole[:length]), whole_file_is_the_same=False)

    cut()


def test_any_changed_byte_is_noticed(damaged_job):
    truth, whole, used, ask = damaged_job

    @FUZZ
    @given(st.integers(0, used - 1), st.integers(1, 255))
    def change(place, by):
        data = bytearray(whole)
        data[place] ^= by
        found = ask(bytes(data))
        # The 24 bytes of a slot that the header and an end leave empty are covered by their checksum too; times of a
        # record have their own check.
        never_wrong(truth, found, whole_file_is_the_same=False)

    change()


def test_any_block_of_zeros_random_bytes_or_foreign_slots_is_noticed(damaged_job):
    truth, whole, used, ask = damaged_job

    @FUZZ
    @given(st.integers(0, used - 1), st.integers(1, 300), st.sampled_from(["zero", "random", "copy"]), st.randoms())
    def smear(place, length, how, random):
        end = min(place + length, used)
        if how == "zero":
            if end == used:
                return  # what was never written and what was wiped at the very end can not be told apart
            piece = bytes(end - place)
        elif how == "random":
            piece = random.randbytes(end - place)
        else:
            start = random.randrange(used - (end - place) + 1)
            piece = whole[start : start + end - place]
        data = whole[:place] + piece + whole[end:]
        if data == whole:
            return
        never_wrong(truth, ask(data), whole_file_is_the_same=False)

    smear()


@pytest.mark.parametrize("as_json", [False, True])
def test_any_truncation_of_a_dump_names_the_file_and_the_byte(writers, step, answer, as_json):
    made = writers(3)
    made.dumps({rank: [step(size=(4 + i,)) for i in range(6)] for rank in range(3)}, as_json=as_json)
    path = made.folder / "fr_trace_1"
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        found = answer(made.folder)
        assert found.decision is Decision.UNDECIDABLE
        assert re.search(r"fr_trace_1, byte \d+: ", str(found.undecided[0])), length


@pytest.mark.parametrize("as_json", [False, True])
def test_what_the_other_ranks_say_is_still_compared(writers, step, answer, as_json):
    made = writers(4)
    steps = {rank: [step(size=(4 + i,)) for i in range(6)] for rank in range(4)}
    steps[2][3] = steps[2][3].but(size=(1,))
    made.dumps(steps, as_json=as_json)
    path = made.folder / "fr_trace_1"
    path.write_bytes(path.read_bytes()[:-40])
    found = answer(made.folder)
    assert (found.decision, found.first.odd) == (Decision.DIVERGE, (2,))
    assert any(place.path == path for place in found.undecided)


@pytest.mark.parametrize("last", [True, False])
def test_a_recorder_that_gave_up_is_no_rank_that_stopped(writers, step, answer, last):
    """The last record of such a trace often lacks its end: what could not be written was the next one's room."""
    made = writers(2)
    made.own({0: [step(size=(4 + i,)) for i in range(30)]})
    made.own({1: [step(size=(4 + i,), done=last if i == 19 else True) for i in range(20)]}, gave_up="File too large")
    found = answer(made.folder)
    path = made.folder / "rank1.trace"
    place = found.undecided[0]
    assert (found.decision, place.path, place.offset) == (Decision.UNDECIDABLE, path, path.stat().st_size - 64)
    assert "the recorder gave up here: File too large" in found.summary
    assert "#20 of group world" in found.summary
    assert found.compared.matched == 20


@pytest.mark.parametrize("lost", ["the place", "the file"])
def test_what_one_rank_s_trace_has_lost_is_not_told_as_issued_by_all(writers, step, answer, lost):
    made = writers(3)
    folder = made.own({rank: [*[step()] * 5, step(done="raised")] for rank in range(3)})
    assert answer(folder).first.kind is Kind.NEVER_COMPLETED
    path = folder / "rank2.trace"
    if lost == "the file":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[-2 * 64 + 20] ^= 1  # its last record
        path.write_bytes(data)
    found = answer(folder)
    assert (found.decision, found.first) == (Decision.UNDECIDABLE, None)
    assert "rank 2" in found.summary or "rank2.trace" in found.summary


@FUZZ
@given(st.binary(max_size=300))
def test_no_bytes_are_more_than_a_refusal_to_the_pickle_reader(data):
    with contextlib.suppress(PickleError):
        load_flat(data)


@FUZZ
@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_damaged_dump_is_read_or_refused_and_nothing_else(place, by):
    dump = {"version": "2.10", "pg_config": {"0": {"name": "0", "desc": "", "ranks": "[0]"}}, "entries": [ENTRY] * 3}
    data = bytearray(pickle.dumps(dump, protocol=2))
    data[place % len(data)] ^= by
    with contextlib.suppress(ValueError):
        read_dump(bytes(data))


ENTRY = {
    "record_id": 0, "process_group": ("0", ""), "collective_seq_id": 1, "p2p_seq_id": 0, "is_p2p": False,
    "profiling_name": "nccl:all_reduce", "input_sizes": [[4]], "output_sizes": [[4]], "input_dtypes": ["Float"],
    "output_dtypes": ["Float"], "state": "completed", "retired": True, "time_created_ns": 5, "frames": [],
}  # fmt: skip

JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8), lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=12,
)  # fmt: skip


@FUZZ
@given(st.sampled_from(sorted(ENTRY)), JSONS, st.booleans())
def test_a_field_of_another_type_is_read_or_refused_and_nothing_else(tmp_path_factory, field, value, as_json):
    folder = tmp_path_factory.mktemp("dumps")
    for rank in range(2):
        dump = {
            "version": "2.10", "pg_config": {"0": {"name": "0", "desc": "", "ranks": "[0, 1]"}},
            "entries": [ENTRY, ENTRY | {field: value, "record_id": 1, "collective_seq_id": 2} if rank else ENTRY],
        }  # fmt: skip
        data = json.dumps(dump).encode() if as_json else pickle.dumps(dump)
        (folder / f"fr_{rank}").write_bytes(data)
    with contextlib.suppress(OrchestrateError):
        make_answer(compare(open_job(folder))).as_json()


class Evil:
    def __init__(self, call, *arguments):
        self.reduced = call, arguments

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize("protocol", range(6))
def test_a_malicious_pickle_runs_nothing(tmp_path, protocol):
    mark = tmp_path / "ran"
    data = pickle.dumps({"version": "2.10", "entries": [Evil(os.mkdir, str(mark))]}, protocol=protocol)
    with pytest.raises(PickleError):
        load_flat(data)
    assert not mark.exists()
    pickle.loads(data)
    assert mark.exists()  # it would have


@pytest.mark.parametrize(
    "data",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
        b"(S'true'\nios\nsystem\n.",
        b"\x80\x02\x82\x01.",  # an extension's code
        b"\x80\x02U\x01xQ.",  # a persistent object
        b"\x80\x04}\x8c\x01a\x8c\x01bs\x81.",  # NEWOBJ
        b"\x80\x04}}b.",  # BUILD
        b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7f.",  # a bytearray of 8 exabytes
        b"\x80\x04B\xff\xff\xff\x7fabc.",  # bytes of 2 gigabytes
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fabc.",  # a text of 8 exabytes
        b"\x80\x02Nr\xff\xff\xff\xff.",  # a memo of 4 billion places
        b"\x80\x02\x8b\xff\xff\xff\x7f1.",  # an integer of 2 gigabytes
        b"\x80\x02I" + b"9" * 5000 + b"\n.",
        b"\x80\x02K\x01.K\x02.",
        b"\x80\x02u.",
        b"\x80\x02(",
        b"",
    ],
)
def test_what_is_no_plain_data_is_refused(data):
    with pytest.raises(PickleError):
        load_flat(data)


def test_a_key_of_nested_tuples_is_never_hashed():
    """A tuple in a tuple in a tuple, as a key: its hash would recurse until the stack is full."""
    depth = 500_000
    data = b"\x80\x02}N" + b"\x85" * depth + b"K\x01s."
    with pytest.raises(ValueError):
        read_dump(data)
    doubled = b"\x80\x02}N" + b"2\x86" * 64 + b"K\x01s."  # DUP, TUPLE2: 2 ** 64 hashes
    with pytest.raises(ValueError):
        read_dump(doubled)


def test_a_million_nested_lists_are_refused_as_no_dump():
    with pytest.raises(ValueError):
        read_dump(b"\x80\x02" + b"](" * 500_000 + b"e" * 500_000 + b".")
    with pytest.raises(ValueError, match="nested too deeply"):
        read_dump(b"[" * 500_000)


def test_a_dump_that_shares_its_parts_without_end_is_refused():
    """Each level holds the one below twice: turned into text it would be longer than the universe."""
    bomb = b"]q\x00" + b"".join(b"](h%ch%ceq%c" % (i, i, i + 1) for i in range(60))
    data = b"\x80\x02}(X\x07\x00\x00\x00entries](" + bomb + b"eu."
    with pytest.raises(ValueError):
        open_dump(data)


def open_dump(data):
    from pathlib import Path

    from orchestrate.analysis.trace.flight_recorder import FlightRecorderTrace
    from orchestrate.analysis.trace.model import Interned

    return FlightRecorderTrace(Path("fr_0"), 0, read_dump(data), Interned(), {})
