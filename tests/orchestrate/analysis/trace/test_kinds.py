"""Each kind of disagreement, hand-made, in both formats where the format can say it."""

import pytest

from orchestrate.analysis.trace.answer import Decision
from orchestrate.analysis.trace.reconcile import Kind

OWN = ["own"]
BOTH = ["own", "pickle", "json"]


@pytest.fixture
def job(request, writers, answer):
    """Write every rank's steps in one format and answer."""

    def ask(steps_by_rank, form, name="traces"):
        made = writers(len(steps_by_rank), name)
        if form == "own":
            made.own(steps_by_rank)
        else:
            made.dumps(steps_by_rank, as_json=form == "json")
        return answer(made.folder)

    return ask


def run_of(step, count=12):
    return [step("all_reduce" if i % 3 else "all_gather_single", size=(4 + i,), out=None) for i in range(count)]


def fixed(steps, world):
    return [one.but(out=(one.size[0] * world,)) if one.op == "all_gather_single" else one for one in steps]


@pytest.mark.parametrize("form", BOTH)
@pytest.mark.parametrize("world", [2, 4, 8])
def test_ranks_that_do_the_same_agree(job, step, form, world):
    found = job({rank: fixed(run_of(step), world) for rank in range(world)}, form)
    assert found.decision is Decision.AGREE, found.summary
    assert found.compared.matched == 12


@pytest.mark.parametrize("form", BOTH)
@pytest.mark.parametrize("world", [4, 8])
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (Kind.OPERATION, {"op": "broadcast"}),
        (Kind.DTYPE, {"dtype": "bfloat16"}),
        (Kind.SIZE, {"size": (999,), "out": (999,)}),
    ],
)
def test_the_odd_rank_is_named_and_not_the_others(job, step, form, world, kind, changes):
    steps = {rank: fixed(run_of(step), world) for rank in range(world)}
    steps[3][5] = steps[3][5].but(**changes)
    found = job(steps, form)
    assert found.decision is Decision.DIVERGE
    assert found.first.kind is kind
    assert found.first.odd == (3,)
    assert "odd: rank 3" in found.sentences(found.first)
    assert found.as_json()["divergence"]["sequence"] == (5 if form == "own" else 6)


@pytest.mark.parametrize(
    ("kind", "op", "changes"),
    [
        (Kind.REDUCE_OP, "all_reduce", ({"reduce_op": "sum"}, {"reduce_op": "max"})),
        (Kind.ROOT, "broadcast", ({"root": 0}, {"root": 1})),
    ],
)
def test_reduce_op_and_root_are_compared_where_the_trace_has_them(job, step, kind, op, changes):
    right, wrong = changes
    steps = {rank: [step(op, **(wrong if rank == 2 else right))] * 3 for rank in range(4)}
    found = job(steps, "own")
    assert (found.first.kind, found.first.odd) == (kind, (2,))


def test_two_against_two_is_no_majority(job, step):
    steps = {rank: [step(), step(size=(8 if rank < 2 else 9,))] for rank in range(4)}
    found = job(steps, "own")
    assert found.first.kind is Kind.SIZE
    assert found.first.odd is None
    assert any("no majority" in sentence for sentence in found.sentences(found.first))


def test_splits_are_reconciled_over_all_pairs(job, step):
    rows = 7216
    fit = [step("all_to_all_single", size=(4 * rows, 64), send=(rows,) * 4, recv=(rows,) * 4)] * 3
    steps = {rank: list(fit) for rank in range(4)}
    steps[3][1] = steps[3][1].but(send=(0, rows, rows, rows), recv=(rows, rows, 5, rows))
    found = job(steps, "own")
    assert (found.first.kind, found.first.odd) == (Kind.SPLIT, (3,))
    pairs = {(p.sender, p.receiver): (p.sends, p.expects) for p in found.first.mismatch.pairs}
    assert pairs == {(3, 0): (0, rows), (2, 3): (rows, 5)}
    assert "rank 0 expects 7,216 rows from rank 3, rank 3 sends 0" in found.sentences(found.first)


