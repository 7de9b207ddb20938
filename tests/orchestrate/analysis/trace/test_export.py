"""What we export, PyTorch's own analyser reads with the same result, and so do we."""

import gc
import json
import pickle

import pytest
from click.testing import CliRunner

from orchestrate.analysis.trace.answer import Decision
from orchestrate.analysis.trace.reconcile import Kind
from orchestrate.commands.trace_export import command


@pytest.fixture
def export(tmp_path):
    def write(folder, form="flight-recorder", name="exported"):
        target = tmp_path / name
        result = CliRunner().invoke(command, [str(folder), "--to", form, "-o", str(target)], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return target

    return write


@pytest.fixture
def torch_says():
    """(collectives that match before the first that does not, those that do not) as `torchfrtrace` finds them."""
    builder = pytest.importorskip("torch.distributed.flight_recorder.components.builder")
    from torch.distributed.flight_recorder.components.config_manager import JobConfig
    from torch.distributed.flight_recorder.components.loader import read_dir

    def ask(folder):
        arguments = JobConfig().parse_args([str(folder)])
        try:
            details, version = read_dir(arguments)
            database = builder.build_db(details, arguments, version)
        finally:
            gc.enable()  # the loader leaves it off
        bad = [one for one in database.collectives if not one.pass_check or one.missing_ranks]
        # What comes after the first disagreement is no longer paired up.
        matched = database.collectives.index(bad[0]) if bad else len(database.collectives)
        return matched, bad

    return ask


def every_operation(step, rank, world=4):
    shares = [[(a * 3 + b) % 5 + 1 for b in range(world)] for a in range(world)]
    return [
        step("all_reduce", reduce_op="sum"),
        step("all_gather_single", size=(4,), out=(4 * world,)),
        step("reduce_scatter_single", size=(4 * world,), out=(4,), reduce_op="sum"),
        step("all_to_all_single", size=(sum(shares[rank]), 8), out=(sum(row[rank] for row in shares), 8),
             send=tuple(shares[rank]), recv=tuple(row[rank] for row in shares)),
        step("broadcast", root=1),
        step("reduce", root=1, reduce_op="sum"),
        step("all_gather_object", size=()),
        step("barrier", size=()),
        step("send", peer=(rank + 1) % world),
        step("recv", peer=(rank - 1) % world),
        step("all_reduce", group="half", ranks=(0, 1) if rank < 2 else (2, 3), size=(3,)),
        step("all_reduce", size=(5,)),
    ]  # fmt: skip


def test_the_analyser_matches_every_operation_that_we_match(writers, step, export, torch_says, answer):
    source = writers(4).own({rank: every_operation(step, rank) for rank in range(4)})
    assert answer(source).decision is Decision.AGREE
    target = export(source)
    matched, bad = torch_says(target)
    # 9 of the world, one in each half, 4 messages round the ring.
    assert (matched, bad) == (9 + 2 + 4, [])
    again = answer(target)
    assert again.decision is Decision.AGREE
    assert again.compared.matched == answer(source).compared.matched == 15


def test_what_the_analyser_has_no_notion_of_does_not_stop_it(writers, step, export, torch_says, answer):
    """It ends with an error on an operation that it does not know, and can not pair a receive from anyone."""
    steps = {
        0: [step("monitored_barrier", size=()), step("send", peer=1), step("of_a_later_torch"), step()],
        1: [step("monitored_barrier", size=()), step("recv", peer=None), step("of_a_later_torch"), step()],
    }
    source = writers(2).own(steps)
    assert answer(source).decision is Decision.AGREE
    target = export(source)
    assert torch_says(target) == (3, [])
    assert answer(target).decision is Decision.AGREE


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        (Kind.OPERATION, {"op": "broadcast"}, "COLLECTIVE_TYPE_MISMATCH"),
        (Kind.SIZE, {"size": (99,)}, "SIZE_OR_SYNTAX_MISMATCH"),
        (Kind.DTYPE, {"dtype": "bfloat16"}, "COLLECTIVE_DTYPE_MISMATCH"),
    ],
)
def test_the_analyser_finds_the_same_disagreement_at_the_same_place(
    writers, step, export, torch_says, answer, kind, changes, words
):
    steps = {rank: [step(size=(4 + i,)) for i in range(6)] for rank in range(4)}
    steps[3][4] = steps[3][4].but(**changes)
    target = export(writers(4).own(steps))
    matched, bad = torch_says(target)
    ours = answer(target)
    assert matched == 4
    assert ours.first.kind is kind
    assert bad[0].collective_seq_id == ours.as_json()["divergence"]["sequence"] == 5
    assert next(str(one.type_of_mismatch) for one in bad[0].mismatch_collectives.values()).startswith(
        f"Error type: {words}"
    )
    # Here the analyser's first rank is a right one; where it is the odd one, it blames all others.
    assert ours.first.odd == (3,)
    assert set(bad[0].mismatch_collectives) == {3}


