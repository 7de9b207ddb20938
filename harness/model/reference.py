"""The model once more, slowly: one row alone, one token or head at a time, no packing, no chunks, no ranks.

Written to be read beside the formulas; the fast form is compared with it. It takes the weights of a model whose
topology is a single rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import linear, silu, softplus

from harness.model.attention import AttentionWeights
from harness.model.block import HybridModel
from harness.model.config import DeltaNetShape, ModelConfig
from harness.model.delta_net import DeltaNetWeights
from harness.model.weights import Projection

__all__ = [
    "reference_attention",
    "reference_convolution",
    "reference_delta_rule",
    "reference_log_probs",
]


def reference_log_probs(model: HybridModel, row: Sequence[int]) -> torch.Tensor:
    """(len(row) - 1,): the log-probability of each next token of `row`, which the model sees alone."""
    config = model.config
    x = model.embedding[torch.tensor(row)]
    for layer in model.layers:
        normed = _norm(x, layer.norm, config.norm_eps)
        match layer.mixer:
            case AttentionWeights():
                x = x + _attention_layer(normed, layer.mixer, config)
            case DeltaNetWeights():
                x = x + _delta_net_layer(normed, layer.mixer, config)
        normed = _norm(x, layer.ffn_norm, config.norm_eps)
        gate, up = _project(normed, layer.ffn.gate, config), _project(normed, layer.ffn.up, config)
        x = x + _project(silu(gate) * up, layer.ffn.down, config)
    logits = linear(_norm(x, model.norm, config.norm_eps), model.embedding)
    log_probs = torch.log_softmax(logits, dim=1)
    return (
        torch.stack([log_probs[place, token] for place, token in enumerate(row[1:])])
        if len(row) > 1
        else x.new_zeros(0)
    )


def reference_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """Attention of q (n, heads, d) over k, v (n, kv_heads, d); query i may see key j where `visible[i, j]`."""
    outputs = torch.zeros_like(q)
    shared = q.shape[1] // k.shape[1]
    for head in range(q.shape[1]):
        for query in range(q.shape[0]):
            keys = torch.nonzero(visible[query])[:, 0]
            scores = k[keys, head // shared] @ q[query, head] / q.shape[2] ** 0.5
            outputs[query, head] = torch.softmax(scores, dim=0) @ v[keys, head // shared]
    return outputs


def reference_convolution(x: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """Causal depth-wise convolution of x (n, channels); the last of `taps` (channels, width) meets the token itself."""
    width = taps.shape[1]
    outputs = []
    for place in range(x.shape[0]):
        total = torch.zeros_like(x[0])
        for tap in range(width):
            source = place - (width - 1) + tap
            if source >= 0:
                total = total + x[source] * taps[:, tap]
        outputs.append(total)
    return torch.stack(outputs)


def reference_delta_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gated delta rule of one head, token by token.

    `q`, `k` (n, key_dim), `v` (n, value_dim), `g`, `beta` (n,), `state` (key_dim, value_dim) before the first token.
    Returns outputs (n, value_dim) and the state after the last token.
    """
    outputs = []
    for token in range(q.shape[0]):
        state = torch.exp(g[token]) * state
        read = state.T @ k[token]
        state = state + torch.outer(k[token], beta[token] * (v[token] - read))
        outputs.append(state.T @ q[token])
    return torch.stack(outputs), state


def _attention_layer(x: torch.Tensor, weights: AttentionWeights, config: ModelConfig) -> torch.Tensor:
    shape, count = config.attention, x.shape[0]
    q = _project(x, weights.q, config).view(count, shape.heads, shape.head_dim)
    k = _project(x, weights.k, config).view(count, shape.kv_heads, shape.head_dim)
    v = _project(x, weights.v, config).view(count, shape.kv_heads, shape.head_dim)
    q = _rotate(_norm(q, weights.q_norm, config.norm_eps), shape.rotary_dim, shape.rotary_base)
    k = _rotate(_norm(k, weights.k_norm, config.norm_eps), shape.rotary_dim, shape.rotary_base)
    causal = torch.ones((count, count), dtype=torch.bool).tril()
    mixed = reference_attention(q, k, v, causal).flatten(1)
    if weights.gate is not None:
        mixed = mixed * torch.sigmoid(_project(x, weights.gate, config))
    return _project(mixed, weights.out, config)


def _delta_net_layer(x: torch.Tensor, weights: DeltaNetWeights, config: ModelConfig) -> torch.Tensor:
    shape = config.delta_net
    if shape is None:
        raise ValueError(f"{config.name} has no delta net layers")
    raw = torch.cat([_project(x, part, config) for part in (weights.q, weights.k, weights.v)], dim=1)
    mixed = silu(reference_convolution(raw, weights.conv))
    g = -weights.rate * softplus(linear(x, weights.decay) + weights.rate_bias)
    beta = torch.sigmoid(linear(x, weights.write))
    z = _project(x, weights.z, config)
    heads = [_delta_net_head(mixed, g, beta, shape, head) for head in range(shape.value_heads)]
    normed = [_norm(head, weights.norm, config.norm_eps) for head in heads]
    return _project(torch.cat(normed, dim=1) * silu(z), weights.out, config)


def _delta_net_head(
    mixed: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, shape: DeltaNetShape, head: int
) -> torch.Tensor:
    key_head = head * shape.key_heads // shape.value_heads
    keys = shape.key_heads * shape.key_dim
    q = _unit(mixed[:, key_head * shape.key_dim :][:, : shape.key_dim]) / shape.key_dim**0.5
    k = _unit(mixed[:, keys + key_head * shape.key_dim :][:, : shape.key_dim])
    v = mixed[:, 2 * keys + head * shape.value_dim :][:, : shape.value_dim]
    empty = mixed.new_zeros((shape.key_dim, shape.value_dim))
    outputs, _ = reference_delta_rule(q, k, v, g[:, head], beta[:, head], empty)
    return outputs


def _project(x: torch.Tensor, projection: Projection, config: ModelConfig) -> torch.Tensor:
    effective = projection.weight + config.lora_scale * projection.lora_b @ projection.lora_a
    return x @ effective.T


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return weight * x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def _rotate(x: torch.Tensor, rotary_dim: int, base: float) -> torch.Tensor:
    """Pair i of each head (n, heads, d), elements i and i + rotary_dim / 2, turns by position x base^(-2 i / dim)."""
    rotated = x.clone()
    half = rotary_dim // 2
    positions = torch.arange(x.shape[0], dtype=torch.float64)
    for pair in range(half):
        angle = positions * base ** (-2 * pair / rotary_dim)
        cos, sin = angle.cos()[:, None].to(x.dtype), angle.sin()[:, None].to(x.dtype)
        rotated[..., pair] = x[..., pair] * cos - x[..., pair + half] * sin
        rotated[..., pair + half] = x[..., pair + half] * cos + x[..., pair] * sin
    return rotated