def test_uneven_splits_that_fit_are_no_disagreement(job, step):
    matrix = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    steps = {
        rank: [
            step("all_to_all_single", size=(sum(matrix[rank]), 8), out=(sum(row[rank] for row in matrix), 8),
                 send=tuple(matrix[rank]), recv=tuple(row[rank] for row in matrix))
        ] * 4
        for rank in range(3)
    }  # fmt: skip
    assert job(steps, "own").decision is Decision.AGREE


def test_an_even_exchange_of_other_sizes_is_a_split_mismatch(job, step):
    steps = {rank: [step("all_to_all_single", size=(16 if rank == 1 else 8,))] for rank in range(4)}
    found = job(steps, "own")
    assert (found.first.kind, found.first.odd) == (Kind.SPLIT, (1,))


@pytest.mark.parametrize("form", BOTH)
def test_a_rank_that_stops_before_the_others_is_missing(job, step, form):
    steps = {rank: fixed(run_of(step), 4) for rank in range(4)}
    for rank in (0, 1, 3):
        steps[rank][-1] = steps[rank][-1].but(done=False)
    steps[2] = steps[2][:-1]
    found = job(steps, form)
    assert (found.first.kind, found.first.odd) == (Kind.MISSING_RANK, (2,))
    assert "rank 2 never issued it" in found.sentences(found.first)[0]


@pytest.mark.parametrize("form", BOTH)
def test_a_single_rank_that_goes_on_is_the_odd_one(job, step, form):
    steps = {rank: fixed(run_of(step), 4) for rank in range(4)}
    steps[1].append(step("barrier", size=(), done=False))
    found = job(steps, form)
    assert (found.first.kind, found.first.odd) == (Kind.MISSING_RANK, (1,))


@pytest.mark.parametrize("form", BOTH)
def test_what_all_issued_alike_and_nobody_completed(job, step, form):
    steps = {rank: [*fixed(run_of(step), 4), step(size=(77,), done=False)] for rank in range(4)}
    found = job(steps, form)
    assert (found.decision, found.first.kind, found.first.odd) == (Decision.DIVERGE, Kind.NEVER_COMPLETED, ())
    assert "all ranks issued it alike, and none completed it" in found.summary


@pytest.mark.parametrize("form", BOTH)
def test_the_one_rank_that_never_completed_is_named(job, step, form):
    steps = {rank: [*fixed(run_of(step), 4), step(size=(77,), done=rank != 1)] for rank in range(4)}
    found = job(steps, form)
    assert (found.first.kind, found.first.odd) == (Kind.NEVER_COMPLETED, (1,))


def test_an_error_in_a_collective_is_told(job, step):
    steps = {rank: [step(), step(done="raised" if rank == 2 else True)] for rank in range(4)}
    found = job(steps, "own")
    assert found.first.kind is Kind.NEVER_COMPLETED
    assert "raised an error" in found.summary


@pytest.mark.parametrize("form", BOTH)
@pytest.mark.parametrize("by", [1, 3])
def test_a_rank_that_left_some_out_is_ahead_by_so_many(job, step, form, by):
    run = [step(size=(4 + i,)) for i in range(20)]
    steps = {rank: list(run) for rank in range(4)}
    del steps[3][6 : 6 + by]
    found = job(steps, form)
    assert found.first.kind is Kind.LAG
    assert (found.first.lag.ranks, found.first.lag.by, found.first.lag.behind) == ((3,), by, False)
    assert len(found.further) == 0


@pytest.mark.parametrize("form", BOTH)
def test_a_rank_that_did_one_more_runs_one_behind(job, step, form):
    run = [step(size=(4 + i,)) for i in range(20)]
    steps = {rank: list(run) for rank in range(4)}
    steps[1].insert(9, step("barrier", size=()))
    found = job(steps, form)
    assert found.first.kind is Kind.LAG
    assert (found.first.lag.ranks, found.first.lag.by, found.first.lag.behind) == ((1,), 1, True)
    assert found.summary.count("rank 1") >= 1


