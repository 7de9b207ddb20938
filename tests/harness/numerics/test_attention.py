"""Attention over a packed row: the mask, in both forms, and the fast forms against plain softmax sums."""

from __future__ import annotations

import pytest
import torch

from harness.model.attention import attend
from harness.model.reference import reference_attention
from harness.packing import pack
from harness.parallel.visibility import BLOCK, block_mask, dense_mask, make_visibility
from harness.prefix_tree import PrefixTree, candidate_family

SHORT = ((1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 9), (1, 2, 3, 8), (1, 2, 7, 7), (1, 6), (9, 9))
# Nodes and tails longer and shorter than a block, so that full, partial and empty blocks all occur.
LONG = (
    (*range(400), 1, 2, 3),
    (*range(400), *range(300, 0, -1)),
    (*range(150), *range(500, 700)),
    (*range(10), 5),
    (7, 7),
)


def packed_layouts(rows):
    tree = PrefixTree.from_rows(rows)
    return [pack(rows, tree, layout) for layout in candidate_family(tree)]


def by_definition(packed, rows) -> torch.Tensor:
    """Query sees key when a row goes through both and the key comes no later in it."""
    places: list[list[int]] = [[] for _ in rows]
    for segment in packed.segments:
        for row in segment.rows:
            places[row] += range(segment.start, segment.start + segment.length)
    visible = torch.zeros(len(packed.tokens), len(packed.tokens), dtype=torch.bool)
    for row in places:
        for order, query in enumerate(row):
            visible[query, row[: order + 1]] = True
    return visible


@pytest.mark.parametrize("rows", [SHORT, LONG])
def test_a_token_sees_what_comes_no_later_in_a_row_through_it(rows):
    for packed in packed_layouts(rows):
        mask = dense_mask(make_visibility(packed.segments, torch.device("cpu")))
        assert torch.equal(mask, by_definition(packed, rows)), packed.label


@pytest.mark.parametrize("rows", [SHORT, LONG])
def test_block_masks_list_every_visible_block_and_call_full_only_what_is(rows):
    kinds = set()
    for packed in packed_layouts(rows):
        visibility = make_visibility(packed.segments, torch.device("cpu"))
        mask = block_mask(visibility, packed.segments)
        tokens, blocks = len(packed.tokens), -(-len(packed.tokens) // BLOCK)
        dense = torch.nn.functional.pad(dense_mask(visibility), (0, blocks * BLOCK - tokens) * 2)
        cut = dense.view(blocks, BLOCK, blocks, BLOCK)
        some = listed(mask.kv_num_blocks, mask.kv_indices) | listed(mask.full_kv_num_blocks, mask.full_kv_indices)
        full = listed(mask.full_kv_num_blocks, mask.full_kv_indices)
        assert torch.equal(some, cut.any(3).any(1)), packed.label
        inside = torch.arange(blocks * BLOCK).view(blocks, BLOCK) < tokens
        filled = (cut | ~inside[:, :, None, None]).all(3).all(1)
        assert not (full & ~filled).any(), packed.label
        kinds |= {("full", bool(full.any())), ("empty", bool((~some).any())), ("partial", bool((some & ~full).any()))}
    if rows is LONG:
        assert {("full", True), ("empty", True), ("partial", True)} <= kinds


def listed(counts: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    blocks = counts.shape[-1]
    chosen = torch.zeros(blocks, blocks, dtype=torch.bool)
    for row in range(blocks):
        chosen[row, indices[0, 0, row, : counts[0, 0, row]].long()] = True
    return chosen


def drawn(count: int, queries: int, kv_heads: int, head_dim: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    width = (queries + 2 * kv_heads) * head_dim
    return torch.randn(count, width, generator=generator, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize(("queries", "kv_heads"), [(4, 2), (3, 1), (2, 2)])
def test_attention_gives_the_plain_softmax_sum_and_its_gradient(queries, kv_heads):
    for packed in packed_layouts(SHORT):
        mask = dense_mask(make_visibility(packed.segments, torch.device("cpu")))
        rows = drawn(len(packed.tokens), queries, kv_heads, 8)
        q, k, v = rows.view(len(packed.tokens), -1, 8).split([queries, kv_heads, kv_heads], dim=1)
        weights = torch.arange(queries * 8, dtype=torch.float64) - 3
        fast, slow = attend(rows, mask, kv_heads, 8), reference_attention(q, k, v, mask).flatten(1)
        torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-12)
        gradients = [torch.autograd.grad((form * weights).sum(), rows)[0] for form in (fast, slow)]
        assert gradients[1].abs().max() > 0
        torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-10)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_s_mask_function_gives_what_the_dense_mask_gives():
    # Forward only, and uncompiled, where flex attention takes the mask function and not the block lists: on a CPU
    # torch has no backward for it.
    for packed in packed_layouts(LONG)[1:3]:
        visibility = make_visibility(packed.segments, torch.device("cpu"))
        rows = drawn(len(packed.tokens), 2, 1, 16).detach()
        forms = [
            attend(rows, mask, 1, 16) for mask in (block_mask(visibility, packed.segments), dense_mask(visibility))
        ]
        torch.testing.assert_close(*forms, rtol=1e-9, atol=1e-10)
