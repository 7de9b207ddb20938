"""Flight recorder dumps: real ones of gloo, the fields of several versions, and rings that lost their start."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrate.analysis.trace.answer import Decision
from orchestrate.analysis.trace.reconcile import Kind
from orchestrate.errors import UsageError

JOB = Path(__file__).parent / "gloo_job.py"


@pytest.fixture(scope="module")
def gloo(tmp_path_factory):
    """Dumps of a gloo job on three ranks, of the torch that is installed."""
    pytest.importorskip("torch")

    def run(fault):
        folder = tmp_path_factory.mktemp("gloo")
        (folder / "json").mkdir()
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", JOB, folder, fault],
            env={**os.environ, "TORCH_FR_BUFFER_SIZE": "2000", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
        assert (folder / "fr_trace_0").exists(), done.stderr[-2000:]
        return folder

    return run


@pytest.fixture(scope="module")
def healthy(gloo):
    return gloo("none")


@pytest.fixture(scope="module")
def hanging(gloo):
    return gloo("hang")


@pytest.mark.parametrize("form", [".", "json"])
def test_dumps_of_gloo_agree_though_they_name_no_ranks(healthy, answer, form):
    """The analyser of torch 2.13 ends with a KeyError on them: gloo configures one group, without a name."""
    found = answer(healthy / form)
    assert found.decision is Decision.AGREE, found.summary
    assert found.compared.matched == 9  # 7 of the world, one of each half


@pytest.mark.parametrize("form", [".", "json"])
def test_the_rank_that_a_gloo_job_waits_for_is_named(hanging, answer, form):
    found = answer(hanging / form)
    assert (found.decision, found.first.kind, found.first.odd) == (Decision.DIVERGE, Kind.MISSING_RANK, (2,))
    record = found.as_json()["divergence"]["records"]["0"]
    assert (record["op"], record["input_sizes"], record["state"]) == ("all_reduce", [[7]], "pending")


def test_a_gloo_dump_whose_fellow_is_lost_is_not_taken_for_a_smaller_job(healthy, answer, tmp_path):
    for rank in (0, 1, 2):
        shutil.copy(healthy / f"fr_trace_{rank}", tmp_path)
    found = answer(tmp_path)
    assert found.decision is Decision.UNDECIDABLE
    assert "4 ranks" in found.summary


def test_what_the_export_makes_of_a_gloo_dump_the_analyser_can_read(healthy, tmp_path):
    from click.testing import CliRunner

    from orchestrate.commands.trace_export import command

    result = CliRunner().invoke(command, [str(healthy), "--to", "flight-recorder", "-o", str(tmp_path / "out")])
    assert result.exit_code == 0
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", tmp_path / "out"],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert "mismatch" not in done.stderr.lower()


def test_a_gloo_entry_that_is_not_marked_as_ended_yet_is_no_disagreement(writers, step, answer):
    made = writers(3)
    made.dumps({rank: [step(), step(size=(5,), done=rank != 1)] for rank in range(3)}, backend="gloo")
    for rank in range(3):
        path = made.folder / f"fr_trace_{rank}"
        dump = pickle.loads(path.read_bytes())
        for entry in dump["entries"]:
            entry["state"] = "scheduled"
        path.write_bytes(pickle.dumps(dump, protocol=2))
    assert answer(made.folder).decision is Decision.AGREE


def gloo_dumps(made, steps_by_rank):
    """Dumps as gloo makes them: one group without ranks is configured, and what has ended is marked alone."""
    for rank, steps in steps_by_rank.items():
        dump = made.dump(rank, steps, backend="gloo")
        dump["pg_config"] = {"": {"name": "", "desc": "", "ranks": "[]"}}
        for entry in dump["entries"]:
            name = entry["process_group"][0]
            entry |= {"process_group": (name, "default_pg" if name == "0" else "undefined"), "state": "scheduled"}
        (made.folder / f"fr_trace_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return made.folder


def test_two_gloo_ranks_that_wait_in_groups_of_which_each_is_the_only_user_wait_for_each_other(writers, step, answer):
    begin = step(group="0")
    steps = {rank: [begin, step(group=str(1 + rank), done=False)] for rank in range(2)}
    found = answer(gloo_dumps(writers(2), steps))
    assert (found.decision, found.first.kind) == (Decision.DIVERGE, Kind.ORDER)
    assert "rank 0 is in all_reduce #1 of group 1 first and waits there" in found.summary


@pytest.mark.parametrize(("met", "decision"), [(True, Decision.DIVERGE), (False, Decision.UNDECIDABLE)])
def test_users_of_a_gloo_group_are_all_its_ranks_once_they_have_completed_one(writers, step, answer, met, decision):
    pair = [step(group="1")] * met + [step(group="1", done=False)]
    steps = {rank: [step(group="0"), *(pair if rank else [])] for rank in range(3)}
    found = answer(gloo_dumps(writers(3), steps))
    assert found.decision is decision, found.summary
    assert ("who else is in the group is not said" in found.summary) is not met


def test_ranks_that_wait_for_one_without_a_dump_are_undecidable(writers, step, answer):
    made = writers(3)
    made.dumps({rank: [step(), step(done=False)] for rank in (0, 1)})
    found = answer(made.folder)
    assert (found.decision, found.first) == (Decision.UNDECIDABLE, None)


def old(dump, version):
    """The dump as an older version wrote it."""
    dump["version"] = version
    minor = tuple(map(int, version.split(".")))
    for entry in dump["entries"]:
        if minor < (2, 0):
            entry["seq_id"] = entry.pop("collective_seq_id")
            del entry["p2p_seq_id"]
        if minor < (2, 1):
            entry["pg_name"] = entry.pop("process_group")[0]
        if minor < (2, 2):
            del entry["is_p2p"], entry["retired"]
        if minor < (2, 3):
            del entry["input_dtypes"], entry["output_dtypes"]
            del entry["timeout_ms"]
        if minor < (2, 5):
            del entry["op_id"]
    if minor < (2, 4):
        dump.pop("pg_status")
    return dump


@pytest.mark.parametrize("version", ["1.5", "2.0", "2.1", "2.2", "2.3", "2.4", "2.5", "2.7", "2.10", "3.0"])
@pytest.mark.parametrize("as_json", [False, True])
def test_each_version_of_a_dump_is_read(writers, step, answer, version, as_json):
    made = writers(4)
    for rank in range(4):
        steps = [step(size=(4 + i,)) for i in range(6)]
        if rank == 3:
            steps[4] = steps[4].but(op="broadcast")
        dump = old(made.dump(rank, steps), version)
        data = json.dumps(dump).encode() if as_json else pickle.dumps(dump, protocol=2)
        (made.folder / f"nccl_trace_rank_{rank}").write_bytes(data)
    found = answer(made.folder)
    assert (found.first.kind, found.first.odd) == (Kind.OPERATION, (3,))


@pytest.mark.parametrize(
    "names",
    [
        [f"nccl_trace_rank_{rank}" for rank in range(4)],
        [f"rank{rank}.json" for rank in range(4)],
        ["trace_node02_0", "trace_node02_1", "trace_node07_2", "trace_node07_3"],
        ["tmp.fr-0.pickle", "tmp.fr-1.pickle", "tmp.fr-2.pickle", "tmp.fr-3.pickle"],
        ["0", "1", "2", "3"],
    ],
)
def test_files_are_found_by_the_rank_at_the_end_of_their_names(writers, step, answer, names):
    made = writers(4)
    made.dumps({rank: [step(), step(size=(9 if rank == 2 else 8,))] for rank in range(4)})
    for rank, name in enumerate(names):
        (made.folder / f"fr_trace_{rank}").rename(made.folder / name)
    (made.folder / "README.md").write_text("not a trace")
    (made.folder / "notes7").write_text("not a trace either")
    assert answer(made.folder).first.odd == (2,)


def test_two_dumps_of_one_rank_have_to_be_told_apart(writers, step, answer):
    made = writers(2)
    made.dumps({rank: [step()] for rank in range(2)})
    made.dumps({rank: [step()] for rank in range(2)}, name="later_")
    with pytest.raises(UsageError, match="several traces of rank 0"):
        answer(made.folder)


@pytest.mark.parametrize("as_json", [False, True])
def test_a_ring_that_lost_its_start_is_undecidable_from_there(writers, step, answer, as_json):
    made = writers(3)
    run = [step(size=(4 + i,)) for i in range(30)]
    made.dumps({rank: list(run) for rank in range(3)}, as_json=as_json, from_record={1: 12, 2: 10})
    found = answer(made.folder)
    assert found.decision is Decision.UNDECIDABLE
    assert {place.rank for place in found.undecided} == {1, 2}
    assert "from #13 on" in str(found.undecided[0])
    assert found.compared.matched == 17


def test_a_disagreement_behind_a_lost_start_is_still_one(writers, step, answer):
    made = writers(3)
    run = [step(size=(4 + i,)) for i in range(30)]
    steps = {rank: list(run) for rank in range(3)}
    steps[0][20] = steps[0][20].but(op="broadcast")
    made.dumps(steps, from_record={1: 12, 2: 10})
    found = answer(made.folder)
    assert (found.decision, found.first.kind, found.first.odd) == (Decision.DIVERGE, Kind.OPERATION, (0,))
    assert found.as_json()["divergence"]["sequence"] == 21
    assert found.undecided


def test_rings_that_have_nothing_in_common_are_undecidable(writers, step, answer):
    made = writers(2)
    steps = {0: [step()] * 10, 1: [step()] * 40}
    made.dumps(steps, from_record={1: 30})
    assert answer(made.folder).decision is Decision.UNDECIDABLE


def test_a_dump_made_earlier_than_the_others_is_undecidable(writers, step, answer):
    """The others completed what it has not: it took part, after its dump."""
    made = writers(3)
    made.dumps({rank: [step()] * (5 if rank == 1 else 8) for rank in range(3)})
    found = answer(made.folder)
    assert found.decision is Decision.UNDECIDABLE
    assert "made earlier" in found.summary


@pytest.mark.parametrize(("renumbered", "decision"), [(True, Decision.DIVERGE), (False, Decision.UNDECIDABLE)])
def test_a_number_that_is_left_out_is_a_missing_rank_unless_the_dump_lost_entries(
    writers, step, answer, renumbered, decision
):
    """A recorder numbers what it records: numbers without a gap say that the rank recorded nothing there."""
    made = writers(3)
    for rank in range(3):
        dump = made.dump(rank, [step(size=(4 + i,)) for i in range(6)])
        if rank == 1:
            del dump["entries"][3]
            for place, entry in enumerate(dump["entries"]):
                entry["record_id"] = place if renumbered else entry["record_id"]
        (made.folder / f"fr_{rank}").write_bytes(pickle.dumps(dump))
    found = answer(made.folder)
    assert found.decision is decision
    if renumbered:
        assert (found.first.kind, found.first.odd) == (Kind.MISSING_RANK, (1,))
    else:
        assert "#4 of group" in found.summary


def test_a_missing_file_is_undecidable_and_named(writers, step, answer):
    made = writers(4)
    made.dumps({rank: [step()] * 5 for rank in (0, 1, 3)})
    found = answer(made.folder)
    assert (found.decision, found.as_json()["missing_ranks"]) == (Decision.UNDECIDABLE, [2])
    assert "no trace of rank 2" in found.summary


@pytest.mark.parametrize("data", [b"", b"Q", b"cos\nsystem\n", b"\0" * 100])
def test_a_file_named_as_the_dumps_are_is_a_rank_s_whatever_is_in_it(writers, step, answer, data):
    made = writers(3)
    made.dumps({rank: [step(ranks=(0, 1))] for rank in (0, 1)})
    (made.folder / "fr_trace_2").write_bytes(data)
    (made.folder / "notes 2").write_text("of another name")
    found = answer(made.folder)
    assert found.decision is Decision.UNDECIDABLE
    assert "fr_trace_2" in found.summary


def test_traces_of_jobs_of_several_sizes_are_not_compared(writers, step, answer):
    made = writers(3)
    made.own({2: [step()]})
    made.world = 2
    made.own({0: [step()], 1: [step()]})
    with pytest.raises(UsageError, match="several jobs"):
        answer(made.folder)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"job": "a", "restart": 0}, {"job": "b", "restart": 0}),
        ({"job": "a", "restart": 0}, {"job": "a", "restart": 1}),
        ({"restart": 0}, {"restart": 1}),
        ({"job": None, "restart": 0}, {"job": "b", "restart": 1}),
    ],
)
def test_traces_of_jobs_of_one_size_or_of_two_attempts_are_not_compared(writers, step, answer, first, second):
    made = writers(2)
    made.own({0: [step()]}, facts=first)
    made.own({1: [step(size=(9,))]}, facts=second)
    with pytest.raises(UsageError, match=r"several jobs: rank0\.trace of .*, rank1\.trace of"):
        answer(made.folder)


def test_an_operation_inside_a_batch_is_compared_and_its_closing_mark_is_not(writers, step, answer):
    made = writers(2)
    for rank in range(2):
        dump = made.dump(rank, [step("send" if rank == 0 else "recv", peer=1 - rank), step()])
        mark = dict(dump["entries"][0], profiling_name="nccl:coalesced", record_id=1, is_p2p=False)
        dump["entries"].insert(1, mark)
        (made.folder / f"fr_{rank}").write_bytes(pickle.dumps(dump))
    found = answer(made.folder)
    assert found.decision is Decision.AGREE
    assert found.compared.matched == 2


def test_several_collectives_of_one_sequence_number_are_matched_one_by_one(writers, step, answer):
    made = writers(2)
    for rank in range(2):
        dump = made.dump(rank, [step(size=(3,)), step(size=(4,)), step(size=(5 + (rank == 1),)), step()])
        for entry in dump["entries"][:3]:
            entry["collective_seq_id"] = 1
        dump["entries"][3]["collective_seq_id"] = 2
        (made.folder / f"fr_{rank}").write_bytes(pickle.dumps(dump))
    found = answer(made.folder)
    assert found.first.kind is Kind.SIZE
    assert found.compared.matched == 2


@pytest.mark.parametrize("rank", [0, 1])
def test_one_gloo_dump_alone_agrees_with_nobody(writers, step, answer, rank):
    folder = gloo_dumps(writers(2), {rank: [step(group="0"), step(group="0")]})
    found = answer(folder)
    assert found.decision is Decision.UNDECIDABLE, found.summary