def test_one_wrong_record_in_a_periodic_run_is_no_lag(job, step):
    run = [step(size=(4 + i % 2,)) for i in range(20)]
    steps = {rank: list(run) for rank in range(4)}
    steps[1][7] = steps[1][7].but(dtype="int64")
    found = job(steps, "own")
    assert (found.first.kind, found.first.odd) == (Kind.DTYPE, (1,))


@pytest.mark.parametrize("form", BOTH)
def test_two_collectives_exchanged_on_one_rank_are_an_order(job, step, form):
    run = [step(size=(4 + i,)) for i in range(10)]
    steps = {rank: list(run) for rank in range(4)}
    steps[2][4], steps[2][5] = steps[2][5], steps[2][4]
    found = job(steps, form)
    assert (found.first.kind, found.first.odd) == (Kind.ORDER, (2,))


@pytest.mark.parametrize("form", BOTH)
def test_two_groups_in_opposite_order(job, step, form):
    """Both wait, each in the group that the other comes to later."""
    a, b = step(group="a"), step("all_reduce", group="b", size=(9,))
    steps = {0: [a, b, a.but(done=False)], 1: [a, b, b.but(done=False)]}
    found = job(steps, form)
    assert found.first.kind is Kind.ORDER
    assert len(found.further) == 0
    assert any("waits there" in sentence for sentence in found.sentences(found.first))


@pytest.mark.parametrize("form", BOTH)
def test_the_rank_that_alone_takes_two_groups_in_the_other_order_is_odd(job, step, form):
    a, b = step(group="a"), step(group="b", size=(9,))
    steps = {rank: [a, b, a.but(done=False)] for rank in range(4)}
    steps[2] = [a, b, b.but(done=False)]
    found = job(steps, form)
    assert (found.first.kind, found.first.odd, len(found.further)) == (Kind.ORDER, (2,), 0)
    assert "ranks 0, 1 and 3 are in all_reduce" in found.summary


@pytest.mark.parametrize("form", BOTH)
def test_a_rank_that_leaves_a_collective_out_and_waits_in_the_next_group(job, step, form):
    """The code that called it has called there before, after what is left out now."""
    a, b = step(group="a", caller=10), step(group="b", size=(9,), caller=20)
    steps = {rank: [a, b, a.but(done=False)] for rank in range(4)}
    steps[2] = [a, b, b.but(done=False)]
    found = job(steps, form)
    assert (found.first.kind, found.first.odd, len(found.further)) == (Kind.MISSING_RANK, (2,), 0)
    assert found.first.group.name == "a"
    sequence, b_name = (1, "b") if form == "own" else (2, "b (a group)")
    assert found.sentences(found.first)[0] == (
        f"rank 2 never issued it, and went on to all_reduce #{sequence} of group {b_name}"
    )
    assert found.as_json()["divergence"]["missing"] == [2]
    assert found.as_json()["divergence"]["records"]["2"]["callers"][0].endswith("train.py:20 in step")


@pytest.mark.parametrize("form", BOTH)
def test_two_groups_in_opposite_order_that_both_went_on(job, step, form):
    a, b = step("broadcast", group="a", root=0), step("broadcast", group="b", root=1)
    found = job({0: [a, b], 1: [b, a]}, form)
    assert found.first.kind is Kind.ORDER


@pytest.mark.parametrize("form", BOTH)
def test_ranks_that_do_not_agree_about_who_is_in_a_group(job, step, form):
    cp = step(group="cp", ranks=(0, 1))
    steps = {rank: [step(), cp, step()] for rank in (0, 1, 2)}
    steps[2][1] = step(group="cp", ranks=(0, 1, 2))
    steps[1][1] = step(group="cp", ranks=(0, 1, 2))
    steps[0] = [*steps[0][:1], cp.but(done=False)]
    found = job(steps, form)
    assert (found.first.kind, found.first.odd) == (Kind.GROUP, (0,))