def test_messages_of_several_tags_are_exported_apart(writers, step, export, torch_says, answer):
    made = writers(2)
    sends = [step("send", peer=1, size=(8,), tag=3), step("send", peer=1, size=(9,), tag=4)]
    receives = [step("recv", peer=0, size=(9,), tag=4), step("recv", peer=0, size=(8,), tag=3)]
    dumps = export(made.own({0: sends, 1: receives}))
    assert answer(dumps).decision is Decision.AGREE
    assert not torch_says(dumps)[1]


def test_the_analyser_blames_the_others_where_we_name_the_odd_rank(writers, step, export, torch_says, answer):
    steps = {rank: [step(), step(size=(9 if rank == 0 else 8,))] for rank in range(4)}
    target = export(writers(4).own(steps))
    assert set(torch_says(target)[1][0].mismatch_collectives) == {1, 2, 3}
    assert answer(target).first.odd == (0,)


def test_the_analyser_misses_the_same_rank(writers, step, export, torch_says, answer):
    steps = {rank: [step(), step(size=(5,), done=rank == 9)] for rank in range(4)}
    steps[2].pop()
    target = export(writers(4).own(steps))
    _, bad = torch_says(target)
    assert bad[0].missing_ranks == {2}
    assert (answer(target).first.kind, answer(target).first.odd) == (Kind.MISSING_RANK, (2,))


@pytest.mark.parametrize("form", ["flight-recorder", "flight-recorder-json"])
def test_what_the_flight_recorder_has_no_field_for_survives(writers, step, export, answer, form):
    exchange = step("all_to_all_single", size=(8, 2), send=(2,) * 4, recv=(2,) * 4, layout="depth_one", forward=3,
                    phase="warmup", reduce_op=None)  # fmt: skip
    steps = {rank: [step("all_reduce", reduce_op="sum"), exchange] for rank in range(4)}
    steps[1][1] = exchange.but(send=(2, 2, 1, 3), layout="no_sharing")
    source = writers(4).own(steps)
    before, after = answer(source), answer(export(source, form))
    assert before.first.kind is after.first.kind is Kind.SPLIT
    assert before.sentences(before.first) == after.sentences(after.first)

    def facts(found):
        records = found.as_json()["divergence"]["records"].values()
        left_out = {"record", "sequence", "group"}
        return [{name: value for name, value in record.items() if name not in left_out} for record in records]

    assert facts(before) == facts(after)


def test_dumps_are_plain_pickles(writers, step, export):
    target = export(writers(2).own({rank: [step()] for rank in range(2)}))
    dump = pickle.loads((target / "fr_trace_0").read_bytes())
    assert set(dump) >= {"version", "pg_config", "entries"}


def test_the_perfetto_file_has_each_record_and_marks_the_first_disagreement(writers, step, export):
    steps = {rank: [step(), step(size=(9 if rank == 1 else 8,), done=False)] for rank in range(3)}
    found = json.loads(export(writers(3).own(steps), "perfetto", "trace.json").read_text())
    slices = [event for event in found["traceEvents"] if event["ph"] == "X"]
    assert len(slices) == 6
    assert {(event["name"], event["ts"]) for event in slices} == {("all_reduce", 1.0), ("all_reduce", 1.1)}
    marks = [event for event in found["traceEvents"] if event["ph"] == "i"]
    assert [(mark["pid"], mark["ts"]) for mark in marks] == [(0, 1.1), (1, 1.1), (2, 1.1)]


def test_dumps_are_not_mixed_into_a_folder_in_use(writers, step, tmp_path):
    source = writers(2).own({rank: [step()] for rank in range(2)})
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "fr_trace_7").write_text("another job's")
    result = CliRunner().invoke(command, [str(source), "--to", "flight-recorder", "-o", str(tmp_path / "used")])
    assert result.exception is not None
    assert "is not empty" in str(result.exception)
