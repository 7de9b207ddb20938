"""Parts that both kinds of layer use, and the end of the model. All work on rows (n, ...) and hold no collective."""

from __future__ import annotations

from typing import NamedTuple

import torch

from harness.model.config import AttentionShape, ModelConfig
from harness.model.weights import Projection, Split, WeightSource, project

__all__ = [
    "SwiGluWeights",
    "accumulation_dtype",
    "apply_rotary",
    "draw_swiglu",
    "rms_norm",
    "rotary_angles",
    "swiglu",
    "term_log_probs",
]


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type that norms, decays, states and log-probabilities are computed in: float32, float64 for float64."""
    return torch.promote_types(dtype, torch.float32)


def rms_norm(rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Rows x to x / sqrt(mean(x^2) + eps) * weight, over the last dimension."""
    wide = rows.to(accumulation_dtype(rows.dtype))
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (normed * weight).to(rows.dtype)


def rotary_angles(
    positions: torch.Tensor, shape: AttentionShape, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines (n, 1, rotary_dim / 2) of the angles position x base^(-2 i / rotary_dim)."""
    exponent = torch.arange(0, shape.rotary_dim, 2, device=positions.device, dtype=torch.float64) / shape.rotary_dim
    angles = positions[:, None, None] * shape.rotary_base**-exponent
    return angles.cos().to(dtype), angles.sin().to(dtype)


def apply_rotary(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the first rotary_dim of (n, heads, head_dim): element i with element i + rotary_dim / 2."""
    half = cos.shape[-1]
    first, second, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


class SwiGluWeights(NamedTuple):
    """One rank's slice of the feed-forward part."""

    gate: Projection
    up: Projection
    down: Projection


def draw_swiglu(source: WeightSource, name: str, config: ModelConfig) -> SwiGluWeights:
    """The weights of the feed-forward part called `name`."""
    return SwiGluWeights(
        gate=source.projection(f"{name}.gate", config.hidden, config.ffn, Split.OUTPUT),
        up=source.projection(f"{name}.up", config.hidden, config.ffn, Split.OUTPUT),
        down=source.projection(f"{name}.down", config.ffn, config.hidden, Split.INPUT),
    )


def swiglu(rows: torch.Tensor, weights: SwiGluWeights, scale: float) -> torch.Tensor:
    """down(silu(gate(x)) up(x)); a partial sum over tensor parallel ranks."""
    gated = torch.nn.functional.silu(project(rows, weights.gate, scale)) * project(rows, weights.up, scale)
    return project(gated, weights.down, scale)


def term_log_probs(
    rows: torch.Tensor, embedding: torch.Tensor, term_rows: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """Log softmax(x E^T)[target] of each term at rows x (n, hidden)[term_rows], where E is (vocab, hidden)."""
    logits = torch.nn.functional.linear(rows, embedding).to(accumulation_dtype(rows.dtype))
    return logits[term_rows, targets] - torch.logsumexp(logits, dim=1)[term_rows]
