"""Shards, owners and split sizes follow from the layout, and fit together over the ranks."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from harness.model.block import HybridModel
from harness.model.config import model_config
from harness.packing import pack
from harness.parallel.plan import make_plan
from harness.parallel.topology import Group, Topology
from harness.prefix_tree import PrefixTree, candidate_family

CONFIG = model_config("tiny-hybrid", 4)
NESTED = ((1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 9), (1, 2, 3, 8), (1, 2, 7, 7), (1, 6))


def topologies(tp: int, cp: int) -> list[Topology]:
    """The topology as each rank sees it, without process groups: for planning only."""
    alone = Topology.single("cpu")

    def seen(rank: int) -> Topology:
        tp_group = Group("tp", tuple(range(rank // tp * tp, rank // tp * tp + tp)), rank % tp, None)
        cp_group = Group("cp", tuple(range(rank % tp, tp * cp, tp)), rank // tp, None)
        return replace(alone, tp=tp, cp=cp, rank=rank, tp_group=tp_group, cp_group=cp_group)

    return [seen(rank) for rank in range(tp * cp)]


def plans(rows, label: str, tp: int, cp: int):
    tree = PrefixTree.from_rows(rows)
    layout = next(layout for layout in candidate_family(tree) if layout.label == label)
    packed = pack(rows, tree, layout)
    return packed, [make_plan(packed, CONFIG, topology) for topology in topologies(tp, cp)]


rows_strategy = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=40).map(tuple), min_size=1, max_size=6).map(
    tuple
)


@settings(max_examples=60, deadline=None)
@given(rows=rows_strategy, shape=st.sampled_from([(1, 4), (2, 2), (1, 2), (4, 1)]), data=st.data())
def test_what_a_rank_sends_its_peer_expects(rows, shape, data):
    tree = PrefixTree.from_rows(rows)
    layout = data.draw(st.sampled_from(candidate_family(tree)))
    packed = pack(rows, tree, layout)
    made = [make_plan(packed, CONFIG, topology) for topology in topologies(*shape)]
    assert len({plan.digest for plan in made}) == 1
    tp, cp = shape
    by_cp = [plan.delta for plan in made[::tp]]
    moves = [[delta.to_owners for delta in by_cp], [delta.from_owners for delta in by_cp]]
    moves += [[delta.levels[level].handoff.move for delta in by_cp] for level in range(len(by_cp[0].levels) - 1)]
    assert len(moves) == len(by_cp[0].splits)
    for ranks in moves:
        for sender in range(cp):
            assert len(ranks[sender].index) == sum(ranks[sender].send_splits)
            for receiver in range(cp):
                assert ranks[sender].send_splits[receiver] == ranks[receiver].recv_splits[sender]
    terms = torch.cat([plan.terms.index for plan in made])
    assert sorted(terms.tolist()) == list(range(len(packed.terms))), "each term is one rank's"
    segments = [index for delta in by_cp for level in delta.levels for index in level.segments]
    assert sorted(segments) == list(range(len(packed.segments))), "each segment is one rank's"


def test_context_shards_are_even_and_tensor_slices_padded():
    _, made = plans(((5,) * 11,), "no_sharing", 2, 2)
    assert [plan.shard_sizes for plan in made] == [(6, 5)] * 4
    assert [len(plan.tokens) for plan in made] == [3, 3, 3, 3]
    assert [len(plan.positions) for plan in made] == [6, 6, 5, 5]


def test_the_convolution_reaches_through_several_ancestors():
    packed, (plan,) = plans(NESTED, "uniform_depth_4", 1, 1)
    assert [segment.length for segment in packed.segments][:4] == [1, 1, 1, 1]
    tail = next(segment for segment in packed.segments if segment.rows == (0,))
    assert tail.depth == 5
    place = plan.delta.levels[4].segments.index(tail.index)
    window = plan.delta.windows[plan.delta.levels[4].first_chunk + place]
    reached = [packed.tokens[row] for row in window[:3].tolist()]
    assert reached == [2, 3, 4], "three ancestors of one token each"


def test_a_root_has_nothing_before_it():
    _, (plan,) = plans(NESTED, "no_sharing", 1, 1)
    assert (plan.delta.windows[:, :3] == plan.packed_tokens).all()


def test_a_state_goes_once_to_each_owner_of_children():
    rows = tuple((*range(20), 30 + row, *range(10)) for row in range(8))
    _, made = plans(rows, "depth_one", 1, 4)
    moves = [plan.delta.levels[0].handoff.move for plan in made]
    owner = made[0].delta.owners[0]
    assert moves[owner].send_splits == (1, 1, 1, 1)
    assert [sum(move.send_splits) for move in moves] == [4 if rank == owner else 0 for rank in range(4)]


def test_levels_are_balanced_one_by_one():
    rows = tuple((*range(40), 50 + row, *range(row)) for row in range(4))
    packed, made = plans(rows, "depth_one", 1, 2)
    owners = made[0].delta.owners
    loads = [sum(s.length for s in packed.segments if s.depth == 2 and owners[s.index] == rank) for rank in range(2)]
    assert loads == [5, 5]


def test_ranks_without_segments_have_no_chunks_and_still_their_place_in_every_exchange():
    _, made = plans(NESTED[:2], "depth_one", 1, 4)
    empty = [plan for plan in made if not len(plan.delta.windows)]
    assert empty
    for plan in empty:
        assert len(plan.delta.levels) == 2
        assert plan.delta.levels[0].handoff.move.send_splits == (0, 0, 0, 0)


def test_the_digest_tells_layouts_shapes_models_and_weights_of_terms_apart():
    tree = PrefixTree.from_rows(NESTED)
    family = [pack(NESTED, tree, layout) for layout in candidate_family(tree)]
    (alone,) = topologies(1, 1)
    digests = [make_plan(packed, CONFIG, alone).digest for packed in family]
    digests += [make_plan(family[0], CONFIG, topologies(*shape)[0]).digest for shape in ((1, 2), (2, 1), (1, 4))]
    digests += [make_plan(family[0], model_config("tiny-hybrid", 3), alone).digest]
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize("tp", [2, 4])
def test_weights_are_the_same_for_every_tensor_parallel_shape(tp):
    whole = HybridModel(CONFIG, Topology.single("cpu"), dtype=torch.float32)
    parts = [HybridModel(CONFIG, topology, dtype=torch.float32) for topology in topologies(tp, 1)]
    for name, factor in whole.lora_factors().items():
        shards = [part.lora_parameters()[name] for part in parts]
        if factor.shard_dim is None:
            assert all(torch.equal(shard, factor.parameter) for shard in shards)
        else:
            assert torch.equal(torch.cat(shards, dim=factor.shard_dim), factor.parameter)
    assert torch.equal(
        torch.cat([part.layers[3].mixer.out.weight for part in parts], dim=1), whole.layers[3].mixer.out.weight
    )
    other = HybridModel(CONFIG, Topology.single("cpu"), dtype=torch.float32, seed=1)
    assert not torch.equal(other.embedding, whole.embedding)