@pytest.mark.parametrize("form", BOTH)
def test_groups_of_one_name_that_have_no_rank_in_common_are_two_groups(job, step, form):
    def steps(rank):
        return [step(), step(group="cp", ranks=(0, 1) if rank < 2 else (2, 3), size=(4 if rank < 2 else 5,)), step()]

    assert job({rank: steps(rank) for rank in range(4)}, form).decision is Decision.AGREE


@pytest.mark.parametrize("form", BOTH)
def test_the_first_of_several_disagreements_comes_first(job, step, form):
    one, two = step(group="one", ranks=(0, 1)), step(group="two", ranks=(2, 3))
    steps = {
        0: [step(), one, one, one],
        1: [step(), one, one, one.but(size=(5,))],
        2: [step(), two, two, two],
        3: [step(), two.but(size=(5,)), two, two],
    }
    found = job(steps, form)
    assert found.first.group.name == "two"
    assert [finding.group.name for finding in found.further] == ["one"]


@pytest.mark.parametrize("form", BOTH)
def test_messages_are_matched_pair_by_pair(job, step, form):
    def ring(rank, size=(8,)):
        return [step("send", peer=(rank + 1) % 4, size=size), step("recv", peer=(rank - 1) % 4, size=(8,)), step()]

    steps = {rank: ring(rank) for rank in range(4)}
    assert job(steps, form).decision is Decision.AGREE


@pytest.mark.parametrize("form", BOTH)
def test_a_message_of_another_size_names_both_ends(job, step, form):
    steps = {
        0: [step("send", peer=1, size=(8,)), step("send", peer=1, size=(9,))],
        1: [step("recv", peer=0, size=(8,)), step("recv", peer=0, size=(8,))],
    }
    found = job(steps, form)
    assert found.first.kind is Kind.SIZE
    assert "rank 1 expects 8 elements from rank 0, rank 0 sends 9" in found.summary


def tagged(step, *, first=3, second=4):
    return {
        0: [step("send", peer=1, size=(8,), tag=first), step("send", peer=1, size=(9,), tag=second), step()],
        1: [step("recv", peer=0, size=(9,), tag=4), step("recv", peer=0, size=(8,), tag=3), step()],
    }


def test_messages_of_several_tags_may_be_received_in_another_order(job, step):
    assert job(tagged(step), "own").decision is Decision.AGREE


def test_a_message_of_a_tag_that_nobody_receives(job, step):
    found = job(tagged(step, second=5), "own")
    assert found.first.kind is Kind.MISSING_RANK
    assert "tag" in found.summary


