"""Full attention over a packed row: grouped queries, rotary positions by row, keys limited to a row's ancestors."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from harness.model.config import ModelConfig
from harness.model.layers import apply_rotary, rms_norm
from harness.model.weights import Projection, Split, WeightSource, project

__all__ = ["AttentionWeights", "attend", "attention_output", "attention_project", "draw_attention"]


class AttentionWeights(NamedTuple):
    """One rank's weights; `gate` is None where the class has no output gate."""

    q: Projection
    k: Projection
    v: Projection
    gate: Projection | None
    out: Projection
    q_norm: torch.Tensor
    k_norm: torch.Tensor


def draw_attention(source: WeightSource, name: str, config: ModelConfig) -> AttentionWeights:
    """The weights of the attention layer called `name`."""
    shape, hidden = config.attention, config.hidden
    inner, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return AttentionWeights(
        q=source.projection(f"{name}.q", hidden, inner, Split.OUTPUT),
        k=source.projection(f"{name}.k", hidden, kv, Split.OUTPUT),
        v=source.projection(f"{name}.v", hidden, kv, Split.OUTPUT),
        gate=source.projection(f"{name}.gate", hidden, inner, Split.OUTPUT) if shape.gated else None,
        out=source.projection(f"{name}.out", inner, hidden, Split.INPUT),
        q_norm=source.normal(f"{name}.q_norm", shape.head_dim, mean=1.0, std=0.1),
        k_norm=source.normal(f"{name}.k_norm", shape.head_dim, mean=1.0, std=0.1),
    )


def attention_project(
    rows: torch.Tensor,
    weights: AttentionWeights,
    cos: torch.Tensor,
    sin: torch.Tensor,
    blocks: int,
    head_dim: int,
    scale: float,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Queries, keys and values of rows (n, hidden), cut by heads into `blocks`, and the output gate (n, inner).

    The first result is (blocks, n, width): a block holds its queries, then its keys, then its values. Blocks are runs
    of consecutive heads, so that the queries of a block belong to its keys.
    """
    count = rows.shape[0]
    heads, kv_heads = weights.q.weight.shape[0] // head_dim, weights.k.weight.shape[0] // head_dim
    q = rms_norm(project(rows, weights.q, scale).view(count, heads, head_dim), weights.q_norm, eps)
    k = rms_norm(project(rows, weights.k, scale).view(count, kv_heads, head_dim), weights.k_norm, eps)
    v = project(rows, weights.v, scale).view(count, blocks, kv_heads // blocks * head_dim)
    q = apply_rotary(q, cos, sin).view(count, blocks, heads // blocks * head_dim)
    k = apply_rotary(k, cos, sin).view(count, blocks, kv_heads // blocks * head_dim)
    by_block = torch.cat([q, k, v], dim=2).transpose(0, 1)
    gate = None if weights.gate is None else project(rows, weights.gate, scale)
    return by_block.contiguous(), gate


def attend(rows: torch.Tensor, mask: torch.Tensor | BlockMask, kv_heads: int, head_dim: int) -> torch.Tensor:
    """softmax(q k^T / sqrt(head_dim)) v over (packed, width) rows as `attention_project` packs them.

    `kv_heads` are those of this block. The result is (packed, query heads x head_dim).
    """
    count = rows.shape[0]
    queries = rows.shape[1] // head_dim - 2 * kv_heads
    q, k, v = (
        part.reshape(1, count, -1, head_dim).transpose(1, 2)
        for part in rows.split_with_sizes([queries * head_dim, kv_heads * head_dim, kv_heads * head_dim], 1)
    )
    if isinstance(mask, BlockMask):
        mixed = flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
        assert isinstance(mixed, torch.Tensor)  # noqa: S101 - narrows a union: no log-sum-exp was asked for
    else:
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    return mixed[0].transpose(0, 1).reshape(count, -1)


def attention_output(mixed: torch.Tensor, gate: torch.Tensor | None, out: Projection, scale: float) -> torch.Tensor:
    """The output projection of (n, inner) rows, gated where the class is; a partial sum over tensor parallel ranks."""
    return project(mixed if gate is None else mixed * torch.sigmoid(gate), out, scale)
