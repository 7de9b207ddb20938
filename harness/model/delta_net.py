"""Gated delta net: a causal convolution, then a linear recurrence with decay and overwrite, computed in chunks.

Per value head, with key k, value v, query q, decay exp(g) and write strength beta (Yang, Kautz, Hatamizadeh, "Gated
Delta Networks", 2024):

    S_t = exp(g_t) S_{t-1} + k_t u_t^T,    u_t = beta_t (v_t - exp(g_t) S_{t-1}^T k_t),    o_t = S_t^T q_t

Within a chunk that starts from state S, with G_t the sum of g up to t, unrolling gives a unit lower triangular system

    (I + A) U = beta V - (beta exp(G) K) S,    A_ti = beta_t exp(G_t - G_i) k_t . k_i  for i < t

whose two right-hand sides are solved for all chunks at once; only the step from chunk to chunk is sequential.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from harness.model.config import DeltaNetShape, ModelConfig
from harness.model.layers import accumulation_dtype, rms_norm
from harness.model.weights import Projection, Split, WeightSource, project

__all__ = [
    "Chunks",
    "DeltaNetWeights",
    "chunk_step",
    "delta_output",
    "delta_project",
    "draw_delta_net",
    "prepare_chunks",
    "window_chunks",
]


class DeltaNetWeights(NamedTuple):
    """One rank's heads. `conv` is (channels, conv_width), queries, keys, values in this order."""

    q: Projection
    k: Projection
    v: Projection
    z: Projection
    decay: torch.Tensor
    write: torch.Tensor
    conv: torch.Tensor
    rate: torch.Tensor
    rate_bias: torch.Tensor
    norm: torch.Tensor
    out: Projection


class Chunks(NamedTuple):
    """What the sequential step needs of each chunk, per value head; the first dimension counts chunks.

    `u` (heads, chunk, value_dim) and `w` (heads, chunk, key_dim) are the two solutions, `q` the queries decayed from
    the chunk's start, `inner` (heads, chunk, chunk) the decayed products of queries and keys, `k` the keys decayed to
    the chunk's end, `decay` (heads,) the chunk's whole decay.
    """

    u: torch.Tensor
    w: torch.Tensor
    q: torch.Tensor
    inner: torch.Tensor
    k: torch.Tensor
    decay: torch.Tensor


def draw_delta_net(source: WeightSource, name: str, config: ModelConfig, shape: DeltaNetShape) -> DeltaNetWeights:
    """The weights of the delta net layer called `name`.

    Decay rates are drawn low enough for a state to outlive a short segment: else no test would miss a lost hand-off.
    """
    hidden, width = config.hidden, shape.conv_width
    keys, values = shape.key_heads * shape.key_dim, shape.value_heads * shape.value_dim
    conv = [
        source.normal(f"{name}.conv_{part}", channels, width, std=width**-0.5, shard_dim=0)
        for part, channels in (("q", keys), ("k", keys), ("v", values))
    ]
    return DeltaNetWeights(
        q=source.projection(f"{name}.q", hidden, keys, Split.OUTPUT),
        k=source.projection(f"{name}.k", hidden, keys, Split.OUTPUT),
        v=source.projection(f"{name}.v", hidden, values, Split.OUTPUT),
        z=source.projection(f"{name}.z", hidden, values, Split.OUTPUT),
        decay=source.normal(f"{name}.decay", shape.value_heads, hidden, std=hidden**-0.5, shard_dim=0),
        write=source.normal(f"{name}.write", shape.value_heads, hidden, std=hidden**-0.5, shard_dim=0),
        conv=torch.cat(conv),
        rate=source.log_uniform(f"{name}.rate", shape.value_heads, 0.003, 0.3),
        rate_bias=source.normal(f"{name}.rate_bias", shape.value_heads, std=0.5, shard_dim=0),
        norm=source.normal(f"{name}.norm", shape.value_dim, mean=1.0, std=0.1),
        out=source.projection(f"{name}.out", values, hidden, Split.INPUT),
    )