def test_the_messages_of_a_tag_are_counted_by_themselves_from_block_to_block(writers, step, answer):
    made = writers(2)
    sends = [step("send", peer=1, size=(8 + i % 2,), tag=i % 2) for i in range(5000)]
    receives = [step("recv", peer=0, size=(8 + i // 2500,), tag=i // 2500) for i in range(5000)]
    found = answer(made.own({0: sends, 1: receives}), window=1024)
    assert (found.decision, found.compared.matched) == (Decision.AGREE, 5000), found.summary


def test_nccl_has_no_tags(writers, step, answer):
    made = writers(2)
    made.backend = "nccl"
    found = answer(made.own(tagged(step)))
    assert found.first.kind is Kind.SIZE


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize("present", [(0, 1, 2), (0, 2)])
def test_lists_of_uneven_parts_fit_where_each_part_is_its_rank_s(writers, step, answer, op, present):
    found = answer(writers(3).uneven(op, {rank: 2 + rank for rank in present}))
    assert (found.decision is Decision.DIVERGE) is False, found.summary
    assert found.compared.matched == 1


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter"])
def test_uneven_parts_in_another_order_than_the_lists_are_a_size_mismatch(writers, step, answer, op):
    found = answer(writers(3).uneven(op, {0: 2, 1: 4, 2: 3}))
    assert found.decision is Decision.DIVERGE
    assert found.first.kind is Kind.SIZE
    found = answer(writers(5, "five").uneven(op, {0: 2, 1: 3, 2: 4, 3: 6, 4: 6}))
    assert (found.first.kind, found.first.odd) == (Kind.SIZE, (3,))


@pytest.mark.parametrize("form", BOTH)
def test_a_message_that_nobody_receives(job, step, form):
    steps = {0: [step(), step("send", peer=1, done=False)], 1: [step()]}
    found = job(steps, form)
    assert found.first.kind is Kind.MISSING_RANK
    assert "message" in found.summary


def test_layouts_that_part_are_told_with_the_first_exchange_that_does_not_fit(job, step):
    """The calibration fault: one rank decides for itself to warm up once more."""

    def exchange(layout, forward, rows):
        splits = (rows,) * 4
        return step("all_to_all_single", size=(4 * rows, 8), send=splits, recv=splits, layout=layout, forward=forward,
                    phase="warmup")  # fmt: skip

    a = [exchange("depth_one", 0, 10), exchange("depth_one", 1, 10)]
    steps = {rank: [*a, exchange("no_sharing", 2, 30)] for rank in range(4)}
    steps[3][2] = exchange("depth_one", 2, 10).but(done=False)
    found = job(steps, "own")
    assert (found.first.kind, found.first.odd) == (Kind.SPLIT, (3,))
    assert "forward 2" in found.summary
    said = found.sentences(found.first)
    assert "in forward 2 ranks 0, 1 and 2 ran no_sharing, rank 3 ran depth_one" in said
    assert "rank 3 runs 1 forward behind the others: they run depth_one in forward 1" in said
    rows = found.as_json()["layouts"]
    assert rows[-1]["layouts"] == {"0": "no_sharing", "1": "no_sharing", "2": "no_sharing", "3": "depth_one"}


def test_layouts_that_part_where_every_collective_fits_are_a_disagreement(job, step):
    steps = {
        rank: [step(layout="a", forward=0), step(layout="b" if rank == 1 else "a", forward=1)] for rank in range(4)
    }
    found = job(steps, "own")
    assert found.decision is Decision.DIVERGE
    assert "in forward 1" in found.summary


def test_callers_stand_side_by_side(job, step):
    steps = {rank: [step(caller=10), step(size=(9,) if rank == 1 else (8,), caller=20 + rank)] for rank in range(3)}
    records = job(steps, "own").as_json()["divergence"]["records"]
    assert [records[str(rank)]["callers"] for rank in range(3)] == [
        [f"train.py:{20 + rank} in step"] for rank in range(3)
    ]


def test_groups_used_at_once_fix_no_order(job, step):
    """Asynchronous, or from two threads: what overlaps in time and completes is no disagreement."""
    a, b = step(group="a"), step(group="b")
    late = {"ends": 400}
    found = job({0: [a.but(**late), b.but(**late)], 1: [b.but(**late), a.but(**late)]}, "own")
    assert found.decision is Decision.AGREE
    stuck = {"ends": 400, "done": False}
    found = job({0: [a.but(**stuck), b.but(**stuck)], 1: [b.but(**stuck), a.but(**stuck)]}, "own", name="stuck")
    assert found.first.kind is Kind.ORDER


@pytest.mark.parametrize("form", OWN)
def test_the_answer_does_not_depend_on_the_window(writers, step, answer, form):
    steps = {rank: [step(size=(4 + i % 7,), group="ab"[i % 2]) for i in range(9000)] for rank in range(3)}
    steps[1][8123] = steps[1][8123].but(size=(1,))
    folder = writers(3).own(steps)
    found = [answer(folder, window=window) for window in (1024, 65_536)]
    assert [one.first.kind for one in found] == [Kind.SIZE] * 2
    assert {(one.first.group.name, one.first.key >> 12, one.first.odd) for one in found} == {("b", 4061, (1,))}


def test_ranks_further_apart_than_the_window_are_undecidable(writers, step, answer):
    a, b = step(group="a"), step(group="b")
    folder = writers(2).own({0: [a] * 10_000 + [b] * 10_000, 1: [b] * 10_000 + [a] * 10_000})
    found = answer(folder, window=1024)
    assert found.decision is Decision.UNDECIDABLE
    assert "larger --window" in found.summary
