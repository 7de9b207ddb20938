"""Which packed tokens a packed token may attend to: its row's ancestors and what comes before it.

Segments are numbered in preorder of the tree, so that the subtree of a segment is an interval of numbers, and token k
is visible to token q exactly when

    number[k] <= number[q] < end[k]   (k's segment is q's own or one of its ancestors)
    position[k] <= position[q]        (causal, positions counted inside the row)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.attention.flex_attention import BlockMask

from harness.packing import Segment

__all__ = ["BLOCK", "Visibility", "block_mask", "dense_mask", "make_visibility"]

BLOCK = 128
"""Tokens on a side of a block of the block mask."""


@dataclass(frozen=True, slots=True)
class Visibility:
    """Three (packed tokens,) vectors: preorder number of the token's segment, end of its subtree, position in row."""

    number: torch.Tensor
    end: torch.Tensor
    position: torch.Tensor

    def sees(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """Whether token `query` may attend to token `key`, element by element after broadcasting."""
        own = self.number[query]
        related = (self.number[key] <= own) & (own < self.end[key])
        return related & (self.position[key] <= self.position[query])


def make_visibility(segments: Sequence[Segment], device: torch.device) -> Visibility:
    """The vectors for `segments`, those of a packed group, parents first."""
    numbers, ends = _preorder(segments)
    in_order = sorted(segments, key=lambda segment: segment.start)
    lengths = torch.tensor([segment.length for segment in in_order])
    position = [torch.arange(segment.row_start, segment.row_start + segment.length) for segment in in_order]
    return Visibility(
        number=torch.tensor([numbers[segment.index] for segment in in_order]).repeat_interleave(lengths).to(device),
        end=torch.tensor([ends[segment.index] for segment in in_order]).repeat_interleave(lengths).to(device),
        position=torch.cat(position).to(device),
    )


def dense_mask(visibility: Visibility) -> torch.Tensor:
    """(packed, packed) booleans by [query][key]. For short rows: it grows with the square of the packed tokens."""
    tokens = torch.arange(len(visibility.position), device=visibility.position.device)
    return visibility.sees(tokens[:, None], tokens[None, :])


def block_mask(visibility: Visibility, segments: Sequence[Segment]) -> BlockMask:
    """The same mask for flex attention, without anything of size packed x packed.

    A block is listed as full where each of its queries sees each of its keys, as partial where one may see one.
    """
    tokens = len(visibility.position)
    blocks = -(-tokens // BLOCK)
    some = torch.zeros((blocks, blocks), dtype=torch.bool)
    full = torch.zeros((blocks, blocks), dtype=torch.bool)
    in_order = sorted(segments, key=lambda segment: segment.start)
    first = 0
    for block in range(blocks):
        start, stop = block * BLOCK, min((block + 1) * BLOCK, tokens)
        while in_order[first].start + in_order[first].length <= start:
            first += 1
        seen_by_any = torch.zeros(blocks * BLOCK, dtype=torch.bool)
        seen_by_all = torch.ones(blocks * BLOCK, dtype=torch.bool)
        last = first
        while last < len(in_order) and in_order[last].start < stop:
            begin = max(start, in_order[last].start)
            end = min(stop, in_order[last].start + in_order[last].length)
            seen_by_any |= _seen(segments, in_order[last], end, blocks * BLOCK)
            seen_by_all &= _seen(segments, in_order[last], begin + 1, blocks * BLOCK)
            last += 1
        some[block] = seen_by_any.view(blocks, BLOCK).any(1)
        full[block] = seen_by_all.view(blocks, BLOCK).all(1)
    device = visibility.position.device
    partial_counts, partial_index = _listed(some & ~full, device)
    full_counts, full_index = _listed(full, device)

    def sees(_batch: torch.Tensor, _head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return visibility.sees(query, key)

    return BlockMask.from_kv_blocks(
        partial_counts,
        partial_index,
        full_counts,
        full_index,
        BLOCK_SIZE=BLOCK,
        mask_mod=sees,
        seq_lengths=(tokens, tokens),
    )


def _preorder(segments: Sequence[Segment]) -> tuple[list[int], list[int]]:
    """For each segment its preorder number and the number after the last of its subtree."""
    sizes = [1] * len(segments)
    for segment in reversed(segments):
        if segment.parent >= 0:
            sizes[segment.parent] += sizes[segment.index]
    numbers = [0] * len(segments)
    free_root, free_below = 0, [0] * len(segments)
    for segment in segments:
        if segment.parent < 0:
            numbers[segment.index] = free_root
            free_root += sizes[segment.index]
        else:
            numbers[segment.index] = free_below[segment.parent]
            free_below[segment.parent] += sizes[segment.index]
        free_below[segment.index] = numbers[segment.index] + 1
    return numbers, [number + size for number, size in zip(numbers, sizes, strict=True)]


def _seen(segments: Sequence[Segment], segment: Segment, end: int, size: int) -> torch.Tensor:
    """(size,) booleans: the tokens of `segment` before packed index `end`, and all of its ancestors."""
    seen = torch.zeros(size, dtype=torch.bool)
    seen[segment.start : end] = True
    parent = segment.parent
    while parent >= 0:
        above = segments[parent]
        seen[above.start : above.start + above.length] = True
        parent = above.parent
    return seen


def _listed(blocks: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Counts (1, 1, rows) and, for each row, its True columns first (1, 1, rows, columns), as flex attention wants."""
    order = torch.argsort(blocks.int(), dim=1, descending=True, stable=True)
    return blocks.sum(1).int()[None, None].to(device), order.int()[None, None].to(device)