def delta_project(rows: torch.Tensor, weights: DeltaNetWeights, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows (n, hidden) to what travels to the owners (n, channels + 2 heads) and the output gate z (n, values).

    A travelling row holds queries, keys and values before the convolution, then decay and write inputs.
    """
    linear = torch.nn.functional.linear
    parts = [project(rows, projection, scale) for projection in (weights.q, weights.k, weights.v)]
    travelling = torch.cat([*parts, linear(rows, weights.decay), linear(rows, weights.write)], dim=1)
    return travelling, project(rows, weights.z, scale)


def window_chunks(
    rows: torch.Tensor,
    windows: torch.Tensor,
    valid: torch.Tensor,
    conv: torch.Tensor,
    rate: torch.Tensor,
    rate_bias: torch.Tensor,
    key_dim: int,
    value_dim: int,
) -> Chunks:
    """Received rows, cut into chunks by `DeltaPlan.windows`, through the convolution and the chunk's own algebra."""
    dtype = accumulation_dtype(rows.dtype)
    nothing = rows.new_zeros((1, rows.shape[1]))
    cut = torch.cat([rows, nothing])[windows].to(dtype)
    channels, width, heads = conv.shape[0], conv.shape[1], rate.shape[0]
    chunk = valid.shape[1]
    mixed = cut[:, :chunk, :channels] * conv[:, 0].to(dtype)
    for tap in range(1, width):
        mixed = mixed + cut[:, tap : tap + chunk, :channels] * conv[:, tap].to(dtype)
    mixed = torch.nn.functional.silu(mixed)
    keys = (channels - heads * value_dim) // 2
    q, k, v = mixed.split_with_sizes([keys, keys, heads * value_dim], 2)
    decay, write = cut[:, width - 1 :, channels:].split_with_sizes([heads, heads], 2)
    there = valid[..., None].to(dtype)
    g = -rate.to(dtype) * torch.nn.functional.softplus(decay + rate_bias.to(dtype)) * there
    beta = torch.sigmoid(write) * there
    repeat = heads * key_dim // keys
    q, k = (_unit(part.view(*part.shape[:2], -1, key_dim)).repeat_interleave(repeat, dim=2) for part in (q, k))
    v = v.view(*v.shape[:2], -1, value_dim)
    by_head = [part.transpose(1, 2) for part in (q * key_dim**-0.5, k, v, g, beta)]
    return prepare_chunks(*by_head)


def prepare_chunks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor) -> Chunks:
    """The chunk's own algebra, see the module.

    `q` and `k` are (chunks, heads, chunk, key_dim), `v` (chunks, heads, chunk, value_dim), `g` and `beta` (chunks,
    heads, chunk). At a padded place g and beta are 0: it writes nothing and decays nothing.
    """
    total = g.cumsum(-1)
    size = g.shape[-1]
    upto = torch.ones((size, size), dtype=torch.bool, device=g.device).tril()
    # Masked before the exponential: above the diagonal the difference is positive and could overflow.
    between = (total[..., :, None] - total[..., None, :]).masked_fill(~upto, -torch.inf).exp()
    system = beta[..., None] * between * (k @ k.transpose(-1, -2))
    from_start = total.exp()[..., None]
    sides = torch.cat([beta[..., None] * v, beta[..., None] * from_start * k], dim=-1)
    solved = torch.linalg.solve_triangular(system, sides, upper=False, unitriangular=True)
    u, w = solved.split_with_sizes([v.shape[-1], k.shape[-1]], -1)
    to_end = (total[..., -1:] - total).exp()[..., None]
    return Chunks(u, w, q * from_start, between * (q @ k.transpose(-1, -2)), k * to_end, total[..., -1].exp())


def chunk_step(state: torch.Tensor, chunk: Chunks) -> tuple[torch.Tensor, torch.Tensor]:
    """Advance states (n, heads, key_dim, value_dim) by a chunk each; their outputs are (n, heads, chunk, value_dim)."""
    written = chunk.u - chunk.w @ state
    outputs = chunk.q @ state + chunk.inner @ written
    return chunk.decay[..., None, None] * state + chunk.k.transpose(-1, -2) @ written, outputs


def delta_output(
    mixed: torch.Tensor, z: torch.Tensor, norm: torch.Tensor, out: Projection, scale: float, eps: float
) -> torch.Tensor:
    """The gated norm per head and the output projection of (n, values) rows; partial over tensor parallel ranks."""
    by_head = mixed.view(mixed.shape[0], mixed.shape[1] // norm.shape[0], norm.shape[0])
    heads = rms_norm(by_head, norm, eps).flatten(1)
    return project(heads * torch.nn.functional.silu(z), out, scale)


_UNIT_EPS = 1e-6


def _unit(heads: torch.Tensor) -> torch.Tensor:
    return heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + _UNIT_EPS)
